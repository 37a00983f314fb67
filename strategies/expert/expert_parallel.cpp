// Sources: Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding", 2020,
// section 3.2; Fedus, Zoph and Shazeer, "Switch Transformers", 2021, section 2.2 (capacity); Rajbhandari et al.,
// "DeepSpeed-MoE", 2022, section 5 (other axes beside it).
//
// The expert axis is one of the batch: each of its n ranks has samples of its own, and what is dense is data parallel
// over it. Of E experts a rank has E / n, neighbours, in memory and in the work that all ranks' tokens make:
//
//   value                              placement          and so
//   weights of the experts, [E, …]     Shard(0)           gradients are complete along the axis, and neither summed nor
//                                                         sliced there: all of its ranks' tokens met them
//   all others                         Replicate          gradients Partial, as along any batch axis
//   rows to the experts, [R, n, rows]  Shard(0) → (1)     by an all-to-all (engine/ops/experts.cpp), whose gradient is
//   rows from them                     Shard(1) → (0)     the way back
//
// A rank sends each rank `rows` rows, filled or not: with capacities as many as its samples' experts may take, and
// without `bound` times the mean of T · k / n for T tokens with k choices. Bytes that it sends for a layer, with rows
// of dim values of b bytes: forward (n − 1) · rows · (2 · dim · b + 8), of which 8 are the number of an expert and its
// weight; backward (n − 1) · rows · (2 · dim · b + 4).
//
// Ranks that have parts of the same sequences (strategies/context) send the tokens that they have: R blocks are those
// of all token axes, and along the context axis gradients of the experts are Partial too. Under sequence parallelism
// the ranks of a tensor axis send their own rows as well; what arrives is gathered over that axis for the experts,
// whose hidden layer it cuts, and their sums are scattered over it before the way back.
//
// Departs from the papers: no token is rerouted; a token goes once for each of its choices, also where two of them are
// on one rank; and the sums of the data axes need no 1 / n, because the loss is a sum over the tokens of all ranks.
#include "strategies/expert/expert_parallel.h"

#include <fmt/format.h>

#include "engine/job/data_strategies.h"
#include "engine/ops/refuse.h"

namespace trainer::strategies {
namespace {

// What does not go beside it, at the job's line.
void check(const LoadedJob& loaded) {
  const auto fail = [&](std::string_view what) {
    throw JobError(
        {loaded.at("strategy.expert.degree", fmt::format("expert parallelism does not go with {}", what), "1")});
  };
  const StrategyJob& strategy = loaded.job.strategy;
  if (strategy.data.compression.kind != Compression::Kind::none && !record_of(strategy.data).shard_states)
    fail("compressed gradients where each rank has all states of the optimizer; with zero1 it does");
  if (record_of(strategy.data).averages) fail("local_sgd, whose ranks train apart");
}

// Cuts of parameters stand in the order of their axes.
void cut_outermost(Spec& spec, Axis axis, const Placement& placement) {
  Spec cut(spec.format, spec.whole);
  cut.place(axis, placement);
  for (const Cut& other : spec.cuts()) cut.place(other.axis, other.as);
  spec = cut;
}

}  // namespace

void expert_parallel(Graph& graph, const LoadedJob& loaded) {
  const std::int64_t ranks = graph.mesh.size(Axis::expert);
  if (ranks == 1) return;
  check(loaded);
  bool any = false;
  for (const Node& node : graph.nodes) {
    if (node.op != Op::expert_linear) continue;
    any = true;
    Spec& weight = graph.value(node.inputs[2]).spec;
    if (weight.whole[0] % ranks != 0)
      refuse_uneven(graph, node, Axis::expert, "the experts", weight.whole[0], weight.whole[0]);
    cut_outermost(weight, Axis::expert, Placement::shard(0));
  }
  if (!any)
    throw JobError({loaded.at("strategy.expert.degree", "the model has no `experts` that ranks could share", "1")});
}

}  // namespace trainer::strategies
