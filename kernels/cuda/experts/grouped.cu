// expert_linear and its gradients. Choices are sorted by expert, then every tile of 64 × 64 results is a block's:
//
//   count, begin, place   a block for each expert walks the choices: first how many are its own, then, behind those of
//   the experts
//                         before it, which; in order, so that results do not depend on timing
//   products of rows      a tile has rows of one expert. y = x·Wᵀ and dx = dy·W; rows of a token's choices are
//                         summed in a pass of their own, in f32
//   products of weights   dW[e] = dyᵀ·x over the rows of e, in their order
//
// 16-bit operands go through tensor cores (mma.cuh), f32 ones through FMAs. Tiles are loaded element by element without
// copies ahead, so this is well below what a tuned grouped product reaches.
#include "engine/core/op_record.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/mma.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 128, kTile = static_cast<int>(kExpertTile), kDepth = 32, kPad = 8;
constexpr int kSortThreads = 256;

// ---- Device: the sort ----

struct Sorted {
  std::int32_t *begin, *order, *place, *tiles;
  float* rows;
};

__global__ void __launch_bounds__(kSortThreads)
    count_choices(const std::int32_t* choices, std::int32_t count, std::int32_t* begin) {
  __shared__ int shared[kSortThreads / kWarp];
  const auto expert = static_cast<std::int32_t>(blockIdx.x);
  int mine = 0;
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < count; i += kSortThreads)
    mine += choices[i] == expert ? 1 : 0;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) mine += __shfl_xor_sync(kAllLanes, mine, step);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  int sum = 0;
  for (int warp = 0; warp < kSortThreads / kWarp; ++warp) sum += shared[warp];
  begin[expert + 1] = sum;
}

/// Sums of the counts, and the table of tiles. One thread: as many steps as there are experts and tiles.
__global__ void begin_groups(std::int32_t experts, std::int32_t most_tiles, std::int32_t* begin, std::int32_t* tiles) {
  std::int32_t tile = 0;
  begin[0] = 0;
  for (std::int32_t e = 0; e < experts; ++e) {
    const std::int32_t first = begin[e], end = first + begin[e + 1];
    begin[e + 1] = end;
    for (std::int32_t row = first; row < end; row += kTile, ++tile) {
      tiles[2 * tile] = e;
      tiles[2 * tile + 1] = row;
    }
  }
  for (; tile < most_tiles; ++tile) tiles[2 * tile] = -1;
}

__global__ void __launch_bounds__(kSortThreads)
    place_choices(const std::int32_t* choices, std::int32_t count, const std::int32_t* begin, std::int32_t* order,
                  std::int32_t* place) {
  __shared__ int shared[kSortThreads / kWarp];
  const auto expert = static_cast<std::int32_t>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  std::int32_t next = begin[expert];
  for (std::int32_t first = 0; first < count; first += kSortThreads) {
    const std::int32_t i = first + static_cast<std::int32_t>(threadIdx.x);
    const std::int32_t choice = i < count ? choices[i] : -2;
    if (expert == 0 && choice == -1) place[i] = -1;
    int before = choice == expert ? 1 : 0;  // with this one
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, before, step);
      if (lane >= step) before += other;
    }
    __syncthreads();
    if (lane == kWarp - 1) shared[warp] = before;
    __syncthreads();
    int all = 0;
    for (int other = 0; other < kSortThreads / kWarp; ++other) {
      if (other < warp) before += shared[other];
      all += shared[other];
    }
    if (choice == expert) {
      place[i] = next + before - 1;
      order[next + before - 1] = i;
    }
    next += all;
  }
}

// ---- Device: a tile of a product ----

/// C [64, 64] = A [64, depth] · B [64, depth]ᵀ of a block of 128 threads. a(row, k) and b(row, k) give elements, 0
/// outside. A thread loads neighbours in k where `by_k`, else in rows: as they lie in memory.
template <typename T>
struct Tile {
  T a[kTile][kDepth + kPad], b[kTile][kDepth + kPad];
};

template <bool ByK, typename T, typename Load>
__device__ __forceinline__ void load_tile(T (&to)[kTile][kDepth + kPad], int k, const Load& from) {
#pragma unroll
  for (int i = 0; i < kTile * kDepth / kThreads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = ByK ? at / kDepth : at % kTile, column = ByK ? at % kDepth : at / kTile;
    to[row][column] = from(row, k + column);
  }
}

/// visit(row, column, sum) for the elements of this thread.
template <bool ByKa, bool ByKb, typename T, typename LoadA, typename LoadB, typename Visit>
__device__ __forceinline__ void multiply(Tile<T>& tile, int depth, const LoadA& a, const LoadB& b, const Visit& visit) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  if constexpr (sizeof(T) == 2) {  // each warp 32 × 32: 2 × 4 fragments
    FragmentC sums[2][4] = {};
    const int first_row = warp / 2 * 32, first_column = warp % 2 * 32, g = lane / 4, t = lane % 4;
    const auto pair = [](const T* at) {
      unsigned bits;
      memcpy(&bits, at, sizeof bits);
      return bits;
    };
    for (int k = 0; k < depth; k += kDepth) {
      __syncthreads();
      load_tile<ByKa>(tile.a, k, a);
      load_tile<ByKb>(tile.b, k, b);
      __syncthreads();
#pragma unroll
      for (int step = 0; step < kDepth; step += 16) {
        FragmentA left[2];
        FragmentB right[4];
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            left[m].at[i] = pair(&tile.a[first_row + 16 * m + g + 8 * (i % 2)][step + 2 * t + 8 * (i / 2)]);
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) right[n].at[i] = pair(&tile.b[first_column + 8 * n + g][step + 2 * t + 8 * i]);
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int n = 0; n < 4; ++n) mma<T>(sums[m][n], left[m], right[n]);
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          visit(first_row + 16 * m + row_in_c(lane, i), first_column + 8 * n + column_in_c(lane, i), sums[m][n].at[i]);
  } else {  // each thread rows y + 8 i and columns x + 16 j
    float sums[8][4] = {};
    const int y = thread / 16, x = thread % 16;
    for (int k = 0; k < depth; k += kDepth) {
      __syncthreads();
      load_tile<ByKa>(tile.a, k, a);
      load_tile<ByKb>(tile.b, k, b);
      __syncthreads();
#pragma unroll 4
      for (int at = 0; at < kDepth; ++at)
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(tile.a[y + 8 * i][at], tile.b[x + 16 * j][at], sums[i][j]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) visit(y + 8 * i, x + 16 * j, sums[i][j]);
  }
}

/// What the products of rows share. `depth` and `columns` are those of the product: in and out, or the other way round.
struct Rows {
  Sorted sorted;
  std::int32_t k, depth, columns;
  bool from_by_choice, to_by_choice;
};

/// The row of `from` that sorted row `row` reads.
__device__ __forceinline__ std::int64_t source_of(const std::int32_t* order, std::int32_t row, std::int32_t k,
                                                  bool by_choice) {
  return by_choice ? order[row] : order[row] / k;
}

/// Transposed: the weight [experts, columns, depth] as it lies, else [experts, depth, columns].
template <typename T, bool Transposed>
__global__ void __launch_bounds__(kThreads) products_of_rows(Rows p, const T* from, const T* weight, T* to) {
  __shared__ Tile<T> tile;
  const std::int32_t expert = p.sorted.tiles[2 * blockIdx.y], first_row = p.sorted.tiles[2 * blockIdx.y + 1];
  if (expert < 0) return;
  const int rows = p.sorted.begin[expert + 1] - first_row, first_column = static_cast<int>(blockIdx.x) * kTile;
  const T* const matrix = weight + static_cast<std::int64_t>(expert) * p.depth * p.columns;
  multiply<true, Transposed>(
      tile, p.depth,
      [&](int row, int k) {
        if (row >= rows || k >= p.depth) return from_f32<T>(0);
        return from[source_of(p.sorted.order, first_row + row, p.k, p.from_by_choice) * p.depth + k];
      },
      [&](int row, int k) {
        const std::int64_t column = first_column + row;
        if (column >= p.columns || k >= p.depth) return from_f32<T>(0);
        return Transposed ? matrix[column * p.depth + k] : matrix[static_cast<std::int64_t>(k) * p.columns + column];
      },
      [&](int row, int column, float sum) {
        if (row >= rows || first_column + column >= p.columns) return;
        const std::int64_t at = first_row + row;
        if (p.to_by_choice)
          to[static_cast<std::int64_t>(p.sorted.order[at]) * p.columns + first_column + column] = from_f32<T>(sum);
        else
          p.sorted.rows[at * p.columns + first_column + column] = sum;
      });
}

/// Rows of choices that are none.
template <typename T>
__global__ void __launch_bounds__(kSortThreads)
    clear_rows(const std::int32_t* place, std::int64_t elements, Divisor columns, T* to) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSortThreads + threadIdx.x;
  if (i < elements && place[columns(i).whole] < 0) to[i] = from_f32<T>(0);
}

template <typename T>
__global__ void __launch_bounds__(kSortThreads) sum_rows(Rows p, Divisor columns, std::int64_t elements, T* to) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSortThreads + threadIdx.x;
  if (i >= elements) return;
  const auto [token, column] = columns(i);
  float sum = 0;
  for (std::int32_t j = 0; j < p.k; ++j) {
    const std::int64_t row = p.sorted.place[token * p.k + j];
    if (row >= 0) sum += p.sorted.rows[row * p.columns + column];
  }
  to[i] = from_f32<T>(sum);
}

struct Weights {
  Sorted sorted;
  std::int32_t k, in, out;
  bool x_by_choice, y_by_choice, accumulate;
};

template <typename T, typename R>
__global__ void __launch_bounds__(kThreads) products_of_weights(Weights p, const T* x, const T* dy, R* dweight) {
  __shared__ Tile<T> tile;
  const int expert = static_cast<int>(blockIdx.z), first_out = static_cast<int>(blockIdx.y) * kTile,
            first_in = static_cast<int>(blockIdx.x) * kTile;
  const std::int32_t begin = p.sorted.begin[expert], rows = p.sorted.begin[expert + 1] - begin;
  if (rows == 0 && p.accumulate) return;
  R* const to = dweight + static_cast<std::int64_t>(expert) * p.out * p.in;
  multiply<false, false>(
      tile, rows,
      [&](int row, int k) {
        if (k >= rows || first_out + row >= p.out) return from_f32<T>(0);
        return dy[source_of(p.sorted.order, begin + k, p.k, p.y_by_choice) * p.out + first_out + row];
      },
      [&](int row, int k) {
        if (k >= rows || first_in + row >= p.in) return from_f32<T>(0);
        return x[source_of(p.sorted.order, begin + k, p.k, p.x_by_choice) * p.in + first_in + row];
      },
      [&](int row, int column, float sum) {
        if (first_out + row >= p.out || first_in + column >= p.in) return;
        R& at = to[static_cast<std::int64_t>(first_out + row) * p.in + first_in + column];
        at = from_f32<R>(p.accumulate ? to_f32(at) + sum : sum);
      });
}

// ---- Host ----

Sorted sorted_in(void* workspace, const ExpertWorkspace& at) {
  auto* const base = static_cast<std::byte*>(workspace);
  const auto ints = [&](std::int64_t offset) { return reinterpret_cast<std::int32_t*>(base + offset); };
  return {ints(at.begin), ints(at.order), ints(at.place), ints(at.tiles), reinterpret_cast<float*>(base + at.rows)};
}

void sort(const Call& call, const ExpertSizes& s, const ExpertWorkspace& at, const std::int32_t* choices,
          const Sorted& sorted) {
  const Grid for_each_expert{.blocks = static_cast<unsigned>(s.experts), .threads = kSortThreads};
  const auto count = static_cast<std::int32_t>(s.choices());
  launch(call, for_each_expert, count_choices, choices, count, sorted.begin);
  launch(call, {.blocks = 1, .threads = 1}, begin_groups, static_cast<std::int32_t>(s.experts),
         static_cast<std::int32_t>(at.most_tiles), sorted.begin, sorted.tiles);
  launch(call, for_each_expert, place_choices, choices, count, sorted.begin, sorted.order, sorted.place);
}

ExpertSizes checked_sizes(const Signature& signature) {
  const ExpertSizes s = expert_sizes(signature);
  CHECK(s.choices() < (std::int64_t{1} << 31) && s.in < (1 << 30) && s.out < (1 << 30) && s.experts < 65536,
        describe(signature) + ": larger than its kernels take");
  return s;
}

template <typename T>
Prepared row_products(const Signature& signature) {
  const ExpertSizes s = checked_sizes(signature);
  const bool forward = signature.op == Op::expert_linear;
  Rows p{.sorted = {},
         .k = static_cast<std::int32_t>(s.k),
         .depth = static_cast<std::int32_t>(forward ? s.in : s.out),
         .columns = static_cast<std::int32_t>(forward ? s.out : s.in),
         .from_by_choice = forward ? s.x_by_choice : s.y_by_choice,
         .to_by_choice = forward ? s.y_by_choice : s.x_by_choice};
  const ExpertWorkspace at(s, p.to_by_choice ? 0 : p.columns);
  const Divisor columns(p.columns);
  return make_kernel([=](const Call& call) {
    Rows now = p;
    now.sorted = sorted_in(call.workspace, at);
    T* const to = operand<T>(call, 3);
    sort(call, s, at, operand<std::int32_t>(call, 1), now.sorted);
    const Grid grid{.blocks = dim3(blocks_for(p.columns, kTile), static_cast<unsigned>(at.most_tiles)),
                    .threads = kThreads};
    const auto products = forward ? products_of_rows<T, true> : products_of_rows<T, false>;
    launch(call, grid, products, now, operand<T>(call, 0), operand<T>(call, 2), to);
    const std::int64_t elements = (p.to_by_choice ? s.choices() : s.tokens) * p.columns;
    const Grid of_elements{.blocks = blocks_for(elements, kSortThreads), .threads = kSortThreads};
    if (p.to_by_choice)
      launch(call, of_elements, clear_rows<T>, now.sorted.place, elements, columns, to);
    else
      launch(call, of_elements, sum_rows<T>, now, columns, elements, to);
  });
}

Prepared prepare_rows(const Signature& signature) {
  for (const std::size_t i : {2U, 3U})
    if (signature.operands[i].dtype != signature.operands[0].dtype) refuse_dtypes(signature, "one compute dtype");
  return with_type(expect_compute_dtype(signature, 0),
                   [&]<typename T>(T) -> Prepared { return row_products<T>(signature); });
}

}  // namespace

Prepared prepare_expert_linear(const Signature& signature, const Context&) { return prepare_rows(signature); }

Prepared prepare_expert_linear_grad_input(const Signature& signature, const Context&) {
  return prepare_rows(signature);
}

Prepared prepare_expert_linear_grad_weight(const Signature& signature, const Context&) {
  const ExpertSizes s = checked_sizes(signature);
  const ExpertWorkspace at(s, 0);
  const Weights p{.sorted = {},
                  .k = static_cast<std::int32_t>(s.k),
                  .in = static_cast<std::int32_t>(s.in),
                  .out = static_cast<std::int32_t>(s.out),
                  .x_by_choice = s.x_by_choice,
                  .y_by_choice = s.y_by_choice,
                  .accumulate = accumulates(signature)};
  if (signature.operands[1].dtype != signature.operands[0].dtype)
    refuse_dtypes(signature, "one compute dtype for x and dy");
  const DType result = signature.operands[3].dtype;
  const Grid grid{.blocks = dim3(blocks_for(s.in, kTile), blocks_for(s.out, kTile), static_cast<unsigned>(s.experts)),
                  .threads = kThreads};
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    const auto run = [=]<typename R>(const Call& call, R*) {
      Weights now = p;
      now.sorted = sorted_in(call.workspace, at);
      sort(call, s, at, operand<std::int32_t>(call, 2), now.sorted);
      launch(call, grid, products_of_weights<T, R>, now, operand<T>(call, 0), operand<T>(call, 1), operand<R>(call, 3));
    };
    switch (result) {
      case DType::f32:
        return make_kernel([=](const Call& call) { run(call, static_cast<float*>(nullptr)); });
      case DType::bf16:
        return make_kernel([=](const Call& call) { run(call, static_cast<bf16*>(nullptr)); });
      default:
        refuse_dtypes(signature, "f32 or bf16 for gradients of parameters");
    }
  });
}

}  // namespace trainer::kernels::cuda
