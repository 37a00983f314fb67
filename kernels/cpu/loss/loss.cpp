// Losses, their gradients and counts. Every row or chunk leaves its own sum in the workspace; they are then added up in
// order, so that a loss does not depend on the number of threads.
#include "kernels/loss.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/core/error.h"
#include "engine/core/op_record.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/loss/loss_loops.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

constexpr std::int64_t kChunk = 16384;  // elements summed at a time by mse

std::int64_t chunks_of(std::int64_t count) { return (count + kChunk - 1) / kChunk; }

/// Sums of f64 in order.
double sum_of(const double* values, std::int64_t count) {
  double total = 0;
  for (std::int64_t i = 0; i < count; ++i) total += values[i];
  return total;
}

void put(double* output, double value, bool accumulate) { *output = accumulate ? *output + value : value; }

/// What the kernels over rows of logits share.
struct Rows {
  CrossEntropyArgs args;
  std::int64_t rows;
  bool cut;  ///< the columns are those of the classes from Call::origin on
  int threads;

  std::span<const std::int32_t> targets(const Call& call) const {
    return {operand<std::int32_t>(call, 1), static_cast<std::size_t>(rows)};
  }
  /// The arguments of one call; checks the targets.
  CrossEntropyArgs at(const Call& call) const {
    CrossEntropyArgs now = args;
    now.logits = operand<void>(call, 0);
    now.targets = operand<std::int32_t>(call, 1);
    now.first = cut ? call.origin : 0;
    now.present = std::clamp<std::int64_t>(args.classes - now.first, 0, args.columns);
    check_targets(targets(call), args.classes, args.ignore_index);
    return now;
  }
};

Rows rows_of(const Signature& signature, const Context& context) {
  const TensorDesc& logits = signature.operands[0];
  Rows result;
  result.rows = logits.shape.rows();
  result.args.bf16 = expect_compute_dtype(signature, 0);
  result.args.columns = logits.shape[-1];
  result.cut = signature.attributes.has("classes");
  result.args.classes = result.cut ? integer(signature, "classes") : result.args.columns;
  result.args.ignore_index = integer(signature, "ignore_index");
  if (record(signature.op).attribute("label_smoothing") != nullptr)
    result.args.smoothing = static_cast<float>(real(signature, "label_smoothing"));
  expect_operand(signature, 1, DType::i32, result.rows);
  result.threads = threads_for(logits.bytes(), context.threads);
  return result;
}

MseArgs mse_args(const Signature& signature) {
  MseArgs args;
  args.bf16 = expect_compute_dtype(signature, 0);
  args.target_bf16 = expect_compute_dtype(signature, 1);
  expect_operand(signature, 1, signature.operands[1].dtype, signature.operands[0].elements());
  return args;
}

}  // namespace

std::int64_t loss_workspace(const Signature& signature) {
  const TensorDesc& first = signature.operands[0];
  const std::int64_t sums = signature.op == Op::mse ? chunks_of(first.elements()) : first.shape.rows();
  return (sums * 8 + 63) / 64 * 64;
}

Prepared prepare_cross_entropy(const Signature& signature, const Context& context) {
  expect_operands(signature, 4);
  const Rows all = rows_of(signature, context);
  expect_operand(signature, 2, DType::f64, 1);
  expect_operand(signature, 3, DType::f32, all.rows);
  const bool accumulate = accumulates(signature);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, cross_entropy);
  return make_kernel([=](const Call& call) {
    CrossEntropyArgs now = all.at(call);
    now.lse = operand<float>(call, 3);
    now.losses = static_cast<double*>(call.workspace);
    parallel_ranges(all.rows, 1, all.threads, [&](std::int64_t begin, std::int64_t end) { loop(now, begin, end); });
    put(operand<double>(call, 2), sum_of(now.losses, all.rows), accumulate);
  });
}

Prepared prepare_cross_entropy_grad(const Signature& signature, const Context& context) {
  expect_operands(signature, 5);
  const Rows all = rows_of(signature, context);
  expect_operand(signature, 2, DType::f32, all.rows);
  const std::int64_t seeds = signature.operands[3].elements();
  CHECK(seeds > 0 && all.rows % seeds == 0, describe(signature) + ": a seed is that of as many rows as any other");
  expect_operand(signature, 3, DType::f32, seeds);
  expect_alike(signature, {0, 4});
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, cross_entropy_grad);
  return make_kernel([=](const Call& call) {
    CrossEntropyArgs now = all.at(call);
    now.lse = operand<float>(call, 2);
    now.seeds = operand<float>(call, 3);
    now.rows_of_seed = all.rows / seeds;
    now.dlogits = operand<void>(call, 4);
    parallel_ranges(all.rows, 1, all.threads, [&](std::int64_t begin, std::int64_t end) { loop(now, begin, end); });
  });
}

Prepared prepare_cross_entropy_and_grad(const Signature& signature, const Context& context) {
  expect_operands(signature, 5);
  const Rows all = rows_of(signature, context);
  expect_operand(signature, 2, DType::f32, 1);
  expect_operand(signature, 3, DType::f64, 1);
  expect_alike(signature, {0, 4});
  const bool accumulate = accumulates(signature);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, cross_entropy_and_grad);
  return make_kernel([=](const Call& call) {
    CrossEntropyArgs now = all.at(call);
    now.seeds = operand<float>(call, 2);
    now.rows_of_seed = std::max<std::int64_t>(1, all.rows);
    now.losses = static_cast<double*>(call.workspace);
    now.dlogits = operand<void>(call, 4);
    parallel_ranges(all.rows, 1, all.threads, [&](std::int64_t begin, std::int64_t end) { loop(now, begin, end); });
    put(operand<double>(call, 3), sum_of(now.losses, all.rows), accumulate);
  });
}

namespace {

/// Of the gathered ones, stats at operand `index` and targets at the next.
CrossEntropyArgs gathered_args(const Signature& signature, int index) {
  const TensorDesc& stats = signature.operands[static_cast<std::size_t>(index)];
  CHECK(stats.shape.rank() == 3 && stats.shape[2] == kLossStats, describe(signature) + ": stats are [parts, rows, 5]");
  CrossEntropyArgs args;
  args.parts = stats.shape[0];
  args.rows = stats.shape[1];
  args.classes = integer(signature, "classes");
  args.ignore_index = integer(signature, "ignore_index");
  expect_operand(signature, index, DType::f32, stats.elements());
  expect_operand(signature, index + 1, DType::i32, args.rows);
  return args;
}

CrossEntropyArgs gathered_at(CrossEntropyArgs args, const Call& call, int index) {
  args.stats = operand<float>(call, index);
  args.targets = operand<std::int32_t>(call, index + 1);
  check_targets({args.targets, static_cast<std::size_t>(args.rows)}, args.classes, args.ignore_index);
  return args;
}

/// Whether the largest logit of all parts, the first of equals, is the target's.
bool is_correct(const CrossEntropyArgs& args, std::int64_t row) {
  const float *best = nullptr, *stats = args.stats + row * kLossStats;
  for (std::int64_t p = 0; p < args.parts; ++p, stats += args.rows * kLossStats) {
    if (std::isnan(stats[4])) return false;
    if (stats[4] >= 0 && (best == nullptr || stats[0] > best[0])) best = stats;
  }
  return best != nullptr && best[4] == static_cast<float>(args.targets[row]);
}

}  // namespace

Prepared prepare_cross_entropy_stats(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  const Rows all = rows_of(signature, context);
  CHECK(all.cut && all.args.classes <= 1 << 24, describe(signature) + ": classes are numbered in f32");
  expect_operand(signature, 2, DType::f32, all.rows * kLossStats);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, cross_entropy_stats);
  return make_kernel([=](const Call& call) {
    CrossEntropyArgs now = all.at(call);
    now.stats = operand<float>(call, 2);
    parallel_ranges(all.rows, 1, all.threads, [&](std::int64_t begin, std::int64_t end) { loop(now, begin, end); });
  });
}

Prepared prepare_cross_entropy_gathered(const Signature& signature, const Context& context) {
  expect_operands(signature, 5);
  CrossEntropyArgs args = gathered_args(signature, 1);
  args.smoothing = static_cast<float>(real(signature, "label_smoothing"));
  expect_operand(signature, 3, DType::f64, 1);
  expect_operand(signature, 4, DType::f32, args.rows);
  const bool accumulate = accumulates(signature);
  const int threads = threads_for(signature.operands[1].bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, cross_entropy_gathered);
  return make_kernel([=](const Call& call) {
    CrossEntropyArgs now = gathered_at(args, call, 1);
    now.lse = operand<float>(call, 4);
    now.losses = static_cast<double*>(call.workspace);
    parallel_ranges(args.rows, 1, threads, [&](std::int64_t begin, std::int64_t end) { loop(now, begin, end); });
    put(operand<double>(call, 3), sum_of(now.losses, args.rows), accumulate);
  });
}

Prepared prepare_correct_count_gathered(const Signature& signature, const Context&) {
  expect_operands(signature, 3);
  const CrossEntropyArgs args = gathered_args(signature, 0);
  expect_operand(signature, 2, DType::f64, 1);
  const bool accumulate = accumulates(signature);
  return make_kernel([=](const Call& call) {
    const CrossEntropyArgs now = gathered_at(args, call, 0);
    std::int64_t correct = 0;
    for (std::int64_t row = 0; row < args.rows; ++row)
      correct += now.targets[row] != args.ignore_index && is_correct(now, row);
    put(operand<double>(call, 2), static_cast<double>(correct), accumulate);
  });
}

Prepared prepare_cross_entropy_count(const Signature& signature, const Context&) {
  expect_operands(signature, 2);
  const std::int64_t rows = signature.operands[0].elements();
  expect_operand(signature, 0, DType::i32, rows);
  expect_operand(signature, 1, DType::f64, 1);
  const std::int64_t ignore_index = integer(signature, "ignore_index");
  const bool accumulate = accumulates(signature);
  return make_kernel([=](const Call& call) {
    const std::int32_t* targets = operand<std::int32_t>(call, 0);
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < rows; ++i) count += targets[i] != ignore_index;
    put(operand<double>(call, 1), static_cast<double>(count), accumulate);
  });
}

Prepared prepare_correct_count(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  const Rows all = rows_of(signature, context);
  expect_operand(signature, 2, DType::f64, 1);
  const bool accumulate = accumulates(signature);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, correct);
  return make_kernel([=](const Call& call) {
    CrossEntropyArgs now = all.at(call);
    now.losses = static_cast<double*>(call.workspace);
    parallel_ranges(all.rows, 1, all.threads, [&](std::int64_t begin, std::int64_t end) { loop(now, begin, end); });
    put(operand<double>(call, 2), sum_of(now.losses, all.rows), accumulate);
  });
}

Prepared prepare_mse(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  const MseArgs args = mse_args(signature);
  expect_operand(signature, 2, DType::f64, 1);
  const std::int64_t count = signature.operands[0].elements(), chunks = chunks_of(count);
  const int threads = threads_for(2 * signature.operands[0].bytes(), context.threads);
  const bool accumulate = accumulates(signature);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, squared_error);
  return make_kernel([=](const Call& call) {
    MseArgs now = args;
    now.prediction = operand<void>(call, 0);
    now.target = operand<void>(call, 1);
    double* sums = static_cast<double*>(call.workspace);
    parallel_ranges(chunks, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t chunk = begin; chunk < end; ++chunk)
        sums[chunk] = loop(now, chunk * kChunk, std::min(count, (chunk + 1) * kChunk));
    });
    put(operand<double>(call, 2), sum_of(sums, chunks), accumulate);
  });
}

Prepared prepare_mse_grad(const Signature& signature, const Context& context) {
  expect_operands(signature, 4);
  const MseArgs args = mse_args(signature);
  expect_operand(signature, 2, DType::f32, 1);
  expect_alike(signature, {0, 3});
  const std::int64_t count = signature.operands[0].elements();
  const int threads = threads_for(3 * signature.operands[0].bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, squared_error_grad);
  return make_kernel([=](const Call& call) {
    MseArgs now = args;
    now.prediction = operand<void>(call, 0);
    now.target = operand<void>(call, 1);
    now.seed = *operand<float>(call, 2);
    now.dprediction = operand<void>(call, 3);
    parallel_ranges(count, 64, threads, [&](std::int64_t begin, std::int64_t end) { loop(now, begin, end); });
  });
}

Prepared prepare_mse_count(const Signature& signature, const Context&) {
  expect_operands(signature, 2);
  expect_operand(signature, 1, DType::f64, 1);
  const double count = static_cast<double>(signature.operands[0].elements());
  const bool accumulate = accumulates(signature);
  return make_kernel([=](const Call& call) { put(operand<double>(call, 1), count, accumulate); });
}

}  // namespace trainer::kernels::cpu
