// Mixtures of experts. A choice of -1 is none.
#include "engine/core/records/define.h"

namespace trainer::records {
namespace {

AttributeDef above_zero(AttributeDef def) {
  def.above = true;
  return def;
}

AttributeDef score(bool in_file) {
  AttributeDef def{
      .name = "score", .type = Type::choice, .otherwise = std::string("softmax"), .choices = {"softmax", "sigmoid"}};
  return in_file ? file(def, "what makes scores of the logits") : def;
}

/// How a router chooses and weighs.
AttributeDefs route_attributes(bool in_file) {
  AttributeDefs all{score(in_file), flag("normalize", true), real("scale", 1.0), from(1, integer("groups", 1)),
                    from(1, integer("top_groups", 1))};
  if (!in_file) return all;
  all[1] = file(all[1], "whether a token's weights are divided by their sum");
  all[2].above = true;
  all[2] = file(all[2], "what every weight is multiplied by");
  all[3] = file(all[3], "groups of neighbouring experts, of which only the best are chosen from");
  all[4] = file(all[4], "how many groups are chosen from: those with the largest sum of their two best scores");
  return all;
}

/// The losses of a router that its gradient holds.
AttributeDefs router_losses_attributes() { return {score(false), real("aux", 0.0), real("z", 0.0)}; }

/// Of products by expert.
AttributeDefs expert_attributes() { return {from(1, integer("parts", 1)), real("filled", 1.0)}; }

}  // namespace

OpRecord router(Op op) {
  AttributeDefs attributes{file(from(1, integer("experts")), "how many experts there are"),
                           file(from(1, integer("top_k")), "how many of them each token goes to")};
  for (const AttributeDef& def : route_attributes(true)) attributes.push_back(def);
  attributes.push_back(file(real("aux", 0.0),
                            "factor of a loss that is smallest where experts get equal shares; it "
                            "adds to the gradient, and to aux_loss in the log"));
  attributes.push_back(file(real("z", 0.0), "factor of a loss of large logits, likewise"));
  attributes.push_back(
      file({.name = "balance", .type = Type::choice, .otherwise = std::string("none"), .choices = {"none", "bias"}},
           "bias: experts are chosen by score + e_score_correction_bias, which no gradient moves; each step moves "
           "it towards equal shares of the global batch"));
  attributes.push_back(file(real("balance_rate", 0.001),
                            "by how much, down for an expert with more than the mean, up for one with less; 0: "
                            "it stays as it is"));
  attributes.push_back(flag("biased", false));
  return {
      .op = op,
      .traits = {graph_file, composite},
      .operands = {in("x", "c [batch, seq, dim]"), param("weight", "c [experts, dim]"),
                   in("e_score_correction_bias", "f32 [experts]", "biased"), out("weights", "f32 [batch, seq, top_k]")},
      .attributes = attributes,
      .work = WorkClass::none};
}

OpRecord experts(Op op) {
  return {
      .op = op,
      .traits = {graph_file, composite},
      .operands = {in("x", "c [batch, seq, dim]"), in("weights", "f32 [batch, seq, top_k]"),
                   out("y", "c [batch, seq, dim]")},
      .attributes =
          {file(from(1, integer("hidden")), "size of an expert's hidden layer"),
           file({.name = "act", .type = Type::choice, .otherwise = std::string("silu"), .choices = {"silu", "gelu"}},
                "the activation of the gate; gelu is the approximation by tanh"),
           above_zero(file(real("capacity_factor", "all of a sample"),
                           "an expert takes at most ⌈capacity_factor · seq · top_k / experts⌉ tokens of a "
                           "sample where there are targets; what is over adds nothing")),
           above_zero(file(real("bound", 2.0),
                           "under strategy.expert, without a capacity_factor: in training a rank sends each rank of "
                           "the axis at most `bound` times the mean of its choices; what is over adds nothing"))},
      .work = WorkClass::none};
}

OpRecord route(Op op) {
  AttributeDefs attributes = route_attributes(false);
  attributes.push_back(flag("biased", false));
  for (const AttributeDef& def : {real("aux", 0.0), real("z", 0.0)}) attributes.push_back(def);
  return {.op = op,
          .operands = {in("logits", "c [batch, seq, experts]"), in("bias", "f32 [experts]", "biased"),
                       out("weights", "f32 [batch, seq, k]"), out("choices", "i32 [batch, seq, k]")},
          .attributes = attributes,
          .work = WorkClass::rows,
          .timed_as = "cross_entropy",
          .note = "aux and z are of use to its gradient only"};
}

OpRecord route_grad(Op op) {
  AttributeDefs attributes = router_losses_attributes();
  for (const AttributeDef& def : {flag("normalize", true), real("scale", 1.0), flag("losses", false)})
    attributes.push_back(def);
  return {.op = op,
          .traits = {backward},
          .operands = {in("dweights", "f32 [batch, seq, k]"), in("logits", "c [batch, seq, experts]"),
                       in("choices", "i32 [batch, seq, k]"), in("seed", "f32 [1]", "losses"), out("dlogits", "c")},
          .attributes = attributes,
          .work = WorkClass::own};
}

OpRecord expert_capacity(Op op) {
  return {.op = op,
          .operands = {in("choices", "i32 [batch, seq, k]"), out("kept", "i32 [batch, seq, k]")},
          .attributes = {integer("experts"), integer("capacity")},
          .timed_as = "copy",
          .note =
              "-1 for what an expert has no room for: of a sample it takes `capacity` tokens, first choices "
              "before second ones, then by position"};
}

OpRecord router_losses(Op op) {
  return {.op = op,
          .traits = {scratch},
          .operands = {in("logits", "c [batch, seq, experts]", "!balance"),
                       in("choices", "i32 [batch, seq, k]", "!balance"), in("kept", "i32 [batch, seq, k]", "capacity"),
                       update("sums", "f64 [2] or [experts]"), in("scalars", "f32 [4]", "balance"),
                       update("bias", "f32 [experts]", "balance")},
          .attributes = {score(false), real("aux", 0.0), real("z", 0.0), flag("capacity", false), flag("counts", false),
                         flag("balance", false), real("rate", 0.0)},
          .work = WorkClass::own,
          .timed_as = "cross_entropy",
          .note =
              "adds the losses of each sample, and the number of choices in kept that are -1; `counts`: how "
              "many choices are each expert; `balance`: bias −= rate · sign(sum − mean of sums), where "
              "scalars.factor > 0"};
}

OpRecord expert_linear(Op op) {
  return {.op = op,
          .traits = {costly, scratch},
          .operands = {in("x", "c [..., in] or [..., k, in]"), in("choices", "i32 [..., k]"),
                       param("weight", "c [experts, out, in]"), out("y", "c [..., k, out] or [..., out]")},
          .attributes = expert_attributes(),
          .work = WorkClass::product,
          .note =
              "by the weight of each choice; without k in y the sum over it; with parts > 1 choices "
              "[batch, parts, …] are numbers within a part of the experts; filled: the share of choices that "
              "are some, for costs"};
}

OpRecord expert_linear_grad_input(Op op) {
  return {.op = op,
          .traits = {backward, scratch},
          .operands = {in("dy", "c [..., k, out] or [..., out]"), in("choices", "i32 [..., k]"),
                       param("weight", "c [experts, out, in]"), out("dx", "c [..., in] or [..., k, in]")},
          .attributes = expert_attributes(),
          .work = WorkClass::product};
}

OpRecord expert_linear_grad_weight(Op op) {
  return {.op = op,
          .traits = {backward, scratch},
          .operands = {in("x", "c [..., in] or [..., k, in]"), in("dy", "c [..., k, out] or [..., out]"),
                       in("choices", "i32 [..., k]"), sum("dweight", "r [experts, out, in]")},
          .attributes = expert_attributes(),
          .work = WorkClass::product};
}

OpRecord weigh(Op op) {
  return {.op = op,
          .traits = {graph_file, keeps_columns},
          .operands = {in("x", "c [..., n]"), in("weights", "f32 [...] or [..., 1]"), out("y", "c [..., n]", "x")},
          .timed_as = "mul",
          .note = "rows of x times their weights"};
}

OpRecord row_dots(Op op) {
  return {.op = op,
          .traits = {backward},
          .operands = {in("a", "c [..., n]"), in("b", "c [..., n]"), out("dots", "f32 [...]")},
          .timed_as = "mul",
          .note = "Σ a b of each row"};
}

OpRecord expert_slots(Op op) {
  return {.op = op,
          .operands = {in("choices", "i32 [batch, seq, k]"), out("slots", "i32 [batch, seq, k]"),
                       out("sources", "i32 [blocks, parts, rows]"), out("numbers", "i32 [blocks, parts, rows]")},
          .attributes = {integer("experts")},
          .timed_as = "copy",
          .note =
              "in each block of the batch, choices of a part of the experts take its rows, first choices before "
              "second ones, then by position; slots: parts · rows of a block in one numbering, -1 for what is "
              "over; sources: choices of a block in one numbering, numbers: experts within a part, -1: none"};
}

OpRecord dispatch(Op op) {
  return {.op = op,
          .operands = {in("x", "any float [batch, seq, n] or [batch, seq, k, n]"), in("slots", "i32 [batch, seq, k]"),
                       in("sources", "i32 [blocks, parts, rows]"), out("rows", "x [blocks, parts, rows, n]")},
          .timed_as = "copy",
          .note = "of each source the row of x that it is of, 0 where there is none"};
}

OpRecord combine(Op op) {
  return {
      .op = op,
      .operands = {in("rows", "any float [blocks, parts, rows, n]"), in("slots", "i32 [batch, seq, k]"),
                   in("sources", "i32 [blocks, parts, rows]"), out("y", "rows [batch, seq, n] or [batch, seq, k, n]")},
      .timed_as = "copy",
      .note = "the rows in its slots; without k in y their sum"};
}

}  // namespace trainer::records
