// How packed attention is unpacked: a split before it, and the attribute `packed` cleared.
#include "engine/ops/unpack_attention.h"

#include <utility>
#include <vector>

#include "engine/core/op_record.h"

namespace trainer {

Node unpack_attention(Graph& graph, Node& attention) {
  const Value packed = graph.value(attention.inputs[0]);
  const std::int64_t heads = integer(attention, "heads"), kv_heads = integer(attention, "kv_heads");
  const std::int64_t head_dim = packed.shape()[-1] / (heads + 2 * kv_heads);
  Node node = node_like(attention, attention.name + ".split", Op::split);
  node.inputs = {attention.inputs[0]};
  for (const auto& [suffix, count] : {std::pair(".q", heads), {".k", kv_heads}, {".v", kv_heads}})
    node.outputs.push_back(graph.add_value(
        {.name = attention.name + suffix, .spec = {packed.dtype(), packed.shape().with_last(count * head_dim)}}));
  std::vector<ValueId> inputs = node.outputs;
  inputs.insert(inputs.end(), attention.inputs.begin() + 1, attention.inputs.end());  // lengths or documents
  attention.inputs = std::move(inputs);
  attention.attributes.set("packed", false);
  return node;
}

}  // namespace trainer
