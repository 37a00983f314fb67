// Losses, what they count, and right answers.
#include "engine/core/records/define.h"

namespace trainer::records {
namespace {

AttributeDef ignore_index() { return integer("ignore_index", -100); }

AttributeDef label_smoothing() {
  AttributeDef def = real("label_smoothing", 0.0);
  def.below = 1;
  return def;
}

AttributeDef classes() { return integer("classes", "the classes are not cut"); }

}  // namespace

OpRecord cross_entropy(Op op) {
  return {.op = op,
          .traits = {graph_file, scratch},
          .operands = {in("logits", "c [..., classes]"), in("targets", "i32 [...]"), sum("loss", "f64 [1]"),
                       out("lse", "f32 [rows]")},
          .attributes = {both(from(-kInfinity, ignore_index()), "targets of this value do not count"),
                         both(label_smoothing(), "the share of the target that is spread over all classes")},
          .work = WorkClass::rows,
          .bandwidth = 0.92,
          .note = "the sum over targets that are not ignored"};
}

OpRecord cross_entropy_grad(Op op) {
  return {.op = op,
          .traits = {backward},
          .operands = {in("logits", "c"), in("targets", "i32"), in("lse", "f32"), in("seed", "f32 [seeds]"),
                       out("dlogits", "c", "logits")},
          .attributes = {ignore_index(), label_smoothing(), classes()},
          .work = WorkClass::rows,
          .note = "d(loss sum)/dlogits · seed; of several seeds each is that of rows / seeds rows"};
}

OpRecord cross_entropy_and_grad(Op op) {
  return {.op = op,
          .traits = {backward, scratch},
          .operands = {in("logits", "c [..., classes]"), in("targets", "i32 [...]"), in("seed", "f32 [1]"),
                       sum("loss", "f64 [1]"), out("dlogits", "c", "logits")},
          .attributes = {ignore_index(), label_smoothing()},
          .work = WorkClass::rows,
          .bandwidth = 0.92,
          .note = "`cross_entropy` and `cross_entropy_grad` in one pass over memory"};
}

OpRecord cross_entropy_count(Op op) {
  return {.op = op,
          .traits = {scratch},
          .operands = {in("targets", "i32"), sum("count", "f64 [1]")},
          .attributes = {ignore_index()}};
}

OpRecord correct_count(Op op) {
  return {.op = op,
          .traits = {scratch},
          .operands = {in("logits", "c [..., classes]"), in("targets", "i32 [...]"), sum("correct", "f64 [1]")},
          .attributes = {ignore_index()},
          .work = WorkClass::rows,
          .note = "largest logit, the first of equals, is the target"};
}

OpRecord cross_entropy_stats(Op op) {
  return {.op = op,
          .operands = {in("logits", "c [..., columns]"), in("targets", "i32 [...]"), out("stats", "f32 [1, rows, 5]")},
          .attributes = {classes(), ignore_index()},
          .work = WorkClass::rows,
          .bandwidth = 0.92};
}

OpRecord cross_entropy_gathered(Op op) {
  return {.op = op,
          .traits = {scratch},
          .operands = {in("logits", "c [..., columns] (not read)"), in("stats", "f32 [parts, rows, 5]"),
                       in("targets", "i32 [...]"), sum("loss", "f64 [1]"), out("lse", "f32 [rows]")},
          .attributes = {classes(), ignore_index(), label_smoothing()},
          .work = WorkClass::own};
}

OpRecord correct_count_gathered(Op op) {
  return {.op = op,
          .traits = {scratch},
          .operands = {in("stats", "f32 [parts, rows, 5]"), in("targets", "i32 [...]"), sum("correct", "f64 [1]")},
          .attributes = {classes(), ignore_index()},
          .work = WorkClass::own};
}

OpRecord sequence_nll(Op op) {
  return {.op = op,
          .operands = {in("logits", "c [sequences, ..., columns] (not read)"), in("stats", "f32 [parts, rows, 5]"),
                       in("targets", "i32 [sequences, ...]"), out("nll", "f64 [sequences]"), out("lse", "f32 [rows]")},
          .attributes = {classes(), ignore_index()},
          .work = WorkClass::own,
          .timed_as = "cross_entropy_gathered",
          .note = "of each sequence the sum of −ln p over its targets that are not ignored"};
}

OpRecord dpo_loss(Op op) {
  return {.op = op,
          .operands = {in("policy", "f64 [2·pairs]"), in("reference", "f64 [2·pairs]"),
                       in("targets", "i32 [2·pairs, ...]"), sum("loss", "f64 [1]"), sum("figures", "f64 [4]")},
          .attributes = {real("beta"), ignore_index()},
          .work = WorkClass::scalars,
          .timed_as = "loss_seed",
          .note = "Rafailov et al. 2023, equation 7, of pairs (chosen, rejected) of `sequence_nll`"};
}

OpRecord dpo_loss_grad(Op op) {
  return {.op = op,
          .traits = {backward},
          .operands = {in("policy", "f64 [2·pairs]"), in("reference", "f64 [2·pairs]"),
                       in("targets", "i32 [2·pairs, ...]"), in("seed", "f32 [1]"), out("dpolicy", "f32 [2·pairs]")},
          .attributes = {real("beta"), ignore_index()},
          .work = WorkClass::scalars,
          .timed_as = "loss_seed"};
}

OpRecord dpo_count(Op op) {
  return {.op = op,
          .operands = {in("targets", "i32 [2·pairs, ...]"), sum("count", "f64 [1]")},
          .attributes = {ignore_index()},
          .work = WorkClass::scalars,
          .timed_as = "loss_seed",
          .note = "pairs with a target that is not ignored"};
}

OpRecord mse(Op op) {
  return {.op = op,
          .traits = {graph_file, scratch},
          .operands = {in("prediction", "c"), in("target", "c or f32"), sum("loss", "f64 [1]")},
          .note = "the sum of squares"};
}

OpRecord mse_grad(Op op) {
  return {.op = op,
          .traits = {backward},
          .operands = {in("prediction", "c"), in("target", "c or f32"), in("seed", "f32 [1]"),
                       out("dprediction", "c", "prediction")},
          .note = "2 (prediction − target) · seed"};
}

OpRecord mse_count(Op op) {
  return {.op = op,
          .traits = {scratch},
          .operands = {in("target", "c or f32"), sum("count", "f64 [1]")},
          .note = "its number of elements"};
}

}  // namespace trainer::records
