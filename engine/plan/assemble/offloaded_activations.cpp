// When each value leaves and comes follows from the blocks of the nodes that read it.
#include "engine/plan/assemble/offloaded_activations.h"

#include <algorithm>

namespace trainer {
namespace {

// The outermost block of a node; kNone.
std::int32_t block_of(const Graph& graph, NodeId id) {
  return graph.outermost(graph.nodes[static_cast<std::size_t>(id)].block);
}

// Of each node of a pass the first node of its run of the same block. Outside of blocks a node is a run.
std::vector<std::size_t> runs(const Graph& graph, const std::vector<NodeId>& nodes) {
  std::vector<std::size_t> begins(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::int32_t block = block_of(graph, nodes[i]);
    begins[i] = i > 0 && block != kNone && block == block_of(graph, nodes[i - 1]) ? begins[i - 1] : i;
  }
  return begins;
}

// The first node of the last block.
std::size_t last_block(const Graph& graph, const std::vector<NodeId>& nodes, const std::vector<std::size_t>& begins) {
  for (std::size_t i = nodes.size(); i-- > 0;)
    if (block_of(graph, nodes[i]) != kNone) return begins[i];
  return nodes.size();
}

}  // namespace

OffloadedActivations::OffloadedActivations(const Graph& graph, Space space, const Phase& forward, const Phase& backward)
    : space_(space), leaves_(forward.nodes.size()), comes_(backward.nodes.size()) {
  find_kept(graph, forward, backward);
}

void OffloadedActivations::find_kept(const Graph& graph, const Phase& forward, const Phase& backward) {
  constexpr std::size_t kNever = SIZE_MAX;
  std::vector<std::size_t> last(graph.values.size(), kNever), first(graph.values.size(), kNever);
  for (std::size_t i = 0; i < forward.nodes.size(); ++i) {
    const Node& node = graph.nodes[static_cast<std::size_t>(forward.nodes[i])];
    for (const ValueId output : node.outputs) {
      const Value& value = graph.value(output);
      if (value.kind == ValueKind::activation && value.alias_of == kNone && !graph.loss.sums_up(output))
        last[static_cast<std::size_t>(output)] = i;
    }
    for (const ValueId input : node.inputs)
      if (std::size_t& at = last[static_cast<std::size_t>(graph.storage(input))]; at != kNever) at = i;
  }
  for (std::size_t i = backward.nodes.size(); i-- > 0;)
    for (const ValueId input : graph.nodes[static_cast<std::size_t>(backward.nodes[i])].inputs)
      first[static_cast<std::size_t>(graph.storage(input))] = i;
  const std::vector<std::size_t> forth = runs(graph, forward.nodes), back = runs(graph, backward.nodes);
  const std::size_t stays = last_block(graph, forward.nodes, forth);
  for (std::size_t id = 0; id < last.size(); ++id) {
    const auto value = static_cast<ValueId>(id);
    if (last[id] == kNever || first[id] == kNever || last[id] >= stays) continue;
    if (graph.local(value).bytes() < kBufferAlignment) continue;  // a move takes longer than its bytes
    const std::size_t run = back[first[id]];
    leaves_[last[id]].push_back(kept_.size());
    comes_[run == 0 ? 0 : back[run - 1]].push_back(kept_.size());
    kept_.push_back({value});
  }
}

void OffloadedActivations::after_forward(Emitter& emit, GraphMemory& memory, std::size_t index, int micro_batch) {
  if (leaves_.empty()) return;
  for (const std::size_t i : leaves_[index]) {
    Kept& kept = kept_[i];
    const Value& value = memory.graph->value(kept.value);
    const Region here{memory.held(kept.value, micro_batch, 0), 0, memory.graph->local(kept.value).bytes()};
    if (kept.home < 0) {
      kept.name = emit.name(value.name);
      kept.home = emit.place_of_activation(value.name + ".kept", here.bytes, space_);
    }
    emit.issue(Stream::store, Move{kept.name, {here}, {emit.whole(kept.home)}});
  }
}

void OffloadedActivations::before_backward(Emitter& emit, GraphMemory& memory, std::size_t index, int micro_batch) {
  if (comes_.empty()) return;
  for (const std::size_t i : comes_[index]) {
    const Kept& kept = kept_[i];
    const Region home = emit.whole(kept.home);
    const NameId back = emit.name(memory.graph->value(kept.value).name + ".back");
    BufferId& held = memory.held(kept.value, micro_batch, 0);
    held = emit.buffer(back, Category::activations, home.bytes, micro_batch, 0);
    emit.issue(Stream::fetch, Move{kept.name, {home}, {emit.whole(held)}});
  }
}

}  // namespace trainer
