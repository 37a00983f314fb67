// Normalisation over the last dim. Rows are all leading dims together.
//
//   layer_norm        x c [..., dim], weight c [dim], bias c [dim]? → y c, mean f32 [rows], rstd f32 [rows]
//     mean = Σ x / dim, rstd = 1 / √(Σ (x − mean)² / dim + eps), y = (x − mean) rstd · weight + bias
//   layer_norm_grad   dy c, x c, weight c, mean, rstd → dx c (may be dy), dweight r [dim], dbias r [dim]?
//     with n = (x − mean) rstd and g = dy · weight: dx = rstd (g − mean(g) − n mean(g n)), dweight = Σ_rows dy n,
//     dbias = Σ_rows dy
//   rms_norm          x c, weight c [dim] → y c, rstd f32 [rows]
//     rstd = 1 / √(Σ x² / dim + eps), y = x rstd · (weight + offset); with `cast: before` x rstd is rounded to c first
//   rms_norm_grad     dy c, x c, weight c, rstd → dx c (may be dy), dweight r [dim]; of weight + offset; the rounding
//                     has a gradient of 1
//
// With the attribute `residual` the forward ops take residual c after x, normalise sum = x + residual (rounded to c),
// and give sum c (may be x or residual) last; the gradients take residual c after rstd and add it to dx (which may be
// residual). A gradient op with `weight: false` gives only dx: its parameters are frozen. The gradient of a bias that
// is not frozen is then bias_grad's. Attributes: eps (forward), bias (layer_norm), offset (rms_norm
// and its gradient: 0 or 1), cast (rms_norm: before or after), weight (gradients; true where absent),
// accumulate (adds to dweight and dbias). The sums over rows are f32, cut over threads and joined in the threads'
// order. Sources: Ba et al., "Layer Normalization", 2016; Zhang and Sennrich, "Root Mean Square Layer Normalization",
// 2019.
#pragma once
