// Direct preference optimization as a rewrite of the graph: beside the model that is trained, the policy, stands the
// model as it started, the reference, and the loss is that of their log-probabilities of pairs of sequences. Rows 2i
// and 2i + 1 of the batch are the chosen and the rejected sequence of pair i. Source: Rafailov et al., "Direct
// Preference Optimization: Your Language Model is Secretly a Reward Model", 2023, equation 7; kernels/preference.h has
// the formulas.
//
// The reference reads the policy's own frozen parameters. Of a parameter that training changes it has a copy,
// `reference.<name>`, frozen, which starts as that parameter does (Init::copy_of). It has no adapter and no dropout,
// and what it computes from the same values in the same way as the policy is computed once. No gradient reaches it, so
// nothing of it is kept for the backward pass. Its nodes, `reference.<node>`, stand behind the first node of the
// policy's run in the same block and chunk: parameters are gathered once for both, and the reference's logits are gone
// before the policy's are made.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"

namespace trainer {

/// Begins the names of the reference's nodes, values and parameters.
inline constexpr std::string_view kReferencePrefix = "reference.";

/// Rewrites a forward graph with a loss. `model`: its nodes before an adapter was added. `trained`: by value, the
/// parameters of the model that training changes. The loss then counts pairs, and Loss::figures are rewards_chosen,
/// rewards_rejected and rewards_accuracy. Returns what is wrong with the graph, which is then unchanged.
std::optional<std::string> add_dpo(Graph& graph, const std::vector<Node>& model, const std::vector<bool>& trained,
                                   double beta);

}  // namespace trainer
