// Pieces of states to f32 and back, by the loops of the processor's instruction set.
#include "kernels/cpu/optimizer/states.h"

#include "engine/core/compression.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/state_codes.h"

namespace trainer::kernels::cpu {

States::States(const Signature& signature, int first, int states, Isa isa)
    : operands_(expect_states(signature, first, states, signature.operands[0].elements())),
      widen_(CHOOSE_BY_ISA(isa, widen_state)),
      round_(CHOOSE_BY_ISA(isa, round_state)),
      decode_(CHOOSE_BY_ISA(isa, decode_state)),
      encode_(CHOOSE_BY_ISA(isa, encode_state)) {
  static_assert(kPiece % kInt8Block == 0);
  CHECK(states <= kMost, describe(signature) + " has too many states");
}

float* States::as_f32(const Call& call, int index) const {
  return index < static_cast<int>(operands_.states.size())
             ? operand<float>(call, operands_.states[static_cast<std::size_t>(index)].at)
             : nullptr;
}

void States::unpack(const Call& call, std::size_t state, std::int64_t begin, std::int64_t end, float* to) const {
  const StateOperands::One& one = operands_.states[state];
  if (format() == StateFormat::bf16) return widen_(operand<Bf16>(call, one.at) + begin, to, end - begin);
  decode_(state == 0, operand<unsigned char>(call, one.at) + begin,
          operand<float>(call, one.scales) + begin / kInt8Block, to, end - begin);
}

void States::pack(const Call& call, std::size_t state, std::int64_t begin, std::int64_t end, const float* from,
                  std::int32_t applied) const {
  const StateOperands::One& one = operands_.states[state];
  if (format() == StateFormat::bf16)
    return round_(from, operand<Bf16>(call, one.at) + begin, end - begin,
                  rounding_key(applied, static_cast<int>(state)));
  encode_(state == 0, from, operand<unsigned char>(call, one.at) + begin,
          operand<float>(call, one.scales) + begin / kInt8Block, end - begin);
}

}  // namespace trainer::kernels::cpu
