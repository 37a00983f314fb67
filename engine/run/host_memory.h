// HostMemory: a plan's one allocation on the CPU: an anonymous mapping, so zeros, in huge pages where the system has
// them, as a step walks over gigabytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trainer {

class HostMemory {
 public:
  /// Throws IoError where the system gives none.
  explicit HostMemory(std::int64_t bytes);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  std::byte* at(std::int64_t offset) const { return static_cast<std::byte*>(data_) + offset; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(bytes_); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace trainer
