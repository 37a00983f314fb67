// Targets are found first, and everything that could be wrong with them; then the nodes are rewritten in one pass.
#include "engine/transform/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "engine/core/check.h"
#include "engine/core/index.h"
#include "engine/core/random.h"
#include "engine/ops/op_def.h"

namespace trainer {
namespace {

/// Makes scores of the head's result without mixing its elements.
bool keeps_elements(Op op) { return has(op, Trait::elementwise) || has(op, Trait::view); }

class LoraPass {
 public:
  LoraPass(Graph& graph, const Lora& lora, const BuildOptions& options)
      : graph_(graph), lora_(lora), options_(options) {}

  std::vector<SelectionMistake> run() {
    CHECK(lora_.rank >= 1 && lora_.dropout >= 0 && lora_.dropout < 1, "a rank of at least 1, a dropout in [0, 1)");
    CHECK(graph_.seed == kNone, "adapters are added before differentiation");
    choose_targets();
    if (mistakes_.empty()) check_targets();
    if (mistakes_.empty()) rewrite();
    return std::move(mistakes_);
  }

 private:
  void choose_targets() {
    targets_.assign(graph_.nodes.size(), false);
    std::vector<NodeId> linears;
    std::vector<std::string_view> names;
    const NodeId head = head_of(graph_);
    std::set<ValueId> routers;  // their logits: what chooses experts is no linear of the file
    for (const Node& node : graph_.nodes)
      if (node.op == Op::route) routers.insert(node.inputs[0]);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (graph_.nodes[i].op != Op::linear || routers.contains(graph_.nodes[i].outputs[0])) continue;
      linears.push_back(static_cast<NodeId>(i));
      names.push_back(graph_.nodes[i].name);
    }
    if (!lora_.targets.empty()) {
      const std::vector<bool> selected = select(as_globs(names), names, "linear", "targets", mistakes_);
      for (std::size_t i = 0; i < linears.size(); ++i) targets_[at(linears[i])] = selected[i];
      return;
    }
    const auto is_head = [&](NodeId linear) {  // a second one may have its weight
      return head != kNone && graph_.nodes[at(linear)].inputs[1] == graph_.nodes[at(head)].inputs[1];
    };
    for (const NodeId linear : linears) targets_[at(linear)] = !is_head(linear);
    if (std::find(targets_.begin(), targets_.end(), true) == targets_.end())
      mistakes_.push_back({"targets", "the graph has no linear but its head"});
  }

  /// A target without `*` that is no whole name is the end of one: `q_proj` that of every layer.
  std::vector<std::string> as_globs(const std::vector<std::string_view>& names) const {
    std::vector<std::string> globs = lora_.targets;
    for (std::string& target : globs)
      if (target.find('*') == std::string::npos && std::ranges::find(names, target) == names.end())
        target = "*." + target;
    return globs;
  }

  void check_targets() {
    std::map<ValueId, std::string_view> by_weight;
    std::set<std::string_view> names;
    for (const Value& value : graph_.values) names.insert(value.name);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!targets_[i]) continue;
      const Node& node = graph_.nodes[i];
      const auto [first, fresh] = by_weight.emplace(node.inputs[1], node.name);
      if (!fresh)
        mistakes_.push_back({"targets", fmt::format("\"{}\" and \"{}\" share {}: an adapter goes to one of them",
                                                    first->second, node.name, graph_.value(node.inputs[1]).name)});
      if (drops() && !is_batched(node.inputs[0]))
        mistakes_.push_back(
            {"dropout",
             fmt::format("\"{}\" takes values whose first dim is not the batch, which a dropout mask is numbered by",
                         node.name)});
      for (const char* part : {"lora_A", "lora_B", "lora_dropout", "lora_scale", "lora_add", "lora_base", "lora_norms",
                               "lora_magnitude", "lora_magnitude_vector", "lora_gain", "lora_scaled", "lora_bias",
                               "lora_plain", "lora_less", "lora_change", "lora_bias_value"})
        if (names.contains(node.name + "." + part))
          mistakes_.push_back({"targets", fmt::format("\"{}.{}\" is taken by a node of the graph", node.name, part)});
    }
  }

  bool drops() const { return lora_.dropout > 0 && options_.mode == BuildOptions::Mode::train; }

  /// Whether dim 0 goes back to the batch, as masks of dropout need it.
  bool is_batched(ValueId id) {
    if (batched_.empty()) {
      batched_.assign(graph_.values.size(), false);
      for (ValueId input : graph_.inputs) batched_[at(input)] = true;
      for (const Node& node : graph_.nodes)
        if (std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) { return batched_[at(input)]; }))
          for (ValueId output : node.outputs) batched_[at(output)] = true;
    }
    return batched_[at(id)] && graph_.value(id).shape()[0] == options_.batch;
  }

  void rewrite() {
    std::vector<Node> nodes = std::exchange(graph_.nodes, {});
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (targets_[i])
        adapt(std::move(nodes[i]));
      else
        graph_.nodes.push_back(std::move(nodes[i]));
    }
    order_parameters();
  }

  void adapt(Node base) {
    const Node like = base;
    const ValueId y = base.outputs[0];
    const DType dtype = graph_.value(base.inputs[1]).spec.dtype();
    const Shape large = graph_.value(y).shape();
    const bool with_bias = base.inputs.size() > 2;
    // What m scales has no bias; under dropout it is made apart, of what the adapter reads.
    const bool apart = lora_.magnitude && drops();
    if (lora_.magnitude && with_bias && !apart) drop_bias(base);
    base.outputs[0] = value(like.name + ".lora_base", dtype, large);
    const ValueId base_y = base.outputs[0];
    graph_.nodes.push_back(std::move(base));
    const ValueId x = drops() ? dropout(like, like.inputs[0]) : like.inputs[0];
    const Pair pair = add_pair(like, x);
    if (!lora_.magnitude) {
      node(like, "lora_add", Op::add, {}, {base_y, pair.y}, y);
      return;
    }
    const auto made = [&](const char* part) { return value(like.name + "." + part, dtype, large); };
    const ValueId plain =
        apart ? node(like, "lora_plain", Op::linear, {{"bias", false}}, {x, like.inputs[1]}, made("lora_plain"))
              : base_y;
    const ValueId sum = node(like, "lora_add", Op::add, {}, {plain, pair.y}, made("lora_add"));
    const bool last = !apart && !with_bias;
    const ValueId factors = gain(like, pair);
    const ValueId scaled = node(like, "lora_scaled", Op::mul, {}, {sum, factors}, last ? y : made("lora_scaled"));
    if (apart) {
      const ValueId less = node(like, "lora_less", Op::scale, {{"factor", -1.0}}, {plain}, made("lora_less"));
      const ValueId change = node(like, "lora_change", Op::add, {}, {scaled, less}, made("lora_change"));
      node(like, "lora_bias", Op::add, {}, {base_y, change}, y);
    } else if (with_bias) {
      const Shape shape = graph_.value(like.inputs[2]).shape();
      const ValueId bias = node(like, "lora_bias_value", Op::parameter, {}, {like.inputs[2]},
                                value(like.name + ".lora_bias_value", dtype, shape));
      node(like, "lora_bias", Op::add, {}, {scaled, bias}, y);
    }
  }

  static void drop_bias(Node& base) {
    base.inputs.pop_back();
    base.attributes.set("bias", false);
  }

  /// What is added for x, and the parameters that it is made with.
  struct Pair {
    ValueId y, a, b;
  };

  Pair add_pair(const Node& like, ValueId x) {
    const Spec weight = graph_.value(like.inputs[1]).spec;
    const DType dtype = weight.dtype();
    const std::int64_t out = weight.whole[0], in = weight.whole[1];
    const Shape large = graph_.value(like.outputs[0]).shape(), small = large.with_last(lora_.rank);
    Spec a_spec(dtype, {lora_.rank, in}), b_spec(dtype, {out, lora_.rank});
    for (const Cut& cut : weight.cuts()) (cut.as.is_shard(0) ? b_spec : a_spec).place(cut.axis, cut.as);
    const ValueId a =
        parameter(like.name + ".lora_A.weight", a_spec, {.uniform = 1 / std::sqrt(static_cast<double>(in))});
    const ValueId b = parameter(like.name + ".lora_B.weight", b_spec, {});
    const Attributes no_bias{{"bias", false}};
    x = node(like, "lora_A", Op::linear, no_bias, {x, a}, value(like.name + ".lora_A", dtype, small));
    x = node(like, "lora_scale", Op::scale, {{"factor", factor()}}, {x},
             value(like.name + ".lora_scale", dtype, small));
    x = node(like, "lora_B", Op::linear, no_bias, {x, b}, value(like.name + ".lora_B", dtype, large));
    return {x, a, b};
  }

  /// m / n, an element for each column of the result.
  ValueId gain(const Node& like, const Pair& pair) {
    const Spec weight = graph_.value(like.inputs[1]).spec;
    const DType dtype = weight.dtype();
    const Shape vector{weight.whole[0]};
    Spec spec(dtype, vector);
    for (const Cut& cut : weight.cuts())
      if (cut.as.is_shard(0)) spec.place(cut.axis, cut.as);
    const ValueId m =
        parameter(like.name + ".lora_magnitude_vector", spec, {.norms_of = graph_.value(like.inputs[1]).name});
    const ValueId squares =
        node(like, "lora_norms", Op::row_squares, {{"factor", factor()}}, {like.inputs[1], pair.a, pair.b},
             value(like.name + ".lora_norms", DType::f32, vector));
    const ValueId read =
        node(like, "lora_magnitude", Op::parameter, {}, {m}, value(like.name + ".lora_magnitude", dtype, vector));
    return node(like, "lora_gain", Op::over_root, {}, {read, squares}, value(like.name + ".lora_gain", dtype, vector));
  }

  double factor() const {
    const auto rank = static_cast<double>(lora_.rank);
    return lora_.alpha / (lora_.scaled_by_root ? std::sqrt(rank) : rank);
  }

  ValueId dropout(const Node& like, ValueId x) {
    if (graph_.step == kNone)
      graph_.step = graph_.add_value({.name = "step", .spec = {DType::i32, {1}}, .kind = ValueKind::scalar});
    const std::string name = like.name + ".lora_dropout";
    const Attributes attributes{{"p", lora_.dropout},
                                {"key", static_cast<std::int64_t>(random_key(options_.seed, name))}};
    const TensorDesc desc = graph_.value(x).desc();
    return node(like, "lora_dropout", Op::dropout, attributes, {x, graph_.step}, value(name, desc.dtype, desc.shape));
  }

  ValueId value(std::string name, DType dtype, const Shape& shape) {
    return graph_.add_value({.name = std::move(name), .spec = {dtype, shape}});
  }

  ValueId parameter(std::string name, const Spec& spec, Init init) {
    const ValueId id = graph_.add_value({.name = std::move(name), .spec = spec, .kind = ValueKind::parameter});
    graph_.parameters.push_back({.value = id, .init = init});
    return id;
  }

  /// Appends `<like>.part`, in the block and chunk of `like`; returns its output.
  ValueId node(const Node& like, const char* part, Op op, Attributes attributes, std::vector<ValueId> inputs,
               ValueId output) {
    Node made = node_like(like, like.name + "." + part, op);
    made.attributes = std::move(attributes);
    made.inputs = std::move(inputs);
    made.outputs = {output};
    graph_.nodes.push_back(std::move(made));
    return output;
  }

  /// By first use, as reading a file leaves them: units of consecutive parameters are those of consecutive nodes.
  void order_parameters() {
    std::map<ValueId, std::pair<std::size_t, std::size_t>> first;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i)
      for (std::size_t k = 0; k < graph_.nodes[i].inputs.size(); ++k)
        first.emplace(graph_.nodes[i].inputs[k], std::pair(i, k));
    std::stable_sort(graph_.parameters.begin(), graph_.parameters.end(),
                     [&](const Parameter& a, const Parameter& b) { return first.at(a.value) < first.at(b.value); });
  }

  Graph& graph_;
  const Lora& lora_;
  const BuildOptions& options_;
  std::vector<bool> targets_;  ///< by node
  std::vector<bool> batched_;  ///< by value
  std::vector<SelectionMistake> mistakes_;
};

}  // namespace

NodeId head_of(const Graph& graph) {
  std::vector<NodeId> producer(graph.values.size(), kNone);
  std::vector<int> readers(graph.values.size(), 0);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId output : graph.nodes[i].outputs) producer[at(output)] = static_cast<NodeId>(i);
    for (ValueId input : graph.nodes[i].inputs) ++readers[at(input)];
  }
  NodeId loss = graph.loss.sum == kNone ? kNone : producer[at(graph.loss.sum)];
  // A graph that scores has statistics of its logits in place of a loss.
  if (loss == kNone && graph.logits != kNone && producer[at(graph.logits)] != kNone &&
      graph.nodes[at(producer[at(graph.logits)])].op == Op::cross_entropy_stats)
    loss = producer[at(graph.logits)];
  ValueId id = loss == kNone ? graph.logits : graph.nodes[at(loss)].inputs[0];
  int most_readers = loss == kNone ? 0 : 1;
  while (id != kNone && producer[at(id)] != kNone && readers[at(id)] <= most_readers) {
    const Node& node = graph.nodes[at(producer[at(id)])];
    if (node.op == Op::linear) return producer[at(id)];
    if (!keeps_elements(node.op)) return kNone;
    id = node.inputs[0];
    most_readers = 1;
  }
  return kNone;
}

std::vector<SelectionMistake> add_lora(Graph& graph, const Lora& lora, const BuildOptions& options) {
  return LoraPass(graph, lora, options).run();
}

}  // namespace trainer
