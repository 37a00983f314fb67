// How the job's sections become arguments of engine/transform, and how mistakes get the job's places.
#include "engine/compile/trained.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/compile/model_graph.h"
#include "engine/transform/adapter.h"
#include "engine/transform/dpo.h"
#include "engine/transform/experts.h"
#include "engine/transform/fp8.h"
#include "engine/transform/quantize.h"
#include "engine/transform/trainable.h"
#include "engine/transform/trained_rows.h"

namespace trainer {
namespace {

using Mode = BuildOptions::Mode;

Trainable trainable_of(const TrainableJob& job) {
  switch (job.kind) {
    case TrainableJob::Kind::all:
      return {};
    case TrainableJob::Kind::adapter:
      return {Trainable::Mode::adapter, {}};
    case TrainableJob::Kind::globs:
      break;
  }
  return {Trainable::Mode::globs, job.globs};
}

Lora lora_of(const AdapterJob& job) {
  return {.rank = job.rank,
          .alpha = job.alpha,
          .dropout = job.dropout,
          .targets = job.targets,
          .scaled_by_root = job.scaled_by_root,
          .magnitude = job.magnitude};
}

std::vector<std::string> parameters_of_head(const Graph& graph) {
  std::vector<std::string> names;
  if (const NodeId head = head_of(graph); head != kNone)
    for (const ValueId input : graph.nodes[static_cast<std::size_t>(head)].inputs)
      if (const Value& value = graph.value(input); value.kind == ValueKind::parameter) names.push_back(value.name);
  return names;
}

/// The globs without those that a mistake is about.
std::vector<std::string> without(const std::vector<std::string>& globs, const std::vector<SelectionMistake>& mistakes) {
  std::vector<std::string> left;
  for (std::size_t i = 0; i < globs.size(); ++i) {
    const std::string key = fmt::format("targets[{}]", i);
    if (std::ranges::none_of(mistakes, [&](const SelectionMistake& one) { return one.key == key; }))
      left.push_back(globs[i]);
  }
  return left;
}

/// Where the job asks for it. Returns its mistakes.
std::vector<Diagnostic> quantize(const LoadedJob& loaded, Graph& graph) {
  const Quantization as = loaded.job.model.quantize;
  if (as == Quantization::none) return {};
  return located(loaded, "model.", quantize_frozen(graph, as));
}

}  // namespace

std::vector<Diagnostic> freeze(const LoadedJob& loaded, Graph& graph, Mode mode) {
  Trainable trainable = trainable_of(loaded.job.trainable);
  // A head for whole texts is often new: an adapter beside one that stays as it was drawn would learn little.
  if (trainable.mode == Trainable::Mode::adapter && loaded.job.data.is_labelled())
    if (std::vector<std::string> head = parameters_of_head(graph); !head.empty())
      trainable = {Trainable::Mode::globs, std::move(head)};
  const std::vector<SelectionMistake> mistakes = set_trainable(graph, trainable);
  hold_frozen_routers(graph);
  return mode == Mode::train ? located(loaded, "trainable", mistakes) : std::vector<Diagnostic>();
}

namespace {

std::vector<Diagnostic> add_adapter(const LoadedJob& loaded, Graph& graph, const BuildOptions& options) {
  if (!loaded.job.adapter) return {};
  for (const GraphState& state : graph.states)
    if (state.initial && moves(graph, state))
      return {loaded.at("adapter", "a checkpoint of an adapter would lose what training does to " +
                                       graph.value(state.value).name + ": a model with " +
                                       (is_router_bias(graph.value(state.value).name)
                                            ? "routers that are trained and balanced by a bias"
                                            : "batch_norm") +
                                       " is trained without an adapter")};
  Lora lora = lora_of(*loaded.job.adapter);
  std::vector<SelectionMistake> mistakes = add_lora(graph, lora, options);
  if (options.mode != Mode::train && !mistakes.empty()) {
    const std::vector<std::string> there = without(lora.targets, mistakes);
    if (there.empty()) return {};  // none of the targets is in this graph
    if (there.size() < lora.targets.size()) {
      lora.targets = there;
      mistakes = add_lora(graph, lora, options);
    }
  }
  return located(loaded, "adapter.", mistakes);
}

/// Adapter and objective. Returns their mistakes.
std::vector<Diagnostic> add_trained(const LoadedJob& loaded, Graph& graph, const BuildOptions& options) {
  const ObjectiveJob& objective = loaded.job.train.objective;
  if (objective.kind != ObjectiveKind::dpo || graph.loss.sum == kNone) return add_adapter(loaded, graph, options);
  const std::vector<Node> model = graph.nodes;
  std::vector<bool> trained(graph.values.size(), false);
  for (const Parameter& parameter : graph.parameters)
    trained[static_cast<std::size_t>(parameter.value)] = parameter.trainable;
  if (std::vector<Diagnostic> mistakes = add_adapter(loaded, graph, options); !mistakes.empty()) return mistakes;
  const std::optional<std::string> mistake = add_dpo(graph, model, trained, objective.beta);
  if (mistake) return {loaded.at("train.objective", *mistake)};
  return {};
}

}  // namespace

std::vector<Diagnostic> adapt(const LoadedJob& loaded, Graph& graph, const BuildOptions& options) {
  if (std::vector<Diagnostic> mistakes = add_trained(loaded, graph, options); !mistakes.empty()) return mistakes;
  return quantize(loaded, graph);  // what policy and reference share, for both
}

std::vector<Diagnostic> split_rows(const LoadedJob& loaded, Graph& graph) {
  if (loaded.job.trainable.kind != TrainableJob::Kind::globs) return {};
  return located(loaded, "trainable", split_rows(graph, loaded.job.trainable.globs));
}

std::vector<Diagnostic> with_fp8(const LoadedJob& loaded, Graph& graph, const Target& target) {
  if (loaded.job.precision.matmul != MatmulPrecision::fp8) return {};
  std::vector<Diagnostic> mistakes;
  for (std::string& mistake : use_fp8(graph, target.fp8_scales()))
    mistakes.push_back(loaded.at("precision.matmul", std::move(mistake), "none"));
  return mistakes;
}

Graph whole_graph(const LoadedJob& loaded) {
  const BuildOptions options = build_options(loaded.job, 1, Mode::train);
  Graph graph = read_graph(graph_tree(loaded), loaded.job.model.with, options);
  std::vector<Diagnostic> mistakes = freeze(loaded, graph, options.mode);
  for (Diagnostic& mistake : adapt(loaded, graph, options)) mistakes.push_back(std::move(mistake));
  raise(std::move(mistakes));
  raise(split_rows(loaded, graph));
  return graph;
}

std::vector<Diagnostic> located(const LoadedJob& loaded, const std::string& prefix,
                                const std::vector<SelectionMistake>& mistakes) {
  std::vector<Diagnostic> out;
  for (const SelectionMistake& one : mistakes) {
    out.push_back(loaded.at(prefix + one.key, one.message));
    if (one.suggestion.empty()) continue;
    const bool several = one.suggestion.find(", ") != std::string::npos;
    (several ? out.back().allowed : out.back().suggestion) =
        several ? "globs over the names there are; the nearest are " + one.suggestion : one.suggestion;
  }
  return out;
}

void raise(std::vector<Diagnostic> mistakes) {
  if (!mistakes.empty()) throw JobError(std::move(mistakes));
}

}  // namespace trainer
