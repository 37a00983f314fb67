// For tests of kernels: buffers of exact size (so that the address sanitizer sees one byte too many), random operands.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>

#include "engine/core/dtype.h"
#include "kernels/bf16.h"
#include "tests/kernels/f16.h"

namespace trainer::kernels::test {

struct Free {
  void operator()(void* p) const { std::free(p); }
};

/// Bytes at a 64-byte boundary, filled with 0xFF: a NaN in every float type.
class Buffer {
 public:
  explicit Buffer(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    void* p = nullptr;
    if (posix_memalign(&p, 64, bytes_ ? bytes_ : 1) != 0) throw std::bad_alloc();
    memory_.reset(static_cast<unsigned char*>(p));
    std::memset(p, 0xFF, bytes_);
  }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(memory_.get());
  }
  void* data() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }
  bool same_bits(const Buffer& other) const {
    return bytes_ == other.bytes_ && std::memcmp(data(), other.data(), bytes_) == 0;
  }

 private:
  std::unique_ptr<unsigned char, Free> memory_;
  std::size_t bytes_;
};

inline double read(const Buffer& buffer, DType dtype, std::int64_t index) {
  if (dtype == DType::f64) return buffer.as<double>()[index];
  if (dtype == DType::f16) return f16_value(buffer.as<std::uint16_t>()[index]);
  return dtype == DType::f32 ? static_cast<double>(buffer.as<float>()[index])
                             : static_cast<double>(to_f32(buffer.as<Bf16>()[index]));
}

/// A row-major tensor of normals.
inline Buffer normals(DType dtype, std::int64_t elements, std::uint64_t seed) {
  Buffer buffer(elements * size_of(dtype));
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < elements; ++i) {
    const float x = normal(generator);
    if (dtype == DType::f32)
      buffer.as<float>()[i] = x;
    else if (dtype == DType::f16)
      buffer.as<std::uint16_t>()[i] = f16_bits(x);
    else
      buffer.as<Bf16>()[i] = to_bf16(x);
  }
  return buffer;
}

}  // namespace trainer::kernels::test
