// The graph has a node for each router; a stage sees those of its own chunks.
#include "engine/plan/assemble/balance.h"

#include <algorithm>

#include "engine/core/check.h"
#include "engine/core/op_record.h"
#include "engine/ops/router_states.h"

namespace trainer {
namespace {

template <typename Fn>
void for_each_counted(const GraphMemory& memory, Fn&& fn) {
  for (const Node& node : memory.graph->nodes) {
    if (!counts_choices(node)) continue;
    const BufferId counts = memory.fields[static_cast<std::size_t>(node.inputs[2])];
    if (counts >= 0) fn(node, counts);
  }
}

const State& bias_of(const Node& node, const Role& role) {
  const std::string name = bias_of_router(node.name);
  const auto state = std::ranges::find(role.states, name, &State::name);
  CHECK(state != role.states.end(), "a router that counts has a bias: " + name);
  return *state;
}

}  // namespace

void begin_counts(Emitter& emit, const GraphMemory& memory) {
  for_each_counted(
      memory, [&](const Node& node, BufferId counts) { emit.zero(counts_of_router(node.name), emit.whole(counts)); });
}

void balance_experts(Emitter& emit, const GraphMemory& memory, const Role& role) {
  for_each_counted(memory, [&](const Node& node, BufferId counts) {
    const Value& value = memory.graph->value(node.inputs[2]);
    const State& bias = bias_of(node, role);
    const Region own = emit.whole(counts), all = emit.whole(emit.buffer(value.name, Category::activations, own.bytes));
    emit.copy(value.name, value.dtype(), own, all);
    emit.all_reduce(value.name, value.dtype(), value.spec.partial, all);
    emit.launch(bias.name,
                {Op::router_losses,
                 {{"balance", true}, {"rate", real(node, "rate")}},
                 {value.desc(), flat(DType::f32, 4), flat(DType::f32, value.shape().elements())}},
                {Update{all}, Read{emit.whole(role.scalars)}, Update{bias.region}});
  });
}

}  // namespace trainer
