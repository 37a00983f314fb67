// Losses, their gradients and counts: against the f64 reference.
#include <doctest/doctest.h>

#include "engine/core/error.h"
#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

const Shape kLogits[] = {{1, 1}, {1, 5}, {3, 4, 10}, {7, 65}, {2, 1009}, {16, 513}, {3, 50257}};

Shape without_last(const Shape& shape) {
  return Shape(shape.sizes().first(static_cast<std::size_t>(shape.rank() - 1)));
}

/// Class ids, a quarter of them ignored where there are several.
Tensor targets_for(const Shape& logits) {
  Tensor targets = integer_tensor(without_last(logits), 21, 0, logits[-1]);
  for (std::int64_t i = 1; i < targets.size(); i += 4) targets[i] = -100;
  return targets;
}

}  // namespace

TEST_CASE("cross-entropy, its gradient and its counts, with ignored targets and label smoothing") {
  for (DType c : compute_dtypes())
    for (const Shape& shape : kLogits)
      for (double smoothing : {0.0, 0.1}) {
        const Tensor logits = normal_tensor(shape, 20, 4), targets = targets_for(shape);
        const Attributes attributes = {{"ignore_index", std::int64_t{-100}}, {"label_smoothing", smoothing}};
        // Exponentials of bf16 logits are summed to 2^-18.
        const double sum = 16 * kEpsF32 + (c == DType::bf16 ? 0x1p-18 : 0);
        const double absolute_sum = (shape[-1] == 1 ? 1000 : 1) * sum;  // one class: lse − x is rounding alone
        const Output loss{DType::f64, Shape{1}, sum, absolute_sum, -1, true, true};
        const Output lse{DType::f32, Shape{shape.rows()}, sum, sum};
        for (bool accumulate : {false, true}) {
          Attributes more = attributes;
          more.set("accumulate", accumulate);
          hold(Op::cross_entropy, more, {{c, logits}, {DType::i32, targets}}, {loss, lse});
          hold(Op::cross_entropy_count, those_of(Op::cross_entropy_count, more), {{DType::i32, targets}},
               {{DType::f64, Shape{1}, 0, 0, -1, true, true}});
          hold(Op::correct_count, those_of(Op::correct_count, more), {{c, logits}, {DType::i32, targets}},
               {{DType::f64, Shape{1}, 0, 0, -1, true, true}});
        }
        Tensor rounded = logits;
        const Buffer buffer = buffer_of(c, logits);
        for (std::int64_t i = 0; i < rounded.size(); ++i) rounded[i] = read(buffer, c, i);
        const Tensor lse_truth =
            reference::run(Op::cross_entropy, attributes, {rounded, targets}, {Shape{1}, Shape{shape.rows()}})[1];
        // lse comes rounded to f32, which moves probabilities by eps · |lse|; with one class p − 1 is nothing but that.
        // What is rounded to bf16 is computed to 2^-12.
        const double absolute = (shape[-1] == 1 ? 1000 : 8) * kEpsF32 + (c == DType::bf16 ? 0x1p-12 : 0);
        for (int in_place : {-1, 0})
          hold(Op::cross_entropy_grad, attributes,
               {{c, logits}, {DType::i32, targets}, {DType::f32, lse_truth}, {DType::f32, values({0.37})}},
               {{c, shape, bound(c, 32), absolute, in_place}});
        // At once, the lse is that of the logits as they are.
        for (int in_place : {-1, 0})
          for (bool accumulate : {false, true}) {
            Attributes more = attributes;
            more.set("accumulate", accumulate);
            hold(Op::cross_entropy_and_grad, more, {{c, logits}, {DType::i32, targets}, {DType::f32, values({0.37})}},
                 {loss, {c, shape, bound(c, 32) + sum, absolute + sum, in_place}});
          }
      }
}

TEST_CASE("cross-entropy of far apart logits is exact to rounding and of NaN is NaN") {
  const Attributes attributes = {{"ignore_index", std::int64_t{-100}}, {"label_smoothing", 0.0}};
  const Tensor target = values({1});
  for (const Tensor& row : {values({1e4, -1e4, 0}), values({-5000, -5001, -5002}), values({1, std::nan(""), 2})}) {
    Tensor logits(Shape{1, 3});
    logits.data = row.data;
    hold(Op::cross_entropy, attributes, {{DType::f32, logits}, {DType::i32, target}},
         {{DType::f64, Shape{1}, 8 * kEpsF32, 8 * kEpsF32}, {DType::f32, Shape{1}, 8 * kEpsF32, 0}});
  }
}

TEST_CASE("the first of equal logits is the prediction, and a row with NaN has none") {
  const auto correct = [](std::initializer_list<double> row, double target) {
    Tensor logits(Shape{1, static_cast<std::int64_t>(row.size())});
    logits.data = row;
    const Buffer x = buffer_of(DType::f32, logits), t = buffer_of(DType::i32, values({target}));
    Buffer count(8);
    const Signature signature{Op::correct_count,
                              {{"ignore_index", std::int64_t{-100}}},
                              {{DType::f32, logits.shape}, {DType::i32, {1}}, {DType::f64, {1}}}};
    best_runner().run(signature, {x.data(), t.data(), count.data()});
    return *count.as<double>();
  };
  CHECK(correct({1, 3, 3}, 1) == 1);
  CHECK(correct({1, 3, 3}, 2) == 0);
  CHECK(correct({1, 3, 2}, 1) == 1);
  CHECK(correct({1, 3, 2}, 0) == 0);
  CHECK(correct({1, 3, std::nan("")}, 1) == 0);
  CHECK(correct({1, 3, 2}, -100) == 0);
}

TEST_CASE("a target that is no class is named, and the loss and its gradient are not numbers") {
  const Buffer targets = buffer_of(DType::i32, values({0, -100, 5})),
               logits = buffer_of(DType::f32, Tensor(Shape{3, 5}, 1)), seed = buffer_of(DType::f32, values({1}));
  Buffer loss(8), lse(12), dlogits(15 * 4);
  const Attributes attributes = {{"ignore_index", std::int64_t{-100}}, {"label_smoothing", 0.0}};
  const TensorDesc rows{DType::f32, {3, 5}}, ids{DType::i32, {3}}, each{DType::f32, {3}};
  CHECK_THROWS_WITH_AS(best_runner().run({Op::cross_entropy, attributes, {rows, ids, {DType::f64, {1}}, each}},
                                         {logits.data(), targets.data(), loss.data(), lse.data()}),
                       doctest::Contains("target 5 at place 2"), DataError);
  CHECK(std::isnan(*loss.as<double>()));
  CHECK_THROWS_WITH_AS(
      best_runner().run({Op::cross_entropy_grad, attributes, {rows, ids, each, {DType::f32, {1}}, rows}},
                        {logits.data(), targets.data(), lse.data(), seed.data(), dlogits.data()}),
      doctest::Contains("target 5 at place 2"), DataError);
  for (int i = 10; i < 15; ++i) CHECK(std::isnan(dlogits.as<float>()[i]));
  Buffer both(15 * 4);
  CHECK_THROWS_WITH_AS(
      best_runner().run(
          {Op::cross_entropy_and_grad, attributes, {rows, ids, {DType::f32, {1}}, {DType::f64, {1}}, rows}},
          {logits.data(), targets.data(), seed.data(), loss.data(), both.data()}),
      doctest::Contains("target 5 at place 2"), DataError);
  CHECK(std::isnan(*loss.as<double>()));
  for (int i = 10; i < 15; ++i) CHECK(std::isnan(both.as<float>()[i]));
}

TEST_CASE("mean squared error, its gradient and count") {
  for (DType c : compute_dtypes())
    for (DType t : compute_dtypes())
      for (const Shape& shape : {Shape{1}, Shape{5, 3}, Shape{40, 1001}}) {
        if (t != c && t != DType::f32) continue;
        const Input p{c, normal_tensor(shape, 22)}, target{t, normal_tensor(shape, 23)};
        for (bool accumulate : {false, true})
          hold(Op::mse, {{"accumulate", accumulate}}, {p, target},
               {{DType::f64, Shape{1}, 8 * kEpsF32, 0, -1, true, true}});
        for (int in_place : {-1, 0})
          hold(Op::mse_grad, {}, {p, target, {DType::f32, values({0.25})}}, {{c, shape, bound(c, 4), 0, in_place}});
        hold(Op::mse_count, {{"accumulate", true}}, {target}, {{DType::f64, Shape{1}, 0, 0, -1, true, true}});
      }
}
