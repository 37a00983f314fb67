// Shape: the sizes of a tensor's dims, outermost first. Row-major; at most kMaxDims dims; no heap.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace trainer {

class Shape {
 public:
  static constexpr int kMaxDims = 6;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const std::int64_t> sizes);

  int rank() const { return rank_; }
  /// Size of dim `dim`; negative dims count from the end. REQUIRES: -rank() <= dim < rank().
  std::int64_t operator[](int dim) const { return sizes_[dim < 0 ? dim + rank_ : dim]; }
  std::int64_t& operator[](int dim) { return sizes_[dim < 0 ? dim + rank_ : dim]; }
  /// Product of all sizes; 1 for a scalar.
  std::int64_t elements() const;
  /// Product of the sizes of all dims but the last: the rows of the tensor seen as a matrix.
  std::int64_t rows() const;
  std::span<const std::int64_t> sizes() const { return {sizes_.data(), static_cast<std::size_t>(rank_)}; }

  /// The same dims with the last one replaced.
  Shape with_last(std::int64_t size) const;
  /// As "[4, 64, 128]".
  std::string str() const;

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kMaxDims> sizes_{};
  int rank_ = 0;
};

}  // namespace trainer
