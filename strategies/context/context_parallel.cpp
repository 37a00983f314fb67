// Sources. gather: the Llama 3 team, "The Llama 3 Herd of Models", 2024, section 3.3.2: keys and values are gathered
// before attention, whose queries are the rank's own. Per layer and rank, with n ranks and the bytes K of all keys and
// values of its samples, the forward pass gathers (n − 1)/n · K and the backward pass reduces and scatters as many.
// Departs from the paper: parts are contiguous, so under a causal mask the last rank has the most work. ring:
// engine/transform/ring.h, with the bytes it sends.
//
//   value                        gather                             ring
//   inputs [batch, seq, …]       Shard(1)                           Shard(1), zigzag
//   lengths [batch]              Replicate                          Replicate
//   documents [batch, seq]       Replicate, as all keys             Replicate
//   parameters                   Replicate, gradients Partial       Replicate, gradients Partial
//   k, v at attention            Replicate, by a gather whose       Shard(1), zigzag
//                                gradient is a reduce-scatter
#include "strategies/context/context_parallel.h"

#include <fmt/format.h>

#include <vector>

#include "engine/core/op_record.h"
#include "engine/job/nearest_numbers.h"
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

// The positions of a rank's part are zigzag too. Blocks turn queries and keys by how far they are apart, which is
// negative only without a causal mask.
void prepare_ring(const Graph& graph, Node& node) {
  if (node.op == Op::positions) node.attributes.set("zigzag", graph.value(node.outputs[0]).shape()[0]);
  if (node.op == Op::document_positions) node.attributes.set("zigzag", graph.value(node.outputs[0]).shape()[1]);
  if (node.op == Op::attention && !flag(node, "causal") && real(node, "rope_theta") != 0)
    refuse(graph, node, Axis::context,
           "a ring takes rotary positions under a causal mask only; `kind: gather` takes them");
}

}  // namespace

void context_parallel(Graph& graph, ContextKind kind) {
  const int ranks = graph.mesh.size(Axis::context);
  if (ranks == 1) return;
  const bool ring = kind == ContextKind::ring;
  std::vector<Node> nodes;
  for (Node& node : graph.nodes) {
    if (node.op == Op::attention && flag(node, "packed")) nodes.push_back(unpack_attention(graph, node));
    if (ring) prepare_ring(graph, node);
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
  for (ValueId input : graph.inputs) {
    Value& value = graph.value(input);
    if (speaks_of_all(graph, input)) continue;
    if (value.shape().rank() < 2)
      refuse(graph, graph.nodes.front(), Axis::context, value.name + " has no sequence to cut");
    const std::int64_t seq = value.shape()[1];
    if (ring && seq % (2 * ranks) != 0)
      refuse(graph, graph.nodes.front(), Axis::context,
             fmt::format("the sequence of {}, {} long, does not divide into two chunks for each rank; {} would",
                         value.name, seq, nearest_multiples(2 * ranks, seq)));
    if (seq % ranks != 0)
      refuse_uneven(graph, graph.nodes.front(), Axis::context, "the sequence of " + value.name, seq, seq);
    value.spec.place(Axis::context, ring ? Placement::zigzag(1) : Placement::shard(1));
  }
}

}  // namespace trainer::strategies
