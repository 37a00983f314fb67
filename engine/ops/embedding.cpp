// embedding, positions: rows of a table, chosen by ids or by place in the sequence; document_positions: the ids of
// places that start again in each document of a row.
#include "engine/core/rows_of.h"
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

ParameterDef table(const Attributes& given) {
  return {"weight", {given.integer("rows"), given.integer("dim")}, matrix_init()};
}

Inference infer_embedding(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_ids(inputs[0], "ids");
  need_rank_least(inputs[0], 1, "ids");
  if (inputs[0].shape.rank() == Shape::kMaxDims) mistake("ids have too many dims: " + inputs[0].shape.str());
  std::vector<std::int64_t> sizes(inputs[0].shape.sizes().begin(), inputs[0].shape.sizes().end());
  sizes.push_back(given.integer("dim"));
  return {.attributes = {}, .parameters = {table(given)}, .outputs = {{compute, Shape(sizes)}}, .saved_names = {}};
}

void need_documents(const TensorDesc& documents, const Shape& input) {
  const TensorDesc expected{DType::i32, {input[0], input[1]}};
  if (documents.dtype != expected.dtype || documents.shape != expected.shape)
    mistake(std::string(name_of(documents.dtype)) + " " + documents.shape.str() + " where i32 " + expected.shape.str() +
                " is needed: the document of each position",
            "documents");
}

/// Where documents are given, NodeMaker makes an embedding of document_positions of the node; what must fit is the
/// same.
Inference infer_positions(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_rank_least(inputs[0], 2);
  if (given.has("documents")) need_documents(inputs[1], inputs[0].shape);
  const std::int64_t seq = inputs[0].shape[1], rows = given.integer("rows"), offset = given.integer("offset");
  if (seq + offset > rows)
    mistake("the sequence has " + std::to_string(seq) + " positions" +
                (offset > 0 ? " from row " + std::to_string(offset) + " on" : "") + ", the table " +
                std::to_string(rows) + " rows",
            "rows");
  Inference inference{.attributes = offset > 0 ? Attributes{{"offset", offset}} : Attributes{},
                      .parameters = {table(given)},
                      .outputs = {{compute, {seq, given.integer("dim")}}},
                      .saved_names = {}};
  inference.reads_inputs = false;
  return inference;
}

/// Cut by samples; by columns of the table; or by its rows (attribute `cut`), where ids of other ranks' rows give
/// zeros.
Placed shard_embedding(const Graph& graph, const Node& node, Placing in) {
  const Placement ids = in[0], weight = in[1];
  if (ids.is_shard() && weight.is_replicate()) return all(node, ids);
  if (!ids.is_replicate()) return {};
  if (weight.is_shard(1)) return all(node, weight.moved_to(input_shape(graph, node, 0).rank()));
  if (weight.is_shard(0) && weight.parts == 1) return all(node, Placement::partial());
  return {};
}

Placed shard_embedding_grad(const Graph& graph, const Node& node, Placing in) {
  const Placement ids = in[0], dy = in[1];
  const int last = input_shape(graph, node, 1).rank() - 1;
  if (ids.is_shard() && ids == dy) return all(node, Placement::partial());
  if (!ids.is_replicate()) return {};
  if (dy.is_partial()) return all(node, dy);
  if (dy.is_shard(last)) return all(node, dy.moved_to(1));
  return {};
}

/// The parameter of a table or of its gradient.
const Value& parameter_of(const Graph& graph, ValueId table) {
  const Value& value = graph.value(table);
  return value.kind == ValueKind::gradient ? graph.value(value.parameter) : value;
}

/// A rank's rows of the table, of which `table` is the table or its gradient. The parameter may itself be some rows.
Affine first_row(const Graph& graph, ValueId table) {
  const Value& parameter = parameter_of(graph, table);
  Affine first = origin(parameter.spec, 0, graph.mesh);
  if (const std::optional<RowsOf> rows = named_rows(parameter.name)) first.base += rows->first;
  return first;
}

std::function<void(const Graph&, const Node&, Attributes&)> rows_of_rank(
    const std::function<ValueId(const Node&)>& table_of) {
  return [table_of](const Graph& graph, const Node& node, Attributes& attributes) {
    const ValueId table = table_of(node);
    const std::optional<RowsOf> rows = named_rows(parameter_of(graph, table).name);
    if (!rows && first_row(graph, table) == Affine{}) return;
    attributes.set("cut", true);
    attributes.set("table_rows", rows ? rows->rows : graph.value(table).shape()[0]);
  };
}

Placed shard_columns(const Graph&, const Node& node, Placing in) {
  if (in[0].is_shard(1)) return all(node, in[0]);
  return {};
}

/// The axes that cut the sequence give each rank the rows of its part: they follow from the mesh, since the op reads no
/// data. Ranks that add up their outputs (Node::once) are a whole table apart.
Affine first_of_sequence(const Graph& graph, const Node& node, std::int64_t seq) {
  Affine first;
  for (Axis axis : graph.mesh.active(kSequenceAxes))
    first.along(axis) = (seq /= graph.mesh.size(axis)) / (integer(node, "zigzag") > 0 ? 2 : 1);
  return first;
}
Placement part_of_sequence(const Node& node, int dim) {
  return integer(node, "zigzag") > 0 ? Placement::zigzag(dim) : Placement::shard(dim);
}
Affine first_position(const Graph& graph, const Node& node) {
  const std::int64_t rows = input_shape(graph, node, 0)[0];
  Affine first = first_of_sequence(graph, node, graph.value(node.outputs[0]).shape()[0]);
  for (Axis axis : graph.mesh.active(node.once)) first.along(axis) = rows;
  return first;
}

/// By samples. A part of the sequence has its own places in the documents of the whole one.
Placed shard_document_positions(const Graph&, const Node& node, Placing in) {
  if (in[0].is_shard(0)) return all(node, in[0]);
  return {};
}

Placed shard_positions_by_origin(const Graph& graph, const Node& node, std::int64_t step) {
  if (step % input_shape(graph, node, 0)[0] == 0) return shard_once(graph, node, step);
  return all(node, part_of_sequence(node, 0));
}

/// Each rank adds to the rows of its positions.
Placed shard_positions_grad(const Graph&, const Node& node, Placing in) {
  if (in[0].is_shard(1) || in[0].is_partial()) return all(node, in[0]);
  if (in[0] == part_of_sequence(node, 0)) return all(node, Placement::partial());
  return {};
}

/// Reads only the rows it needs.
Cost cost_rows(const Signature& signature) {
  Cost cost;
  cost.bytes_written = static_cast<double>(signature.operands.back().bytes());
  cost.bytes_read = cost.bytes_written;
  if (signature.op == Op::embedding) cost.bytes_read += static_cast<double>(signature.operands[0].bytes());
  return cost;
}

}  // namespace

OpDef embedding() {
  OpDef def{.op = Op::embedding};
  def.infer = infer_embedding;
  def.gradient = [](GradientBuilder& build, const Node& node, OutputGradients dy) {
    const Graph& graph = build.graph();
    const TensorDesc dweight{build.reduce_dtype(), input_shape(graph, node, 1)};
    build.node_with_gradients(node, Op::embedding_grad, node.attributes, {node.inputs[0], dy[0]}, {dweight},
                              {node.inputs[1]});
    return std::vector<ValueId>{kNone, kNone};
  };
  def.shard = shard_embedding;
  def.origin = [](const Graph& graph, const Node& node) { return first_row(graph, node.inputs[1]); };
  def.localize = rows_of_rank([](const Node& node) { return node.inputs[1]; });
  def.cost = cost_rows;
  return def;
}

OpDef embedding_grad() {
  OpDef def{.op = Op::embedding_grad, .shard = shard_embedding_grad};
  def.shard_by_origin = [](const Graph&, const Node& node, std::int64_t) {
    return all(node, Placement::shard(0));
  };  // its own rows
  def.origin = [](const Graph& graph, const Node& node) { return first_row(graph, node.outputs[0]); };
  def.localize = rows_of_rank([](const Node& node) { return node.outputs[0]; });
  return def;
}

OpDef positions() {
  OpDef def{.op = Op::positions};
  def.infer = infer_positions;
  def.gradient = [](GradientBuilder& build, const Node& node, OutputGradients dy) {
    const TensorDesc dweight{build.reduce_dtype(), input_shape(build.graph(), node, 0)};
    Attributes attributes;
    for (const char* name : {"offset", "zigzag"})
      if (const std::int64_t given = integer(node, name); given > 0) attributes.set(name, given);
    build.node_with_gradients(node, Op::positions_grad, attributes, {dy[0]}, {dweight}, {node.inputs[0]});
    return std::vector<ValueId>{kNone};
  };
  def.shard = shard_columns;
  def.shard_by_origin = shard_positions_by_origin;
  def.origin = first_position;
  def.localize = localize_once;
  def.cost = cost_rows;
  return def;
}

OpDef document_positions() {
  OpDef def{.op = Op::document_positions};
  def.shard = shard_document_positions;
  def.shard_by_origin = [](const Graph&, const Node& node, std::int64_t) {
    return all(node, part_of_sequence(node, 1));
  };
  def.origin = [](const Graph& graph, const Node& node) {
    return first_of_sequence(graph, node, input_shape(graph, node, 0)[1]);
  };
  return def;
}

OpDef positions_grad() {
  OpDef def{.op = Op::positions_grad, .shard = shard_positions_grad};
  def.origin = [](const Graph& graph, const Node& node) {
    return origin(graph.value(node.inputs[0]).spec, 0, graph.mesh);
  };
  return def;
}

}  // namespace trainer::define
