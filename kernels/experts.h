// Mixtures of experts. `c` is the compute dtype, `r` the dtype of parameter gradients; T tokens [batch, seq], k choices
// of each, E experts. A choice is the number of an expert, or -1: none. Sums are f32 or better, in an order that shapes
// and choices fix.
//
// route
//   logits c [batch, seq, E], bias f32 [E] if `biased` → weights f32 [batch, seq, k], choices i32 [batch, seq, k]
//
//   s = softmax(logits) over the experts, or sigmoid(logits), by `score`. A token's choices are the k largest s + bias,
//   the largest first, the smaller number first among equals; with `groups` > 1 only of the `top_groups` groups
//   (neighbours, E / groups each) whose two largest s + bias have the largest sum. weights = scale · s of the choices,
//   with `normalize` divided by their sum (and that plus 1e-20).
//
// route_grad
//   dweights f32, logits c, choices i32, seed f32 [1] if `losses` → dlogits c
//
//   The gradient of Σ dweights · weights, in which choices are constants, and if `losses` of seed · the losses below.
//
// expert_capacity
//   choices i32 [batch, seq, k] → kept i32 [batch, seq, k]
//
//   In each sample an expert keeps `capacity` choices: all first choices by position, then the second ones …
//
// router_losses
//   logits c, choices i32, kept i32 if `capacity`, sums f64 [2] (in place)
//
//   sums[0] += Σ over samples of aux · E · Σ_e f_e P_e + z · (mean over positions of (log Σ exp logits)²); sums[1] +=
//   the number of -1 in kept. f_e is the share of the sample's choices that are e, P_e the mean over its positions of
//   s_e / Σ s.
//
//   With `counts`, of sums f64 [E] (in place): sums[e] += how many choices are e; logits are not read.
//
//   With `balance`, of sums f64 [E], scalars f32 [4], bias f32 [E] (in place) alone: bias[e] −= rate · sign(sums[e] −
//   mean of sums), unless scalars.factor is 0: the step is left out.
//
// expert_linear
//   x c [..., in] or [..., k, in], choices i32 [..., k], weight c [E, out, in] → y c [..., k, out] or [..., out]
//
//   y[t, j] = weight[choices[t, j]] · x[t] (or x[t, j]), 0 where that is -1; without k in y the sum over j.
//
// expert_linear_grad_input
//   dy as y, choices, weight → dx as x: summed over j where x has no k
//
// expert_linear_grad_weight
//   x, dy, choices → dweight r [E, out, in]; `accumulate` adds
//
// weigh
//   x c [..., n], weights f32 [...] → y c: each row times its weight
//
// row_dots
//   a c [..., n], b c [..., n] → dots f32 [...]: Σ a · b of each row
//
// Where experts are cut into P parts over ranks (engine/ops/experts.cpp), with B blocks of the batch, one for each
// rank, and buffers of `rows` rows for each part:
//
// expert_slots
//   choices (or some of their rows, [tokens, k]) → slots i32 like choices, sources i32 [B, P, rows], numbers i32 [B, P,
//   rows]
//
//   In a block, choices take the rows of the part that has their expert (E / P neighbours), all first choices by
//   position, then the second ones …: slot p · rows + r, or -1 where r would be `rows` or more, or the choice is -1.
//   sources[p, r] is that choice in the numbering of the block, t · k + j, and numbers[p, r] its expert in that of the
//   part; both are -1 in rows that nothing takes.
//
// dispatch
//   x [batch, seq, n] or [batch, seq, k, n], slots, sources → rows [B, P, rows, n]: x of each source, or 0
//
// combine
//   rows, slots, sources → y as x: each token's rows, with k in y each choice's, 0 for slots -1
//
//   Sums are f32, in the order of j.
//
// expert_linear and its gradients with `parts` P > 1 take choices [B, P, …], which are numbers within part p of the
// weight's experts. A rank's kernel has one part, and so knows no others. `filled` is for costs only.
//
// Work follows the choices, not E: rows are sorted by expert, and each expert's product is of its own.
#pragma once

#include <cstdint>

#include "engine/core/check.h"
#include "engine/core/op_record.h"
#include "engine/core/signature.h"
#include "kernels/prepare.h"

namespace trainer::kernels {

/// The sizes of one of the expert_linear ops. An operand without k has a row for each token, one with k for each
/// choice.
struct ExpertSizes {
  std::int64_t tokens = 0, k = 0, experts = 0, in = 0, out = 0;
  bool x_by_choice = false, y_by_choice = false;  ///< or dx, dy
  std::int64_t choices() const { return tokens * k; }
  std::int64_t x_rows() const { return x_by_choice ? choices() : tokens; }
  std::int64_t y_rows() const { return y_by_choice ? choices() : tokens; }
};

/// Of operands at these places. Raises Bug where the shapes do not fit.
inline ExpertSizes expert_sizes(const Signature& s, std::size_t x, std::size_t y, std::size_t choices,
                                std::size_t weight) {
  expect_operands(s, 4);
  const Shape &of_x = s.operands[x].shape, &of_y = s.operands[y].shape, &of = s.operands[choices].shape,
              &w = s.operands[weight].shape;
  ExpertSizes sizes;
  CHECK(w.rank() == 3 && s.operands[choices].dtype == DType::i32, describe(s) + ": choices i32, weight [E, out, in]");
  CHECK(integer(s, "parts") == 1 || of[1] == 1, describe(s) + ": a rank has one part of the experts");
  sizes.k = of[-1];
  sizes.tokens = of.elements() / sizes.k;
  sizes.experts = w[0], sizes.out = w[1], sizes.in = w[2];
  sizes.x_by_choice = of_x.rank() > of.rank();
  sizes.y_by_choice = of_y.rank() > of.rank();
  CHECK(of_x[-1] == sizes.in && of_y[-1] == sizes.out && of_x.elements() == sizes.x_rows() * sizes.in &&
            of_y.elements() == sizes.y_rows() * sizes.out,
        describe(s) + ": shapes do not fit");
  return sizes;
}

inline ExpertSizes expert_sizes(const Signature& s) {
  switch (s.op) {
    case Op::expert_linear:
      return expert_sizes(s, 0, 3, 1, 2);
    case Op::expert_linear_grad_input:
      return expert_sizes(s, 3, 0, 1, 2);
    default:
      return expert_sizes(s, 0, 1, 2, 3);
  }
}

/// Of router_losses with `counts`.
struct CountSizes {
  std::int64_t choices = 0, experts = 0;
};

/// Raises Bug for operands that do not fit.
inline CountSizes count_sizes(const Signature& s) {
  expect_operands(s, 3);
  const CountSizes sizes{s.operands[1].elements(), s.operands[2].elements()};
  expect_operand(s, 1, DType::i32, sizes.choices);
  expect_operand(s, 2, DType::f64, sizes.experts);
  return sizes;
}

/// The experts of router_losses with `balance`. Raises Bug for operands that do not fit.
inline std::int64_t balanced_experts(const Signature& s) {
  expect_operands(s, 3);
  const std::int64_t experts = s.operands[0].elements();
  expect_operand(s, 0, DType::f64, experts);
  expect_operand(s, 1, DType::f32, 4);
  expect_operand(s, 2, DType::f32, experts);
  return experts;
}

/// The sizes of what travels.
struct TravelSizes {
  std::int64_t blocks = 0, parts = 0, rows = 0;        ///< of each part
  std::int64_t tokens = 0, k = 0;                      ///< of a block
  std::int64_t columns = 0;                            ///< of dispatch and combine
  bool by_choice = false;                              ///< x or y has a row for each choice
  std::int64_t choices() const { return tokens * k; }  ///< of a block
  std::int64_t slots() const { return parts * rows; }  ///< of a block
  std::int64_t local_rows() const { return blocks * (by_choice ? choices() : tokens); }
};

/// Of expert_slots, dispatch and combine. Raises Bug where the shapes do not fit.
inline TravelSizes travel_sizes(const Signature& s) {
  expect_operands(s, 4);
  const bool moves = s.op != Op::expert_slots;
  const Shape &of = s.operands[moves ? 1 : 0].shape, &sources = s.operands[2].shape;
  CHECK((of.rank() == 3 || of.rank() == 2) && sources.rank() == 3,
        describe(s) + ": [batch, seq, k], or of a part of the rows [tokens, k]; and [blocks, parts, rows]");
  TravelSizes sizes{.blocks = sources[0], .parts = sources[1], .rows = sources[2]};
  CHECK(of[0] % sizes.blocks == 0, describe(s) + ": blocks of samples");
  sizes.k = of[-1];
  sizes.tokens = of.elements() / sizes.k / sizes.blocks;
  expect_shape(s, 1, DType::i32, of);
  expect_shape(s, 2, DType::i32, sources);
  if (!moves) {
    expect_operand(s, 0, DType::i32, of.elements());
    expect_operand(s, 3, DType::i32, sources.elements());
    return sizes;
  }
  const std::size_t local = s.op == Op::dispatch ? 0 : 3, moved = 3 - local;
  const TensorDesc &x = s.operands[local], &rows = s.operands[moved];
  sizes.columns = rows.shape[-1];
  sizes.by_choice = x.elements() == sizes.blocks * sizes.choices() * sizes.columns;
  CHECK(x.dtype == rows.dtype && x.shape[-1] == sizes.columns && x.elements() == sizes.local_rows() * sizes.columns &&
            rows.elements() == sources.elements() * sizes.columns,
        describe(s) + ": shapes do not fit");
  return sizes;
}

}  // namespace trainer::kernels
