// attention_cached: attention of the newest tokens, whose node is made of an attention by engine/transform/cached.h.
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

/// Inputs q, k, v, position, k_cache, v_cache: by samples, or by heads.
Placed shard_attention_cached(const Graph&, const Node& node, Placing in) {
  if (!in[3].is_replicate()) return {};
  for (const int dim : {0, 2})
    if (std::ranges::all_of(in, [&](const Placement& one) { return &one == &in[3] || one == Placement::shard(dim); }))
      return all(node, Placement::shard(dim));
  return {};
}

/// Of caches that are full, which is the most.
double flops_of_full_caches(const Signature& signature) {
  const double tokens = static_cast<double>(signature.operands[0].elements() + signature.operands[6].elements());
  return 2.0 * tokens * static_cast<double>(signature.operands[4].shape[1]);
}

}  // namespace

OpDef attention_cached() {
  OpDef def{.op = Op::attention_cached};
  def.shard = shard_attention_cached;
  def.localize = heads_of_rank(0);
  def.flops = flops_of_full_caches;
  return def;
}

}  // namespace trainer::define
