// Where a head lies, and RoPE of rows: shared by all attention kernels.
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {

/// Head `head` of token `token`.
template <typename T>
__device__ __forceinline__ T* head_at(const HeadRows& rows, std::int64_t token, int head, int head_dim) {
  return static_cast<T*>(rows.data) + token * rows.stride + static_cast<std::int64_t>(head) * head_dim;
}

struct CosSin {
  float cos, sin;
};
/// Of position · turns[pair] turns. Whole turns are dropped in f64: what is left has the accuracy of f32 at any
/// position.
__device__ __forceinline__ CosSin angle_at(const Rotation& rotation, int position, int pair) {
  const double turns = position * rotation.turns[pair];
  CosSin result;
  sincospif(2 * static_cast<float>(turns - rint(turns)), &result.sin, &result.cos);
  return result;
}

/// Turns `Rows` rows of floats in shared memory, of positions from `position` on, by sign times their angles; by
/// threads `first`, first + step ….
template <int Rows>
__device__ __forceinline__ void turn_rows(float* rows, int stride, const Rotation& rotation, int position, float sign,
                                          int first, int step) {
  for (int i = first; i < Rows * rotation.half; i += step) {
    const int row = i / rotation.half, pair = i % rotation.half;
    const CosSin angle = angle_at(rotation, position + row, pair);
    float* at = rows + row * stride + pair;
    const float x = at[0], y = at[rotation.half], sine = sign * angle.sin;
    at[0] = x * angle.cos - y * sine;
    at[rotation.half] = y * angle.cos + x * sine;
  }
}

}  // namespace trainer::kernels::cuda
