// How parameters are frozen.
#include "engine/transform/trainable.h"

#include <fmt/format.h>

#include "engine/transform/trained_rows.h"

namespace trainer {

std::vector<SelectionMistake> set_trainable(Graph& graph, const Trainable& trainable) {
  if (trainable.mode != Trainable::Mode::globs) {
    for (Parameter& parameter : graph.parameters)
      parameter.trainable = trainable.mode == Trainable::Mode::all && !parameter.fixed;
    return {};
  }
  std::vector<SelectionMistake> mistakes;
  if (trainable.globs.empty()) mistakes.push_back({"", "an empty list trains nothing"});
  std::vector<std::string_view> names;
  for (const Parameter& parameter : graph.parameters) names.push_back(graph.value(parameter.value).name);
  for (Parameter& parameter : graph.parameters) parameter.trainable = false;
  for (std::size_t i = 0; i < trainable.globs.size(); ++i) {
    if (names_rows(trainable.globs[i])) continue;
    std::vector<SelectionMistake> found;
    const std::vector<bool> selected =
        select(std::span(&trainable.globs[i], 1), names, "parameter of the model", "", found);
    for (std::size_t k = 0; k < selected.size(); ++k)
      if (selected[k]) graph.parameters[k].trainable = true;
    for (SelectionMistake& mistake : found) {
      mistake.key = fmt::format("[{}]", i);
      mistakes.push_back(std::move(mistake));
    }
  }
  for (SelectionMistake& mistake : check_rows(graph, trainable.globs)) mistakes.push_back(std::move(mistake));
  return mistakes;
}

}  // namespace trainer
