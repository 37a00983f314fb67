// Floats of one dtype from those of another, where speed does not matter: what is loaded, saved and drawn.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"

namespace trainer {

/// f32 from `count` floats of `dtype`.
void to_f32(DType dtype, const void* from, std::int64_t count, float* to);
/// The other way round: to the nearest, ties to even. REQUIRES: `dtype` is f32, bf16 or f16.
void from_f32(const float* from, std::int64_t count, DType dtype, void* to);

}  // namespace trainer
