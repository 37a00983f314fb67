// Means, and the squares of rows that adapters with magnitudes need.
#include "engine/core/records/define.h"

namespace trainer::records {

OpRecord mean(Op op) {
  return {.op = op,
          .traits = {graph_file},
          .operands = {in("x", "c [..., n, ...]"), out("y", "c [..., ...]")},
          .attributes = {both(which_dim(-1),
                              "the dim over which is averaged, which the output has not; negative: "
                              "from the last")},
          .timed_as = "sum_leading",
          .note = "the sum over a dim / n"};
}

OpRecord mean_grad(Op op) {
  return {.op = op,
          .traits = {backward},
          .operands = {in("dy", "c [..., ...]"), out("dx", "c [..., n, ...]")},
          .attributes = {which_dim(-1)},
          .timed_as = "copy"};
}

OpRecord row_squares(Op op) {
  return {.op = op,
          .traits = {costly},
          .operands = {param("weight", "c [out, in]"), param("a", "c [rank, in]"), param("b", "c [out, rank]"),
                       out("squares", "f32 [out]")},
          .attributes = {real("factor")},
          .work = WorkClass::own,
          .note = "of each row of weight + factor · b a the sum of its squares"};
}

OpRecord over_root(Op op) {
  return {.op = op,
          .traits = {},
          .operands = {in("x", "c [n]"), in("squares", "f32 [n]"), out("y", "c [n]")},
          .timed_as = "mul",
          .note = "x / √squares; 0 where squares are 0"};
}

}  // namespace trainer::records
