// Where a model is cut into chunks: pure functions over the pieces between the places where it may be cut.
#pragma once

#include <vector>

namespace trainer::strategies {

/// The first piece of each of `num_chunks` consecutive, non-empty chunks (so begins[0] = 0) such that the largest
/// chunk's sum of costs is as small as can be; among those, the sum of squares (the imbalance of the rest); among
/// those, later chunks as long as can be. REQUIRES: costs not negative, 1 ≤ num_chunks ≤ costs.size(). Time: O(pieces²
/// · chunks) at worst.
std::vector<int> split_by_cost(const std::vector<double>& costs, int num_chunks);

/// The same with equal numbers of pieces, ±1. REQUIRES: 1 ≤ num_chunks ≤ num_pieces.
std::vector<int> split_uniform(int num_pieces, int num_chunks);

}  // namespace trainer::strategies
