// Sources: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019, section 3 (columns,
// rows, heads, vocabulary); Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, section 4.2.2
// (sequence parallelism).
//
// Every value lies in one of four ways over the tensor axis: whole on every rank; cut by columns (its last dim); cut by rows (all its
// other dims, flattened: samples and positions together, so that a rank's part is one run of memory); or partial, a sum still to be
// made. Per layer and pass each rank sends two all-reduces of the activations, or as many bytes in an all-gather and a reduce-scatter.
// Departs from the papers: rows are cut over samples and positions together; a bias and a table of positions that belong to a partial
// sum are added by the first rank alone, so that they are part of the reduction.
#include "strategies/tensor/tensor_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/core/check.h"
#include "engine/core/error.h"

namespace trainer::strategies {
namespace {

constexpr auto kTensor = static_cast<std::size_t>(Axis::tensor);

enum class Way : std::uint8_t { whole, columns, rows, partial };

std::int64_t rows_of(const Shape& shape) { return shape.elements() / shape[-1]; }

class Rewriting {
 public:
  Rewriting(Graph& graph, const TensorOptions& options) : graph_(graph), n_(options.degree), sequence_parallel_(options.sequence_parallel), ways_(graph.values.size(), Way::whole) {
    for (const Value& value : graph.values) global_.push_back(value.shape);
    for (const Parameter& parameter : graph.parameters) parameters_[parameter.value] = static_cast<std::size_t>(&parameter - graph.parameters.data());
    for (const Node& node : graph.nodes)
      for (ValueId input : node.inputs) ++reads_[input];
  }

  void run() {
    find_packed();
    std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (Node& node : nodes) {
      for (ValueId& input : node.inputs)
        if (const auto moved = moved_.find(input); moved != moved_.end()) input = moved->second;
      rewrite(node);
    }
    settle_outputs();
  }

 private:
  // ---- Values ----

  Way& way(ValueId value) {
    if (static_cast<std::size_t>(value) >= ways_.size()) ways_.resize(static_cast<std::size_t>(value) + 1, Way::whole);
    return ways_[static_cast<std::size_t>(value)];
  }

  /// Shape over all ranks.
  const Shape& global(ValueId value) const { return global_[static_cast<std::size_t>(value)]; }

  void put(ValueId value, Way how, const Placement& placement = {}) {
    way(value) = how;
    Shape& shape = graph_.value(value).shape;
    const Shape& all = global(value);
    Placement& placed = graph_.value(value).placement[kTensor];
    switch (how) {
      case Way::whole: placed = {}; break;
      case Way::partial: placed = Placement::partial(); break;
      case Way::columns:
        placed = placement.is_shard() ? placement : Placement::shard(all.rank() - 1);
        shape[-1] = (all[-1] + n_ - 1) / n_;
        break;
      case Way::rows:
        placed = Placement::shard(0);
        shape = Shape{rows_of(all) / n_, all[-1]};
        break;
    }
  }

  /// `value` in another way, by a collective; made once however many read it.
  ValueId turned(const Node& reader, ValueId value, Op op, Way how) {
    const auto [at, fresh] = turned_.try_emplace({value, op}, kNone);
    if (!fresh) return at->second;
    const std::string suffix = op == Op::replicate ? ".replicated" : op == Op::all_gather ? ".gathered" : ".reduced";
    Value result = graph_.value(value);
    result.name += suffix;
    result.shape = global(value);
    result.placement[kTensor] = {};
    result.alias_of = op == Op::replicate ? graph_.storage(value) : kNone;
    const ValueId id = graph_.add_value(std::move(result));
    global_.push_back(global(value));
    put(id, how);
    Node node{.name = graph_.value(value).name, .op = op};
    if (op == Op::all_gather || op == Op::reduce_scatter) node.attributes.set("parts", static_cast<std::int64_t>(n_));
    node.inputs = {value};
    node.outputs = {id};
    node.block = reader.block;
    node.chunk = reader.chunk;
    node.origin = reader.origin;
    graph_.nodes.push_back(std::move(node));
    return at->second = id;
  }

  /// What enters a column-parallel product: whole on every rank, gradients summed over the ranks.
  ValueId entering(const Node& reader, ValueId value) {
    switch (way(value)) {
      case Way::whole: return graph_.value(value).kind == ValueKind::input ? value : turned(reader, value, Op::replicate, Way::whole);
      case Way::rows: return turned(reader, value, Op::all_gather, Way::whole);
      case Way::columns:
      case Way::partial: break;
    }
    refuse(reader, "it reads columns that another node has cut; a row-parallel linear must come between");
  }

  /// A partial sum is made: into rows under sequence parallelism, else whole.
  ValueId summed(const Node& writer, ValueId value) {
    if (way(value) != Way::partial) return value;
    if (!sequence_parallel_) return turned(writer, value, Op::all_reduce, Way::whole);
    if (rows_of(global(value)) % n_ != 0)
      refuse(writer, fmt::format("sequence parallelism cuts its {} rows (samples of a micro-batch times positions) into {}, which does not divide", rows_of(global(value)), n_));
    return turned(writer, value, Op::reduce_scatter, Way::rows);
  }

  // ---- Parameters ----

  void cut_parameter(const Node& node, ValueId value, const Placement& placement) {
    Parameter& parameter = graph_.parameters[parameters_.at(value)];
    Placement& placed = parameter.placement[kTensor];
    if (!placed.is_replicate()) {
      if (!(placed == placement)) refuse(node, "its weight is shared with a node that cuts it otherwise");
      return;
    }
    if (whole_readers_.contains(value)) refuse(node, "its weight is shared with a node that needs it whole");
    placed = placement;
    graph_.value(value).placement[kTensor] = placement;
    std::int64_t& size = graph_.value(value).shape[placement.dim];
    size = (size + n_ - 1) / n_;
  }

  void keep_parameters(const Node& node) {
    for (ValueId input : node.inputs) {
      if (!parameters_.contains(input)) continue;
      if (!graph_.parameters[parameters_.at(input)].placement[kTensor].is_replicate()) refuse(node, "its weight is shared with a node that cuts it");
      whole_readers_.insert(input);
    }
  }

  // ---- Nodes ----

  void rewrite(Node& node) {
    switch (node.op) {
      case Op::embedding: return embedding(node);
      case Op::linear: return linear(node);
      case Op::attention: return attention(node);
      case Op::cross_entropy: return cross_entropy(node);
      case Op::add:
      case Op::mul: return binary(node);
      case Op::dropout: return dropout(node);
      case Op::cast:
      case Op::gelu:
      case Op::relu:
      case Op::silu:
      case Op::tanh:
      case Op::sigmoid: return elementwise(node);
      case Op::layer_norm:
      case Op::rms_norm: return norm(node);
      default: return whole(node);
    }
  }

  void add(Node& node) {
    for (ValueId output : node.outputs) producers_[output] = graph_.nodes.size();
    graph_.nodes.push_back(std::move(node));
  }

  // Everything that no rule below cuts runs alike on every rank.
  void whole(Node& node) {
    for (ValueId input : node.inputs)
      if (way(input) != Way::whole) refuse(node, std::string(name_of(node.op)) + " needs its input whole, which " + describe(input));
    keep_parameters(node);
    add(node);
  }

  void embedding(Node& node) {
    const ValueId weight = node.inputs[1];
    const std::int64_t rows = global(weight)[0];
    cut_parameter(node, weight, Placement::shard(0));
    node.attributes.set("cut", true);
    node.attributes.set("table_rows", rows);
    node.per_tensor = graph_.value(weight).shape[0];
    put(node.outputs[0], Way::partial);
    finish_partial(node);
  }

  // The sum is made where the value is first read, but for additions to another partial sum, which come first.
  void finish_partial(Node& node) {
    const ValueId output = node.outputs[0];
    const Node copy = node;
    add(node);
    if (!only_added_to_positions(output)) moved_[output] = summed(copy, output);
  }

  bool only_added_to_positions(ValueId value) const { return positions_sums_.contains(value); }

  void linear(Node& node) {
    switch (node.parallel) {
      case Parallel::column: return column(node);
      case Parallel::row: return row(node);
      case Parallel::none: break;
    }
    for (ValueId& input : node.inputs)
      if (way(input) == Way::columns) refuse(node, "it reads columns that another node has cut; mark it `parallel: row`");
    keep_parameters(node);
    put(node.outputs[0], way(node.inputs[0]));
    add(node);
  }

  void column(Node& node) {
    const std::int64_t out = global(node.inputs[1])[0];
    const auto packed = packed_.find(node.outputs[0]);
    const Placement cut = packed == packed_.end() ? Placement::shard(0) : Placement::shard(0, 3, packed->second);
    if (!is_head(node.outputs[0])) divide(node, "its outputs", out / (packed == packed_.end() ? 1 : packed->second + 2), out);
    cut_parameter(node, node.inputs[1], cut);
    if (node.inputs.size() > 2) cut_parameter(node, node.inputs[2], cut);
    node.inputs[0] = entering(node, node.inputs[0]);
    put(node.outputs[0], Way::columns, Placement::shard(global(node.outputs[0]).rank() - 1, cut.parts, cut.lead));
    add(node);
  }

  void row(Node& node) {
    if (way(node.inputs[0]) != Way::columns || graph_.value(node.inputs[0]).placement[kTensor].parts != 1)
      refuse(node, "a row-parallel linear reads what a column-parallel one has cut, but its input " + describe(node.inputs[0]));
    divide(node, "its inputs", global(node.inputs[1])[1], global(node.inputs[1])[1]);
    cut_parameter(node, node.inputs[1], Placement::shard(1));
    if (node.inputs.size() > 2) {
      whole_readers_.insert(node.inputs[2]);
      node.attributes.set("partial", true);
      node.per_tensor = 1;
    }
    put(node.outputs[0], Way::partial);
    finish_partial(node);
  }

  void attention(Node& node) {
    if (way(node.inputs[0]) != Way::columns) {
      for (ValueId input : node.inputs)
        if (way(input) != Way::whole) refuse(node, "attention needs q, k and v cut alike, but " + describe(input));
      return add(node);
    }
    for (ValueId input : node.inputs)
      if (way(input) != Way::columns) refuse(node, "attention needs q, k and v cut alike, but " + describe(input));
    const std::int64_t heads = node.attributes.integer("heads"), kv_heads = node.attributes.integer("kv_heads", heads);
    divide(node, "its heads", heads, heads);
    divide(node, "its kv_heads", kv_heads, kv_heads);
    node.attributes.set("heads", heads / n_);
    node.attributes.set("kv_heads", kv_heads / n_);
    put(node.outputs[0], Way::columns);
    Shape& lse = graph_.value(node.outputs[1]).shape;
    lse[1] = heads / n_;
    graph_.value(node.outputs[1]).placement[kTensor] = Placement::shard(1);
    add(node);
  }

  void norm(Node& node) {
    const Way how = way(node.inputs[0]);
    if (how == Way::columns) refuse(node, "a norm needs whole rows, but its input " + describe(node.inputs[0]));
    keep_parameters(node);
    put(node.outputs[0], how);
    for (std::size_t i = 1; i < node.outputs.size(); ++i) {  // statistics, one a row
      Value& saved = graph_.value(node.outputs[i]);
      if (how != Way::rows) continue;
      saved.shape = Shape{saved.shape.elements() / n_};
      saved.placement[kTensor] = Placement::shard(0);
    }
    add(node);
  }

  void elementwise(Node& node) {
    put(node.outputs[0], way(node.inputs[0]), graph_.value(node.inputs[0]).placement[kTensor]);
    add(node);
  }

  void binary(Node& node) {
    const ValueId a = node.inputs[0], b = node.inputs[1];
    if (positions_sums_.contains(a) && way(a) == Way::partial && way(b) == Way::whole) {  // the first rank's share of the sum
      Node& positions = graph_.nodes[producers_.at(b)];
      positions.attributes.set("partial", true);
      positions.per_tensor = 1;
      put(node.outputs[0], Way::partial);
      return finish_partial(node);
    }
    const bool alike = way(a) == way(b) && graph_.value(a).placement[kTensor] == graph_.value(b).placement[kTensor];
    if (!alike || way(a) == Way::partial || (way(a) != Way::whole && global(a) != global(b)))
      refuse(node, "its terms are cut differently: the first " + describe(a) + ", the second " + describe(b));
    elementwise(node);
  }

  // Masks are counted over the whole batch: by elements of a sample and of a row, wherever this rank's begin.
  void dropout(Node& node) {
    const ValueId x = node.inputs[0];
    const Shape& all = global(x);
    if (way(x) == Way::columns && graph_.value(x).placement[kTensor].parts != 1) refuse(node, "dropout cannot be applied to packed queries, keys and values that are cut");
    node.attributes.set("sample", all.elements() / all[0]);
    if (way(x) == Way::columns) {
      node.attributes.set("stride", all[-1]);
      node.per_tensor = all[-1] / n_;
    } else if (way(x) == Way::rows) {
      node.per_tensor = all.elements() / n_;
    }
    put(node.outputs[0], way(x), graph_.value(x).placement[kTensor]);
    add(node);
  }

  // No rank ever holds full logits: of its own it makes the statistics, and of all ranks' statistics the loss.
  void cross_entropy(Node& node) {
    const ValueId logits = node.inputs[0], targets = node.inputs[1];
    if (way(logits) == Way::whole) return add(node);
    if (way(logits) != Way::columns) refuse(node, "cross-entropy needs its logits whole or cut by classes, but they " + describe(logits));
    const std::int64_t classes = global(logits)[-1], rows = rows_of(global(logits)), columns = graph_.value(logits).shape[-1];
    const auto value = [&](const std::string& suffix, const Shape& shape) {
      global_.push_back(shape);
      return graph_.add_value({.name = node.name + suffix, .dtype = DType::f32, .shape = shape});
    };
    Node stats{.name = node.name + ".stats", .op = Op::cross_entropy_stats};
    stats.attributes.set("classes", classes);
    stats.attributes.set("ignore_index", node.attributes.integer("ignore_index"));
    stats.inputs = {logits, targets};
    stats.outputs = {value(".stats", Shape{rows, 5})};
    stats.per_tensor = columns;
    Node gather{.name = node.name + ".stats", .op = Op::all_gather};
    gather.attributes.set("parts", static_cast<std::int64_t>(n_));
    gather.inputs = stats.outputs;
    gather.outputs = {value(".stats.gathered", Shape{n_, rows, 5})};
    for (Node* one : {&stats, &gather}) {
      one->block = node.block;
      one->chunk = node.chunk;
      one->origin = node.origin;
    }
    node.op = Op::cross_entropy_gathered;
    node.attributes.set("classes", classes);
    node.inputs = {logits, gather.outputs[0], targets};
    node.per_tensor = columns;
    if (graph_.loss.scores == logits) {
      graph_.loss.scores = gather.outputs[0];
      graph_.loss.correct_op = Op::correct_count_gathered;
      graph_.loss.correct_attributes.set("classes", classes);
    }
    add(stats);
    add(gather);
    add(node);
  }

  // ---- Looking at the graph ----

  // Linears whose result is packed q, k and v, by the length of q in units of k; sums of an embedding and of positions.
  void find_packed() {
    std::set<ValueId> positions;
    for (const Node& node : graph_.nodes) {
      if (node.op == Op::positions) positions.insert(node.outputs[0]);
      if (node.op == Op::attention && node.attributes.flag("packed", false)) {
        const std::int64_t heads = node.attributes.integer("heads");
        packed_[node.inputs[0]] = static_cast<std::int32_t>(heads / node.attributes.integer("kv_heads", heads));
      }
      if (node.op == Op::cross_entropy && reads_[node.inputs[0]] == 1) heads_.insert(node.inputs[0]);
      if (node.op != Op::add || node.inputs.size() != 2) continue;
      if (positions.contains(node.inputs[1]) && reads_[node.inputs[0]] == 1 && reads_[node.inputs[1]] == 1) positions_sums_.insert(node.inputs[0]);
    }
  }

  bool is_head(ValueId value) const { return heads_.contains(value); }

  // Whoever reads the graph's outputs finds the values where they are now.
  void settle_outputs() {
    const auto settle = [&](ValueId& id) {
      if (const auto moved = moved_.find(id); moved != moved_.end()) id = moved->second;
    };
    settle(graph_.logits);
    settle(graph_.loss.scores);
  }

  // ---- Mistakes ----

  std::string describe(ValueId value) {
    switch (way(value)) {
      case Way::whole: return "is whole";
      case Way::columns: return "is cut by columns";
      case Way::rows: return "is cut by rows";
      case Way::partial: return "is a partial sum";
    }
    return "";
  }

  void divide(const Node& node, const std::string& what, std::int64_t pieces, std::int64_t shown) const {
    if (pieces % n_ == 0) return;
    std::string degrees;
    for (std::int64_t degree = 1; degree <= std::min<std::int64_t>(pieces, 64); ++degree)
      if (pieces % degree == 0) degrees += (degrees.empty() ? "" : ", ") + std::to_string(degree);
    refuse(node, fmt::format("{} ({}) cannot be split evenly over {} ranks; degrees that work: {}", what, shown, n_, degrees));
  }

  [[noreturn]] void refuse(const Node& node, const std::string& why) const {
    Diagnostic mistake;
    mistake.file = node.origin.file;
    mistake.line = node.origin.line;
    mistake.column = node.origin.column;
    mistake.path = node.name;
    mistake.message = fmt::format("tensor parallelism of degree {}: {}", n_, why);
    throw JobError({mistake});
  }

  Graph& graph_;
  const std::int64_t n_;
  const bool sequence_parallel_;
  std::vector<Way> ways_;                            // by value
  std::vector<Shape> global_;                        // by value: its shape over all ranks
  std::map<ValueId, std::size_t> parameters_;        // index in graph_.parameters
  std::map<ValueId, int> reads_;
  std::map<ValueId, ValueId> moved_;                 // partial sums to what they are summed to
  std::map<std::pair<ValueId, Op>, ValueId> turned_;
  std::map<ValueId, std::size_t> producers_;         // index in graph_.nodes of the node that makes a value, once it is there
  std::map<ValueId, std::int32_t> packed_;
  std::set<ValueId> heads_, positions_sums_, whole_readers_;
};

}  // namespace

void tensor_parallel(Graph& graph, const TensorOptions& options) {
  if (options.degree == 1) return;
  infer_marks(graph);
  Rewriting(graph, options).run();
}

}  // namespace trainer::strategies
