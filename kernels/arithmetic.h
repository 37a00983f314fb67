// Sums and products of tensors of dtype c.
//
//   add, mul       a [lead..., s...], b [s...] → y [lead..., s...], where y may be a: b is repeated over the leading dims
//   sum_leading    x [lead..., s...] → y [s...]: the gradient of that repetition. Sums over the leading elements are f32,
//                  in runs that are then added up, in an order that shapes and the device fix.
#pragma once
