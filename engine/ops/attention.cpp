// attention: softmax(q·kᵀ / √head_dim)·v by heads, with rotary positions if asked, without the keys that pad a sample
// where its length is given, and within each document of a row where documents are given. Saves the log of each row's
// sum of exponentials, from which the backward pass makes the probabilities again.
#include <algorithm>

#include "engine/core/rope.h"
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

std::string text(std::int64_t number) { return std::to_string(number); }

/// Sizes of the heads of q and k, and of v and the result.
struct HeadDims {
  std::int64_t of_keys = 0, of_values = 0;
};

/// From packed qkv or from three inputs. Keys and values are of the queries' sequence where attention is causal, else
/// of any one.
HeadDims head_dims_of(std::span<const TensorDesc> in, std::int64_t heads, std::int64_t kv_heads, bool causal) {
  const std::int64_t dim = in[0].shape[2];
  if (in.size() == 1) {
    const std::int64_t pieces = heads + 2 * kv_heads;
    if (dim % pieces != 0)
      mistake("packed q, k and v of " + text(heads) + " + 2 * " + text(kv_heads) +
                  " heads do not divide the last dim of " + in[0].shape.str(),
              "heads");
    return {dim / pieces, dim / pieces};
  }
  if (dim % heads != 0) mistake(text(heads) + " heads do not divide the last dim of " + in[0].shape.str(), "heads");
  const Shape expected{in[0].shape[0], in[causal ? 0 : 1].shape[1], dim / heads * kv_heads};
  if (in[1].shape != expected)
    mistake("k has shape " + in[1].shape.str() + " where " + expected.str() + " is needed (" + text(kv_heads) +
            " heads of " + text(dim / heads) + ")");
  const std::int64_t values = in[2].shape[2];
  if (in[2].shape != expected.with_last(values) || values % kv_heads != 0)
    mistake("v has shape " + in[2].shape.str() + " where " + expected.str() + " is needed, or heads of another size (" +
            text(kv_heads) + " of them)");
  return {dim / heads, values / kv_heads};
}

/// Scale, softcap and window, if they are not the defaults. A window as long as `seq` counts as none.
void set_scores(Attributes& attributes, const Attributes& given, std::int64_t seq) {
  const std::int64_t window = given.integer("window");
  if (window > 0 && !given.flag("causal")) mistake("a window needs `causal: true`", "window");
  if (given.has("scale")) attributes.set("scale", given.real("scale"));
  if (given.real("softcap") > 0) attributes.set("softcap", given.real("softcap"));
  if (window > 0 && window < seq) attributes.set("window", window);
}

void need_lengths(const TensorDesc& lengths, const Attributes& given, std::int64_t batch) {
  const TensorDesc expected{DType::i32, {batch}};
  if (lengths.dtype != expected.dtype || lengths.shape != expected.shape)
    mistake(std::string(name_of(lengths.dtype)) + " " + lengths.shape.str() + " where i32 " + expected.shape.str() +
                " is needed: how many keys of each sample are there",
            "lengths");
  if (given.integer("window") > 0)
    mistake("lengths go with no window: a query beyond its sample's length would see no key", "lengths");
}

/// Queries and keys have to be of one sequence: documents are numbered for both at once.
void need_documents(const TensorDesc& documents, const Attributes& given, std::span<const TensorDesc> in) {
  const TensorDesc expected{DType::i32, {in[0].shape[0], in[0].shape[1]}};
  if (documents.dtype != expected.dtype || documents.shape != expected.shape)
    mistake(std::string(name_of(documents.dtype)) + " " + documents.shape.str() + " where i32 " + expected.shape.str() +
                " is needed: the document of each position",
            "documents");
  if (in.size() > 1 && in[1].shape[1] != in[0].shape[1])
    mistake("documents need keys of the queries' own sequence", "documents");
  if (given.has("lengths")) mistake("documents go with no lengths: -1 is what pads a row", "documents");
}

/// `operands` are qkv, or q, k and v, and behind them the lengths or the documents where they are given.
Inference infer_attention(const Attributes& given, std::span<const TensorDesc> operands, DType compute) {
  const bool padded = given.has("lengths"), by_document = given.has("documents");
  const std::span<const TensorDesc> in = operands.first(operands.size() - (padded ? 1 : 0) - (by_document ? 1 : 0));
  if (in.size() == 2) mistake("takes packed qkv, or [q, k, v]; two inputs were given");
  for (const TensorDesc& input : in) {
    need_values(input, compute);
    need_rank(input, 3, "[batch, seq, dim]");
  }
  const std::int64_t heads = given.integer("heads");
  const std::int64_t kv_heads = given.has("kv_heads") ? given.integer("kv_heads") : heads;
  if (heads % kv_heads != 0)
    mistake(text(kv_heads) + " key/value heads do not divide " + text(heads) + " heads", "kv_heads");
  const HeadDims dims = head_dims_of(in, heads, kv_heads, given.flag("causal"));
  const Rope rope = parse_rope(given.text("rope"));
  if (const std::string wrong = rope_mistake(rope, dims.of_keys); !wrong.empty()) mistake(wrong, "rope");
  if (rope.theta > 0 && in.size() > 1 && in[1].shape[1] != in[0].shape[1])
    mistake("rotary positions need keys of the queries' own sequence", "rope");
  Inference inference;
  inference.attributes = {
      {"heads", heads}, {"kv_heads", kv_heads}, {"causal", given.flag("causal")}, {"packed", in.size() == 1}};
  const Shape& shape = in[0].shape;
  if (padded) {
    need_lengths(operands[in.size()], given, shape[0]);
    inference.attributes.set("padded", true);
  }
  if (by_document) {
    need_documents(operands.back(), given, in);
    inference.attributes.set("by_document", true);
  }
  set_rope(inference.attributes, rope, dims.of_keys, shape[1]);
  set_scores(inference.attributes, given, shape[1]);
  inference.outputs = {{compute, shape.with_last(heads * dims.of_values)}, {DType::f32, {shape[0], heads, shape[1]}}};
  inference.saved_names = {"lse"};
  return inference;
}

std::vector<ValueId> gradient_attention(GradientBuilder& build, const Node& node, OutputGradients dy) {
  std::vector<ValueId> inputs{dy[0]};
  inputs.insert(inputs.end(), node.inputs.begin(), node.inputs.end());
  inputs.insert(inputs.end(), node.outputs.begin(), node.outputs.end());
  const bool masked = flag(node, "padded") || flag(node, "by_document");
  std::vector<TensorDesc> outputs;
  for (std::size_t i = 0; i + (masked ? 1 : 0) < node.inputs.size(); ++i)
    outputs.push_back(input_desc(build.graph(), node, i));
  std::vector<ValueId> gradients = build.node(node, Op::attention_grad, node.attributes, inputs, outputs);
  if (masked) gradients.push_back(kNone);
  return gradients;
}

/// Inputs of attention by name: packed qkv is q, k and v at once.
struct Trio {
  Placement q, k, v;
};
Trio trio_of(const Node& node, Placing in) {
  if (flag(node, "packed")) return {in[0], in[0], in[0]};
  return {in[0], in[1], in[2]};
}

/// How o, and the logs of sums [batch, heads, seq], lie for queries, keys and values that lie so.
struct Rows {
  Placement o, lse;
};

/// By samples; by heads, where each rank has the kv heads of its query heads (packed: q is heads / kv_heads times as
/// long as k and v); by queries, which see keys and values of the whole sequence; or zigzag, by queries, keys and
/// values alike, which engine/transform/ring.h computes block by block.
std::optional<Rows> rows_of_attention(const Node& node, const Trio& in) {
  const bool packed = flag(node, "packed"), alike = in.q == in.k && in.k == in.v;
  if (alike && in.q.is_shard(0)) return Rows{in.q, in.q};
  const int lead = static_cast<int>(integer(node, "heads") / integer(node, "kv_heads"));
  const Placement heads = packed ? Placement::shard(2, 3, lead) : Placement::shard(2);
  if (alike && in.q == heads) return Rows{Placement::shard(2), Placement::shard(1)};
  const bool queries = in.q == Placement::shard(1) && in.k.is_replicate() && in.v.is_replicate();
  if (queries && !packed) return Rows{in.q, Placement::shard(2)};
  if (alike && in.q == Placement::zigzag(1) && !packed) return Rows{in.q, in.q.moved_to(2)};
  return {};
}

/// Lengths and documents lie as the samples do. They speak of keys of the whole sequence, so parts of it take all of
/// them. `q`: the index of q, or packed qkv, in `in`.
bool masks_fit(const Node& node, Placing in, std::size_t q) {
  if (!flag(node, "padded") && !flag(node, "by_document")) return true;
  const Placement mask = in[q + (flag(node, "packed") ? 1 : 3)];
  return in[q].is_shard(0) ? mask == in[q] : mask.is_replicate();
}

Placed shard_attention(const Graph&, const Node& node, Placing in) {
  const std::optional<Rows> rows = rows_of_attention(node, trio_of(node, in));
  if (!rows || !masks_fit(node, in, 0)) return {};
  return std::vector<Placement>{rows->o, rows->lse};
}

/// Inputs do, qkv | q, k, v, lengths or documents?, o, lse. Queries that are cut give each a share of the gradients of
/// all keys and values.
Placed shard_attention_grad(const Graph&, const Node& node, Placing in) {
  const std::size_t n = in.size();
  const Trio trio = trio_of(node, in.subspan(1));
  const std::optional<Rows> rows = rows_of_attention(node, trio);
  if (!rows || !masks_fit(node, in, 1) || in[0] != rows->o || in[n - 2] != rows->o || in[n - 1] != rows->lse) return {};
  if (trio.q == trio.k) return all(node, trio.q);
  return std::vector<Placement>{trio.q, Placement::partial(), Placement::partial()};
}

/// FLOPs of one of the products between queries and keys, and one between probabilities and values, over all heads and
/// samples. Causal queries of a part of the sequence count the mean over all parts of their size: half the keys, and
/// with a window of w of n keys w − w²/2n. Where a row has documents, their lengths are not known before the data is:
/// the row counts as one, which is the most. `q`, `k`: the first operand that has rows of queries, and of keys; `o`:
/// one of the shape of the result.
double pair_flops(const Signature& signature, std::size_t q, std::size_t k, std::size_t o) {
  const Shape &results = signature.operands[o].shape, &queries = signature.operands[q].shape;
  const double keys = static_cast<double>(signature.operands[k].shape[1]);
  const double window = static_cast<double>(integer(signature, "window"));
  const double seen = window > 0 ? std::min(window, keys) : keys;
  const double pairs = flag(signature, "causal") ? seen - seen * seen / (2 * keys) : keys;
  const std::int64_t scores = flag(signature, "packed") ? results.elements() : queries.elements();
  return 2.0 * static_cast<double>(scores + results.elements()) * pairs;
}

/// The last rank's queries see the most keys: those of all ranks before it. Of p pairs a query has on the mean of all
/// ranks, and l on the last one, l/p.
double busiest_of(const Signature& signature, std::size_t q) {
  if (!flag(signature, "causal") || flag(signature, "packed")) return 1;
  const auto queries = static_cast<double>(signature.operands[q].shape[1]),
             keys = static_cast<double>(signature.operands[q + 1].shape[1]);
  if (queries >= keys) return 1;
  const auto window = static_cast<double>(integer(signature, "window"));
  const double seen = window > 0 ? std::min(window, keys) : keys, before = keys - queries;
  // A query at position x sees min(x, seen) keys: those from `before` to `seen` a growing number, the others `seen`.
  const double growing = std::max(0.0, seen - before);
  const double last = (growing * (before + seen) / 2 + (queries - growing) * seen) / queries;
  return last / (seen - seen * seen / (2 * keys));
}

/// Operand k, or qkv, of a signature whose q is operand `q`.
std::size_t keys_of(const Signature& signature, std::size_t q) { return flag(signature, "packed") ? q : q + 1; }

/// Position of a rank's first query, where queries are cut along the sequence. `q` as of heads_of_rank.
std::function<Affine(const Graph&, const Node&)> first_query(std::size_t q) {
  return [q](const Graph& graph, const Node& node) { return origin(graph.value(node.inputs[q]).spec, 1, graph.mesh); };
}

}  // namespace

OpDef attention() {
  OpDef def{.op = Op::attention, .min_inputs = 1, .max_inputs = 3};
  def.infer = infer_attention;
  def.gradient = gradient_attention;
  def.shard = shard_attention;
  def.origin = first_query(0);
  def.localize = heads_of_rank(0);
  def.indivisible = [](const Node& node, Placing in) -> std::vector<std::pair<std::string, std::int64_t>> {
    if (!in[0].is_shard(2)) return {};
    return {{"its heads", integer(node, "heads")}, {"its kv_heads", integer(node, "kv_heads")}};
  };
  def.flops = [](const Signature& s) { return pair_flops(s, 0, keys_of(s, 0), s.operands.size() - 2); };
  def.busiest = [](const Signature& s) { return busiest_of(s, 0); };
  return def;
}

OpDef attention_grad() {
  OpDef def{.op = Op::attention_grad};
  def.shard = shard_attention_grad;
  def.origin = first_query(1);
  def.localize = heads_of_rank(1);
  def.flops = [](const Signature& s) { return 2 * pair_flops(s, 1, keys_of(s, 1), 0); };
  def.busiest = [](const Signature& s) { return busiest_of(s, 1); };
  return def;
}

}  // namespace trainer::define
