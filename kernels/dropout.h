// dropout: x c [batch, ...], step i32 [1] → y c, where y may be x. Its gradient is itself, applied to dy.
//
// Element e of sample s (s = Call::origin + the index in dim 0) at step t keeps its value, divided by 1 − p, where word e mod 4 of
// philox(key, s, (t << 40) + e / 4) is at least p · 2³²; else it becomes 0. So the mask depends neither on how a batch is
// cut nor on threads, and recomputation repeats it. Attributes: p (real, in [0, 1)), key (the 64-bit key, two's complement).
// REQUIRES: fewer than 2³⁴ elements in a sample.
// Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", 2014; engine/core/random.h.
#pragma once
