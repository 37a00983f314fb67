// How parameters are frozen.
#include "engine/transform/trainable.h"

#include <fmt/format.h>

namespace trainer {
namespace {

/// "model.embed_tokens.weight[128000:]": rows of a parameter.
bool names_rows(const std::string& glob) { return glob.ends_with(']') && glob.find('[') != std::string::npos; }

}  // namespace

std::vector<SelectionMistake> set_trainable(Graph& graph, const Trainable& trainable) {
  if (trainable.mode != Trainable::Mode::globs) {
    for (Parameter& parameter : graph.parameters)
      parameter.trainable = trainable.mode == Trainable::Mode::all && !parameter.fixed;
    return {};
  }
  std::vector<SelectionMistake> mistakes;
  for (std::size_t i = 0; i < trainable.globs.size(); ++i)
    if (const std::string& glob = trainable.globs[i]; names_rows(glob))
      mistakes.push_back({fmt::format("[{}]", i),
                          "rows of a parameter cannot be trained by themselves yet: name the whole parameter",
                          glob.substr(0, glob.find('['))});
  if (trainable.globs.empty()) mistakes.push_back({"", "an empty list trains nothing"});
  if (!mistakes.empty()) return mistakes;
  std::vector<std::string_view> names;
  for (const Parameter& parameter : graph.parameters) names.push_back(graph.value(parameter.value).name);
  const std::vector<bool> selected = select(trainable.globs, names, "parameter of the model", "", mistakes);
  for (std::size_t i = 0; i < selected.size(); ++i) graph.parameters[i].trainable = selected[i];
  return mistakes;
}

}  // namespace trainer
