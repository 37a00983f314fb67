// The preparation functions that cpu/table.cpp chooses from, one for each op or family. The operands of each are in
// kernels/<family>.h. Only kernels/cpu/ includes this.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cpu/table.h"

namespace trainer::kernels::cpu {

using Prepared = std::unique_ptr<Kernel>;

// kernels/fill.h: zero, cast.
Prepared prepare_zero(const Signature& signature, const Context& context);

// kernels/linear.h, kernels/pack_weight.h: matrix products.
Prepared prepare_linear(const Signature& signature, const Context& context);
Prepared prepare_linear_grad_input(const Signature& signature, const Context& context);
Prepared prepare_linear_grad_weight(const Signature& signature, const Context& context);
Prepared prepare_pack_weight(const Signature& signature, const Context& context);
std::int64_t linear_workspace(const Signature& signature, const Context& context);
Layout linear_weight_layout(const Signature& signature, int operand);
std::int64_t packed_weight_bytes(const TensorDesc& weight);

// kernels/attention.h
Prepared prepare_attention(const Signature& signature, const Context& context);
Prepared prepare_attention_grad(const Signature& signature, const Context& context);
std::int64_t attention_workspace(const Signature& signature, const Context& context);
std::int64_t attention_grad_workspace(const Signature& signature, const Context& context);

}  // namespace trainer::kernels::cpu
