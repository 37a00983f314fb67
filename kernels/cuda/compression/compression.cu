// Compression of gradients to bf16 and int8. Bound by memory: of an f32 gradient compress_bf16 moves 14 bytes for each
// element, quantize_int8 13, dequantize_int8 5. A warp has a block of 256 elements that share a scale; a lane has 4 in
// each half of it, so that every access of a warp is of whole lines.
#include "kernels/compression.h"

#include "engine/core/compression.h"
#include "engine/core/op_record.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kGroup = 4, kHalves = 2, kHalf = kGroup * kWarp;
constexpr unsigned kInfinity = 0x7F800000;  // bits; of finite values they are below, of NaN above
constexpr float kSmallest = 0x1p-126F;      // of normal numbers
static_assert(kHalves * kHalf == kInt8Block);

/// Compressed slices, one after the other (engine/core/compression.h), and the tensor that they stand for.
struct Slices {
  unsigned char* bytes;
  std::int64_t elements;  ///< of each
  std::int64_t chunk_bytes, scales_offset;
  std::int64_t blocks;  ///< of each
  std::int64_t count;   ///< slices
};

// ---- Device ----

__device__ __forceinline__ unsigned size_bits(float x) { return __float_as_uint(x) & 0x7FFFFFFFU; }

/// Elements [first, first + 4) of x, of which those from `last` on are zeros. `whole`: 4 that begin at a whole vector.
template <typename T>
__device__ __forceinline__ Vec<T, kGroup> load_group(const T* x, std::int64_t first, std::int64_t last, bool whole) {
  if (whole && first + kGroup <= last) return load<kGroup>(x + first, 0);
  Vec<T, kGroup> v;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) v[i] = first + i < last ? x[first + i] : from_f32<T>(0.0F);
  return v;
}
template <typename T>
__device__ __forceinline__ void store_group(T* x, std::int64_t first, std::int64_t last, bool whole,
                                            const Vec<T, kGroup>& v) {
  if (whole && first + kGroup <= last) return store(x + first, 0, v);
#pragma unroll
  for (int i = 0; i < kGroup; ++i)
    if (first + i < last) x[first + i] = v[i];
}

template <typename G>
__global__ void __launch_bounds__(kThreads)
    send_bf16(const G* gradient, float* residual, bf16* packed, std::int64_t count) {
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kGroup;
  if (first >= count) return;
  const Vec<G, kGroup> g = load_group(gradient, first, count, true);
  Vec<float, kGroup> e = load_group(residual, first, count, true);
  Vec<bf16, kGroup> sent;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const float a = to_f32(g[i]) + e[i];
    sent[i] = from_f32<bf16>(a);
    const float arrives = to_f32(sent[i]);
    if (size_bits(arrives) < kInfinity) e[i] = a - arrives;
  }
  store_group(packed, first, count, true, sent);
  store_group(residual, first, count, true, e);
}

/// The warp's block of a slice.
struct Place {
  std::int64_t slice, block;
  std::int64_t first, last;  ///< elements of the slice
  bool whole;                ///< its elements in the tensor begin at a whole vector
  __device__ Place(const Slices& s, std::int64_t warp)
      : slice(warp / s.blocks), block(warp % s.blocks), first(block * kInt8Block) {
    last = first + kInt8Block < s.elements ? first + kInt8Block : s.elements;
    whole = s.elements % kGroup == 0 || slice == 0;
  }
};

__device__ __forceinline__ std::int64_t my_warp() {
  return static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
}

/// Where the lane's codes stand in half `half`, in elements of the slice.
__device__ __forceinline__ std::int64_t my_group(const Place& at, int half) {
  return at.first + half * kHalf + static_cast<int>(threadIdx.x % kWarp) * kGroup;
}

__device__ __forceinline__ float* scales_of(const Slices& s, std::int64_t slice) {
  return reinterpret_cast<float*>(s.bytes + slice * s.chunk_bytes + s.scales_offset);
}

template <bool kFeedback, typename G>
__global__ void __launch_bounds__(kThreads) send_int8(const G* gradient, float* residual, Slices to) {
  if (my_warp() >= to.count * to.blocks) return;
  const Place at(to, my_warp());
  const std::int64_t start = at.slice * to.elements;
  Vec<float, kGroup> a[kHalves];
  unsigned largest_bits = 0;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const std::int64_t first = my_group(at, half);
    const Vec<G, kGroup> g = load_group(gradient + start, first, at.last, at.whole);
    a[half] = {};
    if constexpr (kFeedback) a[half] = load_group(residual + start, first, at.last, at.whole);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      a[half][i] += to_f32(g[i]);
      largest_bits = max(largest_bits, size_bits(a[half][i]));
    }
  }
  largest_bits = __reduce_max_sync(kAllLanes, largest_bits);
  const float largest = __uint_as_float(largest_bits);
  const bool finite = largest_bits < kInfinity, normal = finite && largest / 127.0F >= kSmallest;
  const float scale = normal ? largest / 127.0F : finite ? 0.0F : __uint_as_float(0x7FC00000U);
  const float inverse = normal ? 127.0F / largest : 0.0F;
  unsigned char* const codes = to.bytes + at.slice * to.chunk_bytes;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const std::int64_t first = my_group(at, half);
    Vec<signed char, kGroup> code;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      // One rounding, ties to even: the product's whole part, in the low bits of a float of that size.
      constexpr float kMagic = 0x1.8p23F;
      const float shifted = fmaf(a[half][i], inverse, kMagic);
      code[i] = finite ? static_cast<signed char>(__float_as_int(shifted) & 0xFF) : static_cast<signed char>(0);
      a[half][i] = fmaf(shifted - kMagic, -scale, a[half][i]);
    }
    if constexpr (kFeedback)
      if (finite) store_group(residual + start, first, at.last, at.whole, a[half]);
    if (first < to.scales_offset)
      store(reinterpret_cast<signed char*>(codes) + first, 0, code);  // zeros up to the padding's end
  }
  float* const scales = scales_of(to, at.slice);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  if (lane == 0) scales[at.block] = scale;
  if (at.block + 1 == to.blocks) {
    const std::int64_t padded = (to.chunk_bytes - to.scales_offset) / static_cast<std::int64_t>(sizeof(float));
    if (to.blocks + lane < padded) scales[to.blocks + lane] = 0;  // fewer than 16
  }
}

__device__ __forceinline__ Vec<signed char, kGroup> my_codes(const Slices& from, std::int64_t slice,
                                                             std::int64_t first) {
  return load<kGroup>(reinterpret_cast<const signed char*>(from.bytes + slice * from.chunk_bytes) + first, 0);
}

template <typename Y>
__global__ void __launch_bounds__(kThreads) receive_int8(Slices from, Y* y) {
  if (my_warp() >= from.count * from.blocks) return;
  const Place at(from, my_warp());
  const float scale = scales_of(from, at.slice)[at.block];
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const std::int64_t first = my_group(at, half);
    if (first >= at.last) continue;
    const Vec<signed char, kGroup> code = my_codes(from, at.slice, first);
    Vec<Y, kGroup> value;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) value[i] = from_f32<Y>(static_cast<float>(code[i]) * scale);
    store_group(y + at.slice * from.elements, first, at.last, at.whole, value);
  }
}

template <typename Y>
__global__ void __launch_bounds__(kThreads) receive_sum_int8(Slices from, Y* y) {
  if (my_warp() >= from.blocks) return;
  const Place at(from, my_warp());
  Vec<float, kGroup> sum[kHalves] = {};
  for (std::int64_t slice = 0; slice < from.count; ++slice) {
    const float scale = scales_of(from, slice)[at.block];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const std::int64_t first = my_group(at, half);
      if (first >= at.last) continue;
      const Vec<signed char, kGroup> code = my_codes(from, slice, first);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) sum[half][i] = fmaf(static_cast<float>(code[i]), scale, sum[half][i]);
    }
  }
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    Vec<Y, kGroup> value;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) value[i] = from_f32<Y>(sum[half][i]);
    store_group(y, my_group(at, half), at.last, true, value);
  }
}

// ---- Host ----

/// r is f32 or bf16.
template <typename Fn>
Prepared with_gradient(const Signature& signature, int index, Fn fn) {
  const DType r = signature.operands[static_cast<std::size_t>(index)].dtype;
  if (r == DType::f32) return fn(float{});
  if (r != DType::bf16) refuse_dtypes(signature, "f32 or bf16 gradients");
  return fn(bf16{});
}

std::int64_t slices_of(const Signature& signature) {
  const std::int64_t slices = integer(signature, "slices");
  CHECK(slices >= 1, describe(signature) + ": at least one slice");
  return slices;
}

/// Slices of so many elements as operand `index` must hold them.
Slices expect_slices(const Signature& signature, int index, std::int64_t elements) {
  const std::int64_t slices = slices_of(signature), chunk_bytes = int8_bytes(elements);
  expect_operand(signature, index, DType::u8, slices * chunk_bytes);
  return {.bytes = nullptr,
          .elements = elements,
          .chunk_bytes = chunk_bytes,
          .scales_offset = int8_scales_offset(elements),
          .blocks = int8_blocks(elements),
          .count = slices};
}

/// Elements of each slice of operand `index`, which must divide.
std::int64_t elements_of_slice(const Signature& signature, int index) {
  const std::int64_t elements = signature.operands[static_cast<std::size_t>(index)].elements(),
                     slices = slices_of(signature);
  CHECK(elements % slices == 0, describe(signature) + ": the slices must divide the elements");
  return elements / slices;
}

Slices at(Slices slices, unsigned char* bytes) {
  slices.bytes = bytes;
  return slices;
}

Grid warps_for(std::int64_t warps) { return {.blocks = blocks_for(warps, kWarps), .threads = kThreads}; }

}  // namespace

Prepared prepare_compress_bf16(const Signature& signature, const Context&) {
  expect_operands(signature, 3);
  const std::int64_t count = signature.operands[0].elements();
  expect_operand(signature, 1, DType::f32, count);
  expect_operand(signature, 2, DType::bf16, count);
  return with_gradient(signature, 0, [&]<typename G>(G) {
    return make_kernel([count](const Call& call) {
      launch(call, {.blocks = blocks_for(count, kThreads * kGroup), .threads = kThreads}, send_bf16<G>,
             operand<G>(call, 0), operand<float>(call, 1), operand<bf16>(call, 2), count);
    });
  });
}

Prepared prepare_quantize_int8(const Signature& signature, const Context&) {
  const bool feedback = flag(signature, "feedback");
  const int packet = feedback ? 2 : 1;
  expect_operands(signature, packet + 1);
  if (feedback) expect_operand(signature, 1, DType::f32, signature.operands[0].elements());
  const Slices to = expect_slices(signature, packet, elements_of_slice(signature, 0));
  return with_gradient(signature, 0, [&]<typename G>(G) {
    return make_kernel([to, feedback](const Call& call) {
      const Grid grid = warps_for(to.count * to.blocks);
      if (feedback)
        launch(call, grid, send_int8<true, G>, operand<G>(call, 0), operand<float>(call, 1),
               at(to, operand<unsigned char>(call, 2)));
      else
        launch(call, grid, send_int8<false, G>, operand<G>(call, 0), static_cast<float*>(nullptr),
               at(to, operand<unsigned char>(call, 1)));
    });
  });
}

Prepared prepare_dequantize_int8(const Signature& signature, const Context&) {
  expect_operands(signature, 2);
  const Slices from = expect_slices(signature, 0, elements_of_slice(signature, 1));
  return with_gradient(signature, 1, [&]<typename Y>(Y) {
    return make_kernel([from](const Call& call) {
      launch(call, warps_for(from.count * from.blocks), receive_int8<Y>, at(from, operand<unsigned char>(call, 0)),
             operand<Y>(call, 1));
    });
  });
}

Prepared prepare_dequantize_sum_int8(const Signature& signature, const Context&) {
  expect_operands(signature, 2);
  const Slices from = expect_slices(signature, 0, signature.operands[1].elements());
  return with_gradient(signature, 1, [&]<typename Y>(Y) {
    return make_kernel([from](const Call& call) {
      launch(call, warps_for(from.blocks), receive_sum_int8<Y>, at(from, operand<unsigned char>(call, 0)),
             operand<Y>(call, 1));
    });
  });
}

}  // namespace trainer::kernels::cuda
