// The ops of graph files as the schema sees them.
#pragma once

#include <vector>

#include "engine/job/schema.h"

namespace trainer {

/// Every op a graph file may name, with the attributes that engine/ops declares.
std::vector<GraphOp> graph_ops();

}  // namespace trainer
