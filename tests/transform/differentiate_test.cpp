// The structure of backward passes, with and without recomputation. Their numbers are tested elsewhere, against PyTorch
// and finite differences.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/core/index.h"
#include "engine/ops/op_def.h"
#include "engine/transform/distribute.h"
#include "tests/reference/interpreter.h"
#include "tests/transform/files.h"

namespace trainer::differentiate_test {
namespace {

using test::model;
using Mode = RecomputePolicy::Mode;

Graph gpt(std::map<std::string, double> with = test::kTinyGpt, Mode mode = Mode::none, std::int64_t every = 1) {
  Graph graph = model("gpt2", with, test::text_options(2, 4));
  differentiate(graph, DType::f32);
  recompute(graph, {mode, every});
  return graph;
}

std::map<std::string, double> with_dropout() {
  std::map<std::string, double> with = test::kTinyGpt;
  with["dropout"] = 0.1;
  return with;
}

/// Every value is written once, and read only after that; aliases name a storage that is no alias.
void check_well_formed(const Graph& graph) {
  std::vector<int> writes(graph.values.size(), 0);
  const auto is_given = [&](ValueId id) {
    const ValueKind kind = graph.value(id).kind;
    return kind == ValueKind::input || kind == ValueKind::parameter || kind == ValueKind::scalar;
  };
  std::set<std::string> names;
  for (const Value& value : graph.values) CHECK_MESSAGE(names.insert(value.name).second, value.name);
  bool backward = false;
  for (const Node& node : graph.nodes) {
    CAPTURE(node.name);
    CHECK((!backward || node.backward));
    backward = node.backward;
    for (ValueId input : node.inputs) {
      CHECK((is_given(input) || writes[at(input)] == 1));
      CHECK((is_given(graph.storage(input)) || writes[at(graph.storage(input))] == 1));
    }
    for (ValueId output : node.outputs) {
      CHECK(++writes[at(output)] == 1);
      CHECK(graph.value(graph.storage(output)).alias_of == kNone);
    }
  }
}

/// Bytes of forward activations that a backward node reads: what is kept from one pass to the next.
std::int64_t kept_bytes(const Graph& graph) {
  std::set<ValueId> made, kept;
  for (const Node& node : graph.nodes) {
    for (ValueId output : node.outputs)
      if (!node.backward) made.insert(graph.storage(output));
    for (ValueId input : node.inputs)
      if (node.backward && made.count(graph.storage(input)) > 0) kept.insert(graph.storage(input));
  }
  std::int64_t bytes = 0;
  for (ValueId id : kept) bytes += graph.value(id).desc().bytes();
  return bytes;
}

int recomputed(const Graph& graph, Op op) {
  return static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(),
                                        [&](const Node& node) { return node.recomputed && node.op == op; }));
}

std::map<std::string, int> gradients_of_parameters(const Graph& graph) {
  std::map<std::string, int> counts;
  for (const Value& value : graph.values)
    if (value.kind == ValueKind::gradient) {
      CHECK(value.shape() == graph.value(value.parameter).shape());
      ++counts[graph.value(value.parameter).name];
    }
  return counts;
}

TEST_CASE("every parameter has a gradient of its shape for each of its uses") {
  const Graph graph = gpt();
  check_well_formed(graph);
  const std::map<std::string, int> counts = gradients_of_parameters(graph);
  CHECK(counts.size() == graph.parameters.size());
  for (const auto& [name, count] : counts) CHECK_MESSAGE(count == (name == "wte.weight" ? 2 : 1), name);
}

TEST_CASE("all models differentiate into well-formed graphs under every policy") {
  const BuildOptions images = test::options_for(2, {{"images", {}}, {"targets", {}}}, DType::bf16);
  const BuildOptions rows = test::options_for(2, {{"features", {}}, {"targets", {}}});
  for (Mode mode : {Mode::none, Mode::full, Mode::selective, Mode::every_n}) {
    for (Graph graph :
         {model("gpt2", with_dropout(), test::text_options(2, 4)),
          model("llama", {{"layers", 3}, {"heads", 4}, {"kv_heads", 2}, {"dim", 16}, {"hidden", 24}, {"vocab", 11}},
                test::text_options(2, 4, DType::bf16)),
          model("convnet", {}, images), model("mlp", {{"layers", 4}}, rows)}) {
      CAPTURE(graph.name);
      differentiate(graph, DType::f32);
      recompute(graph, {mode, 2});
      check_well_formed(graph);
      CHECK(gradients_of_parameters(graph).size() == graph.parameters.size());
      for (const Value& value : graph.values)
        if (value.kind == ValueKind::gradient) CHECK(value.dtype() == DType::f32);
    }
  }
}

TEST_CASE("gradients of parameters come in the reverse order of their first use, so that buckets fill from the back") {
  const Graph graph = gpt();
  std::vector<ValueId> order;
  for (const Node& node : graph.nodes)
    for (ValueId output : node.outputs)
      if (graph.value(output).kind == ValueKind::gradient) order.push_back(graph.value(output).parameter);
  std::vector<ValueId> blocks;  // what lies between the two uses of the embedding
  for (ValueId id : order)
    if (graph.value(id).name.starts_with("h.")) blocks.push_back(id);
  std::vector<std::string> firsts;
  for (ValueId id : blocks)
    if (graph.value(id).name.ends_with("weight")) firsts.push_back(graph.value(id).name);
  const std::vector<std::string> expected{"h.1.mlp.c_proj.weight",  "h.1.mlp.c_fc.weight",    "h.1.ln_2.weight",
                                          "h.1.attn.c_proj.weight", "h.1.attn.c_attn.weight", "h.1.ln_1.weight",
                                          "h.0.mlp.c_proj.weight",  "h.0.mlp.c_fc.weight",    "h.0.ln_2.weight",
                                          "h.0.attn.c_proj.weight", "h.0.attn.c_attn.weight", "h.0.ln_1.weight"};
  CHECK(firsts == expected);
  CHECK(graph.value(order.front()).name == "wte.weight");
  CHECK(graph.value(order.back()).name == "wte.weight");
}

TEST_CASE("fields of the batch and what depends on no parameter get no gradient") {
  const Graph graph = model("convnet", {}, test::options_for(2, {{"images", {}}, {"targets", {}}}, DType::bf16));
  Graph backward = graph;
  differentiate(backward, DType::f32);
  for (const Node& node : backward.nodes) CHECK((node.op != Op::conv2d_grad_input || node.name != "conv1"));
  for (const Value& value : backward.values) CHECK((value.name != "images.grad" && value.name != "images.cast.grad"));
}

TEST_CASE("a value used twice by one node gets both gradients") {
  const std::string file =
      "inputs: {x: {dtype: f32, shape: [batch, 3]}, y: {dtype: f32, shape: [batch, 3]}}\nnodes:\n  - {name: a, op: "
      "linear, input: x, out: "
      "3}\n"
      "  - {name: square, op: mul, input: [a, a]}\n  - {name: loss, op: mse, input: [square, y]}\noutputs: {loss: "
      "loss}\n";
  Graph graph = read_graph(yaml::parse(file, "graph.yaml"), {}, test::options_for(2, {{"x", {3}}, {"y", {3}}}));
  differentiate(graph, DType::f32);
  check_well_formed(graph);
  const auto adds = std::count_if(graph.nodes.begin(), graph.nodes.end(),
                                  [](const Node& node) { return node.backward && node.op == Op::add; });
  CHECK(adds == 1);
}

/// Σ (concat(b, a²) − target)², with a, b, c = split(x·wᵀ), of which nothing reads c.
struct SplitGraph {
  Graph graph;
  ValueId x, w, target, loss;

  SplitGraph() {
    x = add("x", {4, 6}, ValueKind::input), target = add("target", {4, 10}, ValueKind::input),
    w = add("w", {12, 6}, ValueKind::parameter);
    graph.parameters.push_back({.value = w, .init = {}});
    const ValueId y = node(Op::linear, {{"bias", false}}, {x, w}, {{4, 12}})[0];
    const std::vector<ValueId> pieces = node(Op::split, {}, {y}, {{4, 6}, {4, 4}, {4, 2}});
    const ValueId square = node(Op::mul, {}, {pieces[0], pieces[0]}, {{4, 6}})[0];
    const ValueId both = node(Op::concat, {}, {pieces[1], square}, {{4, 10}})[0];
    loss = graph.loss.sum = node(Op::mse, {}, {both, target}, {{1}})[0];
  }

 private:
  ValueId add(const std::string& name, const Shape& shape, ValueKind kind) {
    return graph.add_value({.name = name, .spec = {DType::f32, shape}, .kind = kind});
  }
  std::vector<ValueId> node(Op op, Attributes attributes, std::vector<ValueId> inputs,
                            const std::vector<Shape>& outputs) {
    Node node{
        .name = std::string(name_of(op)), .op = op, .attributes = std::move(attributes), .inputs = std::move(inputs)};
    for (const Shape& shape : outputs)
      node.outputs.push_back(add(node.name + "." + std::to_string(node.outputs.size()), shape, ValueKind::activation));
    graph.nodes.push_back(node);
    return node.outputs;
  }
};

TEST_CASE("an op of several outputs gets the gradients of all, and zeros for one that nothing reads") {
  SplitGraph of;
  differentiate(of.graph, DType::f32);
  check_well_formed(of.graph);
  const auto tensor = [](const Shape& shape, int seed) {
    reference::Tensor result(shape);
    for (std::int64_t i = 0; i < result.size(); ++i) result[i] = std::sin(static_cast<double>(i * 7 + seed));
    return result;
  };
  reference::Tensor w = tensor({12, 6}, 1);
  const auto run = [&] {
    reference::Interpreter values(of.graph);
    values.set(of.x, tensor({4, 6}, 2));
    values.set(of.target, tensor({4, 10}, 3));
    values.set(of.w, w);
    values.set(of.graph.seed, reference::Tensor({1}, 1));
    values.run();
    return values;
  };
  const reference::Tensor gradient = reference::parameter_gradient(of.graph, run(), of.w);
  for (std::int64_t i = 0; i < w.size(); ++i) {
    const double h = 1e-5, before = w[i];
    w[i] = before + h;
    const double up = run().get(of.loss)[0];
    w[i] = before - h;
    const double down = run().get(of.loss)[0];
    w[i] = before;
    CHECK(std::fabs((up - down) / (2 * h) - gradient[i]) <
          1e-6);  // h² of the third derivative, and 2^-52 / h of rounding, of some 100
    CHECK((gradient[i] != 0) == (i < 10 * 6));
  }
}

TEST_CASE("full recomputation keeps of each block its input alone") {
  const Graph none = gpt(with_dropout()), full = gpt(with_dropout(), Mode::full);
  check_well_formed(full);
  std::set<std::string> kept;
  std::set<ValueId> forward;
  for (const Node& node : full.nodes) {
    for (ValueId output : node.outputs)
      if (!node.backward && node.block != kNone) forward.insert(output);
    for (ValueId input : node.inputs)
      if (node.backward && forward.count(input) > 0) kept.insert(full.value(input).name);
  }
  CHECK(kept == std::set<std::string>{"h.0.res_2", "h.1.res_2"});
  CHECK(kept_bytes(full) < kept_bytes(none));
  CHECK(recomputed(full, Op::linear) == 2 * 3);  // the last projection of a block is read by nothing
  CHECK(recomputed(full, Op::attention) == 2);
}

TEST_CASE("a repeated dropout draws the mask of the first") {
  const Graph full = gpt(with_dropout(), Mode::full);
  int repeated = 0;
  for (const Node& again : full.nodes) {
    if (!again.recomputed || again.op != Op::dropout) continue;
    ++repeated;
    const auto first = std::find_if(full.nodes.begin(), full.nodes.end(),
                                    [&](const Node& node) { return !node.backward && node.name == again.name; });
    REQUIRE(first != full.nodes.end());
    CHECK(again.attributes == first->attributes);
    CHECK(again.inputs[1] == full.step);
  }
  CHECK(repeated == 2);
}

TEST_CASE("selective recomputation repeats no product, and saves memory") {
  const Graph none = gpt(), selective = gpt(test::kTinyGpt, Mode::selective);
  check_well_formed(selective);
  for (Op op : {Op::linear, Op::attention, Op::add}) CHECK(recomputed(selective, op) == 0);
  CHECK(recomputed(selective, Op::layer_norm) == 2 * 2);
  CHECK(recomputed(selective, Op::gelu) == 2);
  const std::int64_t tokens = 2 * 4, dim = 8;
  // Of each block two norms' outputs (dim each) with their mean and rstd, and gelu's (4 dim) are not kept.
  CHECK(kept_bytes(none) - kept_bytes(selective) == 2 * tokens * (2 * (dim + 2) + 4 * dim) * 4);
}

TEST_CASE("every_n recomputes the first of n consecutive blocks") {
  std::map<std::string, double> with = test::kTinyGpt;
  with["layers"] = 5;
  const Graph graph = gpt(with, Mode::every_n, 2);
  std::set<std::int32_t> blocks;
  for (const Node& node : graph.nodes)
    if (node.recomputed) blocks.insert(node.block);
  CHECK(blocks == std::set<std::int32_t>{0, 2, 4});
}

TEST_CASE("recomputation takes the outermost blocks, whatever blocks are inside") {
  const std::string file =
      "inputs: {x: {dtype: f32, shape: [batch, 3]}, y: {dtype: f32, shape: [batch, 3]}}\nnodes:\n  - {name: stem, op: "
      "linear, input: x, "
      "out: 3}\n"
      "  - repeat: 2\n    name: \"h.{index}\"\n    nodes:\n      - {name: a, op: linear, out: 3}\n      - repeat: 2\n  "
      "      name: "
      "\"g.{index}\"\n        nodes:\n"
      "          - {name: b, op: linear, out: 3}\n          - {name: c, op: gelu}\n      - {name: d, op: linear, out: "
      "3}\n"
      "  - {name: loss, op: mse, input: [h.1, y]}\noutputs: {loss: loss}\n";
  Graph graph = read_graph(yaml::parse(file, "graph.yaml"), {}, test::options_for(2, {{"x", {3}}, {"y", {3}}}));
  REQUIRE(graph.blocks.size() == 6);
  CHECK(graph.blocks[1].parent == 0);
  CHECK(graph.blocks[3].parent == kNone);
  differentiate(graph, DType::f32);
  recompute(graph, {Mode::every_n, 2});
  check_well_formed(graph);
  std::set<std::string> again;
  for (const Node& node : graph.nodes)
    if (node.recomputed) again.insert(node.name);
  CHECK(again == std::set<std::string>{"h.0.a", "h.0.g.0.b", "h.0.g.0.c", "h.0.g.1.b", "h.0.g.1.c"});
}

TEST_CASE("repeated nodes stand inside the backward pass of their own block") {
  const Graph graph = gpt(with_dropout(), Mode::full);
  for (std::size_t i = 0; i + 1 < graph.nodes.size(); ++i)
    if (graph.nodes[i].recomputed) CHECK(graph.nodes[i].block == graph.nodes[i + 1].block);
}

TEST_CASE("along a data axis a sharded batch gives partial gradients and a partial loss") {
  const BuildOptions images = test::options_for(2, {{"images", {}}, {"targets", {}}}, DType::bf16);
  const BuildOptions rows = test::options_for(2, {{"features", {}}, {"targets", {}}});
  for (Graph graph :
       {model("gpt2", with_dropout(), test::text_options(2, 4)),
        model("llama", {{"layers", 2}, {"heads", 4}, {"kv_heads", 2}, {"dim", 16}, {"hidden", 24}, {"vocab", 11}},
              test::text_options(2, 4)),
        model("convnet", {{"dropout", 0.25}}, images), model("mlp", {{"dropout", 0.25}}, rows)}) {
    CAPTURE(graph.name);
    differentiate(graph, DType::f32);
    recompute(graph, {Mode::full, 1});
    graph.mesh = {{Axis::replicate, 2}};
    for (ValueId input : graph.inputs) graph.value(input).spec.place(Axis::replicate, Placement::shard(0));
    propagate_placements(graph);
    const auto on = [&](const Value& value) { return value.spec.on(Axis::replicate); };
    CHECK(on(graph.value(graph.loss.sum)).is_partial());
    for (const Value& value : graph.values) {
      CAPTURE(value.name);
      if (value.kind == ValueKind::gradient) CHECK(on(value).is_partial());
      if (value.kind == ValueKind::parameter) CHECK(on(value).is_replicate());
    }
    CHECK(on(graph.value(graph.loss.scores)).is_shard(0));
  }
}

TEST_CASE("what no rule covers is refused, naming the node and where it was written") {
  Graph graph = model("gpt2", test::kTinyGpt, test::text_options(2, 4));
  try {
    graph.mesh = {{Axis::tensor, 2}};
    graph.value(graph.inputs[0]).spec.place(Axis::tensor, Placement::partial());
    propagate_placements(graph);
    FAIL("placed");
  } catch (const JobError& error) {
    const Diagnostic& diagnostic = error.diagnostics().front();
    CHECK(diagnostic.path == "wte");
    CHECK(diagnostic.line == 18);
    CHECK(diagnostic.message.find("tokens is a partial sum") != std::string::npos);
  }
}

}  // namespace
}  // namespace trainer::differentiate_test
