// A line for each op: its class and sizes. The switch has no default, so that an op without an entry does not compile.
#include "engine/cost/work.h"

#include <algorithm>
#include <string>

#include "engine/core/check.h"
#include "engine/core/matrix_list.h"
#include "engine/core/muon.h"
#include "engine/ops/op_def.h"

namespace trainer::cost {
namespace {

const Shape& shape(const Signature& s, int index) { return s.operands[static_cast<std::size_t>(index)].shape; }
const Shape& last_shape(const Signature& s) { return s.operands.back().shape; }

double moved(const Signature& s) {
  const Cost cost = cost_of(s);
  return cost.bytes_read + cost.bytes_written;
}

DType float_of(const Signature& s) {
  for (const TensorDesc& operand : s.operands)
    if (operand.dtype == DType::f32 || operand.dtype == DType::bf16 || operand.dtype == DType::f16) return operand.dtype;
  return DType::f32;
}

Work with_flops(const Signature& s, std::string_view name, std::vector<std::int64_t> sizes) { return {name, float_of(s), std::move(sizes), cost_of(s).flops}; }

Work by_rows(const Signature& s, std::string_view name, const Shape& x) { return {name, float_of(s), {x.rows(), x[-1]}, moved(s)}; }

Work by_elements(const Signature& s, std::string_view name) {
  std::int64_t elements = 1;
  for (const TensorDesc& operand : s.operands) elements = std::max(elements, operand.elements());
  return {name, float_of(s), {elements}, moved(s)};
}

// Ops that touch a few numbers: their time is that of a call.
Work of_scalars(const Signature& s, std::string_view name) { return {name, float_of(s), {1}, std::max(1.0, moved(s))}; }

// [batch, seq, heads · head_dim], of the output or its gradient. Queries of a part of the sequence run at the rate of as long a sequence as
// their keys: blocks of keys are what the loops go over.
Work of_attention(const Signature& s, bool forward) {
  const bool rope = s.attributes.has("rope_theta") && s.attributes.real("rope_theta") != 0;
  const Shape& o = forward ? shape(s, static_cast<int>(s.operands.size()) - 2) : shape(s, 0);
  const std::int64_t heads = s.attributes.integer("heads");
  const std::int64_t keys = shape(s, (forward ? 0 : 1) + (s.attributes.flag("packed", true) ? 0 : 1))[1];
  const std::string_view name = forward ? (rope ? "attention_rope" : "attention") : (rope ? "attention_rope_grad" : "attention_grad");
  return with_flops(s, name, {o[0] * heads, keys, o[2] / heads});
}

// A bias is a walk over dy of its own, sums that are added to are read as well.
Work of_grad_weight(const Signature& s) {
  const bool bias = s.attributes.flag("bias", true), accumulate = s.attributes.flag("accumulate", false);
  const std::string_view name = bias ? (accumulate ? "linear_grad_weight_bias_accumulate" : "linear_grad_weight_bias")
                                     : (accumulate ? "linear_grad_weight_accumulate" : "linear_grad_weight");
  return with_flops(s, name, {shape(s, 0).rows(), shape(s, 0)[-1], shape(s, 1)[-1]});
}

Work of_conv(const Signature& s, std::string_view name, const Shape& weight, const Shape& y) {
  return with_flops(s, name, {y[0] * y[2] * y[3], weight[1] * weight[2] * weight[3], weight[0]});
}

// Rows that are read, and added to where they lie; a gradient that begins anew is the whole table written before.
Work of_embedding_grad(const Signature& s) {
  const bool accumulate = s.attributes.flag("accumulate", false);
  const Shape& dy = shape(s, 1);
  const TensorDesc& table = s.operands[2];
  const auto rows = static_cast<double>(dy.elements() * (size_of(s.operands[1].dtype) + 2 * size_of(table.dtype)));
  return {"embedding_grad", s.operands[1].dtype, {dy.rows(), dy[-1]}, rows + (accumulate ? 0.0 : static_cast<double>(table.bytes()))};
}

Work of_cast(const Signature& s) {
  const DType from = s.operands[0].dtype, to = s.operands[1].dtype;
  return by_elements(s, from == to ? "copy" : to == DType::f32 ? "cast_f32" : to == DType::f16 ? "cast_f16" : "cast_bf16");
}

// The elements between `first` and `last` alone.
Work of_sum_squares(const Signature& s) {
  const std::int64_t all = shape(s, 0).elements();
  const std::int64_t first = std::clamp<std::int64_t>(s.attributes.integer("first", 0), 0, all), last = std::clamp<std::int64_t>(s.attributes.integer("last", all), first, all);
  const std::int64_t elements = std::max<std::int64_t>(1, last - first);
  return {"sum_squares", s.operands[0].dtype, {elements}, static_cast<double>(elements * size_of(s.operands[0].dtype))};
}

Work of_optimizer(const Signature& s, std::string_view plain, std::string_view working) {
  return {s.attributes.flag("working", false) ? working : plain, DType::f32, {shape(s, 0).elements()}, moved(s)};
}

// Nearly all of it is products. They run as those of `linear` do, in f32 on CPUs; of the matrix with the most, the last
// of a step.
Work of_muon(const Signature& s) {
  const std::int64_t parts = shape(s, 0)[0], steps = s.attributes.integer("steps");
  std::vector<std::int64_t> sizes = {1, 1, 1};
  double most = 0;
  for (const OwnedMatrix& matrix : matrix_list(s.attributes.text("matrices"))) {
    const std::int64_t rows = matrix.whole_rows(parts), cols = matrix.whole_cols(parts);
    if (newton_schulz_flops(rows, cols, steps) <= most) continue;
    most = newton_schulz_flops(rows, cols, steps);
    sizes = {std::min(rows, cols), std::min(rows, cols), std::max(rows, cols)};
  }
  return {"linear", DType::f32, std::move(sizes), cost_of(s).flops};
}

bool residual(const Signature& s) { return s.attributes.flag("residual", false); }

}  // namespace

bool counts_flops(std::string_view work) { return work.starts_with("linear") || work.starts_with("attention") || work.starts_with("conv2d"); }

Work work_of(const Signature& s) {
  switch (s.op) {
    case Op::linear: return with_flops(s, "linear", {shape(s, 0).rows(), shape(s, 0)[-1], last_shape(s)[-1]});
    case Op::linear_grad_input: return with_flops(s, "linear_grad_input", {shape(s, 0).rows(), last_shape(s)[-1], shape(s, 0)[-1]});
    case Op::linear_grad_weight: return of_grad_weight(s);
    case Op::attention: return of_attention(s, true);
    case Op::attention_grad: return of_attention(s, false);
    case Op::conv2d: return of_conv(s, "conv2d", shape(s, 1), last_shape(s));
    case Op::conv2d_grad_input: return of_conv(s, "conv2d_grad_input", shape(s, 1), shape(s, 0));
    case Op::conv2d_grad_weight: return of_conv(s, "conv2d_grad_weight", shape(s, 2), shape(s, 1));
    case Op::embedding: return by_rows(s, "embedding", last_shape(s));
    case Op::embedding_grad: return of_embedding_grad(s);
    case Op::positions:
    case Op::split:
    case Op::concat: return by_elements(s, "copy");
    case Op::positions_grad: return by_elements(s, "positions_grad");
    case Op::layer_norm: return by_rows(s, residual(s) ? "layer_norm_residual" : "layer_norm", shape(s, 0));
    case Op::rms_norm: return by_rows(s, residual(s) ? "rms_norm_residual" : "rms_norm", shape(s, 0));
    case Op::layer_norm_grad: return by_rows(s, residual(s) ? "layer_norm_grad_residual" : "layer_norm_grad", shape(s, 0));
    case Op::rms_norm_grad: return by_rows(s, residual(s) ? "rms_norm_grad_residual" : "rms_norm_grad", shape(s, 0));
    case Op::gelu: return by_elements(s, s.attributes.text("approximate") == "tanh" ? "gelu_tanh" : "gelu");
    case Op::gelu_grad: return by_elements(s, s.attributes.text("approximate") == "tanh" ? "gelu_tanh_grad" : "gelu_grad");
    case Op::relu:
    case Op::silu:
    case Op::tanh:
    case Op::sigmoid:
    case Op::relu_grad:
    case Op::silu_grad:
    case Op::tanh_grad:
    case Op::sigmoid_grad:
    case Op::mul:
    case Op::scale:
    case Op::sum_leading:
    case Op::dropout:
    case Op::max_pool2d:
    case Op::max_pool2d_grad:
    case Op::avg_pool2d:
    case Op::avg_pool2d_grad:
    case Op::mse:
    case Op::mse_grad:
    case Op::zero:
    case Op::outer_step:
    case Op::apply_delayed:
    case Op::compress_bf16:
    case Op::quantize_int8:
    case Op::dequantize_int8:
    case Op::dequantize_sum_int8:
    case Op::top_k_compress:
    case Op::top_k_sum: return by_elements(s, name_of(s.op));
    case Op::bias_grad: return by_elements(s, "sum_leading");  // the same pass over memory
    case Op::sum_squares: return of_sum_squares(s);
    case Op::add: return by_elements(s, shape(s, 0) == shape(s, 1) ? "add" : "add_leading");
    case Op::cross_entropy:
    case Op::cross_entropy_grad:
    case Op::cross_entropy_stats:
    case Op::correct_count: return by_rows(s, name_of(s.op), shape(s, 0));
    case Op::cross_entropy_gathered: return {name_of(s.op), float_of(s), {shape(s, 2).elements()}, moved(s)};  // the logits are not read
    case Op::correct_count_gathered: return {name_of(s.op), float_of(s), {shape(s, 1).elements()}, moved(s)};
    case Op::cross_entropy_count:
    case Op::mse_count: return by_elements(s, name_of(s.op));
    case Op::cast: return of_cast(s);
    case Op::pack_weight: return by_elements(s, last_shape(s) == shape(s, 0) && s.operands.back().layout == Layout::packed_transposed ? "pack_weight_transposed" : "pack_weight");
    case Op::loss_seed:
    case Op::update_scalars: return of_scalars(s, name_of(s.op));
    case Op::sgd: return of_optimizer(s, "sgd", "sgd_working");
    case Op::adam:
    case Op::adamw: return of_optimizer(s, "adamw", "adamw_working");
    case Op::lion: return of_optimizer(s, "lion", "lion_working");
    case Op::muon_momentum:
      return by_elements(s, name_of(s.op));
    case Op::muon: return of_optimizer(s, "sgd", "sgd_working");  // the same arithmetic
    case Op::muon_orthogonalize:
      return of_muon(s);
    case Op::reshape:
    case Op::flatten:
    case Op::replicate:
    case Op::all_reduce:
    case Op::all_gather:
    case Op::reduce_scatter: break;
  }
  CHECK(false, std::string(name_of(s.op)) + " is never launched, and so takes no time");
}

}  // namespace trainer::cost
