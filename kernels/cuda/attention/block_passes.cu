// The passes of a ring's blocks: RoPE by zigzag positions, and sums in f32 of what pairs of chunks gave. All are bound
// by memory and small beside the products.
#include "kernels/cuda/attention/block.h"
#include "kernels/cuda/attention/head.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 128;

/// The position of row `row` of a part.
__device__ __forceinline__ int position_of(const ZigzagRows& part, int row) {
  const int chunk = part.rows / 2;
  return row < chunk ? part.rank * chunk + row : (2 * part.ranks - 2 - part.rank) * chunk + row;
}

/// The pair of an element of a head, and whether it is the pair's second; -1: it does not turn.
struct Turned {
  int pair;
  bool second;
};
__device__ __forceinline__ Turned turned_of(const Rotation& rotation, int element) {
  if (element >= 2 * rotation.half) return {-1, false};
  if (rotation.interleaved) return {element / 2, element % 2 == 1};
  return {element % rotation.half, element >= rotation.half};
}

// A block has a token. `sign`: 1 turns, -1 turns back.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    turn(const From* from, const float* before, To* to, ZigzagRows part, const Rotation rotation, float sign) {
  const std::int64_t token = blockIdx.x;
  const int position = position_of(part, static_cast<int>(token % part.rows)), width = part.heads * part.dim;
  const From* const x = from + token * width;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    const int element = i % part.dim, head = i - element;
    const Turned at = turned_of(rotation, element);
    float value = to_f32(x[i]);
    if (at.pair >= 0) {
      const CosSin angle = angle_at(rotation, position, at.pair);
      const int other = at.second ? first_of_pair(rotation, at.pair) : second_of_pair(rotation, at.pair);
      value = value * angle.cos + (at.second ? sign : -sign) * to_f32(x[head + other]) * angle.sin;
    }
    const std::int64_t place = token * width + i;
    to[place] = from_f32<To>(before == nullptr ? value : before[place] + value);
  }
}

__global__ void __launch_bounds__(kThreads) fill(float* to, float value, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) to[i] = value;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) add(const T* from, float* to, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) to[i] += to_f32(from[i]);
}

__global__ void __launch_bounds__(kThreads) columns(const float* from, float* to, PairRows pair) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<std::int64_t>(pair.heads) * pair.count) return;
  to[i] = from[i / pair.count * pair.rows + pair.first + i % pair.count];
}

// A warp has a head of a row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    join(const T* o_new, const float* lse_new, float* o, float* lse, PairRows pair) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (item >= static_cast<std::int64_t>(pair.heads) * pair.count) return;
  const int row = static_cast<int>(item / pair.heads), head = static_cast<int>(item % pair.heads);
  const std::int64_t sum_at = static_cast<std::int64_t>(head) * pair.rows + pair.first + row;
  const float before = lse[sum_at], now = lse_new[static_cast<std::int64_t>(head) * pair.count + row],
              top = fmaxf(before, now), of_before = expf(before - top), of_now = expf(now - top),
              sum = of_before + of_now;
  float* const to = o + (static_cast<std::int64_t>(pair.first + row) * pair.heads + head) * pair.dim;
  const T* const added = o_new + (static_cast<std::int64_t>(row) * pair.heads + head) * pair.dim;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < pair.dim; i += kWarp)
    to[i] = (of_before * to[i] + of_now * to_f32(added[i])) / sum;
  __syncwarp();
  if (threadIdx.x % kWarp == 0) lse[sum_at] = top + logf(sum);
}

unsigned blocks_of(std::int64_t count) { return blocks_for(count, kThreads); }

}  // namespace

void turn_part(const Call& call, DType dtype, const ZigzagRows& part, const Rotation& rotation, const void* from,
               void* to) {
  with_type(dtype, [&]<typename T>(T) {
    launch(call, {.blocks = static_cast<unsigned>(part.batch * part.rows), .threads = kThreads}, turn<T, T>,
           static_cast<const T*>(from), static_cast<const float*>(nullptr), static_cast<T*>(to), part, rotation, 1.0F);
  });
}

void finish_part(const Call& call, DType dtype, const ZigzagRows& part, const Rotation& rotation, const float* sum,
                 const float* before, void* to) {
  with_type(dtype, [&]<typename T>(T) {
    launch(call, {.blocks = static_cast<unsigned>(part.batch * part.rows), .threads = kThreads}, turn<float, T>, sum,
           before, static_cast<T*>(to), part, rotation, -1.0F);
  });
}

void fill_part(const Call& call, float* to, float value, std::int64_t count) {
  launch(call, {.blocks = blocks_of(count), .threads = kThreads}, fill, to, value, count);
}

void join_pair(const Call& call, DType dtype, const PairRows& pair, const void* o_new, const float* lse_new, float* o,
               float* lse) {
  with_type(dtype, [&]<typename T>(T) {
    const std::int64_t items = static_cast<std::int64_t>(pair.heads) * pair.count;
    launch(call, {.blocks = blocks_for(items, kThreads / kWarp), .threads = kThreads}, join<T>,
           static_cast<const T*>(o_new), lse_new, o, lse, pair);
  });
}

void take_columns(const Call& call, const PairRows& pair, const float* from, float* to) {
  launch(call, {.blocks = blocks_of(static_cast<std::int64_t>(pair.heads) * pair.count), .threads = kThreads}, columns,
         from, to, pair);
}

void add_pair(const Call& call, DType dtype, const void* from, std::int64_t count, float* to) {
  with_type(dtype, [&]<typename T>(T) {
    launch(call, {.blocks = blocks_of(count), .threads = kThreads}, add<T>, static_cast<const T*>(from), to, count);
  });
}

}  // namespace trainer::kernels::cuda
