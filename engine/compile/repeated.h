// Repeated pieces: most of a deep model is the same block again and again. What a piece costs is found on a model of a
// few of them.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"

namespace trainer {

/// The piece that stands for each piece of a graph: itself, or one that is its like. `begins`: names of the nodes that
/// begin the pieces of a forward graph, in order. In a run of pieces that do the same with what the piece before made,
/// all but the first two and the last two are the second again: what lies at a border may be fused with it. Where
/// several kinds of pieces take turns the same holds of whole periods, of which the first two stay, and at the end two
/// pieces or more. Only blocks repeat: a graph is read without them by their names (BuildOptions::stand_ins).
std::vector<int> stand_ins_of(const Graph& graph, const std::vector<std::string>& begins);

}  // namespace trainer
