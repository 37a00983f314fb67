// LoRA in graphs, in f64: what an adapted graph computes is what the same graph computes with the product of A and B
// added to its matrices, and its gradients follow from that graph's; 20 steps of training are PyTorch's and peft's
// (tests/goldens/adapter_goldens.py).
#include "engine/transform/adapter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "engine/ops/op_def.h"
#include "engine/transform/distribute.h"
#include "engine/transform/fuse.h"
#include "engine/transform/trainable.h"
#include "tests/goldens/golden.h"
#include "tests/reference/ranks.h"
#include "tests/transform/files.h"
#include "tests/transform/interpreted.h"

namespace trainer::adapter_test {
namespace {

using reference::Interpreter;
using reference::Tensor;
using test::interpret;
using test::model;
using test::parameter_named;
using Mode = BuildOptions::Mode;

const std::map<std::string, double> kTinyLlama{{"layers", 2}, {"heads", 4},   {"kv_heads", 2},
                                               {"dim", 16},   {"hidden", 24}, {"vocab", 11}};

Graph tiny_gpt(BuildOptions options = test::text_options(2, 4)) { return model("gpt2", test::kTinyGpt, options); }

Graph adapted(Graph graph, const Lora& lora, const BuildOptions& options = test::text_options(2, 4)) {
  set_trainable(graph, {Trainable::Mode::adapter, {}});
  REQUIRE(add_lora(graph, lora, options).empty());
  return graph;
}

std::set<std::string> targets_of(const Graph& graph) {
  std::set<std::string> names;
  for (const Node& node : graph.nodes)
    if (node.name.ends_with(".lora_A")) names.insert(node.name.substr(0, node.name.size() - 7));
  return names;
}

/// C = factor · A·B, of A or its transpose and B or its transpose.
Tensor product(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, double factor) {
  const std::int64_t m = a.shape[transpose_a ? 1 : 0], k = a.shape[transpose_a ? 0 : 1],
                     n = b.shape[transpose_b ? 0 : 1];
  Tensor c(Shape{m, n});
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t l = 0; l < k; ++l)
        c[i * n + j] += factor * a[transpose_a ? l * m + i : i * k + l] * b[transpose_b ? j * k + l : l * n + j];
  return c;
}

double largest(const Tensor& t) {
  double result = 0;
  for (double x : t.data) result = std::fmax(result, std::fabs(x));
  return result;
}

double off(const Tensor& a, const Tensor& b) {
  REQUIRE(a.size() == b.size());
  double result = 0;
  for (std::int64_t i = 0; i < a.size(); ++i) result = std::fmax(result, std::fabs(a[i] - b[i]));
  return result;
}

/// Holds `graph`, which is `plain` with an adapter of factor s, to `plain` with W + s·B·A for each target's W: the
/// loss, the gradients dA = s·Bᵀ·dW and dB = s·dW·Aᵀ, and those of what else is trained.
void check_merged(const Graph& graph, Graph plain, double s) {
  differentiate(plain, DType::f32);
  test::Values merged;
  for (const std::string& node : targets_of(graph)) {
    const ValueId weight = parameter_named(plain, node + ".weight");
    Tensor w = test::random_value(plain.value(weight));
    const Tensor a = test::random_value(graph.value(parameter_named(graph, node + ".lora_A.weight"))),
                 b = test::random_value(graph.value(parameter_named(graph, node + ".lora_B.weight")));
    const Tensor change = product(b, false, a, false, s);
    for (std::int64_t i = 0; i < w.size(); ++i) w[i] += change[i];
    merged[node + ".weight"] = w;
  }
  const Interpreter got = interpret(graph), want = interpret(plain, merged);
  CHECK(got.get(graph.loss.sum)[0] == doctest::Approx(want.get(plain.loss.sum)[0]).epsilon(1e-12));
  CHECK(interpret(plain).get(plain.loss.sum)[0] != doctest::Approx(want.get(plain.loss.sum)[0]).epsilon(1e-3));
  for (const std::string& node : targets_of(graph)) {
    CAPTURE(node);
    const ValueId a = parameter_named(graph, node + ".lora_A.weight"),
                  b = parameter_named(graph, node + ".lora_B.weight");
    const Tensor dw = parameter_gradient(plain, want, parameter_named(plain, node + ".weight"));
    const Tensor da = product(test::random_value(graph.value(b)), true, dw, false, s),
                 db = product(dw, false, test::random_value(graph.value(a)), true, s);
    CHECK(largest(da) > 1e-6);
    CHECK(off(parameter_gradient(graph, got, a), da) <= 1e-10 * largest(da));
    CHECK(off(parameter_gradient(graph, got, b), db) <= 1e-10 * largest(db));
  }
  for (const Parameter& parameter : graph.parameters) {
    const std::string& name = graph.value(parameter.value).name;
    if (!parameter.trainable || name.find(".lora_") != std::string::npos) continue;
    CAPTURE(name);
    const Tensor truth = parameter_gradient(plain, want, parameter_named(plain, name));
    CHECK(off(parameter_gradient(graph, got, parameter.value), truth) <= 1e-10 * largest(truth));
  }
}

TEST_CASE(
    "an adapted graph computes what it would with the product of A and B added to its matrices, and so do its "
    "gradients") {
  for (const bool by_root : {false, true}) {
    const Lora lora{.rank = 3, .alpha = 5, .scaled_by_root = by_root};
    const double s = by_root ? 5 / std::sqrt(3.0) : 5.0 / 3;
    for (const Graph& plain : {tiny_gpt(), model("llama", kTinyLlama, test::text_options(2, 4))}) {
      CAPTURE(plain.name);
      Graph graph = adapted(plain, lora);
      differentiate(graph, DType::f32);
      check_merged(graph, plain, s);
    }
  }
}

TEST_CASE("what trainable names of the model is trained beside the adapter") {
  Graph graph = tiny_gpt();
  REQUIRE(set_trainable(graph, {Trainable::Mode::globs, {"*ln_*", "*.c_fc.bias"}}).empty());
  REQUIRE(
      add_lora(graph, {.rank = 2, .alpha = 4, .targets = {"*.c_fc", "*.c_attn"}}, test::text_options(2, 4)).empty());
  differentiate(graph, DType::f32);
  std::set<std::string> trained;
  for (const Value& value : graph.values)
    if (value.kind == ValueKind::gradient) trained.insert(graph.value(value.parameter).name);
  CHECK(trained.size() == 2 * (4 + 1 + 4) + 2);
  CHECK(!trained.contains("h.0.mlp.c_fc.weight"));
  check_merged(graph, tiny_gpt(), 2);
}

TEST_CASE("an adapter costs its own products and the way down, and no weight gradient of the base") {
  const Graph plain = tiny_gpt();
  Graph graph = adapted(plain, {.rank = 2, .targets = {"*.c_fc"}});
  const auto flops = [](const Graph& of) {
    double sum = 0;
    for (const Node& node : of.nodes) sum += cost_of(signature_of(of, node)).flops;
    return sum;
  };
  const double tokens = 8, dim = 8, vocab = 11, own = 2 * tokens * 2 * (dim + 4 * dim), forward = flops(graph);
  CHECK(forward - flops(plain) == 2 * own);
  differentiate(graph, DType::f32);
  // dx of the head, of both c_proj of the last block and of c_fc there, of c_proj of the first; attention and c_attn of
  // the last. Of an adapter's own two products each twice; but nothing below the first block's.
  const double down =
      2 * tokens * (vocab * dim + 2 * 4 * dim * dim + 4 * dim * dim + dim * dim + 3 * dim * dim) + 4 * tokens * 4 * dim;
  CHECK(flops(graph) - forward == down + 4 * own - 2 * tokens * 2 * dim);
  for (const Node& node : graph.nodes)
    if (node.op == Op::linear_grad_weight) CHECK(node.name.find(".lora_") != std::string::npos);
}

TEST_CASE(
    "nodes of an adapter follow their target in its block and chunk, and parameters keep the order of their first "
    "use") {
  Graph plain = tiny_gpt();
  for (Node& node : plain.nodes) node.chunk = node.name.starts_with("h.1") ? 1 : 0;
  const Graph graph = adapted(plain, {.rank = 4, .alpha = 6});
  CHECK(targets_of(graph).size() == 8);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    names.push_back(node.name);
    CHECK(node.chunk == (node.name.starts_with("h.1") ? 1 : 0));
    if (node.name.find(".lora_") != std::string::npos)
      CHECK(graph.blocks[static_cast<std::size_t>(node.block)].name == node.name.substr(0, 3));
  }
  const auto at = std::find(names.begin(), names.end(), "h.0.mlp.c_fc");
  REQUIRE(names.end() - at > 5);
  CHECK(std::vector<std::string>(at, at + 6) ==
        std::vector<std::string>{"h.0.mlp.c_fc", "h.0.mlp.c_fc.lora_A", "h.0.mlp.c_fc.lora_scale",
                                 "h.0.mlp.c_fc.lora_B", "h.0.mlp.c_fc.lora_add", "h.0.mlp.act"});
  std::vector<std::string> parameters;
  for (const Parameter& parameter : graph.parameters) parameters.push_back(graph.value(parameter.value).name);
  const auto weight = std::find(parameters.begin(), parameters.end(), "h.0.mlp.c_fc.weight");
  CHECK(std::vector<std::string>(weight, weight + 4) ==
        std::vector<std::string>{"h.0.mlp.c_fc.weight", "h.0.mlp.c_fc.bias", "h.0.mlp.c_fc.lora_A.weight",
                                 "h.0.mlp.c_fc.lora_B.weight"});
  for (const Parameter& parameter : graph.parameters) {
    const Value& value = graph.value(parameter.value);
    const bool a = value.name.ends_with(".lora_A.weight"), b = value.name.ends_with(".lora_B.weight");
    CHECK(parameter.trainable == (a || b));
    if (a)
      CHECK((value.shape()[0] == 4 && parameter.init.uniform == 1 / std::sqrt(static_cast<double>(value.shape()[1])) &&
             parameter.init.stddev == 0));
    if (b)
      CHECK((value.shape()[1] == 4 && parameter.init.uniform == 0 && parameter.init.stddev == 0 &&
             parameter.init.constant == 0));
  }
}

TEST_CASE("all-linear leaves out the head, in graphs with a loss, of logits alone, and of their statistics") {
  for (const Mode mode : {Mode::train, Mode::evaluate, Mode::sample, Mode::score}) {
    BuildOptions options = test::text_options(1, 4);
    options.mode = mode;
    CHECK(targets_of(adapted(tiny_gpt(options), {}, options)).size() == 8);
    const Graph llama = adapted(model("llama", kTinyLlama, options), {}, options);
    CHECK(targets_of(llama).size() == 14);
    CHECK(!targets_of(llama).contains("lm_head"));
  }
  const BuildOptions images = test::options_for(2, {{"images", {}}, {"targets", {}}});
  CHECK(targets_of(adapted(model("convnet", {}, images), {}, images)) == std::set<std::string>{"fc1"});
  // Scores that are capped: the head is the linear before.
  const std::string file =
      "inputs: {x: {dtype: f32, shape: [batch, 3]}, y: {dtype: i32, shape: [batch]}}\nnodes:\n  - {name: a, op: "
      "linear, input: x, out: 3}\n  - {name: b, op: linear, out: 4}\n"
      "  - {name: small, op: scale, factor: 0.1}\n  - {name: cap, op: tanh}\n  - {name: loss, op: cross_entropy, "
      "input: [cap, y]}\noutputs: {loss: loss, logits: cap}\n";
  const BuildOptions rows = test::options_for(2, {{"x", {3}}, {"y", {}}});
  CHECK(targets_of(adapted(read_graph(yaml::parse(file, "graph.yaml"), {}, rows), {}, rows)) ==
        std::set<std::string>{"a"});
}

TEST_CASE("an adapter of the head itself is read by the loss and by who asks for logits") {
  Graph graph = adapted(tiny_gpt(), {.rank = 2, .alpha = 4, .targets = {"logits"}});
  const ValueId logits = graph.logits;
  CHECK(graph.loss.scores == logits);
  CHECK(graph.value(logits).name == "logits");
  const auto writer =
      std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) { return node.outputs[0] == logits; });
  CHECK(writer->name == "logits.lora_add");
}

std::vector<SelectionMistake> mistakes(Graph graph, const Lora& lora) {
  const std::string before = print(graph);
  std::vector<SelectionMistake> found = add_lora(graph, lora, test::text_options(2, 4));
  if (!found.empty()) CHECK(print(graph) == before);
  return found;
}

TEST_CASE("targets that match nothing, share a weight or have no batch for their dropout are mistakes") {
  const std::vector<SelectionMistake> unmatched = mistakes(tiny_gpt(), {.targets = {"*.c_fc", "*.q_proj"}});
  REQUIRE(unmatched.size() == 1);
  CHECK(unmatched[0].key == "targets[1]");
  CHECK(unmatched[0].message == "no linear matches \"*.q_proj\"");
  CHECK(mistakes(tiny_gpt(), {.targets = {"*.c_fd"}}).at(0).suggestion.starts_with("h.0.mlp.c_fc"));

  const std::string tied =
      "inputs: {x: {dtype: f32, shape: [batch, 3]}, y: {dtype: f32, shape: [batch, 3]}}\nnodes:\n  - {name: a, op: "
      "linear, input: x, out: 3}\n"
      "  - {name: b, op: linear, out: 3, weight: a}\n  - {name: c, op: linear, out: 3}\n  - {name: loss, op: mse, "
      "input: [c, y]}\noutputs: {loss: loss}\n";
  const Graph graph = read_graph(yaml::parse(tied, "graph.yaml"), {}, test::options_for(2, {{"x", {3}}, {"y", {3}}}));
  CHECK(mistakes(graph, {}).at(0).message == "\"a\" and \"b\" share a.weight: an adapter goes to one of them");
  CHECK(mistakes(graph, {.targets = {"b"}}).empty());
  CHECK(mistakes(tiny_gpt(), {.targets = {"logits"}}).empty());  // shared with an embedding, which has no adapter

  const std::string one =
      "inputs: {x: {dtype: f32, shape: [batch, 3]}, y: {dtype: f32, shape: [batch, 3]}}\nnodes:\n  - {name: a, op: "
      "linear, input: x, out: 3}\n"
      "  - {name: loss, op: mse, input: [a, y]}\noutputs: {loss: loss}\n";
  CHECK(mistakes(read_graph(yaml::parse(one, "graph.yaml"), {}, test::options_for(2, {{"x", {3}}, {"y", {3}}})), {})
            .at(0)
            .message == "the graph has no linear but its head");

  const std::string table =
      "inputs: {x: {dtype: f32, shape: [batch, 5, 3]}, y: {dtype: f32, shape: [batch, 5, 3]}}\nnodes:\n  - {name: p, "
      "op: positions, input: x, rows: 5, dim: 3}\n"
      "  - {name: a, op: linear, out: 3}\n  - {name: s, op: add, input: [x, a]}\n  - {name: b, op: linear, out: 3}\n  "
      "- {name: c, op: linear, out: 3}\n"
      "  - {name: loss, op: mse, input: [c, y]}\noutputs: {loss: loss}\n";
  const Graph positions =
      read_graph(yaml::parse(table, "graph.yaml"), {}, test::options_for(2, {{"x", {5, 3}}, {"y", {5, 3}}}));
  CHECK(mistakes(positions, {}).empty());
  const std::vector<SelectionMistake> unbatched = mistakes(positions, {.dropout = 0.1});
  REQUIRE(unbatched.size() == 1);
  CHECK(unbatched[0].key == "dropout");
  CHECK(unbatched[0].message.find("\"a\"") != std::string::npos);
}

TEST_CASE("dropout of an adapter has a key of its own path, in training alone") {
  std::set<std::int64_t> keys;
  const Graph graph = adapted(tiny_gpt(), {.rank = 2, .dropout = 0.25});
  for (const Node& node : graph.nodes) {
    if (node.op != Op::dropout) continue;
    CHECK(node.name.ends_with(".lora_dropout"));
    CHECK(node.attributes.real("p") == 0.25);
    CHECK(node.inputs[1] == graph.step);
    keys.insert(node.attributes.integer("key"));
  }
  CHECK(keys.size() == 8);
  BuildOptions options = test::text_options(2, 4);
  options.mode = Mode::evaluate;
  const Graph evaluated = adapted(tiny_gpt(options), {.rank = 2, .dropout = 0.25}, options);
  for (const Node& node : evaluated.nodes) CHECK(node.op != Op::dropout);
  CHECK(evaluated.step == kNone);
}

class NoEpilogues : public Target {
 public:
  std::int64_t workspace_bytes(const Signature&) const override { return 0; }
};
class Epilogues final : public NoEpilogues {
  bool fuses_gelu(DType) const override { return true; }
};

TEST_CASE("recomputed and fused, an adapted graph has the same loss and gradients, dropout included") {
  for (const Graph& plain : {tiny_gpt(), model("llama", kTinyLlama, test::text_options(2, 4))}) {
    Graph graph = adapted(plain, {.rank = 2, .alpha = 4, .dropout = 0.5});
    differentiate(graph, DType::f32);
    const Interpreter want = interpret(graph);
    for (const RecomputePolicy::Mode mode :
         {RecomputePolicy::Mode::none, RecomputePolicy::Mode::full, RecomputePolicy::Mode::selective})
      for (const bool epilogues : {false, true}) {
        Graph other = graph;
        recompute(other, {mode, 1});
        const std::size_t before = other.nodes.size();
        if (epilogues)
          fuse(other, Epilogues());
        else
          fuse(other, NoEpilogues());
        CHECK(other.nodes.size() < before);
        const Interpreter got = interpret(other);
        CHECK(got.get(other.loss.sum)[0] == want.get(graph.loss.sum)[0]);
        for (const Parameter& parameter : other.parameters) {
          if (!parameter.trainable) continue;
          const std::string& name = other.value(parameter.value).name;
          CAPTURE(name);
          CHECK(off(parameter_gradient(other, got, parameter.value),
                    parameter_gradient(graph, want, parameter_named(graph, name))) <= 1e-12);
        }
      }
  }
}

/// What a rank of two holds; rows are all dims but the last.
Tensor half(const Tensor& whole, Placement placement, int rank) {
  if (!placement.is_shard()) return whole;
  Shape seen = whole.shape;
  if (placement.dim == Placement::kRows) seen = Shape{whole.size() / whole.shape[-1], whole.shape[-1]};
  const int dim = placement.dim == Placement::kRows ? 0 : placement.dim;
  Shape shape = seen;
  shape[dim] /= 2;
  std::int64_t inner = 1;
  for (int i = dim + 1; i < shape.rank(); ++i) inner *= shape[i];
  const std::int64_t piece = seen[dim] / placement.parts, mine = piece / 2;  // parts of one length
  Tensor part(shape);
  for (std::int64_t i = 0; i < part.size(); ++i) {
    const std::int64_t outer = i / inner / shape[dim], at = i / inner % shape[dim];
    part[i] = whole[(outer * seen[dim] + at / mine * piece + rank * mine + at % mine) * inner + i % inner];
  }
  return part;
}

/// Cut as Megatron-LM cuts it: packed q, k, v and c_fc by columns, the two c_proj by rows, the vocabulary.
void cut_over_two(Graph& graph) {
  graph.mesh = {{Axis::tensor, 2}};
  for (Node& node : graph.nodes) {
    if (node.op == Op::embedding) graph.value(node.inputs[1]).spec.place(Axis::tensor, Placement::shard(0));
    if (node.op == Op::positions) node.once = Axes::of(Axis::tensor);
    if (node.op != Op::linear || node.block == kNone) continue;
    if (node.name.ends_with("c_proj")) {
      graph.value(node.inputs[1]).spec.place(Axis::tensor, Placement::shard(1));
      node.once = Axes::of(Axis::tensor);
      continue;
    }
    const int parts = node.name.ends_with("c_attn") ? 3 : 1;
    for (std::size_t i : {1, 2}) graph.value(node.inputs[i]).spec.place(Axis::tensor, Placement::shard(0, parts));
  }
}

/// The gradient value `id` of all ranks against what one rank has.
void check_gradient(const Graph& graph, reference::Ranks& ranks, ValueId id, const Tensor& truth) {
  const Placement placement = graph.value(id).spec.on(Axis::tensor);
  Tensor sum(truth.shape);
  for (int rank : {0, 1}) {
    const Tensor mine = ranks.rank(rank).get(id);
    for (std::int64_t i = 0; i < mine.size() && placement.is_partial(); ++i) sum[i] += mine[i];
    if (!placement.is_partial()) CHECK(off(mine, half(truth, placement, rank)) <= 1e-12 * (1 + largest(truth)));
  }
  if (placement.is_partial()) CHECK(off(sum, truth) <= 1e-12 * (1 + largest(truth)));
}

TEST_CASE(
    "over a tensor axis B follows a target's rows and A its columns, and two ranks have one's loss and gradients") {
  const Lora lora{.rank = 3, .alpha = 5};
  std::map<std::string, double> with = test::kTinyGpt;
  with["vocab"] = 12;
  const Graph plain = model("gpt2", with, test::text_options(2, 4));
  Graph one = adapted(plain, lora);
  differentiate(one, DType::f32);
  const Interpreter want = interpret(one);
  for (const bool sequence : {false, true}) {
    CAPTURE(sequence);
    Graph graph = plain;
    cut_over_two(graph);
    graph = adapted(graph, lora);
    distribute(graph, sequence ? Axes::of(Axis::tensor) : Axes{});
    const Op join = sequence ? Op::reduce_scatter : Op::all_reduce;
    CHECK(std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) { return node.op == join; }) ==
          1 + 2 * 2);  // of the embedding, and of the linears: the adapters' partial sums join their targets'
    differentiate(graph, DType::f32);
    propagate_placements(graph);
    const auto on = [&](const std::string& name) {
      return graph.value(parameter_named(graph, name)).spec.on(Axis::tensor);
    };
    CHECK(on("h.0.attn.c_attn.lora_A.weight").is_replicate());
    CHECK(on("h.0.attn.c_attn.lora_B.weight") == Placement::shard(0, 3));
    CHECK(on("h.0.mlp.c_proj.lora_A.weight").is_shard(1));
    CHECK(on("h.0.mlp.c_proj.lora_B.weight").is_replicate());

    reference::Ranks ranks(graph, 2);
    for (int rank : {0, 1}) {
      Interpreter& values = ranks.rank(rank);
      for (ValueId id : graph.inputs) values.set(id, test::random_value(graph.value(id)));
      for (const Parameter& parameter : graph.parameters) {
        const Value& value = graph.value(parameter.value);
        values.set(parameter.value, half(test::random_value(value), value.spec.on(Axis::tensor), rank));
      }
      values.set(graph.seed, Tensor({1}, 1));
    }
    ranks.run();
    for (int rank : {0, 1})
      CHECK(ranks.rank(rank).get(graph.loss.sum)[0] == doctest::Approx(want.get(one.loss.sum)[0]).epsilon(1e-12));
    for (std::size_t id = 0; id < graph.values.size(); ++id) {
      const Value& value = graph.values[id];
      if (value.kind != ValueKind::gradient) continue;
      CAPTURE(value.name);
      const ValueId parameter = parameter_named(one, graph.value(value.parameter).name);
      check_gradient(graph, ranks, static_cast<ValueId>(id), parameter_gradient(one, want, parameter));
    }
  }
}

// ---- 20 steps, against PyTorch ------------------------------------------------------------------------------------

struct Golden {
  std::string name, model;
  std::vector<std::string> trainable;  ///< globs; empty: the adapter alone
  std::optional<Lora> lora;
};

const std::vector<Golden> kGoldens = {
    {"gpt2_biases", "gpt2", {"*.bias"}, {}},
    {"gpt2_last_block", "gpt2", {"h.1.*", "ln_f.*"}, {}},
    {"llama_norms_and_head", "llama", {"*norm*", "lm_head.weight"}, {}},
    {"gpt2_lora", "gpt2", {}, Lora{.rank = 4, .alpha = 8}},
    {"llama_lora", "llama", {}, Lora{.rank = 4, .alpha = 16}},
    {"llama_rslora_qv",
     "llama",
     {},
     Lora{.rank = 3, .alpha = 5, .targets = {"*.q_proj", "*.v_proj"}, .scaled_by_root = true}},
    {"gpt2_dora", "gpt2", {}, Lora{.rank = 3, .alpha = 6, .targets = {"*.c_attn", "*.c_fc"}, .magnitude = true}},
    {"llama_dora",
     "llama",
     {},
     Lora{.rank = 3, .alpha = 5, .targets = {"*.q_proj", "*.down_proj"}, .scaled_by_root = true, .magnitude = true}},
    {"llama_lora_and_norms", "llama", {"*norm*"}, Lora{.rank = 2, .alpha = 4, .targets = {"*.down_proj"}}},
};

/// AdamW of adapter_goldens.py.
struct AdamW {
  Tensor m, v;
  void step(Tensor& w, const Tensor& g, int t) {
    if (m.size() == 0) m = v = Tensor(w.shape);
    const double lr = 0.01, b1 = 0.9, b2 = 0.95, eps = 1e-6, decay = w.shape.rank() >= 2 ? 0.1 : 0;
    for (std::int64_t i = 0; i < w.size(); ++i) {
      m[i] = b1 * m[i] + (1 - b1) * g[i];
      v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
      w[i] -= lr * decay * w[i] + lr * m[i] / (1 - std::pow(b1, t)) / (std::sqrt(v[i] / (1 - std::pow(b2, t))) + eps);
    }
  }
};

TEST_CASE("20 steps of parts of a model and of adapters have PyTorch's and peft's losses and weights") {
  const std::map<std::string, std::map<std::string, double>> params = {
      {"gpt2", {{"layers", 2}, {"heads", 2}, {"dim", 32}, {"vocab", 61}, {"context", 24}}},
      {"llama",
       {{"layers", 2},
        {"heads", 4},
        {"kv_heads", 2},
        {"dim", 32},
        {"hidden", 40},
        {"vocab", 53},
        {"rope_theta", 10000}}}};
  for (const Golden& golden : kGoldens) {
    CAPTURE(golden.name);
    const test::Values expected =
        goldens::load_tensors(goldens::folder() + "/adapters/" + golden.name + ".safetensors");
    const BuildOptions options = test::text_options(4, 12);
    Graph graph = model(golden.model, params.at(golden.model), options);
    const Trainable trainable{golden.trainable.empty() ? Trainable::Mode::adapter : Trainable::Mode::globs,
                              golden.trainable};
    REQUIRE(set_trainable(graph, trainable).empty());
    if (golden.lora) REQUIRE(add_lora(graph, *golden.lora, options).empty());
    differentiate(graph, DType::f32);
    test::Values weights = goldens::load_tensors(goldens::folder() + "/models/" + golden.model + "/init.safetensors");
    std::size_t trained = 0;
    for (const Parameter& parameter : graph.parameters) {
      const std::string& name = graph.value(parameter.value).name;
      CHECK(parameter.trainable == expected.contains("init/" + name));
      if (parameter.trainable) weights[name] = expected.at("init/" + name), ++trained;
    }
    CHECK(2 * trained + 3 == expected.size());
    std::map<std::string, AdamW> optimizer;
    const std::int64_t tokens = 4 * 12;
    for (int step = 0; step < 20; ++step) {
      Interpreter values(graph);
      for (ValueId id : graph.inputs) {
        Tensor ids(Shape{4, 12});
        for (std::int64_t i = 0; i < tokens; ++i) ids[i] = expected.at(graph.value(id).name)[step * tokens + i];
        values.set(id, ids);
      }
      for (const Parameter& parameter : graph.parameters)
        values.set(parameter.value, weights.at(graph.value(parameter.value).name));
      values.set(graph.seed, Tensor({1}, 1.0 / static_cast<double>(tokens)));
      values.run();
      CHECK(values.get(graph.loss.sum)[0] / static_cast<double>(tokens) ==
            doctest::Approx(expected.at("loss")[step]).epsilon(1e-9));
      for (const Parameter& parameter : graph.parameters) {
        const std::string& name = graph.value(parameter.value).name;
        if (parameter.trainable)
          optimizer[name].step(weights.at(name), parameter_gradient(graph, values, parameter.value), step + 1);
      }
    }
    for (const Parameter& parameter : graph.parameters) {
      const std::string& name = graph.value(parameter.value).name;
      CAPTURE(name);
      if (parameter.trainable)
        CHECK(off(weights.at(name), expected.at("final/" + name)) <=
              1e-6 * largest(weights.at(name)));  // f32 in the file
    }
  }
}

}  // namespace
}  // namespace trainer::adapter_test
