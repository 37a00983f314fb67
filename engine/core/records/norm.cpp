// Norms, whose gradients join sums over rows in a second pass, and batch norms, whose sums are f64, so that ranks and
// devices agree about them.
#include "engine/core/records/define.h"

namespace trainer::records {
namespace {

AttributeDef eps(bool in_file = true) {
  return in_file ? both(real("eps", 1e-5), "added to the variance") : real("eps", 1e-5);
}

AttributeDef offset(bool in_file) {
  AttributeDef def = integer("offset", std::int64_t{0});
  def.below = 2;
  return in_file ? both(def, "0, or 1 where the weight is stored less 1") : def;
}

/// Of what a batch norm is in training.
AttributeDefs batch_norm_attributes() {
  return {eps(false), integer("count"), flag("own", false), flag("relu", false)};
}

AttributeDefs with_residual(AttributeDefs all) {
  all.push_back(flag("residual", false));
  return all;
}

AttributeDefs with_gradients_of_both(AttributeDefs all) {
  all.push_back(flag("weight", true));
  all.push_back(flag("bias", true));
  return all;
}

}  // namespace

OpRecord layer_norm(Op op) {
  return {.op = op,
          .traits = {graph_file, norm},
          .operands = {in("x", "c [..., dim]"), in("residual", "c", "residual"), param("weight", "c [dim]"),
                       param("bias", "c [dim]", "bias"), out("y", "c"), out("mean", "f32 [rows]"),
                       out("rstd", "f32 [rows]"), out("sum", "c", "x residual", "residual")},
          .attributes = {eps(), bias(true), flag("residual", false)},
          .work = WorkClass::own,
          .bandwidth = 0.92};
}

OpRecord layer_norm_grad(Op op) {
  return {.op = op,
          .traits = {backward, norm, scratch},
          .operands = {in("dy", "c"), in("x", "c"), param("weight", "c"), in("mean", "f32"), in("rstd", "f32"),
                       in("residual", "c", "residual"), out("dx", "c", "dy residual"),
                       sum("dweight", "r [dim]", "weight"), sum("dbias", "r [dim]", "bias")},
          .attributes = {flag("weight", true), bias(false), flag("residual", false)},
          .work = WorkClass::own,
          .bandwidth = 0.8};
}

OpRecord rms_norm(Op op) {
  return {.op = op,
          .traits = {graph_file, norm},
          .operands = {in("x", "c [..., dim]"), in("residual", "c", "residual"), param("weight", "c [dim]"),
                       out("y", "c"), out("rstd", "f32 [rows]"), out("sum", "c", "x residual", "residual")},
          .attributes = {eps(), offset(true),
                         both({.name = "cast",
                               .type = Type::choice,
                               .otherwise = std::string("after"),
                               .choices = {"before", "after"}},
                              "whether normalised values are rounded before or after the weight multiplies them"),
                         flag("residual", false)},
          .work = WorkClass::own,
          .bandwidth = 0.92};
}

OpRecord rms_norm_grad(Op op) {
  return {
      .op = op,
      .traits = {backward, norm, scratch},
      .operands = {in("dy", "c"), in("x", "c"), param("weight", "c"), in("rstd", "f32"),
                   in("residual", "c", "residual"), out("dx", "c", "dy residual"), sum("dweight", "r [dim]", "weight")},
      .attributes = {flag("weight", true), offset(false), flag("residual", false)},
      .work = WorkClass::own,
      .bandwidth = 0.8};
}

OpRecord batch_norm(Op op) {
  return {.op = op,
          .traits = {graph_file, scratch},
          .operands = {in("x", "c [n, ch, ...]"), param("weight", "c [ch]"), param("bias", "c [ch]"),
                       in("running_mean", "f32 [ch]"), in("running_var", "f32 [ch]"), in("residual", "c", "residual"),
                       out("y", "c", "x residual")},
          .attributes = {eps(),
                         file(real("momentum", 0.1),
                              "how much of a batch's statistics enters the running ones: running = "
                              "(1 − momentum) · running + momentum · batch"),
                         file(flag("sync", false),
                              "whether the statistics that normalise in training are those of all data ranks' "
                              "samples; without, each rank normalises by its own"),
                         flag("residual", false), flag("relu", false)},
          .work = WorkClass::own,
          .note = "by the running statistics; adds the residual, then with `relu` takes max(y, 0)"};
}

OpRecord batch_norm_sums(Op op) {
  return {.op = op,
          .traits = {scratch},
          .operands = {in("x", "c [n, ch, ...]"), out("sums", "f64 [2, ch]")},
          .work = WorkClass::own,
          .note = "Σ x and Σ x² of each channel"};
}

OpRecord batch_norm_apply(Op op) {
  return {.op = op,
          .traits = {scratch},
          .operands = {in("x", "c [n, ch, ...]"), in("sums", "f64 [2, ch]"), param("weight", "c [ch]"),
                       param("bias", "c [ch]"), in("residual", "c", "residual"), out("y", "c", "residual")},
          .attributes = with_residual(batch_norm_attributes()),
          .work = WorkClass::own,
          .note = "by the statistics of `count` elements a channel; residual and relu as in `batch_norm`"};
}

OpRecord batch_norm_update(Op op) {
  return {
      .op = op,
      .operands = {in("sums", "f64 [2, ch]"), update("running_mean", "f32 [ch]"), update("running_var", "f32 [ch]")},
      .attributes = {real("momentum"), integer("count")},
      .work = WorkClass::scalars,
      .note = "the variance over count − 1"};
}

OpRecord batch_norm_grad_sums(Op op) {
  return {
      .op = op,
      .traits = {backward, scratch},
      .operands = {in("dy", "c [n, ch, ...]"), in("x", "c"), in("sums", "f64 [2, ch]"),
                   param("weight", "c [ch]", "relu"), param("bias", "c [ch]", "relu"), out("grad_sums", "f64 [2, ch]"),
                   sum("dweight", "r [ch]", "weight"), sum("dbias", "r [ch]", "bias")},
      .attributes = with_gradients_of_both(batch_norm_attributes()),
      .work = WorkClass::own,
      .note =
          "Σ dy and Σ dy (x − mean) rstd of each channel; with `relu` dy counts as 0 where `batch_norm_apply` made 0"};
}

OpRecord batch_norm_grad(Op op) {
  return {.op = op,
          .traits = {backward, scratch},
          .operands = {in("dy", "c [n, ch, ...]"), in("x", "c"), param("weight", "c [ch]"), in("sums", "f64 [2, ch]"),
                       in("grad_sums", "f64 [2, ch]"), param("bias", "c [ch]", "relu"), out("dx", "c", "dy x")},
          .attributes = batch_norm_attributes(),
          .work = WorkClass::own};
}

}  // namespace trainer::records
