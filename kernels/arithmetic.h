// Sums and products of tensors of dtype c.
//
//   add, mul       a [lead..., s...], b [s...] → y [lead..., s...], where y may be a: b is repeated over the leading dims
//   sum_leading    x [lead..., s...] → y [s...]: the gradient of that repetition. Sums over the leading elements are f32,
//                  in runs of 128 that are then added up, in an order fixed by shapes.
#pragma once
