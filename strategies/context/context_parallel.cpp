// Source: the Llama 3 team, "The Llama 3 Herd of Models", 2024, section 3.3.2: keys and values are gathered before
// attention, whose queries are the rank's own. Per layer and rank, with n ranks and the bytes K of all keys and values
// of its samples, the forward pass gathers (n − 1)/n · K and the backward pass reduces and scatters as many. Departs
// from the paper: parts are contiguous, so under a causal mask the last rank has the most work.
//
//   value                        placement
//   inputs [batch, seq, …]       Shard(1)
//   lengths [batch]              Replicate
//   documents [batch, seq]       Replicate, and so are those of all keys
//   parameters                   Replicate, their gradients Partial
//   k, v at attention            Replicate, by a gather whose gradient is a reduce-scatter
#include "strategies/context/context_parallel.h"

#include <vector>

#include "engine/core/op_record.h"
#include "engine/ops/refuse.h"
#include "engine/ops/unpack_attention.h"

namespace trainer::strategies {
namespace {

// Whether what reads an input speaks of whole sequences by it, whatever part a rank has: lengths and documents of
// attention, and documents of positions.
bool speaks_of_all(const Graph& graph, ValueId input) {
  bool read = false;
  for (const Node& node : graph.nodes)
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] != input) continue;
      const bool mask = node.op == Op::attention && (flag(node, "padded") || flag(node, "by_document")) &&
                        i + 1 == node.inputs.size();
      if (!mask && node.op != Op::document_positions) return false;
      read = true;
    }
  return read;
}

}  // namespace

void context_parallel(Graph& graph) {
  const int ranks = graph.mesh.size(Axis::context);
  if (ranks == 1) return;
  std::vector<Node> nodes;
  for (Node& node : graph.nodes) {
    if (node.op == Op::attention && flag(node, "packed")) nodes.push_back(unpack_attention(graph, node));
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
  for (ValueId input : graph.inputs) {
    Value& value = graph.value(input);
    if (speaks_of_all(graph, input)) continue;
    if (value.shape().rank() < 2)
      refuse(graph, graph.nodes.front(), Axis::context, value.name + " has no sequence to cut");
    const std::int64_t seq = value.shape()[1];
    if (seq % ranks != 0)
      refuse_uneven(graph, graph.nodes.front(), Axis::context, "the sequence of " + value.name, seq, seq);
    value.spec.place(Axis::context, Placement::shard(1));
  }
}

}  // namespace trainer::strategies
