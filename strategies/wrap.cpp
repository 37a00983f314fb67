// Grouping of parameters, in the order in which the graph first reads them.
#include "strategies/wrap.h"

#include <limits>
#include <map>
#include <unordered_map>

#include "engine/core/glob.h"

namespace trainer::strategies {
namespace {

const std::string& name_at(const Graph& graph, const Parameter& parameter) { return graph.value(parameter.value).name; }

// The node that reads a parameter first decides where it belongs.
std::unordered_map<ValueId, const Node*> first_readers(const Graph& graph) {
  std::unordered_map<ValueId, const Node*> readers;
  for (const Node& node : graph.nodes)
    for (ValueId input : node.inputs)
      if (graph.value(input).kind == ValueKind::parameter) readers.try_emplace(input, &node);
  return readers;
}

}  // namespace

ParameterGroups wrap_by_size(const Graph& graph, std::int64_t min_elements, Counted counted,
                             const std::function<std::int32_t(const std::string& parameter)>& optimizer_of) {
  struct Open {
    std::size_t group = 0;
    std::int64_t elements = std::numeric_limits<std::int64_t>::max();  // full
  };
  ParameterGroups groups;
  std::map<std::int32_t, Open> open;  // of each optimizer
  std::int32_t optimizer = 0;         // a frozen parameter goes with those before it
  for (const Parameter& parameter : graph.parameters) {
    if (parameter.trainable && optimizer_of) optimizer = optimizer_of(name_at(graph, parameter));
    Open& unit = open[optimizer];
    if (unit.elements >= min_elements) {
      unit = {groups.size(), 0};
      groups.emplace_back();
    }
    groups[unit.group].push_back(name_at(graph, parameter));
    if (counted == Counted::all || parameter.trainable) unit.elements += graph.local_shape(parameter.value).elements();
  }
  return groups;
}

ParameterGroups wrap_by_block(const Graph& graph, const std::string& kind) {
  const auto readers = first_readers(graph);
  ParameterGroups groups;
  std::int32_t current = -2;
  bool any = false;
  for (const Parameter& parameter : graph.parameters) {
    const auto reader = readers.find(parameter.value);
    std::int32_t block = reader == readers.end() ? kNone : reader->second->block;
    const auto wanted = [&](const Block& one) { return kind.empty() ? one.parent == kNone : one.kind == kind; };
    while (block != kNone && !wanted(graph.blocks[static_cast<std::size_t>(block)]))
      block = graph.blocks[static_cast<std::size_t>(block)].parent;
    any = any || block != kNone;
    if (block != current) groups.emplace_back();
    current = block;
    groups.back().push_back(name_at(graph, parameter));
  }
  return any ? groups : ParameterGroups{};
}

ParameterGroups wrap_by_names(const Graph& graph, const std::vector<std::string>& patterns,
                              std::vector<std::string>& unmatched) {
  const auto readers = first_readers(graph);
  ParameterGroups groups(patterns.size() + 1);
  for (const Parameter& parameter : graph.parameters) {
    const auto reader = readers.find(parameter.value);
    std::size_t group = patterns.size();
    for (std::size_t i = 0; i < patterns.size() && group == patterns.size(); ++i)
      if (reader != readers.end() && glob_matches(patterns[i], reader->second->name)) group = i;
    groups[group].push_back(name_at(graph, parameter));
  }
  for (std::size_t i = 0; i < patterns.size(); ++i)
    if (groups[i].empty()) unmatched.push_back(patterns[i]);
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  return groups;
}

ParameterGroups wrap_all(const Graph& graph) {
  ParameterGroups groups(1);
  for (const Parameter& parameter : graph.parameters) groups[0].push_back(name_at(graph, parameter));
  return groups;
}

}  // namespace trainer::strategies
