// Op: every operation a plan can launch, by name. Ops of a model's graph (their shapes, gradients and sharding
// rules are in engine/ops/), the ops their gradients need, and the ops of a step (optimizer, norm, packing).
// What each takes and gives, operand by operand, is in kernels/<op>.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trainer {

enum class Op : std::uint8_t {
  // Ops a graph file may name.
  embedding, positions, linear, layer_norm, rms_norm, attention, gelu, relu, silu, tanh, sigmoid, add, mul, scale,
  dropout, reshape, flatten, conv2d, max_pool2d, avg_pool2d, cross_entropy, mse,
  // Their gradients.
  embedding_grad, positions_grad, linear_grad_input, linear_grad_weight, bias_grad, layer_norm_grad, rms_norm_grad,
  attention_grad, gelu_grad, relu_grad, silu_grad, tanh_grad, sigmoid_grad, sum_leading, conv2d_grad_input,
  conv2d_grad_weight, max_pool2d_grad, avg_pool2d_grad, cross_entropy_grad, mse_grad,
  // What a loss counts before the step: targets that are not ignored, or predictions; and right answers.
  cross_entropy_count, mse_count, correct_count,
  // Cross-entropy of classes cut over ranks, in two nodes, and its right answers.
  cross_entropy_stats, cross_entropy_gathered, correct_count_gathered,
  // A tensor in pieces along its last dim, and together again. Graph passes make them; graph files do not name them yet.
  split, concat,
  // What a graph node over the tensor axis does. No kernels: the plan makes collectives of them (engine/ops/collective.cpp).
  replicate, all_reduce, all_gather, reduce_scatter,
  // The step around the graph.
  zero, cast, pack_weight, loss_seed, sum_squares, update_scalars, sgd, adam, adamw, lion, muon_momentum, muon_orthogonalize,
  muon,
  // What data strategies do to flat tensors between steps (kernels/averaging.h) and before gradients travel (kernels/compression.h).
  outer_step, apply_delayed, compress_bf16, quantize_int8, dequantize_int8, dequantize_sum_int8, top_k_compress, top_k_sum,
};

inline constexpr int kNumOps = static_cast<int>(Op::top_k_sum) + 1;

std::string_view name_of(Op op);
std::optional<Op> op_named(std::string_view name);

}  // namespace trainer
