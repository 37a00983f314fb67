// LoRA: a linear y = W·x + b becomes y = W·x + b + B·(s·(A·d(x))), with A [rank, in] and B [out, rank] trained, W and b
// as `trainable` left them, d dropout, and s = alpha / rank, or alpha / √rank. The scale stands before B, where it is
// smallest. DoRA (`magnitude`) also trains the norms of rows, m [out]: y = (m / n) ∘ (W·x + s·B·A·x) + b, where n are
// the norms of the rows of W + s·B·A, constants to the gradient. Its dropout is that of peft 0.21: of all that m
// scales, y = W·x + b + (m / n − 1) ∘ W·d(x) + (m / n) ∘ s·B·A·d(x). Sources: Hu et al., "LoRA", 2021; Kalajdzievski,
// "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA", 2023; Liu et al., "DoRA: Weight-Decomposed Low-Rank
// Adaptation", 2024.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/transform/selection.h"
#include "engine/transform/transform.h"

namespace trainer {

struct Lora {
  std::int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  std::vector<std::string>
      targets{};  ///< globs over nodes, or ends of their names (`q_proj`); empty: every linear but the head
  bool scaled_by_root = false;
  bool magnitude = false;
};

/// The linear whose result becomes the loss's scores (or the logits of a graph without a loss) by elementwise ops
/// alone, and nothing else reads; kNone if there is none.
NodeId head_of(const Graph& graph);

/// Adds the adapter to a forward graph as read_graph made it for `options`: dropout in Mode::train alone. The nodes of
/// a target, `<node>.lora_dropout`, `.lora_A`, `.lora_scale`, `.lora_B`, `.lora_add` and with `magnitude` more, follow
/// it, in its block and chunk; the last writes the value that the target wrote, so that all who read it, and the
/// outputs of the graph, read the sum. Its parameters `<node>.lora_A.weight` (uniform in ±1/√in) and
/// `<node>.lora_B.weight` (zeros) are trainable, in the dtype of the target's weight. With `magnitude` there is
/// `<node>.lora_magnitude_vector`, at first the norms of W's rows; the bias, if there is one, is then added apart, or
/// where something drops W is multiplied once more.
///
/// A mesh axis that cuts the rows of W cuts those of B, one that cuts its columns cuts those of A; the other is whole.
/// So a tensor strategy comes before, and `distribute` after it: of a column-parallel target the result of A enters the
/// ranks' parts, of a row-parallel one it is a partial sum that B and the addition carry on to the sum over the ranks
/// which the target needs anyway.
///
/// Returns what is wrong, with keys `targets`, `targets[i]` and `dropout`; the graph is then unchanged. REQUIRES: rank
/// at least 1, dropout in [0, 1).
std::vector<SelectionMistake> add_lora(Graph& graph, const Lora& lora, const BuildOptions& options);

}  // namespace trainer
