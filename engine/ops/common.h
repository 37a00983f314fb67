// What the declarations of ops share: checks of operands, placements that flow through, bytes that move.
#pragma once

#include <string>

#include "engine/ops/define.h"

namespace trainer::define {

using Placed = std::optional<std::vector<Placement>>;
using Placing = std::span<const Placement>;

[[noreturn]] void mistake(std::string message, std::string attribute = {});
/// Mistakes unless `tensor` holds values of the compute dtype, or i32 ids.
void need_values(const TensorDesc& tensor, DType compute, const std::string& what = "input");
void need_ids(const TensorDesc& tensor, const std::string& what);
/// Mistakes unless `tensor` has at least (exactly) `rank` dims.
void need_rank_least(const TensorDesc& tensor, int rank, const std::string& what = "input");
void need_rank(const TensorDesc& tensor, int rank, const std::string& dims);

inline Init matrix_init() { return {.stddev = 0.02}; }
inline Init zeros_init() { return {}; }
inline Init ones_init() { return {.constant = 1}; }

/// How many windows fit into so many pixels, by the attributes kernel, stride and padding; a mistake if none does.
std::int64_t num_windows(std::int64_t size, const Attributes& window);
/// `infer` of ops that keep their attributes, and the shape of their input.
Inference infer_elementwise(const Attributes& given, std::span<const TensorDesc> inputs, DType compute);

/// The attribute `dim` as kernels take it, of a tensor of `rank` dims: from the last, and absent for the last.
Attributes dim_attribute(const Attributes& given, int rank);
/// The dim that a node's attribute `dim` says, counted from the first, of a tensor like value `id`.
int dim_of(const Graph& graph, const Node& node, ValueId id);
/// Whether the node's dim is another than the last and `cut` one of rows, which it would part.
bool parts_rows(const Graph& graph, const Node& node, ValueId id, Placement cut);
/// "4,16,-1" as numbers.
std::vector<std::int64_t> sizes_of(const std::string& text);

/// Shapes and placements of the operands of a node.
const Shape& input_shape(const Graph& graph, const Node& node, std::size_t index);
TensorDesc input_desc(const Graph& graph, const Node& node, std::size_t index);
/// The outputs all so.
Placed all(const Node& node, Placement placement);
/// Shard(dim) of a tensor of shape `shape` as seen by its rows flattened to one dim.
Placement rows_of(const Shape& shape, Placement placement);

/// Of ops whose attribute `partial` makes ranks other than the first (Call::origin 0) leave out what all have alike
/// (Node::once).
bool adds_once(const Node& node);
Placed shard_once(const Graph& graph, const Node& node, std::int64_t step);
Affine origin_once(const Graph& graph, const Node& node);
void localize_once(const Graph& graph, const Node& node, Attributes& attributes);

/// Heads of attention on a rank that has a part of them. `q` is the index of q, or packed qkv, among the inputs.
std::function<void(const Graph&, const Node&, Attributes&)> heads_of_rank(std::size_t q);

/// Adds the gradient of a bias alone, for a node whose weight is frozen: dy summed over all dims but `dim` (negative:
/// from the last).
void bias_gradient(GradientBuilder& build, const Node& node, ValueId dy, ValueId bias, int dim);
/// Adds the gradients of the weight and bias of a product of x (inputs x, weight, bias), as far as they are trained: by
/// `op` of x and dy, which takes `attributes` and `bias`, or of the bias alone.
void product_gradients(GradientBuilder& build, const Node& node, Op op, Attributes attributes, ValueId dy, int dim);

}  // namespace trainer::define
