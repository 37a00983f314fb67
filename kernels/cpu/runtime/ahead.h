// Prefetches memory that a loop will read soon, a few cache lines at a time, where the hardware prefetcher does not.
// For loops files.
#pragma once

#include <cstdint>

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

/// `rows` pieces of `row_bytes`, `stride` bytes apart.
class Ahead {
 public:
  Ahead() = default;
  Ahead(const void* from, std::int64_t stride, std::int64_t rows, std::int64_t row_bytes)
      : from_(static_cast<const char*>(from)), stride_(stride), rows_(rows), row_bytes_(row_bytes) {}

  std::int64_t lines() const { return rows_ * ((row_bytes_ + kLine - 1) / kLine); }

  void ask(std::int64_t lines) {
    for (; lines > 0 && rows_ > 0; --lines) {
      __builtin_prefetch(from_ + at_, 0, 2);  // to L2
      at_ += kLine;
      if (at_ < row_bytes_) continue;
      at_ = 0, --rows_, from_ += stride_;
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;
  const char* from_ = nullptr;
  std::int64_t stride_ = 0, rows_ = 0, row_bytes_ = 0, at_ = 0;
};

}  // namespace
}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
