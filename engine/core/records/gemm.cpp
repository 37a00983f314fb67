// Matrix products of weights.
#include "engine/core/records/define.h"

namespace trainer::records {
namespace {

AttributeDef fp8() {
  return {.name = "fp8",
          .type = Type::choice,
          .otherwise = std::string("none"),
          .choices = {"none", "tensor", "block_128", "block_32"}};
}

}  // namespace

OpRecord linear(Op op) {
  return {
      .op = op,
      .traits = {graph_file, costly, scratch},
      .operands = {in("x", "c [..., in]"), param("weight", "c [out, in]"), param("bias", "c [out]", "bias"),
                   in("residual", "c [..., out]", "residual"), out("y", "c [..., out]"),
                   out("pre", "c [..., out]", {}, "pre")},
      .attributes = {file(from(1, integer("out")), "size of the last dim of the output"), bias(true), tied(),
                     file({.name = "parallel",
                           .type = Type::choice,
                           .otherwise = std::string("none"),
                           .choices = {"none", "column", "row"}},
                          "how tensor parallelism cuts the weight"),
                     flag("partial", false), flag("gelu", false), flag("pre", false), flag("residual", false), fp8()},
      .work = WorkClass::product};
}

OpRecord linear_grad_input(Op op) {
  return {.op = op,
          .traits = {backward, scratch},
          .operands = {in("dy", "c [..., out]"), param("weight", "c [out, in]"), in("pre", "c [..., in]", "gelu"),
                       in("residual", "c [..., in]", "residual"), out("dx", "c [..., in]")},
          .attributes = {flag("gelu", false), flag("residual", false), fp8()},
          .work = WorkClass::product};
}

OpRecord linear_grad_weight(Op op) {
  return {.op = op,
          .traits = {backward, scratch},
          .operands = {in("x", "c [..., in]"), in("dy", "c [..., out]"), sum("dweight", "r [out, in]"),
                       sum("dbias", "r [out]", "bias")},
          .attributes = {bias(false), fp8()},
          .work = WorkClass::product};
}

OpRecord quantized_linear(Op op) {
  return {.op = op,
          .traits = {costly, scratch},
          .operands = {in("x", "c [..., in]"), param("codes", "u8 [out, 64·b], as nf4 [out, 32·b]"),
                       param("scales", "u8 [out, 4], as nf4 [out, b]"), param("groups", "u8 [⌈out / 256⌉, 8·b]", "nf4"),
                       param("bias", "c [out]", "bias"), out("y", "c [..., out]")},
          .attributes = {flag("nf4", false), flag("bias", true), flag("partial", false)},
          .work = WorkClass::product,
          .timed_as = "linear",
          .note = "b blocks of 64 columns"};
}

OpRecord quantized_linear_grad_input(Op op) {
  return {.op = op,
          .traits = {backward, scratch},
          .operands = {in("dy", "c [..., out]"), param("codes", "u8 [out, 64·b], as nf4 [out, 32·b]"),
                       param("scales", "u8 [out, 4], as nf4 [out, b]"), param("groups", "u8 [⌈out / 256⌉, 8·b]", "nf4"),
                       out("dx", "c [..., in]")},
          .attributes = {flag("nf4", false)},
          .work = WorkClass::product,
          .timed_as = "linear_grad_input",
          .note = "b blocks of 64 columns"};
}

}  // namespace trainer::records
