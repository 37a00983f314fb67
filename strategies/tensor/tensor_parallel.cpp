// Sources: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
// 2019, section 3 (columns, rows, heads, vocabulary); Korthikanti et al., "Reducing Activation Recomputation in Large
// Transformer Models", 2022, section 4.2.2 (sequence parallelism: sums are scattered to rows, which `distribute` does).
//
//   op         parameter           placement         and so its result is
//   embedding  weight              Shard(0)          a partial sum: ids of other ranks' rows give zeros
//   column     weight, bias        Shard(0)          cut by columns; packed q, k, v in three parts, grouped heads in
//   whole groups row        weight              Shard(1)          a partial sum
//              bias                Replicate         added by the first rank only
//   experts    gate, up            Shard(1)          cut by columns: the hidden layer of every expert
//              down                Shard(2)          a partial sum
//   others     all                 Replicate         as its input
//
// Per layer and pass each rank sends two all-reduces of the activations, or as many bytes in an all-gather and a
// reduce-scatter; two more all-gathers in the backward pass where it keeps its shard of what was gathered
// (engine/transform/recompute.cpp). Departs from the papers: rows are cut over samples and positions together; a bias
// and a table of positions that belong to a partial sum are added by the first rank only, so that they are part of the
// reduction.
#include "strategies/tensor/tensor_parallel.h"

#include <map>
#include <set>

#include "engine/core/op_record.h"
#include "engine/ops/refuse.h"

namespace trainer::strategies {
namespace {

constexpr Axes kTensor = Axes::of(Axis::tensor);

class Table {
 public:
  explicit Table(Graph& graph) : graph_(graph), n_(graph.mesh.size(Axis::tensor)) {
    for (const Node& node : graph.nodes)
      for (ValueId input : node.inputs) ++reads_[input];
    look();
  }

  void run() {
    for (Node& node : graph_.nodes) {
      if (node.op == Op::embedding) cut(node, node.inputs[1], Placement::shard(0));
      if (node.op == Op::linear && node.parallel == Parallel::column) column(node);
      if (node.op == Op::linear && node.parallel == Parallel::row) row(node);
      if (node.op == Op::expert_linear) expert(node);
      if (node.op == Op::positions && once_.contains(node.outputs[0])) node.once = kTensor;
    }
  }

 private:
  void column(const Node& node) {
    const std::int64_t out = graph_.value(node.inputs[1]).shape()[0];
    const auto packed = rows_.find(node.outputs[0]);
    const Placement rows = packed == rows_.end() ? Placement::shard(0) : packed->second;
    if (!heads_.contains(node.outputs[0])) divide(node, "its outputs", out / (rows.lead + rows.parts - 1), out);
    for (std::size_t i = 1; i < node.inputs.size(); ++i) cut(node, node.inputs[i], rows);
  }

  void row(Node& node) {
    const std::int64_t in = graph_.value(node.inputs[1]).shape()[1];
    divide(node, "its inputs", in, in);
    cut(node, node.inputs[1], Placement::shard(1));
    if (node.inputs.size() > 2) node.once = kTensor;
  }

  /// Into the hidden layer of the experts, [experts, hidden, dim], or out of it, [experts, dim, hidden].
  void expert(const Node& node) {
    const ValueId weight = node.inputs[2];
    const bool into = node.parallel == Parallel::column;
    const std::int64_t hidden = graph_.value(weight).shape()[into ? 1 : 2];
    divide(node, "the hidden layer of an expert", hidden, hidden);
    cut(node, weight, Placement::shard(into ? 1 : 2));
  }

  void cut(const Node& node, ValueId parameter, const Placement& placement) {
    Spec& spec = graph_.value(parameter).spec;
    const Placement before = spec.on(Axis::tensor);
    if (before.is_replicate())
      spec.place(Axis::tensor, placement);
    else if (before != placement)
      refuse(graph_, node, Axis::tensor, "its weight is shared with a node that cuts it otherwise");
  }

  void divide(const Node& node, const std::string& what, std::int64_t pieces, std::int64_t shown) const {
    if (pieces % n_ != 0) refuse_uneven(graph_, node, Axis::tensor, what, pieces, shown);
  }

  // Linears whose result is several in one, packed q, k and v or the pieces of a split, whose rows are cut one by one;
  // those that make a loss's logits, whose rows may be padded; tables of positions that are only added to an embedding.
  void look() {
    std::set<ValueId> positions, embeddings;
    for (const Node& node : graph_.nodes) {
      if (node.op == Op::positions) positions.insert(node.outputs[0]);
      if (node.op == Op::embedding) embeddings.insert(node.outputs[0]);
      if (node.op == Op::attention && flag(node, "packed"))
        rows_[node.inputs[0]] =
            Placement::shard(0, 3, static_cast<std::int32_t>(integer(node, "heads") / integer(node, "kv_heads")));
      if (node.op == Op::split && integer(node, "dim") == -1) look_at_pieces(node);
      if (node.op == Op::cross_entropy && reads_[node.inputs[0]] == 1) heads_.insert(node.inputs[0]);
      const bool sum = node.op == Op::add && embeddings.contains(node.inputs[0]) && positions.contains(node.inputs[1]);
      if (sum && reads_[node.inputs[0]] == 1 && reads_[node.inputs[1]] == 1) once_.insert(node.inputs[1]);
    }
  }

  // A Placement says pieces of one length, of which the first may be a multiple. Others are not cut.
  void look_at_pieces(const Node& split) {
    const auto length = [&](std::size_t i) { return graph_.value(split.outputs[i]).shape()[-1]; };
    const std::size_t count = split.outputs.size();
    for (std::size_t i = 2; i < count; ++i)
      if (length(i) != length(1)) return;
    if (count == 1 || length(0) % length(1) != 0) return;
    rows_[split.inputs[0]] =
        Placement::shard(0, static_cast<std::int32_t>(count), static_cast<std::int32_t>(length(0) / length(1)));
  }

  Graph& graph_;
  const std::int64_t n_;
  std::map<ValueId, int> reads_;
  std::map<ValueId, Placement> rows_;  ///< how the rows of the linear that makes the value are cut
  std::set<ValueId> heads_, once_;
};

}  // namespace

void tensor_parallel(Graph& graph) {
  if (graph.mesh.size(Axis::tensor) == 1) return;
  infer_marks(graph);
  Table(graph).run();
}

}  // namespace trainer::strategies
