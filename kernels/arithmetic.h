// Sums and products of tensors of dtype c.
//
//   add, mul       a [lead..., s...], b [s...] → y [lead..., s...], where y may be a: b repeats over the leading dims
//   scale          x → y = factor · x, where y may be x. Attribute: factor
//   sum_leading    x [lead..., s...] → y [s...]: the gradient of that repetition. Sums over the leading elements are
//                  f32, in runs that are then added up, in an order fixed by the shapes and the device.
//   bias_grad      dy → dbias r [out], where out is dim `dim` of dy (negative: from the last): the sum over all other
//                  dims, in f32 as above. `accumulate` adds to dbias
#pragma once
