// The optimizer's step, what surrounds it, and what data strategies do to weights between steps.
#include "engine/core/records/define.h"

namespace trainer::records {
namespace {

OpRecord optimizer_of(Op op, Operands states, AttributeDefs attributes, std::string_view source = "gradient",
                      std::string_view what = "r [n]") {
  Operands operands{update("master", "f32 [n]"), in(source, what)};
  operands.insert(operands.end(), states.begin(), states.end());
  for (const OperandDef& scalar : {in("lr", "f32 [1]"), in("scalars", "f32 [4]"), in("applied", "i32 [1]")})
    operands.push_back(scalar);
  operands.push_back(out("working", "bf16 \\| f16 [n]", {}, "working"));
  for (const AttributeDef& def :
       {real("weight_decay", 0.0), integer("decay_elements", std::int64_t{0}), flag("working", false)})
    attributes.push_back(def);
  return {.op = op, .operands = std::move(operands), .attributes = std::move(attributes), .work = WorkClass::own};
}

}  // namespace

OpRecord loss_seed(Op op) {
  return {.op = op,
          .operands = {in("count", "f64 [1]"), in("scalars", "f32 [4]"), out("seed", "f32 [1]")},
          .attributes = {integer("samples", "the count is what is divided by")},
          .work = WorkClass::scalars,
          .note = "scalars.loss_scale / max(count, 1)"};
}

OpRecord sum_squares(Op op) {
  return {.op = op,
          .traits = {scratch},
          .operands = {in("x", "r [n]"), sum("squares", "f64 [1]")},
          .attributes = {integer("first", std::int64_t{0}), integer("last", "the end"), real("scale", 1.0)},
          .work = WorkClass::own,
          .bandwidth = 0.92,
          .note = "scale · Σ x² of the elements i with first ≤ `Call::origin` + i < last"};
}

OpRecord update_scalars(Op op) {
  constexpr std::string_view kDynamic = "of use with `dynamic` only";
  return {.op = op,
          .operands = {in("squares", "f64 [1]"), in("loss", "f64 [1]"), in("count", "f64 [1]"),
                       update("scalars", "f32 [4]"), update("applied", "i32 [1]"),
                       update("good_steps", "i32 [1]", "dynamic")},
          .attributes = {real("clip_norm", 0.0), flag("dynamic", false), integer("growth_interval", kDynamic),
                         real("growth_factor", kDynamic), real("backoff_factor", kDynamic),
                         real("largest_scale", kDynamic), real("smallest_scale", kDynamic)},
          .work = WorkClass::scalars,
          .note = "clip_norm 0: none"};
}

OpRecord sgd(Op op) {
  return optimizer_of(op, {state("momentum", "has_momentum")},
                      {real("momentum", 0.0), flag("nesterov", false), flag("has_momentum", false)});
}

OpRecord adam(Op op) { return optimizer_of(op, {state("m"), state("v")}, {real("beta1"), real("beta2"), real("eps")}); }

OpRecord adamw(Op op) {
  return optimizer_of(op, {state("m"), state("v")}, {real("beta1"), real("beta2"), real("eps")});
}

OpRecord lion(Op op) { return optimizer_of(op, {state("m")}, {real("beta1"), real("beta2")}); }
OpRecord muon_momentum(Op op) {
  return {.op = op,
          .operands = {in("gradient", "r [n]"), state("momentum"), in("scalars", "f32 [4]"), in("applied", "i32 [1]"),
                       out("u", "f32 [n]")},
          .attributes = {real("momentum"), flag("nesterov", false)}};
}

OpRecord muon_orthogonalize(Op op) {
  return {.op = op,
          .traits = {scratch},
          .operands = {update("x", "f32 [parts, n]"), in("scalars", "f32 [4]")},
          .attributes = {integer("steps"),
                         {.name = "adjust", .type = Type::choice, .choices = {"original", "match_rms_adamw"}},
                         real("eps"),
                         {.name = "matrices", .type = Type::text}},
          .work = WorkClass::orthogonalize};
}

OpRecord muon(Op op) { return optimizer_of(op, {}, {}, "x", "f32 [n]"); }

// Between steps.
OpRecord outer_gradient(Op op) {
  return {.op = op,
          .operands = {in("anchor", "f32 [n]"), in("master", "f32 [n]"), out("gradient", "f32 [n]", "master")},
          .note = "anchor − master"};
}

OpRecord outer_step(Op op) {
  return {.op = op,
          .operands = {update("anchor", "f32 [n]"), update("momentum", "f32 [n]"), in("gradient", "f32 [n]"),
                       out("master", "f32 [n]", "gradient")},
          .attributes = {real("factor"), real("lr"), real("momentum"), flag("nesterov", false)}};
}

OpRecord apply_delayed(Op op) {
  return {.op = op,
          .operands = {update("master", "f32 [n]"), in("snapshot", "f32 [n]"), in("average", "f32 [n]")},
          .attributes = {real("factor")},
          .note = "master + factor · average − snapshot"};
}

}  // namespace trainer::records
