// How a graph is cut: into pieces that no pipeline cuts, which are then distributed over the chunks.
#include "strategies/pipeline/chunks.h"

#include <algorithm>

#include "engine/ops/op_def.h"
#include "strategies/pipeline/split.h"

namespace trainer::strategies {
namespace {

// A run of nodes that is not cut: an outermost block, or the nodes between two of them.
struct Piece {
  std::size_t first;
  bool block;
  double cost = 0;
};

// What a byte moved weighs in products: processors of all kinds make some tens of FLOPs in the time of one.
constexpr double kFlopsPerByte = 30;

double weight(const Graph& graph, const Node& node) {
  const Cost cost = cost_of(signature_of(graph, node));
  return cost.flops + kFlopsPerByte * (cost.bytes_read + cost.bytes_written);
}

std::vector<Piece> pieces_of(const Graph& graph) {
  std::vector<Piece> pieces;
  std::int32_t current = -2;
  const bool blocks = !graph.blocks.empty();
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const std::int32_t block = graph.outermost(node.block);
    const OpDef& def = definition(node.op);
    // Without blocks every node is a piece, but a loss stays with what it judges, and dropout, which evaluation lacks,
    // with what it drops. A batch norm, several nodes in training, is one piece.
    const bool begins = blocks ? block != current
                               : !def.loss && !has(node.op, Trait::random) && !graph.is_view(node) &&
                                     node.op != Op::batch_norm_apply && node.op != Op::batch_norm_update;
    if (begins || pieces.empty()) pieces.push_back({i, block != kNone});
    current = block;
    pieces.back().cost += weight(graph, node);
  }
  return pieces;
}

}  // namespace

std::vector<std::string> piece_begins(const Graph& graph) {
  std::vector<std::string> names;
  for (const Piece& piece : pieces_of(graph)) names.push_back(graph.nodes[piece.first].name);
  return names;
}

std::vector<double> piece_costs(const Graph& graph) {
  std::vector<double> costs;
  for (const Piece& piece : pieces_of(graph)) costs.push_back(piece.cost);
  return costs;
}

std::vector<std::string> split_graph(const Graph& graph, int num_chunks, SplitBy by, int& num_pieces) {
  std::vector<Piece> pieces = pieces_of(graph);
  if (by == SplitBy::blocks &&
      !graph.blocks.empty()) {  // what lies around blocks goes with the one before it, or with the first
    std::vector<Piece> blocks;
    for (const Piece& piece : pieces)
      if (piece.block) blocks.push_back(piece);
    pieces = std::move(blocks);
  }
  num_pieces = static_cast<int>(pieces.size());
  if (num_pieces < num_chunks) return {};
  std::vector<double> costs;
  for (const Piece& piece : pieces) costs.push_back(piece.cost);
  const std::vector<int> begins =
      by == SplitBy::cost ? split_by_cost(costs, num_chunks) : split_uniform(num_pieces, num_chunks);
  std::vector<std::string> names;
  for (std::size_t chunk = 1; chunk < begins.size(); ++chunk)
    names.push_back(graph.nodes[pieces[static_cast<std::size_t>(begins[chunk])].first].name);
  return names;
}

std::vector<std::string> split_at(const Graph& graph, const std::vector<std::string>& names,
                                  std::vector<std::string>& wrong) {
  std::vector<std::string> begins;
  std::size_t last = 0;
  for (const std::string& name : names) {
    const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
      for (std::int32_t block = node.block; block != kNone;
           block = graph.blocks[static_cast<std::size_t>(block)].parent)
        if (graph.blocks[static_cast<std::size_t>(block)].name == name) return true;
      return node.name == name;
    });
    const auto at = static_cast<std::size_t>(found - graph.nodes.begin());
    if (found == graph.nodes.end() || at <= last) {
      wrong.push_back(name);
      continue;
    }
    last = at;
    begins.push_back(found->name);
  }
  return begins;
}

void assign_chunks(Graph& graph, const std::vector<std::string>& begins) {
  std::size_t chunk = 0;
  for (Node& node : graph.nodes) {
    if (chunk < begins.size() && node.name == begins[chunk]) ++chunk;
    node.chunk = static_cast<std::int32_t>(chunk);
  }
}

}  // namespace trainer::strategies
