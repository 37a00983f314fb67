// Sharding rules against what they claim: for every way of cutting the operands of an op over two ranks, if the rule
// takes it, each rank's piece is computed by the reference, and the outputs put together as the rule says must be the
// whole.
//
// All in f64 and each sum cut at most once, so differences are roundings: 1e-9 is far above them.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <random>

#include "engine/core/error.h"
#include "tests/ops/one_node.h"
#include "tests/reference/interpreter.h"

using namespace trainer;
using goldens::Case;
using goldens::OneNode;
using reference::Tensor;

namespace {

constexpr int kRanks = 2;

Tensor random_tensor(const Shape& shape, std::mt19937_64& generator) {
  Tensor tensor(shape);
  std::normal_distribution<double> normal;
  for (double& x : tensor.data) x = normal(generator);
  return tensor;
}

/// Index in the whole of element `i` of `rank`'s slice, when `dim` is cut in `parts` pieces each, the first `lead`
/// times as long.
std::int64_t whole_index(const Shape& whole, Placement cut, int rank, std::int64_t i) {
  std::int64_t inner = 1;
  for (int dim = cut.dim + 1; dim < whole.rank(); ++dim) inner *= whole[dim];
  const std::int64_t size = whole[cut.dim],
                     local = size / (cut.lead + cut.parts - 1) / kRanks;  // of a rank's share of a piece
  const std::int64_t outer = i / inner / (size / kRanks);
  std::int64_t at = i / inner % (size / kRanks), piece = 0, length = local * cut.lead;
  for (; at >= length; length = local) at -= length, piece += length * kRanks;
  return (outer * size + piece + rank * length + at) * inner + i % inner;
}

Shape local_shape(Shape shape, Placement placement) {
  if (placement.is_shard()) shape[placement.dim] /= kRanks;
  return shape;
}

/// What each rank holds of `whole`. The summands of a partial value are random.
std::vector<Tensor> cut(const Tensor& whole, Placement placement, std::mt19937_64& generator) {
  if (placement.is_replicate()) return {whole, whole};
  if (placement.is_partial()) {
    std::vector<Tensor> ranks{random_tensor(whole.shape, generator), whole};
    for (std::int64_t i = 0; i < whole.size(); ++i) ranks[1][i] -= ranks[0][i];
    return ranks;
  }
  std::vector<Tensor> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back(local_shape(whole.shape, placement));
    for (std::int64_t i = 0; i < ranks.back().size(); ++i)
      ranks.back()[i] = whole[whole_index(whole.shape, placement, rank, i)];
  }
  return ranks;
}

/// The largest difference between `whole` and what the ranks hold of it.
double off(const Tensor& whole, Placement placement, const std::vector<Tensor>& ranks) {
  double worst = 0;
  const auto note = [&](double got, double want) {
    worst = std::isnan(got) ? INFINITY : std::fmax(worst, std::fabs(got - want));
  };
  for (int rank = 0; rank < kRanks; ++rank) {
    for (std::int64_t i = 0; i < ranks[static_cast<std::size_t>(rank)].size(); ++i) {
      const double mine = ranks[static_cast<std::size_t>(rank)][i];
      if (placement.is_replicate()) note(mine, whole[i]);
      if (placement.is_partial()) note(ranks[0][i] + ranks[1][i], whole[i]);
      if (placement.is_shard()) note(mine, whole[whole_index(whole.shape, placement, rank, i)]);
    }
  }
  return worst;
}

std::vector<Placement> candidates(const Value& value) {
  std::vector<Placement> result{Placement::replicate()};
  if (value.dtype() != DType::i32) result.push_back(Placement::partial());
  for (int dim = 0; dim < value.shape().rank(); ++dim) {
    for (int parts : {1, 2, 3, 4, 6, 12}) {
      if (value.shape()[dim] % (parts * kRanks) == 0) result.push_back(Placement::shard(dim, parts));
    }
    if (value.shape()[dim] % (4 * kRanks) == 0) result.push_back(Placement::shard(dim, 3, 2));  // grouped heads
  }
  return result;
}

/// Elements of one index of the dims before `dim`.
std::int64_t elements_from(const Shape& shape, int dim) {
  std::int64_t elements = 1;
  for (; dim < shape.rank(); ++dim) elements *= shape[dim];
  return elements;
}

/// Attributes of the piece: a rank has its share of the heads where attention is cut by heads.
Attributes local_attributes(const Graph& graph, const Node& node, std::span<const Placement> in) {
  Attributes attributes = node.attributes;
  const std::size_t q = node.op == Op::attention_grad ? 1 : 0;
  if ((node.op == Op::attention || node.op == Op::attention_grad) &&
      in[q].is_shard(graph.value(node.inputs[q]).shape().rank() - 1)) {
    for (const char* heads : {"heads", "kv_heads"}) attributes.set(heads, attributes.integer(heads) / kRanks);
  }
  if (node.op == Op::dropout) {
    const Shape& whole = graph.value(node.inputs[0]).shape();
    const std::int64_t stride = elements_from(whole, in[0].dim);
    attributes.set("sample", whole.elements() / whole[0]);
    attributes.set("stride", stride);
    attributes.set("row", stride / kRanks);
  }
  if (node.op == Op::embedding && in[1].is_shard(0)) {
    attributes.set("cut", true);
    attributes.set("table_rows", graph.value(node.inputs[1]).shape()[0]);
  }
  return attributes;
}

/// kernels::Call::origin of the piece.
std::int64_t local_origin(const Graph& graph, const Node& node, std::span<const Placement> in,
                          std::span<const Placement> out, int rank) {
  const auto piece = [&](std::size_t input) { return graph.value(node.inputs[input]).shape()[0] / kRanks; };
  if (node.op == Op::dropout) return rank * elements_from(graph.value(node.inputs[0]).shape(), in[0].dim) / kRanks;
  const std::size_t q = node.op == Op::attention_grad ? 1 : 0;
  if ((node.op == Op::attention || node.op == Op::attention_grad) && in[q].is_shard(1))
    return rank * graph.value(node.inputs[q]).shape()[1] / kRanks;
  if (node.op == Op::positions && out[0].is_shard(0)) return rank * graph.value(node.outputs[0]).shape()[0] / kRanks;
  if (node.op == Op::document_positions && out[0].is_shard(1))
    return rank * graph.value(node.outputs[0]).shape()[1] / kRanks;
  if (node.op == Op::positions && flag(node, "partial")) return rank * graph.value(node.inputs[0]).shape()[0];
  if (node.op == Op::positions_grad && in[0].is_shard(0)) return rank * piece(0);
  if (node.op == Op::embedding && in[1].is_shard(0)) return rank * piece(1);
  if ((node.op == Op::linear || node.op == Op::quantized_linear) && in[1].is_shard(1)) return rank;
  const Shape& first = graph.value(node.inputs[0]).shape();
  if (node.op == Op::cross_entropy_grad && in[0].is_shard(first.rank() - 1)) return rank * first[-1] / kRanks;
  return 0;
}

/// Computes `node` cut so; the largest difference of any output from the whole.
double check_cut(const Graph& graph, const Node& node, const reference::Interpreter& values,
                 std::span<const Placement> in, std::span<const Placement> out) {
  std::mt19937_64 generator(5);
  std::vector<std::vector<Tensor>> operands(kRanks);
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const Tensor whole = values.get(node.inputs[i]);
    const std::vector<Tensor> pieces = cut(whole, in[i], generator);
    for (int rank = 0; rank < kRanks; ++rank)
      operands[static_cast<std::size_t>(rank)].push_back(pieces[static_cast<std::size_t>(rank)]);
  }
  std::vector<Shape> shapes;
  for (std::size_t o = 0; o < out.size(); ++o)
    shapes.push_back(local_shape(graph.value(node.outputs[o]).shape(), out[o]));
  const Attributes attributes = local_attributes(graph, node, in);
  std::vector<std::vector<Tensor>> results;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::int64_t origin = local_origin(graph, node, in, out, rank);
    results.push_back(reference::run(node.op, attributes, operands[static_cast<std::size_t>(rank)], shapes, origin));
  }
  double worst = 0;
  for (std::size_t o = 0; o < out.size(); ++o)
    worst = std::fmax(worst, off(values.get(node.outputs[o]), out[o], {results[0][o], results[1][o]}));
  return worst;
}

std::string describe(const Node& node, std::span<const Placement> in, std::span<const Placement> out) {
  std::string text = std::string(name_of(node.op)) + ":";
  for (const Placement& placement : in) text += " " + placement.str();
  text += " ->";
  for (const Placement& placement : out) text += " " + placement.str();
  return text;
}

/// Tries every combination of placements; returns how many the rule takes, without the trivial one.
int check_node(const Graph& graph, const Node& node, const reference::Interpreter& values) {
  std::vector<std::vector<Placement>> choices;
  for (ValueId id : node.inputs) choices.push_back(candidates(graph.value(id)));
  std::vector<std::size_t> at(choices.size(), 0);
  int taken = 0;
  while (true) {
    std::size_t i = 0;
    while (i < at.size() && ++at[i] == choices[i].size()) at[i++] = 0;
    if (i == at.size()) return taken;
    std::vector<Placement> in;
    for (std::size_t k = 0; k < at.size(); ++k) in.push_back(choices[k][at[k]]);
    const auto out = propagate(graph, node, in);
    if (!out) continue;
    ++taken;
    // Statistics of parts of the classes are not parts of those of the whole: collective_test has them with the loss
    // that is made of them.
    if (node.op == Op::cross_entropy_stats && in[0].is_shard(2)) continue;
    const std::string text = describe(node, in, *out);
    CAPTURE(text);
    REQUIRE(out->size() == node.outputs.size());
    CHECK(check_cut(graph, node, values, in, *out) < 1e-9);
  }
}

/// A case of even sizes; operands of `bounds[i]` > 0 hold ids below it.
Case make_case(Op op, Attributes attributes, const std::vector<Shape>& in, const std::vector<Shape>& out,
               std::vector<int> bounds = {}) {
  std::mt19937_64 generator(3);
  Case c;
  c.op = op;
  c.name = std::string(name_of(op));
  c.attributes = std::move(attributes);
  bounds.resize(in.size());
  for (std::size_t i = 0; i < in.size(); ++i) {
    c.in.push_back(random_tensor(in[i], generator));
    c.integer.push_back(bounds[i] > 0);
    for (double& x : c.in.back().data)
      x = bounds[i] > 0 ? static_cast<double>(generator() % static_cast<std::uint64_t>(bounds[i])) : x;
    const bool constant = bounds[i] > 0 || (op == Op::mse && i == 1);
    if (!constant && definition(op).gradient) c.gradients[static_cast<int>(i)] = Tensor(in[i]);
  }
  for (const Shape& shape : out) c.out.emplace_back(shape);
  c.dout = random_tensor(out[0], generator);
  return c;
}

const Attributes kWindow{{"kernel", std::int64_t{2}}, {"stride", std::int64_t{2}}, {"padding", std::int64_t{0}}};
const Attributes kConv{{"stride", std::int64_t{1}}, {"padding", std::int64_t{1}}, {"bias", true}};
const Attributes kLoss{{"ignore_index", std::int64_t{2}}, {"label_smoothing", 0.1}};
const Attributes kCutLoss{{"ignore_index", std::int64_t{2}}, {"label_smoothing", 0.1}, {"classes", std::int64_t{17}}};

const Attributes kPairs{{"beta", 0.3}, {"ignore_index", std::int64_t{-100}}};

/// Sums of exponentials are positive.
Case with_positive(Case c, std::size_t input) {
  for (double& x : c.in[input].data) x = std::fabs(x);
  return c;
}

/// Σ x² of a batch norm's sums above what (Σ x)² makes of it.
Case with_variance(Case c) {
  for (std::int64_t i = c.in[1].size() / 2; i < c.in[1].size(); ++i) c.in[1][i] = 20 + std::fabs(c.in[1][i]);
  return c;
}

Attributes attention(std::int64_t heads, std::int64_t kv_heads, bool packed, bool causal = true) {
  return {{"heads", heads}, {"kv_heads", kv_heads}, {"causal", causal}, {"packed", packed}, {"rope_theta", 100.0}};
}

/// RoPE of half of a head, in pairs of neighbours.
Attributes interleaved_attention(std::int64_t heads, std::int64_t kv_heads, bool packed) {
  Attributes attributes = attention(heads, kv_heads, packed);
  attributes.set("rope_interleaved", true);
  attributes.set("rope_dims", std::int64_t{2});
  attributes.set("rope_scaling", std::string("linear;factor=2"));
  return attributes;
}

/// Scores that are scaled, bounded, and of the last three keys.
Attributes capped_attention(std::int64_t heads, std::int64_t kv_heads, bool packed) {
  Attributes attributes = attention(heads, kv_heads, packed);
  attributes.set("scale", 0.9);
  attributes.set("softcap", 2.0);
  attributes.set("window", std::int64_t{3});
  return attributes;
}

/// Attention to samples of such lengths.
Case padded(Attributes attributes, std::vector<Shape> in, const std::vector<Shape>& out, std::vector<double> lengths) {
  attributes.set("padded", true);
  in.push_back({static_cast<std::int64_t>(lengths.size())});
  std::vector<int> limits(in.size(), 0);
  limits.back() = 9;
  Case c = make_case(Op::attention, attributes, in, out, limits);
  c.in.back().data = std::move(lengths);
  return c;
}

/// Attention within such documents of rows.
Case by_document(Attributes attributes, std::vector<Shape> in, const std::vector<Shape>& out,
                 std::vector<double> documents) {
  attributes.set("by_document", true);
  in.push_back({in[0][0], in[0][1]});
  std::vector<int> limits(in.size(), 0);
  limits.back() = 9;
  Case c = make_case(Op::attention, attributes, in, out, limits);
  c.in.back().data = std::move(documents);
  return c;
}

Case document_positions() {
  Case c = make_case(Op::document_positions, {{"offset", std::int64_t{1}}}, {{2, 6}}, {{2, 6}}, {9});
  c.in[0].data = {0, 0, 1, 1, 1, 2, 0, 3, 3, 3, -1, -1};
  return c;
}

/// Of squares, which are not negative.
Case over_root() {
  Case c = make_case(Op::over_root, {}, {{12}, {12}}, {{12}});
  for (double& square : c.in[1].data) square *= square;
  return c;
}

std::vector<Case> cases() {
  const Attributes p{{"p", 0.5}, {"key", std::int64_t{77}}}, bias{{"bias", true}}, norm{{"bias", true}, {"eps", 1e-5}};
  std::vector<Case> list{
      make_case(Op::embedding, {}, {{4, 6}, {8, 6}}, {{4, 6, 6}}, {8, 0}),
      make_case(Op::positions, {}, {{8, 6}}, {{6, 6}}),
      make_case(Op::positions, {{"offset", std::int64_t{2}}}, {{8, 6}}, {{4, 6}}),
      make_case(Op::linear, bias, {{4, 2, 6}, {12, 6}, {12}}, {{4, 2, 12}}),
      make_case(Op::linear, {{"bias", false}}, {{4, 2, 6}, {12, 6}}, {{4, 2, 12}}),
      make_case(Op::linear, {{"bias", true}, {"partial", true}}, {{4, 2, 6}, {12, 6}, {12}}, {{4, 2, 12}}),
      make_case(Op::linear, {{"bias", true}, {"gelu", true}}, {{4, 2, 6}, {12, 6}, {12}}, {{4, 2, 12}}),
      make_case(Op::linear, {{"bias", true}, {"gelu", true}, {"pre", true}}, {{4, 2, 6}, {12, 6}, {12}},
                {{4, 2, 12}, {4, 2, 12}}),
      make_case(Op::linear, {{"bias", true}, {"residual", true}, {"partial", true}},
                {{4, 2, 6}, {12, 6}, {12}, {4, 2, 12}}, {{4, 2, 12}}),
      make_case(Op::linear, {{"bias", false}, {"residual", true}}, {{4, 2, 6}, {12, 6}, {4, 2, 12}}, {{4, 2, 12}}),
      make_case(Op::quantized_linear, {{"nf4", false}, {"bias", false}}, {{4, 2, 128}, {12, 128}, {12, 4}},
                {{4, 2, 12}}, {0, 256, 64}),
      make_case(Op::quantized_linear, {{"nf4", true}, {"bias", true}, {"partial", true}},
                {{4, 2, 128}, {512, 64}, {512, 2}, {2, 16}, {512}}, {{4, 2, 512}}, {0, 256, 256, 64, 0}),
      make_case(Op::linear_grad_input, {{"gelu", true}}, {{4, 2, 12}, {12, 6}, {4, 2, 6}}, {{4, 2, 6}}),
      make_case(Op::linear_grad_input, {{"residual", true}}, {{4, 2, 12}, {12, 6}, {4, 2, 6}}, {{4, 2, 6}}),
      make_case(Op::layer_norm, norm, {{4, 2, 6}, {6}, {6}}, {{4, 2, 6}, {8}, {8}}),
      make_case(Op::rms_norm, {{"eps", 1e-5}}, {{4, 2, 6}, {6}}, {{4, 2, 6}, {8}}),
      make_case(Op::rms_norm, {{"eps", 1e-5}, {"offset", std::int64_t{1}}}, {{2, 2, 4, 6}, {6}}, {{2, 2, 4, 6}, {16}}),
      make_case(Op::attention, attention(4, 4, true), {{2, 3, 24}}, {{2, 3, 8}, {2, 4, 3}}),
      make_case(Op::attention, attention(4, 2, true), {{2, 3, 16}}, {{2, 3, 8}, {2, 4, 3}}),
      make_case(Op::attention, attention(4, 2, false), {{2, 3, 8}, {2, 3, 4}, {2, 3, 4}}, {{2, 3, 8}, {2, 4, 3}}),
      make_case(Op::attention, attention(4, 2, false), {{2, 4, 8}, {2, 4, 4}, {2, 4, 4}}, {{2, 4, 8}, {2, 4, 4}}),
      make_case(Op::attention, interleaved_attention(4, 2, false), {{2, 4, 16}, {2, 4, 8}, {2, 4, 8}},
                {{2, 4, 16}, {2, 4, 4}}),
      make_case(Op::attention, capped_attention(4, 2, false), {{2, 4, 8}, {2, 4, 4}, {2, 4, 4}},
                {{2, 4, 8}, {2, 4, 4}}),
      make_case(Op::attention, capped_attention(4, 4, true), {{2, 3, 24}}, {{2, 3, 8}, {2, 4, 3}}),
      make_case(Op::attention,
                {{"heads", std::int64_t{4}},
                 {"kv_heads", std::int64_t{2}},
                 {"causal", false},
                 {"packed", false},
                 {"rope_theta", 0.0}},
                {{2, 4, 8}, {2, 6, 4}, {2, 6, 4}}, {{2, 4, 8}, {2, 4, 4}}),
      make_case(Op::attention, attention(4, 2, false), {{2, 4, 8}, {2, 4, 4}, {2, 4, 6}}, {{2, 4, 12}, {2, 4, 4}}),
      make_case(Op::attention, attention(2, 2, false, false), {{2, 2, 4}, {2, 2, 4}, {2, 2, 4}},
                {{2, 2, 4}, {2, 2, 2}}),
      padded(attention(4, 2, false), {{2, 4, 8}, {2, 4, 4}, {2, 4, 4}}, {{2, 4, 8}, {2, 4, 4}}, {3, 1}),
      padded(attention(4, 4, true, false), {{2, 3, 24}}, {{2, 3, 8}, {2, 4, 3}}, {2, 3}),
      by_document(attention(4, 2, false), {{2, 4, 8}, {2, 4, 4}, {2, 4, 4}}, {{2, 4, 8}, {2, 4, 4}},
                  {0, 1, 1, 1, 0, 0, 0, -1}),
      by_document(attention(4, 4, true, false), {{2, 3, 24}}, {{2, 3, 8}, {2, 4, 3}}, {0, 0, 1, 0, -1, -1}),
      document_positions(),
      make_case(Op::split, {}, {{4, 2, 24}}, {{4, 2, 8}, {4, 2, 8}, {4, 2, 8}}),
      make_case(Op::split, {}, {{2, 24}}, {{2, 12}, {2, 6}, {2, 6}}),
      make_case(Op::split, {}, {{2, 24}}, {{2, 4}, {2, 8}, {2, 12}}),
      make_case(Op::concat, {}, {{2, 2, 12}, {2, 2, 6}, {2, 2, 6}}, {{2, 2, 24}}),
      make_case(Op::concat, {}, {{2, 4}, {2, 8}, {2, 12}}, {{2, 24}}),
      make_case(Op::split, {{"dim", std::int64_t{-2}}}, {{4, 24, 2}}, {{4, 8, 2}, {4, 8, 2}, {4, 8, 2}}),
      make_case(Op::split, {{"dim", std::int64_t{-3}}}, {{12, 4, 2}}, {{6, 4, 2}, {2, 4, 2}, {4, 4, 2}}),
      make_case(Op::concat, {{"dim", std::int64_t{-2}}}, {{4, 12, 2}, {4, 4, 2}, {4, 8, 2}}, {{4, 24, 2}}),
      make_case(Op::concat, {{"dim", std::int64_t{-2}}}, {{2, 12}, {4, 12}}, {{6, 12}}),
      make_case(Op::slice, {{"start", std::int64_t{2}}}, {{4, 2, 6}}, {{4, 2, 4}}),
      make_case(Op::slice, {{"dim", std::int64_t{-2}}, {"start", std::int64_t{1}}}, {{4, 4, 6}}, {{4, 2, 6}}),
      make_case(Op::expand, {}, {{2, 6}, {4, 3}}, {{4, 2, 6}}, {0, 5}),
      make_case(Op::expand, {{"dim", std::int64_t{2}}}, {{2, 4, 6}, {2, 4, 8, 6}}, {{2, 4, 8, 6}}),
      make_case(Op::transpose, {{"dims", std::string("0,2,1")}}, {{4, 2, 6}}, {{4, 6, 2}}),
      make_case(Op::transpose, {{"dims", std::string("2,0,3,1")}}, {{4, 2, 6, 8}}, {{6, 4, 8, 2}}),
      make_case(Op::mean, {}, {{4, 2, 6}}, {{4, 2}}),
      make_case(Op::mean, {{"dim", std::int64_t{-2}}}, {{4, 2, 6}}, {{4, 6}}),
      make_case(Op::parameter, {}, {{2, 4}}, {{2, 4}}),
      make_case(Op::row_squares, {{"factor", 0.5}}, {{12, 6}, {4, 6}, {12, 4}}, {{12}}),
      over_root(),
      make_case(Op::route, {{"score", std::string("sigmoid")}}, {{4, 2, 6}}, {{4, 2, 2}, {4, 2, 2}}),
      make_case(Op::route, {{"biased", true}, {"groups", std::int64_t{2}}}, {{2, 4, 6}, {6}}, {{2, 4, 2}, {2, 4, 2}}),
      make_case(Op::route_grad, {{"losses", true}, {"aux", 0.1}, {"z", 0.01}}, {{4, 2, 2}, {4, 2, 6}, {4, 2, 2}, {1}},
                {{4, 2, 6}}, {0, 0, 6, 0}),
      make_case(Op::expert_capacity, {{"experts", std::int64_t{4}}, {"capacity", std::int64_t{2}}}, {{4, 6, 2}},
                {{4, 6, 2}}, {4}),
      make_case(Op::expert_linear, {}, {{4, 2, 6}, {4, 2, 2}, {4, 8, 6}}, {{4, 2, 2, 8}}, {0, 4, 0}),
      make_case(Op::expert_linear, {}, {{2, 4, 2, 8}, {2, 4, 2}, {4, 6, 8}}, {{2, 4, 6}}, {0, 4, 0}),
      make_case(Op::expert_linear, {{"parts", std::int64_t{2}}}, {{4, 2, 3, 6}, {4, 2, 3}, {4, 8, 6}}, {{4, 2, 3, 8}},
                {0, 2, 0}),
      make_case(Op::expert_linear, {{"parts", std::int64_t{2}}}, {{4, 2, 3, 8}, {4, 2, 3}, {4, 6, 8}}, {{4, 2, 3, 6}},
                {0, 2, 0}),
      make_case(Op::expert_slots, {{"experts", std::int64_t{4}}}, {{4, 3, 2}}, {{4, 3, 2}, {2, 2, 4}, {2, 2, 4}}, {4}),
      make_case(Op::dispatch, {}, {{4, 3, 6}, {4, 3, 2}, {2, 2, 4}}, {{2, 2, 4, 6}}, {0, 8, 12}),
      make_case(Op::dispatch, {}, {{4, 3, 2, 6}, {4, 3, 2}, {2, 2, 4}}, {{2, 2, 4, 6}}, {0, 8, 12}),
      make_case(Op::combine, {}, {{2, 2, 4, 6}, {4, 3, 2}, {2, 2, 4}}, {{4, 3, 6}}, {0, 8, 12}),
      make_case(Op::weigh, {}, {{4, 2, 2, 6}, {4, 2, 2}}, {{4, 2, 2, 6}}),
      make_case(Op::reshape, {}, {{4, 2, 6}}, {{8, 6}}),
      make_case(Op::reshape, {}, {{2, 4, 6}}, {{2, 24}}),
      make_case(Op::reshape, {}, {{8, 6}}, {{2, 4, 6}}),
      make_case(Op::reshape, {}, {{2, 4, 2, 6}}, {{8, 12}}),
      make_case(Op::reshape, {}, {{1, 2, 4, 1}}, {{8}}),
      make_case(Op::flatten, {}, {{4, 2, 6}}, {{4, 12}}),
      make_case(Op::linear, bias, {{4, 2, 6}, {16, 6}, {16}}, {{4, 2, 16}}),
      make_case(Op::add, {}, {{4, 2, 6}, {4, 2, 6}}, {{4, 2, 6}}),
      make_case(Op::add, {}, {{4, 2, 6}, {2, 6}}, {{4, 2, 6}}),
      make_case(Op::mul, {}, {{4, 2, 6}, {4, 2, 6}}, {{4, 2, 6}}),
      make_case(Op::mul, {}, {{4, 2, 6}, {6}}, {{4, 2, 6}}),
      make_case(Op::scale, {{"factor", -0.75}}, {{4, 2, 6}}, {{4, 2, 6}}),
      make_case(Op::bias_grad, {{"dim", std::int64_t{-1}}}, {{4, 2, 6}}, {{6}}),
      make_case(Op::bias_grad, {{"dim", std::int64_t{1}}}, {{4, 6, 2, 2}}, {{6}}),
      make_case(Op::layer_norm_grad, {{"bias", false}, {"weight", false}}, {{4, 2, 6}, {4, 2, 6}, {6}, {8}, {8}},
                {{4, 2, 6}}),
      make_case(Op::rms_norm_grad, {{"weight", false}}, {{4, 2, 6}, {4, 2, 6}, {6}, {8}}, {{4, 2, 6}}),
      make_case(Op::dropout, p, {{4, 6}, {1}}, {{4, 6}}, {0, 9}),
      make_case(Op::dropout, p, {{4, 3, 6}, {1}}, {{4, 3, 6}}, {0, 9}),
      make_case(Op::dropout, p, {{2, 4, 2, 6}, {1}}, {{2, 4, 2, 6}}, {0, 9}),
      make_case(Op::conv2d, kConv, {{4, 2, 4, 4}, {6, 2, 3, 3}, {6}}, {{4, 6, 4, 4}}),
      make_case(Op::conv1d, kConv, {{4, 2, 6}, {6, 2, 3}, {6}}, {{4, 6, 6}}),
      make_case(Op::max_pool2d, kWindow, {{2, 4, 4, 4}}, {{2, 4, 2, 2}, {2, 4, 2, 2}}),
      with_positive(make_case(Op::batch_norm, {{"eps", 1e-5}}, {{4, 6, 3}, {6}, {6}, {6}, {6}}, {{4, 6, 3}}), 4),
      make_case(Op::batch_norm_sums, {}, {{4, 6, 3}}, {{2, 6}}),
      with_variance(make_case(Op::batch_norm_apply, {{"eps", 1e-5}, {"count", std::int64_t{12}}},
                              {{4, 6, 3}, {2, 6}, {6}, {6}}, {{4, 6, 3}})),
      make_case(Op::avg_pool2d, kWindow, {{2, 4, 4, 4}}, {{2, 4, 2, 2}}),
      make_case(Op::cross_entropy, kLoss, {{4, 2, 6}, {4, 2}}, {{1}, {8}}, {0, 6}),
      make_case(Op::cross_entropy_and_grad, kLoss, {{4, 2, 6}, {4, 2}, {1}}, {{1}, {4, 2, 6}}, {0, 6}),
      make_case(Op::cross_entropy_count, kLoss, {{4, 2}}, {{1}}, {6}),
      make_case(Op::correct_count, kLoss, {{4, 2, 6}, {4, 2}}, {{1}}, {0, 6}),
      make_case(Op::cross_entropy_stats, kCutLoss, {{4, 2, 6}, {4, 2}}, {{1, 8, 5}}, {0, 6}),
      with_positive(
          make_case(Op::cross_entropy_gathered, kCutLoss, {{4, 2, 6}, {3, 8, 5}, {4, 2}}, {{1}, {8}}, {0, 0, 6}), 1),
      make_case(Op::correct_count_gathered, kCutLoss, {{3, 8, 5}, {4, 2}}, {{1}}, {0, 6}),
      with_positive(make_case(Op::sequence_nll, {{"classes", std::int64_t{6}}, {"ignore_index", std::int64_t{-100}}},
                              {{4, 2, 6}, {3, 8, 5}, {4, 2}}, {{4}, {8}}, {0, 0, 6}),
                    1),
      make_case(Op::dpo_loss, kPairs, {{4}, {4}, {4, 2}}, {{1}, {4}}, {0, 0, 6}),
      make_case(Op::dpo_count, {{"ignore_index", std::int64_t{-100}}}, {{4, 2}}, {{1}}, {6}),
      make_case(Op::mse, {}, {{4, 6}, {4, 6}}, {{1}}),
      make_case(Op::mse, {}, {{2, 4, 6}, {2, 4, 6}}, {{1}}),
  };
  for (Op op : {Op::relu, Op::silu, Op::tanh, Op::sigmoid}) list.push_back(make_case(op, {}, {{4, 6}}, {{4, 6}}));
  list.push_back(make_case(Op::softcap, {{"cap", 1.5}}, {{4, 6}}, {{4, 6}}));
  for (const char* approximate : {"tanh", "none"})
    list.push_back(make_case(Op::gelu, {{"approximate", std::string(approximate)}}, {{4, 6}}, {{4, 6}}));
  list.push_back(make_case(Op::glu, {{"activation", std::string("silu")}}, {{4, 6}, {4, 6}}, {{4, 6}}));
  list.push_back(make_case(Op::glu, {{"activation", std::string("gelu")}, {"approximate", std::string("tanh")}},
                           {{4, 6}, {4, 6}}, {{4, 6}}));
  return list;
}

}  // namespace

TEST_CASE("what a sharding rule takes gives the whole, for every way of cutting the operands in two") {
  std::map<Op, int> taken;
  for (const Case& c : cases()) {
    const OneNode one = goldens::one_node(c, DType::f32, DType::f32);
    reference::Interpreter values(one.graph);
    for (std::size_t i = 0; i < c.in.size(); ++i) values.set(one.inputs[i], c.in[i]);
    if (one.dout != kNone) values.set(one.dout, c.dout);
    values.run();
    for (const Node& node : one.graph.nodes)
      if (!node.inputs.empty()) taken[node.op] += check_node(one.graph, node, values);
  }
  for (const auto& [op, count] : taken) {
    CAPTURE(name_of(op));
    CHECK(count > 0);
  }
}

TEST_CASE("a rank with a part of the sequence counts its places in documents of the whole") {
  const Case c = document_positions();
  const OneNode one = goldens::one_node(c, DType::f32, DType::f32);
  reference::Interpreter values(one.graph);
  values.set(one.inputs[0], c.in[0]);
  values.run();
  const Node& node = one.graph.nodes[0];
  const std::vector<Placement> in{Placement::replicate()};
  const auto out = propagate(one.graph, node, in, 3);
  REQUIRE(out.has_value());
  CHECK(*out == std::vector<Placement>{Placement::shard(1)});
  CHECK(check_cut(one.graph, node, values, in, *out) == 0);
}

TEST_CASE(
    "where ranks differ by their origin alone, positions are the rows of each part of the sequence, or one rank's "
    "share of a sum") {
  const auto check = [](const Attributes& attributes, std::int64_t step, Placement expected) {
    const Case c = make_case(Op::positions, attributes, {{8, 6}}, {{6, 6}});
    const OneNode one = goldens::one_node(c, DType::f32, DType::f32);
    reference::Interpreter values(one.graph);
    values.set(one.inputs[0], c.in[0]);
    values.set(one.dout, c.dout);
    values.run();
    const Node& node = one.graph.nodes[0];
    const std::vector<Placement> in{Placement::replicate()};
    const auto out = propagate(one.graph, node, in, step);
    REQUIRE(out.has_value());
    CHECK(*out == std::vector<Placement>{expected});
    CHECK(check_cut(one.graph, node, values, in, *out) < 1e-9);
  };
  for (const Attributes& attributes :
       {Attributes{}, Attributes{{"partial", true}}, Attributes{{"offset", std::int64_t{2}}}})
    check(attributes, 3, Placement::shard(0));
  check({{"partial", true}}, 8, Placement::partial());
  check({}, 8, Placement::replicate());
  check({}, 0, Placement::replicate());
}

TEST_CASE("a rank's first query follows from how the queries are cut") {
  Case c = make_case(Op::attention, attention(4, 2, false), {{2, 4, 8}, {2, 4, 4}, {2, 4, 4}}, {{2, 4, 8}, {2, 4, 4}});
  OneNode one = goldens::one_node(c, DType::f32, DType::f32);
  one.graph.mesh = {{Axis::shard, 2}, {Axis::tensor, 2}};
  for (ValueId id : one.inputs) one.graph.value(id).spec.place(Axis::shard, Placement::shard(0));
  one.graph.value(one.inputs[0]).spec.place(Axis::tensor, Placement::shard(1));
  Affine second;
  second.along(Axis::tensor) = 2;
  CHECK(origin_of(one.graph, one.graph.nodes[0]) == second);
  CHECK(origin_of(one.graph, one.graph.nodes[1]) == second);
  CHECK(signature_of(one.graph, one.graph.nodes[0]).attributes == c.attributes);
}

namespace {

/// The indices that a rank has of a tensor of all indices, cut by cut.
Tensor cut_for(Tensor x, const Spec& spec, const Mesh& mesh, const Coordinates& at) {
  for (const Cut& cut : spec.cuts()) {
    const std::int64_t n = mesh.size(cut.axis), mine = at[static_cast<std::size_t>(cut.axis)];
    if (cut.as.dim == Placement::kRows) x.shape = Shape{x.size() / x.shape[-1], x.shape[-1]};
    const int dim = cut.as.dim == Placement::kRows ? 0 : cut.as.dim;
    Shape shape = x.shape;
    shape[dim] /= n;
    Tensor part(shape);
    const std::int64_t inner = elements_from(shape, dim + 1), length = shape[dim] * inner;
    for (std::int64_t i = 0; i < part.size(); ++i) part[i] = x[(i / length * n + mine) * length + i % length];
    x = part;
  }
  return x;
}

}  // namespace

TEST_CASE(
    "a rank's dropout draws the whole's mask, however cuts of samples, of the sequence, of columns and of rows go "
    "together") {
  using Cuts = std::vector<std::pair<Axis, Placement>>;
  const Placement samples = Placement::shard(0), seq = Placement::shard(1), columns = Placement::shard(2),
                  rows = Placement::shard(Placement::kRows);
  const Shape whole{4, 8, 4};
  const auto graph_of = [&](const Cuts& cuts, int of_samples) {
    const Case c = make_case(Op::dropout, {{"p", 0.5}, {"key", std::int64_t{77}}}, {whole, {1}}, {whole}, {0, 9});
    Graph graph = goldens::one_node(c, DType::f32, DType::f32).graph;
    for (const auto& [axis, cut] : cuts) {
      graph.mesh.set(axis, cut == samples ? of_samples : 2);
      for (ValueId id : {graph.nodes[0].inputs[0], graph.nodes[0].outputs[0]}) graph.value(id).spec.place(axis, cut);
    }
    return graph;
  };
  Tensor ones(whole, 1), index(whole), step(Shape{1}, 3);
  for (std::int64_t i = 0; i < index.size(); ++i) index[i] = static_cast<double>(i);
  const Tensor mask = reference::run(Op::dropout, {{"p", 0.5}, {"key", std::int64_t{77}}}, {ones, step}, {whole})[0];
  for (const Cuts& cuts :
       {Cuts{{Axis::shard, samples}, {Axis::pipeline, seq}}, Cuts{{Axis::pipeline, seq}},
        Cuts{{Axis::pipeline, seq}, {Axis::tensor, rows}},
        Cuts{{Axis::shard, samples}, {Axis::pipeline, seq}, {Axis::tensor, rows}}, Cuts{{Axis::tensor, columns}},
        Cuts{{Axis::tensor, rows}}, Cuts{{Axis::shard, samples}, {Axis::tensor, columns}},
        Cuts{{Axis::shard, samples}, {Axis::tensor, rows}}})
    for (int of_samples : {2, 4}) {
      const Graph graph = graph_of(cuts, of_samples);
      const Node& node = graph.nodes[0];
      const Spec& spec = graph.value(node.inputs[0]).spec;
      const Signature signature = signature_of(graph, node);
      Attributes attributes = signature.attributes;
      attributes.set(
          "sample",
          whole.elements() / whole[0]);  // set along axes that cut samples' insides; the pipeline is none in earnest
      for (int rank = 0; rank < graph.mesh.world_size(); ++rank) {
        CAPTURE(rank);
        const Coordinates at = graph.mesh.coordinates(rank);
        const Tensor mine = cut_for(index, spec, graph.mesh, at);
        std::int64_t origin = origin_of(graph, node).at(at);
        if (spec.is_cut(Axis::shard))
          origin += at[static_cast<std::size_t>(Axis::shard)] * whole.elements() / of_samples;  // as micro-batches do
        const Tensor got = reference::run(Op::dropout, attributes, {Tensor(signature.operands[0].shape, 1), step},
                                          {signature.operands[0].shape}, origin)[0];
        REQUIRE(got.size() == mine.size());
        for (std::int64_t i = 0; i < got.size(); ++i) CHECK(got[i] == mask[static_cast<std::int64_t>(mine[i])]);
      }
    }
  for (const Cuts& cuts : {Cuts{{Axis::pipeline, seq}, {Axis::tensor, columns}}})
    CHECK_THROWS_WITH_AS(signature_of(graph_of(cuts, 2), graph_of(cuts, 2).nodes[0]),
                         doctest::Contains("dropout takes one cut of each sample"), JobError);
}

namespace {

/// Placements that the rule of the first node of `op` in the graph of `c` gives for `in`.
std::vector<Placement> outputs_for(const Case& c, Op op, const std::vector<Placement>& in) {
  const OneNode one = goldens::one_node(c, DType::f32, DType::f32);
  for (const Node& node : one.graph.nodes)
    if (node.op == op) return propagate(one.graph, node, in).value_or(std::vector<Placement>{});
  return {};
}

}  // namespace

TEST_CASE("a model's ops take a cut of the sequence, dim 1 of [batch, seq, dim]") {
  const Placement seq = Placement::shard(1), whole = Placement::replicate(), sum = Placement::partial(),
                  lse = Placement::shard(2);
  const auto rows = [](int samples) {
    return Placement::shard(0, samples);
  };  // of the rows of all samples, each sample's
  using Out = std::vector<Placement>;
  const Case c =
      make_case(Op::attention, attention(2, 1, false), {{2, 4, 4}, {2, 4, 2}, {2, 4, 2}}, {{2, 4, 4}, {2, 2, 4}});
  CHECK(outputs_for(c, Op::attention, {seq, whole, whole}) == Out{seq, lse});
  CHECK(outputs_for(c, Op::attention_grad, {seq, seq, whole, whole, seq, lse}) == Out{seq, sum, sum});
  CHECK(outputs_for(c, Op::attention, {seq, seq, seq}).empty());
  // Lengths count keys of the whole sequence, and are cut with the samples.
  const Case lengths =
      padded(attention(2, 1, false), {{2, 4, 4}, {2, 4, 2}, {2, 4, 2}}, {{2, 4, 4}, {2, 2, 4}}, {3, 1});
  const Placement samples = Placement::shard(0);
  CHECK(outputs_for(lengths, Op::attention, {seq, whole, whole, whole}) == Out{seq, lse});
  CHECK(outputs_for(lengths, Op::attention, {samples, samples, samples, samples}) == Out{samples, samples});
  CHECK(outputs_for(lengths, Op::attention, {samples, samples, samples, whole}).empty());
  CHECK(outputs_for(lengths, Op::attention, {seq, whole, whole, samples}).empty());
  CHECK(outputs_for(lengths, Op::attention_grad, {seq, seq, whole, whole, whole, seq, lse}) == Out{seq, sum, sum});
  CHECK(
      outputs_for(lengths, Op::attention_grad, {samples, samples, samples, samples, whole, samples, samples}).empty());
  const Case grouped = make_case(Op::attention, attention(4, 2, true), {{2, 3, 16}}, {{2, 3, 8}, {2, 4, 3}});
  CHECK(outputs_for(grouped, Op::attention, {Placement::shard(2, 3, 2)}) ==
        Out{Placement::shard(2), Placement::shard(1)});
  CHECK(outputs_for(grouped, Op::attention, {Placement::shard(2, 3)}).empty());
  const Case linear = make_case(Op::linear, {{"bias", true}}, {{4, 2, 6}, {12, 6}, {12}}, {{4, 2, 12}});
  CHECK(outputs_for(linear, Op::linear, {seq, whole, whole}) == Out{seq});
  CHECK(outputs_for(linear, Op::linear_grad_weight, {seq, seq}) == Out{sum, sum});
  CHECK(outputs_for(linear, Op::linear_grad_input, {seq, whole}) == Out{seq});
  const Case norm =
      make_case(Op::layer_norm, {{"bias", true}, {"eps", 1e-5}}, {{4, 2, 6}, {6}, {6}}, {{4, 2, 6}, {8}, {8}});
  CHECK(outputs_for(norm, Op::layer_norm, {seq, whole, whole}) == Out{seq, rows(4), rows(4)});
  CHECK(outputs_for(norm, Op::layer_norm_grad, {seq, seq, whole, rows(4), rows(4)}) == Out{seq, sum, sum});
  const Case loss = make_case(Op::cross_entropy, kLoss, {{4, 2, 6}, {4, 2}}, {{1}, {8}}, {0, 6});
  CHECK(outputs_for(loss, Op::cross_entropy, {seq, seq}) == Out{sum, rows(4)});
  CHECK(outputs_for(loss, Op::cross_entropy_grad, {seq, seq, rows(4), whole}) == Out{seq});
  CHECK(outputs_for(make_case(Op::correct_count, kLoss, {{4, 2, 6}, {4, 2}}, {{1}}, {0, 6}), Op::correct_count,
                    {seq, seq}) == Out{sum});
  CHECK(outputs_for(make_case(Op::cross_entropy_count, kLoss, {{4, 2}}, {{1}}, {6}), Op::cross_entropy_count, {seq}) ==
        Out{sum});
  const Case mse = make_case(Op::mse, {}, {{2, 4, 6}, {2, 4, 6}}, {{1}});
  CHECK(outputs_for(mse, Op::mse, {seq, seq}) == Out{sum});
  CHECK(outputs_for(mse, Op::mse_grad, {seq, seq, whole}) == Out{seq});
  const Case embedding = make_case(Op::embedding, {}, {{4, 6}, {8, 6}}, {{4, 6, 6}}, {8, 0});
  CHECK(outputs_for(embedding, Op::embedding, {seq, whole}) == Out{seq});
  CHECK(outputs_for(embedding, Op::embedding_grad, {seq, seq}) == Out{sum});
  const Case positions = make_case(Op::positions, {}, {{8, 6}}, {{6, 6}});
  CHECK(outputs_for(positions, Op::positions_grad, {Placement::shard(0)}) == Out{sum});
  const Case add = make_case(Op::add, {}, {{4, 2, 6}, {2, 6}}, {{4, 2, 6}});
  CHECK(outputs_for(add, Op::add, {seq, Placement::shard(0)}) == Out{seq});
  CHECK(outputs_for(add, Op::sum_leading, {seq}) == Out{Placement::shard(0)});
  CHECK(outputs_for(
            make_case(Op::dropout, {{"p", 0.5}, {"key", std::int64_t{77}}}, {{4, 2, 6}, {1}}, {{4, 2, 6}}, {0, 9}),
            Op::dropout, {seq, whole}) == Out{seq});
  CHECK(outputs_for(make_case(Op::reshape, {}, {{4, 2, 6}}, {{8, 6}}), Op::reshape, {seq}) == Out{rows(4)});
  CHECK(outputs_for(make_case(Op::reshape, {}, {{8, 6}}, {{4, 2, 6}}), Op::reshape, {rows(4)}) == Out{seq});
  const Case split = make_case(Op::split, {}, {{2, 4, 24}}, {{2, 4, 12}, {2, 4, 6}, {2, 4, 6}});
  CHECK(outputs_for(split, Op::split, {seq}) == Out{seq, seq, seq});
  CHECK(outputs_for(split, Op::concat, {seq, seq, seq}) == Out{seq});
  CHECK(outputs_for(split, Op::split, {Placement::shard(2, 3, 2)}) ==
        Out{Placement::shard(2), Placement::shard(2), Placement::shard(2)});
  CHECK(outputs_for(split, Op::concat, {Placement::shard(2), Placement::shard(2), Placement::shard(2)}) ==
        Out{Placement::shard(2, 3, 2)});
  CHECK(outputs_for(split, Op::split, {Placement::shard(2)})
            .empty());  // the first rank would have all of the first piece
}
