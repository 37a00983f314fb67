// What planning must know of the GPU's kernels: layouts and sizes. No CUDA is needed to ask; the kernels keep within
// what stands here.
#pragma once

#include "engine/core/fused_attention.h"
#include "engine/core/signature.h"

namespace trainer::kernels::cuda {

/// Bytes that a matrix product may use of its launch's workspace.
std::int64_t product_workspace(int capability);

/// Bytes of the weight of quantized_linear or of its gradient in the compute dtype, with which its workspace begins.
std::int64_t dequantized_bytes(const Signature& quantized);

/// The scales of the products of linear, or of a gradient of it, where they are of fp8.
Fp8Scales product_scales(const Signature& linear);

/// Whether linear_grad_weight makes the weight's gradient in f32, in its workspace first, because no product of these
/// dtypes gives `r`: the product's result is c or f32.
bool rounds_apart(const Signature& linear_grad_weight);

/// Whether attention of this signature is cuDNN's fused kernel wherever a build has cuDNN and the library takes it.
bool uses_cudnn(const Signature& attention);
/// The same of attention_grad: its pieces, or none.
FusedGradPieces cudnn_pieces(const Signature& attention_grad, int capability);

/// Of devices with this compute capability (90 for 9.0) and so many streaming multiprocessors.
class CudaTarget final : public Target {
 public:
  CudaTarget(int capability, int units) : capability_(capability), units_(units) {}
  /// Row-major: cuBLASLt takes operands as they lie.
  std::int64_t workspace_bytes(const Signature& signature) const override;
  /// cuBLASLt's epilogues; in f32 the activation is a pass of its own.
  bool fuses_gelu(DType compute) const override { return compute == DType::bf16 || compute == DType::f16; }
  Fp8Scales fp8_scales() const override { return fp8_scales_of(capability_); }
  /// Communicators of their own on streams of their own go on beside each other.
  int communication_streams() const override { return 3; }

 private:
  int capability_;
  int units_;
};

}  // namespace trainer::kernels::cuda
