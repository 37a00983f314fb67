// Kernels by op, as engine/core/ops.inc binds them, and the workspaces of those that need one.
#include "kernels/cpu/table.h"

#include "engine/core/op_record.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/make_kernel.h"

namespace trainer::kernels::cpu {
namespace {

Prepared prepare_none(const Signature& s, const Context&) { refuse_launch(s); }

}  // namespace

std::unique_ptr<Kernel> prepare(const Signature& s, const Context& c) {
  expect_recorded(s);
  switch (s.op) {
#define TRAINER_OP(name, kernel) \
  case Op::name:                 \
    return prepare_##kernel(s, c);
#include "engine/core/ops.inc"
  }
  refuse_launch(s);
}

std::int64_t CpuTarget::workspace_bytes(const Signature& s) const {
  if (!has(s.op, Trait::scratch)) return 0;
  switch (s.op) {
    case Op::linear:
    case Op::linear_grad_input:
    case Op::linear_grad_weight:
      return linear_workspace(s, context_);
    case Op::expert_linear:
    case Op::expert_linear_grad_input:
    case Op::expert_linear_grad_weight:
      return expert_linear_workspace(s, context_);
    case Op::router_losses:
      return router_losses_workspace(s);
    case Op::quantized_linear:
    case Op::quantized_linear_grad_input:
      return quantized_linear_workspace(s, context_);
    case Op::attention:
      return attention_workspace(s, context_);
    case Op::attention_grad:
      return attention_grad_workspace(s, context_);
    case Op::attention_block:
      return attention_block_workspace(s, context_);
    case Op::attention_block_grad:
      return attention_block_grad_workspace(s, context_);
    case Op::attention_cached:
      return attention_cached_workspace(s, context_);
    case Op::conv2d:
    case Op::conv2d_grad_input:
    case Op::conv2d_grad_weight:
    case Op::conv1d:
    case Op::conv1d_grad_input:
    case Op::conv1d_grad_weight:
      return conv2d_workspace(s, context_);
    case Op::embedding_grad:
      return embedding_grad_workspace(s);
    case Op::layer_norm_grad:
    case Op::rms_norm_grad:
      return norm_grad_workspace(s, context_);
    case Op::max_pool2d_grad:
      return max_pool2d_grad_workspace(s, context_);
    case Op::cross_entropy:
    case Op::cross_entropy_and_grad:
    case Op::cross_entropy_gathered:
    case Op::correct_count:
    case Op::mse:
      return loss_workspace(s);
    case Op::sum_squares:
      return sum_squares_workspace(s);
    case Op::muon_orthogonalize:
      return muon_orthogonalize_workspace(s, context_);
    case Op::top_k_compress:
      return top_k_workspace(s, context_);
    // Only on GPUs.
    case Op::batch_norm:
    case Op::batch_norm_sums:
    case Op::batch_norm_apply:
    case Op::batch_norm_grad_sums:
    case Op::batch_norm_grad:
    case Op::sum_leading:
    case Op::bias_grad:
    case Op::cross_entropy_count:
    case Op::correct_count_gathered:
    case Op::mse_count:
      return 0;
    default:
      UNREACHABLE("nobody says how much scratch memory " + describe(s) + " needs");
  }
}

}  // namespace trainer::kernels::cpu
