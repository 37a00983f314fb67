// oneDNN behind one door: convolutions as ready sequences of its primitives (layout changes, the convolution, layout
// changes back), over one workspace. What oneDNN keeps per thread is the calling thread's OpenMP team, as our own
// kernels'.
//
// Layouts and scratch sizes are oneDNN's choice for the processor at hand: so the workspace of a convolution is the
// same for every plan made on one machine, and may differ on another.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/core/dtype.h"
#include "kernels/cpu/runtime/isa.h"

namespace trainer::kernels::cpu::onednn {

/// A convolution in the terms of kernels/conv2d.h.
struct Convolution {
  std::int64_t n = 0, in = 0, h = 0, w = 0, out = 0, kh = 0, kw = 0, oh = 0, ow = 0, stride = 1;
  std::int64_t padding_rows = 0, padding = 0;  ///< zeros above and below, and on the left and right
  bool bias = false;
  bool accumulate = false;   ///< of parameter gradients
  DType dtype = DType::f32;  ///< of x, weight, y and their gradients
  DType parameter_gradients = DType::f32;
  bool multiplies_bf16 = false;  ///< bf16 products as they are; else widened to f32 (faster where there are no tiles)
  Isa isa = Isa::portable;       ///< of the changes of layout that are our own
};

enum class Pass : std::uint8_t { forward, grad_input, grad_weight };

class Sequence {
 public:
  virtual ~Sequence() = default;
  /// Operands in the order of the op. REQUIRES: workspace of `workspace_bytes`, 64-byte aligned; one run at a time.
  virtual void run(std::span<void* const> operands, void* workspace) = 0;
};

std::int64_t workspace_bytes(const Convolution& convolution, Pass pass, int threads);
std::unique_ptr<Sequence> prepare(const Convolution& convolution, Pass pass, int threads);

}  // namespace trainer::kernels::cpu::onednn
