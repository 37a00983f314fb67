// Frozen parameters: what a backward pass leaves out for them, counted by hand, and what it still gives, interpreted in
// f64 against the pass of the same graph with nothing frozen and against central differences.
#include "engine/transform/trainable.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <set>

#include "engine/core/rows_of.h"
#include "engine/ops/op_def.h"
#include "engine/transform/trained_rows.h"
#include "tests/transform/files.h"
#include "tests/transform/interpreted.h"

namespace trainer::trainable_test {
namespace {

using reference::Interpreter;
using reference::Tensor;
using test::interpret;
using test::model;

/// Leaves those parameters trainable whose name `trained` takes.
Graph freeze(Graph graph, const std::function<bool(const std::string&)>& trained) {
  for (Parameter& parameter : graph.parameters) parameter.trainable = trained(graph.value(parameter.value).name);
  return graph;
}

Graph differentiated(Graph graph) {
  differentiate(graph, DType::f32);
  return graph;
}

double flops_of(const Graph& graph) {
  double flops = 0;
  for (const Node& node : graph.nodes) flops += cost_of(signature_of(graph, node)).flops;
  return flops;
}

/// Of the backward nodes, in order, as "layer_norm_grad ln_f".
std::vector<std::string> backward_nodes(const Graph& graph) {
  std::vector<std::string> nodes;
  for (const Node& node : graph.nodes)
    if (node.backward) nodes.push_back(std::string(name_of(node.op)) + " " + node.name);
  return nodes;
}

std::set<std::string> with_gradient(const Graph& graph) {
  std::set<std::string> names;
  for (const Value& value : graph.values)
    if (value.kind == ValueKind::gradient) names.insert(graph.value(value.parameter).name);
  return names;
}

/// The loss with element `at` of a parameter moved.
double moved_loss(const Graph& graph, const Parameter& parameter, std::int64_t at, double by) {
  const Value& value = graph.value(parameter.value);
  Tensor tensor = test::random_value(value);
  tensor[at] += by;
  return interpret(graph, {{value.name, tensor}}).get(graph.loss.sum)[0];
}

/// The gradients of trained parameters are those of `whole`, to roundings of f64; and the slopes of the loss.
void check_gradients(const Graph& graph, const Graph& whole) {
  const Interpreter got = interpret(graph), want = interpret(whole);
  for (const Parameter& parameter : graph.parameters) {
    if (!parameter.trainable) continue;
    const std::string& name = graph.value(parameter.value).name;
    CAPTURE(name);
    const Tensor truth = parameter_gradient(whole, want, test::parameter_named(whole, name));
    const Tensor gradient = parameter_gradient(graph, got, parameter.value);
    REQUIRE(gradient.size() == truth.size());
    double largest = 0, off = 0;
    for (std::int64_t i = 0; i < truth.size(); ++i) {
      largest = std::fmax(largest, std::fabs(truth[i]));
      off = std::fmax(off, std::fabs(gradient[i] - truth[i]));
    }
    CHECK(largest > 0);
    CHECK(off <= 1e-12 * largest);
    const std::int64_t at = truth.size() / 3;
    const double h = 0x1p-14;  // error h² f‴ / 6 of some 1e-8
    const double slope = (moved_loss(graph, parameter, at, h) - moved_loss(graph, parameter, at, -h)) / (2 * h);
    CHECK(std::fabs(gradient[at] - slope) <= 1e-6 * (largest + 1e-3));
  }
}

bool is_bias(const std::string& name) { return name.ends_with(".bias"); }
bool is_norm(const std::string& name) {
  return name.find("ln_") != std::string::npos || name.find("norm") != std::string::npos;
}

std::vector<Graph> models() {
  const BuildOptions images = test::options_for(2, {{"images", {}}, {"targets", {}}}),
                     rows = test::options_for(2, {{"features", {}}, {"targets", {}}});
  return {model("gpt2", test::kTinyGpt, test::text_options(2, 4)),
          model("llama", {{"layers", 2}, {"heads", 4}, {"kv_heads", 2}, {"dim", 16}, {"hidden", 24}, {"vocab", 11}},
                test::text_options(2, 4)),
          model("convnet", {{"rows", 8}, {"cols", 8}}, images), model("mlp", {{"layers", 2}}, rows)};
}

TEST_CASE("of one trained matrix near the end, the backward pass is what leads to it") {
  const auto last = [](const std::string& name) { return name == "h.1.mlp.c_proj.weight"; };
  const Graph forward = freeze(model("gpt2", test::kTinyGpt, test::text_options(2, 4)), last),
              graph = differentiated(forward);
  CHECK(backward_nodes(graph) == std::vector<std::string>{"cross_entropy_grad loss", "linear_grad_input logits",
                                                          "layer_norm_grad ln_f", "linear_grad_weight h.1.mlp.c_proj"});
  CHECK(with_gradient(graph) == std::set<std::string>{"h.1.mlp.c_proj.weight"});
  const double tokens = 8, dim = 8, vocab = 11;
  CHECK(flops_of(graph) - flops_of(forward) == 2 * tokens * (vocab * dim + 4 * dim * dim));
  for (const Node& node : graph.nodes) {
    if (node.op == Op::layer_norm_grad) CHECK(node.outputs.size() == 1);
    if (node.op == Op::linear_grad_weight) CHECK(node.outputs.size() == 1);
  }
}

TEST_CASE("where weights are frozen and biases trained there are no products but those that lead down") {
  const Graph forward = freeze(model("gpt2", test::kTinyGpt, test::text_options(2, 4)), is_bias),
              graph = differentiated(forward);
  const double tokens = 8, dim = 8, vocab = 11, layers = 2,
               attention = 4 * layers * tokens * 4 * dim;  // causal: half of 8 · tokens · seq · dim
  // Each matrix once, of dx, but for c_attn of the first block, below whose norm nothing but a bias is trained.
  CHECK(flops_of(graph) - flops_of(forward) == 2 * tokens * (layers * 12 * dim * dim + vocab * dim) + attention);
  for (const Node& node : graph.nodes) {
    CHECK(node.op != Op::linear_grad_weight);
    CHECK(node.op != Op::embedding_grad);
  }
}

TEST_CASE(
    "what is frozen has no gradient in the graph, and what is trained has the gradient it would have among others") {
  const std::vector<std::pair<std::string, std::function<bool(const std::string&)>>> choices = {
      {"biases", is_bias},
      {"no bias", [](const std::string& name) { return !is_bias(name); }},
      {"norms", is_norm},
      {"no norm", [](const std::string& name) { return !is_norm(name); }},
      {"biases of norms", [](const std::string& name) { return is_norm(name) && is_bias(name); }},
      {"every third", [](const std::string& name) { return std::hash<std::string>()(name) % 3 == 0; }},
      {"embeddings",
       [](const std::string& name) { return name == "wte.weight" || name.find("embed") != std::string::npos; }},
  };
  for (const Graph& forward : models()) {
    CAPTURE(forward.name);
    const Graph whole = differentiated(forward);
    for (const auto& [what, trained] : choices) {
      CAPTURE(what);
      const Graph graph = differentiated(freeze(forward, trained));
      std::set<std::string> wanted;
      for (const Parameter& parameter : graph.parameters)
        if (parameter.trainable) wanted.insert(graph.value(parameter.value).name);
      CHECK(with_gradient(graph) == wanted);
      CHECK(flops_of(graph) <= flops_of(whole));
      check_gradients(graph, whole);
    }
  }
}

TEST_CASE("where nothing is trained there is no backward pass and no seed of one") {
  for (const Graph& forward : models()) {
    const Graph graph = differentiated(freeze(forward, [](const std::string&) { return false; }));
    CHECK(backward_nodes(graph).empty());
    CHECK(graph.seed == kNone);
    CHECK(graph.values.size() == forward.values.size());
  }
}

TEST_CASE("blocks below the first trained parameter are neither kept nor computed again") {
  const auto last = [](const std::string& name) { return name.starts_with("h.1."); };
  for (const RecomputePolicy::Mode mode : {RecomputePolicy::Mode::full, RecomputePolicy::Mode::selective}) {
    Graph graph = differentiated(freeze(model("gpt2", test::kTinyGpt, test::text_options(2, 4)), last));
    recompute(graph, {mode, 1});
    bool again = false;
    for (const Node& node : graph.nodes) {
      if (node.backward) CHECK(!node.name.starts_with("h.0."));
      again = again || node.recomputed;
    }
    CHECK(again);
  }
}

std::set<std::string> trained(const Graph& graph) {
  std::set<std::string> names;
  for (const Parameter& parameter : graph.parameters)
    if (parameter.trainable) names.insert(graph.value(parameter.value).name);
  return names;
}

TEST_CASE("globs over whole names choose what is trained, and a star crosses dots") {
  using Mode = Trainable::Mode;
  Graph graph = model("gpt2", test::kTinyGpt, test::text_options(2, 4));
  CHECK(set_trainable(graph, {Mode::globs, {"h.1*.weight", "wpe.weight"}}).empty());
  CHECK(trained(graph) == std::set<std::string>{"wpe.weight", "h.1.ln_1.weight", "h.1.attn.c_attn.weight",
                                                "h.1.attn.c_proj.weight", "h.1.ln_2.weight", "h.1.mlp.c_fc.weight",
                                                "h.1.mlp.c_proj.weight"});
  CHECK(set_trainable(graph, {Mode::globs, {"*.bias"}}).empty());
  CHECK(trained(graph).size() == 13);  // six of each block, and ln_f's; the choice before is forgotten
  CHECK(set_trainable(graph, {Mode::all, {}}).empty());
  CHECK(trained(graph).size() == graph.parameters.size());
  CHECK(set_trainable(graph, {Mode::adapter, {}}).empty());
  CHECK(trained(graph).empty());
}

TEST_CASE("a parameter that the graph does not train is trained only where a glob names it") {
  const yaml::Node file = yaml::parse(
      "inputs: {x: {dtype: f32, shape: [batch, 6]}, y: {dtype: f32, shape: [batch, 6]}}\n"
      "nodes:\n"
      "  - {name: table, op: parameter, shape: [4, 6], trained: false, init: sinusoids}\n"
      "  - {name: row, op: slice, dim: 0, start: 1, size: 1}\n"
      "  - {name: place, op: reshape, shape: [6]}\n"
      "  - {name: fc, op: linear, input: x, out: 6}\n"
      "  - {name: sum, op: add, input: [fc, place]}\n"
      "  - {name: loss, op: mse, input: [sum, y]}\n"
      "outputs: {loss: loss}\n",
      "graph");
  Graph graph = read_graph(file, {}, test::options_for(2, {{"x", {6}}, {"y", {6}}}));
  CHECK(graph.parameters[0].init.sinusoids);
  const std::set<std::string> others{"fc.weight", "fc.bias"};
  CHECK(trained(graph) == others);
  CHECK(set_trainable(graph, {Trainable::Mode::globs, {"table"}}).empty());
  CHECK(trained(graph) == std::set<std::string>{"table"});
  CHECK(set_trainable(graph, {Trainable::Mode::all, {}}).empty());
  CHECK(trained(graph) == others);
  CHECK(with_gradient(differentiated(graph)) == others);
  CHECK(print(graph).find("frozen table f32 [4, 6], sinusoids\n") != std::string::npos);
}

TEST_CASE("a glob that takes nothing is a mistake that lists the nearest names, one of each kind of layer") {
  Graph graph = model("gpt2", test::kTinyGpt, test::text_options(2, 4));
  const auto mistakes = [&](const std::vector<std::string>& globs) {
    return set_trainable(graph, {Trainable::Mode::globs, globs});
  };
  const std::vector<SelectionMistake> one = mistakes({"*.bias", "*.c_fcc.weight"});
  REQUIRE(one.size() == 1);
  CHECK(one[0].key == "[1]");
  CHECK(one[0].message == "no parameter of the model matches \"*.c_fcc.weight\"");
  CHECK(one[0].suggestion.starts_with("h.0.mlp.c_fc.weight"));
  CHECK(one[0].suggestion.find("h.1.") == std::string::npos);
  CHECK(mistakes({"wte"}).at(0).suggestion.empty());
  CHECK(mistakes({"wte.wieght"}).at(0).suggestion.starts_with("wte.weight"));
  CHECK(mistakes({}).at(0).message == "an empty list trains nothing");
}

/// Values of the parts of tables: rows of what the whole table holds.
test::Values parts_of_tables(const Graph& graph) {
  test::Values values;
  for (const Parameter& parameter : graph.parameters) {
    const Value& part = graph.value(parameter.value);
    const std::optional<RowsOf> rows = named_rows(part.name);
    if (!rows) continue;
    const std::int64_t dim = part.shape()[1];
    const Tensor table = test::random_value({.name = rows->tensor, .spec = {DType::f32, {rows->rows, dim}}});
    Tensor tensor(part.shape());
    for (std::int64_t i = 0; i < tensor.size(); ++i) tensor[i] = table[rows->first * dim + i];
    values.emplace(part.name, std::move(tensor));
  }
  return values;
}

TEST_CASE("trained rows of a table have the gradient that they have in the whole table, and nothing else has one") {
  struct Case {
    const char *model, *table;
    std::vector<std::string> trainable;
    std::vector<std::string> parts;
    std::int64_t trained;  ///< rows
  };
  const std::vector<Case> cases{
      {"gpt2", "wte.weight", {"wte.weight[2:]"}, {"0-2", "2-11"}, 9},
      {"gpt2", "wte.weight", {"wte.weight[:-8]"}, {"0-3", "3-11"}, 3},
      {"gpt2", "wte.weight", {"wte.weight[3]", "w*.weight[1:2]"}, {"0-1", "1-2", "2-3", "3-4", "4-11"}, 2},
      {"gpt2", "wte.weight", {"wte.weight[1:3]", "wte.weight[2:5]"}, {"0-1", "1-5", "5-11"}, 4},
      {"llama", "model.embed_tokens.weight", {"*embed*[1:4]"}, {"0-1", "1-4", "4-11"}, 3},
  };
  for (const auto& [name, table, trainable, parts, rows] : cases) {
    CAPTURE(name);
    CAPTURE(trainable.front());
    const bool tied = std::string(name) == "gpt2";
    const auto sizes =
        tied ? test::kTinyGpt : std::map<std::string, double>{{"layers", 2}, {"heads", 4},   {"kv_heads", 2},
                                                              {"dim", 16},   {"hidden", 24}, {"vocab", 11}};
    const Graph forward = model(name, sizes, test::text_options(2, 4));
    Graph graph = forward;
    REQUIRE(set_trainable(graph, {Trainable::Mode::globs, trainable}).empty());
    REQUIRE(split_rows(graph, trainable).empty());
    CHECK(graph.num_parameters() == forward.num_parameters());
    const Graph apart = graph, whole = differentiated(forward);
    differentiate(graph, DType::f32);
    const test::Values values = parts_of_tables(graph);
    const Interpreter got = interpret(graph, values), want = interpret(whole);
    CHECK(got.get(graph.loss.sum)[0] == doctest::Approx(want.get(whole.loss.sum)[0]).epsilon(1e-13));
    const Tensor truth = parameter_gradient(whole, want, test::parameter_named(whole, table));
    const std::int64_t dim = truth.shape[1];
    std::set<std::string> with;
    for (const std::string& part : parts) {
      CAPTURE(part);
      const std::string full = std::string(table) + ".rows." + part + ".of.11";
      const ValueId id = test::parameter_named(graph, full);
      REQUIRE(id != kNone);
      if (!trained(graph).contains(full)) continue;
      with.insert(full);
      const std::int64_t first = named_rows(full)->first;
      const Tensor gradient = parameter_gradient(graph, got, id);
      double largest = 0, off = 0;
      for (std::int64_t i = 0; i < gradient.size(); ++i) {
        largest = std::fmax(largest, std::fabs(truth[first * dim + i]));
        off = std::fmax(off, std::fabs(gradient[i] - truth[first * dim + i]));
      }
      CHECK(largest > 0);
      CHECK(off <= 1e-12 * largest);
    }
    CHECK(with_gradient(graph) == with);
    // Of the products only a tied head's has a gradient of its weight: of the trained rows.
    double products = 0;
    for (const Node& node : graph.nodes)
      if (node.op == Op::linear_grad_weight) products += cost_of(signature_of(graph, node)).flops;
    CHECK(products == (tied ? 2.0 * 8 * static_cast<double>(rows * dim) : 0));
    CHECK(flops_of(apart) == doctest::Approx(flops_of(forward)).epsilon(0.01));
  }
}

TEST_CASE("entries for rows that are not there, or of what is no embedding, are mistakes") {
  Graph graph = model("gpt2", test::kTinyGpt, test::text_options(2, 4));
  const auto mistake = [&](const std::vector<std::string>& globs) {
    const std::vector<SelectionMistake> mistakes = set_trainable(graph, {Trainable::Mode::globs, globs});
    REQUIRE(mistakes.size() == 1);
    return mistakes[0].key + " " + mistakes[0].message;
  };
  const std::string none = " wte.weight has 11 rows, of which ";
  for (const char* rows : {"[11:]", "[4:2]", "[3:3]", "[x:]", "[]", "[-12:]", "[:12]", "[11]", "[1:2:3]", "[1 :2]"}) {
    CAPTURE(rows);
    CHECK(mistake({"*.bias", std::string("wte.weight") + rows}).starts_with("[1]" + none + rows + " is no part"));
  }
  CHECK(mistake({"wpe.weight[1:]"}) == "[0] no weight of an embedding matches \"wpe.weight\"");
  CHECK(mistake({"wte.weight[1:]", "w*"}) == "[0] wte.weight is trained whole by another entry");
  const yaml::Node file = yaml::parse(
      "inputs: {tokens: {dtype: i32, shape: [batch, 4]}, targets: {dtype: i32, shape: [batch, 4]}}\n"
      "nodes:\n"
      "  - {name: table, op: embedding, input: tokens, rows: 11, dim: 6}\n"
      "  - {name: head, op: linear, out: 11, weight: table, bias: true}\n"
      "  - {name: loss, op: cross_entropy, input: [head, targets]}\n"
      "outputs: {loss: loss}\n",
      "graph");
  graph = read_graph(file, {}, test::text_options(2, 4));
  CHECK(mistake({"table.weight[1:]"}).starts_with("[0] table.weight is also read by \"head\" (linear)"));
}

TEST_CASE("a frozen parameter is printed as such") {
  const Graph graph = freeze(model("gpt2", test::kTinyGpt, test::text_options(2, 4)),
                             [](const std::string& name) { return name != "wpe.weight"; });
  CHECK(print(graph).find("parameter wte.weight f32 [11, 8], normal 0.02\n") != std::string::npos);
  CHECK(print(graph).find("frozen wpe.weight f32 [6, 8], normal 0.02\n") != std::string::npos);
}

}  // namespace
}  // namespace trainer::trainable_test
