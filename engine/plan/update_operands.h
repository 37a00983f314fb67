// What ops of an optimizer take of a unit: its states, and its matrices where an op reads them whole.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/matrix_list.h"
#include "engine/plan/plan.h"

namespace trainer {

/// Some elements of a rank's slice of the unit's flat order, [first, last), in one of its buffers whose elements have
/// so many bytes.
Region part_of(const Region& region, const ElementRange& elements, std::int64_t width);

/// The states of a unit that have this name, or all of them, as kernels take them: each followed by its scales where it
/// has any. `elements`: of these of the rank's slice, which begin at a multiple of each state's block; none: of all.
std::vector<std::pair<TensorDesc, Region>> state_operands(const Unit& unit, std::string_view name = {},
                                                          std::optional<ElementRange> elements = {});

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
