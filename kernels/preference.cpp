// Sizes of the ops on pairs, and the checks that they fit.
#include "kernels/preference.h"

#include "engine/core/op_record.h"

namespace trainer::kernels {

SequenceNllSizes sequence_nll_sizes(const Signature& signature) {
  expect_operands(signature, 5);
  const Shape& stats = signature.operands[1].shape;
  const Shape& targets = signature.operands[2].shape;
  CHECK(stats.rank() == 3 && stats[2] == 5, describe(signature) + ": stats are [parts, rows, 5]");
  CHECK(targets.rank() >= 1 && targets.elements() == stats[1], describe(signature) + ": a target for each row");
  expect_operand(signature, 1, DType::f32, stats.elements());
  expect_operand(signature, 2, DType::i32, stats[1]);
  expect_operand(signature, 3, DType::f64, targets[0]);
  expect_operand(signature, 4, DType::f32, stats[1]);
  return {stats[0], stats[1], targets[0], integer(signature, "classes"), integer(signature, "ignore_index")};
}

PairSizes pair_sizes(const Signature& signature) {
  const bool counts = signature.op == Op::dpo_count, gradient = signature.op == Op::dpo_loss_grad;
  const int targets = counts ? 0 : 2;
  expect_operands(signature, counts ? 2 : 5);
  const Shape& shape = signature.operands[static_cast<std::size_t>(targets)].shape;
  CHECK(shape.rank() >= 1 && shape[0] % 2 == 0 && shape[0] > 0, describe(signature) + ": a pair is two sequences");
  expect_operand(signature, targets, DType::i32, shape.elements());
  for (int i = 0; i < targets; ++i) expect_operand(signature, i, DType::f64, shape[0]);
  expect_operand(signature, targets + 1, gradient ? DType::f32 : DType::f64, 1);
  if (gradient) expect_operand(signature, 4, DType::f32, shape[0]);
  if (signature.op == Op::dpo_loss) expect_operand(signature, 4, DType::f64, 4);
  return {shape[0] / 2, shape.elements() / shape[0], integer(signature, "ignore_index"),
          counts ? 0.0 : real(signature, "beta")};
}

}  // namespace trainer::kernels
