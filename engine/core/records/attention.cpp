// Attention: whole, by blocks round a ring, and of the newest tokens beside caches.
#include "engine/core/records/define.h"

namespace trainer::records {
namespace {

AttributeDefs attention_attributes(bool in_file) {
  AttributeDefs all{integer("heads"),     integer("kv_heads", "as many as heads"),
                    flag("causal", true), real("scale", "1/√head_dim"),
                    real("softcap", 0.0), integer("window", std::int64_t{0})};
  if (in_file) {
    all[0] = both(from(1, all[0]), "heads of queries");
    all[1] = both(from(1, all[1]), "heads of keys and values; as many as heads if not given");
    all[2] = both(all[2], "whether a position sees only itself and those before");
    all[3].above = true;
    all[3] = both(all[3], "factor on scores; 1/√head_dim if not given");
    all[4] = both(all[4], "scores s become softcap · tanh(s / softcap), before the mask; 0: they stay");
    all[5] = both(all[5], "how many positions one sees, itself and those just before; 0: all before");
    all.push_back(file({.name = "rope", .type = Type::rope, .otherwise = std::string()},
                       "rotary positions: none, or {theta: 10000} with style, partial and scaling"));
    all.push_back(file({.name = "lengths", .type = Type::node, .absent = "none"},
                       "an input i32 [batch]: how many keys of each sample are there, from its first on; one that is "
                       "optional and that the data lacks is none"));
    all.push_back(documents());
  }
  all.push_back(flag("packed", true));
  all.push_back(flag("padded", false));
  all.push_back(flag("by_document", false));
  all.push_back(real("rope_theta", 0.0));
  all.push_back(flag("rope_interleaved", false));
  all.push_back(integer("rope_dims", "all of a head"));
  all.push_back({.name = "rope_scaling", .type = Type::text, .absent = "none"});
  return all;
}

/// Of attention that is causal, with q, k and v apart.
AttributeDefs cached_attention_attributes() {
  AttributeDefs all = attention_attributes(false);
  std::erase_if(all, [](const AttributeDef& def) {
    return def.name == "causal" || def.name == "packed" || def.name == "by_document";
  });
  return all;
}

/// Of attention with q, k and v apart, of which one block is computed at a time.
AttributeDefs block_attributes() {
  AttributeDefs all = attention_attributes(false);
  std::erase_if(all, [](const AttributeDef& def) { return def.name == "packed"; });
  all.push_back(integer("ranks"));
  all.push_back(integer("step"));
  all.push_back(flag("continues", false));
  return all;
}

}  // namespace

OpRecord attention(Op op) {
  return {.op = op,
          .traits = {graph_file, costly, keeps_columns, scratch},
          .operands = {in("qkv", "c [batch, seq, (heads + 2·kv_heads)·head_dim]", "packed"),
                       in("q", "c [batch, seq, heads·head_dim]", "!packed"),
                       in("k", "c [batch, keys, kv_heads·head_dim]", "!packed"),
                       in("v", "c [batch, keys, kv_heads·v_dim]", "!packed"), in("lengths", "i32 [batch]", "padded"),
                       in("documents", "i32 [batch, keys]", "by_document"), out("o", "c [batch, seq, heads·v_dim]"),
                       out("lse", "f32 [batch, heads, seq]")},
          .attributes = attention_attributes(true),
          .work = WorkClass::attention,
          .note =
              "rope_theta 0: no rotary positions; softcap 0: none; window 0: none; lengths of 1 to keys; causal or "
              "with rotary positions keys ≥ seq"};
}

OpRecord attention_grad(Op op) {
  return {.op = op,
          .traits = {backward, scratch},
          .operands = {in("do", "c"), in("qkv", "c", "packed"), in("q", "c", "!packed"), in("k", "c", "!packed"),
                       in("v", "c", "!packed"), in("lengths", "i32", "padded"), in("documents", "i32", "by_document"),
                       in("o", "c"), in("lse", "f32"), out("dqkv", "c", {}, "packed"), out("dq", "c", {}, "!packed"),
                       out("dk", "c", {}, "!packed"), out("dv", "c", {}, "!packed")},
          .attributes = attention_attributes(false),
          .work = WorkClass::attention};
}

OpRecord attention_block(Op op) {
  return {.op = op,
          .traits = {costly, scratch},
          .operands = {in("q", "c [batch, seq, heads·head_dim]"), in("k", "c [batch, keys, kv_heads·head_dim]"),
                       in("v", "c [batch, keys, kv_heads·v_dim]"), in("lengths", "i32 [batch]", "padded"),
                       in("documents", "i32 [batch, ranks·keys]", "by_document"),
                       in("o_before", "f32 [batch, seq, heads·v_dim]", "continues"),
                       in("lse_before", "f32 [batch, heads, seq]", "continues"),
                       out("o", "f32, c at the last step [batch, seq, heads·v_dim]"),
                       out("lse", "f32 [batch, heads, seq]")},
          .attributes = block_attributes(),
          .work = WorkClass::attention,
          .note = "queries of rank origin of `ranks`, keys and values of the rank `step` places before; zigzag"};
}

OpRecord attention_block_grad(Op op) {
  return {.op = op,
          .traits = {backward, scratch},
          .operands = {in("do", "c"), in("q", "c"), in("k", "c"), in("v", "c"), in("lengths", "i32", "padded"),
                       in("documents", "i32", "by_document"), in("o", "c"), in("lse", "f32"),
                       in("dq_before", "f32", "continues"), out("dq", "f32, c at the last step"), out("dk", "f32"),
                       out("dv", "f32")},
          .attributes = block_attributes(),
          .work = WorkClass::attention};
}

OpRecord attention_cached(Op op) {
  return {
      .op = op,
      .traits = {costly, scratch},
      .operands = {in("q", "c [batch, tokens, heads·head_dim]"), in("k", "c [batch, tokens, kv_heads·head_dim]"),
                   in("v", "c [batch, tokens, kv_heads·v_dim]"), in("position", "i32 [1]"),
                   update("k_cache", "c [batch, room, kv_heads·head_dim]"),
                   update("v_cache", "c [batch, room, kv_heads·v_dim]"), out("o", "c [batch, tokens, heads·v_dim]")},
      .attributes = cached_attention_attributes(),
      .timed_as = "copy",
      .bandwidth = 0.7,
      .note = "the tokens' keys, turned, and values enter the caches at `position`; causal"};
}

}  // namespace trainer::records
