// The preparation functions that cpu/table.cpp chooses from, one for each op or family, and the sizes of their
// workspaces. The operands of each are in kernels/<family>.h. Only kernels/cpu/ includes this.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cpu/table.h"

namespace trainer::kernels::cpu {

using Prepared = std::unique_ptr<Kernel>;

// kernels/activations.h
Prepared prepare_activation(const Signature& signature, const Context& context);
Prepared prepare_activation_grad(const Signature& signature, const Context& context);
Prepared prepare_glu(const Signature& signature, const Context& context);
Prepared prepare_glu_grad(const Signature& signature, const Context& context);

// kernels/arithmetic.h
Prepared prepare_add_mul(const Signature& signature, const Context& context);
Prepared prepare_scale(const Signature& signature, const Context& context);
Prepared prepare_sum_leading(const Signature& signature, const Context& context);
Prepared prepare_bias_grad(const Signature& signature, const Context& context);

// kernels/attention_block.h
Prepared prepare_attention_block(const Signature& signature, const Context& context);
Prepared prepare_attention_block_grad(const Signature& signature, const Context& context);
std::int64_t attention_block_workspace(const Signature& signature, const Context& context);
std::int64_t attention_block_grad_workspace(const Signature& signature, const Context& context);

// kernels/attention_cached.h
Prepared prepare_attention_cached(const Signature& signature, const Context& context);
std::int64_t attention_cached_workspace(const Signature& signature, const Context& context);

// kernels/documents.h
Prepared prepare_document_positions(const Signature& signature, const Context& context);

// kernels/batch_norm.h
Prepared prepare_batch_norm(const Signature& signature, const Context& context);
Prepared prepare_batch_norm_sums(const Signature& signature, const Context& context);
Prepared prepare_batch_norm_apply(const Signature& signature, const Context& context);
Prepared prepare_batch_norm_update(const Signature& signature, const Context& context);
Prepared prepare_batch_norm_grad_sums(const Signature& signature, const Context& context);
Prepared prepare_batch_norm_grad(const Signature& signature, const Context& context);

// kernels/dropout.h
Prepared prepare_dropout(const Signature& signature, const Context& context);

// kernels/embedding.h
Prepared prepare_embedding(const Signature& signature, const Context& context);
Prepared prepare_embedding_grad(const Signature& signature, const Context& context);
std::int64_t embedding_grad_workspace(const Signature& signature);
Prepared prepare_positions(const Signature& signature, const Context& context);
Prepared prepare_positions_grad(const Signature& signature, const Context& context);
Prepared prepare_parameter_grad(const Signature& signature, const Context& context);

// kernels/fill.h
Prepared prepare_zero(const Signature& signature, const Context& context);
Prepared prepare_cast(const Signature& signature, const Context& context);

// kernels/norm.h
Prepared prepare_layer_norm(const Signature& signature, const Context& context);
Prepared prepare_layer_norm_grad(const Signature& signature, const Context& context);
Prepared prepare_rms_norm(const Signature& signature, const Context& context);
Prepared prepare_rms_norm_grad(const Signature& signature, const Context& context);
std::int64_t norm_grad_workspace(const Signature& signature, const Context& context);

// kernels/pool.h
Prepared prepare_pool(const Signature& signature, const Context& context);
Prepared prepare_pool_grad(const Signature& signature, const Context& context);
std::int64_t max_pool2d_grad_workspace(const Signature& signature, const Context& context);

// kernels/loss.h
Prepared prepare_cross_entropy(const Signature& signature, const Context& context);
Prepared prepare_cross_entropy_grad(const Signature& signature, const Context& context);
Prepared prepare_cross_entropy_and_grad(const Signature& signature, const Context& context);
Prepared prepare_cross_entropy_stats(const Signature& signature, const Context& context);
Prepared prepare_cross_entropy_gathered(const Signature& signature, const Context& context);
Prepared prepare_correct_count_gathered(const Signature& signature, const Context& context);
Prepared prepare_cross_entropy_count(const Signature& signature, const Context& context);
Prepared prepare_correct_count(const Signature& signature, const Context& context);
Prepared prepare_mse(const Signature& signature, const Context& context);
Prepared prepare_mse_grad(const Signature& signature, const Context& context);
Prepared prepare_mse_count(const Signature& signature, const Context& context);
std::int64_t loss_workspace(const Signature& signature);

// kernels/preference.h
Prepared prepare_sequence_nll(const Signature& signature, const Context& context);
Prepared prepare_dpo_loss(const Signature& signature, const Context& context);
Prepared prepare_dpo_loss_grad(const Signature& signature, const Context& context);
Prepared prepare_dpo_count(const Signature& signature, const Context& context);

// kernels/optimizer.h
Prepared prepare_loss_seed(const Signature& signature, const Context& context);
Prepared prepare_sum_squares(const Signature& signature, const Context& context);
std::int64_t sum_squares_workspace(const Signature& signature);
Prepared prepare_update_scalars(const Signature& signature, const Context& context);
Prepared prepare_sgd(const Signature& signature, const Context& context);
Prepared prepare_adam(const Signature& signature, const Context& context);
Prepared prepare_lion(const Signature& signature, const Context& context);

// kernels/muon.h
Prepared prepare_muon_momentum(const Signature& signature, const Context& context);
Prepared prepare_muon(const Signature& signature, const Context& context);
Prepared prepare_muon_orthogonalize(const Signature& signature, const Context& context);
std::int64_t muon_orthogonalize_workspace(const Signature& signature, const Context& context);

// kernels/averaging.h
Prepared prepare_outer_gradient(const Signature& signature, const Context& context);
Prepared prepare_outer_step(const Signature& signature, const Context& context);
Prepared prepare_apply_delayed(const Signature& signature, const Context& context);

// kernels/compression.h
Prepared prepare_compress_bf16(const Signature& signature, const Context& context);
Prepared prepare_quantize_int8(const Signature& signature, const Context& context);
Prepared prepare_dequantize_int8(const Signature& signature, const Context& context);
Prepared prepare_dequantize_sum_int8(const Signature& signature, const Context& context);
Prepared prepare_top_k_compress(const Signature& signature, const Context& context);
std::int64_t top_k_workspace(const Signature& signature, const Context& context);
Prepared prepare_top_k_sum(const Signature& signature, const Context& context);

// kernels/linear.h: matrix products.
Prepared prepare_linear(const Signature& signature, const Context& context);
Prepared prepare_linear_grad_input(const Signature& signature, const Context& context);
Prepared prepare_linear_grad_weight(const Signature& signature, const Context& context);
std::int64_t linear_workspace(const Signature& signature, const Context& context);
// kernels/quantized.h
Prepared prepare_quantized_linear(const Signature& signature, const Context& context);
Prepared prepare_quantized_linear_grad_input(const Signature& signature, const Context& context);
std::int64_t quantized_linear_workspace(const Signature& signature, const Context& context);

// kernels/split.h
Prepared prepare_split(const Signature& signature, const Context& context);
Prepared prepare_concat(const Signature& signature, const Context& context);
Prepared prepare_slice(const Signature& signature, const Context& context);
Prepared prepare_slice_grad(const Signature& signature, const Context& context);
Prepared prepare_expand(const Signature& signature, const Context& context);

// kernels/experts.h
Prepared prepare_route(const Signature& signature, const Context& context);
Prepared prepare_route_grad(const Signature& signature, const Context& context);
Prepared prepare_expert_capacity(const Signature& signature, const Context& context);
Prepared prepare_router_losses(const Signature& signature, const Context& context);
std::int64_t router_losses_workspace(const Signature& signature);
Prepared prepare_expert_linear(const Signature& signature, const Context& context);
Prepared prepare_expert_linear_grad_input(const Signature& signature, const Context& context);
Prepared prepare_expert_linear_grad_weight(const Signature& signature, const Context& context);
std::int64_t expert_linear_workspace(const Signature& signature, const Context& context);
Prepared prepare_weigh(const Signature& signature, const Context& context);
Prepared prepare_row_dots(const Signature& signature, const Context& context);
Prepared prepare_expert_slots(const Signature& signature, const Context& context);
Prepared prepare_dispatch(const Signature& signature, const Context& context);
Prepared prepare_combine(const Signature& signature, const Context& context);

// kernels/transpose.h
Prepared prepare_transpose(const Signature& signature, const Context& context);

// kernels/mean.h
Prepared prepare_mean(const Signature& signature, const Context& context);
Prepared prepare_mean_grad(const Signature& signature, const Context& context);

// kernels/row_norms.h
Prepared prepare_row_squares(const Signature& signature, const Context& context);
Prepared prepare_over_root(const Signature& signature, const Context& context);

// kernels/conv2d.h
Prepared prepare_conv2d(const Signature& signature, const Context& context);
Prepared prepare_conv2d_grad_input(const Signature& signature, const Context& context);
Prepared prepare_conv2d_grad_weight(const Signature& signature, const Context& context);
std::int64_t conv2d_workspace(const Signature& signature, const Context& context);

// kernels/attention.h
Prepared prepare_attention(const Signature& signature, const Context& context);
Prepared prepare_attention_grad(const Signature& signature, const Context& context);
std::int64_t attention_workspace(const Signature& signature, const Context& context);
std::int64_t attention_grad_workspace(const Signature& signature, const Context& context);

}  // namespace trainer::kernels::cpu
