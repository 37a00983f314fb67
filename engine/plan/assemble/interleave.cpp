// 1. A phase is cut behind its collectives: a piece computes and then sends. Light pieces that follow one another are
// one.
// 2. Where pieces compute in turn much and next to nothing (under sequence parallelism a norm stands between the
//    scatter of one product and the gather of the next), both collectives around the light piece have to fit beside the
//    heavy one of the other micro-batch. So a heavy piece beside a light one is cut in its middle, by FLOPs.
// 3. The micro-batches take pieces in turn. The first is one piece ahead, with halves two:
//
//      compute      a₁ a₂    b₁        s        b₂          a₁ a₂ …: halves of a heavy piece of the one micro-batch,
//      sends           └scatter─┘      └gather──┘           b₁ b₂: of the other; s: the light piece of the first
#include "engine/plan/assemble/interleave.h"

#include <algorithm>

#include "engine/core/check.h"
#include "engine/ops/op_def.h"

namespace trainer {
namespace {

struct Piece {
  std::size_t begin, end;
  double flops;
};

// Below this share of the mean FLOPs of a piece.
constexpr double kLight = 1.0 / 16;

double flops_of(const Graph& graph, NodeId id) {
  const Node& node = graph.nodes[static_cast<std::size_t>(id)];
  return graph.is_view(node) || is_collective(node.op) ? 0 : cost_of(signature_of(graph, node)).flops;
}

std::vector<Piece> cut_behind_collectives(const Graph& graph, const std::vector<NodeId>& nodes,
                                          const std::vector<double>& flops) {
  const auto sends = [&](std::size_t i) { return is_collective(graph.nodes[static_cast<std::size_t>(nodes[i])].op); };
  std::vector<Piece> pieces{{0, 0, 0}};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i > 0 && sends(i - 1) && !sends(i)) pieces.push_back({i, i, 0});
    pieces.back().end = i + 1;
    pieces.back().flops += flops[i];
  }
  return pieces;
}

// What follows a light piece and is light itself joins it.
std::vector<Piece> joined_where_light(const std::vector<Piece>& pieces, double least) {
  std::vector<Piece> joined;
  for (const Piece& piece : pieces) {
    if (!joined.empty() && joined.back().flops < least && piece.flops < least) {
      joined.back().end = piece.end;
      joined.back().flops += piece.flops;
    } else {
      joined.push_back(piece);
    }
  }
  return joined;
}

// The node of a piece before which about half of its FLOPs are done.
std::size_t middle(const Piece& piece, const std::vector<double>& flops) {
  double done = 0;
  for (std::size_t i = piece.begin; i < piece.end; ++i) {
    if (done + flops[i] / 2 > piece.flops / 2) return i;
    done += flops[i];
  }
  return piece.end;
}

}  // namespace

std::vector<Run> interleave(const Graph& graph, const std::vector<NodeId>& nodes, int together) {
  CHECK(together == 1 || together == 2, "micro-batches go alone or in pairs");
  if (together == 1) return {{0, nodes.size(), 0}};
  std::vector<double> flops;
  double all = 0;
  for (const NodeId id : nodes) all += flops.emplace_back(flops_of(graph, id));
  const std::vector<Piece> cut = cut_behind_collectives(graph, nodes, flops);
  const double least = kLight * all / static_cast<double>(cut.size());
  const std::vector<Piece> pieces = joined_where_light(cut, least);
  const auto light = [&](std::size_t i) { return i < pieces.size() && pieces[i].flops < least; };
  std::vector<std::pair<std::size_t, std::size_t>> parts;
  bool halves = false;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto [begin, end, own] = pieces[i];
    const std::size_t half = middle(pieces[i], flops);
    if (!light(i) && (light(i + 1) || (i > 0 && light(i - 1))) && half > begin && half < end) {
      parts.emplace_back(begin, half);
      parts.emplace_back(half, end);
      halves = true;
    } else {
      parts.emplace_back(begin, end);
    }
  }
  const std::size_t behind = halves ? 1 : 0;
  std::vector<Run> runs;
  for (std::size_t i = 0; i < parts.size() + behind; ++i) {
    if (i < parts.size()) runs.push_back({parts[i].first, parts[i].second, 0});
    if (i >= behind) runs.push_back({parts[i - behind].first, parts[i - behind].second, 1});
  }
  return runs;
}

}  // namespace trainer
