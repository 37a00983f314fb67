// Holds a kernel to the f64 reference with every runner of the executable, at least twice in each family for the same
// bits, with exactly the memory the contract gives it.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/kernels/buffer.h"
#include "tests/kernels/runner.h"
#include "tests/reference/reference.h"

namespace trainer::kernels::test {

struct Input {
  DType dtype;
  reference::Tensor values;  ///< rounded to dtype before use
};

/// An output and its bound: |got − truth| <= relative · |truth| + absolute · (largest |truth| of the output, at least
/// 1e-3). In f16 there is half a step of its subnormals beside it.
struct Output {
  DType dtype;
  Shape shape;
  double relative = 0;
  double absolute = 0;
  int in_place_of = -1;      ///< the input whose memory it is, or -1
  bool listed = true;        ///< false: an updated operand, which stands among the inputs alone
  bool accumulates = false;  ///< `accumulate` adds to it
};

struct Options {
  std::int64_t origin = 0;
};

constexpr double kEpsF32 = 0x1p-24, kEpsBf16 = 0x1p-8, kEpsF16 = 0x1p-11;  // the largest relative error of one rounding

/// The rounding of the output itself and `sum` roundings of f32 on the way.
inline double bound(DType dtype, double sum = 0) {
  return (dtype == DType::bf16  ? kEpsBf16
          : dtype == DType::f16 ? kEpsF16
          : dtype == DType::f64 ? 0x1p-53
                                : kEpsF32) +
         sum * kEpsF32;
}

/// Rounding below the normal numbers: of f16 they begin at 2^-14; the others' are too small to count.
inline double subnormals(DType dtype) { return dtype == DType::f16 ? 0x1p-25 : 0; }

inline void write(const Buffer& buffer, DType dtype, std::int64_t i, double value) {
  switch (dtype) {
    case DType::f64:
      buffer.as<double>()[i] = value;
      return;
    case DType::f32:
      buffer.as<float>()[i] = static_cast<float>(value);
      return;
    case DType::bf16:
      buffer.as<Bf16>()[i] = to_bf16(static_cast<float>(value));
      return;
    case DType::i32:
      buffer.as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
      return;
    case DType::u8:
      buffer.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(static_cast<std::int64_t>(value));
      return;
    case DType::f16:
      buffer.as<std::uint16_t>()[i] = f16_bits(value);
      return;
  }
}

inline double value_at(const Buffer& buffer, DType dtype, std::int64_t i) {
  if (dtype == DType::u8) return buffer.as<std::uint8_t>()[i];
  return dtype == DType::i32 ? buffer.as<std::int32_t>()[i] : read(buffer, dtype, i);
}

inline Buffer buffer_of(DType dtype, const reference::Tensor& values) {
  Buffer buffer(values.size() * size_of(dtype));
  for (std::int64_t i = 0; i < values.size(); ++i) write(buffer, dtype, i, values[i]);
  return buffer;
}

inline reference::Tensor normal_tensor(const Shape& shape, std::uint64_t seed, double scale = 1) {
  reference::Tensor tensor(shape);
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  for (double& x : tensor.data) x = scale * normal(generator);
  return tensor;
}

inline reference::Tensor values(std::initializer_list<double> list) {
  reference::Tensor tensor(Shape{static_cast<std::int64_t>(list.size())});
  tensor.data = list;
  return tensor;
}

/// Whole numbers in [low, high).
inline reference::Tensor integer_tensor(const Shape& shape, std::uint64_t seed, std::int64_t low, std::int64_t high) {
  reference::Tensor tensor(shape);
  std::mt19937_64 generator(seed);
  for (double& x : tensor.data)
    x = static_cast<double>(low + static_cast<std::int64_t>(generator() % static_cast<std::uint64_t>(high - low)));
  return tensor;
}

inline std::string text_of(Op op, const std::vector<Input>& inputs) {
  std::string text(name_of(op));
  for (const Input& input : inputs) text += " " + std::string(name_of(input.dtype)) + input.values.shape.str();
  return text;
}

inline bool close(double got, double want, double allowed) {
  if (std::isnan(want)) return std::isnan(got);
  if (std::isinf(want)) return got == want;
  return std::abs(got - want) <= allowed;
}

/// Runs and compares. `attributes` may hold accumulate: then outputs start from random values that must be added to.
inline void hold(Op op, const Attributes& attributes, const std::vector<Input>& inputs,
                 const std::vector<Output>& outputs, const Options& options = {}) {
  const bool accumulate = attributes.has("accumulate") && attributes.flag("accumulate");
  std::vector<reference::Tensor> rounded;
  Signature signature{op, attributes, {}};
  for (const Input& input : inputs) {
    const Buffer buffer = buffer_of(input.dtype, input.values);
    rounded.push_back(input.values);
    for (std::int64_t i = 0; i < input.values.size(); ++i) rounded.back()[i] = value_at(buffer, input.dtype, i);
    signature.operands.push_back({input.dtype, input.values.shape});
  }
  std::vector<Shape> shapes;
  std::vector<reference::Tensor> before;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    shapes.push_back(outputs[k].shape);
    if (outputs[k].listed) signature.operands.push_back({outputs[k].dtype, outputs[k].shape});
    const Buffer start = buffer_of(outputs[k].dtype, normal_tensor(outputs[k].shape, 77 + k));
    before.emplace_back(outputs[k].shape);
    for (std::int64_t i = 0; i < before.back().size(); ++i) before.back()[i] = value_at(start, outputs[k].dtype, i);
  }
  const std::vector<reference::Tensor> truth = reference::run(op, attributes, rounded, shapes, options.origin);

  std::map<int, std::vector<Buffer>> first_of_family;
  for (const auto& runner : runners()) {
    const int repeats = first_of_family.contains(runner->family()) ? 1 : 2;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      std::vector<Buffer> in, out;
      std::vector<void*> pointers;
      for (const Input& input : inputs) {
        in.push_back(buffer_of(input.dtype, input.values));
        pointers.push_back(in.back().data());
      }
      for (std::size_t k = 0; k < outputs.size(); ++k) {
        const Output& output = outputs[k];
        out.emplace_back(output.in_place_of >= 0 ? 0 : output.shape.elements() * size_of(output.dtype));
        if (accumulate && output.accumulates)
          for (std::int64_t i = 0; i < before[k].size(); ++i) write(out.back(), output.dtype, i, before[k][i]);
        if (output.listed)
          pointers.push_back(output.in_place_of >= 0 ? in[static_cast<std::size_t>(output.in_place_of)].data()
                                                     : out.back().data());
      }
      runner->run(signature, pointers, options.origin);

      std::vector<Buffer>& first = first_of_family[runner->family()];
      const bool is_first = first.empty();
      for (std::size_t k = 0; k < outputs.size(); ++k) {
        const Output& output = outputs[k];
        const Buffer& found = output.in_place_of >= 0 ? in[static_cast<std::size_t>(output.in_place_of)] : out[k];
        const bool adds = accumulate && output.accumulates;
        double largest = 1e-3;
        for (std::int64_t i = 0; i < truth[k].size(); ++i)
          if (std::isfinite(truth[k][i]))
            largest = std::fmax(largest, std::abs(truth[k][i]) + (adds ? std::abs(before[k][i]) : 0));
        std::int64_t wrong = -1;
        for (std::int64_t i = 0; i < truth[k].size() && wrong < 0; ++i) {
          const double want = truth[k][i] + (adds ? before[k][i] : 0);
          if (!close(value_at(found, output.dtype, i), want,
                     output.relative * std::abs(want) + output.absolute * largest + subnormals(output.dtype)))
            wrong = i;
        }
        INFO(text_of(op, inputs), " on ", runner->name(), ": output ", k, " element ", wrong, ": got ",
             wrong < 0 ? 0 : value_at(found, output.dtype, wrong), " for ",
             wrong < 0 ? 0 : truth[k][wrong] + (adds ? before[k][wrong] : 0));
        CHECK(wrong == -1);
        if (is_first) {
          first.emplace_back(static_cast<std::int64_t>(found.bytes()));
          std::memcpy(first.back().data(), found.data(), found.bytes());
        } else {
          CHECK(found.same_bits(first[k]));
        }
      }
    }
  }
}

}  // namespace trainer::kernels::test
