// attention_block: attention of a rank's queries and one other rank's keys and values, which are on their way round a
// ring (engine/transform/ring.h), added to what the blocks before gave. Its placements say which block is due: at step
// i the keys are those of the rank i places before, and o holds the blocks of the steps before, each once.
//
//   step i            k, v, dk, dv     o, dq before    after
//   along the ring    turned i         steps [0, i)    steps [0, i + 1), which after the last one is whole
#include <algorithm>

#include "engine/core/zigzag.h"
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

/// Where the operands of a node stand: `q` is the index of q, and `before` that of what the blocks before gave.
struct Places {
  std::size_t q, mask, before;
  bool masked, continues;
};

Places places_of(const Node& node) {
  const bool forward = node.op == Op::attention_block;
  Places places{};
  places.q = forward ? 0 : 1;
  places.masked = flag(node, "padded") || flag(node, "by_document");
  places.continues = flag(node, "continues");
  places.mask = places.q + 3;
  places.before = places.mask + (places.masked ? 1 : 0) + (forward ? 0 : 2);  // behind o and lse of the result
  return places;
}

/// The step of a node in its ring.
struct Turn {
  int step, ranks;
  explicit Turn(const Node& node)
      : step(static_cast<int>(integer(node, "step"))), ranks(static_cast<int>(integer(node, "ranks"))) {}
  Placement keys(const Placement& q) const { return q.turned(step, ranks); }
  Placement before(const Placement& q) const { return q.summed(0, step, ranks); }
  Placement after(const Placement& q) const { return q.summed(0, step + 1, ranks); }
};

bool is_ring(const Placement& q) { return q == Placement::zigzag(1); }

/// How q is cut, if keys, values and the mask fit: by samples, by heads, or by the ring.
bool operands_fit(const Node& node, Placing in, const Places& at) {
  const Placement q = in[at.q], k = in[at.q + 1], v = in[at.q + 2];
  const bool samples = q == Placement::shard(0);
  if (at.masked && !(samples ? in[at.mask] == q : in[at.mask].is_replicate())) return false;
  if (samples || q == Placement::shard(2)) return k == q && v == q;
  return is_ring(q) && k == Turn(node).keys(q) && v == k;
}

/// Of [batch, heads, seq] beside [batch, seq, heads · dim].
Placement of_sums(const Placement& q) { return q.is_shard(0) ? q : q.moved_to(q.is_shard(2) ? 1 : 2); }

Placed shard_block(const Graph&, const Node& node, Placing in) {
  const Places at = places_of(node);
  if (!operands_fit(node, in, at)) return {};
  const Placement q = in[at.q], before = is_ring(q) ? Turn(node).before(q) : q;
  if (at.continues && (in[at.before] != before || in[at.before + 1] != of_sums(before))) return {};
  const Placement after = is_ring(q) ? Turn(node).after(q) : q;
  return std::vector<Placement>{after, of_sums(after)};
}

Placed shard_block_grad(const Graph&, const Node& node, Placing in) {
  const Places at = places_of(node);
  const std::size_t o = at.before - 2;
  if (!operands_fit(node, in, at)) return {};
  const Placement q = in[at.q];
  if (in[0] != q || in[o] != q || in[o + 1] != of_sums(q)) return {};
  if (!is_ring(q)) return at.continues && in[at.before] != q ? Placed{} : all(node, q);
  const Turn turn(node);
  if (at.continues && in[at.before] != turn.before(q)) return {};
  const Placement own = turn.keys(q).summed(turn.step, turn.step + 1, turn.ranks);
  return std::vector<Placement>{turn.after(q), own, own};
}

/// Of c × c pairs of a query and a key that is `apart` positions before it those fewer than `reach` positions apart.
double pairs_within(double c, double apart, double reach) {
  const double u = std::clamp(reach - apart, -c, c);
  return u <= 0 ? (c + u) * (c + u) / 2 : c * c - (c - u) * (c - u) / 2;
}

/// Pairs of queries and keys that see each other, the mean over the ranks. A row of documents counts as one.
double mean_pairs(const Signature& s, std::int64_t queries, std::int64_t keys) {
  const std::int64_t ranks = integer(s, "ranks"), step = integer(s, "step"), window = integer(s, "window");
  if (!flag(s, "causal")) return static_cast<double>(queries * keys);
  const double c = static_cast<double>(queries) / 2;
  double pairs = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    for (const ChunkPair& pair : ChunkPairs(rank, ranks, step, true)) {
      const double apart = static_cast<double>(pair.apart) * c;
      const double before = window > 0 ? pairs_within(c, apart, static_cast<double>(window)) : c * c;
      pairs += before - pairs_within(c, apart, 0);
    }
  return pairs / static_cast<double>(ranks);
}

double block_flops(const Signature& s, std::size_t q) {
  const Shape &queries = s.operands[q].shape, &keys = s.operands[q + 1].shape, &values = s.operands[q + 2].shape;
  const std::int64_t heads = integer(s, "heads"), kv_heads = integer(s, "kv_heads");
  const std::int64_t width = queries[2] + values[2] / kv_heads * heads;
  return 2.0 * static_cast<double>(queries[0] * width) * mean_pairs(s, queries[1], keys[1]);
}

/// The rank's place in the ring.
std::function<Affine(const Graph&, const Node&)> place_in_ring(std::size_t q) {
  return [q](const Graph& graph, const Node& node) {
    Affine origin;
    for (const Cut& cut : graph.value(node.inputs[q]).spec.cuts())
      if (cut.as.is_zigzag()) origin.along(cut.axis) = 1;
    return origin;
  };
}

}  // namespace

OpDef attention_block() {
  OpDef def{.op = Op::attention_block, .shard = shard_block};
  def.origin = place_in_ring(0);
  def.localize = heads_of_rank(0);
  def.flops = [](const Signature& s) { return block_flops(s, 0); };
  return def;
}

OpDef attention_block_grad() {
  OpDef def{.op = Op::attention_block_grad, .shard = shard_block_grad};
  def.origin = place_in_ring(1);
  def.localize = heads_of_rank(1);
  def.flops = [](const Signature& s) { return 2 * block_flops(s, 1); };
  return def;
}

}  // namespace trainer::define
