// The states of a graph that its routers have. The plan writes those that do not stay from step to step before the
// first pass.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/op_record.h"
#include "engine/graph/graph.h"

namespace trainer {

/// f32 [1]: the slope of the objective with respect to the routers' losses of one sample.
inline constexpr std::string_view kRouterSeed = "router_seed";
/// f64 [2]: the sum of those losses so far, and how many choices were left out.
inline constexpr std::string_view kRouterSums = "router_sums";

// Of a router with `balance: bias`, behind its name and a dot:
/// f32 [experts]: what is added to the scores that it chooses by. It belongs to the model.
inline constexpr std::string_view kBalanceBias = "e_score_correction_bias";
/// f64 [experts]: how many choices of the step so far are each expert; there where the bias moves.
inline constexpr std::string_view kExpertCounts = "expert_counts";

inline std::string bias_of_router(const std::string& router) { return router + "." + std::string(kBalanceBias); }
inline std::string counts_of_router(const std::string& router) { return router + "." + std::string(kExpertCounts); }
/// Whether a tensor of a model is the bias of a router.
inline bool is_router_bias(std::string_view name) { return name.ends_with(bias_of_router("")); }

/// Whether a node counts the choices of a router whose bias moves. It has the name of the router.
inline bool counts_choices(const Node& node) { return node.op == Op::router_losses && flag(node, "counts"); }

}  // namespace trainer
