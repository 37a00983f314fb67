// The gradient of embedding, without atomics on floats: (row, place) pairs are sorted by row, stably, and each row's
// gradients are summed in f32 in the order of their places. Bound by memory: dy is read once and dweight written once
// (with `accumulate` read too); bytes in elements: ids · dim + rows · dim.
//
//   sort     a radix sort of 8 bits a pass: blocks count the digits of their tile, then each places its tile behind
//            those before it.
//            Two passes up to 65,535 rows, three beyond: 40 bytes an id, some microseconds for 65,536 ids.
//   short    a warp for each row of the table looks up its places; most rows have none, and become 0
//   long     rows with more than 32 places, as the most common words have: a block whose warps sum consecutive parts
//            of them, joined in order
//
// Which block takes which long row is not fixed; what it computes is.
#include <algorithm>
#include <bit>

#include "engine/core/op_record.h"
#include "kernels/cuda/embedding/embedding_grad.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/fault.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp, kDigits = EmbeddingGradWorkspace::kDigits,
              kTile = EmbeddingGradWorkspace::kTile;
constexpr int kRounds = kTile / kThreads;  // ids of a thread
constexpr int kLong = EmbeddingGradWorkspace::kLong;
constexpr int kLongThreads = 512, kSlices = kLongThreads / kWarp;
static_assert(kDigits == kThreads, "a thread for each digit");

/// The rows of the table that are here: [first, first + rows) of `table_rows`.
struct Slice {
  std::int64_t rows, table_rows, first;
};

/// What a pass of the sort reads: the ids at first, after that pairs.
struct Source {
  const std::int32_t* ids;  // null after the first pass
  const std::int32_t *keys, *places;
  int count;
};

// ---- Device: the sort ----

/// The row of an id in this slice; `rows`, which sorts last, where it has none.
__device__ __forceinline__ std::int32_t key_of(const Source& from, const Slice& slice, int index, Fault* fault) {
  if (from.ids == nullptr) return from.keys[index];
  const std::int32_t id = from.ids[index];
  const bool wrong = id < 0 || id >= slice.table_rows;
  if (wrong && fault != nullptr) report(fault, Fault::id, id, index, slice.table_rows);
  const std::int64_t row = id - slice.first;
  return static_cast<std::int32_t>(!wrong && row >= 0 && row < slice.rows ? row : slice.rows);
}

__device__ __forceinline__ int digit_of(std::int32_t key, int shift) { return (key >> shift) % kDigits; }

__global__ void __launch_bounds__(kThreads)
    count_digits(Source from, Slice slice, std::int32_t* counts, int shift, Fault* fault) {
  __shared__ std::int32_t mine[kDigits];
  mine[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int index = static_cast<int>(blockIdx.x) * kTile + round * kThreads + static_cast<int>(threadIdx.x);
    if (index < from.count) atomicAdd(&mine[digit_of(key_of(from, slice, index, fault), shift)], 1);
  }
  __syncthreads();
  counts[blockIdx.x * kDigits + threadIdx.x] = mine[threadIdx.x];
}

/// The sum of `value` over the threads before this one.
__device__ __forceinline__ std::int32_t sum_before(std::int32_t value, std::int32_t* shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  std::int32_t sum = value;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const std::int32_t other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == kWarp - 1) shared[warp] = sum;
  __syncthreads();
  std::int32_t before = sum - value;
  for (int i = 0; i < warp; ++i) before += shared[i];
  return before;
}

/// Of digit threadIdx.x: where this tile's ids with it begin, behind those of lower digits and of tiles before.
__device__ __forceinline__ std::int32_t begin_of_digit(const std::int32_t* counts, int tiles) {
  __shared__ std::int32_t of_warps[kWarps];
  std::int32_t before = 0, total = 0;
#pragma unroll 8
  for (int tile = 0; tile < tiles; ++tile) {
    const std::int32_t here = counts[tile * kDigits + threadIdx.x];
    if (tile < static_cast<int>(blockIdx.x)) before += here;
    total += here;
  }
  return before + sum_before(total, of_warps);
}

// A warp has consecutive ids of the tile, so that the order among equals stays: tiles, warps in a tile, rounds in a
// warp, lanes in a round.
__global__ void __launch_bounds__(kThreads)
    place_digits(Source from, Slice slice, const std::int32_t* counts, int tiles, std::int32_t* keys,
                 std::int32_t* places, int shift) {
  __shared__ std::int32_t next[kWarps][kDigits];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int first = static_cast<int>(blockIdx.x) * kTile + warp * (kTile / kWarps) + lane;
#pragma unroll
  for (int other = 0; other < kWarps; ++other) next[other][threadIdx.x] = 0;
  __syncthreads();
  std::int32_t key[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int index = first + round * kWarp;
    key[round] = index < from.count ? key_of(from, slice, index, nullptr) : 0;
    if (index < from.count) atomicAdd(&next[warp][digit_of(key[round], shift)], 1);
  }
  std::int32_t begin = begin_of_digit(counts, tiles);  // has a barrier
#pragma unroll
  for (int other = 0; other < kWarps; ++other) {
    const std::int32_t number = next[other][threadIdx.x];
    next[other][threadIdx.x] = begin;
    begin += number;
  }
  __syncthreads();
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int index = first + round * kWarp;
    const bool there = index < from.count;
    const int digit = there ? digit_of(key[round], shift) : kDigits;
    const unsigned alike = __match_any_sync(kAllLanes, digit);
    const int rank = __popc(alike & ((1U << lane) - 1U));
    if (there) {
      const std::int32_t to = next[warp][digit] + rank;
      keys[to] = key[round];
      places[to] = from.ids != nullptr ? index : from.places[index];
    }
    __syncwarp();
    if (there && rank == 0) next[warp][digit] += __popc(alike);
    __syncwarp();
  }
}

/// starts[row]: how many sorted keys are below it, for rows 0 to `rows`; and no row is long yet.
__global__ void __launch_bounds__(kThreads)
    find_starts(const std::int32_t* keys, int count, std::int32_t* starts, std::int64_t rows, std::int32_t* num_long) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row == 0) *num_long = 0;
  if (row > rows) return;
  int low = 0, high = count;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (keys[middle] < row)
      low = middle + 1;
    else
      high = middle;
  }
  starts[row] = low;
}

// ---- Device: the sums ----

/// Elements that a lane takes at once, 16 bytes of the wider type; 1 for rows that are no whole number of those.
template <typename T, typename R>
constexpr int kSumVector = 16 / static_cast<int>(sizeof(T) > sizeof(R) ? sizeof(T) : sizeof(R));

template <int N, typename T>
__device__ __forceinline__ void add_vector(const T* data, std::int64_t vector, float (&sum)[N]) {
  float v[N];
  if constexpr (N == 1)
    v[0] = to_f32(data[vector]);
  else
    widen(load_packed<N>(data, vector), v);
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] += v[i];
}

template <int N, typename R>
__device__ __forceinline__ void put_vector(R* data, std::int64_t vector, float (&sum)[N], bool accumulate) {
  if (accumulate) add_vector<N>(data, vector, sum);
  if constexpr (N == 1)
    data[vector] = from_f32<R>(sum[0]);
  else
    store_packed(data, vector, narrow<R>(sum));
}

/// What the sums are made of.
template <typename T, typename R>
struct Sum {
  const T* dy;
  R* dweight;
  const std::int32_t *places, *starts;
  std::int32_t *num_long, *long_rows;
  std::int64_t rows;
  int dim;
  bool accumulate;
  Divisor tiles;  // of a row, for long ones
};

// A warp for each row of the table.
template <int N, typename T, typename R>
__global__ void __launch_bounds__(kThreads) sum_short(const Sum<T, R> a) {
  constexpr int kEach = N == 8 ? 2 : 4;  // vectors of a lane at once
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const int lane = threadIdx.x % kWarp, begin = a.starts[row], end = a.starts[row + 1], vectors = a.dim / N;
  if (end - begin > kLong) {
    if (lane == 0) a.long_rows[atomicAdd(a.num_long, 1)] = static_cast<std::int32_t>(row);
    return;
  }
  if (begin == end && a.accumulate) return;
  for (int first = lane; first < vectors; first += kWarp * kEach) {
    float sum[kEach][N] = {};
#pragma unroll 2
    for (int at = begin; at < end; ++at) {
      const std::int64_t from = static_cast<std::int64_t>(a.places[at]) * vectors;
#pragma unroll
      for (int k = 0; k < kEach; ++k)
        if (first + k * kWarp < vectors) add_vector<N>(a.dy, from + first + k * kWarp, sum[k]);
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (first + k * kWarp < vectors)
        put_vector<N>(a.dweight, row * vectors + first + k * kWarp, sum[k], a.accumulate);
  }
}

// Blocks take (row, 32 vectors of columns) as they lie.
template <int N, typename T, typename R>
__global__ void __launch_bounds__(kLongThreads, 2) sum_long(const Sum<T, R> a) {
  __shared__ float parts[kSlices][N][kWarp];
  const int lane = threadIdx.x % kWarp, slice = threadIdx.x / kWarp, vectors = a.dim / N;
  const std::int64_t items = *a.num_long * a.tiles.by();
  for (std::int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Quotient of = a.tiles(item);
    const std::int64_t row = a.long_rows[of.whole];
    const int vector = static_cast<int>(of.rest) * kWarp + lane, begin = a.starts[row],
              count = a.starts[row + 1] - begin;
    const int each = (count + kSlices - 1) / kSlices, from = begin + min(count, slice * each),
              to = begin + min(count, (slice + 1) * each);
    float sum[N] = {};
    if (vector < vectors) {
#pragma unroll 8
      for (int at = from; at < to; ++at)
        add_vector<N>(a.dy, static_cast<std::int64_t>(a.places[at]) * vectors + vector, sum);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) parts[slice][i][lane] = sum[i];
    __syncthreads();
    if (slice == 0 && vector < vectors) {
      for (int other = 1; other < kSlices; ++other) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] += parts[other][i][lane];
      }
      put_vector<N>(a.dweight, row * vectors + vector, sum, a.accumulate);
    }
    __syncthreads();
  }
}

// ---- Host ----

struct Sizes {
  int count, dim, passes, units;
  std::int64_t rows, table_rows;
  bool cut, accumulate;
  Fault* fault;
};

/// Sorts; returns the sorted places. `words` is the workspace.
const std::int32_t* launch_sort(const Call& call, const Sizes& s, const EmbeddingGradWorkspace& at,
                                std::int32_t* words) {
  const Slice slice{s.rows, s.table_rows, s.cut ? call.origin : 0};
  const Grid tiles{.blocks = static_cast<unsigned>(at.tiles), .threads = kThreads};
  std::int32_t* const counts = words + at.counts;
  const auto keys = [&](int copy) { return words + copy * std::int64_t{s.count}; };
  const auto places = [&](int copy) { return words + (2 + copy) * std::int64_t{s.count}; };
  for (int pass = 0; pass < s.passes; ++pass) {
    const int to = pass % 2, from = 1 - to;
    const Source source{pass == 0 ? operand<std::int32_t>(call, 0) : nullptr, keys(from), places(from), s.count};
    launch(call, tiles, count_digits, source, slice, counts, 8 * pass, s.fault);
    launch(call, tiles, place_digits, source, slice, counts, static_cast<int>(at.tiles), keys(to), places(to),
           8 * pass);
  }
  const int last = (s.passes - 1) % 2;
  const Grid rows{.blocks = blocks_for(s.rows + 1, kThreads), .threads = kThreads};
  launch(call, rows, find_starts, keys(last), s.count, words + at.starts, s.rows, words + at.num_long);
  return places(last);
}

template <int N, typename T, typename R>
Prepared gradient_of(const Sizes& s) {
  const EmbeddingGradWorkspace at(s.count, s.rows);
  const Divisor tiles((s.dim / N + kWarp - 1) / kWarp);
  const Grid short_rows{.blocks = blocks_for(s.rows, kWarps), .threads = kThreads};
  const Grid long_rows{.blocks = static_cast<unsigned>(2 * s.units), .threads = kLongThreads};
  return make_kernel([=](const Call& call) {
    std::int32_t* const words = static_cast<std::int32_t*>(call.workspace);
    const std::int32_t* const places = launch_sort(call, s, at, words);
    const Sum<T, R> sum{operand<T>(call, 1),
                        operand<R>(call, 2),
                        places,
                        words + at.starts,
                        words + at.num_long,
                        words + at.long_rows,
                        s.rows,
                        s.dim,
                        s.accumulate,
                        tiles};
    launch(call, short_rows, sum_short<N, T, R>, sum);
    if (s.count > kLong) launch(call, long_rows, sum_long<N, T, R>, sum);
  });
}

}  // namespace

Prepared prepare_embedding_grad(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  const TensorDesc &ids = signature.operands[0], &dy = signature.operands[1], &dweight = signature.operands[2];
  const std::int64_t count = ids.elements(), rows = dweight.shape[0], dim = dweight.shape[1];
  CHECK(count > 0 && count < std::int64_t{1} << 30 && rows < std::int64_t{1} << 30,
        describe(signature) + ": ids and rows are counted in 32 bits");
  expect_operand(signature, 0, DType::i32, count);
  expect_operand(signature, 1, dy.dtype, count * dim);
  const bool cut = flag(signature, "cut");
  const Sizes sizes{
      .count = static_cast<int>(count),
      .dim = static_cast<int>(dim),
      .passes = (static_cast<int>(std::bit_width(static_cast<std::uint64_t>(rows))) + 7) / 8,  // keys are 0 to rows
      .units = context.units,
      .rows = rows,
      .table_rows = cut ? integer(signature, "table_rows") : rows,
      .cut = cut,
      .accumulate = accumulates(signature),
      .fault = context.fault};
  const DType reduce = expect_reduce_dtype(signature, 2);
  return with_type(expect_compute_dtype(signature, 1), [&]<typename T>(T) {
    return with_reduce_type(reduce, [&]<typename R>(R) {
      return dim % kSumVector<T, R> == 0 ? gradient_of<kSumVector<T, R>, T, R>(sizes) : gradient_of<1, T, R>(sizes);
    });
  });
}

}  // namespace trainer::kernels::cuda
