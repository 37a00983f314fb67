// embedding, positions and the gradient of positions. Bound by memory: embedding reads the named rows and writes them,
// a warp each, four vectors of 16 bytes a lane on their way at once; positions is a copy.
#include <algorithm>

#include "engine/core/op_record.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/documents.cuh"
#include "kernels/cuda/runtime/fault.cuh"
#include "kernels/documents.h"
#include "kernels/embedding.h"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kEach = 4;  // pieces of a lane at once

/// The rows of the table that are here: [first, first + rows) of `table_rows`.
struct Slice {
  std::int64_t rows, table_rows, first;
};

// ---- Device ----

/// What rows are moved in: 16 bytes, or an element where rows are no whole number of those. All bits set is NaN in
/// every float type.
struct Sixteen {
  uint4 bits;
};
__device__ __forceinline__ void fill(Sixteen& piece, bool ones) {
  const unsigned bits = ones ? ~0U : 0U;
  piece.bits = make_uint4(bits, bits, bits, bits);
}
template <typename Element>
__device__ __forceinline__ void fill(Element& piece, bool ones) {
  piece = static_cast<Element>(ones ? ~Element{0} : Element{0});
}

template <typename Piece>
__global__ void __launch_bounds__(kThreads) gather(const std::int32_t* ids, const Piece* table, Piece* y,
                                                   std::int64_t count, int pieces, Slice slice, Fault* fault) {
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (place >= count) return;
  const int lane = threadIdx.x % kWarp;
  const std::int32_t id = ids[place];
  const bool wrong = id < 0 || id >= slice.table_rows;
  if (wrong && lane == 0) report(fault, Fault::id, id, place, slice.table_rows);
  const std::int64_t row = id - slice.first;
  const bool here = !wrong && row >= 0 && row < slice.rows;
  const Piece* const from = table + row * pieces;
  Piece* const to = y + place * pieces;
  for (int first = lane; first < pieces; first += kWarp * kEach) {
    Piece held[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      fill(held[k], wrong);
      if (here && first + k * kWarp < pieces) held[k] = from[first + k * kWarp];
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (first + k * kWarp < pieces) to[first + k * kWarp] = held[k];
  }
}

// Elements [first, first + used) of dweight are dy's; the others, where nothing is accumulated, 0. Blocks go over all
// of dweight, or with `accumulate` over that part of it. Vectors lie alike in both where `first` is a whole number of
// them, if dy begins where one does (`vectors`).
template <typename T, typename R>
__global__ void __launch_bounds__(kThreads) put_rows(const T* dy, R* dweight, std::int64_t first, std::int64_t used,
                                                     std::int64_t all, bool accumulate, bool vectors) {
  constexpr int kN = 16 / static_cast<int>(sizeof(T) > sizeof(R) ? sizeof(T) : sizeof(R));
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t begin = accumulate ? first / kN * kN + at * kN : at * kN, last = first + used, end = begin + kN;
  const bool inside = begin >= first && end <= last, outside = end <= first || begin >= last;
  if (end <= all && ((inside && vectors && first % kN == 0) || (outside && !accumulate))) {
    float v[kN] = {};
    if (inside) widen(load_packed<kN>(dy, (begin - first) / kN), v);
    if (accumulate) {
      float before[kN];
      widen(load_packed<kN>(dweight, begin / kN), before);
#pragma unroll
      for (int i = 0; i < kN; ++i) v[i] += before[i];
    }
    store_packed(dweight, begin / kN, narrow<R>(v));
    return;
  }
  for (std::int64_t i = begin; i < end && i < all; ++i) {
    const bool here = i >= first && i < last;
    if (!here && accumulate) continue;
    const float v = here ? to_f32(dy[i - first]) : 0.0F;
    dweight[i] = from_f32<R>(accumulate ? to_f32(dweight[i]) + v : v);
  }
}

// ---- Host ----

template <typename Piece>
Prepared gather_of(std::int64_t count, std::int64_t row_bytes, const Slice& slice, bool cut, Fault* fault) {
  const Grid grid{.blocks = blocks_for(count, kThreads / kWarp), .threads = kThreads};
  const int pieces = static_cast<int>(row_bytes / static_cast<std::int64_t>(sizeof(Piece)));
  return make_kernel([=](const Call& call) {
    Slice now = slice;
    now.first = cut ? call.origin : 0;
    launch(call, grid, gather<Piece>, operand<std::int32_t>(call, 0), operand<Piece>(call, 1), operand<Piece>(call, 2),
           count, pieces, now, fault);
  });
}

}  // namespace

Prepared prepare_embedding(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  const TensorDesc &ids = signature.operands[0], &weight = signature.operands[1];
  const std::int64_t count = ids.elements(), row_bytes = weight.shape[1] * size_of(weight.dtype);
  const bool cut = flag(signature, "cut");
  const Slice slice{weight.shape[0], cut ? integer(signature, "table_rows") : weight.shape[0], 0};
  expect_operand(signature, 0, DType::i32, count);
  expect_operand(signature, 2, expect_compute_dtype(signature, 1), count * weight.shape[1]);
  if (row_bytes % 16 == 0) return gather_of<Sixteen>(count, row_bytes, slice, cut, context.fault);
  if (weight.dtype == DType::f32) return gather_of<std::uint32_t>(count, row_bytes, slice, cut, context.fault);
  return gather_of<std::uint16_t>(count, row_bytes, slice, cut, context.fault);
}

namespace {

/// Rows from `position` on, which lies in device memory; zeros beyond the table. In pieces of two bytes.
__global__ void __launch_bounds__(kThreads)
    copy_rows_at(const std::uint16_t* table, const std::int32_t* position, std::uint16_t* y, std::int64_t offset,
                 std::int64_t row, std::int64_t rows, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t from = (*position + offset) * row + i;
  y[i] = from >= 0 && from < rows * row ? table[from] : std::uint16_t{0};
}

Prepared prepare_positions_at(const Signature& signature) {
  expect_operands(signature, 3);
  const TensorDesc &weight = signature.operands[0], &y = signature.operands[2];
  expect_operand(signature, 1, DType::i32, 1);
  expect_operand(signature, 2, weight.dtype, y.elements());
  const std::int64_t row = weight.shape[1] * size_of(weight.dtype) / 2, rows = weight.shape[0], count = y.bytes() / 2,
                     offset = integer(signature, "offset");
  return make_kernel([=](const Call& call) {
    CHECK(call.origin == 0, "positions that are read from memory are those of a whole sequence");
    launch(call, {.blocks = blocks_for(count, kThreads), .threads = kThreads}, copy_rows_at,
           operand<const std::uint16_t>(call, 0), operand<const std::int32_t>(call, 1), operand<std::uint16_t>(call, 2),
           offset, row, rows, count);
  });
}

}  // namespace

Prepared prepare_positions(const Signature& signature, const Context&) {
  if (flag(signature, "at")) return prepare_positions_at(signature);
  expect_operands(signature, 2);
  const TensorDesc &weight = signature.operands[0], &y = signature.operands[1];
  expect_operand(signature, 1, weight.dtype, y.elements());
  CHECK(y.elements() <= weight.elements(), describe(signature) + ": more positions than rows");
  const std::size_t bytes = static_cast<std::size_t>(y.bytes());
  const std::int64_t rows = weight.shape[0], row_bytes = weight.shape[1] * size_of(weight.dtype);
  const bool partial = flag(signature, "partial");
  return make_kernel([=](const Call& call) {
    if (partial && call.origin >= rows) {
      check(cudaMemsetAsync(operand<void>(call, 1), 0, bytes, stream_of(call)), "cudaMemsetAsync");
      return;
    }
    char* to = operand<char>(call, 1);
    for (const PositionRows& run : positions_rows(signature, call.origin)) {
      if (run.count == 0) continue;
      check(cudaMemcpyAsync(to, operand<char>(call, 0) + run.first * row_bytes,
                            static_cast<std::size_t>(run.count * row_bytes), cudaMemcpyDeviceToDevice, stream_of(call)),
            "cudaMemcpyAsync");
      to += run.count * row_bytes;
    }
  });
}

namespace {

__global__ void __launch_bounds__(kThreads)
    count_positions(const std::int32_t* documents, std::int32_t* ids, int seq, int all, int origin, bool zigzag,
                    int offset, std::int64_t count, Fault* fault) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int place = static_cast<int>(i % seq);
  const int position = zigzag && place >= seq / 2 ? all - origin - seq + place : origin + place;
  const std::int32_t* const row = documents + i / seq * all;
  const std::int32_t number = row[position];
  check_document(fault, row, position, i / seq, all);
  ids[i] = offset + (number < 0 ? 0 : position - first_not_below(row, position, number));
}

}  // namespace

Prepared prepare_document_positions(const Signature& signature, const Context& context) {
  const DocumentPositionsShape shape = document_positions_shape(signature);
  const std::int64_t count = shape.batch * shape.seq;
  Fault* const fault = context.fault;
  return make_kernel([=](const Call& call) {
    expect_document_origin(shape, call.origin);
    launch(call, {.blocks = blocks_for(count, kThreads), .threads = kThreads}, count_positions,
           operand<const std::int32_t>(call, 0), operand<std::int32_t>(call, 1), static_cast<int>(shape.seq),
           static_cast<int>(shape.all), static_cast<int>(call.origin), shape.zigzag, static_cast<int>(shape.offset),
           count, fault);
  });
}

Prepared prepare_positions_grad(const Signature& signature, const Context&) {
  expect_operands(signature, 2);
  const TensorDesc &dy = signature.operands[0], &dweight = signature.operands[1];
  const bool accumulate = accumulates(signature);
  const std::int64_t used = dy.elements(), all = dweight.elements(), dim = dweight.shape[1];
  CHECK(used <= all, describe(signature) + ": more positions than rows");
  const DType reduce = expect_reduce_dtype(signature, 1);
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) {
    return with_reduce_type(reduce, [&]<typename R>(R) -> Prepared {
      const std::int64_t each = kThreads * 16 / static_cast<std::int64_t>(std::max(sizeof(T), sizeof(R)));
      // One vector more than `used` has: the first may begin before it.
      return make_kernel([=](const Call& call) {
        std::int64_t taken = 0;  // elements of dy; what comes behind the first run adds to what that one has cleared
        for (const PositionRows& run : positions_rows(signature, call.origin)) {
          const std::int64_t mine = run.count * dim;
          if (mine == 0) continue;
          const bool adds = accumulate || taken > 0;
          const Grid grid{.blocks = blocks_for(adds ? mine + each / kThreads : all, each), .threads = kThreads};
          launch(call, grid, put_rows<T, R>, operand<T>(call, 0) + taken, operand<R>(call, 1), run.first * dim, mine,
                 all, adds, taken * static_cast<std::int64_t>(sizeof(T)) % 16 == 0);
          taken += mine;
        }
      });
    });
  });
}

Prepared prepare_parameter_grad(const Signature& signature, const Context&) {
  expect_operands(signature, 2);
  const std::int64_t count = signature.operands[0].elements();
  const bool accumulate = accumulates(signature);
  const DType reduce = expect_reduce_dtype(signature, 1);
  expect_operand(signature, 1, reduce, count);
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) {
    return with_reduce_type(reduce, [&]<typename R>(R) -> Prepared {
      const std::int64_t each = kThreads * 16 / static_cast<std::int64_t>(std::max(sizeof(T), sizeof(R)));
      const Grid grid{.blocks = blocks_for(count, each), .threads = kThreads};
      return make_kernel([=](const Call& call) {
        launch(call, grid, put_rows<T, R>, operand<T>(call, 0), operand<R>(call, 1), 0, count, count, accumulate, true);
      });
    });
  });
}

}  // namespace trainer::kernels::cuda
