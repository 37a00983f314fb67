// Kinds: the data strategies that a search tries on a mesh whose other axes are set.
#pragma once

#include <string>
#include <vector>

#include "engine/cost/search_space.h"

namespace trainer::cost {

/// `c` with each data strategy that the job allows, over `data` ranks. Where the job asks for one that cannot be so,
/// there is none, and `refused` says why.
std::vector<Candidate> kinds_over(const SearchSpace& space, const Candidate& c, int data, std::string& refused);

}  // namespace trainer::cost
