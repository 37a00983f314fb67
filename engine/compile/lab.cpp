#include "engine/compile/lab.h"

#include <algorithm>

#include "engine/build/build.h"
#include "engine/build/fuse.h"
#include "engine/compile/model_graph.h"
#include "strategies/pipeline/chunks.h"
#include "strategies/tensor/tensor_parallel.h"

namespace trainer {

ModelLab::ModelLab(const LoadedJob& loaded, const Hardware& hardware) : loaded_(loaded), hardware_(hardware), tree_(graph_tree(loaded)) {
  pieces_ = strategies::piece_begins(forward(1));
}

const Graph& ModelLab::forward(std::int64_t micro) {
  const auto at = forward_.find(micro);
  if (at != forward_.end()) return at->second;
  return forward_.emplace(micro, read_graph(tree_, loaded_.job.model.with, build_options(loaded_.job, micro, BuildOptions::Mode::train))).first->second;
}

// Only the tensor axis matters to a profile: the innermost, so that its ranks are neighbours.
const cost::CostModel& ModelLab::model(int tensor) {
  std::unique_ptr<cost::CostModel>& model = models_[tensor];
  if (model == nullptr) {
    const int others = std::max(1, hardware_.ranks_per_node / tensor);
    model = std::make_unique<cost::CostModel>(cost::Cluster{hardware_.machine, Mesh{{1, others, 1, tensor}}, hardware_.ranks_per_node, hardware_.threads});
  }
  return *model;
}

const cost::Profile* ModelLab::profile(int tensor, bool sequence_parallel, std::int64_t micro, const ActivationCheckpointingJob& recomputed) {
  if (refusals_.contains({tensor, sequence_parallel})) return nullptr;
  const auto [at, added] = profiles_.try_emplace({tensor, sequence_parallel, micro, static_cast<int>(recomputed.mode), recomputed.every});
  if (!added) return at->second ? &*at->second : nullptr;
  Graph graph = forward(micro);
  try {
    strategies::tensor_parallel(graph, {tensor, sequence_parallel});
  } catch (const JobError& error) {
    refusals_[{tensor, sequence_parallel}] = error.diagnostics().empty() ? error.what() : error.diagnostics().front().message;
    return nullptr;
  }
  differentiate(graph, loaded_.job.precision.reduce);
  recompute(graph, recompute_policy(recomputed));
  fuse(graph);
  at->second = cost::profile_of(graph, pieces_, model(tensor), *hardware_.target);
  return &*at->second;
}

const std::vector<int>& ModelLab::cut(int chunks) {
  const auto [at, added] = cuts_.try_emplace(chunks);
  if (!added) return at->second;
  std::vector<int> begins{0};
  try {
    std::size_t piece = 0;
    for (const std::string& name : chunk_begins(loaded_, forward(1), chunks)) {
      while (piece < pieces_.size() && pieces_[piece] != name) ++piece;
      if (piece < pieces_.size()) begins.push_back(static_cast<int>(piece));
    }
  } catch (const JobError&) {
    if (!loaded_.job.strategy.free.pipeline && !loaded_.job.strategy.free.virtual_stages) throw;  // the job asks for this cut
    begins.clear();
  }
  if (static_cast<int>(begins.size()) != chunks) begins.clear();
  at->second = std::move(begins);
  return at->second;
}

}  // namespace trainer
