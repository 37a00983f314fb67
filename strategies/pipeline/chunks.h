// Chunks: where a forward graph is cut for a pipeline.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"

namespace trainer::strategies {

enum class SplitBy : std::uint8_t { cost, blocks };

/// The nodes that begin what is not cut: outermost blocks, and what lies between two of them.
std::vector<std::string> piece_begins(const Graph& graph);

/// What each of these pieces costs, by the measure of split_graph's `cost`.
std::vector<double> piece_costs(const Graph& graph);

/// The nodes that begin the chunks after the first. Blocks stay whole, and so does what lies between two of them;
/// `cost` makes the largest chunk's time as small as can be, `blocks` gives every chunk as many blocks as the others,
/// ±1. Empty if the graph has fewer pieces than chunks; `num_pieces` says how many.
std::vector<std::string> split_graph(const Graph& graph, int num_chunks, SplitBy by, int& num_pieces);

/// The same from a person's list of nodes and blocks: the node that each begins with. What names nothing, or stands
/// before the one before it, is returned in `wrong`.
std::vector<std::string> split_at(const Graph& graph, const std::vector<std::string>& names,
                                  std::vector<std::string>& wrong);

/// Gives every node its chunk. `begins`: of a graph with the same nodes, but for those that vanish outside training.
void assign_chunks(Graph& graph, const std::vector<std::string>& begins);

}  // namespace trainer::strategies
