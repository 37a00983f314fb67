// How parameters are assigned: by the globs of the groups, then by what muon can update.
#include "engine/compile/optimizers.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

#include "engine/compile/model_graph.h"
#include "engine/compile/trained.h"
#include "engine/core/rows_of.h"
#include "engine/transform/selection.h"

namespace trainer {
namespace {

constexpr std::size_t kUnassigned = std::numeric_limits<std::size_t>::max();

struct Entry {
  const OptimizerJob* optimizer;
  bool used = false;
};

class Assignment {
 public:
  Assignment(const LoadedJob& loaded, const Graph& graph) : loaded_(loaded), graph_(graph) {
    for (const Parameter& parameter : graph.parameters)
      if (parameter.trainable) names_.push_back(graph.value(parameter.value).name);
    for (const std::string_view name : names_) whole_names_.push_back(whole_name(name));
    entry_of_.assign(names_.size(), kUnassigned);
    frozen_ = names_.size() < graph.parameters.size();
    for (const ValueId value : matrices_of_blocks()) matrices_.insert(graph.value(value).name);
  }

  Optimizers run() {
    const TrainJob& train = loaded_.job.train;
    for (std::size_t group = 0; group < train.groups.size(); ++group) assign_group(group);
    assign(train.optimizer, "train.optimizer", unassigned());
    raise(mistakes_);
    return result();
  }

 private:
  // Weights of linears in blocks that nothing else reads. Embeddings and the head stand outside.
  std::set<ValueId> matrices_of_blocks() const {
    std::set<ValueId> inside, outside;
    for (const Node& node : graph_.nodes)
      for (std::size_t i = 0; i < node.inputs.size(); ++i)
        (node.op == Op::linear && i == 1 && node.block != kNone ? inside : outside).insert(node.inputs[i]);
    std::erase_if(inside,
                  [&](ValueId value) { return outside.contains(value) || graph_.value(value).shape().rank() != 2; });
    return inside;
  }

  std::vector<std::size_t> unassigned() const {
    std::vector<std::size_t> left;
    for (std::size_t i = 0; i < names_.size(); ++i)
      if (entry_of_[i] == kUnassigned) left.push_back(i);
    return left;
  }

  void assign_group(std::size_t group) {
    const GroupJob& job = loaded_.job.train.groups[group];
    const std::string at = fmt::format("train.groups[{}]", group);
    std::vector<SelectionMistake> wrong;
    const std::vector<bool> matched =
        select(job.match, std::vector<std::string_view>(whole_names_.begin(), whole_names_.end()),
               frozen_ ? "trained parameter" : "parameter", "match", wrong);
    for (Diagnostic& mistake : located(loaded_, at + ".", wrong)) mistakes_.push_back(std::move(mistake));
    std::vector<std::size_t> parameters = unassigned();
    std::erase_if(parameters, [&](std::size_t i) { return !matched[i]; });
    if (!parameters.empty())
      assign(job.optimizer, at + ".optimizer", parameters);
    else if (wrong.empty())
      mistakes_.push_back(loaded_.at(at, "has no effect: groups before it take every parameter that it matches"));
  }

  // Parameters given to muon that are not matrices go to its `others`.
  void assign(const OptimizerJob& optimizer, const std::string& path, const std::vector<std::size_t>& parameters) {
    const bool muon = optimizer.name == OptimizerName::muon;
    const std::size_t main = entries_.size();
    entries_.push_back({&optimizer});
    if (muon) entries_.push_back({&optimizer.others.front()});
    for (const std::size_t i : parameters) {
      entry_of_[i] = muon && !matrices_.contains(names_[i]) ? main + 1 : main;
      entries_[entry_of_[i]].used = true;
    }
    if (muon && !entries_[main].used)
      mistakes_.push_back(loaded_.at(path, "muon updates the weights of linears in blocks, and " + why_none(path)));
  }

  std::string why_none(const std::string& path) const {
    if (matrices_.empty()) return "this graph has no linear in a block";
    const bool trained = std::ranges::any_of(names_, [&](std::string_view name) { return matrices_.contains(name); });
    if (!trained) return "all of them are frozen";
    return path == "train.optimizer" ? "groups take all of them" : "this group has none that is left";
  }

  Optimizers result() const {
    Optimizers result;
    std::vector<std::int32_t> index(entries_.size(), -1);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (!entries_[i].used) continue;
      index[i] = static_cast<std::int32_t>(result.used.size());
      result.used.push_back(*entries_[i].optimizer);
    }
    if (result.used.empty()) result.used.push_back(loaded_.job.train.optimizer);
    for (std::size_t i = 0; i < names_.size(); ++i) result.of_parameter.emplace(names_[i], index[entry_of_[i]]);
    return result;
  }

  const LoadedJob& loaded_;
  const Graph& graph_;
  std::vector<std::string_view> names_;   // of trained parameters
  std::vector<std::string> whole_names_;  // likewise; of rows that of the table
  bool frozen_ = false;                   // whether there are others
  std::set<std::string_view> matrices_;
  std::vector<Entry> entries_;         // the job's optimizers
  std::vector<std::size_t> entry_of_;  // of each name
  std::vector<Diagnostic> mistakes_;
};

}  // namespace

Optimizers optimizers_of(const LoadedJob& loaded, const Graph& graph) { return Assignment(loaded, graph).run(); }

double state_bytes(const LoadedJob& loaded) {
  const TrainJob& train = loaded.job.train;
  const bool one = train.groups.empty() && train.optimizer.name != OptimizerName::muon;
  return one ? state_bytes(optimizer_spec(train.optimizer)) : state_bytes(loaded, whole_graph(loaded));
}

double state_bytes(const LoadedJob& loaded, const Graph& graph) {
  const Optimizers optimizers = optimizers_of(loaded, graph);
  std::vector<double> bytes;
  for (const OptimizerJob& optimizer : optimizers.used) bytes.push_back(state_bytes(optimizer_spec(optimizer)));
  double sum = 0, elements = 0;
  for (const Parameter& parameter : graph.parameters) {
    if (!parameter.trainable) continue;
    const Value& value = graph.value(parameter.value);
    const auto count = static_cast<double>(value.shape().elements());
    sum += count * bytes[static_cast<std::size_t>(optimizers.of_parameter.at(value.name))];
    elements += count;
  }
  return elements == 0 ? 0 : sum / elements;
}

}  // namespace trainer
