// One entry for every op. The switches have no default, so that an op without an entry does not compile.
#include "kernels/cpu/table.h"

#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/make_kernel.h"

namespace trainer::kernels::cpu {

std::unique_ptr<Kernel> prepare(const Signature& s, const Context& c) {
  switch (s.op) {
    case Op::embedding: return prepare_embedding(s, c);
    case Op::positions: return prepare_positions(s, c);
    case Op::linear: return prepare_linear(s, c);
    case Op::layer_norm: return prepare_layer_norm(s, c);
    case Op::rms_norm: return prepare_rms_norm(s, c);
    case Op::attention: return prepare_attention(s, c);
    case Op::gelu:
    case Op::relu:
    case Op::silu:
    case Op::tanh:
    case Op::sigmoid: return prepare_activation(s, c);
    case Op::add:
    case Op::mul: return prepare_add_mul(s, c);
    case Op::scale: return prepare_scale(s, c);
    case Op::dropout: return prepare_dropout(s, c);
    case Op::reshape:
    case Op::flatten:
    case Op::replicate: break;
    case Op::all_reduce:
    case Op::all_gather:
    case Op::reduce_scatter: break;
    case Op::conv2d: return prepare_conv2d(s, c);
    case Op::max_pool2d: return prepare_pool(s, c);
    case Op::avg_pool2d: return prepare_pool(s, c);
    case Op::cross_entropy: return prepare_cross_entropy(s, c);
    case Op::mse: return prepare_mse(s, c);
    case Op::embedding_grad: return prepare_embedding_grad(s, c);
    case Op::positions_grad: return prepare_positions_grad(s, c);
    case Op::linear_grad_input: return prepare_linear_grad_input(s, c);
    case Op::linear_grad_weight: return prepare_linear_grad_weight(s, c);
    case Op::bias_grad: return prepare_bias_grad(s, c);
    case Op::layer_norm_grad: return prepare_layer_norm_grad(s, c);
    case Op::rms_norm_grad: return prepare_rms_norm_grad(s, c);
    case Op::attention_grad: return prepare_attention_grad(s, c);
    case Op::gelu_grad:
    case Op::relu_grad:
    case Op::silu_grad:
    case Op::tanh_grad:
    case Op::sigmoid_grad: return prepare_activation_grad(s, c);
    case Op::sum_leading: return prepare_sum_leading(s, c);
    case Op::conv2d_grad_input: return prepare_conv2d_grad_input(s, c);
    case Op::conv2d_grad_weight: return prepare_conv2d_grad_weight(s, c);
    case Op::max_pool2d_grad: return prepare_pool_grad(s, c);
    case Op::avg_pool2d_grad: return prepare_pool_grad(s, c);
    case Op::cross_entropy_grad: return prepare_cross_entropy_grad(s, c);
    case Op::mse_grad: return prepare_mse_grad(s, c);
    case Op::cross_entropy_count: return prepare_cross_entropy_count(s, c);
    case Op::mse_count: return prepare_mse_count(s, c);
    case Op::correct_count: return prepare_correct_count(s, c);
    case Op::cross_entropy_stats: return prepare_cross_entropy_stats(s, c);
    case Op::cross_entropy_gathered: return prepare_cross_entropy_gathered(s, c);
    case Op::correct_count_gathered: return prepare_correct_count_gathered(s, c);
    case Op::split: return prepare_split(s, c);
    case Op::concat: return prepare_concat(s, c);
    case Op::zero: return prepare_zero(s, c);
    case Op::cast: return prepare_cast(s, c);
    case Op::pack_weight: return prepare_pack_weight(s, c);
    case Op::loss_seed: return prepare_loss_seed(s, c);
    case Op::sum_squares: return prepare_sum_squares(s, c);
    case Op::update_scalars: return prepare_update_scalars(s, c);
    case Op::sgd: return prepare_sgd(s, c);
    case Op::adam:
    case Op::adamw: return prepare_adam(s, c);
    case Op::lion: return prepare_lion(s, c);
    case Op::muon_momentum: return prepare_muon_momentum(s, c);
    case Op::muon_orthogonalize: return prepare_muon_orthogonalize(s, c);
    case Op::muon: return prepare_muon(s, c);
    case Op::outer_step: return prepare_outer_step(s, c);
    case Op::apply_delayed: return prepare_apply_delayed(s, c);
    case Op::compress_bf16: return prepare_compress_bf16(s, c);
    case Op::quantize_int8: return prepare_quantize_int8(s, c);
    case Op::dequantize_int8: return prepare_dequantize_int8(s, c);
    case Op::dequantize_sum_int8: return prepare_dequantize_sum_int8(s, c);
    case Op::top_k_compress: return prepare_top_k_compress(s, c);
    case Op::top_k_sum: return prepare_top_k_sum(s, c);
  }
  refuse_launch(s);
}

Layout CpuTarget::preferred_layout(const Signature& s, int index) const { return linear_weight_layout(s, index); }

std::int64_t CpuTarget::bytes(const TensorDesc& tensor) const {
  return tensor.layout == Layout::row_major ? tensor.bytes() : packed_weight_bytes(tensor);
}

std::int64_t CpuTarget::workspace_bytes(const Signature& s) const {
  switch (s.op) {
    case Op::embedding: return 0;
    case Op::positions: return 0;
    case Op::linear: return linear_workspace(s, context_);
    case Op::layer_norm: return 0;
    case Op::rms_norm: return 0;
    case Op::attention: return attention_workspace(s, context_);
    case Op::gelu: return 0;
    case Op::relu: return 0;
    case Op::silu: return 0;
    case Op::tanh: return 0;
    case Op::sigmoid: return 0;
    case Op::add: return 0;
    case Op::mul: return 0;
    case Op::scale: return 0;
    case Op::dropout: return 0;
    case Op::reshape: return 0;
    case Op::flatten: return 0;
    case Op::conv2d: return conv2d_workspace(s, context_);
    case Op::max_pool2d: return 0;
    case Op::avg_pool2d: return 0;
    case Op::cross_entropy: return loss_workspace(s);
    case Op::mse: return loss_workspace(s);
    case Op::embedding_grad: return embedding_grad_workspace(s);
    case Op::positions_grad: return 0;
    case Op::linear_grad_input: return linear_workspace(s, context_);
    case Op::linear_grad_weight: return linear_workspace(s, context_);
    case Op::bias_grad: return 0;
    case Op::layer_norm_grad: return norm_grad_workspace(s, context_);
    case Op::rms_norm_grad: return norm_grad_workspace(s, context_);
    case Op::attention_grad: return attention_grad_workspace(s, context_);
    case Op::gelu_grad: return 0;
    case Op::relu_grad: return 0;
    case Op::silu_grad: return 0;
    case Op::tanh_grad: return 0;
    case Op::sigmoid_grad: return 0;
    case Op::sum_leading: return 0;
    case Op::conv2d_grad_input: return conv2d_workspace(s, context_);
    case Op::conv2d_grad_weight: return conv2d_workspace(s, context_);
    case Op::max_pool2d_grad: return max_pool2d_grad_workspace(s, context_);
    case Op::avg_pool2d_grad: return 0;
    case Op::cross_entropy_grad: return 0;
    case Op::mse_grad: return 0;
    case Op::cross_entropy_count: return 0;
    case Op::mse_count: return 0;
    case Op::correct_count: return loss_workspace(s);
    case Op::cross_entropy_stats: return 0;
    case Op::cross_entropy_gathered: return loss_workspace(s);
    case Op::correct_count_gathered: return 0;
    case Op::split: return 0;
    case Op::concat: return 0;
    case Op::replicate: return 0;
    case Op::all_reduce: return 0;
    case Op::all_gather: return 0;
    case Op::reduce_scatter: return 0;
    case Op::zero: return 0;
    case Op::cast: return 0;
    case Op::pack_weight: return 0;
    case Op::loss_seed: return 0;
    case Op::sum_squares: return sum_squares_workspace(s);
    case Op::update_scalars: return 0;
    case Op::sgd: return 0;
    case Op::adam: return 0;
    case Op::adamw: return 0;
    case Op::lion: return 0;
    case Op::muon_momentum: return 0;
    case Op::muon_orthogonalize: return muon_orthogonalize_workspace(s, context_);
    case Op::muon: return 0;
    case Op::outer_step: return 0;
    case Op::apply_delayed: return 0;
    case Op::compress_bf16: return 0;
    case Op::quantize_int8: return 0;
    case Op::dequantize_int8: return 0;
    case Op::dequantize_sum_int8: return 0;
    case Op::top_k_compress: return top_k_workspace(s, context_);
    case Op::top_k_sum: return 0;
  }
  fail_check("op", __FILE__, __LINE__, "an op outside the enum");
}

}  // namespace trainer::kernels::cpu
