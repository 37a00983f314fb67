// batch_norm and what it is in training: against the f64 reference. Sums are f64 and so exact but for roundings of
// 2^-53; coefficients are rounded to f32 once, and an element is one or two multiply-adds of terms that may be larger
// than the result.
#include <doctest/doctest.h>

#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

const std::vector<Shape> kShapes{{5, 1},        {3, 5},         {40, 70},        {1, 3, 7},     {2, 3, 5, 7},
                                 {4, 67, 8, 8}, {2, 130, 3, 4}, {16, 2, 20, 12}, {1, 1, 1, 300}};

Tensor about(const Shape& shape, double offset, std::uint64_t seed) {
  Tensor x = normal_tensor(shape, seed);
  for (double& value : x.data) value += offset;
  return x;
}

/// What kernels read in dtype `c`.
Tensor rounded(DType c, const Tensor& x) {
  Buffer buffer = buffer_of(c, x);
  Tensor read(x.shape);
  for (std::int64_t i = 0; i < x.size(); ++i) read[i] = value_at(buffer, c, i);
  return read;
}

/// Runs `check` with each of residual and relu, without and with both, of attributes and inputs that end at the
/// residual.
template <typename Check>
void each_epilogue(const Attributes& attributes, const std::vector<Input>& inputs, const Input& residual,
                   const Check& check) {
  for (const bool add : {false, true})
    for (const bool relu : {false, true}) {
      Attributes changed = attributes;
      std::vector<Input> more = inputs;
      if (add) changed.set("residual", true), more.push_back(residual);
      if (relu) changed.set("relu", true);
      check(changed, more);
    }
}

Attributes accumulated(Attributes attributes, bool accumulate) {
  attributes.set("accumulate", accumulate);
  return attributes;
}

}  // namespace

TEST_CASE("a batch norm in training is PyTorch's formula, with any mean") {
  for (DType c : compute_dtypes())
    for (const Shape& shape : kShapes)
      for (const double offset : {0.0, 30.0}) {
        if (runs_are_slow() && shape.elements() > 3000) continue;
        const std::int64_t channels = shape[1], count = shape.elements() / channels;
        const Tensor x = rounded(c, about(shape, offset, 3)), weight = normal_tensor({channels}, 4),
                     bias = normal_tensor({channels}, 5), dy = normal_tensor(shape, 6);
        const Attributes attributes{{"eps", 1e-3}, {"count", count}, {"own", false}};
        hold(Op::batch_norm_sums, {}, {{c, x}}, {{DType::f64, {2, channels}, 0x1p-44, 0x1p-44}});
        const Tensor sums = reference::run(Op::batch_norm_sums, {}, {x}, {{2, channels}})[0];
        const Input statistics{DType::f64, sums};
        // mean is rounded: 2^-24 of it, over a deviation of about 1.
        const double far = (32 + 8 * offset) * kEpsF32;
        each_epilogue(attributes, {{c, x}, statistics, {c, weight}, {c, bias}}, {c, normal_tensor(shape, 9)},
                      [&](const Attributes& changed, const std::vector<Input>& inputs) {
                        hold(Op::batch_norm_apply, changed, inputs, {{c, shape, bound(c, 8), far}});
                      });
        const Tensor grad_sums = reference::run(Op::batch_norm_grad_sums, attributes, {rounded(c, dy), x, sums},
                                                {{2, channels}, {channels}, {channels}})[0];
        for (const auto& [r, accumulate] :
             std::vector<std::pair<DType, bool>>{{DType::f32, false}, {DType::bf16, true}})
          hold(
              Op::batch_norm_grad_sums, accumulated(attributes, accumulate), {{c, dy}, {c, x}, statistics},
              {{DType::f64, {2, channels}, 0x1p-40, 0x1p-36},
               {.dtype = r, .shape = {channels}, .relative = bound(r, 2), .absolute = 2 * kEpsF32, .accumulates = true},
               {.dtype = r,
                .shape = {channels},
                .relative = bound(r, 2),
                .absolute = 2 * kEpsF32,
                .accumulates = true}});
        hold(Op::batch_norm_grad, attributes, {{c, dy}, {c, x}, {c, weight}, statistics, {DType::f64, grad_sums}},
             {{c, shape, bound(c, 8), far, 0}});
      }
}

TEST_CASE("the gradient of a batch norm's ReLU is 0 where the norm is not above 0") {
  for (DType c : compute_dtypes())
    for (const Shape& shape : kShapes)
      for (const double offset : {0.0, 30.0}) {
        if (runs_are_slow() && shape.elements() > 3000) continue;
        const std::int64_t channels = shape[1], count = shape.elements() / channels;
        const Tensor x = rounded(c, about(shape, offset, 3)), weight = rounded(c, normal_tensor({channels}, 4)),
                     bias = rounded(c, normal_tensor({channels}, 5));
        const Attributes attributes{{"eps", 1e-3}, {"count", count}, {"own", false}};
        Attributes with_relu = attributes;
        with_relu.set("relu", true);
        const Tensor sums = reference::run(Op::batch_norm_sums, {}, {x}, {{2, channels}})[0];
        const Tensor z = reference::run(Op::batch_norm_apply, attributes, {x, sums, weight, bias}, {shape})[0];
        // Where z is so close to 0 that f32 may round it across, dy is 0 and so is the gradient.
        Tensor dy = rounded(c, normal_tensor(shape, 6));
        Tensor masked = dy;
        std::int64_t above = 0;
        for (std::int64_t i = 0; i < dy.size(); ++i) {
          if (std::abs(z[i]) < 1e-4) dy[i] = 0;
          masked[i] = z[i] > 0 ? dy[i] : 0;
          above += z[i] > 0 ? 1 : 0;
        }
        if (dy.size() > 100) CHECK((above > dy.size() / 10 && above < dy.size() * 9 / 10));
        const std::vector<Shape> sizes{{2, channels}, {channels}, {channels}};
        const std::vector<Tensor> of_relu =
            reference::run(Op::batch_norm_grad_sums, with_relu, {dy, x, sums, weight, bias}, sizes);
        // The reference itself: the gradients of the mask's product.
        const std::vector<Tensor> of_mask =
            reference::run(Op::batch_norm_grad_sums, attributes, {masked, x, sums}, sizes);
        for (std::size_t k = 0; k < sizes.size(); ++k) CHECK(of_relu[k].data == of_mask[k].data);
        const Input statistics{DType::f64, sums};
        for (const auto& [r, accumulate] :
             std::vector<std::pair<DType, bool>>{{DType::f32, false}, {DType::bf16, true}}) {
          const Output gradient{
              .dtype = r, .shape = {channels}, .relative = bound(r, 2), .absolute = 2 * kEpsF32, .accumulates = true};
          hold(Op::batch_norm_grad_sums, accumulated(with_relu, accumulate),
               {{c, dy}, {c, x}, statistics, {c, weight}, {c, bias}},
               {{DType::f64, {2, channels}, 0x1p-40, 0x1p-36}, gradient, gradient});
        }
        for (const int in_place_of : {0, 1, -1})
          hold(Op::batch_norm_grad, with_relu,
               {{c, dy}, {c, x}, {c, weight}, statistics, {DType::f64, of_relu[0]}, {c, bias}},
               {{c, shape, bound(c, 8), (32 + 8 * offset) * kEpsF32, in_place_of}});
      }
}

TEST_CASE("of a frozen weight or bias there is no gradient") {
  const Tensor x = normal_tensor({3, 4, 5}, 1), dy = normal_tensor({3, 4, 5}, 2);
  const Tensor sums = reference::run(Op::batch_norm_sums, {}, {x}, {{2, 4}})[0];
  for (const bool weight : {false, true})
    for (const bool bias : {false, true}) {
      std::vector<Output> outputs{{DType::f64, {2, 4}, 0x1p-40, 0x1p-36}};
      for (int i = 0; i < (weight ? 1 : 0) + (bias ? 1 : 0); ++i)
        outputs.push_back({.dtype = DType::f32,
                           .shape = {4},
                           .relative = bound(DType::f32, 2),
                           .absolute = 2 * kEpsF32,
                           .accumulates = true});
      hold(Op::batch_norm_grad_sums, {{"count", std::int64_t{15}}, {"weight", weight}, {"bias", bias}},
           {{DType::f32, dy}, {DType::f32, x}, {DType::f64, sums}}, outputs);
    }
}

TEST_CASE("in evaluation a batch norm goes by its running statistics, which training moves") {
  for (DType c : compute_dtypes())
    for (const Shape& shape : kShapes) {
      if (runs_are_slow() && shape.elements() > 3000) continue;
      const std::int64_t channels = shape[1], count = shape.elements() / channels;
      Tensor variance = normal_tensor({channels}, 7);
      for (double& v : variance.data) v = 0.1 + v * v;
      const Tensor x = rounded(c, about(shape, 1, 3)), mean = normal_tensor({channels}, 8);
      each_epilogue({{"eps", 1e-5}},
                    {{c, x},
                     {c, normal_tensor({channels}, 4)},
                     {c, normal_tensor({channels}, 5)},
                     {DType::f32, mean},
                     {DType::f32, variance}},
                    {c, normal_tensor(shape, 9)}, [&](const Attributes& changed, const std::vector<Input>& inputs) {
                      for (const int in_place_of : {0, -1, 5})
                        if (in_place_of < static_cast<int>(inputs.size()))
                          hold(Op::batch_norm, changed, inputs, {{c, shape, bound(c, 8), 32 * kEpsF32, in_place_of}});
                    });
      if (count == 1) continue;
      const Tensor sums = reference::run(Op::batch_norm_sums, {}, {x}, {{2, channels}})[0];
      hold(Op::batch_norm_update, {{"momentum", 0.3}, {"count", count}},
           {{DType::f64, sums}, {DType::f32, mean}, {DType::f32, variance}},
           {{.dtype = DType::f32,
             .shape = {channels},
             .relative = 2 * kEpsF32,
             .absolute = kEpsF32,
             .in_place_of = 1,
             .listed = false},
            {.dtype = DType::f32,
             .shape = {channels},
             .relative = 2 * kEpsF32,
             .absolute = kEpsF32,
             .in_place_of = 2,
             .listed = false}});
    }
}
