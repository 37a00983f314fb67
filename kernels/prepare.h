// What preparation functions share on every device: a Kernel from a callable, checks of signatures, messages.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "engine/core/check.h"
#include "kernels/kernel.h"

namespace trainer::kernels {

/// A kernel that runs fn(call). What `fn` captured is what preparing found out.
template <typename Fn>
std::unique_ptr<Kernel> make_kernel(Fn fn) {
  class FnKernel final : public Kernel {
   public:
    explicit FnKernel(Fn fn) : fn_(std::move(fn)) {}
    void run(const Call& call) override { fn_(call); }

   private:
    Fn fn_;
  };
  return std::make_unique<FnKernel>(std::move(fn));
}

/// Operand `index` of a call as the type it is.
template <typename T>
T* operand(const Call& call, int index) {
  return static_cast<T*>(call.operands[static_cast<std::size_t>(index)]);
}

/// "layer_norm(bf16 [4, 8], …)": how messages name a signature.
std::string describe(const Signature& signature);

/// Raises Bug unless the signature has that many operands.
void expect_operands(const Signature& signature, std::size_t count);

/// Raises Bug: no kernel takes these dtypes; `takes` says which it does.
[[noreturn]] void refuse_dtypes(const Signature& signature, const std::string& takes);

/// Raises Bug unless these operands have one dtype and one number of elements.
void expect_alike(const Signature& signature, std::initializer_list<int> operands);

/// The dtype and element count of operand `index`, or Bug.
void expect_operand(const Signature& signature, int index, DType dtype, std::int64_t elements);

/// Raises Bug unless operand `operand` is row-major of this dtype and shape.
void expect_shape(const Signature& signature, int operand, DType dtype, const Shape& shape);

/// Raises Bug unless the signature has `operands` f32 operands of one size; returns their number of elements.
std::int64_t expect_flat(const Signature& signature, int operands);

/// Raises Bug: an op that only renames memory, or one that is communication, is never launched.
[[noreturn]] void refuse_launch(const Signature& signature);

}  // namespace trainer::kernels
