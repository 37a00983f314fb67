// Each fact is read off the graph's nodes, not off the job.
#include "engine/compile/graph_facts.h"

#include <set>
#include <string_view>
#include <unordered_set>

#include "engine/core/op_record.h"
#include "engine/core/rows_of.h"
#include "engine/ops/op_def.h"
#include "engine/transform/cached.h"

namespace trainer {
namespace {

std::optional<std::int64_t> vocabulary(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (node.op != Op::embedding) continue;
    const Value& ids = graph.value(node.inputs[0]);
    if (ids.kind != ValueKind::input || (ids.name != "tokens" && ids.name != kNewest)) continue;
    const Value& table = graph.value(node.inputs[1]);
    const std::optional<RowsOf> part = named_rows(table.name);
    return part ? part->rows : table.shape()[0];
  }
  return std::nullopt;
}

std::optional<std::int64_t> ignore_index(const Graph& graph) {
  if (graph.loss.sum == kNone || !graph.loss.count_attributes.has("ignore_index")) return std::nullopt;
  return graph.loss.count_attributes.integer("ignore_index");
}

// Rows of the weight that makes the scores.
std::optional<std::int64_t> classes(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (node.op == Op::cross_entropy_gathered || node.op == Op::sequence_nll) return integer(node, "classes");
    if (node.op == Op::cross_entropy || node.op == Op::cross_entropy_and_grad)
      return graph.value(node.inputs[0]).shape()[-1];
  }
  if (graph.loss.sum == kNone && graph.logits != kNone) return graph.value(graph.logits).shape()[-1];
  return std::nullopt;
}

}  // namespace

std::vector<PipelineChunk> chunks_of(const Graph& graph, const Schedule& schedule) {
  std::vector<PipelineChunk> chunks;
  for (int stage : schedule.stage_of_chunk) chunks.push_back({stage, {}});
  std::vector<std::unordered_set<std::string_view>> seen(chunks.size());
  for (const Node& node : graph.nodes) {
    if (node.backward && node.op != Op::cross_entropy_and_grad) continue;  // which is the loss
    const std::int32_t block = graph.outermost(node.block);
    const std::string& name = block == kNone ? node.name : graph.blocks[static_cast<std::size_t>(block)].name;
    const auto chunk = static_cast<std::size_t>(node.chunk);
    if (seen[chunk].insert(name).second) chunks[chunk].parts.push_back(name);
  }
  return chunks;
}

void add_graph_facts(const Graph& graph, CompiledJob& job) {
  job.num_parameters = job.num_active = graph.num_parameters();
  std::set<ValueId> experts;
  std::int64_t chosen = 0;  // by each token, where experts are on other ranks
  for (const Node& node : graph.nodes) {
    if (node.op == Op::expert_slots) chosen = graph.value(node.inputs[0]).shape()[-1];
    if (node.op != Op::expert_linear || !experts.insert(node.inputs[2]).second) continue;
    const Shape& weight = graph.value(node.inputs[2]).shape();
    const std::int64_t met = integer(node, "parts") > 1 ? chosen : graph.value(node.inputs[1]).shape()[-1];
    job.num_active -= (weight[0] - met) * (weight.elements() / weight[0]);
  }
  for (const Parameter& parameter : graph.parameters)
    if (parameter.trainable) job.num_trained += graph.value(parameter.value).shape().elements();
  job.vocabulary = vocabulary(graph);
  job.classes = classes(graph);
  job.ignore_index = ignore_index(graph);
  job.figures = graph.loss.figure_names;
  for (const Node& node : graph.nodes) {
    const double flops = cost_of(signature_of(graph, node)).flops;
    job.flops_per_step += flops;
    if (job.num_trained < job.num_parameters)
      job.model_flops_per_step += node.recomputed ? 0 : flops;
    else if (!node.backward)
      job.model_flops_per_step += 3 * flops;
  }
}

}  // namespace trainer
