// Phases: the nodes that an action of a schedule stands for, and what happens to units on the way.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/plan/assemble/cut_graph.h"

namespace trainer {

/// What one action runs. Of node i of `nodes`: the units first read by it, last read by it, and those whose last
/// gradient of the pass it computes. Units are indices, in rising order.
struct Phase {
  std::vector<NodeId> nodes;
  std::vector<std::vector<std::size_t>> opens, closes, completes;
};

/// Phases of a chunk by kind of action. `unit_of` gives the unit of a parameter by name.
std::map<Action::Kind, Phase> phases_of(const CutGraph& cut, int chunk,
                                        const std::function<std::size_t(const std::string&)>& unit_of);

}  // namespace trainer
