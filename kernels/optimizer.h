// The step's own scalars and the optimizers, each one pass over memory.
//
//   loss_seed       count f64 [1], scalars f32 [4] → seed f32 [1] = loss_scale / max(count, 1)
//   sum_squares     x r [n] → squares f64 [1] = scale · Σ x², `accumulate` adds; of the elements alone whose index in the unit
//                   (Call::origin + i) lies in [first, last). In f64, by chunks in order: threads do not matter.
//   update_scalars  squares f64 [1], loss f64 [1], count f64 [1], scalars f32 [4], applied i32 [1] → scalars, applied (in place)
//   sgd             master f32 [n], gradient r [n], momentum f32 [n]?, lr f32 [1], scalars, applied, working bf16 [n]?
//                   → master, momentum?, working? (in place)
//   adam, adamw     master, gradient, m f32 [n], v f32 [n], lr, scalars, applied, working? → master, m, v, working?
//   lion            master, gradient, m, lr, scalars, applied, working? → master, m, working?
//
// update_scalars: grad_norm = √squares / loss_scale, loss = loss / max(count, 1), factor = min(1, clip_norm / (grad_norm + 1e-6))
// / loss_scale (clip_norm 0: no clipping), or factor = 0 where squares or loss is not finite; applied += 1 where factor > 0.
//
// Optimizers take g = gradient · factor, do nothing at all where factor is 0, and read t = applied (1 in the first update). First,
// for elements whose index in the unit (Call::origin + i) is below decay_elements, w −= lr · weight_decay · w. Then
//   sgd    b = momentum · b + g;  w −= lr (nesterov ? g + momentum · b : b);  without momentum w −= lr g
//   adam   m = β₁ m + (1 − β₁) g;  v = β₂ v + (1 − β₂) g²;  w −= lr / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + eps)
//   lion   c = β₁ m + (1 − β₁) g;  m = β₂ m + (1 − β₂) g;  w −= lr sign(c)
// and working = w rounded to bf16. adam and adamw are the same arithmetic.
// Attributes: first (0), last (the end), scale (1); clip_norm; momentum, nesterov, has_momentum; beta1, beta2, eps (not lion); weight_decay, decay_elements, working.
// Sources: Kingma and Ba, "Adam", 2015; Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019; Chen et al.,
// "Symbolic Discovery of Optimization Algorithms", 2023 (Lion); Sutskever et al., "On the importance of initialization and
// momentum in deep learning", 2013 (in PyTorch's form).
#pragma once

namespace trainer::kernels {

/// The operand `scalars`.
struct Scalars {
  float factor;      ///< what optimizers multiply gradients by; 0: no update
  float loss_scale;  ///< what the loss was multiplied by
  float grad_norm;   ///< before clipping
  float loss;        ///< mean
};

}  // namespace trainer::kernels
