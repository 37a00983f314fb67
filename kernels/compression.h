// Gradient compression with error feedback: what a rank could not send in a step it adds to its gradient in the next.
//
// With g the gradient, e the residual (state of the rank, 0 at first) and a = g + e:
//   compress_bf16        g r [n], e f32 [n] → q bf16 [n]; (e in place): q = a rounded, e = a − q. Its inverse: `cast`
//   quantize_int8        g r [n], e f32 [n] → u8 [slices · int8_bytes(n / slices)]; (e in place): in blocks of 256
//                        elements of a slice, scale = max |a| / 127, code = a / scale rounded (ties to even),
//                        e = a − code · scale.
//                        A block whose scale is not a normal number sends zeros and keeps everything.
//                        Without `feedback` there is no e: q = g alone, and what rounding takes is lost.
//   dequantize_int8      u8 [slices · int8_bytes(n / slices)] → y r [n] = code · scale, the slices one after the other
//   dequantize_sum_int8  u8 [slices · int8_bytes(n)] → y r [n]: the sum over the slices, in order, in f32
//   top_k_compress       g r [n], e f32 [n] → u8 [top_k_bytes(k)]; (e in place): the k elements with the largest |a|;
//                        among equals, the lower index.
//                        e = a, but 0 where it was sent
//   top_k_sum            u8 [ranks · top_k_bytes(k)] → y r [n]: 0, plus every pair, by rank, in f32
//
// Layouts: engine/core/compression.h. REQUIRES: slices divides n; 1 <= k <= n < 2³¹.
// Values that are not finite arrive as such (infinities of int8 as NaN, and their block with them), so that the step
// stops. The residual is never poisoned: for the values that go with them it stays what it was (top_k_compress: it
// becomes 0). What is sent does not depend on the number of threads, nor the top k on the instruction set.
//
// Attributes: slices (1), feedback (true); k, ranks.
// Sources: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014 (error feedback); Lin et al., "Deep
// Gradient Compression", ICLR 2018 (top k; without its momentum correction, which belongs to the optimizer);
// Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019 (why it converges); Dettmers, "8-Bit Approximations for
// Parallelism in Deep Learning", ICLR 2016 (blocks with a scale of their own).
#pragma once
