// cached: a graph that computes a whole sequence becomes one that computes its newest tokens, with the keys and values
// of those before in states of the graph. Graphs of several numbers of tokens share their states: one for blocks of a
// prompt, one for single tokens.
#pragma once

#include "engine/graph/graph.h"

namespace trainer {

/// The input of the new tokens.
inline constexpr const char* kNewest = "newest";

/// `newest` is read for the new tokens, `whole`, of the same file, for as many as the states are to have room for; what
/// follows from the length of a sequence (scaled rotary positions, windows) follows from that of the whole.
///
/// Causal attention becomes attention_cached, learned positions begin at Graph::position. Of several tokens one is
/// asked for logits: the input "last", i32 [1], says which, and Graph::logits is of it alone. The input of tokens is
/// called kNewest, so that it has a field of its own beside those of a step. Throws JobError, at the node's place in
/// its file, where positions meet in anything but causal attention. REQUIRES: one sample.
Graph cached(Graph newest, const Graph& whole);

}  // namespace trainer
