// A family is a class of work and its sizes; sizes span what fits into a core's cache to what fits into none. Products
// are in grids of (rows, in, out) since their speed depends on each; costly corners are left out, where speed hardly
// changes any more.
#include "tools/calibrate/cases.h"

#include <algorithm>
#include <functional>

#include "engine/core/compression.h"
#include "engine/core/op_record.h"
#include "engine/cost/work.h"

namespace trainer::tools {
namespace {

using Sizes = std::vector<std::int64_t>;
using Grid = std::vector<Sizes>;
using Make = std::function<Signature(DType, const Sizes&)>;

constexpr double kMostFlops = 1.5e9;              // of a product: some milliseconds of two cores
constexpr std::int64_t kMostElements = 12 << 20;  // of the largest operand of all else

const TensorDesc kLoss{DType::f64, {1}}, kScalar{DType::f32, {1}}, kScalars{DType::f32, {4}}, kCounter{DType::i32, {1}};

TensorDesc values(DType c, const Shape& shape) { return {c, shape}; }

// ---- Grids --------------------------------------------------------------------------------------------------------

Grid crossed(const Sizes& a, const Sizes& b) {
  Grid out;
  for (std::int64_t x : a)
    for (std::int64_t y : b) out.push_back({x, y});
  return out;
}

Grid crossed(const Sizes& a, const Sizes& b, const Sizes& c) {
  Grid out;
  for (std::int64_t x : a)
    for (const Sizes& rest : crossed(b, c)) out.push_back({x, rest[0], rest[1]});
  return out;
}

Grid products(Effort effort) {
  const bool full = effort == Effort::full;
  const Sizes rows = full ? Sizes{32, 128, 512, 2048} : Sizes{128, 1024},
              dims = full ? Sizes{64, 128, 256, 768, 3072} : Sizes{128, 512, 2048};
  Grid out;
  for (const Sizes& s : crossed(rows, dims, dims))
    if (2.0 * static_cast<double>(s[0] * s[1] * s[2]) <= kMostFlops) out.push_back(s);
  if (full)
    for (std::int64_t r : {32, 128, 256}) out.push_back({r, 128, 32768});
  return out;
}

Grid attentions(Effort effort) {
  if (effort == Effort::quick) return crossed({16}, {64, 512}, {32, 64});
  Grid out;
  for (const Sizes& s : crossed({8, 48}, {64, 256, 1024}, {32, 64, 128}))
    if (s[0] * s[1] * s[1] * s[2] < 5e9) out.push_back(s);
  return out;
}

Grid by_rows(Effort effort) {
  return effort == Effort::full ? crossed({64, 512, 4096}, {64, 256, 1024}) : crossed({64, 1024}, {128, 768});
}

Grid by_classes(Effort effort) {
  Grid out;
  for (const Sizes& s :
       effort == Effort::full ? crossed({64, 1024}, {64, 256, 4096, 50304}) : crossed({512}, {128, 4096}))
    if (s[0] * s[1] <= kMostElements) out.push_back(s);
  return out;
}

Grid elements(Effort effort) {
  Grid out;
  for (std::int64_t n : effort == Effort::full ? Sizes{1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20}
                                               : Sizes{8 << 10, 256 << 10, 4 << 20})
    out.push_back({n});
  return out;
}

Grid flat(Effort effort) {
  Grid out = elements(effort);
  out.push_back({kMostElements});
  return out;
}

// batch · oh · ow, in · kh · kw, out, oh · ow: 3 × 3 windows over images of one channel, of few and of many.
Grid images(Effort effort) {
  if (effort == Effort::quick) return {{4096, 16 * 9, 32, 64}};
  Grid out;
  for (const Sizes& s : crossed({512, 8192}, {32 * 9, 256 * 9}, {64, 256}))
    if (2.0 * static_cast<double>(s[0] * s[1] * s[2]) <= kMostFlops)
      for (const std::int64_t places : {4, 64, 1024})
        if (places <= s[0]) out.push_back({s[0], s[1], s[2], places});
  for (const std::int64_t channels : {1, 8})
    for (const std::int64_t places : {64, 1024}) out.push_back({8192, channels * 9, 64, places});
  return out;
}

constexpr std::int64_t kChannels = 64;

// n · ch · h · w, h · w.
Grid by_places(Effort effort) {
  if (effort == Effort::quick) return {{256 << 10, 64}};
  Grid out;
  for (const Sizes& s : crossed({16 << 10, 256 << 10, 2 << 20}, {4, 64, 1024}))
    if (s[0] >= kChannels * s[1]) out.push_back(s);
  return out;
}

// ---- Signatures ---------------------------------------------------------------------------------------------------

Signature linear(DType c, const Sizes& s) {
  return {Op::linear,
          {{"bias", true}},
          {values(c, {s[0], s[1]}), values(c, {s[2], s[1]}), values(c, {s[2]}), values(c, {s[0], s[2]})}};
}

Signature linear_grad_input(DType c, const Sizes& s) {
  return {Op::linear_grad_input, {}, {values(c, {s[0], s[2]}), values(c, {s[2], s[1]}), values(c, {s[0], s[1]})}};
}

Make linear_grad_weight(bool bias, bool accumulate) {
  return [=](DType c, const Sizes& s) {
    Signature out{Op::linear_grad_weight,
                  {{"bias", bias}, {"accumulate", accumulate}},
                  {values(c, {s[0], s[1]}), values(c, {s[0], s[2]}), {DType::f32, {s[2], s[1]}}}};
    if (bias) out.operands.push_back({DType::f32, {s[2]}});
    return out;
  };
}

// batch · heads as samples of up to 8 heads.
Attributes attention_attributes(std::int64_t heads, bool rope) {
  return {
      {"heads", heads}, {"kv_heads", heads}, {"causal", true}, {"packed", true}, {"rope_theta", rope ? 10000.0 : 0.0}};
}

Make attention(bool rope) {
  return [=](DType c, const Sizes& s) {
    const std::int64_t heads = std::min<std::int64_t>(8, s[0]), batch = s[0] / heads;
    return Signature{Op::attention,
                     attention_attributes(heads, rope),
                     {values(c, {batch, s[1], 3 * heads * s[2]}),
                      values(c, {batch, s[1], heads * s[2]}),
                      {DType::f32, {batch, heads, s[1]}}}};
  };
}

Make attention_grad(bool rope) {
  return [=](DType c, const Sizes& s) {
    const std::int64_t heads = std::min<std::int64_t>(8, s[0]), batch = s[0] / heads;
    const TensorDesc o = values(c, {batch, s[1], heads * s[2]}), qkv = values(c, {batch, s[1], 3 * heads * s[2]}),
                     lse{DType::f32, {batch, heads, s[1]}};
    return Signature{Op::attention_grad, attention_attributes(heads, rope), {o, qkv, o, lse, qkv}};
  };
}

Make norm(Op op, bool residual) {
  return [=](DType c, const Sizes& s) {
    const TensorDesc x = values(c, {s[0], s[1]}), w = values(c, {s[1]}), stat{DType::f32, {s[0]}};
    Signature out{op, {{"eps", 1e-5}}, {x}};
    if (residual) {
      out.attributes.set("residual", true);
      out.operands.push_back(x);
    }
    out.operands.push_back(w);
    if (op == Op::layer_norm) {
      out.attributes.set("bias", true);
      out.operands.push_back(w);
    }
    out.operands.push_back(x);
    if (op == Op::layer_norm) out.operands.push_back(stat);
    out.operands.push_back(stat);
    if (residual) out.operands.push_back(x);
    return out;
  };
}

Make norm_grad(Op op, bool residual) {
  return [=](DType c, const Sizes& s) {
    const bool layer = op == Op::layer_norm_grad;
    const TensorDesc x = values(c, {s[0], s[1]}), w = values(c, {s[1]}), stat{DType::f32, {s[0]}},
                     dw{DType::f32, {s[1]}};
    Signature out{op, {}, {x, x, w, stat}};
    if (layer) {
      out.attributes.set("bias", true);
      out.operands.push_back(stat);
    }
    if (residual) {
      out.attributes.set("residual", true);
      out.operands.push_back(x);
    }
    out.operands.push_back(x);
    out.operands.push_back(dw);
    if (layer) out.operands.push_back(dw);
    return out;
  };
}

// y = f(inputs), all of one shape. One long row, as wide as a step's rows are where that divides.
Make elementwise(Op op, int inputs, Attributes attributes = {}) {
  return [=](DType c, const Sizes& s) {
    return Signature{op, attributes,
                     std::vector<TensorDesc>(static_cast<std::size_t>(inputs) + 1, values(c, {s[0] / 128, 128}))};
  };
}

// Ops that pass once over tensors of one shape and are not timed as another. Times do not depend on the values of
// attributes that have to be given.
bool is_plain(const OpRecord& op) {
  const auto of_compute = [](const OperandDef& operand) { return operand.what == "c"; };
  return op.work == WorkClass::elements && op.timed_as.empty() &&
         std::all_of(op.operands.begin(), op.operands.end(), of_compute);
}
Make plain(const OpRecord& op) {
  Attributes attributes;
  for (const AttributeDef& def : op.attributes)
    if (def.required()) attributes.set(def.name, 0.5);
  return elementwise(op.op, static_cast<int>(op.operands.size()) - 1, attributes);
}

Signature add_leading(DType c, const Sizes& s) {
  const std::int64_t inner = std::max<std::int64_t>(128, s[0] / 8);
  const TensorDesc x = values(c, {s[0] / inner, inner}), b = values(c, {inner});
  return {Op::add, {}, {x, b, x}};
}

Signature sum_leading(DType c, const Sizes& s) {
  const std::int64_t inner = std::max<std::int64_t>(128, s[0] / 8);
  return {Op::sum_leading, {}, {values(c, {s[0] / inner, inner}), values(c, {inner})}};
}

Signature dropout(DType c, const Sizes& s) {
  const TensorDesc x = values(c, {s[0] / 128, 128});
  return {Op::dropout, {{"p", 0.1}, {"key", std::int64_t{1}}}, {x, kCounter, x}};
}

Attributes loss_attributes() { return {{"ignore_index", std::int64_t{-100}}, {"label_smoothing", 0.0}}; }

Signature cross_entropy(DType c, const Sizes& s) {
  return {Op::cross_entropy,
          loss_attributes(),
          {values(c, {s[0], s[1]}), {DType::i32, {s[0]}}, kLoss, {DType::f32, {s[0]}}}};
}
Signature cross_entropy_grad(DType c, const Sizes& s) {
  return {Op::cross_entropy_grad,
          loss_attributes(),
          {values(c, {s[0], s[1]}), {DType::i32, {s[0]}}, {DType::f32, {s[0]}}, kScalar, values(c, {s[0], s[1]})}};
}
Signature cross_entropy_and_grad(DType c, const Sizes& s) {
  return {Op::cross_entropy_and_grad,
          loss_attributes(),
          {values(c, {s[0], s[1]}), {DType::i32, {s[0]}}, kScalar, kLoss, values(c, {s[0], s[1]})}};
}
Signature cross_entropy_stats(DType c, const Sizes& s) {
  const Attributes attributes{{"classes", 2 * s[1]}, {"ignore_index", std::int64_t{-100}}};
  return {
      Op::cross_entropy_stats, attributes, {values(c, {s[0], s[1]}), {DType::i32, {s[0]}}, {DType::f32, {s[0], 5}}}};
}
Signature cross_entropy_gathered(DType c, const Sizes& s) {
  Attributes attributes = loss_attributes();
  attributes.set("classes", std::int64_t{64});
  return {Op::cross_entropy_gathered,
          attributes,
          {values(c, {s[0], 32}), {DType::f32, {2, s[0], 5}}, {DType::i32, {s[0]}}, kLoss, {DType::f32, {s[0]}}}};
}
Signature correct_count_gathered(DType, const Sizes& s) {
  return {Op::correct_count_gathered,
          {{"ignore_index", std::int64_t{-100}}, {"classes", std::int64_t{64}}},
          {{DType::f32, {2, s[0], 5}}, {DType::i32, {s[0]}}, kLoss}};
}
Signature correct_count(DType c, const Sizes& s) {
  return {Op::correct_count,
          {{"ignore_index", std::int64_t{-100}}},
          {values(c, {s[0], s[1]}), {DType::i32, {s[0]}}, kLoss}};
}

Signature mse(DType c, const Sizes& s) { return {Op::mse, {}, {values(c, {s[0]}), values(c, {s[0]}), kLoss}}; }
Signature mse_grad(DType c, const Sizes& s) {
  return {Op::mse_grad, {}, {values(c, {s[0]}), values(c, {s[0]}), kScalar, values(c, {s[0]})}};
}
Signature count(DType, const Sizes& s) {
  return {Op::cross_entropy_count, {{"ignore_index", std::int64_t{-100}}}, {{DType::i32, {s[0]}}, kLoss}};
}

Signature embedding(DType c, const Sizes& s) {
  return {Op::embedding, {}, {{DType::i32, {s[0]}}, values(c, {4096, s[1]}), values(c, {s[0], s[1]})}};
}
Signature embedding_grad(DType c, const Sizes& s) {
  return {Op::embedding_grad,
          {{"accumulate", true}},
          {{DType::i32, {s[0]}}, values(c, {s[0], s[1]}), {DType::f32, {4096, s[1]}}}};
}
Signature positions_grad(DType c, const Sizes& s) {
  return {Op::positions_grad, {}, {values(c, {s[0] / 128, 128}), {DType::f32, {s[0] / 128, 128}}}};
}

Make cast(DType from, DType to) {
  return [=](DType, const Sizes& s) { return Signature{Op::cast, {}, {values(from, {s[0]}), values(to, {s[0]})}}; };
}
Signature zero(DType c, const Sizes& s) { return {Op::zero, {}, {values(c, {s[0]})}}; }
Signature sum_squares(DType c, const Sizes& s) { return {Op::sum_squares, {}, {values(c, {s[0]}), kLoss}}; }

Make optimizer(Op op, bool working) {
  return [=](DType, const Sizes& s) {
    const TensorDesc flat{DType::f32, {s[0]}};
    Signature out{op, {{"weight_decay", 0.1}, {"decay_elements", s[0]}, {"working", working}}, {flat, flat, flat}};
    if (op == Op::sgd) {
      out.attributes.set("momentum", 0.9);
      out.attributes.set("nesterov", false);
      out.attributes.set("has_momentum", true);
    } else {
      out.attributes.set("beta1", 0.9);
      out.attributes.set("beta2", 0.99);
      if (op == Op::adamw) {
        out.attributes.set("eps", 1e-8);
        out.operands.push_back(flat);
      }
    }
    for (const TensorDesc& one : {kScalar, kScalars, kCounter}) out.operands.push_back(one);
    if (working) out.operands.push_back({DType::bf16, {s[0]}});
    return out;
  };
}

Signature muon_momentum(DType, const Sizes& s) {
  const TensorDesc flat{DType::f32, {s[0]}};
  return {Op::muon_momentum, {{"momentum", 0.95}, {"nesterov", true}}, {flat, flat, kScalars, kCounter, flat}};
}

Signature loss_seed(DType, const Sizes&) { return {Op::loss_seed, {}, {kLoss, kScalars, kScalar}}; }
Signature update_scalars(DType, const Sizes&) {
  return {Op::update_scalars, {{"clip_norm", 1.0}}, {kLoss, kLoss, kLoss, kScalars, kCounter}};
}

// The strategies' own.
Signature outer_gradient(DType, const Sizes& s) {
  const TensorDesc flat{DType::f32, {s[0]}};
  return {Op::outer_gradient, {}, {flat, flat, flat}};
}
Signature outer_step(DType, const Sizes& s) {
  const TensorDesc flat{DType::f32, {s[0]}};
  return {
      Op::outer_step, {{"factor", 0.5}, {"lr", 0.7}, {"momentum", 0.9}, {"nesterov", true}}, {flat, flat, flat, flat}};
}
Signature apply_delayed(DType, const Sizes& s) {
  const TensorDesc flat{DType::f32, {s[0]}};
  return {Op::apply_delayed, {{"factor", 0.5}}, {flat, flat, flat}};
}
Signature compress_bf16(DType, const Sizes& s) {
  return {Op::compress_bf16, {}, {{DType::f32, {s[0]}}, {DType::f32, {s[0]}}, {DType::bf16, {s[0]}}}};
}
Signature quantize_int8(DType, const Sizes& s) {
  return {Op::quantize_int8, {}, {{DType::f32, {s[0]}}, {DType::f32, {s[0]}}, {DType::u8, {int8_bytes(s[0])}}}};
}
Signature dequantize_int8(DType, const Sizes& s) {
  return {Op::dequantize_int8, {}, {{DType::u8, {int8_bytes(s[0])}}, {DType::f32, {s[0]}}}};
}
Signature dequantize_sum_int8(DType, const Sizes& s) {
  return {Op::dequantize_sum_int8,
          {{"slices", std::int64_t{2}}},
          {{DType::u8, {2 * int8_bytes(s[0] / 2)}}, {DType::f32, {s[0] / 2}}}};
}
Signature top_k_compress(DType, const Sizes& s) {
  return {Op::top_k_compress,
          {{"k", s[0] / 100}},
          {{DType::f32, {s[0]}}, {DType::f32, {s[0]}}, {DType::u8, {top_k_bytes(s[0] / 100)}}}};
}

// Square images of s[3] places.
struct Images {
  Shape x, y, weight;
};
Images images_of(const Sizes& s) {
  std::int64_t side = 1;
  while (side * side < s[3]) ++side;
  const std::int64_t batch = s[0] / s[3], channels = s[1] / 9;
  return {{batch, channels, side, side}, {batch, s[2], side, side}, {s[2], channels, 3, 3}};
}
Attributes window_attributes() { return {{"stride", std::int64_t{1}}, {"padding", std::int64_t{1}}}; }
Attributes with_bias(Attributes attributes) {
  attributes.set("bias", true);
  return attributes;
}
Signature conv2d(DType c, const Sizes& s) {
  const Images of = images_of(s);
  return {Op::conv2d,
          with_bias(window_attributes()),
          {values(c, of.x), values(c, of.weight), values(c, {s[2]}), values(c, of.y)}};
}
Signature conv2d_grad_input(DType c, const Sizes& s) {
  const Images of = images_of(s);
  return {Op::conv2d_grad_input, window_attributes(), {values(c, of.y), values(c, of.weight), values(c, of.x)}};
}
Signature conv2d_grad_weight(DType c, const Sizes& s) {
  const Images of = images_of(s);
  return {Op::conv2d_grad_weight,
          with_bias(window_attributes()),
          {values(c, of.x), values(c, of.y), {DType::f32, of.weight}, {DType::f32, {s[2]}}}};
}

// Channels that are normalised, and followed by relu.
struct Channels {
  TensorDesc x, each, sums;
};
Channels channels_of(DType c, const Sizes& s) {
  return {
      values(c, {s[0] / (kChannels * s[1]), kChannels, s[1]}), values(c, {kChannels}), {DType::f64, {2, kChannels}}};
}
Attributes norm_attributes(const Sizes& s) { return {{"eps", 1e-5}, {"count", s[0] / kChannels}, {"relu", true}}; }
Signature batch_norm_sums(DType c, const Sizes& s) {
  const Channels of = channels_of(c, s);
  return {Op::batch_norm_sums, {}, {of.x, of.sums}};
}
Signature batch_norm_apply(DType c, const Sizes& s) {
  const Channels of = channels_of(c, s);
  return {Op::batch_norm_apply, norm_attributes(s), {of.x, of.sums, of.each, of.each, of.x}};
}
Signature batch_norm_grad_sums(DType c, const Sizes& s) {
  const Channels of = channels_of(c, s);
  const TensorDesc gradient{DType::f32, of.each.shape};
  Attributes attributes = norm_attributes(s);
  for (const char* name : {"weight", "bias"}) attributes.set(name, true);
  return {Op::batch_norm_grad_sums, attributes, {of.x, of.x, of.sums, of.each, of.each, of.sums, gradient, gradient}};
}
Signature batch_norm_grad(DType c, const Sizes& s) {
  const Channels of = channels_of(c, s);
  return {Op::batch_norm_grad, norm_attributes(s), {of.x, of.x, of.each, of.sums, of.sums, of.each, of.x}};
}

// Windows of so many places, in steps of 2, over planes of 16 × 16.
Signature pool(Op op, DType c, const Sizes& s) {
  const std::int64_t kernel = s[1] == 9 ? 3 : 2;
  const std::int64_t planes = s[0] / 256;
  const TensorDesc x = values(c, {1, planes, 16, 16}), y = values(c, {1, planes, 8, 8}),
                   index{DType::i32, {1, planes, 8, 8}};
  const Attributes attributes{{"kernel", kernel}, {"stride", std::int64_t{2}}, {"padding", kernel - 2}};
  switch (op) {
    case Op::max_pool2d:
      return {op, attributes, {x, y, index}};
    case Op::max_pool2d_grad:
      return {op, attributes, {y, index, x}};
    case Op::avg_pool2d:
      return {op, attributes, {x, y}};
    default:
      return {op, attributes, {y, x}};
  }
}
Make pool(Op op) {
  return [=](DType c, const Sizes& s) { return pool(op, c, s); };
}

const std::vector<Make>& convolutions() {
  static const std::vector<Make> all{conv2d, conv2d_grad_input, conv2d_grad_weight};
  return all;
}
const std::vector<Make>& batch_norms() {
  static const std::vector<Make> all{batch_norm_sums, batch_norm_apply, batch_norm_grad_sums, batch_norm_grad};
  return all;
}

// ---- All of them --------------------------------------------------------------------------------------------------

class Cases {
 public:
  explicit Cases(const std::vector<std::string>& only) : only_(only) {}

  void add(const Make& make, const Grid& grid) {
    for (DType c : {DType::f32, DType::bf16}) add(make, grid, c);
  }
  void add(const Make& make, const Grid& grid, DType c) {
    for (const Sizes& sizes : grid) {
      Signature signature = make(c, sizes);
      if (wanted(cost::work_of(signature).name)) all_.push_back(std::move(signature));
    }
  }
  std::vector<Signature> take() { return std::move(all_); }

 private:
  bool wanted(std::string_view name) const {
    return only_.empty() ||
           std::any_of(only_.begin(), only_.end(), [&](const std::string& prefix) { return name.starts_with(prefix); });
  }
  const std::vector<std::string>& only_;
  std::vector<Signature> all_;
};

void add_products(Cases& cases, Effort effort) {
  cases.add(linear, products(effort));
  cases.add(linear_grad_input, products(effort));
  for (bool bias : {false, true}) cases.add(linear_grad_weight(bias, false), products(effort));
  for (bool bias : {false, true}) cases.add(linear_grad_weight(bias, true), products(Effort::quick));
  for (bool rope : {false, true}) {
    cases.add(attention(rope), attentions(effort));
    cases.add(attention_grad(rope), attentions(effort));
  }
}

void add_model(Cases& cases, Effort effort) {
  for (Op op : {Op::layer_norm, Op::rms_norm})
    for (bool residual : {false, true}) cases.add(norm(op, residual), by_rows(effort));
  for (Op op : {Op::layer_norm_grad, Op::rms_norm_grad})
    for (bool residual : {false, true}) cases.add(norm_grad(op, residual), by_rows(effort));
  for (const char* form : {"tanh", "none"}) {
    cases.add(elementwise(Op::gelu, 1, {{"approximate", std::string(form)}}), elements(effort));
    cases.add(elementwise(Op::gelu_grad, 2, {{"approximate", std::string(form)}}), elements(effort));
  }
  for (int op = 0; op < kNumOps; ++op)
    if (is_plain(record(static_cast<Op>(op)))) cases.add(plain(record(static_cast<Op>(op))), elements(effort));
  for (Op op : {Op::add, Op::mul}) cases.add(elementwise(op, 2), elements(effort));
  for (const Make& make : {Make(add_leading), Make(sum_leading), Make(dropout), Make(positions_grad)})
    cases.add(make, elements(effort));
  cases.add(embedding, by_rows(effort));
  cases.add(embedding_grad, by_rows(effort));
  for (const Make& make : {Make(cross_entropy), Make(cross_entropy_grad), Make(cross_entropy_and_grad),
                           Make(cross_entropy_stats), Make(correct_count)})
    cases.add(make, by_classes(effort));
  cases.add(cross_entropy_gathered, {{64}, {4096}});
  cases.add(correct_count_gathered, {{64}, {4096}}, DType::f32);
  for (const Make& make : {Make(mse), Make(mse_grad)}) cases.add(make, elements(Effort::quick));
  for (const Make& make : convolutions()) cases.add(make, images(effort));
  for (const Make& make : batch_norms()) cases.add(make, by_places(effort));
  for (Op op : {Op::max_pool2d, Op::max_pool2d_grad, Op::avg_pool2d, Op::avg_pool2d_grad})
    cases.add(pool(op),
              effort == Effort::full ? crossed({16 << 10, 256 << 10, 2 << 20}, {4, 9}) : crossed({256 << 10}, {4}));
}

void add_step(Cases& cases, Effort effort) {
  const Grid once{{1}};
  for (const Make& make : {Make(loss_seed), Make(update_scalars)}) cases.add(make, once, DType::f32);
  cases.add(count, elements(Effort::quick), DType::f32);
  for (const Make& make : {Make(zero), Make(sum_squares)}) cases.add(make, flat(effort));
  for (DType c : {DType::f32, DType::bf16}) cases.add(cast(c, c), flat(effort), c);
  cases.add(cast(DType::f32, DType::bf16), flat(effort), DType::f32);
  cases.add(cast(DType::bf16, DType::f32), flat(effort), DType::bf16);
  for (bool working : {false, true}) {
    cases.add(optimizer(Op::adamw, working), flat(effort), DType::f32);
    for (Op op : {Op::sgd, Op::lion}) cases.add(optimizer(op, working), elements(effort), DType::f32);
  }
  for (const Make& make :
       {Make(muon_momentum), Make(outer_gradient), Make(outer_step), Make(apply_delayed), Make(compress_bf16),
        Make(quantize_int8), Make(dequantize_int8), Make(dequantize_sum_int8), Make(top_k_compress)})
    cases.add(make, elements(Effort::quick), DType::f32);
}

}  // namespace

std::vector<Signature> calibration_cases(Effort effort, const std::vector<std::string>& only) {
  Cases cases(only);
  add_products(cases, effort);
  add_model(cases, effort);
  add_step(cases, effort);
  return cases.take();
}

std::vector<Signature> cases_from_memory(Effort effort, const std::vector<std::string>& only) {
  Cases cases(only);
  Grid grid;
  for (const Sizes& s : effort == Effort::full ? crossed({64, 256, 1024}, {256, 768, 3072}, {256, 768, 3072})
                                               : crossed({256}, {256, 2048}, {256, 2048}))
    if (2.0 * static_cast<double>(s[0] * s[1] * s[2]) <= kMostFlops) grid.push_back(s);
  cases.add(linear, grid);
  cases.add(linear_grad_input, grid);
  for (bool bias : {false, true})
    for (bool accumulate : {false, true}) cases.add(linear_grad_weight(bias, accumulate), grid);
  for (bool rope : {false, true}) {
    cases.add(attention(rope), crossed({16}, {64, 256}, {64}));
    cases.add(attention_grad(rope), crossed({16}, {64, 256}, {64}));
  }
  const Grid wide = crossed({64, 1024}, {768}), large{{256 << 10}, {2 << 20}};
  for (bool residual : {false, true})
    for (Op op : {Op::layer_norm, Op::rms_norm}) {
      cases.add(norm(op, residual), wide);
      cases.add(norm_grad(op == Op::layer_norm ? Op::layer_norm_grad : Op::rms_norm_grad, residual), wide);
    }
  cases.add(elementwise(Op::gelu, 1, {{"approximate", std::string("tanh")}}), large);
  cases.add(elementwise(Op::gelu_grad, 2, {{"approximate", std::string("tanh")}}), large);
  cases.add(elementwise(Op::silu, 1), large);
  for (Op op : {Op::silu_grad, Op::add, Op::mul, Op::glu}) cases.add(elementwise(op, 2), large);
  cases.add(elementwise(Op::glu_grad, 4), large);
  for (const Make& make : {Make(cross_entropy), Make(cross_entropy_and_grad)})
    cases.add(make, crossed({256}, {256, 8192}));
  for (const Make& make : convolutions())
    cases.add(make, {{512, 32 * 9, 64, 64}, {512, 256 * 9, 256, 4}, {512, 256 * 9, 256, 64}, {8192, 32 * 9, 64, 64}});
  for (const Make& make : batch_norms()) cases.add(make, crossed({64 << 10, 256 << 10, 2 << 20}, {4, 64}));
  for (const Make& make : {Make(sum_squares), Make(optimizer(Op::adamw, false)), Make(optimizer(Op::adamw, true))})
    cases.add(make, large, DType::f32);
  return cases.take();
}

}  // namespace trainer::tools
