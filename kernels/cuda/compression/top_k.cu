// top_k_compress and top_k_sum.
//
// The k largest are found by radix selection on the 31 bits of |a|: three passes count digits of 11, 10 and 10 bits,
// each among the elements that share the digits chosen before, and leave the key of the k-th largest and how many of
// its equals are wanted. A fourth counts by chunks what lies above and at that key, so that the fifth writes every pair
// where its place in ascending order is. Counts are whole numbers: their sums, by atomics too, have no order. Of an f32
// gradient, 28 bytes are moved for each element (12 by the first pass).
#include <algorithm>
#include <limits>

#include "engine/core/compression.h"
#include "engine/core/op_record.h"
#include "kernels/compression.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kN = kVector<float>;
constexpr int kChunk = kThreads * kN;  // target.cpp counts chunks of as many
constexpr int kFirstBits = 11, kNextBits = 10, kBins = 1 << kFirstBits;
constexpr unsigned kInfinity = 0x7F800000;
static_assert(kChunk == 1024);

/// What the passes hand on: at the head of the workspace, with a histogram for each digit and a count for each chunk
/// after it.
struct Selection {
  unsigned prefix;  ///< the digits chosen so far: in the end the key of the k-th largest
  unsigned
      rank;  ///< of the one sought among those with that prefix, from 1: in the end how many of the equals are wanted
  unsigned unused[14];
  unsigned histogram[3][kBins];
};
constexpr int kSelectionWords = sizeof(Selection) / sizeof(unsigned);

// ---- Device ----

__device__ __forceinline__ unsigned key_of(float x) { return __float_as_uint(x) & 0x7FFFFFFFU; }

__global__ void __launch_bounds__(kThreads) begin_selection(Selection* s, unsigned k) {
  for (int i = static_cast<int>(threadIdx.x); i < kSelectionWords; i += kThreads) reinterpret_cast<unsigned*>(s)[i] = 0;
  __syncthreads();
  if (threadIdx.x == 0) s->rank = k;
}

/// Vector `at` of four elements, fewer at the end: use(i, x[i]) for each.
template <typename Use>
__device__ __forceinline__ void for_each_of(const float* x, std::int64_t at, std::int64_t count, Use use) {
  if (at * kN + kN <= count) {
    const Vec<float, kN> v = load<kN>(x, at);
#pragma unroll
    for (int i = 0; i < kN; ++i) use(i, v[i]);
  } else {
    for (std::int64_t i = at * kN; i < count; ++i) use(static_cast<int>(i - at * kN), x[i]);
  }
}

/// The histogram of this block, added to that of all.
class Histogram {
 public:
  __device__ explicit Histogram(unsigned* shared) : bins_(shared) {
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) bins_[i] = 0;
    __syncthreads();
  }
  __device__ void count(unsigned digit) { atomicAdd(&bins_[digit], 1U); }
  __device__ void add_to(unsigned* all) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads)
      if (bins_[i] != 0) atomicAdd(&all[i], bins_[i]);
  }

 private:
  unsigned* bins_;
};

// residual += gradient, and the first digits of it.
template <typename G>
__global__ void __launch_bounds__(kThreads)
    add_and_count(const G* gradient, float* residual, std::int64_t count, Selection* s) {
  __shared__ unsigned bins[kBins];
  Histogram histogram(bins);
  const std::int64_t vectors = (count + kN - 1) / kN, step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < vectors; at += step) {
    if (at * kN + kN <= count) {
      const Vec<G, kN> g = load<kN>(gradient, at);
      Vec<float, kN> a = load<kN>(residual, at);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        a[i] += to_f32(g[i]);
        histogram.count(key_of(a[i]) >> (2 * kNextBits));
      }
      store(residual, at, a);
    } else {
      for (std::int64_t i = at * kN; i < count; ++i) {
        const float a = residual[i] + to_f32(gradient[i]);
        residual[i] = a;
        histogram.count(key_of(a) >> (2 * kNextBits));
      }
    }
  }
  histogram.add_to(s->histogram[0]);
}

// Digit `level` (1 or 2) of those elements whose digits before are the prefix.
__global__ void __launch_bounds__(kThreads) count_digit(const float* a, std::int64_t count, int level, Selection* s) {
  __shared__ unsigned bins[kBins];
  Histogram histogram(bins);
  const int shift = kNextBits * (2 - level);
  const unsigned prefix = s->prefix;
  const std::int64_t vectors = (count + kN - 1) / kN, step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < vectors; at += step)
    for_each_of(a, at, count, [&](int, float x) {
      const unsigned key = key_of(x) >> shift;
      if (key >> kNextBits == prefix) histogram.count(key & ((1U << kNextBits) - 1));
    });
  histogram.add_to(s->histogram[level]);
}

/// The sum of `value` over the threads before this one, and over all.
template <typename T>
struct Scan {
  T before, total;
};
template <int Threads, typename T>
__device__ __forceinline__ Scan<T> scan_block(T value, T* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  T sum = value;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const T other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == kWarp - 1) shared[warp] = sum;
  __syncthreads();
  T before = 0, total = 0;
#pragma unroll
  for (int w = 0; w < Threads / kWarp; ++w) {
    before += w < warp ? shared[w] : T{0};
    total += shared[w];
  }
  __syncthreads();
  return {before + sum - value, total};
}

// The digit of the one sought: bins from the largest down, some of them a thread.
__global__ void __launch_bounds__(kThreads) choose_digit(int level, Selection* s) {
  constexpr int kEach = kBins / kThreads;
  __shared__ unsigned shared[kWarps];
  const int bits = level == 0 ? kFirstBits : kNextBits, bins = 1 << bits, each = bins / kThreads;
  const unsigned rank = s->rank, prefix = s->prefix;
  unsigned counts[kEach], mine = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    counts[i] = i < each ? s->histogram[level][bins - 1 - (static_cast<int>(threadIdx.x) * each + i)] : 0;
    mine += counts[i];
  }
  unsigned before = scan_block<kThreads>(mine, shared).before;
  if (before >= rank || before + mine < rank) return;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (before < rank && before + counts[i] >= rank) {
      s->prefix = prefix << bits | static_cast<unsigned>(bins - 1 - (static_cast<int>(threadIdx.x) * each + i));
      s->rank = rank - before;
    }
    before += counts[i];
  }
}

/// How many lie above the threshold (high half) and at it (low half).
using Counts = unsigned long long;
__device__ __forceinline__ Counts counts_of(float x, unsigned threshold) {
  const unsigned key = key_of(x);
  return (static_cast<Counts>(key > threshold) << 32) + static_cast<Counts>(key == threshold);
}
__device__ __forceinline__ unsigned above(Counts c) { return static_cast<unsigned>(c >> 32); }
__device__ __forceinline__ unsigned at_threshold(Counts c) { return static_cast<unsigned>(c); }

__global__ void __launch_bounds__(kThreads)
    count_chunk(const float* a, std::int64_t count, const Selection* s, Counts* chunks) {
  __shared__ Counts shared[kWarps];
  const unsigned threshold = s->prefix;
  Counts mine = 0;
  for_each_of(a, static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x, count,
              [&](int, float x) { mine += counts_of(x, threshold); });
  const Counts total = scan_block<kThreads>(mine, shared).total;
  if (threadIdx.x == 0) chunks[blockIdx.x] = total;
}

constexpr int kScanThreads = 1024;

// chunks[i] = the sum of those before it, and the sum of all after the last.
__global__ void __launch_bounds__(kScanThreads) scan_chunks(Counts* chunks, int count) {
  __shared__ Counts shared[kScanThreads / kWarp];
  Counts before = 0;
  for (int first = 0; first < count; first += kScanThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const Scan<Counts> sum = scan_block<kScanThreads>(i < count ? chunks[i] : Counts{0}, shared);
    if (i < count) chunks[i] = before + sum.before;
    before += sum.total;
  }
  if (threadIdx.x == 0) chunks[count] = before;
}

// A chunk's pairs at their places. Of the equals, those of lower index come first. What is sent leaves the residual; so
// does what is not finite, all of which is sent where it fits.
__global__ void __launch_bounds__(kThreads) hand_out(float* a, std::int64_t count, const Selection* s,
                                                     const Counts* chunks, std::int32_t* index, float* value) {
  __shared__ Counts shared[kWarps];
  const unsigned threshold = s->prefix, ties = s->rank;
  const Counts start = chunks[blockIdx.x], end = chunks[blockIdx.x + 1];
  const bool poisoned = threshold >= kInfinity;  // some that are not finite may stay behind
  if (!poisoned && above(end) == above(start) &&
      (at_threshold(end) == at_threshold(start) || at_threshold(start) >= ties))
    return;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  Counts mine = 0;
  for_each_of(a, at, count, [&](int, float x) { mine += counts_of(x, threshold); });
  Counts place = start + scan_block<kThreads>(mine, shared).before;
  for_each_of(a, at, count, [&](int i, float x) {
    const Counts here = counts_of(x, threshold);
    const std::int64_t element = at * kN + i;
    if (above(here) != 0 || (at_threshold(here) != 0 && at_threshold(place) < ties)) {
      const unsigned to = above(place) + min(at_threshold(place), ties);
      index[to] = static_cast<std::int32_t>(element);
      value[to] = x;
      a[element] = 0;
    } else if (poisoned && key_of(x) >= kInfinity) {
      a[element] = 0;
    }
    place += here;
  });
}

// Zeros after the indices and after the values, up to 64 bytes.
__global__ void pad_pairs(std::int32_t* index, float* value, int k, int padding) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < padding) index[k + i] = 0, value[k + i] = 0;
}

// ---- Device: the sum of pairs ----

constexpr int kTile = 4096;  // elements of y that a block has
constexpr int kRanksAtOnce = kWarps;

/// The first of index[0, count), which ascend, that is not below `bound`: a warp together, 32 probes at a time.
__device__ __forceinline__ int lower_bound(const std::int32_t* index, int count, std::int64_t bound) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int low = 0, high = count;
  while (high - low > kWarp) {
    const auto probe = [&](int i) {
      return low + static_cast<int>(static_cast<std::int64_t>(high - low) * (i + 1) / (kWarp + 1));
    };
    const int below = __popc(__ballot_sync(kAllLanes, index[probe(lane)] < bound));
    const int next_low = below == 0 ? low : probe(below - 1) + 1;
    high = below == kWarp ? high : probe(below);
    low = next_low;
  }
  const bool is_below = low + lane < high && index[low + lane] < bound;
  return low + __popc(__ballot_sync(kAllLanes, is_below));
}

template <typename Y>
__global__ void __launch_bounds__(kThreads) sum_pairs(const unsigned char* pairs, int k, std::int64_t values_offset,
                                                      std::int64_t rank_bytes, int ranks, Y* y, std::int64_t count) {
  __shared__ float sum[kTile];
  __shared__ int bounds[kRanksAtOnce][2];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTile,
                     last = first + kTile < count ? first + kTile : count;
  for (int i = static_cast<int>(threadIdx.x); i < kTile; i += kThreads) sum[i] = 0;
  for (int from = 0; from < ranks; from += kRanksAtOnce) {
    __syncthreads();
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    if (from + warp < ranks) {
      const auto* const index = reinterpret_cast<const std::int32_t*>(pairs + (from + warp) * rank_bytes);
      const int begin = lower_bound(index, k, first), end = lower_bound(index, k, last);
      if (threadIdx.x % kWarp == 0) bounds[warp][0] = begin, bounds[warp][1] = end;
    }
    __syncthreads();
    for (int rank = from; rank < ranks && rank < from + kRanksAtOnce; ++rank) {
      const auto* const index = reinterpret_cast<const std::int32_t*>(pairs + rank * rank_bytes);
      const auto* const value = reinterpret_cast<const float*>(pairs + rank * rank_bytes + values_offset);
      for (int j = bounds[rank - from][0] + static_cast<int>(threadIdx.x); j < bounds[rank - from][1]; j += kThreads)
        sum[index[j] - first] += value[j];  // a rank has an index once
      __syncthreads();
    }
  }
  for (int i = static_cast<int>(threadIdx.x) * kN; i < last - first; i += kThreads * kN) {
    if (first + i + kN <= last) {
      Vec<Y, kN> v;
#pragma unroll
      for (int j = 0; j < kN; ++j) v[j] = from_f32<Y>(sum[i + j]);
      store(y + first + i, 0, v);
    } else {
      for (int j = i; first + j < last; ++j) y[first + j] = from_f32<Y>(sum[j]);
    }
  }
}

// ---- Host ----

template <typename G>
Prepared compress_kernel(const Signature& signature, int units) {
  const std::int64_t count = signature.operands[0].elements(), k = integer(signature, "k");
  const unsigned chunks = blocks_for(count, kChunk), blocks = std::min(chunks, static_cast<unsigned>(4 * units));
  const int padding = static_cast<int>(top_k_values_offset(k) / 4 - k);
  return make_kernel([=](const Call& call) {
    const G* const gradient = operand<G>(call, 0);
    float* const residual = operand<float>(call, 1);
    auto* const index = operand<std::int32_t>(call, 2);
    auto* const value = reinterpret_cast<float*>(operand<char>(call, 2) + top_k_values_offset(k));
    auto* const selection = static_cast<Selection*>(call.workspace);
    auto* const counts = reinterpret_cast<Counts*>(selection + 1);
    const Grid one{.blocks = 1, .threads = kThreads}, passes{.blocks = blocks, .threads = kThreads},
        by_chunk{.blocks = chunks, .threads = kThreads};
    launch(call, one, begin_selection, selection, static_cast<unsigned>(k));
    launch(call, passes, add_and_count<G>, gradient, residual, count, selection);
    launch(call, one, choose_digit, 0, selection);
    for (int level = 1; level <= 2; ++level) {
      launch(call, passes, count_digit, residual, count, level, selection);
      launch(call, one, choose_digit, level, selection);
    }
    launch(call, by_chunk, count_chunk, residual, count, selection, counts);
    launch(call, {.blocks = 1, .threads = kScanThreads}, scan_chunks, counts, static_cast<int>(chunks));
    launch(call, by_chunk, hand_out, residual, count, selection, counts, index, value);
    if (padding > 0)
      launch(call, {.blocks = 1, .threads = kWarp}, pad_pairs, index, value, static_cast<int>(k), padding);
  });
}

template <typename Y>
Prepared sum_kernel(const Signature& signature) {
  const std::int64_t count = signature.operands[1].elements(), k = integer(signature, "k"),
                     ranks = integer(signature, "ranks");
  return make_kernel([=](const Call& call) {
    launch(call, {.blocks = blocks_for(count, kTile), .threads = kThreads}, sum_pairs<Y>,
           operand<unsigned char>(call, 0), static_cast<int>(k), top_k_values_offset(k), top_k_bytes(k),
           static_cast<int>(ranks), operand<Y>(call, 1), count);
  });
}

DType expect_gradient(const Signature& signature, int index) {
  const DType r = signature.operands[static_cast<std::size_t>(index)].dtype;
  if (r != DType::f32 && r != DType::bf16) refuse_dtypes(signature, "f32 or bf16 gradients");
  return r;
}

}  // namespace

Prepared prepare_top_k_compress(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  const DType r = expect_gradient(signature, 0);
  const std::int64_t count = signature.operands[0].elements(), k = integer(signature, "k");
  CHECK(1 <= k && k <= count && count <= std::numeric_limits<std::int32_t>::max(),
        describe(signature) + ": k must be from 1 to the number of elements");
  expect_operand(signature, 1, DType::f32, count);
  expect_operand(signature, 2, DType::u8, top_k_bytes(k));
  return r == DType::bf16 ? compress_kernel<bf16>(signature, context.units)
                          : compress_kernel<float>(signature, context.units);
}

Prepared prepare_top_k_sum(const Signature& signature, const Context&) {
  expect_operands(signature, 2);
  const DType r = expect_gradient(signature, 1);
  const std::int64_t k = integer(signature, "k"), ranks = integer(signature, "ranks");
  CHECK(1 <= k && k <= std::numeric_limits<std::int32_t>::max() && ranks >= 1,
        describe(signature) + ": pairs of at least one rank");
  expect_operand(signature, 0, DType::u8, ranks * top_k_bytes(k));
  return r == DType::bf16 ? sum_kernel<bf16>(signature) : sum_kernel<float>(signature);
}

}  // namespace trainer::kernels::cuda
