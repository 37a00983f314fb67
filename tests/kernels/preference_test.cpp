// The ops on pairs of sequences: against the f64 reference.
#include <doctest/doctest.h>

#include "engine/core/error.h"
#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

const Attributes kPairs{{"beta", 0.3}, {"ignore_index", std::int64_t{-100}}};

/// Targets [sequences, length] below 11, every other one ignored, and all of the pair `empty`.
Tensor targets_of(std::int64_t sequences, std::int64_t length, std::int64_t empty) {
  Tensor targets = integer_tensor(Shape{sequences, length}, 5, 0, 11);
  for (std::int64_t i = 0; i < targets.size(); ++i)
    if (i % 2 == 1 || i / length / 2 == empty) targets[i] = -100;
  return targets;
}

}  // namespace

TEST_CASE("how unlikely each sequence is, from the statistics of parts of the classes") {
  for (const auto& [sequences, length] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {4, 7}, {6, 600}})
    for (const std::int64_t parts : {1, 3}) {
      const std::int64_t rows = sequences * length;
      Tensor stats = normal_tensor(Shape{parts, rows, 5}, 3, 2);
      for (std::int64_t i = 1; i < stats.size(); i += 5) stats[i] = 1 + std::fabs(stats[i]);
      const Attributes attributes{{"classes", std::int64_t{11}}, {"ignore_index", std::int64_t{-100}}};
      // Statistics come rounded to f32, which the reference is given as well; at the target they add up to less.
      hold(Op::sequence_nll, attributes,
           {{DType::f32, Tensor(Shape{sequences, length, 11})},
            {DType::f32, stats},
            {DType::i32, targets_of(sequences, length, -1)}},
           {{DType::f64, Shape{sequences}, 0x1p-40, 0x1p-40}, {DType::f32, Shape{rows}, bound(DType::f32), kEpsF32}});
    }
}

TEST_CASE("the loss of pairs, its gradient and its count; a pair without a target adds nothing") {
  for (const std::int64_t pairs : {1, 3, 700})
    for (const std::int64_t empty : {std::int64_t{-1}, pairs / 2}) {
      const Tensor policy = normal_tensor(Shape{2 * pairs}, 7, 30), reference = normal_tensor(Shape{2 * pairs}, 8, 30),
                   targets = targets_of(2 * pairs, 5, empty);
      const double sum = 0x1p-40;
      for (const bool accumulate : {false, true}) {
        Attributes more = kPairs;
        more.set("accumulate", accumulate);
        hold(
            Op::dpo_loss, more, {{DType::f64, policy}, {DType::f64, reference}, {DType::i32, targets}},
            {{DType::f64, Shape{1}, sum, sum, -1, true, true}, {DType::f64, Shape{4}, sum, 1e3 * sum, -1, true, true}});
        Attributes counted{{"ignore_index", std::int64_t{-100}}};
        counted.set("accumulate", accumulate);
        hold(Op::dpo_count, counted, {{DType::i32, targets}}, {{DType::f64, Shape{1}, 0, 0, -1, true, true}});
      }
      hold(Op::dpo_loss_grad, kPairs,
           {{DType::f64, policy}, {DType::f64, reference}, {DType::i32, targets}, {DType::f32, values({0.37})}},
           {{DType::f32, Shape{2 * pairs}, bound(DType::f32, 1), 0x1p-60}});
    }
}

TEST_CASE("rewards far apart neither overflow nor vanish") {
  const Tensor targets(Shape{4, 1}, 1), reference(Shape{4}, 0);
  Tensor policy(Shape{4}, 0);
  policy.data = {1e5, 0, 0, 1e5};
  const Tensor loss = values({3e4});  // of the first pair, that of the second is 0
  for (const auto& runner : runners()) {
    CAPTURE(runner->name());
    const Buffer sum = buffer_of(DType::f64, Tensor(Shape{1})), figures = buffer_of(DType::f64, Tensor(Shape{4}));
    const Buffer a = buffer_of(DType::f64, policy), b = buffer_of(DType::f64, reference),
                 t = buffer_of(DType::i32, targets);
    runner->run({Op::dpo_loss,
                 kPairs,
                 {{DType::f64, {4}}, {DType::f64, {4}}, {DType::i32, {4, 1}}, {DType::f64, {1}}, {DType::f64, {4}}}},
                {a.data(), b.data(), t.data(), sum.data(), figures.data()});
    CHECK(sum.as<double>()[0] == doctest::Approx(loss[0]).epsilon(1e-12));
  }
}

TEST_CASE("the gradient of logits takes a seed for each sequence") {
  const Shape shape{3, 4, 10};
  const Tensor logits = normal_tensor(shape, 20, 2);
  Tensor targets = integer_tensor(Shape{3, 4}, 21, 0, 10);
  targets[5] = -100;
  const Attributes attributes = {{"ignore_index", std::int64_t{-100}}, {"label_smoothing", 0.0}};
  for (DType c : compute_dtypes()) {
    Tensor rounded = logits;
    const Buffer buffer = buffer_of(c, logits);
    for (std::int64_t i = 0; i < rounded.size(); ++i) rounded[i] = read(buffer, c, i);
    const Tensor lse = reference::run(Op::cross_entropy, attributes, {rounded, targets}, {Shape{1}, Shape{12}})[1];
    const double absolute = 8 * kEpsF32 + (c == DType::bf16 ? 0x1p-12 : 0);
    hold(Op::cross_entropy_grad, attributes,
         {{c, logits}, {DType::i32, targets}, {DType::f32, lse}, {DType::f32, values({0.37, -1.5, 2})}},
         {{c, shape, bound(c, 32), 2 * absolute, 0}});
  }
}
