// Loops that convert optimizer states between f32 and what is kept (kernels/state_codes.h).
#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

DECLARE_BY_ISA(void widen_state(const Bf16* from, float* to, std::int64_t count);
               /// Rounds stochastically; `key` is rounding_key's.
               void round_state(const float* from, Bf16* to, std::int64_t count, std::uint32_t key);
               /// From blocks of 256 codes with a scale each, the last of which may be short. Writes whole blocks, what
               /// is beyond `count` as 0.
               void decode_state(bool has_sign, const unsigned char* codes, const float* scales, float* to,
                                 std::int64_t count);
               /// The way back. Reads whole blocks; what is beyond `count` has to be 0.
               void encode_state(bool has_sign, const float* from, unsigned char* codes, float* scales,
                                 std::int64_t count);)

}  // namespace trainer::kernels::cpu
