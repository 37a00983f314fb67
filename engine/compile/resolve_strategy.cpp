// The rules by which each `auto` of a fixed strategy is decided.
#include "engine/compile/resolve_strategy.h"

#include <algorithm>
#include <set>

#include "engine/job/resolve.h"
#include "strategies/wrap.h"

namespace trainer {
namespace {

// The kind that all outermost blocks have, and no block inside another; empty if there is no such kind.
std::string outermost_kind(const Graph& graph) {
  std::set<std::string> outer, inner;
  for (const Block& block : graph.blocks) (block.parent == kNone ? outer : inner).insert(block.kind);
  return outer.size() == 1 && !inner.contains(*outer.begin()) ? *outer.begin() : "";
}

}  // namespace

bool gathers(const DataStrategyJob& data) { return resolve(data, false).shard_parameters; }

WrapJob resolve_wrap(const StrategyJob& strategy, DType reduce, const Graph& graph) {
  WrapJob wrap = strategy.wrap;
  if (wrap.policy != WrapPolicy::automatic) return wrap;
  const bool by_block = gathers(strategy.data) || strategy.data.parts > 1;
  if (by_block && !strategies::wrap_by_block(graph, "").empty()) {
    const std::string kind = outermost_kind(graph);
    if (kind.empty()) return wrap;
    wrap.policy = WrapPolicy::transformer;
    wrap.block = kind;
    return wrap;
  }
  const auto bytes = static_cast<std::int64_t>(strategy.data.bucket_mb * 1024 * 1024);
  wrap.policy = WrapPolicy::size;
  wrap.min_params = std::max<std::int64_t>(1, bytes / size_of(reduce));
  return wrap;
}

StrategyJob resolve_strategy(const Job& job, const Mesh& mesh, const Graph& graph,
                             const std::vector<std::string>& begins) {
  StrategyJob strategy = job.strategy;
  strategy.free = {};
  strategy.profile = Profile::none;
  strategy.tensor.degree = mesh.size(Axis::tensor);
  strategy.context.degree = mesh.size(Axis::context);
  strategy.expert.degree = mesh.size(Axis::expert);
  strategy.pipeline.degree = mesh.size(Axis::pipeline);
  const ResolvedData data = resolve(strategy.data, mesh.size(Axis::pipeline) > 1);
  strategy.data.keep = data.keep;
  strategy.data.reduce = data.reduce;
  strategy.data.replicate = data.secondary ? 1 : mesh.size(Axis::replicate);
  if (data.secondary) strategy.data.secondary = mesh.group_size(kSliceAxes);
  strategy.wrap = resolve_wrap(job.strategy, job.precision.reduce, graph);
  if (!begins.empty()) {
    strategy.pipeline.split_policy = SplitPolicy::names;
    strategy.pipeline.split = begins;
  }
  return strategy;
}

}  // namespace trainer
