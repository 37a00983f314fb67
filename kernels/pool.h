// Pooling over h and w of NCHW planes; square windows. Attributes: kernel, stride, padding. With n, ch leading:
// oh = (h + 2 padding − kernel) / stride + 1, likewise ow.
//
//   max_pool2d        x c [n, ch, h, w] → y c [n, ch, oh, ow], index i32 of y's shape: the place of the largest
//                     in the h·w plane,
//                     the first of equals in row-major order; a NaN counts as the largest. Padding never wins.
//   max_pool2d_grad   dy c, index i32 → dx c [n, ch, h, w]; places named several times sum in f32
//   avg_pool2d        x c → y c: the sum of the window, padding as zeros, over kernel²
//   avg_pool2d_grad   dy c → dx c
#pragma once
