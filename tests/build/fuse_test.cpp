// Fused graphs compute what the graphs they were made of do, to the bit in f64, and have fewer nodes.
#include "engine/build/fuse.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "engine/core/random.h"
#include "tests/build/files.h"
#include "tests/reference/interpreter.h"

namespace trainer {
namespace {

using reference::Interpreter;
using reference::Tensor;

Tensor random_tensor(const Value& value, std::uint64_t key) {
  Tensor tensor(value.shape);
  std::vector<float> normal(static_cast<std::size_t>(tensor.size()));
  fill_normal(random_key(key, value.name), 0, 0, tensor.size(), normal.data());
  for (std::int64_t i = 0; i < tensor.size(); ++i) tensor[i] = 0.5 * static_cast<double>(normal[static_cast<std::size_t>(i)]);
  return tensor;
}

/// Loss and gradients by name, from inputs and parameters that depend on names alone.
std::map<std::string, Tensor> results_of(const Graph& graph) {
  Interpreter interpreter(graph);
  for (ValueId input : graph.inputs) {
    Tensor ids(graph.value(input).shape);
    for (std::int64_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<double>((7 * i + input) % 11);
    interpreter.set(input, ids);
  }
  for (const Parameter& parameter : graph.parameters) interpreter.set(parameter.value, random_tensor(graph.value(parameter.value), 3));
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
                                        [&](const Node& node) { return node.op == op && node.attributes.flag("residual", false); }));
}

std::vector<Graph> models() {
  return {test::model("gpt2", {{"layers", 2}, {"heads", 2}, {"dim", 8}, {"vocab", 11}, {"context", 6}, {"dropout", 0.1}},
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
      const std::size_t nodes = graph.nodes.size();
      fuse(graph);
      CHECK(graph.nodes.size() < nodes);
      check_same(plain, graph);
    }
    Graph evaluated = forward;
    fuse(evaluated);
    check_same(forward, evaluated);
  }
}

TEST_CASE("every residual connection of GPT-2 and Llama is part of a norm, forward and backward") {
  for (Graph graph : models()) {
    CAPTURE(graph.name);
    differentiate(graph, DType::f32);
    fuse(graph);
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
    fuse(graph);
    std::map<ValueId, Placement> given;
    for (ValueId input : graph.inputs) given[input] = Placement::shard(0);
    place(graph, Axis::replicate, given);
    for (const Value& value : graph.values)
      if (value.kind == ValueKind::gradient) CHECK(value.placement[static_cast<std::size_t>(Axis::replicate)].is_partial());
  }
}

}  // namespace
}  // namespace trainer
