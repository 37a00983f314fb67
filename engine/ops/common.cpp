// Helpers that the declarations of ops share.
#include "engine/ops/common.h"

#include <charconv>

#include "engine/core/check.h"

namespace trainer::define {

void mistake(std::string message, std::string attribute) { throw OpMistake{std::move(message), std::move(attribute)}; }

void need_values(const TensorDesc& tensor, DType compute, const std::string& what) {
  if (tensor.dtype == compute) return;
  mistake(what + " must hold values (" + std::string(name_of(compute)) + "), but holds " +
          std::string(name_of(tensor.dtype)));
}

void need_ids(const TensorDesc& tensor, const std::string& what) {
  if (tensor.dtype != DType::i32) mistake(what + " must be i32, but are " + std::string(name_of(tensor.dtype)));
}

void need_rank_least(const TensorDesc& tensor, int rank, const std::string& what) {
  if (tensor.shape.rank() < rank)
    mistake(what + " needs at least " + std::to_string(rank) + " dims, but has shape " + tensor.shape.str());
}

void need_rank(const TensorDesc& tensor, int rank, const std::string& dims) {
  if (tensor.shape.rank() != rank)
    mistake("input must have the dims " + dims + ", but has shape " + tensor.shape.str());
}

const Shape& input_shape(const Graph& graph, const Node& node, std::size_t index) {
  return graph.value(node.inputs[index]).shape();
}

TensorDesc input_desc(const Graph& graph, const Node& node, std::size_t index) {
  return graph.value(node.inputs[index]).desc();
}

std::int64_t num_windows(std::int64_t size, const Attributes& window) {
  const std::int64_t kernel = window.integer("kernel"), padded = size + 2 * window.integer("padding");
  if (padded < kernel)
    mistake("a kernel of " + std::to_string(kernel) + " does not fit into " + std::to_string(padded) + " padded pixels",
            "kernel");
  return (padded - kernel) / window.integer("stride") + 1;
}

Attributes dim_attribute(const Attributes& given, int rank) {
  const std::int64_t dim = given.integer("dim"), from_last = dim < 0 ? dim : dim - rank;
  if (from_last < -rank || from_last >= 0)
    mistake("the input has " + std::to_string(rank) + " dims, counted from 0 or backwards from -1", "dim");
  Attributes attributes;
  if (from_last != -1) attributes.set("dim", from_last);
  return attributes;
}

int dim_of(const Graph& graph, const Node& node, ValueId id) {
  return graph.value(id).shape().rank() + static_cast<int>(integer(node, "dim"));
}

bool parts_rows(const Graph& graph, const Node& node, ValueId id, Placement cut) {
  return cut.is_shard(Placement::kRows) && dim_of(graph, node, id) + 1 != graph.value(id).shape().rank();
}

std::vector<std::int64_t> sizes_of(const std::string& text) {
  std::vector<std::int64_t> sizes;
  const char *at = text.data(), *end = at + text.size();
  while (at < end) {
    std::int64_t size = 0;
    const auto [next, error] = std::from_chars(at, end, size);
    CHECK(error == std::errc(), "a list of numbers: " + text);
    sizes.push_back(size);
    at = next + 1;
  }
  return sizes;
}

Inference infer_elementwise(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_values(inputs[0], compute);
  return {.attributes = given, .parameters = {}, .outputs = {{compute, inputs[0].shape}}, .saved_names = {}};
}

Placed all(const Node& node, Placement placement) { return std::vector<Placement>(node.outputs.size(), placement); }

Placement rows_of(const Shape& shape, Placement placement) {
  if (!placement.is_shard()) return placement;
  std::int64_t parts = placement.parts;
  for (int dim = 0; dim < placement.dim; ++dim) parts *= shape[dim];
  Placement rows = placement.moved_to(0);
  rows.parts = static_cast<std::int32_t>(parts), rows.lead = 1;
  return rows;
}

bool adds_once(const Node& node) { return !node.once.empty() || flag(node, "partial"); }

Placed shard_once(const Graph&, const Node& node, std::int64_t) {
  return all(node, adds_once(node) ? Placement::partial() : Placement::replicate());
}

Affine origin_once(const Graph& graph, const Node& node) {
  Affine origin;
  for (Axis axis : graph.mesh.active(node.once)) origin.along(axis) = 1;
  return origin;
}

void localize_once(const Graph&, const Node& node, Attributes& attributes) {
  if (!node.once.empty()) attributes.set("partial", true);
}

std::function<void(const Graph&, const Node&, Attributes&)> heads_of_rank(std::size_t q) {
  return [q](const Graph& graph, const Node& node, Attributes& attributes) {
    std::int64_t ranks = 1;
    for (const Cut& cut : graph.value(node.inputs[q]).spec.cuts())
      if (cut.as.is_shard(2)) ranks *= graph.mesh.size(cut.axis);
    if (ranks == 1) return;
    for (const char* name : {"heads", "kv_heads"}) attributes.set(name, attributes.integer(name) / ranks);
  };
}

}  // namespace trainer::define
