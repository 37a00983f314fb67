// What ops of an optimizer take of a unit: its states, and its matrices where an op reads them whole.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/matrix_list.h"
#include "engine/plan/plan.h"

namespace trainer {

/// The states of a unit that have this name, or all of them, as kernels take them: each followed by its scales where it
/// has any.
std::vector<std::pair<TensorDesc, Region>> state_operands(const Unit& unit, std::string_view name = {});

/// The axes over which the matrices of a unit are put together: those that slice its states, and the tensor axis where
/// it cuts one of them. The ranks along them share the work.
Axes matrix_axes(const Unit& unit, const Mesh& mesh);

/// The unit's matrices, in order, which the first rank owns. The pieces of one that the tensor axis cuts are put
/// together in the order of the ranks, which may be another order of rows than on one rank (packed q, k and v): an op
/// of whole matrices does not depend on it. REQUIRES: each tensor of the unit is a matrix.
std::vector<OwnedMatrix> matrices_of(const Unit& unit, const Mesh& mesh);

/// Gives an op its attribute `matrices`: those of the unit, each with an owner; the largest first, each to the owner
/// with the least work, which the op's cost says. `work` is that of each owner so far, and is added to.
void share_out(const Unit& unit, const Mesh& mesh, Signature& op, std::vector<double>& work);

}  // namespace trainer
