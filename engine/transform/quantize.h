// Quantization: frozen matrices of linears are held in eight or four bits an element (engine/core/quantized.h). The
// node `linear` becomes `quantized_linear`, its weight the parts of the matrix, named `<weight>.codes`, `.scales` and
// `.groups`; whoever loads them takes the weight of the checkpoint and quantizes it (Init::quantized).
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/transform/selection.h"

namespace trainer {

/// Quantizes the weights of a forward graph that are frozen and that linears other than the head read, and nothing
/// else. Embeddings, the head, norms and weights that are shared with one of these stay as they are. It comes after
/// adapters and the tensor strategy, and before `distribute`: parts are cut as the weight was.
///
/// Returns what is wrong, with the key `quantize`; the graph is then of no use. REQUIRES: `as` is not none.
std::vector<SelectionMistake> quantize_frozen(Graph& graph, Quantization as);

}  // namespace trainer
