// A convolution whose windows are one place: a product for each sample, of operands as they lie in NCHW.
//
//   y[n] = weight · x[n]    dx[n] = weightᵀ · dy[n]    dweight = Σ over n of dy[n] · x[n]ᵀ
//
// where x[n] is [in, places] and y[n] is [out, places]. oneDNN computes it with the channels last or in blocks: the
// change of layout moves all activations once more, which for such convolutions is as much work as they are.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/convolution/convolution.h"

namespace trainer::kernels::cpu::pointwise {

/// Whether it is one, without padding, stride and bias, and faster so.
bool is_faster(const Convolution& convolution);

std::int64_t workspace_bytes(const Convolution& convolution, Pass pass, int threads);

/// Operands in the order of the op. REQUIRES: workspace of `workspace_bytes`, 64-byte aligned.
void run(const Convolution& convolution, Pass pass, int threads, std::span<void* const> operands, void* workspace);

}  // namespace trainer::kernels::cpu::pointwise
