// The graphs of mixed jobs: small, each with what one family of models has.
#pragma once

#include <string_view>

namespace trainer::tests {

inline constexpr std::string_view kGpt = R"(
name: gpt
params: {layers: 8, dropout: 0.0, ignore: -100}
inputs:
  tokens:  {dtype: i32, shape: [batch, seq]}
  targets: {dtype: i32, shape: [batch, seq]}
nodes:
  - {name: wte, op: embedding, input: tokens, rows: 33, dim: 16, init: {normal: 0.2}}
  - {name: wpe, op: positions, input: tokens, rows: 8, dim: 16, init: {normal: 0.2}}
  - {name: embed, op: add, input: [wte, wpe]}
  - {name: drop, op: dropout, p: "${dropout}"}
  - repeat: "${layers}"
    name: "h.{index}"
    block: TransformerBlock
    nodes:
      - {name: ln_1, op: layer_norm}
      - {name: c_attn, op: linear, out: 48, parallel: column, init: {normal: 0.2}}
      - {name: core, op: attention, heads: 4, causal: true}
      - {name: c_proj, op: linear, out: 16, parallel: row, init: {normal: 0.1}}
      - {name: drop_1, op: dropout, p: "${dropout}"}
      - {name: res_1, op: add, input: [block.input, drop_1]}
      - {name: ln_2, op: layer_norm}
      - {name: c_fc, op: linear, out: 32, parallel: column, init: {normal: 0.2}}
      - {name: act, op: gelu, approximate: tanh}
      - {name: c_out, op: linear, out: 16, parallel: row, init: {normal: 0.1}}
      - {name: drop_2, op: dropout, p: "${dropout}"}
      - {name: res_2, op: add, input: [res_1, drop_2]}
  - {name: ln_f, op: layer_norm}
  - {name: logits, op: linear, out: 33, bias: false, weight: wte}
  - {name: loss, op: cross_entropy, input: [logits, targets], ignore_index: "${ignore}"}
outputs: {loss: loss, logits: logits}
)";

// 8 heads of 4 read 4 of keys and values, side by side in one product; no node says how it is to be cut.
inline constexpr std::string_view kPacked = R"(
name: packed
params: {layers: 8, dropout: 0.0, ignore: -100}
inputs:
  tokens:  {dtype: i32, shape: [batch, seq]}
  targets: {dtype: i32, shape: [batch, seq]}
nodes:
  - {name: embed, op: embedding, input: tokens, rows: 35, dim: 32, init: {normal: 0.2}}
  - repeat: "${layers}"
    name: "layer.{index}"
    block: TransformerBlock
    nodes:
      - {name: norm_1, op: rms_norm}
      - {name: qkv, op: linear, out: 64, init: {normal: 0.2}}
      - {name: core, op: attention, heads: 8, kv_heads: 4, causal: true, rope: {theta: 100}}
      - {name: out, op: linear, out: 32, init: {normal: 0.1}}
      - {name: drop_1, op: dropout, p: "${dropout}"}
      - {name: res_1, op: add, input: [block.input, drop_1]}
      - {name: norm_2, op: layer_norm}
      - {name: up, op: linear, out: 24, init: {normal: 0.2}}
      - {name: act, op: silu}
      - {name: inner_drop, op: dropout, p: "${dropout}"}
      - {name: down, op: linear, out: 32, init: {normal: 0.1}}
      - {name: res_2, op: add, input: [res_1, down]}
  - {name: norm, op: layer_norm, bias: false}
  - {name: head, op: linear, out: 35, init: {normal: 0.2}}
  - {name: loss, op: cross_entropy, input: [head, targets], ignore_index: "${ignore}", label_smoothing: 0.1}
outputs: {loss: loss, logits: head}
)";

// As `packed`, with the pieces of each product cut out by name.
inline constexpr std::string_view kPieces = R"(
name: pieces
params: {layers: 8, dropout: 0.0, ignore: -100}
inputs:
  tokens:  {dtype: i32, shape: [batch, seq]}
  targets: {dtype: i32, shape: [batch, seq]}
nodes:
  - {name: narrow, op: embedding, input: tokens, rows: 36, dim: 12, init: {normal: 0.2}}
  - {name: wide, op: embedding, input: tokens, rows: 36, dim: 20, init: {normal: 0.2}}
  - {name: embed, op: concat, input: [narrow, wide]}
  - repeat: "${layers}"
    name: "layers.{index}"
    block: TransformerBlock
    nodes:
      - {name: norm_1, op: rms_norm}
      - {name: qkv_proj, op: linear, out: 64, bias: false, init: {normal: 0.2}}
      - {name: qkv, op: split, into: {q: 32, k: 16, v: 16}}
      - {name: core, op: attention, input: [qkv.q, qkv.k, qkv.v], heads: 8, kv_heads: 4, rope: {theta: 100}}
      - {name: out, op: linear, out: 32, init: {normal: 0.1}}
      - {name: drop_1, op: dropout, p: "${dropout}"}
      - {name: res_1, op: add, input: [block.input, drop_1]}
      - {name: norm_2, op: rms_norm}
      - {name: gate_up_proj, op: linear, out: 48, init: {normal: 0.2}}
      - {name: gate_up, op: split, into: {gate: 24, up: 24}}
      - {name: act, op: silu, input: gate_up.gate}
      - {name: product, op: mul, input: [act, gate_up.up]}
      - {name: down, op: linear, out: 32, init: {normal: 0.1}}
      - {name: res_2, op: add, input: [res_1, down]}
  - {name: norm, op: rms_norm}
  - {name: head, op: linear, out: 33, init: {normal: 0.2}}
  - {name: loss, op: cross_entropy, input: [head, targets], ignore_index: "${ignore}"}
outputs: {loss: loss, logits: head}
)";

// As Gemma: heads of a size of their own, normalised before they turn, scores scaled and bounded, a window, norms
// before and after, stored less 1. Rotary positions of neighbours, of half of a head, scaled. No node says how it is to
// be cut.
inline constexpr std::string_view kHeads = R"(
name: heads
params: {layers: 8, dropout: 0.0, ignore: -100}
inputs:
  tokens:  {dtype: i32, shape: [batch, seq]}
  targets: {dtype: i32, shape: [batch, seq]}
nodes:
  - {name: embed, op: embedding, input: tokens, rows: 36, dim: 24, init: {normal: 0.2}}
  - repeat: "${layers}"
    name: "layers.{index}"
    block: TransformerBlock
    nodes:
      - {name: norm_1, op: rms_norm, offset: 1}
      - {name: q_proj, op: linear, input: norm_1, out: 64, bias: false, init: {normal: 0.2}}
      - {name: q_heads, op: reshape, shape: [batch, seq, 8, -1]}
      - {name: q_norm, op: rms_norm, offset: 1, eps: 1.0e-6}
      - {name: q, op: reshape, shape: [batch, seq, -1]}
      - {name: k_proj, op: linear, input: norm_1, out: 32, bias: false, init: {normal: 0.2}}
      - {name: k_heads, op: reshape, shape: [batch, seq, 4, 8]}
      - {name: k_norm, op: rms_norm, offset: 1, eps: 1.0e-6}
      - {name: k, op: reshape, shape: [batch, seq, 32]}
      - {name: v_proj, op: linear, input: norm_1, out: 32, bias: false, init: {normal: 0.2}}
      - {name: core, op: attention, input: [q, k, v_proj], heads: 8, kv_heads: 4, scale: 0.3, softcap: 2.0, window: 5,
         rope: {theta: 100, style: interleaved, partial: 0.5, scaling: {kind: yarn, factor: 4, original_max_position_embeddings: 4}}}
      - {name: o_proj, op: linear, out: 24, bias: false, init: {normal: 0.1}}
      - {name: norm_2, op: rms_norm, offset: 1}
      - {name: drop_1, op: dropout, p: "${dropout}"}
      - {name: res_1, op: add, input: [block.input, drop_1]}
      - {name: norm_3, op: rms_norm, offset: 1, cast: before}
      - {name: gate, op: linear, input: norm_3, out: 32, bias: false, init: {normal: 0.2}}
      - {name: up, op: linear, input: norm_3, out: 32, bias: false, init: {normal: 0.2}}
      - {name: act, op: gelu, input: gate}
      - {name: product, op: mul, input: [act, up]}
      - {name: down, op: linear, out: 24, bias: false, init: {normal: 0.1}}
      - {name: res_2, op: add, input: [res_1, down]}
  - {name: norm, op: rms_norm, cast: before}
  - {name: head, op: linear, out: 36, bias: false, weight: embed}
  - {name: loss, op: cross_entropy, input: [head, targets], ignore_index: "${ignore}"}
outputs: {loss: loss, logits: head}
)";

// A place before those of each sample, that every place sees and that is cut off at the end; places as a parameter.
inline constexpr std::string_view kToken = R"(
name: token
params: {layers: 8, dropout: 0.0, ignore: -100}
inputs:
  tokens:  {dtype: i32, shape: [batch, seq]}
  targets: {dtype: i32, shape: [batch, seq]}
nodes:
  - {name: embed, op: embedding, input: tokens, rows: 33, dim: 16, init: {normal: 0.2}}
  - {name: start, op: parameter, shape: [1, 16], init: {normal: 0.2}}
  - {name: starts, op: expand, input: [start, embed]}
  - {name: longer, op: concat, input: [starts, embed], dim: 1}
  - {name: places, op: parameter, shape: [1, 9, 16], init: {normal: 0.2}}
  - {name: flat, op: reshape, shape: [9, 16]}
  - {name: placed, op: add, input: [longer, flat]}
  - repeat: "${layers}"
    name: "layers.{index}"
    block: TransformerBlock
    nodes:
      - {name: norm_1, op: layer_norm}
      - {name: qkv, op: linear, out: 48, parallel: column, init: {normal: 0.2}}
      - {name: core, op: attention, heads: 4, causal: false}
      - {name: out, op: linear, out: 16, parallel: row, init: {normal: 0.1}}
      - {name: drop_1, op: dropout, p: "${dropout}"}
      - {name: res_1, op: add, input: [block.input, drop_1]}
  - {name: norm, op: layer_norm}
  - {name: turned, op: transpose, dims: [0, 2, 1]}
  - {name: rest, op: slice, dim: -1, start: 1, size: 8}
  - {name: back, op: transpose, dims: [0, 2, 1]}
  - {name: head, op: linear, out: 33, init: {normal: 0.2}}
  - {name: loss, op: cross_entropy, input: [head, targets], ignore_index: "${ignore}"}
outputs: {loss: loss, logits: head}
)";

// Smooth: in bf16 a unit that switches would make of a rounding a step.
inline constexpr std::string_view kMlp = R"(
name: mlp
params: {dropout: 0.0}
inputs:
  features: {dtype: f32, shape: [batch, 6]}
  targets:  {dtype: i32, shape: [batch]}
nodes:
  - {name: stem, op: linear, input: features, out: 32, init: {normal: 0.4}}
  - {name: stem_act, op: gelu, approximate: none}
  - {name: stem_drop, op: dropout, p: "${dropout}"}
  - repeat: 8
    name: "layers.{index}"
    block: HiddenLayer
    nodes:
      - {name: fc, op: linear, out: 32, init: {normal: 0.25}}
      - {name: act, op: silu}
      - {name: drop, op: dropout, p: "${dropout}"}
  - {name: head, op: linear, out: 4, init: {normal: 0.2}}
  - {name: loss, op: cross_entropy, input: [head, targets]}
outputs: {loss: loss, logits: head}
)";

}  // namespace trainer::tests
