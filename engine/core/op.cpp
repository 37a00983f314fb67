// Names of ops.
#include "engine/core/op.h"

namespace trainer {

std::string_view name_of(Op op) {
  switch (op) {
    case Op::embedding: return "embedding";
    case Op::positions: return "positions";
    case Op::linear: return "linear";
    case Op::layer_norm: return "layer_norm";
    case Op::rms_norm: return "rms_norm";
    case Op::attention: return "attention";
    case Op::gelu: return "gelu";
    case Op::relu: return "relu";
    case Op::silu: return "silu";
    case Op::tanh: return "tanh";
    case Op::sigmoid: return "sigmoid";
    case Op::add: return "add";
    case Op::mul: return "mul";
    case Op::scale: return "scale";
    case Op::dropout: return "dropout";
    case Op::reshape: return "reshape";
    case Op::flatten: return "flatten";
    case Op::conv2d: return "conv2d";
    case Op::max_pool2d: return "max_pool2d";
    case Op::avg_pool2d: return "avg_pool2d";
    case Op::cross_entropy: return "cross_entropy";
    case Op::mse: return "mse";
    case Op::embedding_grad: return "embedding_grad";
    case Op::positions_grad: return "positions_grad";
    case Op::linear_grad_input: return "linear_grad_input";
    case Op::linear_grad_weight: return "linear_grad_weight";
    case Op::bias_grad: return "bias_grad";
    case Op::layer_norm_grad: return "layer_norm_grad";
    case Op::rms_norm_grad: return "rms_norm_grad";
    case Op::attention_grad: return "attention_grad";
    case Op::gelu_grad: return "gelu_grad";
    case Op::relu_grad: return "relu_grad";
    case Op::silu_grad: return "silu_grad";
    case Op::tanh_grad: return "tanh_grad";
    case Op::sigmoid_grad: return "sigmoid_grad";
    case Op::sum_leading: return "sum_leading";
    case Op::conv2d_grad_input: return "conv2d_grad_input";
    case Op::conv2d_grad_weight: return "conv2d_grad_weight";
    case Op::max_pool2d_grad: return "max_pool2d_grad";
    case Op::avg_pool2d_grad: return "avg_pool2d_grad";
    case Op::cross_entropy_grad: return "cross_entropy_grad";
    case Op::mse_grad: return "mse_grad";
    case Op::cross_entropy_count: return "cross_entropy_count";
    case Op::mse_count: return "mse_count";
    case Op::correct_count: return "correct_count";
    case Op::cross_entropy_stats: return "cross_entropy_stats";
    case Op::cross_entropy_gathered: return "cross_entropy_gathered";
    case Op::correct_count_gathered: return "correct_count_gathered";
    case Op::split: return "split";
    case Op::concat: return "concat";
    case Op::replicate: return "replicate";
    case Op::all_reduce: return "all_reduce";
    case Op::all_gather: return "all_gather";
    case Op::reduce_scatter: return "reduce_scatter";
    case Op::zero: return "zero";
    case Op::cast: return "cast";
    case Op::pack_weight: return "pack_weight";
    case Op::loss_seed: return "loss_seed";
    case Op::sum_squares: return "sum_squares";
    case Op::update_scalars: return "update_scalars";
    case Op::sgd: return "sgd";
    case Op::adam: return "adam";
    case Op::adamw: return "adamw";
    case Op::lion: return "lion";
    case Op::muon_momentum: return "muon_momentum";
    case Op::muon_orthogonalize: return "muon_orthogonalize";
    case Op::muon: return "muon";
    case Op::outer_step: return "outer_step";
    case Op::apply_delayed: return "apply_delayed";
    case Op::compress_bf16: return "compress_bf16";
    case Op::quantize_int8: return "quantize_int8";
    case Op::dequantize_int8: return "dequantize_int8";
    case Op::dequantize_sum_int8: return "dequantize_sum_int8";
    case Op::top_k_compress: return "top_k_compress";
    case Op::top_k_sum: return "top_k_sum";
  }
  return "?";
}

std::optional<Op> op_named(std::string_view name) {
  for (int i = 0; i < kNumOps; ++i)
    if (name == name_of(static_cast<Op>(i))) return static_cast<Op>(i);
  return std::nullopt;
}

}  // namespace trainer
