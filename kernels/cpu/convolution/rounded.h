// A sum in f32 as an element of the type that a pointer names. Always inlined, for loops files too.
#pragma once

#include "kernels/bf16.h"

namespace trainer::kernels::cpu {

[[gnu::always_inline]] inline float rounded_as(float value, const float*) { return value; }
[[gnu::always_inline]] inline Bf16 rounded_as(float value, const Bf16*) { return to_bf16(value); }

}  // namespace trainer::kernels::cpu
