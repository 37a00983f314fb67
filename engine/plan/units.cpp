// One pass over the graph for who reads what, then the groups are split and laid out.
#include "engine/plan/units.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "engine/core/check.h"

namespace trainer {
namespace {

struct ParameterUse {
  const Parameter* parameter = nullptr;
  std::set<int> chunks;
  bool cut = false;      // along the tensor axis
  bool partial = false;  // its gradients are sums over the tensor axis
};

// Where a parameter lies in its unit: decay before none, and within those such that `replicated` and `partial` are extents.
enum class Segment : std::uint8_t { decay_cut, decay_replicated, decay_partial, partial, replicated, cut };

Segment segment_of(const ParameterUse& use, bool decays) {
  if (use.cut) return decays ? Segment::decay_cut : Segment::cut;
  if (use.partial) return decays ? Segment::decay_partial : Segment::partial;
  return decays ? Segment::decay_replicated : Segment::replicated;
}

bool is_partial(Segment segment) { return segment == Segment::decay_partial || segment == Segment::partial; }
bool is_replicated(Segment segment) { return segment != Segment::decay_cut && segment != Segment::cut; }

std::unordered_map<std::string, ParameterUse> uses_of(const Graph& graph) {
  std::unordered_map<ValueId, ParameterUse> by_value;
  for (const Parameter& parameter : graph.parameters) {
    ParameterUse& use = by_value[parameter.value];
    use.parameter = &parameter;
    use.cut = graph.value(parameter.value).spec.is_cut(Axis::tensor);
  }
  for (const Node& node : graph.nodes)
    for (ValueId input : node.inputs) {
      const auto found = by_value.find(input);
      if (found == by_value.end()) continue;
      found->second.chunks.insert(node.chunk);
    }
  for (const Value& value : graph.values)
    if (value.kind == ValueKind::gradient && value.spec.partial.has(Axis::tensor)) by_value.at(value.parameter).partial = true;
  std::unordered_map<std::string, ParameterUse> by_name;
  for (auto& [id, use] : by_value) by_name[graph.value(id).name] = std::move(use);
  return by_name;
}

void add(Extent& extent, std::int64_t first, std::int64_t last) {
  CHECK(extent.size() == 0 || extent.last == first, "segments of one kind are neighbours");
  if (extent.size() == 0) extent.first = first;
  extent.last = last;
}

class UnitLayouter {
 public:
  UnitLayouter(const Graph& graph, const AssembleOptions& options) : graph_(graph), options_(options), uses_(uses_of(graph)), units_(options.schedule.stages.size()) {}

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
    std::map<std::pair<std::set<int>, DType>, std::vector<std::string>> parts;
    for (const std::string& name : options_.groups[group]) {
      const auto found = uses_.find(name);
      CHECK(found != uses_.end(), "a group names parameter " + name + ", which the graph lacks");
      parts[{found->second.chunks, graph_.value(found->second.parameter->value).dtype()}].push_back(name);
    }
    int index = 0;
    for (const auto& [key, names] : parts) {
      const std::string suffix = parts.size() == 1 ? "" : "." + std::to_string(index);
      ++index;
      std::set<std::int32_t> stages;
      for (int chunk : key.first) stages.insert(options_.schedule.stage_of_chunk[static_cast<std::size_t>(chunk)]);
      Unit unit;
      unit.name = "unit." + std::to_string(group) + suffix;
      unit.compute = key.second;
      if (stages.size() > 1) unit.stages.assign(stages.begin(), stages.end());
      place(unit, names);
      for (std::int32_t stage : stages) units_[static_cast<std::size_t>(stage)].push_back(unit);
    }
  }

  void place(Unit& unit, const std::vector<std::string>& names) const {
    for (const Segment segment : {Segment::decay_cut, Segment::decay_replicated, Segment::decay_partial, Segment::partial, Segment::replicated, Segment::cut}) {
      for (const std::string& name : names) {
        const ParameterUse& use = uses_.at(name);
        const Parameter& parameter = *use.parameter;
        const Spec& spec = graph_.value(parameter.value).spec;
        const bool decays = options_.optimizer.decay_all || spec.whole.rank() >= 2;
        if (segment_of(use, decays) != segment) continue;
        const Shape shape = local_shape(spec, graph_.mesh);
        const std::int64_t end = unit.elements + aligned_elements(shape.elements());
        unit.tensors.push_back({name, shape, unit.elements, parameter.init, spec.on(Axis::tensor), spec.whole});
        if (is_replicated(segment)) add(unit.replicated, unit.elements, end);
        if (is_partial(segment)) add(unit.partial, unit.elements, end);
        unit.elements = end;
      }
      if (segment <= Segment::decay_partial) unit.decay_elements = unit.elements;
    }
    const int shards = options_.mesh.size(Axis::shard);
    const std::int64_t step = shards == 1 ? kTensorAlignment : options_.slice_alignment * shards;
    unit.elements = (unit.elements + step - 1) / step * step;
  }

  const Graph& graph_;
  const AssembleOptions& options_;
  const std::unordered_map<std::string, ParameterUse> uses_;
  std::vector<std::vector<Unit>> units_;  // of each stage
};

}  // namespace

std::vector<std::vector<Unit>> layout_units(const Graph& graph, const AssembleOptions& options) { return UnitLayouter(graph, options).run(); }

}  // namespace trainer
