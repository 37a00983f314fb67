// What device code shares: the float types, vectors of 128 bits, reductions with one order, and how a kernel is
// launched. Everything below also compiles as C++ for the host, where tests run it thread by thread
// (tests/cuda/emulated).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cuda/runtime/runtime.h"

namespace trainer::kernels::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// ---- Numbers ----

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_f32(f16 x) { return __half2float(x); }

/// Rounded to nearest, ties to even; beyond the range it becomes infinite.
template <typename T>
__device__ __forceinline__ T from_f32(float x) {
  if constexpr (std::is_same_v<T, bf16>)
    return __float2bfloat16_rn(x);
  else if constexpr (std::is_same_v<T, f16>)
    return __float2half_rn(x);
  else
    return x;
}

struct Quotient {
  std::int64_t whole, rest;
};
/// Division by a number that the host knows, as a product and a shift: a GPU has no instruction that divides, and a
/// call of some hundred of them in its place is more than a kernel bound by memory has time for. Exact for all n ≥ 0:
/// T. Granlund, P. L. Montgomery, Division by Invariant Integers using Multiplication (1994), theorem 4.2, for 63 bits.
class Divisor {
 public:
  Divisor() = default;
  /// REQUIRES: by > 0.
  explicit Divisor(std::int64_t by) : by_(by) {
    if (by == 1) return;
    const int bits = std::bit_width(static_cast<std::uint64_t>(by - 1));  // 2^(bits - 1) < by <= 2^bits
    __extension__ using Wide = unsigned __int128;
    factor_ = static_cast<std::uint64_t>((Wide{1} << (63 + bits)) / static_cast<std::uint64_t>(by)) + 1;
    shift_ = bits - 1;
  }

  __host__ __device__ std::int64_t by() const { return by_; }
  /// REQUIRES: n ≥ 0.
  __device__ __forceinline__ Quotient operator()(std::int64_t n) const {
    const std::int64_t whole =
        by_ == 1 ? n : static_cast<std::int64_t>(__umul64hi(static_cast<std::uint64_t>(n), factor_) >> shift_);
    return {whole, n - whole * by_};
  }

 private:
  std::int64_t by_ = 1;
  std::uint64_t factor_ = 0;  // of 1 there is none
  int shift_ = 0;
};

// ---- Vectors ----

/// N elements that are loaded and stored at once; 16 bytes wherever N is kVector<T>.
template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
  T at[N];
  __device__ __forceinline__ T& operator[](int i) { return at[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return at[i]; }
};

/// Elements of 16 bytes.
template <typename T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));

/// `data` as vectors. REQUIRES: it is aligned to a whole one (the emulated GPU looks).
template <typename V, typename T>
__device__ __forceinline__ V* as_vectors(T* data) {
#if !defined(__CUDACC__)
  ::trainer::emulated::require_aligned(data, alignof(V), "an access");
#endif
  return reinterpret_cast<V*>(data);
}

/// Elements `index · N` to `index · N + N − 1`. REQUIRES: data is aligned to a whole vector.
template <int N, typename T>
__device__ __forceinline__ Vec<T, N> load(const T* data, std::int64_t index) {
  return as_vectors<const Vec<T, N>>(data)[index];
}
template <int N, typename T>
__device__ __forceinline__ void store(T* data, std::int64_t index, const Vec<T, N>& value) {
  as_vectors<Vec<T, N>>(data)[index] = value;
}

/// N elements in registers as they lie in memory: two of 16 bits share one, where a Vec of them is taken apart by the
/// compiler, a register each. What kernels keep of a row, and how they turn it to f32 and back with one conversion for
/// two.
template <typename T, int N>
struct alignas(sizeof(T) * N) Packed {
  static constexpr int kWords = N * static_cast<int>(sizeof(T)) / 4;
  std::uint32_t word[kWords];
};

__device__ __forceinline__ float2 widen_pair(std::uint32_t word, bf16) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u)};
}
__device__ __forceinline__ float2 widen_pair(std::uint32_t word, f16) {
  __half2_raw raw;
  raw.x = static_cast<unsigned short>(word);
  raw.y = static_cast<unsigned short>(word >> 16);
  return __half22float2(__half2(raw));
}
__device__ __forceinline__ std::uint32_t narrow_pair(float low, float high, bf16) {
  const __nv_bfloat162_raw raw = __floats2bfloat162_rn(low, high);
  return raw.x | static_cast<std::uint32_t>(raw.y) << 16;
}
__device__ __forceinline__ std::uint32_t narrow_pair(float low, float high, f16) {
  const __half2_raw raw = __floats2half2_rn(low, high);
  return raw.x | static_cast<std::uint32_t>(raw.y) << 16;
}

template <typename T, int N>
__device__ __forceinline__ void widen(const Packed<T, N>& packed, float (&out)[N]) {
#pragma unroll
  for (int i = 0; i < Packed<T, N>::kWords; ++i) {
    if constexpr (sizeof(T) == 4) {
      out[i] = __uint_as_float(packed.word[i]);
    } else {
      const float2 pair = widen_pair(packed.word[i], T{});
      out[2 * i] = pair.x;
      out[2 * i + 1] = pair.y;
    }
  }
}
template <typename T, int N>
__device__ __forceinline__ Packed<T, N> narrow(const float (&in)[N]) {
  Packed<T, N> packed;
#pragma unroll
  for (int i = 0; i < Packed<T, N>::kWords; ++i) {
    if constexpr (sizeof(T) == 4)
      packed.word[i] = __float_as_uint(in[i]);
    else
      packed.word[i] = narrow_pair(in[2 * i], in[2 * i + 1], T{});
  }
  return packed;
}

/// As load and store.
template <int N, typename T>
__device__ __forceinline__ Packed<T, N> load_packed(const T* data, std::int64_t index) {
  return as_vectors<const Packed<T, N>>(data)[index];
}
template <int N, typename T>
__device__ __forceinline__ void store_packed(T* data, std::int64_t index, const Packed<T, N>& value) {
  as_vectors<Packed<T, N>>(data)[index] = value;
}

/// Whether rows of `elements` can be read by whole vectors.
template <typename T>
bool in_vectors(std::int64_t elements) {
  return elements % kVector<T> == 0;
}

// ---- Reductions: butterflies, so that every lane has the same bits ----

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}
__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}
/// NaN where any lane has one.
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, x, step);
    x = (other > x || other != other) ? other : x;
  }
  return x;
}

/// The sum over a block of Threads threads, in every thread. `shared` is for this alone, Threads / 32 elements, and may
/// be used again after the next __syncthreads.
template <int Threads, typename T>
__device__ __forceinline__ T block_sum(T x, T* shared) {
  static_assert(Threads % kWarp == 0 && Threads <= 1024);
  x = warp_sum(x);
  if constexpr (Threads == kWarp) return x;
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  T total = 0;
#pragma unroll
  for (int warp = 0; warp < Threads / kWarp; ++warp) total += shared[warp];
  return total;
}
template <int Threads>
__device__ __forceinline__ float block_max(float x, float* shared) {
  static_assert(Threads % kWarp == 0 && Threads <= 1024);
  x = warp_max(x);
  if constexpr (Threads == kWarp) return x;
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  float largest = shared[0];
#pragma unroll
  for (int warp = 1; warp < Threads / kWarp; ++warp)
    largest = (shared[warp] > largest || shared[warp] != shared[warp]) ? shared[warp] : largest;
  return largest;
}

// ---- Shared memory whose size the launch gives ----

#if defined(__CUDACC__)
extern __shared__ __align__(128) unsigned char dynamic_shared_memory[];
#endif
/// 128-byte aligned.
template <typename T>
__device__ __forceinline__ T* dynamic_shared() {
  return reinterpret_cast<T*>(dynamic_shared_memory);
}

// ---- Launching ----

struct Grid {
  dim3 blocks{1};
  dim3 threads{1};
  std::size_t shared_bytes = 0;
};

/// Puts kernel(arguments...) on a stream. Of kernels that take more than 48 KiB of shared memory, see allow_shared.
template <typename... Parameters, typename... Arguments>
void launch(const Call& call, const Grid& grid, void (*kernel)(Parameters...), Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream_of(call);
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...),
        "launch of a kernel");
}

/// Once, when a kernel is prepared that will be launched with so much. Such a kernel has no other shared memory. It is
/// allowed all that there is: the limit is the function's, whatever signatures it is prepared for, and the last call
/// would set it for all.
template <typename... Parameters>
void allow_shared(void (*kernel)(Parameters...), std::size_t bytes) {
  if (bytes <= 48 * 1024) return;
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(most_shared(bytes))),
        "cudaFuncSetAttribute");
}

/// Blocks of `per_block` for `count`; at least one, since a grid without blocks is an error.
inline unsigned blocks_for(std::int64_t count, std::int64_t per_block) {
  const std::int64_t blocks = (count + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks);
}

/// Calls fn(R{}) with the type in which gradients are reduced, f32 or bf16.
template <typename Fn>
decltype(auto) with_reduce_type(DType dtype, Fn&& fn) {
  return dtype == DType::bf16 ? fn(bf16{}) : fn(float{});
}

/// Calls fn(T{}) with the type of a compute dtype.
template <typename Fn>
decltype(auto) with_type(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::bf16:
      return fn(bf16{});
    case DType::f16:
      return fn(f16{});
    default:
      return fn(float{});
  }
}

}  // namespace trainer::kernels::cuda
