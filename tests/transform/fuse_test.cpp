// Fused graphs compute what the graphs they were made of do, to the bit in f64, and have fewer nodes.
#include "engine/transform/fuse.h"
#include "engine/transform/distribute.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "engine/core/op_record.h"
#include "engine/core/random.h"
#include "tests/reference/interpreter.h"
#include "tests/transform/files.h"

namespace trainer::fuse_test {
namespace {

using reference::Interpreter;
using reference::Tensor;

/// A device of which fusion asks what its products take as epilogues.
class TestTarget final : public Target {
 public:
  TestTarget(bool fuses_gelu, bool fuses_residual) : fuses_gelu_(fuses_gelu), fuses_residual_(fuses_residual) {}
  std::int64_t workspace_bytes(const Signature&) const override { return 0; }
  bool fuses_gelu(DType) const override { return fuses_gelu_; }
  bool fuses_residual() const override { return fuses_residual_; }

 private:
  bool fuses_gelu_, fuses_residual_;
};
const TestTarget kPlain(false, false), kEpilogues(true, false), kSums(false, true), kBoth(true, true);

Tensor random_tensor(const Value& value, std::uint64_t key) {
  Tensor tensor(value.shape());
  std::vector<float> normal(static_cast<std::size_t>(tensor.size()));
  fill_normal(random_key(key, value.name), 0, 0, tensor.size(), normal.data());
  for (std::int64_t i = 0; i < tensor.size(); ++i)
    tensor[i] = 0.5 * static_cast<double>(normal[static_cast<std::size_t>(i)]);
  return tensor;
}

/// Loss and gradients by name, from inputs and parameters that depend on names alone.
std::map<std::string, Tensor> results_of(const Graph& graph) {
  Interpreter interpreter(graph);
  for (ValueId input : graph.inputs) {
    Tensor ids(graph.value(input).shape());
    for (std::int64_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<double>((7 * i + input) % 11);
    interpreter.set(input, ids);
  }
  for (const Parameter& parameter : graph.parameters)
    interpreter.set(parameter.value, random_tensor(graph.value(parameter.value), 3));
  for (const GraphState& state : graph.states)
    interpreter.set(state.value, Tensor(graph.value(state.value).shape(), 0.75));
  if (graph.seed != kNone) interpreter.set(graph.seed, Tensor(Shape{1}, 0.125));
  if (graph.step != kNone) interpreter.set(graph.step, Tensor(Shape{1}, 5));
  interpreter.run();
  std::map<std::string, Tensor> results;
  results["loss"] = interpreter.get(graph.loss.sum);
  if (graph.seed != kNone)
    for (const Parameter& parameter : graph.parameters)
      results[graph.value(parameter.value).name] = reference::parameter_gradient(graph, interpreter, parameter.value);
  return results;
}

int count_residuals(const Graph& graph, Op op) {
  return static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(),
                                        [&](const Node& node) { return node.op == op && flag(node, "residual"); }));
}

std::vector<Graph> models() {
  return {
      test::model("gpt2", {{"layers", 2}, {"heads", 2}, {"dim", 8}, {"vocab", 11}, {"context", 6}, {"dropout", 0.1}},
                  test::text_options(2, 4)),
      test::model("llama", {{"layers", 2}, {"heads", 4}, {"kv_heads", 2}, {"dim", 16}, {"hidden", 24}, {"vocab", 11}},
                  test::text_options(2, 4))};
}

void check_same(const Graph& before, const Graph& after) {
  const std::map<std::string, Tensor> a = results_of(before), b = results_of(after);
  REQUIRE(a.size() == b.size());
  for (const auto& [name, tensor] : a) CHECK_MESSAGE(tensor.data == b.at(name).data, name);
}

TEST_CASE("recomputation and fusion change no bit of loss or gradients") {
  using Mode = RecomputePolicy::Mode;
  for (Graph forward : models()) {
    CAPTURE(forward.name);
    Graph plain = forward;
    differentiate(plain, DType::f32);
    for (Mode mode : {Mode::none, Mode::full, Mode::selective, Mode::every_n}) {
      Graph graph = plain;
      recompute(graph, {mode, 2});
      check_same(plain, graph);
      for (const TestTarget* target : {&kPlain, &kEpilogues, &kSums, &kBoth}) {
        Graph fused = graph;
        fuse(fused, *target);
        CHECK(fused.nodes.size() < graph.nodes.size());
        check_same(plain, fused);
      }
    }
    for (const TestTarget* target : {&kPlain, &kEpilogues, &kSums, &kBoth}) {
      Graph evaluated = forward;
      fuse(evaluated, *target);
      check_same(forward, evaluated);
    }
  }
}

int count(const Graph& graph, Op op, const char* with = nullptr) {
  return static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return node.op == op && (with == nullptr || flag(node, with));
  }));
}

TEST_CASE(
    "GELU is an epilogue of the products around it where the target takes it, and what it read is kept for its "
    "gradient alone") {
  using Mode = RecomputePolicy::Mode;
  const Graph forward = models()[0];
  Graph graph = forward;
  differentiate(graph, DType::f32);
  const Graph plain = graph;
  fuse(graph, kEpilogues);
  CHECK(count(graph, Op::gelu) + count(graph, Op::gelu_grad) == 0);
  CHECK(count(graph, Op::linear, "gelu") == 2);
  CHECK(count(graph, Op::linear, "pre") == 2);
  CHECK(count(graph, Op::linear_grad_input, "gelu") == 2);

  Graph evaluated = forward;
  fuse(evaluated, kEpilogues);
  CHECK(count(evaluated, Op::linear, "gelu") == 2);
  CHECK(count(evaluated, Op::linear, "pre") == 0);

  // Repeated whole: what the first pass read is dropped, what the second read is for the gradient.
  Graph full = plain;
  recompute(full, {Mode::full, 1});
  fuse(full, kEpilogues);
  CHECK(count(full, Op::gelu) + count(full, Op::gelu_grad) == 0);
  for (const Node& node : full.nodes)
    if (node.op == Op::linear && flag(node, "gelu")) CHECK(flag(node, "pre") == node.recomputed);

  // Selectively: the activation is what is repeated, from what the product kept.
  Graph selective = plain;
  recompute(selective, {Mode::selective, 1});
  fuse(selective, kEpilogues);
  CHECK(count(selective, Op::linear, "pre") == 2);
  CHECK(count(selective, Op::gelu) == 2);
  CHECK(count(selective, Op::gelu_grad) == 0);
}

TEST_CASE(
    "GELU stays a pass of its own where its exact form is asked for, another chunk begins with it, or its input is a "
    "sum of ranks") {
  for (int hinder = 0; hinder < 3; ++hinder) {
    CAPTURE(hinder);
    Graph graph = models()[0];
    bool below = false;
    for (Node& node : graph.nodes) {
      below = below || node.op == Op::gelu;
      if (hinder == 0 && node.op == Op::gelu) node.attributes.set("approximate", std::string("none"));
      if (hinder == 1 && below) node.chunk = 1;
      if (hinder == 2 && node.op == Op::linear) node.once = Axes::of(Axis::tensor);
    }
    const int gelus = count(graph, Op::gelu);
    fuse(graph, kEpilogues);
    CHECK(count(graph, Op::gelu) == (hinder == 1 ? gelus - 1 : gelus));
  }
}

// Queries, keys and values read the same; so do gate and up.
TEST_CASE("a sum with what a product gave is part of the product where the target takes it") {
  Graph graph = models()[1];
  differentiate(graph, DType::f32);
  Graph plain = graph;
  fuse(graph, kSums);
  fuse(plain, kPlain);
  CHECK(count_residuals(graph, Op::linear_grad_input) == 2 * 3);
  CHECK(count_residuals(plain, Op::linear_grad_input) == 0);
  CHECK(count(plain, Op::add) - count(graph, Op::add) == 2 * 3);
  CHECK(graph.nodes.size() + 6 == plain.nodes.size());
}

TEST_CASE("a gate's activation, its product and their gradients are two passes, and the activation is never kept") {
  using Mode = RecomputePolicy::Mode;
  for (Mode mode : {Mode::none, Mode::selective, Mode::full}) {
    Graph graph = models()[1];
    differentiate(graph, DType::f32);
    recompute(graph, {mode});
    fuse(graph, kBoth);
    const auto count = [&](Op op) { return std::ranges::count(graph.nodes, op, &Node::op); };
    CHECK(count(Op::glu) == (mode == Mode::none ? 2 : 4));
    CHECK(count(Op::glu_grad) == 2);
    for (const Op op : {Op::silu, Op::silu_grad, Op::mul}) CHECK(count(op) == 0);
  }
}

TEST_CASE("a loss and its gradient are one node of the backward pass, and nothing keeps lse") {
  for (Graph graph : models()) {
    CAPTURE(graph.name);
    const Graph forward = graph;
    differentiate(graph, DType::f32);
    Graph smoothed = graph;
    for (Node& node : smoothed.nodes)
      if (node.op == Op::cross_entropy || node.op == Op::cross_entropy_grad)
        node.attributes.set("label_smoothing", 0.1);
    for (Graph* one : {&graph, &smoothed}) {
      const Graph plain = *one;
      fuse(*one, kPlain);
      CHECK(count(*one, Op::cross_entropy_and_grad) == 1);
      CHECK(count(*one, Op::cross_entropy) + count(*one, Op::cross_entropy_grad) == 0);
      for (const Node& node : one->nodes)
        if (node.op == Op::cross_entropy_and_grad) CHECK(node.backward);
      CHECK(std::ranges::none_of(one->values, [](const Value& value) { return value.name == "loss.lse"; }));
      check_same(plain, *one);
    }
    Graph evaluated = forward;
    fuse(evaluated, kPlain);
    CHECK(count(evaluated, Op::cross_entropy) == 1);
    // Where the gradient's chunk is another, the loss is told where the logits are.
    Graph apart = forward;
    differentiate(apart, DType::f32);
    for (Node& node : apart.nodes)
      if (node.op == Op::cross_entropy_grad) node.chunk = 1;
    fuse(apart, kPlain);
    CHECK(count(apart, Op::cross_entropy) == 1);
    CHECK(count(apart, Op::cross_entropy_and_grad) == 0);
  }
}

TEST_CASE("a gate's GELU is part of the product behind it, and of no product before it") {
  Graph forward = models()[1];
  for (Node& node : forward.nodes)
    if (node.op == Op::silu) node.op = Op::gelu, node.attributes.set("approximate", std::string("tanh"));
  Graph trained = forward;
  differentiate(trained, DType::f32);
  for (Graph* graph : {&forward, &trained}) {
    const Graph plain = *graph;
    fuse(*graph, kBoth);
    CHECK(count(*graph, Op::glu) == 2);
    CHECK(count(*graph, Op::gelu) + count(*graph, Op::linear, "gelu") == 0);
    check_same(plain, *graph);
  }
}

TEST_CASE("a batch norm adds its residual and takes its ReLU, and finds again where that was above 0") {
  const std::string file = R"(
inputs: {image: {dtype: f32, shape: [batch, 3, 4, 4]}, targets: {dtype: i32, shape: [batch]}}
nodes:
  - {name: stem, op: conv2d, input: image, out: 5, kernel: 1}
  - repeat: 2
    name: "h.{index}"
    block: Layer
    nodes:
      - {name: first, op: conv2d, out: 5, kernel: 3, padding: 1}
      - {name: first_norm, op: batch_norm}
      - {name: first_act, op: relu}
      - {name: second, op: conv2d, out: 5, kernel: 3, padding: 1}
      - {name: second_norm, op: batch_norm}
      - {name: sum, op: add, input: [first_act, second_norm]}
      - {name: second_act, op: relu}
      - {name: third_norm, op: batch_norm}
      - {name: twice, op: relu}
      - {name: again, op: mul, input: [twice, third_norm]}
  - {name: flat, op: flatten}
  - {name: fc, op: linear, out: 4}
  - {name: loss, op: cross_entropy, input: [fc, targets]}
outputs: {loss: loss}
)";
  using Mode = RecomputePolicy::Mode;
  BuildOptions options = test::options_for(2, {{"image", {3, 4, 4}}, {"targets", {}}});
  const Graph forward = read_graph(yaml::parse(file, "graph.yaml"), {}, options);
  for (const Mode mode : {Mode::none, Mode::full, Mode::selective}) {
    Graph graph = forward;
    differentiate(graph, DType::f32);
    recompute(graph, {mode});
    const Graph plain = graph;
    fuse(graph, kPlain);
    check_same(plain, graph);
    // What is computed a second time is fused a second time.
    const int times = mode == Mode::none ? 2 : 4;
    CHECK(count(graph, Op::batch_norm_apply, "residual") == times);
    CHECK(count(graph, Op::batch_norm_apply, "relu") == 2 * times);
    CHECK(count(graph, Op::relu) == times);
    // The norm of a sum does not know what was added, and a norm that others read stays as it is.
    CHECK(count(graph, Op::batch_norm_grad_sums, "relu") == 2);
    CHECK(count(graph, Op::batch_norm_grad, "relu") == 2);
    CHECK(count(graph, Op::relu_grad) == 4);
  }
  options.mode = BuildOptions::Mode::evaluate;
  Graph evaluated = read_graph(yaml::parse(file, "graph.yaml"), {}, options);
  const Graph plain = evaluated;
  fuse(evaluated, kPlain);
  check_same(plain, evaluated);
  CHECK(count(evaluated, Op::batch_norm, "relu") == 4);
  CHECK(count(evaluated, Op::batch_norm, "residual") == 2);
}

TEST_CASE("a sum of a batch norm that a further norm reads is added once") {
  const std::string file = R"(
inputs: {x: {dtype: f32, shape: [batch, 6]}, y: {dtype: f32, shape: [batch, 6]}}
nodes:
  - {name: first, op: linear, input: x, out: 6}
  - {name: norm, op: batch_norm}
  - {name: sum, op: add, input: [norm, first]}
  - {name: after, op: layer_norm}
  - {name: loss, op: mse, input: [after, y]}
outputs: {loss: loss}
)";
  BuildOptions options = test::options_for(4, {{"x", {6}}, {"y", {6}}});
  for (const bool training : {true, false}) {
    if (!training) options.mode = BuildOptions::Mode::evaluate;
    Graph graph = read_graph(yaml::parse(file, "graph.yaml"), {}, options);
    if (training) differentiate(graph, DType::f32);
    const Graph plain = graph;
    fuse(graph, kPlain);
    check_same(plain, graph);
    CHECK(count(graph, training ? Op::batch_norm_apply : Op::batch_norm, "residual") == 1);
    CHECK(count(graph, Op::layer_norm, "residual") == 0);
  }
}

TEST_CASE("every residual connection of GPT-2 and Llama is part of a norm, forward and backward") {
  for (Graph graph : models()) {
    CAPTURE(graph.name);
    differentiate(graph, DType::f32);
    fuse(graph, kPlain);
    const bool gpt = graph.name == "gpt2";
    // Two additions a layer, each before a norm, and their gradients; GPT-2's embedding adds a broadcast, which stays.
    CHECK(count_residuals(graph, gpt ? Op::layer_norm : Op::rms_norm) == 4);
    CHECK(count_residuals(graph, gpt ? Op::layer_norm_grad : Op::rms_norm_grad) == 4);
    std::vector<bool> written(graph.values.size(), false);
    for (const Node& node : graph.nodes)
      for (ValueId output : node.outputs) written[static_cast<std::size_t>(output)] = true;
    for (std::size_t id = 0; id < graph.values.size(); ++id)
      if (graph.values[id].kind == ValueKind::activation) CHECK_MESSAGE(written[id], graph.values[id].name);
  }
}

TEST_CASE("a fused graph is placed as the one it was made of") {
  for (Graph graph : models()) {
    differentiate(graph, DType::f32);
    fuse(graph, kEpilogues);
    graph.mesh = {{Axis::replicate, 2}};
    for (ValueId input : graph.inputs) graph.value(input).spec.place(Axis::replicate, Placement::shard(0));
    propagate_placements(graph);
    for (const Value& value : graph.values)
      if (value.kind == ValueKind::gradient) CHECK(value.spec.on(Axis::replicate).is_partial());
  }
}

}  // namespace
}  // namespace trainer::fuse_test
