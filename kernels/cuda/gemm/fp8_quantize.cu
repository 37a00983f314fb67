// A block of threads quantizes a tile of 128 x 128 elements, which it reads by rows as they lie, keeps in shared memory
// and writes by rows of the operand: so a transpose is no pass of its own. Bound by memory: x is read once, and once
// before that for scales of a tensor; half as many bytes are written.
#include "kernels/cuda/gemm/fp8_quantize.h"

#include <cuda_fp8.h>

#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kTile = 128, kStride = kTile + 2;  // elements; columns of a tile lie in different banks
constexpr int kEach = kTile / kWarp;             // elements of a row for each lane
constexpr int kLanes32 = 32 / kEach;             // lanes of a block of 32
static_assert(kThreads == Fp8Workspace::kLargest);

// ---- Device ----

struct Quantize {
  const bf16* x;
  std::uint8_t* codes;
  void* scales;
  const float* largest;  // of parts of x; null where blocks have scales
  int outer, inner;
  bool transposed;  // x is [inner, outer]
};

template <Fp8Code C>
__device__ __forceinline__ float largest_code() {
  return C == Fp8Code::e4m3 ? 448.0F : 57344.0F;
}

template <Fp8Code C>
__device__ __forceinline__ std::uint32_t encode(const float (&v)[kEach]) {
  constexpr __nv_fp8_interpretation_t kAs = C == Fp8Code::e4m3 ? __NV_E4M3 : __NV_E5M2;
  const std::uint32_t low = __nv_cvt_float2_to_fp8x2({v[0], v[1]}, __NV_SATFINITE, kAs),
                      high = __nv_cvt_float2_to_fp8x2({v[2], v[3]}, __NV_SATFINITE, kAs);
  return low | high << 16;
}

__device__ __forceinline__ float magnitude(const float (&v)[kEach]) {
  float most = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) most = fmaxf(most, fabsf(v[i]));
  return most;
}

/// Of a block whose largest magnitude is `most`; below this its inverse would be infinite.
template <Fp8Code C>
__device__ __forceinline__ float scale_of(float most) {
  return fmaxf(most / largest_code<C>(), 0x1p-126F);
}

/// The power of two from scale_of on, as its exponent with a bias of 127; 255 is not a number.
template <Fp8Code C>
__device__ __forceinline__ std::uint32_t exponent_of(float most) {
  const std::uint32_t bits = __float_as_uint(scale_of<C>(most));
  return min((bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1 : 0), 255u);
}

/// largest[block] = the largest magnitude of the block's part of x.
__global__ void __launch_bounds__(kThreads) find_largest(const bf16* x, float* largest, std::int64_t vectors) {
  __shared__ float shared[kWarps];
  float most = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    float v[kVector<bf16>];
    widen(load_packed<kVector<bf16>>(x, i), v);
#pragma unroll
    for (float one : v) most = fmaxf(most, fabsf(one));
  }
  most = block_max<kThreads>(most, shared);
  if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

/// Rows and columns are those of x as it lies; what is behind its ends is 0.
__device__ __forceinline__ void load_tile(const Quantize& a, int first_row, int first_column, bf16* tile) {
  constexpr int kN = kVector<bf16>, kVectors = kTile / kN;
  const int rows = a.transposed ? a.inner : a.outer, columns = a.transposed ? a.outer : a.inner;
#pragma unroll
  for (int i = threadIdx.x; i < kTile * kVectors; i += kThreads) {
    const int row = i / kVectors, column = i % kVectors * kN;
    Packed<bf16, kN> v = {};
    if (first_row + row < rows && first_column + column < columns)
      v = load_packed<kN>(a.x, (static_cast<std::int64_t>(first_row + row) * columns + first_column + column) / kN);
    std::uint32_t* const to = reinterpret_cast<std::uint32_t*>(tile + row * kStride + column);
#pragma unroll
    for (int word = 0; word < kN / 2; ++word) to[word] = v.word[word];
  }
}

/// Elements [kEach · lane, ...) of a row of the operand's tile.
__device__ __forceinline__ void read_row(const Quantize& a, const bf16* tile, int row, float (&v)[kEach]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = kEach * lane + i;
    v[i] = to_f32(tile[a.transposed ? at * kStride + row : row * kStride + at]);
  }
}

template <Fp8Code C, ScaleBlock B>
__global__ void __launch_bounds__(kThreads) quantize(const Quantize a) {
  __shared__ __align__(16) bf16 tile[kTile * kStride];
  __shared__ float shared[kWarps];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int first = blockIdx.y * kTile, first_inner = blockIdx.x * kTile;
  load_tile(a, a.transposed ? first_inner : first, a.transposed ? first : first_inner, tile);
  __syncthreads();
  float* const scales = static_cast<float*>(a.scales);

  float v[kEach], scale = 0;
  if constexpr (B == ScaleBlock::tensor || B == ScaleBlock::square_128) {
    float most = 0;
    if constexpr (B == ScaleBlock::tensor) {
      most = a.largest[threadIdx.x];
    } else {
      for (int row = warp; row < kTile; row += kWarps) {
        read_row(a, tile, row, v);
        most = fmaxf(most, magnitude(v));
      }
    }
    scale = scale_of<C>(block_max<kThreads>(most, shared));
    const std::int64_t at = B == ScaleBlock::tensor ? 0 : blockIdx.y * round_up(gridDim.x, 4) + blockIdx.x;
    if (threadIdx.x == 0 && (B == ScaleBlock::square_128 || (blockIdx.x == 0 && blockIdx.y == 0))) scales[at] = scale;
  }
  for (int row = warp; row < kTile; row += kWarps) {
    const int outer = first + row, inner = first_inner + kEach * lane;
    read_row(a, tile, row, v);
    if constexpr (B == ScaleBlock::row_128) {
      scale = scale_of<C>(warp_max(magnitude(v)));
      if (lane == 0 && outer < a.outer) scales[blockIdx.x * round_up(a.outer, 4) + outer] = scale;
    }
    float inverse = 1 / scale;
    if constexpr (B == ScaleBlock::row_32) {
      float most = magnitude(v);
#pragma unroll
      for (int other = 1; other < kLanes32; other *= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, other));
      const std::uint32_t exponent = exponent_of<C>(most);
      inverse = __uint_as_float((254 - min(exponent, 253u)) << 23);
      const int block = inner / 32;
      const std::int64_t tile_at = (outer / 128) * (round_up(round_up(a.inner, 32) / 32, 4) / 4) + block / 4;
      if (lane % kLanes32 == 0 && outer < a.outer && inner < a.inner)
        static_cast<std::uint8_t*>(a.scales)[tile_at * 512 + outer % 32 * 16 + outer % 128 / 32 * 4 + block % 4] =
            static_cast<std::uint8_t>(exponent);
    }
    if (outer >= a.outer || inner >= a.inner) continue;
#pragma unroll
    for (float& one : v) one *= inverse;
    *as_vectors<std::uint32_t>(
        reinterpret_cast<std::uint32_t*>(a.codes + static_cast<std::int64_t>(outer) * a.inner + inner)) = encode<C>(v);
  }
}

// ---- Host ----

template <Fp8Code C>
auto kernel_of(ScaleBlock block) {
  switch (block) {
    case ScaleBlock::row_128:
      return quantize<C, ScaleBlock::row_128>;
    case ScaleBlock::square_128:
      return quantize<C, ScaleBlock::square_128>;
    case ScaleBlock::row_32:
      return quantize<C, ScaleBlock::row_32>;
    default:
      return quantize<C, ScaleBlock::tensor>;
  }
}

}  // namespace

void quantize_fp8(const Call& call, const Fp8Operand& operand, Fp8Code code, bool transposed, const void* x,
                  void* codes, void* scales, float* largest) {
  Quantize a{};
  a.x = static_cast<const bf16*>(x);
  a.codes = static_cast<std::uint8_t*>(codes);
  a.scales = scales;
  a.outer = static_cast<int>(operand.outer);
  a.inner = static_cast<int>(operand.inner);
  a.transposed = transposed;
  if (operand.block == ScaleBlock::tensor) {
    a.largest = largest;
    launch(call, {.blocks = Fp8Workspace::kLargest, .threads = kThreads}, find_largest, a.x, largest,
           operand.outer * operand.inner / kVector<bf16>);
  } else {
    // What is read behind the last row or block has to be a number.
    check(cudaMemsetAsync(scales, 0, static_cast<std::size_t>(operand.scale_bytes()), stream_of(call)),
          "cudaMemsetAsync");
  }
  const Grid grid{.blocks = dim3(blocks_for(operand.inner, kTile), blocks_for(operand.outer, kTile)),
                  .threads = kThreads};
  launch(call, grid,
         code == Fp8Code::e4m3 ? kernel_of<Fp8Code::e4m3>(operand.block) : kernel_of<Fp8Code::e5m2>(operand.block), a);
}

}  // namespace trainer::kernels::cuda
