// Which matrices are quantized is found first; then their nodes and parameters are rewritten.
#include "engine/transform/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/core/check.h"
#include "engine/transform/adapter.h"

namespace trainer {
namespace {

using Kind = QuantizedPart::Kind;

class Quantizing {
 public:
  Quantizing(Graph& graph, Quantization as) : graph_(graph), as_(as) {}

  std::vector<SelectionMistake> run() {
    CHECK(graph_.seed == kNone, "weights are quantized before differentiation");
    choose();
    for (const ValueId weight : weights_) check_cuts(graph_.value(weight));
    if (!mistakes_.empty()) return std::move(mistakes_);
    std::vector<Parameter> parameters;
    for (const Parameter& parameter : graph_.parameters)
      if (weights_.contains(parameter.value))
        split(parameter.value, parameters);
      else
        parameters.push_back(parameter);
    graph_.parameters = std::move(parameters);
    for (Node& node : graph_.nodes) rewrite(node);
    return {};
  }

 private:
  void choose() {
    for (const Parameter& parameter : graph_.parameters)
      if (!parameter.trainable) weights_.insert(parameter.value);
    const NodeId head = head_of(graph_);
    std::set<ValueId> linears;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      const bool linear = node.op == Op::linear && static_cast<NodeId>(i) != head;
      if (linear) linears.insert(node.inputs[1]);
      for (std::size_t k = 0; k < node.inputs.size(); ++k) {
        if (linear && k == 1) continue;
        if (node.op == Op::row_squares && weights_.contains(node.inputs[k]))
          return wrong(fmt::format(
              "the norms of {} plus its adapter are those of a weight that is not quantized: adapter.magnitude needs "
              "model.quantize: none",
              graph_.value(node.inputs[k]).name));
        weights_.erase(node.inputs[k]);
      }
    }
    std::erase_if(weights_, [&](ValueId weight) { return !linears.contains(weight); });
    if (weights_.empty()) wrong("no linear but the head has a frozen weight of its own");
  }

  /// Groups of blocks have to be whole on every rank: else their scales would depend on the number of ranks.
  void check_cuts(const Value& weight) {
    for (const Cut& cut : weight.spec.cuts()) {
      const int ranks = graph_.mesh.size(cut.axis);
      const std::int64_t lengths = cut.as.lead + cut.as.parts - 1, size = weight.shape()[cut.as.dim],
                         part = size / lengths / ranks;
      const std::int64_t grain = cut.as.is_shard(1) ? kQuantizedBlock : as_ == Quantization::nf4 ? kQuantizedGroup : 1;
      if (part * lengths * ranks == size && part % grain == 0) continue;
      wrong(fmt::format("{} of {} over {} ranks leave parts of {}, and {} needs multiples of {}",
                        cut.as.is_shard(1) ? "columns" : "rows", weight.name, ranks, part, name_of(as_), grain));
    }
  }

  void wrong(std::string message) {
    if (mistakes_.empty()) mistakes_.push_back({"quantize", std::move(message)});
  }

  /// The value of the weight becomes that of its codes.
  void split(ValueId weight, std::vector<Parameter>& parameters) {
    const std::string name = graph_.value(weight).name;
    const Spec plain = graph_.value(weight).spec;
    std::vector<ValueId>& parts = parts_[weight];
    for (const Kind kind : {Kind::codes, Kind::scales, Kind::groups}) {
      if (kind == Kind::groups && as_ != Quantization::nf4) continue;
      const ValueId id = kind == Kind::codes ? weight : graph_.add_value({.name = {}, .kind = ValueKind::parameter});
      Value& value = graph_.value(id);
      value.name = fmt::format("{}.{}", name, name_of(kind));
      value.spec = Spec(DType::u8, shape_of(kind, as_, plain.whole[0], plain.whole[1]));
      const bool of_rows = kind == Kind::scales && as_ == Quantization::int8;
      for (const Cut& cut : plain.cuts())
        if (!of_rows || cut.as.is_shard(0)) value.spec.place(cut.axis, cut.as);
      parts.push_back(id);
      parameters.push_back(
          {.value = id, .init = {.quantized = QuantizedPart{kind, as_, name, plain.whole}}, .trainable = false});
    }
  }

  void rewrite(Node& node) {
    if (node.op != Op::linear) return;
    const auto parts = parts_.find(node.inputs[1]);
    if (parts == parts_.end()) return;
    node.op = Op::quantized_linear;
    node.inputs.erase(node.inputs.begin() + 1);
    node.inputs.insert(node.inputs.begin() + 1, parts->second.begin(), parts->second.end());
    node.attributes = {{"bias", node.attributes.flag("bias")}, {"nf4", as_ == Quantization::nf4}};
  }

  Graph& graph_;
  const Quantization as_;
  std::set<ValueId> weights_;
  std::map<ValueId, std::vector<ValueId>> parts_;  ///< by weight
  std::vector<SelectionMistake> mistakes_;
};

}  // namespace

std::vector<SelectionMistake> quantize_frozen(Graph& graph, Quantization as) {
  CHECK(as != Quantization::none, "none quantizes nothing");
  return Quantizing(graph, as).run();
}

}  // namespace trainer
