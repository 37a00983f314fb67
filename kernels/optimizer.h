// The step's own scalars and the optimizers, each one pass over memory.
//
//   loss_seed       count f64 [1], scalars f32 [4] → seed f32 [1] = loss_scale / max(count, 1), or with
//                   the attribute `samples` loss_scale / samples
//   sum_squares     x r [n] → squares f64 [1] = scale · Σ x², `accumulate` adds; only of elements whose index in the
//                   unit (Call::origin + i) lies in [first, last). In f64, by chunks in order: threads do not matter.
//   update_scalars  squares f64 [1], loss f64 [1], count f64 [1], scalars f32 [4], applied i32 [1]
//                   → scalars, applied (in place)
//   sgd             master f32 [n], gradient r [n], momentum f32 [n]?, lr f32 [1], scalars, applied
//                   → master, momentum? (in place), working bf16 or f16 [n]? (f16: GPUs)
//   adam, adamw     master, gradient, m f32 [n], v f32 [n], lr, scalars, applied → master, m, v (in place), working?
//   lion            master, gradient, m, lr, scalars, applied → master, m (in place), working?
//
// A working copy is the last operand. The states (momentum, m, v) of an optimizer are all f32 [n] as above, all bf16
// [n], or all int8: each u8 [n] followed by its scales f32 [⌈n / 256⌉], in blocks of 256 elements that begin at the
// operand's first (engine/core/compression.h has the size). An update reads them as f32, uses the new ones as f32, and
// then rounds them: state_codes.h says how. v has the unsigned code, the others the signed.
//
// update_scalars: grad_norm = √squares / loss_scale, loss = loss / max(count, 1), factor = min(1, clip_norm /
// (grad_norm + 1e-6)) / loss_scale (clip_norm 0: no clipping), or factor = 0 where grad_norm or loss, as f32, is not
// finite; applied += 1 where factor > 0. With `dynamic` (false where absent) it then sets the loss_scale of the next
// step. Where one of the two was not finite:
//   loss_scale = max(smallest_scale, loss_scale · backoff_factor), good_steps = 0
// else good_steps += 1, and where that reaches growth_interval:
//   loss_scale = min(largest_scale, loss_scale · growth_factor), good_steps = 0.
// A factor of 0 is −0 where no smaller loss scale can help: the scale is not dynamic, was at its smallest, or the two
// were finite. Where the factor before is −0, nothing changes: steps that were started before the host saw the one that
// failed make no update either, until the host writes another factor.
//
// Optimizers take g = gradient · factor, leave weights and states as they are where factor is 0, and read t = applied
// (1 in the first update). First, for elements whose index in the unit (Call::origin + i) is below decay_elements, w −=
// lr · weight_decay · w. Then
//   sgd    b = momentum · b + g;  w −= lr (nesterov ? g + momentum · b : b);  without momentum w −= lr g
//   adam   m = β₁ m + (1 − β₁) g;  v = β₂ v + (1 − β₂) g²;  w −= lr / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + eps)
//   lion   c = β₁ m + (1 − β₁) g;  m = β₂ m + (1 − β₂) g;  w −= lr sign(c)
// and working = w rounded to its dtype, where factor is 0 too. adam and adamw are the same arithmetic.
// Attributes: first (0), last (the end), scale (1); clip_norm, dynamic, growth_interval (integer), growth_factor,
// backoff_factor, largest_scale, smallest_scale (real; with dynamic alone); momentum, nesterov, has_momentum; beta1,
// beta2, eps (not lion); weight_decay, decay_elements, working. Sources: Kingma and Ba, "Adam", 2015; Loshchilov and
// Hutter, "Decoupled Weight Decay Regularization", 2019; Chen et al., "Symbolic Discovery of Optimization Algorithms",
// 2023 (Lion); Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013 (in
// PyTorch's form); Micikevicius et al., "Mixed Precision Training", 2018, section 3.2 (the loss scale), with the rules
// of PyTorch's GradScaler between two bounds.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/signature.h"

namespace trainer::kernels {

/// The operand `scalars`.
struct Scalars {
  float factor;      ///< what optimizers multiply gradients by; 0: no update; −0: nor in the steps that follow
  float loss_scale;  ///< what the loss is multiplied by; with `dynamic`, after update_scalars that of the next step
  float grad_norm;   ///< before clipping
  float loss;        ///< mean
};

/// How an optimizer's states are kept.
enum class StateFormat : std::uint8_t { f32, bf16, int8 };

/// Where an optimizer's states stand among its operands.
struct StateOperands {
  struct One {
    int at = -1;
    int scales = -1;  ///< int8 alone
  };
  StateFormat format = StateFormat::f32;
  std::vector<One> states;
  int end = 0;  ///< the operand after them
};

/// Checks the `states` states of `count` elements from operand `first` on, or raises Bug: of one format, of the right
/// sizes.
StateOperands expect_states(const Signature& signature, int first, int states, std::int64_t count);

}  // namespace trainer::kernels
