// Gradients of layer_norm and rms_norm. Bound by memory: dy, x and residual are read once, dx is written once; bytes of
// [rows, dim] in c: 3 (dy, x, dx), with `residual` 4.
//
// Blocks stay for many rows and sum dweight and dbias of their rows in registers; a second pass joins the blocks' sums
// in order (column_sums.cuh). A row is that of a group of threads, one to four vectors for each; several groups make a
// block. Rows to come are copied into shared memory three deep (long ones two; one less where the device has too little
// for that), so that 64 KB of a multiprocessor are on their way without costing registers. Where the parameters are
// frozen (`weight: false`) nothing is summed over rows, and there is no second pass.
#include <algorithm>

#include "engine/core/op_record.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/reduction/column_sums.cuh"
#include "kernels/cuda/runtime/mma.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kMostThreads = 512, kMostWarps = kMostThreads / kWarp, kAnyThreads = 256;

/// How deep rows are copied at most, and whether their residual is: 144 KB of a block, of which some devices have 99.
/// One stage less always fits.
constexpr int most_stages(int vecs) { return vecs == 4 ? 2 : 3; }
constexpr bool copies_residual(int vecs) { return vecs < 4; }

template <typename T>
struct NormGrad {
  const T *dy, *x, *weight, *residual;  // residual may be null
  const float *mean, *rstd;             // mean: null for rms_norm
  T* dx;
  float* partials;  // [blocks, 1 or 2 (with dbias), dim]; null where the parameters are frozen
  int rows, dim, row_threads;
  bool bias;
  float offset;  // on weights
};

// ---- Device ----

struct Sums {
  float g, gn;  // of dy · weight, and of that times n
};
using Between = Sums[2][kMostWarps];  // what group_sums needs

__device__ __forceinline__ Sums warp_sums(Sums s) { return {warp_sum(s.g), warp_sum(s.gn)}; }

/// Over the warps of each group; `shared` [2][kMostWarps], of which one half is written while the other may still be
/// read.
__device__ __forceinline__ Sums group_sums(Sums s, int group_warps, Sums* shared) {
  s = warp_sums(s);
  if (group_warps == 1) return s;
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x % kWarp == 0) shared[warp] = s;
  __syncthreads();
  Sums total{0, 0};
  const int first = warp / group_warps * group_warps;
  for (int i = 0; i < group_warps; ++i) {
    total.g += shared[first + i].g;
    total.gn += shared[first + i].gn;
  }
  return total;
}

/// What a block has of a column of dweight and dbias, over its groups in order, to its part. `held` has room for a row
/// of each group.
template <int Vecs, int N>
__device__ __forceinline__ void put_part(const float (&value)[Vecs][N], float* held, float* part, int dim,
                                         int row_threads) {
  const int group = threadIdx.x / row_threads, rank = threadIdx.x % row_threads, groups = blockDim.x / row_threads;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < Vecs; ++k) {
    const int column = (rank + k * row_threads) * N;
    if (column >= dim) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) held[group * dim + column + i] = value[k][i];
  }
  __syncthreads();
  for (int column = threadIdx.x; column < dim; column += blockDim.x) {
    float sum = 0;
    for (int other = 0; other < groups; ++other) sum += held[other * dim + column];
    part[column] = sum;
  }
}

template <typename T, int Vecs, int kStages, bool Frozen>
__global__ void __launch_bounds__(kMostThreads, Vecs == 1 ? 2 : 1) norm_grad(const NormGrad<T> a) {
  constexpr int kN = kVector<T>;
  using Vector = Packed<T, kN>;
  Between& between = *dynamic_shared<Between>();
  char* const after = dynamic_shared<char>() + sizeof(Between);
  const int threads = blockDim.x, group = threadIdx.x / a.row_threads, rank = threadIdx.x % a.row_threads,
            groups = threads / a.row_threads;
  const int vectors = a.dim / kN, streams = copies_residual(Vecs) && a.residual != nullptr ? 3 : 2;
  const float scale = 1.0F / static_cast<float>(a.dim);
  Vector* const ring = reinterpret_cast<Vector*>(after);  // [kStages, streams, Vecs, threads]
  const auto slot = [&](int stage, int stream, int k) {
    return ring + ((stage * streams + stream) * Vecs + k) * threads + threadIdx.x;
  };
  const int step = static_cast<int>(gridDim.x) * groups;

  const auto fetch = [&](int row, int stage) {
    if (row < a.rows) {
#pragma unroll
      for (int k = 0; k < Vecs; ++k) {
        const int vector = rank + k * a.row_threads;
        if (vector >= vectors) continue;
        const std::int64_t at = (static_cast<std::int64_t>(row) * vectors + vector) * kN;
        copy_async(slot(stage, 0, k), a.dy + at, true);
        copy_async(slot(stage, 1, k), a.x + at, true);
        if (streams == 3) copy_async(slot(stage, 2, k), a.residual + at, true);
      }
    }
    commit_copies();
  };

  // A thread's weights, kept where there are registers for them.
  constexpr int kKept = Vecs <= 2 ? Vecs : 1;
  Vector kept[kKept] = {};
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if (rank + k * a.row_threads < vectors) kept[k] = load_packed<kN>(a.weight, rank + k * a.row_threads);
  const auto weight = [&](int k) { return k < kKept ? kept[k] : load_packed<kN>(a.weight, rank + k * a.row_threads); };

  float dweight[Vecs][kN] = {}, dbias[Vecs][kN] = {};
  const int first = static_cast<int>(blockIdx.x) * groups;
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(first + group + stage * step, stage);

  // All groups of a block take as many turns: they meet at a barrier in each.
  for (int turn = first, stage = 0, parity = 0; turn < a.rows; turn += step, parity ^= 1) {
    const int row = turn + group;
    fetch(row + (kStages - 1) * step, stage == 0 ? kStages - 1 : stage - 1);
    wait_for_copies<kStages - 1>();
    const bool there = row < a.rows;
    const float mean = there && a.mean != nullptr ? a.mean[row] : 0.0F, rstd = there ? a.rstd[row] : 0.0F;
    Sums sums{0, 0};
#pragma unroll
    for (int k = 0; k < Vecs; ++k) {
      if (!there || rank + k * a.row_threads >= vectors) continue;
      float dy[kN], x[kN], w[kN];
      widen(*slot(stage, 0, k), dy);
      widen(*slot(stage, 1, k), x);
      widen(weight(k), w);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const float n = (x[i] - mean) * rstd, g = dy[i] * (w[i] + a.offset);
        sums.g += g;
        sums.gn += g * n;
        if constexpr (!Frozen) {
          dweight[k][i] += dy[i] * n;
          dbias[k][i] += dy[i];
        }
      }
    }
    sums = group_sums(sums, a.row_threads / kWarp, between[parity]);
    const float mean_g = a.mean != nullptr ? sums.g * scale : 0.0F, mean_gn = sums.gn * scale;
#pragma unroll
    for (int k = 0; k < Vecs; ++k) {
      const int vector = rank + k * a.row_threads;
      if (!there || vector >= vectors) continue;
      float dy[kN], x[kN], w[kN], r[kN] = {};
      widen(*slot(stage, 0, k), dy);
      widen(*slot(stage, 1, k), x);
      widen(weight(k), w);
      if (streams == 3)
        widen(*slot(stage, 2, k), r);
      else if (!copies_residual(Vecs) && a.residual != nullptr)
        widen(load_packed<kN>(a.residual, static_cast<std::int64_t>(row) * vectors + vector), r);
#pragma unroll
      for (int i = 0; i < kN; ++i)
        dy[i] = rstd * (dy[i] * (w[i] + a.offset) - mean_g - (x[i] - mean) * rstd * mean_gn) + r[i];
      store_packed(a.dx, static_cast<std::int64_t>(row) * vectors + vector, narrow<T>(dy));
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  wait_for_copies<0>();
  if constexpr (Frozen) return;
  float* const part = a.partials + static_cast<std::int64_t>(blockIdx.x) * (a.bias ? 2 : 1) * a.dim;
  float* const held = reinterpret_cast<float*>(after);
  put_part(dweight, held, part, a.dim, a.row_threads);
  if (a.bias) put_part(dbias, held, part + a.dim, a.dim, a.row_threads);
}

// Rows of any length, a block for each, element by element; a thread has its columns' sums in its block's part.
template <typename T>
__global__ void __launch_bounds__(kAnyThreads) norm_grad_any(const NormGrad<T> a) {
  __shared__ Between between;
  const float scale = 1.0F / static_cast<float>(a.dim);
  const bool frozen = a.partials == nullptr;
  float* const part = frozen ? nullptr : a.partials + static_cast<std::int64_t>(blockIdx.x) * (a.bias ? 2 : 1) * a.dim;
  for (int i = threadIdx.x; i < a.dim && !frozen; i += kAnyThreads) {
    part[i] = 0;
    if (a.bias) part[a.dim + i] = 0;
  }
  int parity = 0;
  for (int row = static_cast<int>(blockIdx.x); row < a.rows; row += gridDim.x, parity ^= 1) {
    const std::int64_t first = static_cast<std::int64_t>(row) * a.dim;
    const float mean = a.mean != nullptr ? a.mean[row] : 0.0F, rstd = a.rstd[row];
    Sums sums{0, 0};
    for (int i = threadIdx.x; i < a.dim; i += kAnyThreads) {
      const float dy = to_f32(a.dy[first + i]), n = (to_f32(a.x[first + i]) - mean) * rstd,
                  g = dy * (to_f32(a.weight[i]) + a.offset);
      sums.g += g;
      sums.gn += g * n;
      if (!frozen) part[i] += dy * n;
      if (a.bias) part[a.dim + i] += dy;
    }
    sums = group_sums(sums, kAnyThreads / kWarp, between[parity]);
    const float mean_g = a.mean != nullptr ? sums.g * scale : 0.0F, mean_gn = sums.gn * scale;
    for (int i = threadIdx.x; i < a.dim; i += kAnyThreads) {
      const float n = (to_f32(a.x[first + i]) - mean) * rstd,
                  g = to_f32(a.dy[first + i]) * (to_f32(a.weight[i]) + a.offset);
      a.dx[first + i] = from_f32<T>(rstd * (g - mean_g - n * mean_gn) +
                                    (a.residual != nullptr ? to_f32(a.residual[first + i]) : 0.0F));
    }
  }
}

// ---- Host ----

struct Places {
  int rstd, residual, dx, dweight, dbias;
};

struct Size {
  int rows, dim;
  float offset;
};

struct Launch {
  Grid grid;
  int row_threads = 0, vecs = 0;  // 0: rows of any length
  int stages = 0;
};

template <typename T>
Launch launch_of(const Size& shape, bool residual, const Context& context) {
  const int vectors = shape.dim / kVector<T>, units = context.units;
  const int vecs = vectors <= kMostThreads ? 1 : vectors <= 2 * kMostThreads ? 2 : 4;
  const auto blocks = [&](std::int64_t most, std::int64_t groups) {
    return static_cast<unsigned>(std::clamp<std::int64_t>((shape.rows + groups - 1) / groups, 1, most));
  };
  if (!in_vectors<T>(shape.dim) || vectors > 4 * kMostThreads)
    return {.grid = {.blocks = blocks(2 * units, 1), .threads = kAnyThreads}};
  const int row_threads = ((vectors + vecs - 1) / vecs + kWarp - 1) / kWarp * kWarp,
            groups = kMostThreads / row_threads;
  const int threads = groups * row_threads;
  const std::size_t held = sizeof(float) * static_cast<std::size_t>(groups * shape.dim);
  const auto bytes_with = [&](int stages) {
    const int streams = residual && copies_residual(vecs) ? 3 : 2;
    return sizeof(Between) +
           std::max(std::size_t{16} * static_cast<std::size_t>(stages * streams * vecs * threads), held);
  };
  int stages = most_stages(vecs);
  if (bytes_with(stages) > context.shared_bytes) --stages;
  return {.grid = {.blocks = blocks(vecs == 1 ? 2 * units : units, groups),
                   .threads = static_cast<unsigned>(threads),
                   .shared_bytes = bytes_with(stages)},
          .row_threads = row_threads,
          .vecs = vecs,
          .stages = stages};
}

template <typename T, int Vecs, bool Frozen>
auto with_stages(int stages) {
  constexpr int kMost = most_stages(Vecs);
  return stages == kMost ? norm_grad<T, Vecs, kMost, Frozen> : norm_grad<T, Vecs, kMost - 1, Frozen>;
}

template <typename T, bool Frozen>
auto kernel_of(const Launch& how) {
  return how.vecs == 0   ? norm_grad_any<T>
         : how.vecs == 1 ? with_stages<T, 1, Frozen>(how.stages)
         : how.vecs == 2 ? with_stages<T, 2, Frozen>(how.stages)
                         : with_stages<T, 4, Frozen>(how.stages);
}

/// What is asked for in addition to dx.
struct Wanted {
  bool weight, bias, accumulate;
};

template <typename T, typename R>
Prepared gradient_of(const Size& shape, const Places& at, bool residual, bool centred, Wanted wanted,
                     const Context& context) {
  const Launch how = launch_of<T>(shape, residual, context);
  const auto kernel = wanted.weight ? kernel_of<T, false>(how) : kernel_of<T, true>(how);
  const bool bias = wanted.bias;
  allow_shared(kernel, how.grid.shared_bytes);
  return make_kernel([=](const Call& call) {
    NormGrad<T> now{};
    now.dy = operand<T>(call, 0);
    now.x = operand<T>(call, 1);
    now.weight = operand<T>(call, 2);
    now.mean = centred ? operand<float>(call, 3) : nullptr;
    now.rstd = operand<float>(call, at.rstd);
    now.residual = residual ? operand<T>(call, at.residual) : nullptr;
    now.dx = operand<T>(call, at.dx);
    now.partials = wanted.weight ? static_cast<float*>(call.workspace) : nullptr;
    now.rows = shape.rows;
    now.dim = shape.dim;
    now.row_threads = how.row_threads;
    now.bias = bias;
    now.offset = shape.offset;
    launch(call, how.grid, kernel, now);
    if (!wanted.weight) return;
    launch_join<R>(call, now.partials, operand<R>(call, at.dweight), bias ? operand<R>(call, at.dbias) : nullptr,
                   static_cast<int>(how.grid.blocks.x), std::int64_t{bias ? 2 : 1} * shape.dim, shape.dim,
                   wanted.accumulate);
  });
}

Prepared prepare_gradient(const Signature& signature, const Context& context, bool centred, bool bias) {
  const bool residual = flag(signature, "residual");
  const Wanted wanted{flag(signature, "weight"), bias, accumulates(signature)};
  Places at;
  at.rstd = centred ? 4 : 3;
  at.residual = at.rstd + 1;
  at.dx = residual ? at.rstd + 2 : at.rstd + 1;
  at.dweight = at.dx + 1;
  at.dbias = at.dx + 2;
  expect_operands(signature, static_cast<std::size_t>(bias ? at.dbias + 1 : wanted.weight ? at.dbias : at.dweight));
  const TensorDesc& x = signature.operands[1];
  CHECK(x.shape.rows() < std::int64_t{1} << 30 && x.shape[-1] < std::int64_t{1} << 30,
        describe(signature) + ": rows and elements of a row are counted in 32 bits");
  const Size shape{static_cast<int>(x.shape.rows()), static_cast<int>(x.shape[-1]),
                   centred ? 0.0F : static_cast<float>(integer(signature, "offset"))};
  expect_alike(signature, {0, 1, at.dx});
  if (residual) expect_alike(signature, {0, at.residual});
  expect_operand(signature, 2, x.dtype, shape.dim);
  for (int i = 3; i <= at.rstd; ++i) expect_operand(signature, i, DType::f32, shape.rows);
  const DType reduce = wanted.weight ? expect_reduce_dtype(signature, at.dweight) : DType::f32;
  for (int i = at.dweight; i < static_cast<int>(signature.operands.size()); ++i)
    expect_operand(signature, i, reduce, shape.dim);
  return with_type(expect_compute_dtype(signature, 1), [&]<typename T>(T) {
    return with_reduce_type(
        reduce, [&]<typename R>(R) { return gradient_of<T, R>(shape, at, residual, centred, wanted, context); });
  });
}

}  // namespace

Prepared prepare_layer_norm_grad(const Signature& signature, const Context& context) {
  return prepare_gradient(signature, context, true, flag(signature, "bias"));
}
Prepared prepare_rms_norm_grad(const Signature& signature, const Context& context) {
  return prepare_gradient(signature, context, false, false);
}

}  // namespace trainer::kernels::cuda
