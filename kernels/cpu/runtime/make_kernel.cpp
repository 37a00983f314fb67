// Dtypes of the CPU's kernels.
#include "kernels/cpu/runtime/make_kernel.h"

namespace trainer::kernels::cpu {

bool expect_compute_dtype(const Signature& signature, int operand) {
  const DType dtype = signature.operands[static_cast<std::size_t>(operand)].dtype;
  if (dtype != DType::f32 && dtype != DType::bf16)
    refuse_dtypes(signature, "f32 or bf16 for operand " + std::to_string(operand));
  return dtype == DType::bf16;
}

}  // namespace trainer::kernels::cpu
