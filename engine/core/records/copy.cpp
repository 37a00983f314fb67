// Values that move, are cut, joined or rounded, and views of them.
#include "engine/core/records/define.h"

namespace trainer::records {
namespace {

AttributeDef slice_start() { return integer("start", std::int64_t{0}); }

}  // namespace

OpRecord reshape(Op op) {
  return {.op = op,
          .traits = {graph_file, view},
          .operands = {in("x", "any"), out("y", "any")},
          .attributes = {file({.name = "shape", .type = Type::dims}, "the new dims, of which one may be -1")},
          .work = WorkClass::none};
}

OpRecord flatten(Op op) {
  return {
      .op = op, .traits = {graph_file, view}, .operands = {in("x", "any"), out("y", "any")}, .work = WorkClass::none};
}

OpRecord split(Op op) {
  return {.op = op,
          .traits = {graph_file, keeps_columns},
          .operands = {in("x", "c [..., n₀ + n₁ + …, ...]"), many(out("y", "c [..., nᵢ, ...]"))},
          .attributes = {file({.name = "into", .type = Type::pieces},
                              "names and sizes of the pieces, which are read as <name>.<piece>"),
                         both(which_dim(-1), "the dim that is cut; negative: from the last")},
          .timed_as = "copy"};
}

OpRecord concat(Op op) {
  return {.op = op,
          .traits = {graph_file},
          .operands = {many(in("x", "c [..., nᵢ, ...]")), out("y", "c [..., n₀ + n₁ + …, ...]")},
          .attributes = {both(which_dim(-1), "the dim along which they are joined; negative: from the last")},
          .timed_as = "copy"};
}

OpRecord slice(Op op) {
  return {.op = op,
          .traits = {graph_file},
          .operands = {in("x", "c [..., n, ...]"), out("y", "c [..., size, ...]")},
          .attributes = {both(which_dim(-1), "the dim that is cut; negative: from the last"),
                         both(from(-kInfinity, slice_start()), "the first place that is kept; negative: from the end"),
                         file(from(1, integer("size")), "how many places are kept")},
          .timed_as = "copy"};
}

OpRecord slice_grad(Op op) {
  return {.op = op,
          .traits = {backward},
          .operands = {in("dy", "c [..., size, ...]"), out("dx", "c [..., n, ...]")},
          .attributes = {which_dim(-1), slice_start()},
          .timed_as = "copy",
          .note = "0 where x was not kept"};
}

OpRecord expand(Op op) {
  return {.op = op,
          .traits = {graph_file},
          .operands = {in("x", "c [...]"), in("like", "any [..., n, ...] (not read)"), out("y", "c [..., n, ...]")},
          .attributes = {both(integer("dim", std::int64_t{0}),
                              "the dim that the output has and x has not, as many places as there are in that dim "
                              "of the second input; counted from 0")},
          .timed_as = "copy",
          .note = "x once for each place in dim `dim` of like, which y has"};
}

OpRecord transpose(Op op) {
  return {.op = op,
          .traits = {graph_file},
          .operands = {in("x", "c [n₀, n₁, …]"), out("y", "c")},
          .attributes = {both({.name = "dims", .type = Type::dims},
                              "the dims of x in the order in which the output has them, counted from 0")},
          .timed_as = "copy",
          .bandwidth = 0.7,  // one side is read or written in short runs
          .note = "dim i of y is dim dims[i] of x"};
}

OpRecord zero(Op op) { return {.op = op, .operands = {out("y", "any")}}; }
OpRecord cast(Op op) {
  return {.op = op,
          .traits = {elementwise},
          .operands = {in("x", "any float"), out("y", "any float")},
          .work = WorkClass::own,
          .note = "round to nearest even; x any → y the same dtype: a copy of the bytes, in place if need be"};
}

}  // namespace trainer::records
