// Norms, embeddings, positions and pools: against the f64 reference.
#include <doctest/doctest.h>

#include "engine/core/error.h"
#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

const Shape kShapes[] = {{1, 1}, {1, 7}, {3, 5, 16}, {2, 33}, {37, 129}, {70, 384}, {64, 1, 768}};

/// A norm's input, off centre so that careless variances show.
Tensor off_centre(const Shape& shape) {
  Tensor x = normal_tensor(shape, 1);
  for (double& value : x.data) value = 2 * value + 5;
  return x;
}

Tensor per_row(const Shape& shape, std::uint64_t seed, double centre, double spread) {
  Tensor t = normal_tensor(Shape{shape.rows()}, seed, spread);
  for (double& value : t.data) value += centre;
  return t;
}

}  // namespace

TEST_CASE("norms follow their formulas") {
  for (DType c : compute_dtypes())
    for (const Shape& shape : kShapes) {
      const Shape dim{shape[-1]}, rows{shape.rows()};
      const Input x{c, off_centre(shape)}, weight{c, normal_tensor(dim, 2)}, bias{c, normal_tensor(dim, 3)};
      // A row of one element is its own mean: y is 0 up to the rounding of the mean, magnified by rstd = 1/sqrt(eps).
      const Output y{c, shape, bound(c, 16), shape[-1] == 1 ? 1.0 : 32 * kEpsF32};
      const Output stat{DType::f32, rows, bound(DType::f32, 32), 8 * kEpsF32};
      for (bool with_bias : {true, false}) {
        std::vector<Input> in = {x, weight};
        if (with_bias) in.push_back(bias);
        hold(Op::layer_norm, {{"eps", 1e-5}, {"bias", with_bias}}, in, {y, stat, stat});
      }
      hold(Op::rms_norm, {{"eps", 1e-6}}, {x, weight}, {y, stat});
    }
}

TEST_CASE("gradients of norms follow their formulas, overwriting and accumulating, in place and not") {
  for (DType c : compute_dtypes())
    for (DType r : reduce_dtypes())
      for (const Shape& shape : kShapes)
        for (bool accumulate : {false, true}) {
          const Shape dim{shape[-1]};
          const Input dy{c, normal_tensor(shape, 4)}, x{c, off_centre(shape)}, weight{c, normal_tensor(dim, 2)};
          const Input mean{DType::f32, per_row(shape, 5, 5, 0.1)}, rstd{DType::f32, per_row(shape, 6, 0.5, 0.05)};
          const double sum = 4 * std::sqrt(static_cast<double>(shape.rows()));
          const Output dx{c, shape, bound(c, 32), 64 * kEpsF32, accumulate ? 0 : -1};
          const Output dp{r, dim, bound(r, sum), 16 * sum * kEpsF32, -1, true, true};
          for (bool bias : {true, false}) {
            std::vector<Output> out = {dx, dp};
            if (bias) out.push_back(dp);
            hold(Op::layer_norm_grad, {{"bias", bias}, {"accumulate", accumulate}}, {dy, x, weight, mean, rstd}, out);
          }
          hold(Op::rms_norm_grad, {{"accumulate", accumulate}}, {dy, x, weight, rstd}, {dx, dp});
        }
}

TEST_CASE("norms of a sum with a residual, and their gradients, in place and not") {
  for (DType c : compute_dtypes())
    for (const Shape& shape : {Shape{1, 7}, Shape{3, 5, 16}, Shape{37, 129}, Shape{64, 1, 768}})
      for (int in_place : {-1, 0, 1}) {
        const Shape dim{shape[-1]}, rows{shape.rows()};
        const Input x{c, off_centre(shape)}, residual{c, normal_tensor(shape, 7)}, weight{c, normal_tensor(dim, 2)}, bias{c, normal_tensor(dim, 3)};
        // The reference does not round the sum; under 16 bits that is a rounding of each normalised value more.
        const double rounded = c == DType::f32 ? 0 : 8 * bound(c);
        const Output y{c, shape, bound(c, 16), 32 * kEpsF32 + rounded};
        const Output stat{DType::f32, rows, bound(DType::f32, 32) + rounded, 8 * kEpsF32 + rounded};
        const Output sum{c, shape, bound(c), 0, in_place};
        hold(Op::layer_norm, {{"eps", 1e-5}, {"bias", true}, {"residual", true}}, {x, residual, weight, bias}, {y, stat, stat, sum});
        hold(Op::layer_norm, {{"eps", 1e-5}, {"bias", false}, {"residual", true}}, {x, residual, weight}, {y, stat, stat, sum});
        hold(Op::rms_norm, {{"eps", 1e-5}, {"residual", true}}, {x, residual, weight}, {y, stat, sum});

        const Input dy{c, normal_tensor(shape, 4)}, mean{DType::f32, per_row(shape, 5, 5, 0.1)}, rstd{DType::f32, per_row(shape, 6, 0.5, 0.05)};
        const double terms = 4 * std::sqrt(static_cast<double>(shape.rows()));
        const Output dp{DType::f32, dim, bound(DType::f32, terms), 16 * terms * kEpsF32};
        const auto dx = [&](int residual_operand) {
          return Output{c, shape, bound(c, 32), 64 * kEpsF32, in_place == 1 ? residual_operand : in_place};
        };
        hold(Op::layer_norm_grad, {{"bias", true}, {"residual", true}}, {dy, x, weight, mean, rstd, residual}, {dx(5), dp, dp});
        hold(Op::rms_norm_grad, {{"residual", true}}, {dy, x, weight, rstd, residual}, {dx(4), dp});
      }
}

TEST_CASE("embedding and its gradient, with repeated ids") {
  for (DType c : compute_dtypes())
    for (const auto& [ids, rows, dim] :
         std::vector<std::tuple<Shape, std::int64_t, std::int64_t>>{{{1}, 1, 1}, {{2, 3}, 5, 7}, {{4, 64}, 11, 65}, {{3, 100}, 1000, 130}, {{64}, 3, 768}}) {
      const Input id{DType::i32, integer_tensor(ids, 8, 0, rows)};
      const Input weight{c, normal_tensor({rows, dim}, 9)};
      Shape y = ids.rank() == 1 ? Shape{ids[0], dim} : Shape{ids[0], ids[1], dim};
      hold(Op::embedding, {}, {id, weight}, {{c, y}});
      for (DType r : reduce_dtypes())
        for (bool accumulate : {false, true})
          hold(Op::embedding_grad, {{"accumulate", accumulate}}, {id, {c, normal_tensor(y, 10)}},
               {{r, Shape{rows, dim}, bound(r, 8), 64 * kEpsF32, -1, true, true}});
    }
}

TEST_CASE("a slice of a table gives zeros for ids of other rows, and gets the gradient of its own") {
  const std::int64_t table_rows = 37, dim = 70;
  const Attributes attributes = {{"cut", true}, {"table_rows", table_rows}};
  for (DType c : compute_dtypes())
    for (const auto& [rows, origin] : std::vector<std::pair<std::int64_t, std::int64_t>>{{10, 0}, {10, 20}, {10, 30}, {1, 36}, {10, 40}}) {
      const Input id{DType::i32, integer_tensor({3, 40}, 8, 0, table_rows)};
      const Shape y{3, 40, dim};
      hold(Op::embedding, attributes, {id, {c, normal_tensor({rows, dim}, 9)}}, {{c, y}}, {.origin = origin});
      for (DType r : reduce_dtypes())
        for (bool accumulate : {false, true}) {
          Attributes more = attributes;
          more.set("accumulate", accumulate);
          hold(Op::embedding_grad, more, {id, {c, normal_tensor(y, 10)}}, {{r, Shape{rows, dim}, bound(r, 8), 64 * kEpsF32, -1, true, true}},
               {.origin = origin});
        }
    }
}

TEST_CASE("rows of padding get no gradient, not even one that was there") {
  const Buffer ids = buffer_of(DType::i32, integer_tensor({64}, 8, 0, 5)), dy = normals(DType::f32, 64 * 3, 9);
  Buffer dweight(3 * 3 * 4);  // rows 3 to 5 of 5: the last is padding
  const Signature signature{Op::embedding_grad, {{"cut", true}, {"table_rows", std::int64_t{5}}}, {{DType::i32, {64}}, {DType::f32, {64, 3}}, {DType::f32, {3, 3}}}};
  best_runner().run(signature, {ids.data(), dy.data(), dweight.data()}, 3);
  for (std::int64_t i = 0; i < 9; ++i) CHECK((dweight.as<float>()[i] == 0) == (i >= 6));
}

TEST_CASE("an id outside of the table is named") {
  const Buffer ids = buffer_of(DType::i32, values({7, 6, 0}));
  Buffer weight(7 * 2 * 4), y(3 * 2 * 4);
  const Signature signature{Op::embedding, {}, {{DType::i32, {3}}, {DType::f32, {7, 2}}, {DType::f32, {3, 2}}}};
  CHECK_THROWS_WITH_AS(best_runner().run(signature, {ids.data(), weight.data(), y.data()}), doctest::Contains("id 7 at place 0"), DataError);
  Signature slice = signature;
  slice.attributes = {{"cut", true}, {"table_rows", std::int64_t{7}}};
  CHECK_THROWS_WITH_AS(best_runner().run(slice, {ids.data(), weight.data(), y.data()}), doctest::Contains("id 7 at place 0"), DataError);
}

TEST_CASE("positions are the first rows, and so is their gradient") {
  for (DType c : compute_dtypes())
    for (const auto& [rows, seq, dim] : std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>{{1, 1, 1}, {9, 4, 5}, {300, 200, 130}, {64, 64, 48}}) {
      hold(Op::positions, {}, {{c, normal_tensor({rows, dim}, 11)}}, {{c, Shape{seq, dim}}});
      for (std::int64_t origin : {0, 1}) hold(Op::positions, {{"partial", true}}, {{c, normal_tensor({rows, dim}, 11)}}, {{c, Shape{seq, dim}}}, {.origin = origin});
      for (DType r : reduce_dtypes())
        for (bool accumulate : {false, true})
          hold(Op::positions_grad, {{"accumulate", accumulate}}, {{c, normal_tensor({seq, dim}, 12)}},
               {{r, Shape{rows, dim}, bound(r, 1), 0, -1, true, true}});
    }
}

TEST_CASE("pools and their gradients, with overlapping windows and padding") {
  for (DType c : compute_dtypes())
    for (const auto& [shape, kernel, stride, padding] : std::vector<std::tuple<Shape, int, int, int>>{
             {{1, 1, 1, 1}, 1, 1, 0}, {{2, 3, 7, 5}, 2, 2, 0}, {{2, 3, 8, 9}, 3, 2, 1}, {{1, 2, 6, 6}, 3, 1, 1}, {{4, 8, 32, 32}, 2, 2, 0}, {{1, 1, 9, 9}, 2, 3, 0}}) {
      const Attributes attributes = {{"kernel", std::int64_t{kernel}}, {"stride", std::int64_t{stride}}, {"padding", std::int64_t{padding}}};
      const Shape y{shape[0], shape[1], (shape[2] + 2 * padding - kernel) / stride + 1, (shape[3] + 2 * padding - kernel) / stride + 1};
      const Tensor x = normal_tensor(shape, 13);
      hold(Op::max_pool2d, attributes, {{c, x}}, {{c, y}, {DType::i32, y}});
      hold(Op::avg_pool2d, attributes, {{c, x}}, {{c, y, bound(c, 8), 8 * kEpsF32}});
      const Tensor index = reference::run(Op::max_pool2d, attributes, {x}, {y, y})[1];
      const Input dy{c, normal_tensor(y, 14)};
      hold(Op::max_pool2d_grad, attributes, {dy, {DType::i32, index}}, {{c, shape, bound(c, 8), 8 * kEpsF32}});
      hold(Op::avg_pool2d_grad, attributes, {dy}, {{c, shape, bound(c, 8), 8 * kEpsF32}});
    }
}
