// One walk over the nodes. The first of a training node's three has its place in the pipeline
// (strategies/pipeline/chunks.cpp).
#include "engine/transform/batch_norm.h"

#include <utility>

#include "engine/core/op_record.h"

namespace trainer {
namespace {

void train(Graph& graph, Node norm, std::vector<Node>& nodes) {
  const ValueId x = norm.inputs[0];
  const Shape& shape = graph.value(x).shape();
  const std::int64_t channels = shape[1], count = shape.elements() / channels;
  Node sums = node_like(norm, norm.name, Op::batch_norm_sums),
       update = node_like(norm, norm.name, Op::batch_norm_update);
  sums.inputs = {x};
  sums.outputs = {graph.add_value({.name = norm.name + ".sums", .spec = {DType::f64, {2, channels}}})};
  update.inputs = {sums.outputs[0], norm.inputs[3], norm.inputs[4]};
  update.attributes = {{"momentum", real(norm, "momentum")}, {"count", count}};
  norm.inputs = {x, sums.outputs[0], norm.inputs[1], norm.inputs[2]};
  norm.attributes = {{"eps", real(norm, "eps")}, {"count", count}, {"own", !flag(norm, "sync")}};
  norm.op = Op::batch_norm_apply;
  for (Node* node : {&sums, &norm, &update}) nodes.push_back(std::move(*node));
}

}  // namespace

void place_batch_norms(Graph& graph, bool training) {
  std::vector<Node> nodes;
  for (Node& node : std::exchange(graph.nodes, {})) {
    if (node.op != Op::batch_norm) {
      nodes.push_back(std::move(node));
    } else if (training) {
      train(graph, std::move(node), nodes);
    } else {
      node.attributes = {{"eps", real(node, "eps")}};
      nodes.push_back(std::move(node));
    }
  }
  graph.nodes = std::move(nodes);
}

}  // namespace trainer
