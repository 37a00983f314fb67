// Direct preference optimization in graphs, in f64: the loss is that of the formula with the log-probabilities of two
// graphs, the gradients are those of central differences, the reference has no adapter and no gradient, and nothing of
// it is kept.
#include "engine/transform/dpo.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/transform/adapter.h"
#include "engine/transform/trainable.h"
#include "tests/transform/files.h"
#include "tests/transform/interpreted.h"

namespace trainer::dpo_test {
namespace {

using reference::Interpreter;
using reference::Tensor;
using test::interpret;
using test::model;
using test::parameter_named;

constexpr double kBeta = 0.7;
const std::map<std::string, double> kTinyLlama{{"layers", 2}, {"heads", 4},   {"kv_heads", 2},
                                               {"dim", 16},   {"hidden", 24}, {"vocab", 11}};
const BuildOptions kOptions = test::text_options(4, 3);  // two pairs

Graph llama() { return model("llama", kTinyLlama, kOptions); }

std::vector<bool> trained_in(const Graph& graph) {
  std::vector<bool> trained(graph.values.size(), false);
  for (const Parameter& parameter : graph.parameters)
    trained[static_cast<std::size_t>(parameter.value)] = parameter.trainable;
  return trained;
}

/// The graph under dpo, with LoRA or all of it trained.
Graph preferring(Graph graph, bool lora) {
  set_trainable(graph, {lora ? Trainable::Mode::adapter : Trainable::Mode::all, {}});
  const std::vector<Node> nodes = graph.nodes;
  const std::vector<bool> trained = trained_in(graph);
  if (lora) REQUIRE(add_lora(graph, {.rank = 2, .alpha = 3}, kOptions).empty());
  REQUIRE(add_dpo(graph, nodes, trained, kBeta) == std::nullopt);
  return graph;
}

/// The sum of −ln p of each row of targets.
std::vector<double> nll_of(const Graph& graph, const Interpreter& values) {
  const Node& loss = *std::ranges::find_if(graph.nodes, [](const Node& one) { return one.op == Op::cross_entropy; });
  const Tensor logits = values.get(loss.inputs[0]), targets = values.get(loss.inputs[1]);
  const std::int64_t classes = logits.shape[-1], length = targets.shape[1];
  std::vector<double> nll(static_cast<std::size_t>(targets.shape[0]), 0);
  for (std::int64_t row = 0; row < targets.size(); ++row) {
    double total = 0;
    for (std::int64_t i = 0; i < classes; ++i) total += std::exp(logits[row * classes + i]);
    nll[static_cast<std::size_t>(row / length)] +=
        std::log(total) - logits[row * classes + static_cast<std::int64_t>(targets[row])];
  }
  return nll;
}

/// Values of a graph's parameters by name, those of the reference under the model's own names.
test::Values weights(const Graph& graph, const Interpreter& values, bool of_reference) {
  test::Values all;
  for (const Parameter& parameter : graph.parameters)
    if (parameter.init.copy_of.empty()) all[graph.value(parameter.value).name] = values.get(parameter.value);
  for (const Parameter& parameter : graph.parameters)
    if (of_reference && !parameter.init.copy_of.empty()) all[parameter.init.copy_of] = values.get(parameter.value);
  return all;
}

double loss_of(const Graph& graph, const test::Values& given = {}) {
  return interpret(graph, given).get(graph.loss.sum)[0];
}

}  // namespace

TEST_CASE("the loss and the rewards of dpo are those of a policy and a reference apart") {
  for (const bool lora : {false, true}) {
    CAPTURE(lora);
    const Graph graph = preferring(llama(), lora);
    const Interpreter values = interpret(graph);
    Graph policy = llama();
    set_trainable(policy, {Trainable::Mode::adapter, {}});
    if (lora) REQUIRE(add_lora(policy, {.rank = 2, .alpha = 3}, kOptions).empty());
    const std::vector<double> of_policy = nll_of(policy, interpret(policy, weights(graph, values, false)));
    const Graph reference = llama();
    const std::vector<double> of_reference = nll_of(reference, interpret(reference, weights(graph, values, true)));
    double loss = 0, chosen = 0, rejected = 0, right = 0;
    for (std::size_t i = 0; i < of_policy.size(); i += 2) {
      const double a = kBeta * (of_reference[i] - of_policy[i]), b = kBeta * (of_reference[i + 1] - of_policy[i + 1]);
      loss += std::log(1 + std::exp(b - a));
      chosen += a, rejected += b, right += a > b ? 1 : 0;
    }
    REQUIRE(std::fabs(chosen - rejected) > 1e-3);  // they differ
    CHECK(values.get(graph.loss.sum)[0] == doctest::Approx(loss).epsilon(1e-10));
    const Tensor figures = values.get(graph.loss.figures.at(0));
    CHECK(figures[0] == doctest::Approx(chosen).epsilon(1e-9));
    CHECK(figures[1] == doctest::Approx(rejected).epsilon(1e-9));
    CHECK(figures[2] == right);
    CHECK(figures[3] == 2);
  }
}

TEST_CASE("gradients of dpo are central differences, and the reference has none") {
  for (const bool lora : {false, true}) {
    CAPTURE(lora);
    Graph graph = preferring(llama(), lora);
    const Graph forward = graph;
    differentiate(graph, DType::f32);
    const Interpreter values = interpret(graph);
    int trained = 0;
    for (const Parameter& parameter : graph.parameters) {
      const std::string& name = graph.value(parameter.value).name;
      CAPTURE(name);
      const bool has = std::ranges::any_of(graph.values, [&](const Value& value) {
        return value.kind == ValueKind::gradient && value.parameter == parameter.value;
      });
      CHECK(has == parameter.trainable);
      CHECK(name.starts_with("reference.") == !parameter.init.copy_of.empty());
      if (!parameter.trainable) continue;
      ++trained;
      const Tensor gradient = reference::parameter_gradient(graph, values, parameter.value);
      const Tensor at = values.get(parameter.value);
      for (const std::int64_t i : {std::int64_t{0}, at.size() / 2}) {
        constexpr double kStep = 0x1p-15;
        Tensor more = at, less = at;
        more[i] += kStep, less[i] -= kStep;
        const double slope = (loss_of(forward, {{name, more}}) - loss_of(forward, {{name, less}})) / (2 * kStep);
        CHECK(gradient[i] == doctest::Approx(slope).epsilon(1e-5).scale(1e-2));
      }
    }
    CHECK(trained > 0);
    for (const Node& node : graph.nodes)
      if (node.backward) CHECK_FALSE(node.name.starts_with("reference."));
  }
}

TEST_CASE("the reference shares what is frozen, and what both models compute is computed once") {
  const Graph lora = preferring(llama(), true);
  for (const Parameter& parameter : lora.parameters) CHECK(parameter.init.copy_of.empty());
  const auto count = [](const Graph& graph, Op op) {
    return std::ranges::count_if(graph.nodes, [&](const Node& node) { return node.op == op; });
  };
  CHECK(count(lora, Op::embedding) == 1);  // nothing before the first target differs
  CHECK(count(lora, Op::attention) == 4);
  const Graph full = preferring(llama(), false);
  CHECK(count(full, Op::embedding) == 2);
  const Graph plain = llama();
  CHECK(full.parameters.size() == 2 * plain.parameters.size());
  std::set<std::string> copied;
  for (const Parameter& parameter : full.parameters)
    if (!parameter.init.copy_of.empty()) {
      CHECK_FALSE(parameter.trainable);
      CHECK(full.value(parameter.value).name == "reference." + parameter.init.copy_of);
      copied.insert(parameter.init.copy_of);
    }
  CHECK(copied.size() == plain.parameters.size());
}

TEST_CASE("nothing of the reference is read in the backward pass, with recomputation and without") {
  for (const RecomputePolicy::Mode mode :
       {RecomputePolicy::Mode::none, RecomputePolicy::Mode::full, RecomputePolicy::Mode::selective}) {
    Graph graph = preferring(llama(), false);
    differentiate(graph, DType::f32);
    recompute(graph, {mode, 1});
    std::set<std::string> read;
    for (const Node& node : graph.nodes)
      for (const ValueId input : node.inputs)
        if (node.backward && graph.value(input).name.starts_with("reference.")) read.insert(graph.value(input).name);
    CHECK(read == std::set<std::string>{"reference.loss.nll"});  // a number for each sequence
  }
}

TEST_CASE("dpo names what it cannot be made of") {
  Graph graph = llama();
  for (Node& node : graph.nodes)
    if (node.op == Op::cross_entropy) node.attributes.set("label_smoothing", 0.1);
  const std::size_t nodes = graph.nodes.size();
  const std::optional<std::string> mistake = add_dpo(graph, graph.nodes, trained_in(graph), kBeta);
  REQUIRE(mistake);
  CHECK(mistake->find("label_smoothing") != std::string::npos);
  CHECK(graph.nodes.size() == nodes);
  Graph mlp = model("mlp", {}, test::options_for(2, {{"features", {64}}, {"targets", {}}}));
  CHECK(add_dpo(mlp, mlp.nodes, trained_in(mlp), kBeta));
}

}  // namespace trainer::dpo_test
