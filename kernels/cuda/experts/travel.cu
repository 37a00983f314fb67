// Rows on their way to the ranks that have their experts, and back. expert_slots: a block of threads has a part of the
// experts, and walks the choices in their order, as many at a time as it has threads; what a thread's choice comes
// behind is a prefix sum. dispatch and combine: a block of threads has a row.
#include "engine/core/op_record.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/device.cuh"
#include "kernels/experts.h"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

// TravelSizes, as numbers that a kernel takes.
struct Travel {
  std::int64_t parts, rows, k, columns, choices, slots;
  Divisor tokens;
  std::int64_t together;  // choices for each row of x or y
  std::int64_t of_block;  // rows of x or y
  explicit Travel(const TravelSizes& z)
      : parts(z.parts),
        rows(z.rows),
        k(z.k),
        columns(z.columns),
        choices(z.choices()),
        slots(z.slots()),
        tokens(z.tokens),
        together(z.by_choice ? 1 : z.k),
        of_block(z.local_rows() / z.blocks) {}
};

// ---- Device ----

// How many threads before this one say yes, and in `total` how many of all.
__device__ int before_me(bool yes, int* counts, int& total) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const unsigned votes = __ballot_sync(0xffffffffU, yes);
  if (lane == 0) counts[warp] = __popc(votes);
  __syncthreads();
  int before = __popc(votes & ((1U << lane) - 1U));
  total = 0;
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) before += counts[i];
    total += counts[i];
  }
  __syncthreads();
  return before;
}

__global__ void __launch_bounds__(kThreads)
    expert_slots(Travel z, Divisor of_part, const std::int32_t* choices, std::int32_t* slots, std::int32_t* sources,
                 std::int32_t* numbers) {
  __shared__ int counts[kWarps];
  const std::int64_t part = blockIdx.x, block = blockIdx.y;
  choices += block * z.choices;
  slots += block * z.choices;
  sources += (block * z.parts + part) * z.rows;
  numbers += (block * z.parts + part) * z.rows;
  std::int64_t taken = 0;
  for (std::int64_t first = 0; first < z.choices; first += kThreads) {
    const std::int64_t place = first + threadIdx.x;  // by choice j, then by token
    const Quotient of = z.tokens(place);
    const std::int64_t choice = place < z.choices ? of.rest * z.k + of.whole : 0;
    const std::int32_t expert = place < z.choices ? choices[choice] : -1;
    const Quotient home = of_part(max(expert, 0));
    const bool mine = expert >= 0 && home.whole == part;
    if (part == 0 && place < z.choices && expert < 0) slots[choice] = -1;
    int total = 0;
    const std::int64_t row = taken + before_me(mine, counts, total);
    taken += total;
    if (!mine) continue;
    slots[choice] = row < z.rows ? static_cast<std::int32_t>(part * z.rows + row) : -1;
    if (row >= z.rows) continue;
    sources[row] = static_cast<std::int32_t>(choice);
    numbers[row] = static_cast<std::int32_t>(home.rest);
  }
  for (std::int64_t row = taken + threadIdx.x; row < z.rows; row += kThreads) sources[row] = numbers[row] = -1;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) dispatch(Travel z, const T* x, const std::int32_t* sources, T* rows) {
  const std::int64_t slot = blockIdx.x, source = sources[slot];
  const std::int64_t from = slot / z.slots * z.of_block + source / z.together;
  for (std::int64_t i = threadIdx.x; i < z.columns; i += kThreads)
    rows[slot * z.columns + i] = source < 0 ? from_f32<T>(0) : x[from * z.columns + i];
}

template <typename T>
__global__ void __launch_bounds__(kThreads) combine(Travel z, const T* rows, const std::int32_t* slots, T* y) {
  const std::int64_t row = blockIdx.x;
  const T* const block = rows + row / z.of_block * z.slots * z.columns;
  for (std::int64_t i = threadIdx.x; i < z.columns; i += kThreads) {
    float sum = 0;
    for (std::int64_t j = 0; j < z.together; ++j) {
      const std::int64_t slot = slots[row * z.together + j];
      if (slot >= 0) sum += to_f32(block[slot * z.columns + i]);
    }
    y[row * z.columns + i] = from_f32<T>(sum);
  }
}

// ---- Host ----

Grid block_for_each(std::int64_t rows) { return {.blocks = static_cast<unsigned>(rows), .threads = kThreads}; }

}  // namespace

Prepared prepare_expert_slots(const Signature& s, const Context&) {
  const TravelSizes z = travel_sizes(s);
  const Travel travel(z);
  const Divisor of_part(integer(s, "experts") / z.parts);
  const Grid grid{.blocks = dim3(static_cast<unsigned>(z.parts), static_cast<unsigned>(z.blocks)), .threads = kThreads};
  return make_kernel([=](const Call& call) {
    launch(call, grid, expert_slots, travel, of_part, operand<std::int32_t>(call, 0), operand<std::int32_t>(call, 1),
           operand<std::int32_t>(call, 2), operand<std::int32_t>(call, 3));
  });
}

Prepared prepare_dispatch(const Signature& s, const Context&) {
  const TravelSizes z = travel_sizes(s);
  const Travel travel(z);
  const Grid grid = block_for_each(z.blocks * z.slots());
  return with_type(expect_compute_dtype(s, 0), [&]<typename T>(T) -> Prepared {
    return make_kernel([=](const Call& call) {
      launch(call, grid, dispatch<T>, travel, operand<T>(call, 0), operand<std::int32_t>(call, 2), operand<T>(call, 3));
    });
  });
}

Prepared prepare_combine(const Signature& s, const Context&) {
  const TravelSizes z = travel_sizes(s);
  const Travel travel(z);
  const Grid grid = block_for_each(z.local_rows());
  return with_type(expect_compute_dtype(s, 0), [&]<typename T>(T) -> Prepared {
    return make_kernel([=](const Call& call) {
      launch(call, grid, combine<T>, travel, operand<T>(call, 0), operand<std::int32_t>(call, 1), operand<T>(call, 3));
    });
  });
}

}  // namespace trainer::kernels::cuda
