// Errors of graphs that cannot lie over their mesh as they are asked to, at the node's place in its file.
#pragma once

#include <string>

#include "engine/core/error.h"
#include "engine/graph/graph.h"

namespace trainer {

/// A mistake at the node's place in its file.
Diagnostic mistake_at(const Node& node, std::string message);

/// Throws JobError: along `axis`, and why.
[[noreturn]] void refuse(const Graph& graph, const Node& node, Axis axis, const std::string& why);

/// Of something that has to divide over the ranks of `axis`: what it is, of how many pieces, and the number that people
/// know it by; with the degrees that would do.
[[noreturn]] void refuse_uneven(const Graph& graph, const Node& node, Axis axis, const std::string& what,
                                std::int64_t pieces, std::int64_t shown);

}  // namespace trainer
