// What device code finds in a GPU and not in C++: indices, barriers, shuffles, atomics, intrinsics. Included by the
// shadow of cuda_runtime.h alone. Intrinsics are given the accuracy of the functions they approximate: a test here says
// nothing about __expf.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "tests/cuda/emulated/block.h"

// A block's threads run on one host thread, and a block after the other.
#undef __shared__
#define TRAINER_JOIN_(a, b) a##b
#define TRAINER_JOIN(a, b) TRAINER_JOIN_(a, b)
#define __shared__                                                                                                   \
  [[maybe_unused]] const bool TRAINER_JOIN(fixed_shared_, __COUNTER__) = ::trainer::emulated::Block::fixed_shared(); \
  static constinit thread_local
#undef __grid_constant__
#define __grid_constant__
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __forceinline__
#define __forceinline__ inline

namespace trainer::emulated {

/// threadIdx and its like: each member asks the fiber that runs.
template <Index Block::*Which>
struct BuiltIn {
  template <unsigned Index::*Axis>
  struct Member {
    operator unsigned() const { return Block::current().*Which.*Axis; }
  };
  Member<&Index::x> x{};
  Member<&Index::y> y{};
  Member<&Index::z> z{};
};

}  // namespace trainer::emulated

inline constexpr ::trainer::emulated::BuiltIn<&::trainer::emulated::Block::thread> threadIdx;
inline constexpr ::trainer::emulated::BuiltIn<&::trainer::emulated::Block::block> blockIdx;
inline constexpr ::trainer::emulated::BuiltIn<&::trainer::emulated::Block::threads> blockDim;
inline constexpr ::trainer::emulated::BuiltIn<&::trainer::emulated::Block::blocks> gridDim;
#define dynamic_shared_memory (::trainer::emulated::Block::current().shared())

inline void __syncthreads() { ::trainer::emulated::Block::current().barrier(0); }
inline int __syncthreads_count(int predicate) { return ::trainer::emulated::Block::current().barrier(predicate != 0); }
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
inline int __syncthreads_and(int predicate) { return __syncthreads_count(predicate == 0) == 0; }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

namespace trainer::emulated {

/// An access of `bytes` at once: hardware faults where the address is no multiple of them.
inline void require_aligned(const void* at, std::size_t bytes, const char* what) {
  if (reinterpret_cast<std::uintptr_t>(at) % bytes != 0)
    throw Misuse(std::string(what) + " of " + std::to_string(bytes) +
                 " bytes at an address that is no multiple of them");
}

/// Everyone's value in a warp; read what is needed before the next exchange.
template <typename T>
class Exchanged {
 public:
  Exchanged(std::uint32_t mask, const T& value) : given_(Block::current().exchange(mask, &value, sizeof(T))) {
    static_assert(sizeof(T) <= kExchanged);
  }
  T operator[](unsigned lane) const {
    T value;
    std::memcpy(&value, given_ + lane % kLanes * kExchanged, sizeof(T));
    return value;
  }

 private:
  const std::byte* given_;
};

// A lane outside of the mask has given nothing: its value is its own, as hardware leaves it undefined and code must not
// care.
template <typename T>
T shuffle(std::uint32_t mask, T value, unsigned from, bool inside) {
  const Exchanged<T> all(mask, value);
  return inside && ((mask >> from) & 1u) != 0 ? all[from] : value;
}

}  // namespace trainer::emulated

template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const unsigned lane = ::trainer::emulated::Block::current().lane(), base = lane & ~static_cast<unsigned>(width - 1);
  return ::trainer::emulated::shuffle(mask, value,
                                      base + (static_cast<unsigned>(from) & static_cast<unsigned>(width - 1)), true);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const unsigned lane = ::trainer::emulated::Block::current().lane(), from = lane ^ static_cast<unsigned>(bits);
  return ::trainer::emulated::shuffle(
      mask, value, from % 32, (from & ~static_cast<unsigned>(width - 1)) <= (lane & ~static_cast<unsigned>(width - 1)));
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned lane = ::trainer::emulated::Block::current().lane(), from = lane + by;
  return ::trainer::emulated::shuffle(mask, value, from % 32,
                                      lane % static_cast<unsigned>(width) + by < static_cast<unsigned>(width));
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned lane = ::trainer::emulated::Block::current().lane(), from = lane - by;
  return ::trainer::emulated::shuffle(mask, value, from % 32, lane % static_cast<unsigned>(width) >= by);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const ::trainer::emulated::Exchanged<int> all(mask, predicate);
  unsigned result = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if (((mask >> lane) & 1u) != 0 && all[lane] != 0) result |= 1u << lane;
  return result;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
template <typename T>
unsigned __match_any_sync(unsigned mask, T value) {
  const ::trainer::emulated::Exchanged<T> all(mask, value);
  unsigned result = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if (((mask >> lane) & 1u) != 0 && all[lane] == value) result |= 1u << lane;
  return result;
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  const ::trainer::emulated::Exchanged<unsigned> all(mask, value);
  unsigned result = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if (((mask >> lane) & 1u) != 0) result += all[lane];
  return result;
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  const ::trainer::emulated::Exchanged<unsigned> all(mask, value);
  unsigned result = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if (((mask >> lane) & 1u) != 0) result = std::max(result, all[lane]);
  return result;
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { ::trainer::emulated::Block::current().exchange(mask, "", 0); }
inline unsigned __activemask() {
  throw ::trainer::emulated::Misuse("__activemask says nothing that code may build on");
}

namespace trainer::emulated {

/// One thread runs at a time, so this is whole as it stands; atomic for the thread sanitizer, which it orders nothing
/// for.
template <typename T, typename Change>
T change(T* at, const Change& next) {
  const std::atomic_ref<T> here(*at);
  const T was = here.load(std::memory_order_relaxed);
  here.store(next(was), std::memory_order_relaxed);
  return was;
}

}  // namespace trainer::emulated

template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return ::trainer::emulated::change(at, [&](T was) { return static_cast<T>(was + value); });
}
template <typename T>
T atomicSub(T* at, std::type_identity_t<T> value) {
  return ::trainer::emulated::change(at, [&](T was) { return static_cast<T>(was - value); });
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return ::trainer::emulated::change(at, [&](T was) { return std::max(was, value); });
}
template <typename T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  return ::trainer::emulated::change(at, [&](T was) { return std::min(was, value); });
}
template <typename T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return ::trainer::emulated::change(at, [&](T was) { return static_cast<T>(was | value); });
}
template <typename T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  return ::trainer::emulated::change(at, [&](T) { return value; });
}
template <typename T>
T atomicCAS(T* at, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  return ::trainer::emulated::change(at, [&](T was) { return was == compare ? value : was; });
}

template <typename T>
T __ldg(const T* at) {
  return *at;
}
template <typename T>
T __ldcs(const T* at) {
  return *at;
}
template <typename T>
T __ldcg(const T* at) {
  return *at;
}
template <typename T>
void __stcs(T* at, std::type_identity_t<T> value) {
  *at = value;
}
template <typename T>
void __stcg(T* at, std::type_identity_t<T> value) {
  *at = value;
}

inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __saturatef(float x) { return x > 0 ? std::min(x, 1.0F) : 0.0F; }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= ((x >> i) & 1u) << (31 - i);
  return result;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(a) * b) >> 32);
}
inline std::uint64_t __umul64hi(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((Wide{a} * b) >> 64);
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float exp10f(float x) { return std::pow(10.0F, x); }
inline void sincospif(float x, float* sine, float* cosine) {
  *sine = static_cast<float>(std::sin(x * 3.14159265358979323846));
  *cosine = static_cast<float>(std::cos(x * 3.14159265358979323846));
}
using std::max;
using std::min;

namespace trainer::emulated {

/// Puts a kernel's blocks on a stream of the emulated device; `check_attributes` is the kernel's address.
cudaError_t enqueue_kernel(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> thread);

}  // namespace trainer::emulated

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return ::trainer::emulated::enqueue_kernel(*config, reinterpret_cast<const void*>(kernel),
                                             [kernel, ... values = Parameters(arguments)] { kernel(values...); });
}
