// Messages and checks of preparation, and of what ops are given.
#include "kernels/prepare.h"

#include "engine/core/error.h"
#include "kernels/activations.h"
#include "kernels/embedding.h"
#include "kernels/loss.h"

namespace trainer::kernels {

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
  fail_check("supported dtypes", __FILE__, __LINE__, "no kernel for " + describe(signature) + "; it takes " + takes);
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

void refuse_launch(const Signature& signature) {
  const bool communicates = signature.op == Op::all_reduce || signature.op == Op::all_gather || signature.op == Op::reduce_scatter;
  fail_check("kernel", __FILE__, __LINE__,
             describe(signature) + (communicates ? " is communication: a plan has a collective for it, never a launch" : " only renames memory: it is never launched"));
}

bool gelu_is_tanh(const Signature& signature) {
  const std::string& form = signature.attributes.text("approximate");
  CHECK(form == "tanh" || form == "none", "gelu's approximate is tanh or none, not " + form);
  return form == "tanh";
}

void check_ids(std::span<const std::int32_t> ids, std::int64_t rows) {
  const std::uint32_t bound = static_cast<std::uint32_t>(rows);
  std::uint32_t outside = 0;
  for (std::int32_t id : ids) outside |= static_cast<std::uint32_t>(static_cast<std::uint32_t>(id) >= bound);
  if (outside == 0) return;
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (static_cast<std::uint32_t>(ids[i]) >= bound)
      throw DataError("id " + std::to_string(ids[i]) + " at place " + std::to_string(i) + " of the batch is outside of 0 to " + std::to_string(rows - 1));
}

void check_targets(std::span<const std::int32_t> targets, std::int64_t classes, std::int64_t ignore_index) {
  for (std::size_t i = 0; i < targets.size(); ++i)
    if (targets[i] != ignore_index && (targets[i] < 0 || targets[i] >= classes))
      throw DataError("target " + std::to_string(targets[i]) + " at place " + std::to_string(i) + " of the batch is outside of 0 to " +
                      std::to_string(classes - 1));
}

}  // namespace trainer::kernels
