// Ring attention: attention whose queries, keys and values are all cut zigzag along the context axis becomes a chain of
// blocks. Sources: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
// 2023; Dao, "FlashAttention-2", 2023 (blocks joined by their lse); engine/core/zigzag.h for the order.
//
// Forward, on n ranks: block i (attention_block) takes the rank's queries and the keys and values that were shifted i
// times, and adds what they give to o and lse, in f32. The shift of the next keys and values stands before the block,
// so it runs beside it; at any time a rank holds its own keys and values and at most two parts on their way.
//
// Backward: keys and values travel once more. Block i (attention_block_grad) makes the probabilities from the lse of
// the whole row, adds to dq, which stays, and gives dk and dv of the keys that it had. Their sums follow the keys one
// block behind: the sum so far arrives while a block runs, that block's share is added, and the shift of the sum runs
// beside the next block. After n shifts they are complete and at home. Sums are f32, and rounded once.
//
// Bytes that a rank sends for a layer, with K those of its own keys and values and F those of as many f32: forward
// (n − 1)·K, backward (n − 1)·K + n·F.
#pragma once

#include "engine/graph/graph.h"

namespace trainer {

/// Rewrites such nodes, forward, recomputed and backward ones. REQUIRES: every value has its spec (distribute.h,
/// propagate_placements).
void expand_rings(Graph& graph);

}  // namespace trainer
