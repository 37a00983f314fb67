// Reference: every op of kernels/README.md written as its formula, in f64, with plain loops and no care for speed. The
// independent truth that graphs, gradients, sharding rules and kernels are held to. Written from the contract
// alone; shares no code with engine/ops or kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/core/attributes.h"
#include "engine/core/op.h"
#include "engine/core/shape.h"

namespace trainer::reference {

/// Dense, row-major. Integers are held as whole numbers.
struct Tensor {
  Shape shape;
  std::vector<double> data;

  Tensor() = default;
  explicit Tensor(const Shape& of, double value = 0)
      : shape(of), data(static_cast<std::size_t>(of.elements()), value) {}
  std::int64_t size() const { return static_cast<std::int64_t>(data.size()); }
  double& operator[](std::int64_t i) { return data[static_cast<std::size_t>(i)]; }
  double operator[](std::int64_t i) const { return data[static_cast<std::size_t>(i)]; }
};

/// One application of an op: operands in the order of kernels/README.md, outputs overwritten.
struct Call {
  const Attributes& attributes;
  const std::vector<Tensor>& in;
  std::vector<Tensor>& out;
  std::int64_t origin = 0;  ///< as kernels::Call::origin

  /// Whether the operand that attribute `name` stands for is there.
  bool has(const char* name) const { return flag(name, false); }
  /// An attribute, with what the contract says of its absence.
  bool flag(const char* name, bool otherwise) const { return attributes.has(name) ? attributes.flag(name) : otherwise; }
  std::int64_t integer(const char* name, std::int64_t otherwise) const {
    return attributes.has(name) ? attributes.integer(name) : otherwise;
  }
};

/// Outputs of shapes `outputs`. REQUIRES: operands as the contract says.
std::vector<Tensor> run(Op op, const Attributes& attributes, const std::vector<Tensor>& inputs,
                        const std::vector<Shape>& outputs, std::int64_t origin = 0);

// The ops themselves, by family.
void linear(const Call&);
void linear_grad_input(const Call&);
void quantized_linear(const Call&);
void quantized_linear_grad_input(const Call&);
void linear_grad_weight(const Call&);
void bias_grad(const Call&);
void embedding(const Call&);
void embedding_grad(const Call&);
void positions(const Call&);
void positions_grad(const Call&);
void document_positions(const Call&);
void layer_norm(const Call&);
void layer_norm_grad(const Call&);
void rms_norm(const Call&);
void rms_norm_grad(const Call&);
void batch_norm(const Call&);
void batch_norm_sums(const Call&);
void batch_norm_apply(const Call&);
void batch_norm_update(const Call&);
void batch_norm_grad_sums(const Call&);
void batch_norm_grad(const Call&);
void attention(const Call&);
void attention_grad(const Call&);
void attention_block(const Call&);
void activation(const Call&, const std::function<double(double)>&);
void activation_grad(const Call&, const std::function<double(double dy, double saved)>&);
void gelu(const Call&);
void gelu_grad(const Call&);
void glu(const Call&);
void glu_grad(const Call&);
void binary(const Call&, const std::function<double(double, double)>&);
void sum_leading(const Call&);
void dropout(const Call&);
void conv2d(const Call&);
void conv2d_grad_input(const Call&);
void conv2d_grad_weight(const Call&);
void max_pool2d(const Call&);
void max_pool2d_grad(const Call&);
void avg_pool2d(const Call&);
void avg_pool2d_grad(const Call&);
void cross_entropy(const Call&);
void cross_entropy_grad(const Call&);
void cross_entropy_and_grad(const Call&);
void cross_entropy_count(const Call&);
void correct_count(const Call&);
void cross_entropy_stats(const Call&);
void cross_entropy_gathered(const Call&);
void sequence_nll(const Call&);
void dpo_loss(const Call&);
void dpo_loss_grad(const Call&);
void dpo_count(const Call&);
void correct_count_gathered(const Call&);
void mse(const Call&);
void mse_grad(const Call&);
void split(const Call&);
void concat(const Call&);
void slice(const Call&);
void slice_grad(const Call&);
void expand(const Call&);
void transpose(const Call&);
void mean(const Call&);
void mean_grad(const Call&);
void route(const Call&);
void route_grad(const Call&);
void expert_capacity(const Call&);
void router_losses(const Call&);
void expert_linear(const Call&);
void expert_linear_grad_input(const Call&);
void expert_linear_grad_weight(const Call&);
void weigh(const Call&);
void row_dots(const Call&);
void expert_slots(const Call&);
void dispatch(const Call&);
void combine(const Call&);
void row_squares(const Call&);
void over_root(const Call&);
void loss_seed(const Call&);
void sum_squares(const Call&);
void update_scalars(const Call&);
void sgd(const Call&);
void adam(const Call&);
void lion(const Call&);
void muon_momentum(const Call&);
void muon_orthogonalize(const Call&);
void muon(const Call&);
void outer_gradient(const Call&);
void outer_step(const Call&);
void apply_delayed(const Call&);
void compress_bf16(const Call&);
void quantize_int8(const Call&);
void dequantize_int8(const Call&);
void dequantize_sum_int8(const Call&);
void top_k_compress(const Call&);
void top_k_sum(const Call&);

}  // namespace trainer::reference
