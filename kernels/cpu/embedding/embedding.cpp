// embedding and positions. The gradient groups the places of each id by a counting sort, then sums group by group, the
// threads sharing out columns first (equal work however ids repeat), then rows.
#include "kernels/embedding.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/op_record.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/reduction/reduce_loops.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"
#include "kernels/documents.h"

namespace trainer::kernels::cpu {
namespace {

void copy_bytes(const char* from, char* to, std::int64_t bytes, int threads) {
  parallel_ranges(bytes, 64, threads, [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
  });
}

/// The rows of the table that are here: [first, first + rows) of `table_rows`.
struct Slice {
  bool cut = false;
  std::int64_t rows = 0, table_rows = 0, first = 0;

  Slice(const Signature& signature, const TensorDesc& weight)
      : cut(flag(signature, "cut")), rows(weight.shape[0]), table_rows(rows) {
    if (cut) table_rows = integer(signature, "table_rows");
  }
  /// That of one call.
  Slice at(const Call& call) const {
    Slice now = *this;
    now.first = cut ? call.origin : 0;
    return now;
  }
  /// Whether row `row` of the slice is there.
  bool has(std::int64_t row) const { return static_cast<std::uint64_t>(row) < static_cast<std::uint64_t>(rows); }
};

/// The places of each row's id, in order: those of `row` are places[starts[row] .. starts[row + 1]).
struct Groups {
  std::int32_t* starts;  // rows + 2
  std::int32_t* places;  // count

  void sort(std::span<const std::int32_t> ids, const Slice& slice) const {
    std::memset(starts, 0, sizeof(std::int32_t) * static_cast<std::size_t>(slice.rows + 2));
    for (std::int32_t id : ids)
      if (const std::int64_t row = id - slice.first; slice.has(row)) ++starts[row + 2];
    for (std::int64_t row = 2; row <= slice.rows; ++row) starts[row] += starts[row - 1];
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (const std::int64_t row = ids[i] - slice.first; slice.has(row))
        places[starts[row + 1]++] = static_cast<std::int32_t>(i);
  }
};

}  // namespace

Prepared prepare_embedding(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  const TensorDesc &ids = signature.operands[0], &weight = signature.operands[1];
  const std::int64_t count = ids.elements(), row_bytes = weight.shape[1] * size_of(weight.dtype);
  const Slice slice(signature, weight);
  expect_operand(signature, 0, DType::i32, count);
  expect_operand(signature, 2, weight.dtype, count * weight.shape[1]);
  const int threads = threads_for(2 * count * row_bytes, context.threads);
  return make_kernel([=](const Call& call) {
    const std::int32_t* id = operand<std::int32_t>(call, 0);
    const char* table = operand<char>(call, 1);
    char* y = operand<char>(call, 2);
    check_ids({id, static_cast<std::size_t>(count)}, slice.table_rows);
    const Slice now = slice.at(call);
    parallel_ranges(count, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = id[i] - now.first;
        if (now.has(row))
          std::memcpy(y + i * row_bytes, table + row * row_bytes, static_cast<std::size_t>(row_bytes));
        else
          std::memset(y + i * row_bytes, 0, static_cast<std::size_t>(row_bytes));
      }
    });
  });
}

std::int64_t embedding_grad_workspace(const Signature& signature) {
  const std::int64_t words = signature.operands[2].shape[0] + 2 + signature.operands[0].elements();
  return (words * 4 + 63) / 64 * 64;
}

Prepared prepare_embedding_grad(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  const TensorDesc &ids = signature.operands[0], &dy = signature.operands[1], &dweight = signature.operands[2];
  const std::int64_t count = ids.elements(), rows = dweight.shape[0], dim = dweight.shape[1];
  expect_operand(signature, 0, DType::i32, count);
  const Slice slice(signature, dweight);
  expect_operand(signature, 1, dy.dtype, count * dim);
  const bool bf16_x = expect_compute_dtype(signature, 1), bf16_y = expect_compute_dtype(signature, 2);
  const bool accumulate = accumulates(signature);
  const int threads = threads_for(dy.bytes() + (accumulate ? 0 : dweight.bytes()), context.threads);
  const int column_parts = static_cast<int>(std::clamp<std::int64_t>(dim / 64, 1, threads));
  const int row_parts = threads / column_parts;
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, sum_indexed_rows);
  return make_kernel([=](const Call& call) {
    const std::span<const std::int32_t> id(operand<std::int32_t>(call, 0), static_cast<std::size_t>(count));
    check_ids(id, slice.table_rows);
    const Groups groups{static_cast<std::int32_t*>(call.workspace),
                        static_cast<std::int32_t*>(call.workspace) + rows + 2};
    groups.sort(id, slice.at(call));
    parallel(column_parts * row_parts, [&](int part, int) {
      const Range columns = partition(dim, part % column_parts, column_parts, 64);
      const Range some_rows = partition(rows, part / column_parts, row_parts);
      for (std::int64_t row = some_rows.begin; row < some_rows.end; ++row) {
        const std::int32_t first = groups.starts[row], number = groups.starts[row + 1] - first;
        if (number == 0 && accumulate) continue;
        char* y = operand<char>(call, 2) + row * dim * (bf16_y ? 2 : 4);
        loop(bf16_x, bf16_y, operand<void>(call, 1), groups.places + first, number, y, dim, accumulate, columns.begin,
             columns.end);
      }
    });
  });
}

Prepared prepare_positions(const Signature& signature, const Context& context) {
  const bool at = flag(signature, "at");
  const int out = at ? 2 : 1;
  expect_operands(signature, static_cast<std::size_t>(out) + 1);
  const TensorDesc &weight = signature.operands[0], &y = signature.operands[static_cast<std::size_t>(out)];
  expect_operand(signature, out, weight.dtype, y.elements());
  CHECK(y.elements() <= weight.elements(), describe(signature) + ": more positions than rows");
  const std::int64_t bytes = y.bytes(), rows = weight.shape[0], row_bytes = weight.shape[1] * size_of(weight.dtype);
  const bool partial = flag(signature, "partial");
  const int threads = threads_for(2 * bytes, context.threads);
  return make_kernel([=](const Call& call) {
    char* to = operand<char>(call, out);
    if (partial && call.origin >= rows) {
      std::memset(to, 0, static_cast<std::size_t>(bytes));
      return;
    }
    for (const PositionRows& run :
         positions_rows(signature, call.origin + (at ? *operand<std::int32_t>(call, 1) : 0))) {
      copy_bytes(operand<char>(call, 0) + run.first * row_bytes, to, run.count * row_bytes, threads);
      to += run.count * row_bytes;
    }
  });
}

Prepared prepare_positions_grad(const Signature& signature, const Context& context) {
  expect_operands(signature, 2);
  const TensorDesc &dy = signature.operands[0], &dweight = signature.operands[1];
  const bool bf16_x = expect_compute_dtype(signature, 0), bf16_y = expect_compute_dtype(signature, 1);
  const bool accumulate = accumulates(signature);
  const std::int64_t used = dy.elements(), all = dweight.elements(), dweight_row = dweight.shape[1],
                     width = bf16_y ? 2 : 4;
  CHECK(used <= all, describe(signature) + ": more positions than rows");
  const int threads = threads_for(dy.bytes() + dweight.bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, sum_indexed_rows);
  return make_kernel([=](const Call& call) {
    static constexpr std::int32_t kFirst[1] = {0};
    const char* dy_run = operand<char>(call, 0);
    char* const target = operand<char>(call, 1);
    bool adds = accumulate;  // the second run adds to what the first has cleared
    for (const PositionRows& run : positions_rows(signature, call.origin)) {
      const std::int64_t first = run.first * dweight_row, last = first + run.count * dweight_row;
      if (run.count == 0) continue;
      // Elements of dweight count from `first` on where they are dy's, so that the loop takes both from the same place.
      parallel_ranges(all, 64, threads, [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t from = std::clamp(first, begin, end), to = std::clamp(last, begin, end);
        if (from < to)
          loop(bf16_x, bf16_y, dy_run, kFirst, 1, target + first * width, 0, adds, from - first, to - first);
        if (adds) return;
        if (begin < from) loop(bf16_x, bf16_y, dy_run, kFirst, 0, target, 0, false, begin, from);
        if (to < end) loop(bf16_x, bf16_y, dy_run, kFirst, 0, target, 0, false, to, end);
      });
      dy_run += run.count * dweight_row * (bf16_x ? 2 : 4);
      adds = true;
    }
  });
}

Prepared prepare_document_positions(const Signature& signature, const Context&) {
  const DocumentPositionsShape shape = document_positions_shape(signature);
  return make_kernel([shape, runs = std::vector<DocumentRun>()](const Call& call) mutable {
    expect_document_origin(shape, call.origin);
    find_documents({operand<std::int32_t>(call, 0), static_cast<std::size_t>(shape.batch * shape.all)}, shape.batch,
                   runs);
    auto* const ids = operand<std::int32_t>(call, 1);
    std::fill_n(ids, shape.batch * shape.seq, static_cast<std::int32_t>(shape.offset));
    const auto part = [&](const DocumentRun& run, std::int64_t origin, std::int64_t count, std::int32_t* to) {
      const std::int64_t first = std::max(run.begin, origin), end = std::min(run.end, origin + count);
      for (std::int64_t i = first; i < end; ++i)
        to[run.sample * shape.seq + i - origin] = static_cast<std::int32_t>(shape.offset + i - run.begin);
    };
    const std::int64_t half = shape.zigzag ? shape.seq / 2 : 0;
    for (const DocumentRun& run : runs) {
      part(run, call.origin, shape.seq - half, ids);
      if (half > 0) part(run, shape.all - call.origin - half, half, ids + half);
    }
  });
}

Prepared prepare_parameter_grad(const Signature& signature, const Context& context) {
  expect_operands(signature, 2);
  const TensorDesc &dy = signature.operands[0], &dweight = signature.operands[1];
  const bool bf16_x = expect_compute_dtype(signature, 0), bf16_y = expect_compute_dtype(signature, 1);
  const bool accumulate = accumulates(signature);
  const std::int64_t count = dy.elements();
  expect_operand(signature, 1, dweight.dtype, count);
  const int threads = threads_for(dy.bytes() + dweight.bytes(), context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, sum_indexed_rows);
  return make_kernel([=](const Call& call) {
    static constexpr std::int32_t kFirst[1] = {0};
    parallel_ranges(count, 64, threads, [&](std::int64_t begin, std::int64_t end) {
      loop(bf16_x, bf16_y, operand<void>(call, 0), kFirst, 1, operand<void>(call, 1), 0, accumulate, begin, end);
    });
  });
}

}  // namespace trainer::kernels::cpu
