// Wrap policies: which parameters form a unit, the piece that collectives and optimizers move at once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/graph/graph.h"

namespace trainer::strategies {

using ParameterGroups = std::vector<std::vector<std::string>>;

/// Which parameters make a unit larger: what is gathered moves all of them, what only reduces gradients the trained
/// ones.
enum class Counted { all, trained };

/// Consecutive parameters until a unit has at least `min_elements`. `optimizer_of` says which optimizer has a trained
/// parameter: parameters of several are in different units, each of that size. Empty: all have the same.
ParameterGroups wrap_by_size(const Graph& graph, std::int64_t min_elements, Counted counted = Counted::all,
                             const std::function<std::int32_t(const std::string& parameter)>& optimizer_of = {});
/// One unit for each block of that kind (empty: each outermost block), one for each run of parameters between them.
/// Empty if the graph has no such block.
ParameterGroups wrap_by_block(const Graph& graph, const std::string& kind);
/// One unit for each group of nodes that matches a pattern (`*` any run of characters but a dot, `**` any); what
/// matches none goes to one last unit. A pattern that matches nothing is returned in `unmatched`.
ParameterGroups wrap_by_names(const Graph& graph, const std::vector<std::string>& patterns,
                              std::vector<std::string>& unmatched);
/// All parameters in one unit.
ParameterGroups wrap_all(const Graph& graph);

}  // namespace trainer::strategies
