// dropout. Reads and writes each element once; philox is some 20 instructions an element of a 16-bit vector, about what
// the integer units do in the time that memory takes for it, so it is bound by both. One call of philox gives the words
// of four elements; where a vector is not made of whole fours of one sample (odd rows and samples), each element makes
// its own.
#include <cmath>

#include "engine/core/random.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/runtime/device.cuh"
#include "kernels/dropout.h"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct Mask {
  std::uint64_t key;
  std::uint32_t threshold;
  float scale;
  std::int64_t count;   ///< elements here
  Divisor columns;      ///< elements that lie side by side in the whole batch
  std::int64_t stride;  ///< from such a run to the next
  bool zigzag;          ///< of two runs the second begins `odd` later than the first
  std::int64_t odd;
  Divisor sample;
};

// ---- Device ----

struct Place {
  std::int64_t sample, element;
};

__device__ __forceinline__ Place place_of(const Mask& mask, std::int64_t origin, std::int64_t index) {
  std::int64_t place = origin + index;
  if (mask.columns.by() < mask.count) {
    const Quotient at = mask.columns(index);
    const std::int64_t start =
        mask.zigzag ? at.whole / 2 * mask.stride + at.whole % 2 * mask.odd : at.whole * mask.stride;
    place = origin + start + at.rest;
  }
  const Quotient in = mask.sample(place);
  return {in.whole, in.rest};
}

__device__ __forceinline__ std::uint64_t block_number(std::uint32_t step, std::int64_t element) {
  return (static_cast<std::uint64_t>(step) << 40) + static_cast<std::uint64_t>(element) / 4;
}

template <typename T>
__device__ __forceinline__ T kept(const Mask& mask, std::uint32_t word, T x) {
  return from_f32<T>(word >= mask.threshold ? to_f32(x) * mask.scale : 0.0F);
}

// y may be x.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    drop(const T* x, const std::int32_t* step_of, T* y, Mask mask, std::int64_t origin) {
  constexpr int kN = kVector<T>;
  const std::int64_t vector = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x, first = vector * kN;
  if (first >= mask.count) return;
  const std::uint32_t step = static_cast<std::uint32_t>(*step_of);
  const Place at = place_of(mask, origin, first);
  const bool whole = first + kN <= mask.count && at.element % 4 == 0 && at.element + kN <= mask.sample.by() &&
                     (mask.columns.by() % kN == 0 || mask.columns.by() >= mask.count);
  if (whole) {
    Vec<T, kN> v = load<kN>(x, vector);
#pragma unroll
    for (int four = 0; four < kN / 4; ++four) {
      const std::array<std::uint32_t, 4> words =
          philox(mask.key, static_cast<std::uint64_t>(at.sample), block_number(step, at.element + 4 * four));
#pragma unroll
      for (int i = 0; i < 4; ++i) v[4 * four + i] = kept(mask, words[i], v[4 * four + i]);
    }
    store(y, vector, v);
    return;
  }
  for (std::int64_t i = first; i < mask.count && i < first + kN; ++i) {
    const Place here = place_of(mask, origin, i);
    const std::array<std::uint32_t, 4> words =
        philox(mask.key, static_cast<std::uint64_t>(here.sample), block_number(step, here.element));
    const int which = static_cast<int>(here.element % 4);
    y[i] = kept(mask, which == 0 ? words[0] : which == 1 ? words[1] : which == 2 ? words[2] : words[3], x[i]);
  }
}

}  // namespace

// ---- Host ----

Prepared prepare_dropout(const Signature& signature, const Context&) {
  const DropoutMask said = dropout_mask(signature);
  const std::int64_t elements = signature.operands[0].elements();
  const Mask mask{.key = said.key,
                  .threshold = said.threshold,
                  .scale = said.scale,
                  .count = elements,
                  .columns = Divisor(said.columns),
                  .stride = said.stride,
                  .zigzag = said.zigzag,
                  .odd = 0,
                  .sample = Divisor(std::max<std::int64_t>(said.sample, 1))};
  return with_type(expect_compute_dtype(signature, 0), [&]<typename T>(T) -> Prepared {
    const Grid grid{.blocks = blocks_for(elements, kThreads * kVector<T>), .threads = kThreads};
    return make_kernel([=](const Call& call) {
      Mask now = mask;
      now.odd = said.odd(call.origin);
      launch(call, grid, drop<T>, operand<T>(call, 0), operand<std::int32_t>(call, 1), operand<T>(call, 2), now,
             call.origin);
    });
  });
}

}  // namespace trainer::kernels::cuda
