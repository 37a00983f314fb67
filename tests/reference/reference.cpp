// The list of ops. reference_test.cpp wants a golden for each that graph files name, and so its entry.
#include "tests/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace trainer::reference {

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double silu_slope(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }

void dispatch(Op op, const Call& call) {
  switch (op) {
    case Op::embedding:
      return embedding(call);
    case Op::embedding_grad:
      return embedding_grad(call);
    case Op::positions:
      return positions(call);
    case Op::document_positions:
      return document_positions(call);
    case Op::positions_grad:
      return positions_grad(call);
    case Op::linear:
      return linear(call);
    case Op::linear_grad_input:
      return linear_grad_input(call);
    case Op::quantized_linear:
      return quantized_linear(call);
    case Op::quantized_linear_grad_input:
      return quantized_linear_grad_input(call);
    case Op::linear_grad_weight:
      return linear_grad_weight(call);
    case Op::bias_grad:
      return bias_grad(call);
    case Op::layer_norm:
      return layer_norm(call);
    case Op::layer_norm_grad:
      return layer_norm_grad(call);
    case Op::rms_norm:
      return rms_norm(call);
    case Op::rms_norm_grad:
      return rms_norm_grad(call);
    case Op::attention:
      return attention(call);
    case Op::attention_block:
      return attention_block(call);
    case Op::attention_block_grad:
    case Op::attention_grad:
      return attention_grad(call);
    case Op::gelu:
      return gelu(call);
    case Op::gelu_grad:
      return gelu_grad(call);
    case Op::relu:
      return activation(call, [](double x) { return std::fmax(x, 0); });
    case Op::relu_grad:
      return activation_grad(call, [](double dy, double y) { return y > 0 ? dy : 0; });
    case Op::silu:
      return activation(call, [](double x) { return x * sigmoid(x); });
    case Op::silu_grad:
      return activation_grad(call, [](double dy, double x) { return dy * silu_slope(x); });
    case Op::tanh:
      return activation(call, [](double x) { return std::tanh(x); });
    case Op::tanh_grad:
      return activation_grad(call, [](double dy, double y) { return dy * (1 - y * y); });
    case Op::sigmoid:
      return activation(call, sigmoid);
    case Op::sigmoid_grad:
      return activation_grad(call, [](double dy, double y) { return dy * y * (1 - y); });
    case Op::softcap:
      return activation(call, [cap = call.attributes.real("cap")](double x) { return cap * std::tanh(x / cap); });
    case Op::softcap_grad:
      return activation_grad(
          call, [cap = call.attributes.real("cap")](double dy, double y) { return dy * (1 - y / cap * (y / cap)); });
    case Op::glu:
      return glu(call);
    case Op::glu_grad:
      return glu_grad(call);
    case Op::add:
      return binary(call, [](double a, double b) { return a + b; });
    case Op::mul:
      return binary(call, [](double a, double b) { return a * b; });
    case Op::scale:
      return activation(call, [&](double x) { return call.attributes.real("factor") * x; });
    case Op::sum_leading:
      return sum_leading(call);
    case Op::dropout:
      return dropout(call);
    case Op::batch_norm:
      return batch_norm(call);
    case Op::batch_norm_sums:
      return batch_norm_sums(call);
    case Op::batch_norm_apply:
      return batch_norm_apply(call);
    case Op::batch_norm_update:
      return batch_norm_update(call);
    case Op::batch_norm_grad_sums:
      return batch_norm_grad_sums(call);
    case Op::batch_norm_grad:
      return batch_norm_grad(call);
    case Op::conv2d:
    case Op::conv1d:
      return conv2d(call);
    case Op::conv2d_grad_input:
    case Op::conv1d_grad_input:
      return conv2d_grad_input(call);
    case Op::conv2d_grad_weight:
    case Op::conv1d_grad_weight:
      return conv2d_grad_weight(call);
    case Op::max_pool2d:
      return max_pool2d(call);
    case Op::max_pool2d_grad:
      return max_pool2d_grad(call);
    case Op::avg_pool2d:
      return avg_pool2d(call);
    case Op::avg_pool2d_grad:
      return avg_pool2d_grad(call);
    case Op::cross_entropy:
      return cross_entropy(call);
    case Op::cross_entropy_grad:
      return cross_entropy_grad(call);
    case Op::cross_entropy_and_grad:
      return cross_entropy_and_grad(call);
    case Op::cross_entropy_count:
      return cross_entropy_count(call);
    case Op::correct_count:
      return correct_count(call);
    case Op::cross_entropy_stats:
      return cross_entropy_stats(call);
    case Op::cross_entropy_gathered:
      return cross_entropy_gathered(call);
    case Op::sequence_nll:
      return sequence_nll(call);
    case Op::dpo_loss:
      return dpo_loss(call);
    case Op::dpo_loss_grad:
      return dpo_loss_grad(call);
    case Op::dpo_count:
      return dpo_count(call);
    case Op::correct_count_gathered:
      return correct_count_gathered(call);
    case Op::mse:
      return mse(call);
    case Op::mse_grad:
      return mse_grad(call);
    case Op::mse_count:
      call.out[0][0] = static_cast<double>(call.in[0].size());
      return;
    case Op::zero:
      return;
    case Op::all_reduce:
    case Op::all_gather:
    case Op::all_to_all:
    case Op::shift:
    case Op::reduce_scatter:
      throw std::logic_error("a collective is a matter of all ranks");
    case Op::replicate:
    case Op::reshape:
    case Op::flatten:
    case Op::cast:
    case Op::parameter:
    case Op::parameter_grad:
      call.out[0].data = call.in[0].data;
      return;
    case Op::split:
      return split(call);
    case Op::concat:
      return concat(call);
    case Op::slice:
      return slice(call);
    case Op::slice_grad:
      return slice_grad(call);
    case Op::expand:
      return expand(call);
    case Op::transpose:
      return transpose(call);
    case Op::mean:
      return mean(call);
    case Op::row_squares:
      return row_squares(call);
    case Op::over_root:
      return over_root(call);
    case Op::route:
      return route(call);
    case Op::route_grad:
      return route_grad(call);
    case Op::expert_capacity:
      return expert_capacity(call);
    case Op::router_losses:
      return router_losses(call);
    case Op::expert_linear:
      return expert_linear(call);
    case Op::expert_linear_grad_input:
      return expert_linear_grad_input(call);
    case Op::expert_linear_grad_weight:
      return expert_linear_grad_weight(call);
    case Op::weigh:
      return weigh(call);
    case Op::row_dots:
      return row_dots(call);
    case Op::expert_slots:
      return expert_slots(call);
    case Op::dispatch:
      return dispatch(call);
    case Op::combine:
      return combine(call);
    case Op::mean_grad:
      return mean_grad(call);
    case Op::loss_seed:
      return loss_seed(call);
    case Op::sum_squares:
      return sum_squares(call);
    case Op::update_scalars:
      return update_scalars(call);
    case Op::sgd:
      return sgd(call);
    case Op::adam:
    case Op::adamw:
      return adam(call);
    case Op::lion:
      return lion(call);
    case Op::muon_momentum:
      return muon_momentum(call);
    case Op::muon_orthogonalize:
      return muon_orthogonalize(call);
    case Op::muon:
      return muon(call);
    case Op::outer_gradient:
      return outer_gradient(call);
    case Op::outer_step:
      return outer_step(call);
    case Op::apply_delayed:
      return apply_delayed(call);
    case Op::compress_bf16:
      return compress_bf16(call);
    case Op::quantize_int8:
      return quantize_int8(call);
    case Op::dequantize_int8:
      return dequantize_int8(call);
    case Op::dequantize_sum_int8:
      return dequantize_sum_int8(call);
    case Op::top_k_compress:
      return top_k_compress(call);
    case Op::top_k_sum:
      return top_k_sum(call);
    default:
      throw std::logic_error(std::string(name_of(op)) + " has no reference");
  }
}

}  // namespace

namespace {

// Ops with `residual` are what they are made of: an addition before a norm, or after its gradient, a product or a batch
// norm.
std::vector<Tensor> run_with_residual(Op op, Attributes attributes, std::vector<Tensor> inputs,
                                      std::vector<Shape> outputs, std::int64_t origin) {
  attributes.set("residual", false);
  const bool forward = op == Op::layer_norm || op == Op::rms_norm;
  const bool last =
      op == Op::linear || op == Op::linear_grad_input || op == Op::batch_norm || op == Op::batch_norm_apply;
  const auto at = last ? inputs.end() - 1 : inputs.begin() + (forward ? 1 : op == Op::layer_norm_grad ? 5 : 4);
  const Tensor residual = *at;
  inputs.erase(at);
  if (!forward) {
    std::vector<Tensor> out = run(op, attributes, inputs, outputs, origin);
    for (std::int64_t i = 0; i < residual.size(); ++i) out[0][i] += residual[i];
    return out;
  }
  for (std::int64_t i = 0; i < residual.size(); ++i) inputs[0][i] += residual[i];
  outputs.pop_back();
  std::vector<Tensor> out = run(op, attributes, inputs, outputs);
  out.push_back(inputs[0]);
  return out;
}

// A batch norm with `relu` is the norm, with a residual if there is one, and max(y, 0) of what it gives. Its gradients
// are those of a norm in the gradient of max(y, 0).
std::vector<Tensor> run_with_relu(Op op, Attributes attributes, std::vector<Tensor> inputs,
                                  const std::vector<Shape>& outputs) {
  attributes.set("relu", false);
  if (op == Op::batch_norm || op == Op::batch_norm_apply) {
    std::vector<Tensor> out = run(op, attributes, inputs, outputs);
    for (double& y : out[0].data) y = std::max(y, 0.0);
    return out;
  }
  const bool sums_only = op == Op::batch_norm_grad_sums;
  const Tensor &x = inputs[1], &weight = inputs[sums_only ? 3 : 2], &bias = inputs[sums_only ? 4 : 5];
  const Tensor z = run(Op::batch_norm_apply, attributes, {x, inputs[sums_only ? 2 : 3], weight, bias}, {x.shape})[0];
  for (std::int64_t i = 0; i < z.size(); ++i)
    if (z[i] <= 0) inputs[0][i] = 0;
  inputs.resize(sums_only ? 3 : 5);
  return run(op, attributes, inputs, outputs);
}

}  // namespace

std::vector<Tensor> run(Op op, const Attributes& attributes, const std::vector<Tensor>& inputs,
                        const std::vector<Shape>& outputs, std::int64_t origin) {
  if (attributes.has("relu") && attributes.flag("relu")) return run_with_relu(op, attributes, inputs, outputs);
  if (attributes.has("residual") && attributes.flag("residual"))
    return run_with_residual(op, attributes, inputs, outputs, origin);
  std::vector<Tensor> out;
  for (const Shape& shape : outputs) out.emplace_back(shape);
  dispatch(op, Call{attributes, inputs, out, origin});
  return out;
}

}  // namespace trainer::reference
