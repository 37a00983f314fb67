// Sums and products of tensors of dtype c.
//
//   add, mul       a [lead..., s...], b [s...] → y [lead..., s...], where y may be a: b is repeated over the leading
//   dims scale          x → y = factor · x, where y may be x. Attribute: factor sum_leading    x [lead..., s...] → y
//   [s...]: the gradient of that repetition. Sums over the leading elements are f32,
//                  in runs that are then added up, in an order that shapes and the device fix.
//   bias_grad      dy → dbias r [out], out being dim `dim` of dy (negative: from the last): the sum over all other
//   dims, in f32 as above. `accumulate` adds to dbias
#pragma once
