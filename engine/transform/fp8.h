// fp8: which linears multiply in eight bits (precision.matmul: fp8): those in blocks, forward and both gradients. The
// head, embeddings, routers and the two matrices of an adapter stay in the compute dtype. A node says it by its
// attribute `fp8`; what is quantized, and when, is its kernel's.
#pragma once

#include <string>
#include <vector>

#include "engine/core/fp8.h"
#include "engine/graph/graph.h"

namespace trainer {

/// Marks them in a graph that is distributed, and differentiated where it trains. Returns what is wrong: linears whose
/// rows, inputs or outputs on a rank are no multiples of what the scales need, or that there are none.
/// REQUIRES: `scales` is not none.
std::vector<std::string> use_fp8(Graph& graph, Fp8Scales scales);

}  // namespace trainer
