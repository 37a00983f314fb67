// What of a unit Muon updates: which of its elements are matrices, who orthogonalizes each, and what ranks give each other for it.
#pragma once

#include <vector>

#include "engine/core/muon.h"
#include "engine/plan/plan.h"

namespace trainer {

/// The axes over which the matrices of a unit are put together: those that slice its states, and the tensor axis where it cuts one
/// of them. The ranks along them share the work.
Axes muon_axes(const Unit& unit, const Mesh& mesh);

/// The unit's matrices, in order. The pieces of one that the tensor axis cuts are put together in the order of the ranks: of rows or
/// columns in another order the orthogonal factor is the same in that order, so packed q, k and v need no care.
std::vector<MuonMatrix> matrices_of(const Unit& unit, const Mesh& mesh);

/// Gives each matrix an owner: the largest first, each to the owner with the least work. `flops` is the work of each owner so far, and is
/// added to.
void share_out(std::vector<MuonMatrix>& matrices, std::int64_t parts, std::int64_t steps, std::vector<double>& flops);

}  // namespace trainer
