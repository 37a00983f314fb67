// Every op's record. The switch has no default, so that an op without one does not compile. The words of operands are
// those of kernels/README.md, whose table is made from here (tests/ops/record_test.cpp).
#include "engine/core/op_record.h"

namespace trainer {
namespace {

using enum Trait;
using Type = AttributeDef::Type;
using Use = AttributeDef::Use;
using Role = OperandDef::Role;
using Operands = std::vector<OperandDef>;
using AttributeDefs = std::vector<AttributeDef>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

OperandDef in(std::string_view name, std::string_view what, std::string_view when = {}) {
  return {name, what, Role::input, when};
}
OperandDef parameter(std::string_view name, std::string_view what, std::string_view when = {}) {
  return {name, what, Role::parameter, when};
}
OperandDef update(std::string_view name, std::string_view what, std::string_view when = {}) {
  return {name, what, Role::update, when};
}
OperandDef out(std::string_view name, std::string_view what, std::string_view over = {}, std::string_view when = {}) {
  return {name, what, Role::output, when, over};
}
/// An output that may be added to.
OperandDef sum(std::string_view name, std::string_view what, std::string_view when = {}) {
  return {.name = name, .what = what, .role = Role::output, .when = when, .adds = true};
}
OperandDef state(std::string_view name, std::string_view when = {}) {
  return {.name = name, .what = "s", .role = Role::update, .when = when, .state = true};
}
OperandDef many(OperandDef operand) {
  operand.many = true;
  return operand;
}

AttributeDef flag(std::string_view name, bool otherwise) {
  return {.name = name, .type = Type::flag, .otherwise = otherwise};
}
AttributeDef integer(std::string_view name) { return {.name = name, .type = Type::integer}; }
AttributeDef integer(std::string_view name, std::int64_t otherwise) {
  return {.name = name, .type = Type::integer, .otherwise = otherwise};
}
AttributeDef integer(std::string_view name, std::string_view absent) {
  return {.name = name, .type = Type::integer, .absent = absent};
}
AttributeDef real(std::string_view name) { return {.name = name, .type = Type::real}; }
AttributeDef real(std::string_view name, double otherwise) {
  return {.name = name, .type = Type::real, .otherwise = otherwise};
}
AttributeDef real(std::string_view name, std::string_view absent) {
  return {.name = name, .type = Type::real, .absent = absent};
}

/// Of graph files, and passed on to the kernel.
AttributeDef both(AttributeDef def, std::string_view help) {
  def.use = Use::both;
  def.help = help;
  return def;
}
/// Of graph files alone.
AttributeDef file(AttributeDef def, std::string_view help) {
  def.use = Use::file;
  def.help = help;
  return def;
}
AttributeDef from(double least, AttributeDef def) {
  def.least = least;
  return def;
}

// ---- What several ops share ---------------------------------------------------------------------------------------

const Operands kUnary{in("x", "c"), out("y", "c", "x")};
const Operands kGradOfInput{in("dy", "c"), in("x", "c"), out("dx", "c", "dy x")};
const Operands kGradOfOutput{in("dy", "c"), in("y", "c"), out("dx", "c", "dy y")};
const Operands kBinary{in("a", "c [lead..., s...]"), in("b", "c [s...] (shape equal to a's, or to its last dims)"),
                       out("y", "c", "a")};

AttributeDef bias(bool in_file) {
  return in_file ? both(flag("bias", true), "whether a bias is added") : flag("bias", true);
}
AttributeDef tied() {
  return file({.name = "weight", .type = Type::node, .absent = "its own"}, "a node whose weight this one shares");
}
AttributeDef approximate(bool in_file) {
  AttributeDef def{
      .name = "approximate", .type = Type::choice, .otherwise = std::string("tanh"), .choices = {"tanh", "none"}};
  return in_file ? both(def, "the approximation by tanh, or the error function itself") : def;
}
AttributeDef cap() {
  AttributeDef def = real("cap");
  def.above = true;
  return def;
}
AttributeDef fp8() {
  return {.name = "fp8",
          .type = Type::choice,
          .otherwise = std::string("none"),
          .choices = {"none", "tensor", "block_128", "block_32"}};
}
AttributeDef offset() { return integer("offset", std::int64_t{0}); }
AttributeDef zigzag() { return integer("zigzag", std::int64_t{0}); }
AttributeDef slice_start() { return integer("start", std::int64_t{0}); }
AttributeDef which_dim(std::int64_t otherwise) { return from(-Shape::kMaxDims, integer("dim", otherwise)); }
AttributeDef eps(bool in_file = true) {
  return in_file ? both(real("eps", 1e-5), "added to the variance") : real("eps", 1e-5);
}
AttributeDef offset(bool in_file) {
  AttributeDef def = integer("offset", std::int64_t{0});
  def.below = 2;
  return in_file ? both(def, "0, or 1 where the weight is stored less 1") : def;
}

AttributeDef documents() {
  return file({.name = "documents", .type = Type::node, .absent = "none"},
              "an input i32 [batch, seq]: which document of its row each position belongs to, never descending but for "
              "-1 at the end, which pads the row; attention sees its own document only, positions start again at 0 in "
              "each; an input that is optional and that the data lacks is none");
}

AttributeDefs table_attributes() {
  return {file(from(1, integer("rows")), "rows of the table"), file(from(1, integer("dim")), "size of a row")};
}
AttributeDef table_rows() { return integer("table_rows", "of use with `cut` only"); }

OpRecord activation(Op op, AttributeDefs attributes = {}, WorkClass work = WorkClass::elements) {
  return {.op = op,
          .traits = {graph_file, elementwise, keeps_columns},
          .operands = kUnary,
          .attributes = std::move(attributes),
          .work = work};
}
OpRecord activation_grad(Op op, const Operands& operands, AttributeDefs attributes = {},
                         WorkClass work = WorkClass::elements) {
  return {.op = op, .traits = {backward}, .operands = operands, .attributes = std::move(attributes), .work = work};
}

AttributeDefs glu_attributes() {
  return {{.name = "activation", .type = Type::choice, .otherwise = std::string("silu"), .choices = {"silu", "gelu"}},
          approximate(false)};
}

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

AttributeDefs conv_attributes(bool in_file) {
  if (!in_file) return {integer("stride", 1), integer("padding", std::int64_t{0})};
  return {file(from(1, integer("out")), "channels of the output"),
          file(from(1, integer("kernel")), "length of the filter, which is as high as wide"),
          both(from(1, integer("stride", 1)), "pixels, or places, from one to the next"),
          both(integer("padding", std::int64_t{0}), "zeros on each side"), bias(true)};
}

AttributeDefs pool_attributes(bool in_file) {
  AttributeDefs all{from(1, integer("kernel")), from(1, integer("stride", "as kernel")),
                    integer("padding", std::int64_t{0})};
  if (!in_file) return all;
  return {both(all[0], "height and width of the window"),
          both(all[1], "pixels from one window to the next; as the kernel if not given"),
          both(all[2], "pixels around the image")};
}

AttributeDef above_zero(AttributeDef def) {
  def.above = true;
  return def;
}

AttributeDef score(bool in_file) {
  AttributeDef def{
      .name = "score", .type = Type::choice, .otherwise = std::string("softmax"), .choices = {"softmax", "sigmoid"}};
  return in_file ? file(def, "what makes scores of the logits") : def;
}

/// How a router chooses and weighs.
AttributeDefs route_attributes(bool in_file) {
  AttributeDefs all{score(in_file), flag("normalize", true), real("scale", 1.0), from(1, integer("groups", 1)),
                    from(1, integer("top_groups", 1))};
  if (!in_file) return all;
  all[1] = file(all[1], "whether a token's weights are divided by their sum");
  all[2].above = true;
  all[2] = file(all[2], "what every weight is multiplied by");
  all[3] = file(all[3], "groups of neighbouring experts, of which only the best are chosen from");
  all[4] = file(all[4], "how many groups are chosen from: those with the largest sum of their two best scores");
  return all;
}

/// The losses of a router that its gradient holds.
AttributeDefs router_losses_attributes() { return {score(false), real("aux", 0.0), real("z", 0.0)}; }

/// Of what a batch norm is in training.
AttributeDefs batch_norm_attributes() { return {eps(false), integer("count"), flag("own", false)}; }

/// Of products by expert.
AttributeDefs expert_attributes() { return {from(1, integer("parts", 1)), real("filled", 1.0)}; }

AttributeDefs with_gradients_of_both(AttributeDefs all) {
  all.push_back(flag("weight", true));
  all.push_back(flag("bias", true));
  return all;
}

OpRecord pool(Op op, Traits traits, Operands operands) {
  return {.op = op,
          .traits = traits,
          .operands = std::move(operands),
          .attributes = pool_attributes(traits.has(graph_file)),
          .bandwidth = 0.7};
}

AttributeDef ignore_index() { return integer("ignore_index", -100); }
AttributeDef label_smoothing() {
  AttributeDef def = real("label_smoothing", 0.0);
  def.below = 1;
  return def;
}
AttributeDef classes() { return integer("classes", "the classes are not cut"); }

OpRecord optimizer_of(Op op, Operands states, AttributeDefs attributes, std::string_view source = "gradient",
                      std::string_view what = "r [n]") {
  Operands operands{update("master", "f32 [n]"), in(source, what)};
  operands.insert(operands.end(), states.begin(), states.end());
  for (const OperandDef& scalar : {in("lr", "f32 [1]"), in("scalars", "f32 [4]"), in("applied", "i32 [1]")})
    operands.push_back(scalar);
  operands.push_back(out("working", "bf16 \\| f16 [n]", {}, "working"));
  for (const AttributeDef& def :
       {real("weight_decay", 0.0), integer("decay_elements", std::int64_t{0}), flag("working", false)})
    attributes.push_back(def);
  return {.op = op, .operands = std::move(operands), .attributes = std::move(attributes), .work = WorkClass::own};
}

OpRecord collective_of(Op op, Traits traits, AttributeDefs attributes, std::string_view over = {}) {
  return {.op = op,
          .traits = traits,
          .operands = {in("x", "c"), out("y", "c", over)},
          .attributes = std::move(attributes),
          .work = WorkClass::none};
}

// ---- All of them --------------------------------------------------------------------------------------------------

OpRecord make(Op op) {
  switch (op) {
    case Op::embedding: {
      AttributeDefs attributes = table_attributes();
      for (const AttributeDef& def : {tied(), flag("cut", false), table_rows()}) attributes.push_back(def);
      return {.op = op,
              .traits = {graph_file},
              .operands = {in("ids", "i32 [...]"), parameter("weight", "c [rows, dim]"), out("y", "c [..., dim]")},
              .attributes = attributes,
              .work = WorkClass::own,
              .bandwidth = 0.7};  // single rows of a table
    }
    case Op::embedding_grad:
      return {.op = op,
              .traits = {backward, scratch},
              .operands = {in("ids", "i32 [...]"), in("dy", "c [..., dim]"), sum("dweight", "r [rows, dim]")},
              .attributes = {flag("cut", false), table_rows()},
              .work = WorkClass::own,
              .bandwidth = 0.7};
    case Op::positions: {
      AttributeDefs attributes = table_attributes();
      attributes.push_back(flag("partial", false));
      attributes.push_back(flag("at", false));
      attributes.push_back(zigzag());
      attributes.push_back(both(offset(), "the row of the first position"));
      attributes.push_back(documents());
      return {
          .op = op,
          .traits = {graph_file},
          .operands = {parameter("weight", "c [rows, dim]"), in("position", "i32 [1]", "at"), out("y", "c [seq, dim]")},
          .attributes = attributes,
          .timed_as = "copy",
          .note =
              "rows from offset + origin mod rows on, and with `at` `position` rows later; with `zigzag` positions in "
              "all, the second half of the rows ends as far before the last"};
    }
    case Op::positions_grad:
      return {.op = op,
              .traits = {backward},
              .operands = {in("dy", "c [seq, dim]"), sum("dweight", "r [rows, dim]")},
              .attributes = {offset(), zigzag()}};
    case Op::document_positions:
      return {.op = op,
              .operands = {in("documents", "i32 [batch, all]"), out("ids", "i32 [batch, seq]")},
              .attributes = {offset(), zigzag()},
              .timed_as = "copy",
              .note = "offset + the place in its document of each position from origin on; of padding, -1: offset"};
    case Op::parameter:
      return {.op = op,
              .traits = {graph_file},
              .operands = {parameter("weight", "c"), out("y", "c")},
              .attributes = {file({.name = "shape", .type = Type::dims}, "its dims"),
                             file(flag("trained", true), "false: frozen, unless the job's `trainable` names it")},
              .timed_as = "copy",
              .note = "a copy"};
    case Op::parameter_grad:
      return {.op = op,
              .traits = {backward},
              .operands = {in("dy", "c"), sum("dweight", "r")},
              .timed_as = "positions_grad"};

    // Products.
    case Op::linear:
      return {.op = op,
              .traits = {graph_file, costly, scratch},
              .operands = {in("x", "c [..., in]"), parameter("weight", "c [out, in] (row-major or packed)"),
                           parameter("bias", "c [out]", "bias"), in("residual", "c [..., out]", "residual"),
                           out("y", "c [..., out]"), out("pre", "c [..., out]", {}, "pre")},
              .attributes = {file(from(1, integer("out")), "size of the last dim of the output"), bias(true), tied(),
                             file({.name = "parallel",
                                   .type = Type::choice,
                                   .otherwise = std::string("none"),
                                   .choices = {"none", "column", "row"}},
                                  "how tensor parallelism cuts the weight"),
                             flag("partial", false), flag("gelu", false), flag("pre", false), flag("residual", false),
                             fp8()},
              .work = WorkClass::product};
    case Op::linear_grad_input:
      return {
          .op = op,
          .traits = {backward, scratch},
          .operands = {in("dy", "c [..., out]"), parameter("weight", "c [out, in] (row-major or packed_transposed)"),
                       in("pre", "c [..., in]", "gelu"), in("residual", "c [..., in]", "residual"),
                       out("dx", "c [..., in]")},
          .attributes = {flag("gelu", false), flag("residual", false), fp8()},
          .work = WorkClass::product};
    case Op::quantized_linear:
      return {.op = op,
              .traits = {costly, scratch},
              .operands = {in("x", "c [..., in]"), parameter("codes", "u8 [out, 64·b], as nf4 [out, 32·b]"),
                           parameter("scales", "u8 [out, 4], as nf4 [out, b]"),
                           parameter("groups", "u8 [⌈out / 256⌉, 8·b]", "nf4"), parameter("bias", "c [out]", "bias"),
                           out("y", "c [..., out]")},
              .attributes = {flag("nf4", false), flag("bias", true), flag("partial", false)},
              .work = WorkClass::product,
              .timed_as = "linear",
              .note = "b blocks of 64 columns"};
    case Op::quantized_linear_grad_input:
      return {.op = op,
              .traits = {backward, scratch},
              .operands = {in("dy", "c [..., out]"), parameter("codes", "u8 [out, 64·b], as nf4 [out, 32·b]"),
                           parameter("scales", "u8 [out, 4], as nf4 [out, b]"),
                           parameter("groups", "u8 [⌈out / 256⌉, 8·b]", "nf4"), out("dx", "c [..., in]")},
              .attributes = {flag("nf4", false)},
              .work = WorkClass::product,
              .timed_as = "linear_grad_input",
              .note = "b blocks of 64 columns"};
    case Op::linear_grad_weight:
      return {.op = op,
              .traits = {backward, scratch},
              .operands = {in("x", "c [..., in]"), in("dy", "c [..., out]"), sum("dweight", "r [out, in]"),
                           sum("dbias", "r [out]", "bias")},
              .attributes = {bias(false), fp8()},
              .work = WorkClass::product};
    case Op::bias_grad:
      return {.op = op,
              .traits = {backward, scratch},
              .operands = {in("dy", "c [..., out, ...]"), sum("dbias", "r [out]")},
              .attributes = {integer("dim")},
              .timed_as = "sum_leading",
              .note = "sums over all dims but `dim`, where out stands; negative: from the last"};
    case Op::attention:
      return {.op = op,
              .traits = {graph_file, costly, keeps_columns, scratch},
              .operands = {in("qkv", "c [batch, seq, (heads + 2·kv_heads)·head_dim]", "packed"),
                           in("q", "c [batch, seq, heads·head_dim]", "!packed"),
                           in("k", "c [batch, keys, kv_heads·head_dim]", "!packed"),
                           in("v", "c [batch, keys, kv_heads·v_dim]", "!packed"),
                           in("lengths", "i32 [batch]", "padded"), in("documents", "i32 [batch, keys]", "by_document"),
                           out("o", "c [batch, seq, heads·v_dim]"), out("lse", "f32 [batch, heads, seq]")},
              .attributes = attention_attributes(true),
              .work = WorkClass::attention,
              .note =
                  "rope_theta 0: no rotary positions; softcap 0: none; window 0: none; lengths of 1 to keys; causal or "
                  "with rotary positions keys ≥ seq"};
    case Op::attention_grad:
      return {
          .op = op,
          .traits = {backward, scratch},
          .operands = {in("do", "c"), in("qkv", "c", "packed"), in("q", "c", "!packed"), in("k", "c", "!packed"),
                       in("v", "c", "!packed"), in("lengths", "i32", "padded"), in("documents", "i32", "by_document"),
                       in("o", "c"), in("lse", "f32"), out("dqkv", "c", {}, "packed"), out("dq", "c", {}, "!packed"),
                       out("dk", "c", {}, "!packed"), out("dv", "c", {}, "!packed")},
          .attributes = attention_attributes(false),
          .work = WorkClass::attention};
    case Op::attention_block:
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
    case Op::attention_block_grad:
      return {.op = op,
              .traits = {backward, scratch},
              .operands = {in("do", "c"), in("q", "c"), in("k", "c"), in("v", "c"), in("lengths", "i32", "padded"),
                           in("documents", "i32", "by_document"), in("o", "c"), in("lse", "f32"),
                           in("dq_before", "f32", "continues"), out("dq", "f32, c at the last step"), out("dk", "f32"),
                           out("dv", "f32")},
              .attributes = block_attributes(),
              .work = WorkClass::attention};
    case Op::attention_cached:
      return {
          .op = op,
          .traits = {costly, scratch},
          .operands = {in("q", "c [batch, tokens, heads·head_dim]"), in("k", "c [batch, tokens, kv_heads·head_dim]"),
                       in("v", "c [batch, tokens, kv_heads·v_dim]"), in("position", "i32 [1]"),
                       update("k_cache", "c [batch, room, kv_heads·head_dim]"),
                       update("v_cache", "c [batch, room, kv_heads·v_dim]"),
                       out("o", "c [batch, tokens, heads·v_dim]")},
          .attributes = cached_attention_attributes(),
          .timed_as = "copy",
          .bandwidth = 0.7,
          .note = "the tokens' keys, turned, and values enter the caches at `position`; causal"};
    case Op::conv2d:
      return {.op = op,
              .traits = {graph_file, costly, scratch},
              .operands = {in("x", "c [n, in, h, w]"), parameter("weight", "c [out, in, kh, kw]"),
                           parameter("bias", "c [out]", "bias"), out("y", "c [n, out, oh, ow]")},
              .attributes = conv_attributes(true),
              .work = WorkClass::convolution};
    case Op::conv1d:
      return {.op = op,
              .traits = {graph_file, costly, scratch},
              .operands = {in("x", "c [n, in, l]"), parameter("weight", "c [out, in, k]"),
                           parameter("bias", "c [out]", "bias"), out("y", "c [n, out, ol]")},
              .attributes = conv_attributes(true),
              .work = WorkClass::convolution};
    case Op::conv2d_grad_input:
    case Op::conv1d_grad_input:
      return {.op = op,
              .traits = {backward, scratch},
              .operands = {in("dy", "c"), parameter("weight", "c"), out("dx", "c")},
              .attributes = conv_attributes(false),
              .work = WorkClass::convolution};
    case Op::conv2d_grad_weight:
    case Op::conv1d_grad_weight: {
      AttributeDefs attributes = conv_attributes(false);
      attributes.push_back(bias(false));
      return {.op = op,
              .traits = {backward, scratch},
              .operands = {in("x", "c"), in("dy", "c"), sum("dweight", "r"), sum("dbias", "r [out]", "bias")},
              .attributes = attributes,
              .work = WorkClass::convolution};
    }

    // Norms. Their gradients join sums over rows in a second pass.
    case Op::layer_norm:
      return {.op = op,
              .traits = {graph_file, norm},
              .operands = {in("x", "c [..., dim]"), in("residual", "c", "residual"), parameter("weight", "c [dim]"),
                           parameter("bias", "c [dim]", "bias"), out("y", "c"), out("mean", "f32 [rows]"),
                           out("rstd", "f32 [rows]"), out("sum", "c", "x residual", "residual")},
              .attributes = {eps(), bias(true), flag("residual", false)},
              .work = WorkClass::own,
              .bandwidth = 0.92};
    case Op::layer_norm_grad:
      return {.op = op,
              .traits = {backward, norm, scratch},
              .operands = {in("dy", "c"), in("x", "c"), parameter("weight", "c"), in("mean", "f32"), in("rstd", "f32"),
                           in("residual", "c", "residual"), out("dx", "c", "dy residual"),
                           sum("dweight", "r [dim]", "weight"), sum("dbias", "r [dim]", "bias")},
              .attributes = {flag("weight", true), bias(false), flag("residual", false)},
              .work = WorkClass::own,
              .bandwidth = 0.8};
    case Op::rms_norm:
      return {.op = op,
              .traits = {graph_file, norm},
              .operands = {in("x", "c [..., dim]"), in("residual", "c", "residual"), parameter("weight", "c [dim]"),
                           out("y", "c"), out("rstd", "f32 [rows]"), out("sum", "c", "x residual", "residual")},
              .attributes = {eps(), offset(true),
                             both({.name = "cast",
                                   .type = Type::choice,
                                   .otherwise = std::string("after"),
                                   .choices = {"before", "after"}},
                                  "whether normalised values are rounded before or after the weight multiplies them"),
                             flag("residual", false)},
              .work = WorkClass::own,
              .bandwidth = 0.92};
    case Op::rms_norm_grad:
      return {.op = op,
              .traits = {backward, norm, scratch},
              .operands = {in("dy", "c"), in("x", "c"), parameter("weight", "c"), in("rstd", "f32"),
                           in("residual", "c", "residual"), out("dx", "c", "dy residual"),
                           sum("dweight", "r [dim]", "weight")},
              .attributes = {flag("weight", true), offset(false), flag("residual", false)},
              .work = WorkClass::own,
              .bandwidth = 0.8};

    // Element by element. The gradients of gelu and silu read x, those of the others y.
    case Op::gelu:
      return activation(op, {approximate(true)}, WorkClass::own);
    case Op::relu:
      return activation(op);
    case Op::silu:
      return activation(op);
    case Op::tanh:
      return activation(op);
    case Op::sigmoid:
      return activation(op);
    // Gemma 2 caps its logits at 30. Source: Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size",
    // 2024, section 2.
    case Op::softcap:
      return activation(op, {both(cap(), "what the values approach")});
    case Op::gelu_grad:
      return activation_grad(op, kGradOfInput, {approximate(false)}, WorkClass::own);
    case Op::silu_grad:
      return activation_grad(op, kGradOfInput);
    case Op::relu_grad:
      return activation_grad(op, kGradOfOutput);
    case Op::tanh_grad:
      return activation_grad(op, kGradOfOutput);
    case Op::sigmoid_grad:
      return activation_grad(op, kGradOfOutput);
    case Op::softcap_grad:
      return activation_grad(op, kGradOfOutput, {cap()});
    // Of gated feed-forward parts: SwiGLU and GEGLU. Source: Shazeer, "GLU Variants Improve Transformer", 2020.
    case Op::glu:
      return {.op = op,
              .operands = {in("gate", "c"), in("up", "c"), out("y", "c", "gate up")},
              .attributes = glu_attributes(),
              .note = "activation(gate) · up"};
    case Op::glu_grad:
      return {.op = op,
              .traits = {backward},
              .operands = {in("dy", "c"), in("gate", "c"), in("up", "c"), out("dgate", "c", "dy gate"),
                           out("dup", "c", "dy up")},
              .attributes = glu_attributes()};
    case Op::add:
      return {.op = op, .traits = {graph_file}, .operands = kBinary, .work = WorkClass::own};
    case Op::mul:
      return {.op = op, .traits = {graph_file, keeps_columns}, .operands = kBinary};
    case Op::scale:
      return activation(op, {both(from(-kInfinity, real("factor")), "what every element is multiplied by"),
                             file(flag("rounded", false), "whether the factor is rounded to the compute dtype first")});
    case Op::sum_leading:
      return {
          .op = op, .traits = {backward, scratch}, .operands = {in("x", "c [lead..., s...]"), out("y", "c [s...]")}};
    case Op::dropout: {
      AttributeDef p = both(real("p"), "the share of values that are dropped");
      p.below = 1;
      return {.op = op,
              .traits = {graph_file, elementwise, keeps_columns, random},
              .operands = {in("x", "c [batch, ...]"), in("step", "i32 [1]"), out("y", "c", "x")},
              .attributes = {p, integer("key"), integer("sample", "elements of x after dim 0"),
                             integer("row", "x's last dim"), integer("stride", "as row"), flag("zigzag", false)},
              .note = "key: the 64-bit random key, two's complement"};
    }
    case Op::reshape:
      return {.op = op,
              .traits = {graph_file, view},
              .operands = {in("x", "any"), out("y", "any")},
              .attributes = {file({.name = "shape", .type = Type::dims}, "the new dims, of which one may be -1")},
              .work = WorkClass::none};
    case Op::flatten:
      return {.op = op,
              .traits = {graph_file, view},
              .operands = {in("x", "any"), out("y", "any")},
              .work = WorkClass::none};
    case Op::split:
      return {.op = op,
              .traits = {graph_file, keeps_columns},
              .operands = {in("x", "c [..., n₀ + n₁ + …, ...]"), many(out("y", "c [..., nᵢ, ...]"))},
              .attributes = {file({.name = "into", .type = Type::pieces},
                                  "names and sizes of the pieces, which are read as <name>.<piece>"),
                             both(which_dim(-1), "the dim that is cut; negative: from the last")},
              .timed_as = "copy"};
    case Op::concat:
      return {.op = op,
              .traits = {graph_file},
              .operands = {many(in("x", "c [..., nᵢ, ...]")), out("y", "c [..., n₀ + n₁ + …, ...]")},
              .attributes = {both(which_dim(-1), "the dim along which they are joined; negative: from the last")},
              .timed_as = "copy"};
    case Op::slice:
      return {
          .op = op,
          .traits = {graph_file},
          .operands = {in("x", "c [..., n, ...]"), out("y", "c [..., size, ...]")},
          .attributes = {both(which_dim(-1), "the dim that is cut; negative: from the last"),
                         both(from(-kInfinity, slice_start()), "the first place that is kept; negative: from the end"),
                         file(from(1, integer("size")), "how many places are kept")},
          .timed_as = "copy"};
    case Op::slice_grad:
      return {.op = op,
              .traits = {backward},
              .operands = {in("dy", "c [..., size, ...]"), out("dx", "c [..., n, ...]")},
              .attributes = {which_dim(-1), slice_start()},
              .timed_as = "copy",
              .note = "0 where x was not kept"};
    case Op::expand:
      return {.op = op,
              .traits = {graph_file},
              .operands = {in("x", "c [...]"), in("like", "any [..., n, ...] (not read)"), out("y", "c [..., n, ...]")},
              .attributes = {both(integer("dim", std::int64_t{0}),
                                  "the dim that the output has and x has not, as many places as there are in that dim "
                                  "of the second input; counted from 0")},
              .timed_as = "copy",
              .note = "x once for each place in dim `dim` of like, which y has"};
    case Op::transpose:
      return {.op = op,
              .traits = {graph_file},
              .operands = {in("x", "c [n₀, n₁, …]"), out("y", "c")},
              .attributes = {both({.name = "dims", .type = Type::dims},
                                  "the dims of x in the order in which the output has them, counted from 0")},
              .timed_as = "copy",
              .bandwidth = 0.7,  // one side is read or written in short runs
              .note = "dim i of y is dim dims[i] of x"};
    case Op::mean:
      return {.op = op,
              .traits = {graph_file},
              .operands = {in("x", "c [..., n, ...]"), out("y", "c [..., ...]")},
              .attributes = {both(which_dim(-1),
                                  "the dim over which is averaged, which the output has not; negative: "
                                  "from the last")},
              .timed_as = "sum_leading",
              .note = "the sum over a dim / n"};
    case Op::row_squares:
      return {.op = op,
              .traits = {costly},
              .operands = {parameter("weight", "c [out, in]"), parameter("a", "c [rank, in]"),
                           parameter("b", "c [out, rank]"), out("squares", "f32 [out]")},
              .attributes = {real("factor")},
              .work = WorkClass::own,
              .note = "of each row of weight + factor · b a the sum of its squares"};
    case Op::over_root:
      return {.op = op,
              .traits = {},
              .operands = {in("x", "c [n]"), in("squares", "f32 [n]"), out("y", "c [n]")},
              .timed_as = "mul",
              .note = "x / √squares; 0 where squares are 0"};
    case Op::mean_grad:
      return {.op = op,
              .traits = {backward},
              .operands = {in("dy", "c [..., ...]"), out("dx", "c [..., n, ...]")},
              .attributes = {which_dim(-1)},
              .timed_as = "copy"};

    // Windows read single elements, rows apart.
    case Op::max_pool2d:
      return pool(
          op, {graph_file},
          {in("x", "c [n, ch, h, w]"), out("y", "c"), out("index", "i32 of y's shape (position in the h·w plane)")});
    case Op::max_pool2d_grad:
      return pool(op, {backward, scratch}, {in("dy", "c"), in("index", "i32"), out("dx", "c [n, ch, h, w]")});
    case Op::avg_pool2d: {
      OpRecord record = pool(op, {graph_file}, {in("x", "c [n, ch, h, w]"), out("y", "c")});
      record.note = "padding counts as zeros, as PyTorch's default";
      return record;
    }
    case Op::avg_pool2d_grad:
      return pool(op, {backward}, {in("dy", "c"), out("dx", "c [n, ch, h, w]")});

    // Statistics of channels. Sums are f64, so that ranks and devices agree about them.
    case Op::batch_norm:
      return {.op = op,
              .traits = {graph_file, scratch},
              .operands = {in("x", "c [n, ch, ...]"), parameter("weight", "c [ch]"), parameter("bias", "c [ch]"),
                           in("running_mean", "f32 [ch]"), in("running_var", "f32 [ch]"), out("y", "c", "x")},
              .attributes = {eps(),
                             file(real("momentum", 0.1),
                                  "how much of a batch's statistics enters the running ones: running = "
                                  "(1 − momentum) · running + momentum · batch"),
                             file(flag("sync", false),
                                  "whether the statistics that normalise in training are those of all data ranks' "
                                  "samples; without, each rank normalises by its own")},
              .timed_as = "add_leading",
              .note = "by the running statistics"};
    case Op::batch_norm_sums:
      return {.op = op,
              .traits = {scratch},
              .operands = {in("x", "c [n, ch, ...]"), out("sums", "f64 [2, ch]")},
              .timed_as = "sum_leading",
              .note = "Σ x and Σ x² of each channel"};
    case Op::batch_norm_apply:
      return {.op = op,
              .traits = {scratch},
              .operands = {in("x", "c [n, ch, ...]"), in("sums", "f64 [2, ch]"), parameter("weight", "c [ch]"),
                           parameter("bias", "c [ch]"), out("y", "c")},
              .attributes = batch_norm_attributes(),
              .timed_as = "add_leading",
              .note = "by the statistics of `count` elements a channel"};
    case Op::batch_norm_update:
      return {.op = op,
              .operands = {in("sums", "f64 [2, ch]"), update("running_mean", "f32 [ch]"),
                           update("running_var", "f32 [ch]")},
              .attributes = {real("momentum"), integer("count")},
              .work = WorkClass::scalars,
              .note = "the variance over count − 1"};
    case Op::batch_norm_grad_sums:
      return {.op = op,
              .traits = {backward, scratch},
              .operands = {in("dy", "c [n, ch, ...]"), in("x", "c"), in("sums", "f64 [2, ch]"),
                           out("grad_sums", "f64 [2, ch]"), sum("dweight", "r [ch]", "weight"),
                           sum("dbias", "r [ch]", "bias")},
              .attributes = with_gradients_of_both(batch_norm_attributes()),
              .timed_as = "sum_leading",
              .note = "Σ dy and Σ dy (x − mean) rstd of each channel"};
    case Op::batch_norm_grad:
      return {.op = op,
              .traits = {backward, scratch},
              .operands = {in("dy", "c [n, ch, ...]"), in("x", "c"), parameter("weight", "c [ch]"),
                           in("sums", "f64 [2, ch]"), in("grad_sums", "f64 [2, ch]"), out("dx", "c", "dy x")},
              .attributes = batch_norm_attributes(),
              .timed_as = "add_leading"};

    // Mixtures of experts. A choice of -1 is none.
    case Op::router: {
      AttributeDefs attributes{file(from(1, integer("experts")), "how many experts there are"),
                               file(from(1, integer("top_k")), "how many of them each token goes to")};
      for (const AttributeDef& def : route_attributes(true)) attributes.push_back(def);
      attributes.push_back(file(real("aux", 0.0),
                                "factor of a loss that is smallest where experts get equal shares; it "
                                "adds to the gradient, and to aux_loss in the log"));
      attributes.push_back(file(real("z", 0.0), "factor of a loss of large logits, likewise"));
      attributes.push_back(
          file({.name = "balance", .type = Type::choice, .otherwise = std::string("none"), .choices = {"none", "bias"}},
               "bias: experts are chosen by score + e_score_correction_bias, which no gradient moves; each step moves "
               "it towards equal shares of the global batch"));
      attributes.push_back(file(real("balance_rate", 0.001),
                                "by how much, down for an expert with more than the mean, up for one with less; 0: "
                                "it stays as it is"));
      attributes.push_back(flag("biased", false));
      return {.op = op,
              .traits = {graph_file, composite},
              .operands = {in("x", "c [batch, seq, dim]"), parameter("weight", "c [experts, dim]"),
                           in("e_score_correction_bias", "f32 [experts]", "biased"),
                           out("weights", "f32 [batch, seq, top_k]")},
              .attributes = attributes,
              .work = WorkClass::none};
    }
    case Op::experts:
      return {
          .op = op,
          .traits = {graph_file, composite},
          .operands = {in("x", "c [batch, seq, dim]"), in("weights", "f32 [batch, seq, top_k]"),
                       out("y", "c [batch, seq, dim]")},
          .attributes =
              {file(from(1, integer("hidden")), "size of an expert's hidden layer"),
               file(
                   {.name = "act", .type = Type::choice, .otherwise = std::string("silu"), .choices = {"silu", "gelu"}},
                   "the activation of the gate; gelu is the approximation by tanh"),
               above_zero(file(real("capacity_factor", "all of a sample"),
                               "an expert takes at most ⌈capacity_factor · seq · top_k / experts⌉ tokens of a "
                               "sample where there are targets; what is over adds nothing")),
               above_zero(
                   file(real("bound", 2.0),
                        "under strategy.expert, without a capacity_factor: in training a rank sends each rank of "
                        "the axis at most `bound` times the mean of its choices; what is over adds nothing"))},
          .work = WorkClass::none};
    case Op::route: {
      AttributeDefs attributes = route_attributes(false);
      attributes.push_back(flag("biased", false));
      for (const AttributeDef& def : {real("aux", 0.0), real("z", 0.0)}) attributes.push_back(def);
      return {.op = op,
              .operands = {in("logits", "c [batch, seq, experts]"), in("bias", "f32 [experts]", "biased"),
                           out("weights", "f32 [batch, seq, k]"), out("choices", "i32 [batch, seq, k]")},
              .attributes = attributes,
              .work = WorkClass::rows,
              .timed_as = "cross_entropy",
              .note = "aux and z are of use to its gradient only"};
    }
    case Op::route_grad: {
      AttributeDefs attributes = router_losses_attributes();
      for (const AttributeDef& def : {flag("normalize", true), real("scale", 1.0), flag("losses", false)})
        attributes.push_back(def);
      return {.op = op,
              .traits = {backward},
              .operands = {in("dweights", "f32 [batch, seq, k]"), in("logits", "c [batch, seq, experts]"),
                           in("choices", "i32 [batch, seq, k]"), in("seed", "f32 [1]", "losses"), out("dlogits", "c")},
              .attributes = attributes,
              .work = WorkClass::own};
    }
    case Op::expert_capacity:
      return {.op = op,
              .operands = {in("choices", "i32 [batch, seq, k]"), out("kept", "i32 [batch, seq, k]")},
              .attributes = {integer("experts"), integer("capacity")},
              .timed_as = "copy",
              .note =
                  "-1 for what an expert has no room for: of a sample it takes `capacity` tokens, first choices "
                  "before second ones, then by position"};
    case Op::router_losses:
      return {.op = op,
              .traits = {scratch},
              .operands = {in("logits", "c [batch, seq, experts]", "!balance"),
                           in("choices", "i32 [batch, seq, k]", "!balance"),
                           in("kept", "i32 [batch, seq, k]", "capacity"), update("sums", "f64 [2] or [experts]"),
                           in("scalars", "f32 [4]", "balance"), update("bias", "f32 [experts]", "balance")},
              .attributes = {score(false), real("aux", 0.0), real("z", 0.0), flag("capacity", false),
                             flag("counts", false), flag("balance", false), real("rate", 0.0)},
              .work = WorkClass::own,
              .timed_as = "cross_entropy",
              .note =
                  "adds the losses of each sample, and the number of choices in kept that are -1; `counts`: how "
                  "many choices are each expert; `balance`: bias −= rate · sign(sum − mean of sums), where "
                  "scalars.factor > 0"};
    case Op::expert_linear:
      return {.op = op,
              .traits = {costly, scratch},
              .operands = {in("x", "c [..., in] or [..., k, in]"), in("choices", "i32 [..., k]"),
                           parameter("weight", "c [experts, out, in]"), out("y", "c [..., k, out] or [..., out]")},
              .attributes = expert_attributes(),
              .work = WorkClass::product,
              .note =
                  "by the weight of each choice; without k in y the sum over it; with parts > 1 choices "
                  "[batch, parts, …] are numbers within a part of the experts; filled: the share of choices that "
                  "are some, for costs"};
    case Op::expert_linear_grad_input:
      return {.op = op,
              .traits = {backward, scratch},
              .operands = {in("dy", "c [..., k, out] or [..., out]"), in("choices", "i32 [..., k]"),
                           parameter("weight", "c [experts, out, in]"), out("dx", "c [..., in] or [..., k, in]")},
              .attributes = expert_attributes(),
              .work = WorkClass::product};
    case Op::expert_linear_grad_weight:
      return {.op = op,
              .traits = {backward, scratch},
              .operands = {in("x", "c [..., in] or [..., k, in]"), in("dy", "c [..., k, out] or [..., out]"),
                           in("choices", "i32 [..., k]"), sum("dweight", "r [experts, out, in]")},
              .attributes = expert_attributes(),
              .work = WorkClass::product};
    case Op::weigh:
      return {.op = op,
              .traits = {graph_file, keeps_columns},
              .operands = {in("x", "c [..., n]"), in("weights", "f32 [...] or [..., 1]"), out("y", "c [..., n]", "x")},
              .timed_as = "mul",
              .note = "rows of x times their weights"};
    case Op::row_dots:
      return {.op = op,
              .traits = {backward},
              .operands = {in("a", "c [..., n]"), in("b", "c [..., n]"), out("dots", "f32 [...]")},
              .timed_as = "mul",
              .note = "Σ a b of each row"};
    case Op::expert_slots:
      return {.op = op,
              .operands = {in("choices", "i32 [batch, seq, k]"), out("slots", "i32 [batch, seq, k]"),
                           out("sources", "i32 [blocks, parts, rows]"), out("numbers", "i32 [blocks, parts, rows]")},
              .attributes = {integer("experts")},
              .timed_as = "copy",
              .note =
                  "in each block of the batch, choices of a part of the experts take its rows, first choices before "
                  "second ones, then by position; slots: parts · rows of a block in one numbering, -1 for what is "
                  "over; sources: choices of a block in one numbering, numbers: experts within a part, -1: none"};
    case Op::dispatch:
      return {
          .op = op,
          .operands = {in("x", "any float [batch, seq, n] or [batch, seq, k, n]"), in("slots", "i32 [batch, seq, k]"),
                       in("sources", "i32 [blocks, parts, rows]"), out("rows", "x [blocks, parts, rows, n]")},
          .timed_as = "copy",
          .note = "of each source the row of x that it is of, 0 where there is none"};
    case Op::combine:
      return {.op = op,
              .operands = {in("rows", "any float [blocks, parts, rows, n]"), in("slots", "i32 [batch, seq, k]"),
                           in("sources", "i32 [blocks, parts, rows]"),
                           out("y", "rows [batch, seq, n] or [batch, seq, k, n]")},
              .timed_as = "copy",
              .note = "the rows in its slots; without k in y their sum"};

    // Losses.
    case Op::cross_entropy:
      return {.op = op,
              .traits = {graph_file, scratch},
              .operands = {in("logits", "c [..., classes]"), in("targets", "i32 [...]"), sum("loss", "f64 [1]"),
                           out("lse", "f32 [rows]")},
              .attributes = {both(from(-kInfinity, ignore_index()), "targets of this value do not count"),
                             both(label_smoothing(), "the share of the target that is spread over all classes")},
              .work = WorkClass::rows,
              .bandwidth = 0.92,
              .note = "the sum over targets that are not ignored"};
    case Op::cross_entropy_grad:
      return {.op = op,
              .traits = {backward},
              .operands = {in("logits", "c"), in("targets", "i32"), in("lse", "f32"), in("seed", "f32 [seeds]"),
                           out("dlogits", "c", "logits")},
              .attributes = {ignore_index(), label_smoothing(), classes()},
              .work = WorkClass::rows,
              .note = "d(loss sum)/dlogits · seed; of several seeds each is that of rows / seeds rows"};
    case Op::cross_entropy_count:
      return {.op = op,
              .traits = {scratch},
              .operands = {in("targets", "i32"), sum("count", "f64 [1]")},
              .attributes = {ignore_index()}};
    case Op::correct_count:
      return {.op = op,
              .traits = {scratch},
              .operands = {in("logits", "c [..., classes]"), in("targets", "i32 [...]"), sum("correct", "f64 [1]")},
              .attributes = {ignore_index()},
              .work = WorkClass::rows,
              .note = "largest logit, the first of equals, is the target"};
    case Op::cross_entropy_stats:
      return {
          .op = op,
          .operands = {in("logits", "c [..., columns]"), in("targets", "i32 [...]"), out("stats", "f32 [1, rows, 5]")},
          .attributes = {classes(), ignore_index()},
          .work = WorkClass::rows,
          .bandwidth = 0.92};
    case Op::cross_entropy_gathered:
      return {.op = op,
              .traits = {scratch},
              .operands = {in("logits", "c [..., columns] (not read)"), in("stats", "f32 [parts, rows, 5]"),
                           in("targets", "i32 [...]"), sum("loss", "f64 [1]"), out("lse", "f32 [rows]")},
              .attributes = {classes(), ignore_index(), label_smoothing()},
              .work = WorkClass::own};
    case Op::correct_count_gathered:
      return {.op = op,
              .traits = {scratch},
              .operands = {in("stats", "f32 [parts, rows, 5]"), in("targets", "i32 [...]"), sum("correct", "f64 [1]")},
              .attributes = {classes(), ignore_index()},
              .work = WorkClass::own};
    case Op::sequence_nll:
      return {
          .op = op,
          .operands = {in("logits", "c [sequences, ..., columns] (not read)"), in("stats", "f32 [parts, rows, 5]"),
                       in("targets", "i32 [sequences, ...]"), out("nll", "f64 [sequences]"), out("lse", "f32 [rows]")},
          .attributes = {classes(), ignore_index()},
          .work = WorkClass::own,
          .timed_as = "cross_entropy_gathered",
          .note = "of each sequence the sum of −ln p over its targets that are not ignored"};
    case Op::dpo_loss:
      return {.op = op,
              .operands = {in("policy", "f64 [2·pairs]"), in("reference", "f64 [2·pairs]"),
                           in("targets", "i32 [2·pairs, ...]"), sum("loss", "f64 [1]"), sum("figures", "f64 [4]")},
              .attributes = {real("beta"), ignore_index()},
              .work = WorkClass::scalars,
              .timed_as = "loss_seed",
              .note = "Rafailov et al. 2023, equation 7, of pairs (chosen, rejected) of `sequence_nll`"};
    case Op::dpo_loss_grad:
      return {.op = op,
              .traits = {backward},
              .operands = {in("policy", "f64 [2·pairs]"), in("reference", "f64 [2·pairs]"),
                           in("targets", "i32 [2·pairs, ...]"), in("seed", "f32 [1]"), out("dpolicy", "f32 [2·pairs]")},
              .attributes = {real("beta"), ignore_index()},
              .work = WorkClass::scalars,
              .timed_as = "loss_seed"};
    case Op::dpo_count:
      return {.op = op,
              .operands = {in("targets", "i32 [2·pairs, ...]"), sum("count", "f64 [1]")},
              .attributes = {ignore_index()},
              .work = WorkClass::scalars,
              .timed_as = "loss_seed",
              .note = "pairs with a target that is not ignored"};
    case Op::mse:
      return {.op = op,
              .traits = {graph_file, scratch},
              .operands = {in("prediction", "c"), in("target", "c or f32"), sum("loss", "f64 [1]")},
              .note = "the sum of squares"};
    case Op::mse_grad:
      return {.op = op,
              .traits = {backward},
              .operands = {in("prediction", "c"), in("target", "c or f32"), in("seed", "f32 [1]"),
                           out("dprediction", "c", "prediction")},
              .note = "2 (prediction − target) · seed"};
    case Op::mse_count:
      return {.op = op,
              .traits = {scratch},
              .operands = {in("target", "c or f32"), sum("count", "f64 [1]")},
              .note = "its number of elements"};

    // The plan makes collectives of these.
    case Op::replicate:
      return collective_of(op, {collective}, {});
    case Op::all_reduce:
      return collective_of(op, {collective, costly}, {}, "x");
    case Op::all_gather:
      return collective_of(op, {collective}, {integer("dim")});
    case Op::reduce_scatter:
      return collective_of(op, {collective, costly}, {integer("dim")});
    case Op::all_to_all:
      return collective_of(op, {collective, costly}, {integer("dim")});
    case Op::shift:
      return collective_of(op, {collective, costly}, {});

    // The step around the graph.
    case Op::zero:
      return {.op = op, .operands = {out("y", "any")}};
    case Op::cast:
      return {.op = op,
              .traits = {elementwise},
              .operands = {in("x", "any float"), out("y", "any float")},
              .work = WorkClass::own,
              .note = "round to nearest even; x any → y the same dtype: a copy of the bytes, in place if need be"};
    case Op::pack_weight:
      return {.op = op,
              .operands = {in("weight", "c [out, in] row-major"), out("packed", "the same in a packed layout")},
              .work = WorkClass::own};
    case Op::loss_seed:
      return {.op = op,
              .operands = {in("count", "f64 [1]"), in("scalars", "f32 [4]"), out("seed", "f32 [1]")},
              .attributes = {integer("samples", "the count is what is divided by")},
              .work = WorkClass::scalars,
              .note = "scalars.loss_scale / max(count, 1)"};
    case Op::sum_squares:
      return {.op = op,
              .traits = {scratch},
              .operands = {in("x", "r [n]"), sum("squares", "f64 [1]")},
              .attributes = {integer("first", std::int64_t{0}), integer("last", "the end"), real("scale", 1.0)},
              .work = WorkClass::own,
              .bandwidth = 0.92,
              .note = "scale · Σ x² of the elements i with first ≤ `Call::origin` + i < last"};
    case Op::update_scalars: {
      constexpr std::string_view kDynamic = "of use with `dynamic` only";
      return {.op = op,
              .operands = {in("squares", "f64 [1]"), in("loss", "f64 [1]"), in("count", "f64 [1]"),
                           update("scalars", "f32 [4]"), update("applied", "i32 [1]"),
                           update("good_steps", "i32 [1]", "dynamic")},
              .attributes = {real("clip_norm", 0.0), flag("dynamic", false), integer("growth_interval", kDynamic),
                             real("growth_factor", kDynamic), real("backoff_factor", kDynamic),
                             real("largest_scale", kDynamic), real("smallest_scale", kDynamic)},
              .work = WorkClass::scalars,
              .note = "clip_norm 0: none"};
    }
    case Op::sgd:
      return optimizer_of(op, {state("momentum", "has_momentum")},
                          {real("momentum", 0.0), flag("nesterov", false), flag("has_momentum", false)});
    case Op::adam:
      return optimizer_of(op, {state("m"), state("v")}, {real("beta1"), real("beta2"), real("eps")});
    case Op::adamw:
      return optimizer_of(op, {state("m"), state("v")}, {real("beta1"), real("beta2"), real("eps")});
    case Op::lion:
      return optimizer_of(op, {state("m")}, {real("beta1"), real("beta2")});
    case Op::muon_momentum:
      return {.op = op,
              .operands = {in("gradient", "r [n]"), state("momentum"), in("scalars", "f32 [4]"),
                           in("applied", "i32 [1]"), out("u", "f32 [n]")},
              .attributes = {real("momentum"), flag("nesterov", false)}};
    case Op::muon_orthogonalize:
      return {.op = op,
              .traits = {scratch},
              .operands = {update("x", "f32 [parts, n]"), in("scalars", "f32 [4]")},
              .attributes = {integer("steps"),
                             {.name = "adjust", .type = Type::choice, .choices = {"original", "match_rms_adamw"}},
                             real("eps"),
                             {.name = "matrices", .type = Type::text}},
              .work = WorkClass::orthogonalize};
    case Op::muon:
      return optimizer_of(op, {}, {}, "x", "f32 [n]");

    // Between steps, and before gradients travel.
    case Op::outer_gradient:
      return {.op = op,
              .operands = {in("anchor", "f32 [n]"), in("master", "f32 [n]"), out("gradient", "f32 [n]", "master")},
              .note = "anchor − master"};
    case Op::outer_step:
      return {.op = op,
              .operands = {update("anchor", "f32 [n]"), update("momentum", "f32 [n]"), in("gradient", "f32 [n]"),
                           out("master", "f32 [n]", "gradient")},
              .attributes = {real("factor"), real("lr"), real("momentum"), flag("nesterov", false)}};
    case Op::apply_delayed:
      return {.op = op,
              .operands = {update("master", "f32 [n]"), in("snapshot", "f32 [n]"), in("average", "f32 [n]")},
              .attributes = {real("factor")},
              .note = "master + factor · average − snapshot"};
    case Op::compress_bf16:
      return {.op = op,
              .operands = {in("gradient", "r [n]"), update("residual", "f32 [n]"), out("packet", "bf16 [n]")}};
    case Op::quantize_int8:
      return {.op = op,
              .operands = {in("gradient", "r [n]"), update("residual", "f32 [n]", "feedback"),
                           out("packet", "u8 [slices · int8_bytes(n / slices)]")},
              .attributes = {integer("slices", 1), flag("feedback", true)}};
    case Op::dequantize_int8:
      return {.op = op,
              .operands = {in("packet", "u8 [slices · int8_bytes(n / slices)]"), out("y", "r [n]")},
              .attributes = {integer("slices", 1)}};
    case Op::dequantize_sum_int8:
      return {.op = op,
              .operands = {in("packet", "u8 [slices · int8_bytes(n)]"), out("y", "r [n]")},
              .attributes = {integer("slices", 1)},
              .note = "the sum over the slices, in order"};
    case Op::top_k_compress:  // a selection passes over its input some four times
      return {
          .op = op,
          .traits = {scratch},
          .operands = {in("gradient", "r [n]"), update("residual", "f32 [n]"), out("packet", "u8 [top_k_bytes(k)]")},
          .attributes = {integer("k")},
          .bandwidth = 0.25};
    case Op::top_k_sum:
      return {.op = op,
              .operands = {in("packets", "u8 [ranks · top_k_bytes(k)]"), out("y", "r [n]")},
              .attributes = {integer("k"), integer("ranks")},
              .bandwidth = 0.25,
              .note = "the pairs of all ranks added to 0, by rank"};
  }
  return {.op = op};
}

std::vector<OpRecord> make_all() {
  std::vector<OpRecord> all;
  for (int op = 0; op < kNumOps; ++op) all.push_back(make(static_cast<Op>(op)));
  return all;
}

}  // namespace

const OpRecord& record(Op op) {
  static const std::vector<OpRecord> all = make_all();
  return all[static_cast<std::size_t>(op)];
}

}  // namespace trainer
