// Where the positions of a sequence meet. Most ops work on each position by itself, and then a part of a sequence has
// the values that it has in the whole: text can be generated token by token, and documents of a row stay apart. Which
// ops do follows from their own sharding rules: a dim that may be cut over ranks holds independent parts.
#pragma once

#include <functional>

#include "engine/graph/graph.h"

namespace trainer {

/// The first node at which positions meet, other than in nodes that `joins` accepts; null: there is none. Sequences are
/// dim 1 of the inputs.
const Node* where_positions_meet(const Graph& graph, const std::function<bool(const Node&)>& joins);

}  // namespace trainer
