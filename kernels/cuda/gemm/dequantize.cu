// One pass over the codes: a thread decodes the eight bytes that follow one another in a block, so a warp reads and
// writes whole lines. Values of codes are looked up in shared memory.
#include "kernels/cuda/gemm/dequantize.h"

#include <algorithm>

#include "kernels/cuda/runtime/device.cuh"
#include "kernels/quantized.h"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBytes = 8;  // of a thread
constexpr int kBlock = 64, kHalf = 32, kGroup = 256;

// ---- Device ----

/// Values of codes as a kernel's parameter.
struct Tables {
  float values[16] = {};
  ScaleValues scales = kScaleValues;
};

struct DeviceSizes {
  std::int64_t in, blocks, count;  ///< count: threads with work
  Divisor of_row;                  ///< threads
};

/// Elements [column, column + 8) of a row, those behind the last column left out.
template <typename T>
__device__ void store_eight(T* w, const DeviceSizes& z, std::int64_t row, std::int64_t column, const float* values) {
  for (int i = 0; i < kBytes; ++i)
    if (column + i < z.in) w[row * z.in + column + i] = from_f32<T>(values[i]);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    dequantize_int8_rows(const std::int8_t* codes, const float* scales, T* w, DeviceSizes z) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= z.count) return;
  const Quotient place = z.of_row(thread);
  const std::int64_t row = place.whole, column = place.rest * kBytes;
  const float scale = scales[row];
  float values[kBytes];
  for (int i = 0; i < kBytes; ++i) values[i] = static_cast<float>(codes[row * z.blocks * kBlock + column + i]) * scale;
  store_eight(w, z, row, column, values);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    dequantize_nf4_rows(const std::uint8_t* codes, const std::uint8_t* scales, const float* groups, T* w, Tables tables,
                        DeviceSizes z) {
  __shared__ float value_of[16];
  __shared__ float scale_value_of[256];
  if (threadIdx.x < 16) value_of[threadIdx.x] = tables.values[threadIdx.x];
  scale_value_of[threadIdx.x] = tables.scales.of[threadIdx.x];
  __syncthreads();
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= z.count) return;
  const Quotient place = z.of_row(thread);
  const std::int64_t row = place.whole, byte = place.rest * kBytes, block = byte / kHalf;
  const float* const group = groups + (row / kGroup * z.blocks + block) * 2;
  const float scale = group[1] + scale_value_of[scales[row * z.blocks + block]] * group[0];
  float low[kBytes], high[kBytes];
  for (int i = 0; i < kBytes; ++i) {
    const int code = codes[row * z.blocks * kHalf + byte + i];
    low[i] = value_of[code & 15] * scale;
    high[i] = value_of[code >> 4] * scale;
  }
  const std::int64_t column = block * kBlock + byte % kHalf;
  store_eight(w, z, row, column, low);
  store_eight(w, z, row, column + kHalf, high);
}

}  // namespace

void dequantize(const Call& call, const QuantizedSizes& sizes, const void* codes, const void* scales,
                const void* groups, void* w) {
  Tables tables;
  std::copy_n(kNf4Values, 16, tables.values);
  const std::int64_t of_row = sizes.blocks * ((sizes.nf4 ? kHalf : kBlock) / kBytes);
  const DeviceSizes z{sizes.in, sizes.blocks, sizes.out * of_row, Divisor(of_row)};
  const Grid grid{.blocks = blocks_for(z.count, kThreads), .threads = kThreads};
  with_type(sizes.compute, [&]<typename T>(T) {
    if (sizes.nf4)
      launch(call, grid, dequantize_nf4_rows<T>, static_cast<const std::uint8_t*>(codes),
             static_cast<const std::uint8_t*>(scales), static_cast<const float*>(groups), static_cast<T*>(w), tables,
             z);
    else
      launch(call, grid, dequantize_int8_rows<T>, static_cast<const std::int8_t*>(codes),
             static_cast<const float*>(scales), static_cast<T*>(w), z);
  });
}

}  // namespace trainer::kernels::cuda
