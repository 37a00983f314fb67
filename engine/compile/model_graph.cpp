// How a job's sections become options of the graph's builder, of recomputation and of the optimizer's kernel.
#include "engine/compile/model_graph.h"

#include <fmt/format.h>

#include "engine/core/check.h"
#include "engine/core/compression.h"
#include "engine/core/op_record.h"
#include "engine/ops/refuse.h"
#include "engine/transform/ring.h"
#include "strategies/pipeline/chunks.h"

namespace trainer {
namespace {

// What a graph may read of words beside tokens and targets (engine/data/later_targets.h).
constexpr const char *kNextTokens = "next_tokens", *kLaterTargets = "later_targets";

std::map<std::string, Shape> field_shapes(const DataJob& data) {
  const std::map<std::string, Shape> words{{"tokens", {data.seq_len}},
                                           {"targets", {data.seq_len}},
                                           {kNextTokens, {data.seq_len}},
                                           {kLaterTargets, {data.seq_len}}};
  switch (data.format) {
    case DataFormat::text:
    case DataFormat::tokens:
      return words;
    case DataFormat::preference:
      return {{"tokens", {data.seq_len}}, {"targets", {data.seq_len}}};
    case DataFormat::documents:
    case DataFormat::chat:
    case DataFormat::completion: {
      std::map<std::string, Shape> shapes = words;
      if (data.packing == Packing::documents) shapes["documents"] = {data.seq_len};
      return shapes;
    }
    case DataFormat::labelled:
      return {{"tokens", {data.seq_len}}, {"targets", {}}, {"lengths", {}}, {"documents", {data.seq_len}}};
    case DataFormat::table:
      return {{"features", {}}, {"targets", {}}};
    case DataFormat::idx:
      return {{"images", {}}, {"targets", {}}};
    case DataFormat::tensors: {
      std::map<std::string, Shape> shapes;  // those of the graph: the files are read later
      for (const auto& [input, tensor] : data.fields) shapes[input] = {};
      return shapes;
    }
  }
  return {};
}

Format state_format(States states) {
  switch (states) {
    case States::f32:
      return DType::f32;
    case States::bf16:
      return DType::bf16;
    case States::int8:
      return {DType::u8, kInt8Block};
  }
  return {};
}

}  // namespace

BuildOptions build_options(const Job& job, std::int64_t micro, BuildOptions::Mode mode) {
  BuildOptions options;
  const bool whole = mode == BuildOptions::Mode::train || mode == BuildOptions::Mode::evaluate;
  options.batch = micro * (whole ? job.data.sequences() : 1);
  options.compute = job.precision.compute;
  options.excluded = job.strategy.wrap.excluded;
  options.seed = job.seed;
  options.mode = mode;
  options.field_shapes = field_shapes(job.data);
  options.offered = {kNextTokens, kLaterTargets};
  if (job.data.is_labelled()) options.offered = {"lengths", "documents"};
  if (job.data.format == DataFormat::tensors) {
    options.seq = job.data.seq_len;
    options.any_fields = job.data.fields.empty();
  }
  return options;
}

void set_length(BuildOptions& options, std::int64_t length) {
  if (options.seq) options.seq = length;
  for (auto& [name, shape] : options.field_shapes)
    if (shape.rank() == 1) shape = {length};
}

void make_rings(Graph& graph, bool on_gpu) {
  expand_rings(graph);
  if (!on_gpu) return;  // a GPU's kernels cut chunks on the host, which does not know where documents and samples end
  for (const Node& node : graph.nodes)
    if (node.op == Op::attention_block && (flag(node, "padded") || flag(node, "by_document")))
      refuse(graph, node, Axis::context,
             "on GPUs a ring takes no lengths and keeps no documents apart; `kind: gather` does");
}

RecomputePolicy recompute_policy(const ActivationCheckpointingJob& job, bool gathers_again) {
  RecomputePolicy policy;
  if (gathers_again) policy.gathers = Axes::of(Axis::tensor);
  switch (job.mode) {
    case CheckpointingMode::none:
      break;
    case CheckpointingMode::full:
      policy.mode = RecomputePolicy::Mode::full;
      break;
    case CheckpointingMode::selective:
      policy.mode = RecomputePolicy::Mode::selective;
      break;
    case CheckpointingMode::every_n:
      policy.mode = RecomputePolicy::Mode::every_n;
      policy.every = job.every;
      break;
    case CheckpointingMode::automatic:
      CHECK(false, "recomputation is decided before graphs are made");
      break;
  }
  return policy;
}

OptimizerSpec optimizer_spec(const OptimizerJob& job) {
  const auto state = [&](const char* name) { return StateSpec{name, state_format(job.states)}; };
  using Item = std::pair<std::string, Attribute>;
  const Item decay{"weight_decay", job.weight_decay}, eps{"eps", job.eps}, beta1{"beta1", job.betas[0]},
      beta2{"beta2", job.betas[1]};
  const Item momentum{"momentum", job.momentum}, nesterov{"nesterov", job.nesterov},
      adjust{"adjust", std::string(name_of(job.adjust))};
  const Attributes adam{decay, beta1, beta2, eps};
  const auto ops = [&]() -> std::vector<UpdateOp> {
    switch (job.name) {
      case OptimizerName::sgd: {
        UpdateOp sgd{Op::sgd, {decay, momentum, nesterov, {"has_momentum", job.momentum != 0}}};
        if (job.momentum != 0) sgd.states = {state("momentum_buffer")};
        return {sgd};
      }
      case OptimizerName::lion:
        return {{Op::lion, {decay, beta1, beta2}, {state("exp_avg")}}};
      case OptimizerName::adam:
        return {{Op::adam, adam, {state("exp_avg"), state("exp_avg_sq")}}};
      case OptimizerName::adamw:
        return {{Op::adamw, adam, {state("exp_avg"), state("exp_avg_sq")}}};
      case OptimizerName::muon:
        return {{Op::muon_momentum, {momentum, nesterov}, {state("momentum_buffer")}},
                {Op::muon_orthogonalize, {{"steps", job.ns_steps}, adjust, {"eps", 1e-7}}},
                {Op::muon, {decay}}};
    }
    return {};
  };
  return {ops(), job.decay == Decay::all};
}

double state_bytes(const OptimizerSpec& spec) {
  double bytes = 0;
  for (const StateSpec& state : spec.states())
    bytes += size_of(state.format.element) +
             (state.format.block == 0 ? 0 : static_cast<double>(size_of(DType::f32)) / state.format.block);
  return bytes;
}

Attributes loss_scaling(const LossScale& job) {
  if (job.mode != LossScale::Mode::dynamic) return {};
  return {{"growth_interval", job.growth_interval},
          {"growth_factor", job.growth_factor},
          {"backoff_factor", job.backoff_factor},
          {"largest_scale", job.largest},
          {"smallest_scale", job.smallest}};
}

std::vector<std::string> chunk_begins(const LoadedJob& loaded, const Graph& graph, int num_chunks) {
  const PipelineStrategyJob& pipeline = loaded.job.strategy.pipeline;
  if (num_chunks == 1) return {};
  if (pipeline.split_policy == SplitPolicy::names) {
    std::vector<std::string> wrong, begins = strategies::split_at(graph, pipeline.split, wrong);
    if (!wrong.empty())
      throw JobError(
          {loaded.at("strategy.pipeline.split",
                     wrong.front() + " is no node or block of the graph, or does not stand after the one before it")});
    return begins;
  }
  int pieces = 0;
  const auto by =
      pipeline.split_policy == SplitPolicy::uniform ? strategies::SplitBy::blocks : strategies::SplitBy::cost;
  std::vector<std::string> begins = strategies::split_graph(graph, num_chunks, by, pieces);
  if (begins.empty())
    throw JobError({loaded.at("strategy.pipeline.degree",
                              fmt::format("the model has {} pieces, too few for {} chunks", pieces, num_chunks))});
  return begins;
}

}  // namespace trainer
