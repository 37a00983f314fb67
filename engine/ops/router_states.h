// The states of a graph that its routers share. Neither stays from step to step: the plan writes them before the first
// pass.
#pragma once

#include <string_view>

namespace trainer {

/// f32 [1]: the slope of the objective with respect to the routers' losses of one sample.
inline constexpr std::string_view kRouterSeed = "router_seed";
/// f64 [2]: the sum of those losses so far, and how many choices were left out.
inline constexpr std::string_view kRouterSums = "router_sums";

}  // namespace trainer
