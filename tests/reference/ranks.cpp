// Collectives by their definitions, all else by the interpreter.
#include "tests/reference/ranks.h"

#include "engine/ops/op_def.h"

namespace trainer::reference {

namespace {

bool joins(Op op) { return is_collective(op) && op != Op::replicate; }

}  // namespace

void Ranks::set(ValueId id, const Tensor& tensor) {
  for (Interpreter& rank : ranks_) rank.set(id, tensor);
}

void Ranks::run() {
  for (const Node& node : graph_.nodes) {
    if (joins(node.op))
      run_collective(node);
    else
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
        ranks_[rank].run_node(node, static_cast<std::int64_t>(rank) * origin_of(graph_, node).along(Axis::tensor));
  }
}

void Ranks::run_collective(const Node& node) {
  const Shape shape = graph_.local_shape(node.outputs[0]);
  std::vector<Tensor> inputs;
  for (const Interpreter& rank : ranks_) inputs.push_back(rank.get(node.inputs[0]));
  const std::int64_t size = inputs[0].size();
  Tensor sum(inputs[0].shape), all(Shape{size * static_cast<std::int64_t>(ranks_.size())});
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
    for (std::int64_t i = 0; i < size; ++i) {
      sum[i] += inputs[rank][i];
      all[static_cast<std::int64_t>(rank) * size + i] = inputs[rank][i];
    }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    Tensor output(shape);
    const std::int64_t first = node.op == Op::reduce_scatter ? static_cast<std::int64_t>(rank) * output.size() : 0;
    const Tensor& from = node.op == Op::all_gather ? all : sum;
    for (std::int64_t i = 0; i < output.size(); ++i) output[i] = from[first + i];
    ranks_[rank].set(node.outputs[0], std::move(output));
  }
}

}  // namespace trainer::reference
