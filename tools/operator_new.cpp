// operator new over malloc, for the command that links mimalloc: mimalloc's own, in a library that was compiled as C,
// aborts where there is no memory, and the command wants std::bad_alloc, of which command.cpp makes an error message.
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <string_view>

#include "tools/command.h"

namespace {

void* allocated(std::size_t bytes, std::size_t alignment) noexcept {
  if (bytes == 0) bytes = 1;
  if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__) return std::malloc(bytes);
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

std::size_t of(std::align_val_t alignment) { return static_cast<std::size_t>(alignment); }

// mimalloc takes its memory in segments of 32 MiB. Where not one fits, there would be no memory for an exception
// either.
void try_malloc() {
  void* volatile memory = std::malloc(1);
  std::free(memory);
  if (memory != nullptr) return;
  constexpr std::string_view kWhy =
      "trainer: input/output: no memory to begin with: raise the limit of address space (ulimit -v)\n";
  if (::write(STDERR_FILENO, kWhy.data(), kWhy.size()) < 0) {
  }
  ::_exit(trainer::tools::kInputOutput);
}

/// Before libraries begin, whose memory could not be had either.
[[gnu::section(".preinit_array"), gnu::used]] void (*const at_first)() = try_malloc;

}  // namespace

void* operator new(std::size_t bytes) { return or_throw(allocated(bytes, 1)); }
void* operator new[](std::size_t bytes) { return or_throw(allocated(bytes, 1)); }
void* operator new(std::size_t bytes, std::align_val_t to) { return or_throw(allocated(bytes, of(to))); }
void* operator new[](std::size_t bytes, std::align_val_t to) { return or_throw(allocated(bytes, of(to))); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocated(bytes, 1); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocated(bytes, 1); }

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
