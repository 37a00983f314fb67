// Work: what the time of a kernel depends on, read off its signature: a class of work, its dtype, a few sizes, and an
// amount. Measurement and prediction of kernels both name them by this one function, so a measured rate is
// looked up as it was written down.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/signature.h"

namespace trainer::cost {

/// time = amount / rate(name, dtype, sizes).
struct Work {
  std::string_view name;     ///< the op's name, with what else its speed depends on: "layer_norm_residual", "cast_bf16"
  DType dtype = DType::f32;  ///< of the first operand of floats
  std::vector<std::int64_t> sizes;  ///< by class, as below; never 0
  double amount = 0;  ///< FLOPs of products, attention and convolutions; bytes read and written of all else
};

/// Sizes by class of work:
///
///   linear, linear_grad_input, linear_grad_weight    rows, in, out. muon_orthogonalize is of class linear, by its last
///                                                    product of a step
///   attention, attention_grad                        batch · heads, keys, head_dim
///   conv2d and its gradients                         n · oh · ow, in · kh · kw, out, oh · ow
///   batch_norm_apply, _sums, _grad and _grad_sums    elements, h · w
///   pools and their gradients                        elements of the larger images, places of a window
///   norms, cross_entropy …, embedding                rows, dim (classes)
///   embedding_grad                                   rows, dim
///   cross_entropy_gathered, correct_count_gathered   rows
///   all else                                         elements of the largest operand
Work work_of(const Signature& signature);

/// Appended to a class: its operands were in memory, and in no cache, but for the one that the kernel before has just
/// written.
inline constexpr std::string_view kFromMemory = "@memory";

/// The class, and a hash of the whole signature: "linear@5d2c…". By that name times of a GPU's kernels are kept, which
/// count for this signature alone: one with a mask, an epilogue or codes of fp8 is of the same class and takes another
/// time.
std::string exact_name(const Signature& signature);

/// Whether amounts of this class are FLOPs.
bool counts_flops(std::string_view work);

/// Whether it multiplies codes of fp8, at the peak of these.
bool multiplies_fp8(const Signature& signature);

}  // namespace trainer::cost
