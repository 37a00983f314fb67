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

#include "kernels/cpu/convolution/convolution.h"

namespace trainer::kernels::cpu::onednn {

class Sequence {
 public:
  virtual ~Sequence() = default;
  /// Operands in the order of the op. REQUIRES: workspace of `workspace_bytes`, 64-byte aligned; one run at a time.
  virtual void run(std::span<void* const> operands, void* workspace) = 0;
};

std::int64_t workspace_bytes(const Convolution& convolution, Pass pass, int threads);
std::unique_ptr<Sequence> prepare(const Convolution& convolution, Pass pass, int threads);

}  // namespace trainer::kernels::cpu::onednn
