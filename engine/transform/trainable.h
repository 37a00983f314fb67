// trainable: which of a model's own parameters a job trains. The others are frozen (Parameter::trainable).
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/transform/selection.h"

namespace trainer {

struct Trainable {
  enum class Mode {
    all,      ///< but for those that the graph fixes
    adapter,  ///< none of them: what is trained is added afterwards (adapter.h)
    globs,  ///< those whose whole name one of `globs` takes; of those with "[…]" behind the name rows (trained_rows.h)
  } mode = Mode::all;
  std::vector<std::string> globs{};
};

/// Sets Parameter::trainable of every parameter of a forward graph. Returns what is wrong with the globs; the graph is
/// then of no use. Adapters come after it, so that theirs are neither counted nor frozen.
std::vector<SelectionMistake> set_trainable(Graph& graph, const Trainable& trainable);

}  // namespace trainer
