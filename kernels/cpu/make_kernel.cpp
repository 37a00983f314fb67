// Messages and checks of preparation.
#include "kernels/cpu/make_kernel.h"

namespace trainer::kernels::cpu {

std::string describe(const Signature& signature) {
  std::string text(name_of(signature.op));
  for (std::size_t i = 0; i < signature.operands.size(); ++i) {
    const TensorDesc& operand = signature.operands[i];
    text += (i ? ", " : "(") + std::string(name_of(operand.dtype)) + " " + operand.shape.str();
    if (operand.layout != Layout::row_major) text += " " + std::string(name_of(operand.layout));
  }
  return text + ")";
}

void expect_operands(const Signature& signature, std::size_t count) {
  CHECK(signature.operands.size() == count, describe(signature) + " takes " + std::to_string(count) + " operands");
}

void refuse_dtypes(const Signature& signature, const std::string& takes) {
  fail_check("supported dtypes", __FILE__, __LINE__, "no CPU kernel for " + describe(signature) + "; it takes " + takes);
}

void expect_alike(const Signature& signature, std::initializer_list<int> operands) {
  const TensorDesc& first = signature.operands[static_cast<std::size_t>(*operands.begin())];
  for (int index : operands) expect_operand(signature, index, first.dtype, first.elements());
}

void expect_operand(const Signature& signature, int index, DType dtype, std::int64_t elements) {
  const TensorDesc& found = signature.operands[static_cast<std::size_t>(index)];
  CHECK(found.dtype == dtype && found.elements() == elements && found.layout == Layout::row_major,
        "operand " + std::to_string(index) + " of " + describe(signature) + " must be " + std::string(name_of(dtype)) + " of " +
            std::to_string(elements) + " elements");
}

bool expect_compute_dtype(const Signature& signature, int operand) {
  const DType dtype = signature.operands[static_cast<std::size_t>(operand)].dtype;
  if (dtype != DType::f32 && dtype != DType::bf16)
    refuse_dtypes(signature, "f32 or bf16 for operand " + std::to_string(operand));
  return dtype == DType::bf16;
}

}  // namespace trainer::kernels::cpu
