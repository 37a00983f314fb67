// How the values of tensors lie for ops that move them: rows and their pieces, strides, sums over a dim.
#include <algorithm>
#include <charconv>

#include "engine/core/op_record.h"
#include "kernels/batch_norm.h"
#include "kernels/mean.h"
#include "kernels/prepare.h"
#include "kernels/split.h"
#include "kernels/transpose.h"

namespace trainer::kernels {
namespace {

/// The attribute `dim` of a tensor of these dims: from the last.
int dim_of(const Signature& s, const Shape& whole) {
  const int dim = static_cast<int>(integer(s, "dim"));
  CHECK(dim < 0 && dim >= -whole.rank(), describe(s) + ": dim counts from the last");
  return dim;
}

/// Product of the dims behind `dim`.
std::int64_t behind(const Shape& shape, int dim) {
  std::int64_t elements = 1;
  for (int after = dim + 1; after < 0; ++after) elements *= shape[after];
  return elements;
}

}  // namespace

SplitRows split_rows(const Signature& s) {
  const std::size_t count = s.operands.size();
  CHECK(count >= 2, describe(s) + ": a whole and pieces");
  const bool splits = s.op == Op::split;
  const TensorDesc& whole = splits ? s.operands.front() : s.operands.back();
  const int dim = dim_of(s, whole.shape), rank = whole.shape.rank();
  const std::int64_t inner = behind(whole.shape, dim) * size_of(whole.dtype);
  SplitRows result;
  result.whole = whole.shape[dim] * inner;
  result.rows = result.whole == 0 ? 0 : whole.bytes() / result.whole;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    const TensorDesc& piece = s.operands[splits ? i + 1 : i];
    Shape like = whole.shape;
    if (piece.shape.rank() == rank) like[dim] = piece.shape[dim];
    CHECK(piece.dtype == whole.dtype && piece.shape == like, describe(s) + ": pieces differ from the whole in one dim");
    const std::int64_t width = piece.shape[dim] * inner;
    result.offsets.push_back(offset);
    result.widths.push_back(width);
    offset += width;
  }
  CHECK(offset == result.whole, describe(s) + ": the pieces make up the whole");
  return result;
}

SliceRows slice_rows(const Signature& s) {
  expect_operands(s, 2);
  const bool forward = s.op == Op::slice;
  const TensorDesc &whole = s.operands[forward ? 0 : 1], &piece = s.operands[forward ? 1 : 0];
  const int dim = dim_of(s, whole.shape);
  const std::int64_t start = integer(s, "start"), inner = behind(whole.shape, dim) * size_of(whole.dtype);
  Shape like = whole.shape;
  if (piece.shape.rank() == whole.shape.rank()) like[dim] = piece.shape[dim];
  CHECK(piece.dtype == whole.dtype && piece.shape == like, describe(s) + ": a slice differs from the whole in one dim");
  CHECK(start >= 0 && start + like[dim] <= whole.shape[dim], describe(s) + ": the slice goes beyond the whole");
  SliceRows rows{.whole = whole.shape[dim] * inner, .offset = start * inner, .width = like[dim] * inner};
  rows.rows = rows.whole == 0 ? 0 : whole.bytes() / rows.whole;
  return rows;
}

ExpandRows expand_rows(const Signature& s) {
  expect_operands(s, 3);
  const TensorDesc &x = s.operands[0], &y = s.operands[2];
  const auto dim = static_cast<int>(integer(s, "dim"));
  CHECK(dim >= 0 && dim <= x.shape.rank() && y.shape.rank() == x.shape.rank() + 1,
        describe(s) + ": y has one dim more than x");
  for (int i = 0; i < x.shape.rank(); ++i)
    CHECK(x.shape[i] == y.shape[i < dim ? i : i + 1], describe(s) + ": y differs from x in one dim");
  expect_operand(s, 2, x.dtype, y.elements());
  ExpandRows rows{.rows = 1, .copies = y.shape[dim], .width = x.bytes()};
  for (int i = 0; i < dim; ++i) rows.rows *= x.shape[i];
  if (rows.rows > 0) rows.width /= rows.rows;
  return rows;
}

Strides transpose_strides(const Signature& s) {
  expect_operands(s, 2);
  const TensorDesc &x = s.operands[0], &y = s.operands[1];
  const std::string& dims = text(s, "dims");
  const int rank = x.shape.rank();
  std::int64_t stride[Shape::kMaxDims] = {}, step = 1;
  for (int dim = rank - 1; dim >= 0; step *= x.shape[dim--]) stride[dim] = step;
  Strides strides;
  const char *at = dims.data(), *const end = at + dims.size();
  bool seen[Shape::kMaxDims] = {};
  int listed = 0;
  for (; at < end; ++listed) {
    int dim = -1;
    const auto [rest, error] = std::from_chars(at, end, dim);
    CHECK(error == std::errc() && dim >= 0 && dim < rank && !seen[dim] && listed < y.shape.rank() &&
              y.shape[listed] == x.shape[dim],
          describe(s) + ": dims are those of x, each once: " + dims);
    seen[dim] = true;
    at = rest + 1;
    if (x.shape[dim] == 1) continue;
    const int last = strides.rank - 1;
    if (last >= 0 && strides.stride[last] == stride[dim] * x.shape[dim]) {  // neighbours in both tensors
      strides.size[last] *= x.shape[dim];
      strides.stride[last] = stride[dim];
      continue;
    }
    strides.size[strides.rank] = x.shape[dim];
    strides.stride[strides.rank++] = stride[dim];
  }
  CHECK(listed == rank && y.shape.rank() == rank && x.dtype == y.dtype,
        describe(s) + ": dims are those of x, each once: " + dims);
  return strides;
}

BatchNormSizes batch_norm_sizes(const Signature& s, int x) {
  const Shape& shape = s.operands[static_cast<std::size_t>(x)].shape;
  const DType c = s.operands[static_cast<std::size_t>(x)].dtype;
  CHECK(shape.rank() >= 2, describe(s) + " takes [n, ch, ...]");
  const BatchNormSizes sizes{shape[0], shape[1], shape.elements() / std::max<std::int64_t>(1, shape[0] * shape[1])};
  for (const OperandPlace& place : operand_places(s)) {
    const std::string_view name = place.def->name;
    if (place.count == 0) continue;
    if (name == "sums" || name == "grad_sums")
      expect_operand(s, place.first, DType::f64, 2 * sizes.channels);
    else if (name.starts_with("running"))
      expect_operand(s, place.first, DType::f32, sizes.channels);
    else if (name == "weight" || name == "bias")
      expect_operand(s, place.first, c, sizes.channels);
    else if (!name.starts_with("dw") && !name.starts_with("db"))
      expect_operand(s, place.first, c, sizes.elements());
    else
      expect_operand(s, place.first, s.operands[static_cast<std::size_t>(place.first)].dtype, sizes.channels);
  }
  return sizes;
}

MeanSizes mean_sizes(const Signature& s) {
  expect_operands(s, 2);
  const bool forward = s.op == Op::mean;
  const TensorDesc &x = s.operands[forward ? 0 : 1], &y = s.operands[forward ? 1 : 0];
  const int dim = dim_of(s, x.shape);
  MeanSizes sizes{.count = x.shape[dim], .inner = behind(x.shape, dim)};
  for (int before = -x.shape.rank(); before < dim; ++before) sizes.outer *= x.shape[before];
  CHECK(x.dtype == y.dtype && y.elements() == sizes.outer * sizes.inner, describe(s) + ": y is x without the dim");
  return sizes;
}

}  // namespace trainer::kernels
