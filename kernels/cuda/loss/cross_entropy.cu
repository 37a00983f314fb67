// cross_entropy, its gradient, both at once, correct_count, and the statistics of classes cut over ranks: a block for
// each row of logits, which is read once. Rows of 50,257 classes begin anywhere, so that a row is taken as what stands
// before the first 16-byte boundary, whole vectors, and the rest. Bound by memory: bytes of [rows, classes] in c: 1
// (logits), of the gradient 2 (logits, dlogits); four vectors of a thread are on their way at once, 64 KB of a
// multiprocessor.
//
// Loss and gradient at once: the gradient needs the sum over the whole row, and so reads the row a second time. Each
// thread keeps its vectors in shared memory on the way, as many as there is room for, and reads the others again (from
// L2, which holds the rows that are being worked on). 50,257 classes of 16 bits are 98 KiB: two blocks of 512 threads a
// multiprocessor on sm_90, one on sm_80, sm_86 and sm_89. Bytes: 2 where the two kernels move 3.
//
// The sum of exponentials is made as the logits come, by (largest so far, sum relative to it) of each thread, joined at
// the end (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018). A thread rescales where a vector
// has a new largest, which is rare. Exponentials of 16-bit logits are exp2_fast (mma.cuh), of f32 ones expf: x −
// largest is rounded once, so a term e^−d has the relative error (2 + 1.2 d) 2^-23, and their sum less than 2^-21. Sums
// over columns are f32, of rows f64.
#include <algorithm>
#include <cfloat>

#include "engine/core/op_record.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/loss/loss_sums.cuh"
#include "kernels/cuda/runtime/fault.cuh"
#include "kernels/cuda/runtime/mma.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kEach = 4;  // vectors of a thread at once
constexpr int kThreadsHolding = 512;      // of a block that keeps its row, since few such fit a multiprocessor
constexpr int kStats = 5;

/// Logits [rows, columns], of which the first `present` columns are the classes from `first` on of `classes`.
template <typename T>
struct Rows {
  const T* logits;
  const std::int32_t* targets;
  int columns, present, first, classes, ignore_index;
  float smoothing;
  Fault* fault;
};

// ---- Device ----

template <typename T>
__device__ __forceinline__ float exp_of(float x) {
  if constexpr (sizeof(T) == 2)
    return exp2_fast(x * 1.4426950408889634F);
  else
    return expf(x);
}

/// Of a row: elements before the first whole vector, and whole vectors.
struct Cut {
  int head, vectors;
};
template <typename T>
__device__ __forceinline__ Cut cut_of(const T* row, int columns) {
  constexpr int kN = kVector<T>;
  const int past = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) / sizeof(T) % kN);
  const int head = min(past == 0 ? 0 : kN - past, columns);
  return {head, (columns - head) / kN};
}

/// Calls whole(packed, vector, column) for the vectors of the body, which load(body, vector) gives, and single(x,
/// column) for the other elements of a row that fall to this thread of `Threads`, columns rising.
template <int Threads, typename T, typename Load, typename Whole, typename Single>
__device__ __forceinline__ void each_of_row(const T* row, int columns, Load&& load, Whole&& whole, Single&& single) {
  constexpr int kN = kVector<T>;
  const Cut cut = cut_of(row, columns);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < cut.head) single(to_f32(row[thread]), thread);
  const T* const body = row + cut.head;
  for (int at = thread; at < cut.vectors; at += Threads * kEach) {
    Packed<T, kN> packed[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (at + k * Threads < cut.vectors) packed[k] = load(body, at + k * Threads);
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (const int vector = at + k * Threads; vector < cut.vectors) whole(packed[k], vector, cut.head + vector * kN);
  }
  const int tail = cut.head + cut.vectors * kN + thread;
  if (tail < columns) single(to_f32(row[tail]), tail);
}

/// The load of a row that lies in memory.
struct FromMemory {
  template <typename T>
  __device__ __forceinline__ Packed<T, kVector<T>> operator()(const T* body, int vector) const {
    return load_packed<kVector<T>>(body, vector);
  }
};

template <int N>
__device__ __forceinline__ float largest_of(const float (&v)[N]) {
  float m[N];
#pragma unroll
  for (int i = 0; i < N; ++i) m[i] = v[i];
#pragma unroll
  for (int step = N / 2; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < step; ++i) m[i] = fmaxf(m[i], m[i + step]);
  return m[0];
}
template <int N>
__device__ __forceinline__ float sum_of(const float (&v)[N]) {
  float s[N];
#pragma unroll
  for (int i = 0; i < N; ++i) s[i] = v[i];
#pragma unroll
  for (int step = N / 2; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < step; ++i) s[i] += s[i + step];
  return s[0];
}

/// What a thread knows of its elements so far. A NaN is passed by in `largest` and makes both sums NaN.
struct Softmax {
  float largest = -FLT_MAX, exponentials = 0, plain = 0;
  int at = -1;  ///< the column of the largest, the first of equals
};

template <typename T, bool Plain, int N>
__device__ __forceinline__ void add(Softmax& s, const float (&v)[N], int column) {
  const float most = largest_of(v);
  if (most > s.largest) {
    s.exponentials *= exp_of<T>(s.largest - most);
    s.largest = most;
    if constexpr (Plain) {
      s.at = column;
#pragma unroll
      for (int i = N - 1; i >= 0; --i)
        if (v[i] == most) s.at = column + i;
    }
  }
  float e[N];
#pragma unroll
  for (int i = 0; i < N; ++i) e[i] = exp_of<T>(v[i] - s.largest);
  s.exponentials += sum_of(e);
  if constexpr (Plain) s.plain += sum_of(v);
}

/// What the warps of a block tell each other, in shared memory.
template <int Threads>
struct Between {
  float largest[Threads / kWarp], exponentials[Threads / kWarp], plain[Threads / kWarp], place[Threads / kWarp];
};

/// Of the whole row, in every thread. Plain: also the sum of the logits, and where the largest is (-1: nowhere).
/// Calls keep(packed, vector) for the thread's vectors.
template <bool Plain, int Threads, typename T, typename Keep>
__device__ __forceinline__ Softmax softmax_of(const T* row, int columns, Between<Threads>& between, Keep&& keep) {
  Softmax mine;
  each_of_row<Threads>(
      row, columns, FromMemory(),
      [&](const auto& packed, int vector, int column) {
        float v[kVector<T>];
        widen(packed, v);
        add<T, Plain>(mine, v, column);
        keep(packed, vector);
      },
      [&](float x, int column) {
        const float one[1] = {x};
        add<T, Plain>(mine, one, column);
      });
  Softmax all;
  all.largest = block_max<Threads>(mine.largest, between.largest);
  all.exponentials =
      block_sum<Threads>(mine.exponentials * exp_of<T>(mine.largest - all.largest), between.exponentials);
  if constexpr (Plain) {
    all.plain = block_sum<Threads>(mine.plain, between.plain);
    // Columns are exact in f32 (loss.h); the first is the largest of their negatives.
    const bool has = mine.at >= 0 && mine.largest == all.largest;
    const float first = -block_max<Threads>(has ? -static_cast<float>(mine.at) : -FLT_MAX, between.place);
    all.at = first == FLT_MAX ? -1 : static_cast<int>(first);
  }
  return all;
}
template <bool Plain, typename T>
__device__ __forceinline__ Softmax softmax_of(const T* row, int columns) {
  __shared__ Between<kThreads> between;
  return softmax_of<Plain>(row, columns, between, [](const auto&, int) {});
}

/// What a row's target is, with a report if it is not a class.
struct Target {
  int id;
  bool counts, wrong;
};
template <typename T>
__device__ __forceinline__ Target target_of(const Rows<T>& a, std::int64_t row) {
  const int id = a.targets[row];
  const bool counts = id != a.ignore_index, wrong = counts && (id < 0 || id >= a.classes);
  if (wrong && threadIdx.x == 0) report(a.fault, Fault::target, id, row, a.classes);
  return {id, counts, wrong};
}

__device__ __forceinline__ double lse_of(const Softmax& all) {
  return static_cast<double>(all.largest) + static_cast<double>(logf(all.exponentials));
}

/// Of a row; at_target, the target's logit, is read only where the target counts.
template <typename T>
__device__ __forceinline__ double loss_of(const Rows<T>& a, Target target, const Softmax& all, float at_target) {
  if (target.wrong) return NAN;
  if (!target.counts) return 0;
  const double lse = lse_of(all), plain = (1.0 - a.smoothing) * (lse - at_target);
  return a.smoothing == 0 ? plain : plain + a.smoothing * (lse - static_cast<double>(all.plain) / a.classes);
}

template <typename T, bool Smooth>
__global__ void __launch_bounds__(kThreads) cross_entropy(const Rows<T> a, double* losses, float* lse) {
  const std::int64_t row = blockIdx.x;
  const T* const x = a.logits + row * a.columns;
  const Target target = target_of(a, row);
  const Softmax all = softmax_of<Smooth>(x, a.columns);
  if (threadIdx.x != 0) return;
  lse[row] = static_cast<float>(lse_of(all));
  losses[row] = loss_of(a, target, all, target.counts && !target.wrong ? to_f32(x[target.id]) : 0.0F);
}

/// Writes the gradient of a row whose sum of exponentials is e^of_row. `dx` may be `x`: a thread has read what it
/// overwrites.
template <int Threads, typename T, typename Load>
__device__ __forceinline__ void put_gradient(const Rows<T>& a, Target target, const T* x, Load&& load, float of_row,
                                             float scale, T* dx) {
  constexpr int kN = kVector<T>;
  const Cut cut = cut_of(x, a.columns);
  const float even = a.smoothing / static_cast<float>(a.classes), hit = 1.0F - a.smoothing;
  const int present = target.counts ? a.present : 0, here = target.id - a.first;
  const auto slope = [&](float logit, int column) {
    if (target.wrong) return NAN;
    if (column >= present) return 0.0F;
    return scale * (exp_of<T>(logit - of_row) - even - (column == here ? hit : 0.0F));
  };
  const auto put_vector = [&](const Packed<T, kN>& packed, int vector, int column) {
    float v[kN];
    widen(packed, v);
    // Nearly all vectors have neither the target nor a column that is absent.
    if (column + kN <= present && static_cast<unsigned>(here - column) >= static_cast<unsigned>(kN) && !target.wrong) {
#pragma unroll
      for (int i = 0; i < kN; ++i) v[i] = scale * (exp_of<T>(v[i] - of_row) - even);
    } else {
#pragma unroll
      for (int i = 0; i < kN; ++i) v[i] = slope(v[i], column + i);
    }
    store_packed(dx + cut.head, vector, narrow<T>(v));
  };
  const auto put = [&](float logit, int column) { dx[column] = from_f32<T>(slope(logit, column)); };
  each_of_row<Threads>(x, a.columns, load, put_vector, put);
}

// dlogits may be the logits.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_grad(const Rows<T> a, const float* lse, const float* seeds, int rows_of_seed, T* dlogits) {
  const std::int64_t row = blockIdx.x, at = row * a.columns;
  const Target target = target_of(a, row);
  put_gradient<kThreads>(a, target, a.logits + at, FromMemory(), lse[row], seeds[row / rows_of_seed], dlogits + at);
}

// dlogits may be the logits. The first `held` vectors of a row stay in shared memory behind Between: a thread finds
// there what it has put there itself.
template <typename T, bool Smooth>
__global__ void __launch_bounds__(kThreadsHolding, 2)
    cross_entropy_and_grad(const Rows<T> a, const float* seed, double* losses, T* dlogits, int held) {
  constexpr int kN = kVector<T>;
  auto& between = *dynamic_shared<Between<kThreadsHolding>>();
  auto* const kept = reinterpret_cast<Packed<T, kN>*>(dynamic_shared<Between<kThreadsHolding>>() + 1);
  const std::int64_t row = blockIdx.x;
  const T* const x = a.logits + row * a.columns;
  const Target target = target_of(a, row);
  const float at_target = target.counts && !target.wrong ? to_f32(x[target.id]) : 0.0F;  // before it is overwritten
  const Softmax all = softmax_of<Smooth>(x, a.columns, between, [&](const Packed<T, kN>& packed, int vector) {
    if (vector < held) kept[vector] = packed;
  });
  if (threadIdx.x == 0) losses[row] = loss_of(a, target, all, at_target);
  const auto load = [&](const T* body, int vector) {
    return vector < held ? kept[vector] : load_packed<kN>(body, vector);
  };
  put_gradient<kThreadsHolding>(a, target, x, load, static_cast<float>(lse_of(all)), *seed, dlogits + row * a.columns);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) correct(const Rows<T> a, double* right) {
  const std::int64_t row = blockIdx.x;
  const T* const x = a.logits + row * a.columns;
  const Target target = target_of(a, row);
  if (!target.counts || target.wrong) {
    if (threadIdx.x == 0) right[row] = target.wrong ? static_cast<double>(NAN) : 0.0;
    return;
  }
  const float at_target = to_f32(x[target.id]);
  bool beaten = false;  // by a larger one, an equal one before it, a NaN
  const auto look = [&](float logit, int column) {
    beaten = beaten || !(logit < at_target || (logit == at_target && column >= target.id));
  };
  each_of_row<kThreads>(
      x, a.columns, FromMemory(),
      [&](const auto& packed, int, int column) {
        float v[kVector<T>];
        widen(packed, v);
#pragma unroll
        for (int i = 0; i < kVector<T>; ++i) look(v[i], column + i);
      },
      look);
  beaten = __syncthreads_or(beaten);
  if (threadIdx.x == 0) right[row] = beaten ? 0.0 : 1.0;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) statistics(const Rows<T> a, float* stats) {
  const std::int64_t row = blockIdx.x;
  const T* const x = a.logits + row * a.columns;
  const Target target = target_of(a, row);
  const Softmax all = softmax_of<true>(x, a.present);
  if (threadIdx.x != 0) return;
  const int here = target.id - a.first;
  const bool is_here = target.counts && here >= 0 && here < a.present;
  float* const to = stats + row * kStats;
  to[0] = all.at < 0 ? -INFINITY : all.largest;
  to[1] = all.exponentials;
  to[2] = target.wrong ? NAN : is_here ? to_f32(x[here]) : 0.0F;
  to[3] = all.plain;
  to[4] = all.plain != all.plain ? NAN : all.at < 0 ? -1.0F : static_cast<float>(a.first + all.at);
}

// ---- Host ----

/// What the kernels over rows of logits share.
struct Shared {
  std::int64_t rows = 0, columns = 0, classes = 0, ignore_index = 0;
  float smoothing = 0;
  bool cut = false;  ///< the columns are those of the classes from Call::origin on
  Fault* fault = nullptr;

  Grid grid() const { return {.blocks = static_cast<unsigned>(rows), .threads = kThreads}; }
  template <typename T>
  Rows<T> at(const Call& call) const {
    const std::int64_t first = cut ? call.origin : 0, present = std::clamp<std::int64_t>(classes - first, 0, columns);
    return {operand<T>(call, 0),
            operand<std::int32_t>(call, 1),
            static_cast<int>(columns),
            static_cast<int>(present),
            static_cast<int>(first),
            static_cast<int>(classes),
            static_cast<int>(ignore_index),
            smoothing,
            fault};
  }
};

Shared shared_of(const Signature& signature, const Context& context) {
  const TensorDesc& logits = signature.operands[0];
  Shared all;
  all.rows = logits.shape.rows();
  all.columns = logits.shape[-1];
  all.cut = signature.attributes.has("classes");
  all.classes = all.cut ? integer(signature, "classes") : all.columns;
  all.ignore_index = integer(signature, "ignore_index");
  if (record(signature.op).attribute("label_smoothing") != nullptr)
    all.smoothing = static_cast<float>(real(signature, "label_smoothing"));
  all.fault = context.fault;
  CHECK(all.rows < std::int64_t{1} << 31 && all.columns <= 1 << 30,
        describe(signature) + ": rows and classes are counted in 32 bits");
  expect_operand(signature, 1, DType::i32, all.rows);
  return all;
}

}  // namespace

Prepared prepare_cross_entropy(const Signature& signature, const Context& context) {
  expect_operands(signature, 4);
  const Shared all = shared_of(signature, context);
  expect_operand(signature, 2, DType::f64, 1);
  expect_operand(signature, 3, DType::f32, all.rows);
  const bool accumulate = accumulates(signature);
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    const auto kernel = all.smoothing != 0 ? cross_entropy<T, true> : cross_entropy<T, false>;
    return make_kernel([=](const Call& call) {
      double* const losses = static_cast<double*>(call.workspace);
      if (all.rows > 0) launch(call, all.grid(), kernel, all.at<T>(call), losses, operand<float>(call, 3));
      launch_sum_values(call, losses, operand<double>(call, 2), all.rows, accumulate);
    });
  });
}

Prepared prepare_cross_entropy_grad(const Signature& signature, const Context& context) {
  expect_operands(signature, 5);
  const Shared all = shared_of(signature, context);
  expect_operand(signature, 2, DType::f32, all.rows);
  const std::int64_t seeds = signature.operands[3].elements();
  CHECK(seeds > 0 && all.rows % seeds == 0, describe(signature) + ": a seed is that of as many rows as any other");
  expect_operand(signature, 3, DType::f32, seeds);
  expect_alike(signature, {0, 4});
  const auto rows_of_seed = static_cast<int>(std::max<std::int64_t>(1, all.rows / seeds));
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    return make_kernel([=](const Call& call) {
      if (all.rows > 0)
        launch(call, all.grid(), cross_entropy_grad<T>, all.at<T>(call), operand<float>(call, 2),
               operand<float>(call, 3), rows_of_seed, operand<T>(call, 4));
    });
  });
}

Prepared prepare_cross_entropy_and_grad(const Signature& signature, const Context& context) {
  expect_operands(signature, 5);
  const Shared all = shared_of(signature, context);
  expect_operand(signature, 2, DType::f32, 1);
  expect_operand(signature, 3, DType::f64, 1);
  expect_alike(signature, {0, 4});
  const bool accumulate = accumulates(signature);
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    constexpr std::size_t kVectorBytes = 16, kBetween = sizeof(Between<kThreadsHolding>);
    const auto room = static_cast<std::int64_t>((context.shared_bytes - kBetween) / kVectorBytes);
    const auto held = static_cast<int>(std::min(room, all.columns / kVector<T>));
    Grid grid = all.grid();
    grid.threads = kThreadsHolding;
    grid.shared_bytes = kBetween + static_cast<std::size_t>(held) * kVectorBytes;
    const auto kernel = all.smoothing != 0 ? cross_entropy_and_grad<T, true> : cross_entropy_and_grad<T, false>;
    allow_shared(kernel, grid.shared_bytes);
    return make_kernel([=](const Call& call) {
      double* const losses = static_cast<double*>(call.workspace);
      if (all.rows > 0)
        launch(call, grid, kernel, all.at<T>(call), operand<float>(call, 2), losses, operand<T>(call, 4), held);
      launch_sum_values(call, losses, operand<double>(call, 3), all.rows, accumulate);
    });
  });
}

Prepared prepare_correct_count(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  const Shared all = shared_of(signature, context);
  expect_operand(signature, 2, DType::f64, 1);
  const bool accumulate = accumulates(signature);
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    return make_kernel([=](const Call& call) {
      double* const right = static_cast<double*>(call.workspace);
      if (all.rows > 0) launch(call, all.grid(), correct<T>, all.at<T>(call), right);
      launch_sum_values(call, right, operand<double>(call, 2), all.rows, accumulate);
    });
  });
}

Prepared prepare_cross_entropy_stats(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  const Shared all = shared_of(signature, context);
  CHECK(all.cut && all.classes <= 1 << 24, describe(signature) + ": classes are numbered in f32");
  expect_operand(signature, 2, DType::f32, all.rows * kStats);
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    return make_kernel([=](const Call& call) {
      if (all.rows > 0) launch(call, all.grid(), statistics<T>, all.at<T>(call), operand<float>(call, 2));
    });
  });
}

}  // namespace trainer::kernels::cuda
