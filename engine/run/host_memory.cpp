// mmap and madvise.
#include "engine/run/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "engine/core/error.h"
#include "engine/core/system_error.h"

namespace trainer {

HostMemory::HostMemory(std::int64_t bytes) : bytes_(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))) {
  data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data_ == MAP_FAILED)
    throw IoError("cannot allocate the plan's " + std::to_string(bytes) + " bytes: " + system_text(errno));
  madvise(data_, bytes_, MADV_HUGEPAGE);
}

HostMemory::~HostMemory() { munmap(data_, bytes_); }

}  // namespace trainer
