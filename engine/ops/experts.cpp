// Mixtures of experts. A graph file says `router` and `experts`; engine/transform/experts.h makes these of them:
//
//   router    linear           x, weight → logits
//             route            logits → weights, choices       the best k of each token; the gradient goes to their
//             scores, and not to the bias
//             router_losses    logits, choices → sums           of losses; with a bias that is to move, of choices by
//             expert
//   experts   expert_capacity  choices → kept                  with a capacity: -1 for what is over
//             expert_linear    x, kept, gate_proj → gate       [..., k, hidden]; up likewise
//             silu, mul, weigh gate, up, weights → h           weighed before the last product, so that only sums
//             remain expert_linear    h, kept, down_proj → y          [..., dim]: the sum over a token's experts
//
// Where the experts are cut over n ranks (strategies/expert), the products are of rows that have travelled, and what is
// around them of a rank's own tokens. R blocks are the ranks' parts of the batch, and of its sequences where these are
// cut:
//
//   expert_slots   choices → slots, sources, numbers   which row of the buffers [R, n, rows] each choice takes
//   dispatch       x, slots, sources → rows            [R, n, rows, dim], a rank's block is what it sends to each part
//   all_to_all     rows → theirs                       cut in dim 1: what each block sends to the rank's own experts
//   …              as above, with a choice for each row, whose weight travels too
//   all_to_all     y → back                            cut in dim 0 again
//   combine        back, slots, sources → y            the sum over a token's experts
//
// dispatch and combine are each other's gradients. Sources: Lepikhin et al., "GShard", 2020, section 3.2; Gale et al.,
// "MegaBlocks", 2022 (products of as many rows as there are).
//
// All of these work token by token, but for expert_capacity, which counts within a sample, and the losses of a router.
// So samples and positions may be cut, and weights as those of `linear`: gate and up by rows, down by columns. Sources:
// Shazeer et al., "Outrageously Large Neural Networks", 2017; Jiang et al., "Mixtral of Experts", 2024; DeepSeek-AI,
// "DeepSeek-V3 Technical Report", 2024, section 2.1.2.
#include <cmath>
#include <string>

#include "engine/core/check.h"
#include "engine/ops/common.h"
#include "engine/ops/router_states.h"

namespace trainer::define {
namespace {

Inference infer_router(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_values(inputs[0], compute);
  need_rank(inputs[0], 3, "[batch, seq, dim]");
  const Shape& x = inputs[0].shape;
  const std::int64_t experts = given.integer("experts"), top_k = given.integer("top_k"),
                     groups = given.integer("groups"), top_groups = given.integer("top_groups");
  if (top_k > experts)
    mistake("a token cannot go to more experts than there are: 1 to " + std::to_string(experts), "top_k");
  if (experts % groups != 0) mistake("has to divide the experts, " + std::to_string(experts), "groups");
  if (top_groups > groups) mistake("there are " + std::to_string(groups) + " groups", "top_groups");
  if (experts / groups * top_groups < top_k)
    mistake("have " + std::to_string(experts / groups * top_groups) + " experts, fewer than top_k", "top_groups");
  if (groups > 1 && experts / groups < 2) mistake("a group has at least two experts", "groups");
  Inference inference;
  for (const char* name : {"score", "normalize", "scale", "groups", "top_groups", "aux", "z"})
    for (const auto& [key, value] : given.items())
      if (key == name) inference.attributes.set(key, value);
  if (given.text("balance") == "bias") {
    inference.attributes.set("biased", true);
    inference.attributes.set("balance_rate", given.real("balance_rate"));
    inference.states = {{std::string(kBalanceBias), {experts}, zeros_init()}};
  }
  inference.parameters = {{"weight", {experts, x[2]}, matrix_init()}};
  inference.outputs = {{DType::f32, {x[0], x[1], top_k}}, {DType::i32, {x[0], x[1], top_k}}};
  inference.saved_names = {"choices"};
  return inference;
}

/// Inputs are x, and the weights and choices of a router.
Inference infer_experts(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_values(inputs[0], compute);
  need_rank(inputs[0], 3, "[batch, seq, dim]");
  const Shape &x = inputs[0].shape, &choices = inputs[2].shape;
  if (x[0] != choices[0] || x[1] != choices[1])
    mistake("the router chose for " + choices.str() + ", which are other tokens than those of " + x.str());
  const std::int64_t experts = given.integer("experts"), hidden = given.integer("hidden");
  Inference inference;
  inference.attributes = {{"act", given.text("act")}, {"bound", given.real("bound")}};
  if (given.has("capacity_factor")) {
    const double mean = static_cast<double>(choices[1] * choices[2]) / static_cast<double>(experts);
    inference.attributes.set("capacity", static_cast<std::int64_t>(std::ceil(given.real("capacity_factor") * mean)));
  }
  inference.parameters = {{"gate_proj.weight", {experts, hidden, x[2]}, matrix_init()},
                          {"up_proj.weight", {experts, hidden, x[2]}, matrix_init()},
                          {"down_proj.weight", {experts, x[2], hidden}, matrix_init()}};
  inference.outputs = {{compute, x}};
  return inference;
}

// ---- The parts ----------------------------------------------------------------------------------------------------

/// Samples and positions may be cut, in any way; every operand has them first.
bool by_tokens(Placing in, int leading) {
  return in[0].is_shard() && in[0].dim < leading &&
         std::all_of(in.begin(), in.end(), [&](const Placement& other) { return other == in[0]; });
}

int last_of(const Graph& graph, ValueId value) { return graph.value(value).shape().rank() - 1; }

std::vector<ValueId> gradient_route(GradientBuilder& build, const Node& node, OutputGradients dy) {
  std::vector<ValueId> result(node.inputs.size(), kNone);
  if (!build.needed(node.inputs[0])) return result;
  const bool losses = real(node, "aux") != 0 || real(node, "z") != 0;
  Attributes attributes;
  for (const char* name : {"score", "normalize", "scale", "aux", "z"})
    for (const auto& [key, value] : node.attributes.items())
      if (key == name && (losses || key != "aux") && (losses || key != "z")) attributes.set(key, value);
  std::vector<ValueId> inputs{dy[0], node.inputs[0], node.outputs[1]};
  if (losses) {
    attributes.set("losses", true);
    const Graph& graph = build.graph();
    const auto seed = std::ranges::find(graph.states, kRouterSeed, [&](const GraphState& state) -> std::string_view {
      return graph.value(state.value).name;
    });
    CHECK(seed != graph.states.end(), "a router with losses has their seed");
    inputs.push_back(seed->value);
  }
  result[0] = build.node(node, Op::route_grad, attributes, std::move(inputs), {input_desc(build.graph(), node, 0)})[0];
  return result;
}

Placed shard_route(const Graph&, const Node& node, Placing in) {
  return by_tokens(in.first(1), 2) && (in.size() == 1 || in[1].is_replicate()) ? all(node, in[0]) : Placed{};
}

/// Linear in dweights, but for the losses. Those count within a sample.
Placed shard_route_grad(const Graph&, const Node& node, Placing in) {
  if (flag(node, "losses"))
    return by_tokens(in.first(3), 1) && in[0].is_shard(0) && in[3].is_replicate() ? all(node, in[0]) : Placed{};
  if (by_tokens(in, 2)) return all(node, in[0]);
  if (in[0].is_partial() && in[1].is_replicate() && in[2].is_replicate()) return all(node, in[0]);
  return {};
}

/// What counts within a sample takes whole ones. Each rank counts the choices that it has, whichever they are; a bias
/// moves by the counts of all.
Placed shard_samples(const Graph&, const Node& node, Placing in) {
  if (node.op == Op::router_losses && flag(node, "balance")) return {};
  if (node.op == Op::router_losses && flag(node, "counts") && in[0] == in[1] && by_tokens(in.first(2), 2))
    return std::vector<Placement>{};
  if (node.op == Op::router_losses && flag(node, "capacity") && real(node, "aux") == 0 && real(node, "z") == 0 &&
      by_tokens(in.first(3), 2))
    return std::vector<Placement>{};
  const Placing batch = in.first(in.size() - (node.op == Op::router_losses ? 1 : 0));
  return in[0].is_shard(0) && by_tokens(batch, 1) ? all(node, in[0]) : Placed{};
}

/// As that of `linear`: the weight's gradient first, the last to read the saved input.
std::vector<ValueId> gradient_expert_linear(GradientBuilder& build, const Node& node, OutputGradients dy) {
  const ValueId x = node.inputs[0], choices = node.inputs[1], weight = node.inputs[2];
  if (build.needed(weight))
    build.node_with_gradients(node, Op::expert_linear_grad_weight, node.attributes, {x, dy[0], choices},
                              {{build.reduce_dtype(), build.graph().value(weight).shape()}}, {weight});
  std::vector<ValueId> result(node.inputs.size(), kNone);
  if (build.needed(x))
    result[0] = build.node(node, Op::expert_linear_grad_input, node.attributes, {dy[0], choices, weight},
                           {input_desc(build.graph(), node, 0)})[0];
  return result;
}

std::int64_t parts_of(const Node& node) { return integer(node, "parts"); }

/// Choices that are numbers within parts of the experts, [batch, parts, …]: where the parts are cut, so are the
/// experts.
bool cuts_parts(const Node& node, Placing in) {
  return parts_of(node) > 1 && (in[0].is_shard(1) || in[0].is_shard(Placement::kRows));
}
bool by_parts(Placing in) {
  return std::ranges::all_of(in, [](const Placement& one) { return one == Placement::shard(1); });
}

/// The product of `in[0]`, whose last dim meets dim `summed` of the weight, and makes dim `made` of it: in by tokens;
/// the made dim cut; the summed dim cut, which leaves partial sums; or a partial operand.
Placed shard_expert_product(const Graph& graph, const Node& node, Placing in, int made, int summed) {
  const int leading = last_of(graph, node.inputs[1]), last = last_of(graph, node.inputs[0]);
  const Placement x = in[0], choices = in[1], weight = in[2];
  if (cuts_parts(node, in)) return by_parts(in.first(2)) && weight == Placement::shard(0) ? all(node, x) : Placed{};
  if (by_tokens(in.first(2), leading) && weight.is_replicate()) return all(node, x);
  if (!choices.is_replicate()) return {};
  if (x.is_replicate() && weight.is_shard(made)) return all(node, weight.moved_to(last_of(graph, node.outputs[0])));
  if (x.is_shard(last) && weight == x.moved_to(summed)) return all(node, Placement::partial());
  if (x.is_partial() && weight.is_replicate()) return all(node, x);
  return {};
}

Placed shard_expert_grad_weight(const Graph& graph, const Node& node, Placing in) {
  const int leading = last_of(graph, node.inputs[2]);
  const Placement x = in[0], dy = in[1];
  if (cuts_parts(node, in)) return by_parts(in) ? all(node, Placement::shard(0)) : Placed{};
  if (by_tokens(in, leading)) return all(node, Placement::partial());
  if (!in[2].is_replicate()) return {};
  if (x.is_replicate() && dy.is_partial()) return all(node, dy);
  if (x.is_partial() && dy.is_replicate()) return all(node, x);
  if (x.is_replicate() && dy.is_shard(last_of(graph, node.inputs[1]))) return all(node, dy.moved_to(1));
  if (x.is_shard(last_of(graph, node.inputs[0])) && dy.is_replicate()) return all(node, x.moved_to(2));
  return {};
}

/// Of each choice a row of the one operand meets the matrix of its expert.
double expert_flops(const Signature& s, std::size_t choices, std::size_t weight) {
  const Shape& w = s.operands[weight].shape;
  return 2.0 * real(s, "filled") * static_cast<double>(s.operands[choices].elements()) * static_cast<double>(w[1]) *
         static_cast<double>(w[2]);
}

/// A graph file has the weights as a value of one column, or of none.
Inference infer_weigh(const Attributes&, std::span<const TensorDesc> inputs, DType compute) {
  need_values(inputs[0], compute);
  need_rank_least(inputs[0], 2);
  const Shape &x = inputs[0].shape, &weights = inputs[1].shape;
  const bool column = weights.rank() == x.rank() && weights[-1] == 1;
  bool fits = inputs[1].dtype == DType::f32 && (column || weights.rank() == x.rank() - 1);
  for (int dim = 0; fits && dim < x.rank() - 1; ++dim) fits = weights[dim] == x[dim];
  if (!fits)
    mistake("shapes " + x.str() + " and " + weights.str() + " do not fit: the second has a number for each row");
  return {.attributes = {}, .parameters = {}, .outputs = {{compute, x}}, .saved_names = {}};
}

std::vector<ValueId> gradient_weigh(GradientBuilder& build, const Node& node, OutputGradients dy) {
  const ValueId x = node.inputs[0], weights = node.inputs[1];
  std::vector<ValueId> result(2, kNone);
  if (build.needed(weights))
    result[1] = build.node(node, Op::row_dots, {}, {dy[0], x}, {input_desc(build.graph(), node, 1)})[0];
  if (build.needed(x))
    result[0] = build.node(node, Op::weigh, {}, {dy[0], weights}, {input_desc(build.graph(), node, 0)})[0];
  return result;
}

/// Rows with their weights; columns; and linear in each of the two.
Placed shard_weigh(const Graph& graph, const Node& node, Placing in) {
  const int last = last_of(graph, node.inputs[0]);
  if (by_tokens(in, last)) return all(node, in[0]);
  if ((in[0].is_shard(last) || in[0].is_partial()) && in[1].is_replicate()) return all(node, in[0]);
  if (in[0].is_replicate() && in[1].is_partial()) return all(node, in[1]);
  return {};
}

Placed shard_row_dots(const Graph& graph, const Node& node, Placing in) {
  const int last = last_of(graph, node.inputs[0]);
  if (by_tokens(in, last)) return all(node, in[0]);
  if (in[0].is_shard(last) && in[1] == in[0]) return all(node, Placement::partial());
  if (in[0].is_partial() && in[1].is_replicate()) return all(node, in[0]);
  if (in[0].is_replicate() && in[1].is_partial()) return all(node, in[1]);
  return {};
}

/// Blocks are of samples, or of positions too, each by itself. What travels round a ring is no rank's own.
const Placement kBlocks = Placement::shard(0);
bool are_tokens(const Placement& one) {
  return one == kBlocks || ((one.is_shard(1) || one.is_shard(Placement::kRows)) && !one.travels());
}

Placed shard_slots(const Graph&, const Node&, Placing in) {
  return are_tokens(in[0]) ? Placed(std::vector{in[0], kBlocks, kBlocks}) : Placed{};
}

/// Linear in rows, so a partial sum stays one.
Placed shard_dispatch(const Graph&, const Node& node, Placing in) {
  if (in[0].is_partial() && in[1].is_replicate() && in[2].is_replicate()) return all(node, in[0]);
  return are_tokens(in[0]) && in[1] == in[0] && in[2] == kBlocks ? all(node, kBlocks) : Placed{};
}

Placed shard_combine(const Graph&, const Node& node, Placing in) {
  if (in[0].is_partial() && in[1].is_replicate() && in[2].is_replicate()) return all(node, in[0]);
  return in[0] == kBlocks && are_tokens(in[1]) && in[2] == kBlocks ? all(node, in[1]) : Placed{};
}

/// Of dispatch and combine the one for the other.
auto gradient_by(Op op) {
  return [op](GradientBuilder& build, const Node& node, OutputGradients dy) {
    std::vector<ValueId> result(node.inputs.size(), kNone);
    if (build.needed(node.inputs[0]))
      result[0] =
          build.node(node, op, {}, {dy[0], node.inputs[1], node.inputs[2]}, {input_desc(build.graph(), node, 0)})[0];
    return result;
  };
}

}  // namespace

OpDef router() { return {.op = Op::router, .infer = infer_router}; }

OpDef experts() { return {.op = Op::experts, .min_inputs = 2, .max_inputs = 2, .infer = infer_experts}; }

OpDef route() { return {.op = Op::route, .gradient = gradient_route, .shard = shard_route}; }

OpDef route_grad() { return {.op = Op::route_grad, .shard = shard_route_grad}; }

OpDef expert_capacity() { return {.op = Op::expert_capacity, .shard = shard_samples}; }

OpDef router_losses() { return {.op = Op::router_losses, .shard = shard_samples}; }

OpDef expert_linear() {
  OpDef def{.op = Op::expert_linear};
  def.gradient = gradient_expert_linear;
  def.shard = [](const Graph& graph, const Node& node, Placing in) {
    return shard_expert_product(graph, node, in, 1, 2);
  };
  def.flops = [](const Signature& s) { return expert_flops(s, 1, 2); };
  return def;
}

OpDef expert_linear_grad_input() {
  OpDef def{.op = Op::expert_linear_grad_input};
  def.shard = [](const Graph& graph, const Node& node, Placing in) {
    return shard_expert_product(graph, node, in, 2, 1);
  };
  def.flops = [](const Signature& s) { return expert_flops(s, 1, 2); };
  return def;
}

OpDef expert_linear_grad_weight() {
  OpDef def{.op = Op::expert_linear_grad_weight};
  def.shard = shard_expert_grad_weight;
  def.flops = [](const Signature& s) { return expert_flops(s, 2, 3); };
  return def;
}

OpDef weigh() {
  OpDef def{.op = Op::weigh, .min_inputs = 2, .max_inputs = 2};
  def.infer = infer_weigh;
  def.gradient = gradient_weigh;
  def.shard = shard_weigh;
  return def;
}

OpDef expert_slots() { return {.op = Op::expert_slots, .shard = shard_slots}; }

OpDef dispatch() { return {.op = Op::dispatch, .gradient = gradient_by(Op::combine), .shard = shard_dispatch}; }

OpDef combine() { return {.op = Op::combine, .gradient = gradient_by(Op::dispatch), .shard = shard_combine}; }

OpDef row_dots() { return {.op = Op::row_dots, .shard = shard_row_dots}; }

}  // namespace trainer::define
