// The CPU's kernels: one entry for every op, and what planning must know of them.
#pragma once

#include <memory>

#include "kernels/cpu/runtime/isa.h"
#include "kernels/kernel.h"

namespace trainer::kernels::cpu {

/// What kernels are prepared for: instruction set and threads of the rank that runs them.
struct Context {
  Isa isa = Isa::portable;
  int threads = 1;
};

/// A kernel for `signature`, or Bug where no kernel takes these dtypes (the message says which it takes).
std::unique_ptr<Kernel> prepare(const Signature& signature, const Context& context);

/// Sizes of the kernels that `prepare` would choose in `context`.
class CpuTarget final : public Target {
 public:
  explicit CpuTarget(const Context& context) : context_(context) {}
  std::int64_t workspace_bytes(const Signature& signature) const override;
  bool fuses_residual() const override { return true; }

 private:
  Context context_;
};

}  // namespace trainer::kernels::cpu
