// Attention of packed q, k and v as one of three operands, for passes that give the three different ways.
#pragma once

#include "engine/graph/graph.h"

namespace trainer {

/// The split that goes before `attention`, a node of `graph` whose inputs become its outputs. REQUIRES: it is packed.
Node unpack_attention(Graph& graph, Node& attention);

}  // namespace trainer
