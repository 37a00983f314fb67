// Losses as sums, their gradients, and what they count. Rows are all leading dims of the logits together.
//
//   cross_entropy        logits c [..., classes], targets i32 [...] → loss f64 [1], lse f32 [rows]
//     lse = ln Σ exp(x); of each row whose target t is not ignore_index, loss += (1 − s)(lse − x_t) + s (lse − mean(x))
//     with s = label_smoothing. The probabilities are never stored.
//   cross_entropy_grad   logits c, targets, lse, seed f32 [seeds] → dlogits c (may be logits)
//     seed (exp(x − lse) − (1 − s)[i = t] − s / classes); 0 in ignored rows. Of several seeds the first is that of the
//     first rows / seeds rows, and so on. REQUIRES: seeds divides rows.
//   cross_entropy_and_grad  logits c, targets, seed f32 [1] → loss, dlogits c (may be logits): as both; each row is
//     read from memory once, and its probabilities are made where it still is (cache or shared memory)
//   cross_entropy_count  targets i32 → count f64 [1]: targets that are not ignored
//   correct_count        logits c, targets i32 → correct f64 [1]: targets, not ignored, whose logit is the largest
//                        (among equals, the first); none in a row with a NaN
//
//   Where the classes are cut over ranks, a rank has the logits of the classes [origin, origin + columns) of `classes`
//   (attribute; origin: Call::origin). Columns from `classes` on are padding, not read as logits; their gradient is 0.
//   cross_entropy_stats     logits c [..., columns], targets i32 [...] → stats f32 [1, rows, 5], for the logits here:
//                           {the largest, Σ exp(x − largest), the target's (0 where it is elsewhere, or ignored), Σ x,
//                           the class of the largest (the first of equals; −1 if none is here, NaN if one is NaN)}
//   cross_entropy_gathered  logits c [..., columns] (not read), stats f32 [parts, rows, 5] of all ranks, targets
//                           → loss, lse: as cross_entropy
//   cross_entropy_grad      with `classes`: the same for the logits that are here
//   correct_count_gathered  stats [parts, rows, 5], targets → correct: as correct_count
//   REQUIRES: at most 2²⁴ classes, whose numbers are exact in f32; parts in the order of their classes.
//   Source: Shoeybi et al., "Megatron-LM", 2019, section 3, which gathers less than the logits for the same loss.
//
//
//   mse                  prediction c, target c or f32 → loss f64 [1]: Σ (p − t)²
//   mse_grad             prediction, target, seed f32 [1] → dprediction c (may be prediction): 2 (p − t) seed
//   mse_count            target → count f64 [1]: its number of elements
//
// `accumulate` adds to the f64 output. Sums over rows and elements are f64 in an order that shapes alone fix. Throws
// DataError, before anything is written, for a target that is neither ignore_index nor in [0, classes).
// Label smoothing: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016, section 7.
#pragma once

#include <cstdint>
#include <span>

namespace trainer::kernels {

/// Throws DataError, naming the place and the value, unless every target is `ignore_index` or in [0, classes).
void check_targets(std::span<const std::int32_t> targets, std::int64_t classes, std::int64_t ignore_index);

}  // namespace trainer::kernels
