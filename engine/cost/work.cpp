// Class and sizes by the op's record; what is of no general class has a case here.
#include "engine/cost/work.h"

#include <algorithm>
#include <bit>
#include <string>
#include <type_traits>
#include <variant>

#include "engine/core/check.h"
#include "engine/core/matrix_list.h"
#include "engine/core/muon.h"
#include "engine/core/op_record.h"
#include "engine/ops/op_def.h"

namespace trainer::cost {
namespace {

const Shape& shape(const Signature& s, int index) { return s.operands[static_cast<std::size_t>(index)].shape; }
const Shape& last_shape(const Signature& s) { return s.operands.back().shape; }

double bytes_of(const Signature& s) {
  const Cost cost = cost_of(s);
  return cost.bytes_read + cost.bytes_written;
}

DType float_of(const Signature& s) {
  for (const TensorDesc& operand : s.operands)
    if (operand.dtype == DType::f32 || operand.dtype == DType::bf16 || operand.dtype == DType::f16)
      return operand.dtype;
  return DType::f32;
}

Work with_flops(const Signature& s, std::string_view name, std::vector<std::int64_t> sizes) {
  return {name, float_of(s), std::move(sizes), cost_of(s).flops};
}

Work by_rows(const Signature& s, std::string_view name, const Shape& x) {
  return {name, float_of(s), {x.rows(), x[-1]}, bytes_of(s)};
}

Work by_elements(const Signature& s, std::string_view name) {
  std::int64_t elements = 1;
  for (const TensorDesc& operand : s.operands) elements = std::max(elements, operand.elements());
  return {name, float_of(s), {elements}, bytes_of(s)};
}

// Channels in runs of as many elements as an image has places.
Work by_places(const Signature& s, std::string_view name) {
  const Shape& x = shape(s, 0);
  const std::int64_t places = std::max<std::int64_t>(1, x.elements() / std::max<std::int64_t>(1, x[0] * x[1]));
  return {name, float_of(s), {x.elements(), places}, bytes_of(s)};
}

Work by_window(const Signature& s, const Shape& x) {
  const std::int64_t kernel = integer(s, "kernel");
  return {name_of(s.op), float_of(s), {x.elements(), kernel * kernel}, bytes_of(s)};
}

// Ops that touch a few numbers: their time is that of a call.
Work of_scalars(const Signature& s, std::string_view name) {
  return {name, float_of(s), {1}, std::max(1.0, bytes_of(s))};
}

// Blocks of a ring run at the rate of attention of as many keys.
Work of_attention_block(const Signature& s, bool forward) {
  const bool rope = real(s, "rope_theta") != 0;
  const Shape &q = shape(s, forward ? 0 : 1), &k = shape(s, forward ? 1 : 2);
  const std::int64_t heads = integer(s, "heads");
  const std::string_view name =
      forward ? (rope ? "attention_rope" : "attention") : (rope ? "attention_rope_grad" : "attention_grad");
  return with_flops(s, name, {q[0] * heads, k[1], q[2] / heads});
}

// [batch, seq, heads · head_dim], of the output or its gradient. Queries of a part of the sequence run at the rate of
// as long a sequence as their keys: blocks of keys are what the loops go over.
Work of_attention(const Signature& s) {
  const bool forward = s.op == Op::attention || s.op == Op::attention_block;
  if (s.op == Op::attention_block || s.op == Op::attention_block_grad) return of_attention_block(s, forward);
  const bool rope = real(s, "rope_theta") != 0;
  const Shape& o = forward ? shape(s, static_cast<int>(s.operands.size()) - 2) : shape(s, 0);
  const Shape& q = flag(s, "packed") ? o : shape(s, forward ? 0 : 1);
  const std::int64_t heads = integer(s, "heads");
  const std::int64_t keys = shape(s, (forward ? 0 : 1) + (flag(s, "packed") ? 0 : 1))[1];
  const std::string_view name =
      forward ? (rope ? "attention_rope" : "attention") : (rope ? "attention_rope_grad" : "attention_grad");
  return with_flops(s, name, {o[0] * heads, keys, q[2] / heads});
}

// A bias is a walk over dy of its own, sums that are added to are read as well.
Work of_grad_weight(const Signature& s) {
  const bool bias = flag(s, "bias"), accumulate = accumulates(s);
  const std::string_view name = bias ? (accumulate ? "linear_grad_weight_bias_accumulate" : "linear_grad_weight_bias")
                                     : (accumulate ? "linear_grad_weight_accumulate" : "linear_grad_weight");
  return with_flops(s, name, {shape(s, 0).rows(), shape(s, 0)[-1], shape(s, 1)[-1]});
}

Work of_conv(const Signature& s, std::string_view name, const Shape& weight, const Shape& y) {
  return with_flops(s, name,
                    {y.elements() / y[1], weight.elements() / weight[0], weight[0], y.elements() / (y[0] * y[1])});
}

// Rows that are read, and added to where they lie; a gradient that starts from zero is the whole table written before.
Work of_embedding_grad(const Signature& s) {
  const bool accumulate = accumulates(s);
  const Shape& dy = shape(s, 1);
  const TensorDesc& table = s.operands[2];
  const auto rows = static_cast<double>(dy.elements() * (size_of(s.operands[1].dtype) + 2 * size_of(table.dtype)));
  return {"embedding_grad",
          s.operands[1].dtype,
          {dy.rows(), dy[-1]},
          rows + (accumulate ? 0.0 : static_cast<double>(table.bytes()))};
}

Work of_cast(const Signature& s) {
  const DType from = s.operands[0].dtype, to = s.operands[1].dtype;
  return by_elements(s, from == to         ? "copy"
                        : to == DType::f32 ? "cast_f32"
                        : to == DType::f16 ? "cast_f16"
                                           : "cast_bf16");
}

// Only the elements between `first` and `last`.
Work of_sum_squares(const Signature& s) {
  const std::int64_t all = shape(s, 0).elements();
  const std::int64_t first = std::clamp<std::int64_t>(integer(s, "first"), 0, all),
                     last = std::clamp<std::int64_t>(given_integer(s, "last").value_or(all), first, all);
  const std::int64_t elements = std::max<std::int64_t>(1, last - first);
  return {"sum_squares", s.operands[0].dtype, {elements}, static_cast<double>(elements * size_of(s.operands[0].dtype))};
}

Work of_optimizer(const Signature& s, std::string_view plain, std::string_view working) {
  return {flag(s, "working") ? working : plain, DType::f32, {shape(s, 0).elements()}, bytes_of(s)};
}

// Nearly all of it is products. They run as those of `linear` do, in f32 on CPUs; of the matrix with the most, the last
// of a step.
Work of_muon(const Signature& s) {
  const std::int64_t parts = shape(s, 0)[0], steps = integer(s, "steps");
  std::vector<std::int64_t> sizes = {1, 1, 1};
  double most = 0;
  for (const OwnedMatrix& matrix : matrix_list(text(s, "matrices"))) {
    const std::int64_t rows = matrix.whole_rows(parts), cols = matrix.whole_cols(parts);
    if (newton_schulz_flops(rows, cols, steps) <= most) continue;
    most = newton_schulz_flops(rows, cols, steps);
    sizes = {std::min(rows, cols), std::min(rows, cols), std::max(rows, cols)};
  }
  return {"linear", DType::f32, std::move(sizes), cost_of(s).flops};
}

bool residual(const Signature& s) { return flag(s, "residual"); }

// Of each expert a product of as many rows as it has if all have as many.
Work of_experts(const Signature& s) {
  const bool grad_weight = s.op == Op::expert_linear_grad_weight;
  const Shape& weight = shape(s, grad_weight ? 3 : 2);
  const std::int64_t rows = std::max<std::int64_t>(1, shape(s, grad_weight ? 2 : 1).elements() / weight[0]);
  if (grad_weight)
    return with_flops(s, accumulates(s) ? "linear_grad_weight_accumulate" : "linear_grad_weight",
                      {rows, weight[2], weight[1]});
  return with_flops(s, s.op == Op::expert_linear ? "linear" : "linear_grad_input", {rows, weight[2], weight[1]});
}

Work of_product(const Signature& s) {
  if (s.op == Op::linear) return with_flops(s, "linear", {shape(s, 0).rows(), shape(s, 0)[-1], last_shape(s)[-1]});
  if (s.op == Op::linear_grad_input)
    return with_flops(s, "linear_grad_input", {shape(s, 0).rows(), last_shape(s)[-1], shape(s, 0)[-1]});
  if (s.op == Op::expert_linear || s.op == Op::expert_linear_grad_input || s.op == Op::expert_linear_grad_weight)
    return of_experts(s);
  // Measured as those of plain weights: decoding is a few percent of them where there are many rows.
  if (s.op == Op::quantized_linear)
    return with_flops(s, "linear", {shape(s, 0).rows(), shape(s, 0)[-1], last_shape(s)[-1]});
  if (s.op == Op::quantized_linear_grad_input)
    return with_flops(s, "linear_grad_input", {shape(s, 0).rows(), last_shape(s)[-1], shape(s, 0)[-1]});
  CHECK(s.op == Op::linear_grad_weight, std::string(name_of(s.op)) + " is no product that has been measured");
  return of_grad_weight(s);
}

Work of_convolution(const Signature& s) {
  if (s.op == Op::conv2d || s.op == Op::conv1d) return of_conv(s, "conv2d", shape(s, 1), last_shape(s));
  if (s.op == Op::conv2d_grad_input || s.op == Op::conv1d_grad_input)
    return of_conv(s, "conv2d_grad_input", shape(s, 1), shape(s, 0));
  CHECK(s.op == Op::conv2d_grad_weight || s.op == Op::conv1d_grad_weight,
        std::string(name_of(s.op)) + " is no convolution that has been measured");
  return of_conv(s, "conv2d_grad_weight", shape(s, 2), shape(s, 1));
}

// One pass over memory whose measurements have a name or sizes of their own.
Work of_own(const Signature& s) {
  switch (s.op) {
    case Op::embedding:
      return by_rows(s, "embedding", last_shape(s));
    case Op::row_squares:  // sums of products on vectors, as a product in f32 has them
      return {"linear", DType::f32, {shape(s, 0)[1], shape(s, 1)[0], shape(s, 0)[0]}, cost_of(s).flops};
    case Op::embedding_grad:
      return of_embedding_grad(s);
    case Op::layer_norm:
      return by_rows(s, residual(s) ? "layer_norm_residual" : "layer_norm", shape(s, 0));
    case Op::rms_norm:
      return by_rows(s, residual(s) ? "rms_norm_residual" : "rms_norm", shape(s, 0));
    case Op::layer_norm_grad:
      return by_rows(s, residual(s) ? "layer_norm_grad_residual" : "layer_norm_grad", shape(s, 0));
    case Op::rms_norm_grad:
      return by_rows(s, residual(s) ? "rms_norm_grad_residual" : "rms_norm_grad", shape(s, 0));
    case Op::gelu:
      return by_elements(s, text(s, "approximate") == "tanh" ? "gelu_tanh" : "gelu");
    case Op::gelu_grad:
      return by_elements(s, text(s, "approximate") == "tanh" ? "gelu_tanh_grad" : "gelu_grad");
    case Op::batch_norm:
      return by_places(s, name_of(Op::batch_norm_apply));
    case Op::batch_norm_sums:
    case Op::batch_norm_apply:
    case Op::batch_norm_grad_sums:
    case Op::batch_norm_grad:
      return by_places(s, name_of(s.op));
    case Op::max_pool2d:
    case Op::avg_pool2d:
      return by_window(s, shape(s, 0));
    case Op::max_pool2d_grad:
    case Op::avg_pool2d_grad:
      return by_window(s, last_shape(s));
    case Op::add:
      return by_elements(s, shape(s, 0) == shape(s, 1) ? "add" : "add_leading");
    case Op::cross_entropy_gathered:
    case Op::sequence_nll:  // the logits are not read
      return {name_of(Op::cross_entropy_gathered), float_of(s), {shape(s, 2).elements()}, bytes_of(s)};
    case Op::correct_count_gathered:
      return {name_of(s.op), float_of(s), {shape(s, 1).elements()}, bytes_of(s)};
    case Op::router_losses:
      return flag(s, "balance") ? of_scalars(s, name_of(Op::loss_seed)) : by_rows(s, "cross_entropy", shape(s, 0));
    case Op::route_grad:
      return by_rows(s, "cross_entropy_grad", shape(s, 1));
    case Op::cast:
      return of_cast(s);
    case Op::sum_squares:
      return of_sum_squares(s);
    case Op::sgd:
    case Op::muon:
      return of_optimizer(s, "sgd", "sgd_working");  // the same arithmetic
    case Op::adam:
    case Op::adamw:
      return of_optimizer(s, "adamw", "adamw_working");
    case Op::lion:
      return of_optimizer(s, "lion", "lion_working");
    default:
      UNREACHABLE(std::string(name_of(s.op)) + " has work of its own that nobody described");
  }
}

}  // namespace

bool counts_flops(std::string_view work) {
  return work.starts_with("linear") || work.starts_with("attention") || work.starts_with("conv2d");
}

// FNV-1a, 64 bits, over everything that makes the signature what it is.
std::string exact_name(const Signature& s) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  const auto add = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
    hash = (hash ^ 0xFFu) * 0x100000001B3u;  // the end of a word
  };
  add(name_of(s.op));
  for (const TensorDesc& operand : s.operands) {
    add(name_of(operand.dtype));
    add(operand.shape.str());
  }
  for (const auto& [name, value] : s.attributes.items()) {
    add(name);
    std::visit(
        [&](const auto& one) {
          using T = std::decay_t<decltype(one)>;
          if constexpr (std::is_same_v<T, std::string>)
            add(one);
          else if constexpr (std::is_same_v<T, double>)
            add(std::to_string(std::bit_cast<std::uint64_t>(one)));
          else
            add(std::to_string(one));
        },
        value);
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string name = std::string(work_of(s).name) + "@";
  for (int shift = 60; shift >= 0; shift -= 4) name += kDigits[hash >> shift & 15];
  return name;
}

bool multiplies_fp8(const Signature& s) {
  return record(s.op).attribute("fp8") != nullptr && text(s, "fp8") != name_of(Fp8Scales::none);
}

Work work_of(const Signature& s) {
  const OpRecord& op = record(s.op);
  const std::string_view name = op.timed_as.empty() ? name_of(s.op) : op.timed_as;
  switch (op.work) {
    case WorkClass::none:
      break;
    case WorkClass::elements:
      return by_elements(s, name);
    case WorkClass::rows:
      return by_rows(s, name, shape(s, 0));
    case WorkClass::scalars:
      return of_scalars(s, name);
    case WorkClass::own:
      return of_own(s);
    case WorkClass::product:
      return of_product(s);
    case WorkClass::convolution:
      return of_convolution(s);
    case WorkClass::attention:
      return of_attention(s);
    case WorkClass::orthogonalize:
      return of_muon(s);
  }
  UNREACHABLE(std::string(name_of(s.op)) + " is never launched, and so takes no time");
}

}  // namespace trainer::cost
