// Rows of an embedding that are trained while the rest is frozen: `trainable: ["wte.weight[40:]"]`.
//
// The table becomes a parameter for each run of rows (engine/core/rows_of.h), trained or frozen like any other, so that
// units, strategies and optimizers know nothing of it. A lookup is the sum of the lookups in the parts: an id has its
// row in one of them and is zeros in the others (kernels/embedding.h, `cut`), so the sum is exact. A tied head is a
// linear for each part, and their scores are joined; only the trained part has a gradient of its weight.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/transform/selection.h"

namespace trainer {

/// Whether an entry of `trainable` names rows: it ends with "[…]".
bool names_rows(const std::string& glob);

/// What is wrong with the entries of `trainable` that name rows, by their place in it: no embedding matches, rows that
/// are not there, a parameter that another entry trains whole, or a reader of the table that is no lookup and no linear
/// without a bias. To be called when Parameter::trainable is set by the other entries.
std::vector<SelectionMistake> check_rows(const Graph& graph, const std::vector<std::string>& trainable);

/// Cuts the tables into parts. REQUIRES: check_rows found nothing. Comes after tensor strategies and adapters (which
/// look for linears), before distribution and differentiation. Returns what is wrong: a mesh axis that cuts the rows of
/// a table, or too many runs; the graph is then of no use.
std::vector<SelectionMistake> split_rows(Graph& graph, const std::vector<std::string>& trainable);

}  // namespace trainer
