// How an error of placement is worded.
#include "engine/ops/refuse.h"

#include <algorithm>
#include <utility>

namespace trainer {

Diagnostic mistake_at(const Node& node, std::string message) {
  Diagnostic mistake;
  mistake.file = node.origin.file;
  mistake.line = node.origin.line;
  mistake.column = node.origin.column;
  mistake.path = node.name;
  mistake.message = std::move(message);
  return mistake;
}

void refuse(const Graph& graph, const Node& node, Axis axis, const std::string& why) {
  throw JobError({mistake_at(node, "parallelism along the axis " + std::string(name_of(axis)) + " of " +
                                       std::to_string(graph.mesh.size(axis)) + " ranks: " + why)});
}

void refuse_uneven(const Graph& graph, const Node& node, Axis axis, const std::string& what, std::int64_t pieces,
                   std::int64_t shown) {
  std::string degrees;
  for (std::int64_t degree = 1; degree <= std::min<std::int64_t>(pieces, 64); ++degree)
    if (pieces % degree == 0) degrees += (degrees.empty() ? "" : ", ") + std::to_string(degree);
  refuse(graph, node, axis,
         what + " (" + std::to_string(shown) + ") cannot be split evenly over " +
             std::to_string(graph.mesh.size(axis)) + " ranks; degrees that work: " + degrees);
}

}  // namespace trainer
