// Signature: what a kernel is prepared for: an op, its attributes and the dtype and shape of every operand, which is
// row-major. A plan holds each distinct signature once; a Launch names one and gives the addresses.
// Target: what planning must know of a device's kernels (sizes, streams) without the device being there.
#pragma once

#include <optional>
#include <vector>

#include "engine/core/attributes.h"
#include "engine/core/dtype.h"
#include "engine/core/fp8.h"
#include "engine/core/op.h"
#include "engine/core/shape.h"

namespace trainer {

struct TensorDesc {
  DType dtype = DType::f32;
  Shape shape;

  std::int64_t elements() const { return shape.elements(); }
  std::int64_t bytes() const { return elements() * size_of(dtype); }
  friend bool operator==(const TensorDesc&, const TensorDesc&) = default;
};

struct Signature {
  Op op;
  Attributes attributes;
  std::vector<TensorDesc> operands;  ///< inputs, then outputs, in the order of kernels/<op>.h

  friend bool operator==(const Signature&, const Signature&) = default;
};

/// Every buffer, and every workspace, begins at a multiple of so many bytes: cuBLASLt requires it of its workspace.
inline constexpr std::int64_t kBufferAlignment = 256;
/// Rounded up to it.
constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}
/// Operands of kernels may be slices of a buffer: they begin at multiples of so many bytes.
inline constexpr std::int64_t kOperandAlignment = 64;

/// Sizes of a device's kernels. Pure functions: the same answers with and without the device.
class Target {
 public:
  virtual ~Target() = default;
  /// Scratch memory one run of the kernel needs, beside its operands. A multiple of 64; the kernel keeps within.
  virtual std::int64_t workspace_bytes(const Signature& signature) const = 0;
  /// Whether products in this compute dtype take GELU (by tanh) and its gradient as an epilogue (kernels/linear.h).
  virtual bool fuses_gelu(DType) const { return false; }
  /// Whether products add another tensor to their result as an epilogue.
  virtual bool fuses_residual() const { return false; }
  /// The scales of products in fp8 that the device's kernels take; none: they have no such products.
  virtual Fp8Scales fp8_scales() const { return Fp8Scales::none; }
  /// How many communications of a rank the device can have under way at once, on streams of their own: 1 to 3.
  virtual int communication_streams() const { return 1; }
};

}  // namespace trainer
