// States of optimizers on a GPU: groups of four elements in registers as f32, and in memory as f32, bf16 or int8
// (kernels/state_codes.h).
//
// A thread has kGroups groups. Of int8 a warp has one block of 256 elements that share a scale, 4 of each half in a
// lane, so that the block's largest element is found within the warp. Tables of the codes are copied to shared memory:
// eight or 32 words side by side, which lanes read at once whatever they look up.
#pragma once

#include "engine/core/compression.h"
#include "kernels/cuda/runtime/device.cuh"
#include "kernels/state_codes.h"

namespace trainer::kernels::cuda {

inline constexpr int kStateThreads = 256, kStateWarps = kStateThreads / kWarp;
inline constexpr int kGroup = 4, kGroups = 2;  // elements of a group; groups of a thread
static_assert(kGroup * kGroups * kWarp == kInt8Block);

using F32Group = Vec<float, kGroup>;

/// The type of a state in memory that is codes with scales.
struct Int8 {};

/// A state's operands.
struct StateMemory {
  void* values = nullptr;
  float* scales = nullptr;
};

/// Group `index`; what lies at `count` and beyond is zero.
template <typename T>
__device__ __forceinline__ Vec<T, kGroup> load_group(const T* x, std::int64_t index, std::int64_t count) {
  const std::int64_t first = index * kGroup;
  if (first + kGroup <= count) return load<kGroup>(x, index);
  Vec<T, kGroup> v;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) v[i] = first + i < count ? x[first + i] : static_cast<T>(0.0F);
  return v;
}
template <typename T>
__device__ __forceinline__ void store_group(T* x, std::int64_t index, std::int64_t count, const Vec<T, kGroup>& value) {
  const std::int64_t first = index * kGroup;
  if (first + kGroup <= count) return store(x, index, value);
#pragma unroll
  for (int i = 0; i < kGroup; ++i)
    if (first + i < count) x[first + i] = value[i];
}

/// The thread's group `k`. S: the states' type.
template <typename S>
__device__ __forceinline__ std::int64_t my_group(int k) {
  if constexpr (std::is_same_v<S, Int8>) {
    const std::int64_t warp = static_cast<std::int64_t>(blockIdx.x) * kStateWarps + threadIdx.x / kWarp;
    return (warp * kGroups + k) * kWarp + threadIdx.x % kWarp;
  } else {
    return (static_cast<std::int64_t>(blockIdx.x) * kGroups + k) * kStateThreads + threadIdx.x;
  }
}

// ---- Codes ----

/// The codes as a kernel's parameter, and as words in shared memory.
struct Codes {
  DynamicCode of_sign = kSignedCode, unsigned_ = kUnsignedCode;
};
struct NoCodes {};
static_assert(sizeof(DynamicCode) % 4 == 0);
inline constexpr int kCodeWords = static_cast<int>(sizeof(DynamicCode) / 4);

template <typename S>
using CodesOf = std::conditional_t<std::is_same_v<S, Int8>, Codes, NoCodes>;

/// Every thread of the block. The caller waits for all of them before a code is used.
__device__ __forceinline__ void share_codes(const Codes& codes, std::uint32_t (&shared)[2 * kCodeWords]) {
  const auto* const words = reinterpret_cast<const std::uint32_t*>(&codes);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kCodeWords; i += kStateThreads) shared[i] = words[i];
}

__device__ __forceinline__ std::uint32_t float_bits(float x) { return __float_as_uint(x); }

template <bool HasSign>
__device__ __forceinline__ float decoded(std::uint32_t byte, const DynamicCode& code) {
  const float middle = static_cast<float>(HasSign ? byte & 0x7FU : byte) + 0.5F;
  const std::uint32_t at = float_bits(middle) >> 23 & 15U;
  const float magnitude = fmaf(code.value_slope[at], middle, code.value_offset[at]);
  if constexpr (!HasSign) return magnitude;
  return byte == 0x80U ? 1.0F : __uint_as_float(float_bits(magnitude) | (byte & 0x80U) << 24);
}

/// x is in [-1, 1], by the rounding of a division a little beyond.
template <bool HasSign>
__device__ __forceinline__ std::uint32_t encoded(float x, const DynamicCode& code) {
  constexpr std::uint32_t kOne = HasSign ? 0x80 : 0x01;
  if (x >= code.least_one) return kOne;
  const float magnitude = HasSign ? fmaxf(fabsf(x), 0x1p-24F) : x > 0 ? fmaxf(x, code.least[1]) : 0.0F;
  const std::uint32_t bound = code.bound[float_bits(magnitude) >> 23 & 31U];
  const std::uint32_t decade = (bound & 15U) + (magnitude >= __uint_as_float(bound) ? 1U : 0U);
  const auto byte = static_cast<std::uint32_t>(
      fminf(fmaf(code.byte_slope[decade], magnitude, code.byte_offset[decade]), code.byte_last[decade]));
  return HasSign && byte != 0 ? byte | (float_bits(x) >> 24 & 0x80U) : byte;
}

// ---- A thread's groups of a state ----

/// State `Index` of an optimizer: the first has a sign, the second none. S: float, bf16 or Int8.
template <typename S, int Index>
struct ThreadState {
  static constexpr bool kHasSign = Index == 0;
  F32Group value[kGroups];

  __device__ __forceinline__ void load(const StateMemory& from, std::int64_t count, const std::uint32_t* codes) {
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      const std::int64_t at = my_group<S>(k);
      if constexpr (std::is_same_v<S, float>) {
        value[k] = load_group(static_cast<const float*>(from.values), at, count);
      } else if constexpr (std::is_same_v<S, bf16>) {
        const Vec<bf16, kGroup> kept = load_group(static_cast<const bf16*>(from.values), at, count);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) value[k][i] = to_f32(kept[i]);
      } else {
        const Vec<std::uint8_t, kGroup> kept = load_group(static_cast<const std::uint8_t*>(from.values), at, count);
        const std::int64_t block = my_group<S>(0) * kGroup / kInt8Block;
        const float scale = block * kInt8Block < count ? from.scales[block] : 0.0F;
#pragma unroll
        for (int i = 0; i < kGroup; ++i) value[k][i] = decoded<kHasSign>(kept[i], code_of(codes)) * scale;
      }
    }
  }

  __device__ __forceinline__ void store(const StateMemory& to, std::int64_t count, const std::uint32_t* codes,
                                        std::int32_t applied) const {
    if constexpr (std::is_same_v<S, Int8>) {
      store_block(to, count, codes);
    } else if constexpr (std::is_same_v<S, bf16>) {
      const std::uint32_t key = rounding_key(applied, Index);
#pragma unroll
      for (int k = 0; k < kGroups; ++k) {
        Vec<bf16, kGroup> kept;
#pragma unroll
        for (int i = 0; i < kGroup; ++i)
          kept[i] = from_f32<bf16>(
              __uint_as_float(rounded_stochastically(float_bits(value[k][i]), key) & 0xFFFF0000U));  // exact
        store_group(static_cast<bf16*>(to.values), my_group<S>(k), count, kept);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kGroups; ++k) store_group(static_cast<float*>(to.values), my_group<S>(k), count, value[k]);
    }
  }

 private:
  __device__ static const DynamicCode& code_of(const std::uint32_t* codes) {
    return *reinterpret_cast<const DynamicCode*>(codes + (kHasSign ? 0 : kCodeWords));
  }

  __device__ __forceinline__ void store_block(const StateMemory& to, std::int64_t count,
                                              const std::uint32_t* codes) const {
    // Magnitudes, and in the lowest bit whether they are positive.
    std::uint32_t largest = 0;
#pragma unroll
    for (int k = 0; k < kGroups; ++k)
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const std::uint32_t bits = float_bits(value[k][i]);
        largest = max(largest, (bits << 1 | bits >> 31) ^ 1U);
      }
    largest = __reduce_max_sync(kAllLanes, largest);
    const float magnitude = fminf(__uint_as_float(largest >> 1), kLargestScale);
    const float scale = (largest & 1U) != 0 ? magnitude : -magnitude;
    const bool normal = magnitude >= kLeastScale;
    const float by = normal ? 1.0F / scale : 0.0F;
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      Vec<std::uint8_t, kGroup> kept;
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        kept[i] = static_cast<std::uint8_t>(encoded<kHasSign>(value[k][i] * by, code_of(codes)));
      store_group(static_cast<std::uint8_t*>(to.values), my_group<S>(k), count, kept);
    }
    const std::int64_t block = my_group<S>(0) * kGroup / kInt8Block;
    if (threadIdx.x % kWarp == 0 && block * kInt8Block < count) to.scales[block] = normal ? scale : 0.0F;
  }
};

}  // namespace trainer::kernels::cuda
