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
#include "strategies/strategies.h"
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
  return whole_.get(micro, [&] {
    Graph graph =
        read_graph(tree_, loaded_.job.model.with, build_options(loaded_.job, micro, BuildOptions::Mode::train));
    raise(freeze(loaded_, graph, BuildOptions::Mode::train));
    return graph;
  });
}

const Graph& ProfileCache::shortened(std::int64_t micro, const Cutting& cutting) {
  const int experts = cutting.mesh.size(Axis::expert);
  // Where tokens travel there are buffers of each part of a sequence.
  const int context = experts > 1 ? cutting.mesh.size(Axis::context) : 1;
  const int tensor = experts > 1 && cutting.sequence_parallel ? cutting.mesh.size(Axis::tensor) : 1;
  return shortened_.get({micro, experts, context, tensor}, [&] {
    BuildOptions options = build_options(loaded_.job, micro * experts, BuildOptions::Mode::train);
    options.mesh.set(Axis::expert, experts);
    options.mesh.set(Axis::context, context);
    options.mesh.set(Axis::tensor, tensor);
    options.sequence_parallel = tensor > 1;
    options.stand_ins = stand_ins_;
    Graph graph = read_graph(tree_, loaded_.job.model.with, options);
    freeze(loaded_, graph, BuildOptions::Mode::train);  // what finds nothing here has found something in the whole
    return graph;
  });
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
ProfileCache::Cut& ProfileCache::cut_of(const Cutting& cutting) {
  const std::lock_guard lock(mutex_);
  Cut& cut = by_cutting_[cutting];
  if (cut.model == nullptr) {
    Mesh filled = cutting.mesh;
    filled.set(Axis::replicate, std::max(1, world_size_of(loaded_.job) / cutting.mesh.world_size()));
    cut.model = std::make_unique<cost::CostModel>(
        cost::Cluster{hardware_.machine, filled, hardware_.ranks_per_node, hardware_.threads});
  }
  return cut;
}

std::string ProfileCache::why_not(const cost::Candidate& candidate) {
  Cut& cut = cut_of(cutting_of(candidate));
  const std::lock_guard lock(cut.working);
  return cut.refusal.value_or("");
}

std::unique_ptr<ProfileCache::Differentiated> ProfileCache::take_differentiated(const Cutting& cutting,
                                                                                std::int64_t micro) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(
        last_graphs_, [&](const auto& one) { return one->micro == micro && one->cutting == cutting; });
    if (found != last_graphs_.end()) {
      std::unique_ptr<Differentiated> one = std::move(*found);
      last_graphs_.erase(found);
      return one;
    }
    if (last_graphs_.size() >= num_processors()) last_graphs_.erase(last_graphs_.begin());
  }
  return std::make_unique<Differentiated>(cutting, micro, differentiated(cutting, micro));
}

Graph ProfileCache::differentiated(const Cutting& cutting, std::int64_t micro) {
  const Mesh& mesh = cutting.mesh;
  Graph graph = shortened(micro, cutting);
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
  return graph;
}

cost::Profile ProfileCache::made(const Graph& whole, const cost::CostModel& model, const ProfileKey& key) {
  Graph graph = whole;
  recompute(graph, recompute_policy({key.mode, 1}, key.gathers_again));
  const std::vector<std::int64_t> passed = cost::boundary_bytes(graph, kept_);
  make_rings(graph, hardware_.device_bytes > 0);
  fuse(graph, *hardware_.target);
  cost::Profile of_kept = cost::profile_of(graph, kept_, model, *hardware_.target);
  for (std::size_t i = 0; i < passed.size(); ++i) of_kept.pieces[i].boundary_bytes = passed[i];
  std::vector<std::size_t> kept_at(pieces_.size());
  for (std::size_t i = 0, next = 0; i < pieces_.size(); ++i)
    if (stands_for_[i] == static_cast<int>(i)) kept_at[i] = next++;
  cost::Profile profile{{}, of_kept.input_bytes};
  for (const int like : stands_for_) profile.pieces.push_back(of_kept.pieces[kept_at[static_cast<std::size_t>(like)]]);
  if (loaded_.job.strategy.offload.activations != OffloadTo::none) move_off_device(profile, model);
  return profile;
}

// What one block keeps leaves while the next computes, and comes while the one before it does: blocks are alike, so a
// block takes as long as its own moves where these take longer than it. The last keeps its own.
void ProfileCache::move_off_device(cost::Profile& profile, const cost::CostModel& model) const {
  const Space space = strategies::space_of(loaded_.job.strategy.offload.activations);
  const auto last =
      std::find_if(blocks_.rbegin(), blocks_.rend(), [](const std::string& block) { return !block.empty(); });
  for (std::size_t i = 0; i + 1 < static_cast<std::size_t>(blocks_.rend() - last); ++i) {
    cost::Piece& piece = profile.pieces[i];
    piece.forward_us = std::max(piece.forward_us, model.move(space, false, piece.saved_bytes).us);
    piece.input_us += std::max(0.0, model.move(space, true, piece.saved_bytes).us - piece.backward_us());
    piece.transient_bytes += 2 * piece.saved_bytes;
    piece.saved_bytes = piece.freed_bytes = 0;
  }
}

const cost::Profile* ProfileCache::profile(const cost::Candidate& candidate) {
  const ActivationCheckpointingJob& recomputed = candidate.recompute;
  const bool mixes = recomputed.mode == CheckpointingMode::every_n;
  const ProfileKey key{candidate.micro, recomputed.mode, mixes ? recomputed.every : 1, candidate.gathers_again};
  const Cutting cutting = cutting_of(candidate);
  Cut& cut = cut_of(cutting);
  const std::lock_guard lock(cut.working);
  if (const auto known = cut.profiles.find(key); known != cut.profiles.end()) return &known->second;
  if (cut.refusal) return nullptr;
  try {
    return &profile(cut, cutting, key);
  } catch (const JobError& error) {
    cut.refusal = error.diagnostics().empty() ? error.what() : error.diagnostics().front().message;
    return nullptr;
  }
}

const cost::Profile& ProfileCache::profile(Cut& cut, const Cutting& cutting, const ProfileKey& key) {
  if (const auto known = cut.profiles.find(key); known != cut.profiles.end()) return known->second;
  if (key.mode == CheckpointingMode::every_n) {
    const auto of = [&](CheckpointingMode mode) -> const cost::Profile& {
      return profile(cut, cutting, {key.micro, mode, 1, key.gathers_again});
    };
    return cut.profiles[key] = mixed(of(CheckpointingMode::none), of(CheckpointingMode::full), key.every);
  }
  std::unique_ptr<Differentiated> whole = take_differentiated(cutting, key.micro);
  cost::Profile profile = made(whole->graph, *cut.model, key);
  const std::lock_guard lock(mutex_);
  last_graphs_.push_back(std::move(whole));
  return cut.profiles[key] = std::move(profile);
}

// Of `every` consecutive blocks the first is as under full recomputation, the others as under none.
cost::Profile ProfileCache::mixed(const cost::Profile& none, const cost::Profile& full, std::int64_t every) const {
  cost::Profile profile = none;
  std::int64_t block = 0;
  for (std::size_t i = 0; i < profile.pieces.size(); ++i)
    if (!blocks_[i].empty() && block++ % every == 0) profile.pieces[i] = full.pieces[i];
  return profile;
}

const std::vector<int>& ProfileCache::cut(int chunks, std::int64_t samples) {
  const bool by_cost = loaded_.job.strategy.pipeline.split_policy == SplitPolicy::automatic;
  return cuts_.get({chunks, by_cost ? samples : 1}, [&]() -> std::vector<int> {
    try {
      return by_cost ? cut_by_cost(chunks, samples) : cut_as_asked(chunks);
    } catch (const JobError&) {
      if (!loaded_.job.strategy.free.pipeline && !loaded_.job.strategy.free.virtual_stages)
        throw;  // the job asks for this cut
      return {};
    }
  });
}

// As the planner cuts the graph of so many samples. What a node costs grows evenly with them.
std::vector<int> ProfileCache::cut_by_cost(int chunks, std::int64_t samples) {
  if (static_cast<int>(pieces_.size()) < chunks) return cut_as_asked(chunks);
  std::call_once(costs_known_, [&] {
    costs_ = {strategies::piece_costs(whole(1)), strategies::piece_costs(whole(2))};
    for (std::size_t i = 0; i < costs_.one.size(); ++i) costs_.further[i] -= costs_.one[i];
  });
  std::vector<double> costs = costs_.one;
  for (std::size_t i = 0; i < costs.size(); ++i) costs[i] += static_cast<double>(samples - 1) * costs_.further[i];
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
