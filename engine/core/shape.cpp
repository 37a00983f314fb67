// Shape arithmetic.
#include "engine/core/shape.h"

#include "engine/core/check.h"

namespace trainer {

Shape::Shape(std::span<const std::int64_t> sizes) : rank_(static_cast<int>(sizes.size())) {
  CHECK(sizes.size() <= kMaxDims, "a tensor has at most 6 dims");
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes_[i] = sizes[i];
}

std::int64_t Shape::elements() const {
  std::int64_t product = 1;
  for (std::int64_t size : sizes()) product *= size;
  return product;
}

std::int64_t Shape::rows() const {
  std::int64_t product = 1;
  for (int i = 0; i + 1 < rank_; ++i) product *= sizes_[i];
  return product;
}

Shape Shape::with_last(std::int64_t size) const {
  Shape result = *this;
  result[-1] = size;
  return result;
}

std::string Shape::str() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += (i ? ", " : "") + std::to_string(sizes_[i]);
  return text + "]";
}

}  // namespace trainer
