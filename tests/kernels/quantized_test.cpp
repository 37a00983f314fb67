// Products with quantized weights against the f64 reference, which decodes the bytes by the formulas of
// engine/core/quantized.h, on every device. Every byte is tried: codes are drawn at random.
//
// Tolerance: that of linear (linear_cases_test.cpp), in which an element of W may be off by two roundings to f32, or by
// one to the compute dtype on devices that decode into that.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "engine/core/quantized.h"
#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

struct Sizes {
  std::int64_t rows, in, out;
};
// Rows shorter than a block, whole blocks, a last block with a few columns; a group and a part of one.
const Sizes kSizes[] = {{1, 1, 1}, {7, 65, 33}, {1, 576, 65}, {29, 257, 31}, {130, 64, 264}, {300, 130, 520}};

void append(Tensor& bytes, float value) {
  unsigned char raw[4];
  std::memcpy(raw, &value, 4);
  for (const unsigned char byte : raw) bytes.data.push_back(byte);
}

/// Parts of a matrix whose elements are some 1 / √in.
std::vector<Input> parts_of(Quantization as, const Sizes& z) {
  using Kind = QuantizedPart::Kind;
  const bool nf4 = as == Quantization::nf4;
  const float size = 1 / std::sqrt(static_cast<float>(z.in));
  std::vector<Input> parts;
  const auto shape = [&](Kind kind) { return shape_of(kind, as, z.out, z.in); };
  Tensor codes = integer_tensor(shape(Kind::codes), 11, 0, 256);
  const std::int64_t stored = codes.shape[-1];
  for (std::int64_t i = 0; i < codes.size(); ++i) {  // behind the last column stand zeros
    const std::int64_t column = i % stored, block = column / 32, inside = column % 32;
    if (!nf4 && column >= z.in) codes[i] = 0;
    if (!nf4) continue;
    const bool low = block * 64 + inside < z.in, high = block * 64 + 32 + inside < z.in;
    const int byte = static_cast<int>(codes[i]);
    codes[i] = (low ? byte % 16 : 7) + 16 * (high ? byte / 16 : 7);
  }
  parts.push_back({DType::u8, codes});
  if (nf4) {
    parts.push_back({DType::u8, integer_tensor(shape(Kind::scales), 12, 0, 256)});
    Tensor groups(Shape{0});
    for (std::int64_t i = 0; i < shape(Kind::groups).elements() / 8; ++i)
      append(groups, (i % 2 == 0 ? 0.3F : -0.4F) * size), append(groups, (1 + 0.1F * static_cast<float>(i)) * size);
    groups.shape = shape(Kind::groups);
    parts.push_back({DType::u8, groups});
  } else {
    Tensor scales(Shape{0});
    for (std::int64_t i = 0; i < z.out; ++i) append(scales, (1 + 0.01F * static_cast<float>(i)) / 64 * size);
    scales.shape = shape(Kind::scales);
    parts.push_back({DType::u8, scales});
  }
  return parts;
}

Output output(DType dtype, const Shape& shape, std::int64_t terms) {
  const double sum = 8 * kEpsF32 * std::sqrt(static_cast<double>(terms) + 1);
  const double weight = dtype == DType::f32 ? 0 : bound(dtype);  // as random as the products
  return {dtype, shape, bound(dtype), sum + weight};
}

const Quantization kBoth[] = {Quantization::int8, Quantization::nf4};

}  // namespace

TEST_CASE("a quantized linear is x times the decoded W transposed, and the bias") {
  for (const Quantization as : kBoth)
    for (DType c : compute_dtypes())
      for (const Sizes& z : kSizes)
        for (const bool bias : {true, false}) {
          const bool nf4 = as == Quantization::nf4;
          std::vector<Input> in = parts_of(as, z);
          in.insert(in.begin(), Input{c, normal_tensor({z.rows, z.in}, 1)});
          if (bias) in.push_back({c, normal_tensor({z.out}, 3)});
          const std::vector<Output> y = {output(c, {z.rows, z.out}, z.in)};
          hold(Op::quantized_linear, {{"nf4", nf4}, {"bias", bias}}, in, y);
          for (const std::int64_t origin : {0, 1})
            hold(Op::quantized_linear, {{"nf4", nf4}, {"bias", bias}, {"partial", true}}, in, y, {.origin = origin});
        }
}

TEST_CASE("the gradient of a quantized linear's input is dy times the decoded W") {
  for (const Quantization as : kBoth)
    for (DType c : compute_dtypes())
      for (const Sizes& z : kSizes) {
        std::vector<Input> in = parts_of(as, z);
        in.insert(in.begin(), Input{c, normal_tensor({z.rows, z.out}, 1)});
        hold(Op::quantized_linear_grad_input, {{"nf4", as == Quantization::nf4}}, in,
             {output(c, {z.rows, z.in}, z.out)});
      }
}
