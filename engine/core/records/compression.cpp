// Gradients and weights as codes, before they travel and after.
#include "engine/core/records/define.h"

namespace trainer::records {

OpRecord compress_bf16(Op op) {
  return {.op = op, .operands = {in("gradient", "r [n]"), update("residual", "f32 [n]"), out("packet", "bf16 [n]")}};
}

OpRecord quantize_int8(Op op) {
  return {.op = op,
          .operands = {in("gradient", "r [n]"), update("residual", "f32 [n]", "feedback"),
                       out("packet", "u8 [slices · int8_bytes(n / slices)]")},
          .attributes = {integer("slices", 1), flag("feedback", true)}};
}

OpRecord dequantize_int8(Op op) {
  return {.op = op,
          .operands = {in("packet", "u8 [slices · int8_bytes(n / slices)]"), out("y", "r [n]")},
          .attributes = {integer("slices", 1)}};
}

OpRecord dequantize_sum_int8(Op op) {
  return {.op = op,
          .operands = {in("packet", "u8 [slices · int8_bytes(n)]"), out("y", "r [n]")},
          .attributes = {integer("slices", 1)},
          .note = "the sum over the slices, in order"};
}

OpRecord top_k_compress(Op op) {
  return {.op = op,
          .traits = {scratch},
          .operands = {in("gradient", "r [n]"), update("residual", "f32 [n]"), out("packet", "u8 [top_k_bytes(k)]")},
          .attributes = {integer("k")},
          .bandwidth = 0.25};
}

OpRecord top_k_sum(Op op) {
  return {.op = op,
          .operands = {in("packets", "u8 [ranks · top_k_bytes(k)]"), out("y", "r [n]")},
          .attributes = {integer("k"), integer("ranks")},
          .bandwidth = 0.25,
          .note = "the pairs of all ranks added to 0, by rank"};
}

}  // namespace trainer::records
