// One pass over the graph for who reads what, then the groups are split and laid out.
#include "engine/plan/assemble/units.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <unordered_map>

#include "engine/core/check.h"

namespace trainer {
namespace {

struct ParameterUse {
  const Parameter* parameter = nullptr;
  std::set<int> chunks;
  Axes partial;  // the axes of the graph along which its gradients are sums
};

// Where a parameter stands in its unit: those that decay first; among them, and mirrored among the others, what is cut,
// what all ranks have alike and of that what has a partial gradient. So each of these is one run.
constexpr int kPlaces = 6;
int place_of(const Spec& spec, const ParameterUse& use, bool decays) {
  const int lies = spec.is_cut(Axis::tensor) ? 0 : use.partial.empty() ? 1 : 2;
  return decays ? lies : kPlaces - 1 - lies;
}

// A block of a state is of one tensor, and of one slice: so what the block holds, and how it is rounded, depends
// neither on which parameters form a unit nor on the number of ranks that have slices of it.
std::int64_t tensor_alignment(const OptimizerSpec& optimizer) {
  std::int64_t alignment = kTensorAlignment;
  for (const StateSpec& state : optimizer.states())
    if (state.format.block != 0) alignment = std::lcm(alignment, std::int64_t{state.format.block});
  return alignment;
}

std::unordered_map<std::string, ParameterUse> uses_of(const Graph& graph) {
  std::unordered_map<ValueId, ParameterUse> by_value;
  for (const Parameter& parameter : graph.parameters) by_value[parameter.value].parameter = &parameter;
  for (const Node& node : graph.nodes)
    for (ValueId input : node.inputs)
      if (const auto found = by_value.find(input); found != by_value.end()) found->second.chunks.insert(node.chunk);
  for (const Value& value : graph.values)
    if (value.kind == ValueKind::gradient) {
      ParameterUse& use = by_value.at(value.parameter);
      use.partial = use.partial | (graph.mesh.active(value.spec.partial) - kTokenAxes);
    }
  std::unordered_map<std::string, ParameterUse> by_name;
  for (auto& [id, use] : by_value) by_name[graph.value(id).name] = std::move(use);
  return by_name;
}

class UnitLayouter {
 public:
  UnitLayouter(const Graph& graph, const AssembleOptions& options)
      : graph_(graph), options_(options), uses_(uses_of(graph)), units_(options.schedule.stages.size()) {}

  std::vector<std::vector<Unit>> run() {
    std::size_t num_names = 0;
    for (std::size_t group = 0; group < options_.groups.size(); ++group) {
      num_names += options_.groups[group].size();
      split(group);
    }
    CHECK(num_names == uses_.size(), "every parameter belongs to one group");
    return std::move(units_);
  }

 private:
  void split(std::size_t group) {
    std::map<std::tuple<std::set<int>, DType, std::int32_t, bool, bool>, std::vector<std::string>> parts;
    for (const std::string& name : options_.groups[group]) {
      const auto found = uses_.find(name);
      CHECK(found != uses_.end(), "a group names parameter " + name + ", which the graph lacks");
      const std::int32_t optimizer = !found->second.parameter->trainable ? -1
                                     : options_.optimizer_of             ? options_.optimizer_of(name)
                                                                         : 0;
      const Spec& spec = graph_.value(found->second.parameter->value).spec;
      const bool apart = options_.cut_apart && spec.is_cut(Axis::tensor);
      parts[{found->second.chunks, spec.dtype(), optimizer, spec.is_cut(Axis::expert), apart}].push_back(name);
    }
    int index = 0;
    for (const auto& [key, names] : parts) {
      const std::string suffix = parts.size() == 1 ? "" : "." + std::to_string(index);
      ++index;
      std::set<std::int32_t> stages;
      for (int chunk : std::get<0>(key))
        stages.insert(options_.schedule.stage_of_chunk[static_cast<std::size_t>(chunk)]);
      Unit unit;
      unit.name = "unit." + std::to_string(group) + suffix;
      unit.compute = std::get<DType>(key);
      unit.optimizer = std::get<std::int32_t>(key);
      unit.across_replicas = options_.data->layout().across_replicas;
      if (stages.size() > 1) unit.stages.assign(stages.begin(), stages.end());
      place(unit, names);
      for (std::int32_t stage : stages) units_[static_cast<std::size_t>(stage)].push_back(unit);
    }
  }

  void place(Unit& unit, const std::vector<std::string>& names) const {
    const OptimizerSpec& optimizer = options_.optimizers[static_cast<std::size_t>(std::max(0, unit.optimizer))];
    const std::int64_t alignment =
        std::lcm(options_.tensor_alignment,
                 unit.trained() ? tensor_alignment(optimizer)
                                : std::max(kTensorAlignment, kOperandAlignment / size_of(unit.compute)));
    for (int place = 0; place < kPlaces; ++place) {
      for (const std::string& name : names) {
        const ParameterUse& use = uses_.at(name);
        const Spec& spec = graph_.value(use.parameter->value).spec;
        const bool decays = optimizer.decay_all || spec.whole.rank() >= 2;
        if (place_of(spec, use, decays) != place) continue;
        const std::int64_t elements = local_shape(spec, graph_.mesh).elements();
        unit.tensors.push_back({name, spec, unit.elements, elements, use.parameter->init, use.partial});
        unit.elements = round_up(unit.elements + elements, alignment);
      }
      if (place < kPlaces / 2) unit.decay_elements = unit.elements;
    }
    const std::int64_t shards = options_.mesh.group_size(unit.slice_axes());
    unit.elements =
        round_up(unit.elements, shards == 1 ? alignment : std::lcm(options_.slice_alignment, alignment) * shards);
  }

  const Graph& graph_;
  const AssembleOptions& options_;
  const std::unordered_map<std::string, ParameterUse> uses_;
  std::vector<std::vector<Unit>> units_;  // of each stage
};

}  // namespace

std::vector<std::vector<Unit>> layout_units(const Graph& graph, const AssembleOptions& options) {
  return UnitLayouter(graph, options).run();
}

}  // namespace trainer
