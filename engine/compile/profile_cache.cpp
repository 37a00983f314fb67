// How profiles are made: blocks that repeat are profiled once, and what other profiles share is kept.
#include "engine/compile/profile_cache.h"

#include <algorithm>
#include <numeric>

#include "engine/compile/hardware.h"
#include "engine/compile/model_graph.h"
#include "engine/compile/trained.h"
#include "engine/core/parallel.h"
#include "engine/transform/distribute.h"
#include "engine/transform/fuse.h"
#include "engine/transform/transform.h"
#include "strategies/context/context_parallel.h"
#include "strategies/expert/expert_parallel.h"
#include "strategies/pipeline/chunks.h"
#include "strategies/pipeline/split.h"
#include "strategies/tensor/tensor_parallel.h"

namespace trainer {

cost::SearchSpace search_space(const Job& job, const Hardware& hardware, double state_bytes) {
  cost::SearchSpace space;
  space.job = &job;
  space.machine = hardware.machine;
  space.world_size = world_size_of(job);
  space.ranks_per_node = static_cast<int>(std::max<std::int64_t>(1, space.world_size / job.cluster.nodes));
  space.threads = hardware.threads;
  space.limit_bytes = memory_limit(job, hardware, space.ranks_per_node);
  space.state_bytes = state_bytes;
  return space;
}

ProfileCache::ProfileCache(const LoadedJob& loaded, const Hardware& hardware, bool every_block)
    : loaded_(loaded), hardware_(hardware), tree_(graph_tree(loaded)) {
  const Graph& graph = whole(1);
  pieces_ = strategies::piece_begins(graph);
  for (const Node& node : graph.nodes)
    if (blocks_.size() < pieces_.size() && node.name == pieces_[blocks_.size()])
      blocks_.push_back(node.block == kNone ? ""
                                            : graph.blocks[static_cast<std::size_t>(graph.outermost(node.block))].name);
  stands_for_ = stand_ins_of(graph, pieces_);
  // An adapter may be of some of them only, by their names.
  if (loaded_.job.adapter || every_block) std::iota(stands_for_.begin(), stands_for_.end(), 0);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const auto like = static_cast<std::size_t>(stands_for_[i]);
    if (like == i)
      kept_.push_back(pieces_[i]);
    else
      stand_ins_[blocks_[i]] = blocks_[like];
  }
}

const Graph& ProfileCache::whole(std::int64_t micro) {
  const auto at = whole_.find(micro);
  if (at != whole_.end()) return at->second;
  Graph graph = read_graph(tree_, loaded_.job.model.with, build_options(loaded_.job, micro, BuildOptions::Mode::train));
  raise(freeze(loaded_, graph, BuildOptions::Mode::train));
  return whole_.emplace(micro, std::move(graph)).first->second;
}

const Graph& ProfileCache::shortened(std::int64_t micro, int experts) {
  const auto at = shortened_.find({micro, experts});
  if (at != shortened_.end()) return at->second;
  BuildOptions options = build_options(loaded_.job, micro * experts, BuildOptions::Mode::train);
  options.mesh.set(Axis::expert, experts);
  options.stand_ins = stand_ins_;
  Graph graph = read_graph(tree_, loaded_.job.model.with, options);
  freeze(loaded_, graph, BuildOptions::Mode::train);  // what finds nothing here has found something in the whole
  return shortened_.emplace(std::pair(micro, experts), std::move(graph)).first->second;
}

std::int64_t ProfileCache::experts() {
  std::int64_t all = 0;
  const Graph& graph = whole(1);
  for (const Node& node : graph.nodes)
    if (node.op == Op::expert_linear) all = std::gcd(all, graph.value(node.inputs[2]).shape()[0]);
  return std::max<std::int64_t>(1, all);
}

// The groups of a profile are those of the graph's axes: the innermost, so their ranks are neighbours. The other axes
// matter as one, because every rank of the job waits for the slowest.
const cost::CostModel& ProfileCache::model(const Mesh& mesh, int lane) {
  std::unique_ptr<cost::CostModel>& model = models_[{mesh, lane}];
  if (model == nullptr) {
    Mesh filled = mesh;
    filled.set(Axis::replicate, std::max(1, world_size_of(loaded_.job) / mesh.world_size()));
    model = std::make_unique<cost::CostModel>(
        cost::Cluster{hardware_.machine, filled, hardware_.ranks_per_node, hardware_.threads});
  }
  return *model;
}

const Graph* ProfileCache::refuse(const Cutting& cutting, const JobError& error) {
  refusals_[cutting] = error.diagnostics().empty() ? error.what() : error.diagnostics().front().message;
  return nullptr;
}

// Null: refused.
const Graph* ProfileCache::differentiated(const Cutting& cutting, std::int64_t micro) {
  const std::pair key(cutting, micro);
  if (differentiated_for_ == key) return &differentiated_;
  if (refusals_.contains(cutting)) return nullptr;
  const Mesh& mesh = cutting.mesh;
  Graph graph = shortened(micro, mesh.size(Axis::expert));
  try {
    graph.mesh = mesh;
    if (mesh.size(Axis::expert) > 1)  // a batch axis, which experts work along
      for (ValueId input : graph.inputs) graph.value(input).spec.place(Axis::expert, Placement::shard(0));
    strategies::tensor_parallel(graph);
    raise(adapt(loaded_, graph, build_options(loaded_.job, micro, BuildOptions::Mode::train)));
    raise(split_rows(loaded_, graph));
    strategies::expert_parallel(graph, loaded_);
    strategies::context_parallel(graph, cutting.context);
    distribute(graph, cutting.sequence_parallel ? Axes::of(Axis::tensor) : Axes{});
    differentiate(graph, loaded_.job.precision.reduce);
    propagate_placements(graph);
    raise(with_fp8(loaded_, graph, *hardware_.target));
  } catch (const JobError& error) {
    return refuse(cutting, error);
  }
  differentiated_ = std::move(graph);
  differentiated_for_ = key;
  return &differentiated_;
}

cost::Profile ProfileCache::made(const Graph& whole, const Mesh& mesh, CheckpointingMode mode, bool gathers_again,
                                 int lane) {
  Graph graph = whole;
  recompute(graph, recompute_policy({mode, 1}, gathers_again));
  const std::vector<std::int64_t> passed = cost::boundary_bytes(graph, kept_);
  make_rings(graph, hardware_.device_bytes > 0);
  fuse(graph, *hardware_.target);
  cost::Profile of_kept = cost::profile_of(graph, kept_, *models_.at({mesh, lane}), *hardware_.target);
  for (std::size_t i = 0; i < passed.size(); ++i) of_kept.pieces[i].boundary_bytes = passed[i];
  std::vector<std::size_t> kept_at(pieces_.size());
  for (std::size_t i = 0, next = 0; i < pieces_.size(); ++i)
    if (stands_for_[i] == static_cast<int>(i)) kept_at[i] = next++;
  cost::Profile profile{{}, of_kept.input_bytes};
  for (const int like : stands_for_) profile.pieces.push_back(of_kept.pieces[kept_at[static_cast<std::size_t>(like)]]);
  if (loaded_.job.strategy.offload.activations != OffloadTo::none) move_off_device(profile);
  return profile;
}

// What one block keeps leaves while the next computes, and comes while the one before it does. The last keeps its own.
void ProfileCache::move_off_device(cost::Profile& profile) const {
  const auto last =
      std::find_if(blocks_.rbegin(), blocks_.rend(), [](const std::string& block) { return !block.empty(); });
  for (std::size_t i = 0; i + 1 < static_cast<std::size_t>(blocks_.rend() - last); ++i) {
    cost::Piece& piece = profile.pieces[i];
    piece.transient_bytes += 2 * piece.saved_bytes;
    piece.saved_bytes = piece.freed_bytes = 0;
  }
}

const cost::Profile* ProfileCache::profile(const cost::Candidate& candidate) {
  using Mode = CheckpointingMode;
  const Cutting cutting = cutting_of(candidate);
  const Mesh& mesh = cutting.mesh;
  const ActivationCheckpointingJob& recomputed = candidate.recompute;
  const auto key = [&](Mode mode, std::int64_t every) {
    return ProfileKey{cutting, candidate.micro, mode, every, candidate.gathers_again};
  };
  if (const auto at = profiles_.find(key(recomputed.mode, recomputed.every)); at != profiles_.end()) return &at->second;
  const Graph* const whole = differentiated(cutting, candidate.micro);
  if (whole == nullptr) return nullptr;
  // Who asks for one way to recompute will ask for the others.
  const std::vector<Mode> modes =
      recomputed.mode == Mode::none ? std::vector{Mode::none} : std::vector{Mode::selective, Mode::full};
  if (!profiles_.contains(key(modes.front(), 1))) {
    std::vector<cost::Profile> profiles(modes.size());
    for (std::size_t lane = 0; lane < modes.size(); ++lane) model(mesh, static_cast<int>(lane));
    try {  // what a rank's part of a value is may be refused too
      for_each_index(modes.size(), [&](std::size_t lane) {
        profiles[lane] = made(*whole, mesh, modes[lane], candidate.gathers_again, static_cast<int>(lane));
      });
    } catch (const JobError& error) {
      refuse(cutting, error);
      return nullptr;
    }
    for (std::size_t lane = 0; lane < modes.size(); ++lane) profiles_[key(modes[lane], 1)] = std::move(profiles[lane]);
  }
  if (recomputed.mode != Mode::every_n) return &profiles_.at(key(recomputed.mode, 1));
  cost::Candidate none = candidate;
  none.recompute = {Mode::none, 1};
  if (profile(none) == nullptr) return nullptr;
  return &mixed(key(Mode::none, 1), recomputed);
}

// Of `every` consecutive blocks the first is as under full recomputation, the others as under none.
const cost::Profile& ProfileCache::mixed(const ProfileKey& none, const ActivationCheckpointingJob& recompute) {
  ProfileKey full = none, mixed = none;
  full.mode = CheckpointingMode::full;
  mixed.mode = recompute.mode;
  mixed.every = recompute.every;
  cost::Profile profile = profiles_.at(none);
  const cost::Profile& again = profiles_.at(full);
  std::int64_t block = 0;
  for (std::size_t i = 0; i < profile.pieces.size(); ++i)
    if (!blocks_[i].empty() && block++ % recompute.every == 0) profile.pieces[i] = again.pieces[i];
  return profiles_[mixed] = std::move(profile);
}

const std::vector<int>& ProfileCache::cut(int chunks, std::int64_t samples) {
  const bool by_cost = loaded_.job.strategy.pipeline.split_policy == SplitPolicy::automatic;
  const auto [at, added] = cuts_.try_emplace({chunks, by_cost ? samples : 1});
  if (!added) return at->second;
  try {
    at->second = by_cost ? cut_by_cost(chunks, samples) : cut_as_asked(chunks);
  } catch (const JobError&) {
    if (!loaded_.job.strategy.free.pipeline && !loaded_.job.strategy.free.virtual_stages)
      throw;  // the job asks for this cut
  }
  return at->second;
}

// As the planner cuts the graph of so many samples. What a node costs grows evenly with them.
std::vector<int> ProfileCache::cut_by_cost(int chunks, std::int64_t samples) {
  if (static_cast<int>(pieces_.size()) < chunks) return cut_as_asked(chunks);
  if (costs_.empty()) {
    costs_ = strategies::piece_costs(whole(1));
    costs_of_sample_ = strategies::piece_costs(whole(2));
    for (std::size_t i = 0; i < costs_.size(); ++i) costs_of_sample_[i] -= costs_[i];
  }
  std::vector<double> costs = costs_;
  for (std::size_t i = 0; i < costs.size(); ++i) costs[i] += static_cast<double>(samples - 1) * costs_of_sample_[i];
  return strategies::split_by_cost(costs, chunks);
}

std::vector<int> ProfileCache::cut_as_asked(int chunks) {
  std::vector<int> begins{0};
  std::size_t piece = 0;
  for (const std::string& name : chunk_begins(loaded_, whole(1), chunks)) {
    while (piece < pieces_.size() && pieces_[piece] != name) ++piece;
    if (piece < pieces_.size()) begins.push_back(static_cast<int>(piece));
  }
  if (static_cast<int>(begins.size()) != chunks) begins.clear();
  return begins;
}

}  // namespace trainer
