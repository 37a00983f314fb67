// Graph files of configs/models become graphs of the right shapes, names and sizes, in each mode.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <set>

#include "engine/core/error.h"
#include "engine/core/random.h"
#include "engine/ops/op_def.h"
#include "tests/transform/files.h"

namespace trainer::read_graph_test {
namespace {

using test::model;
using Mode = BuildOptions::Mode;

const Value* value_named(const Graph& graph, const std::string& name) {
  for (const Value& value : graph.values)
    if (value.name == name) return &value;
  return nullptr;
}

const Node& node_named(const Graph& graph, const std::string& name) {
  const auto at =
      std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) { return node.name == name; });
  REQUIRE(at != graph.nodes.end());
  return *at;
}

std::map<std::string, std::string> parameter_shapes(const Graph& graph) {
  std::map<std::string, std::string> shapes;
  for (const Parameter& parameter : graph.parameters)
    shapes[graph.value(parameter.value).name] = graph.value(parameter.value).shape().str();
  return shapes;
}

int count_of(const Graph& graph, Op op) {
  return static_cast<int>(
      std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) { return node.op == op; }));
}

Graph inline_graph(const std::string& nodes, const BuildOptions& options, const std::string& outputs = "{loss: loss}") {
  return read_graph(
      yaml::parse("inputs:\n  x: {dtype: f32, shape: [batch, 6]}\n  y: {dtype: f32, shape: [batch, 6]}\nnodes:\n" +
                      nodes + "outputs: " + outputs + "\n",
                  "graph.yaml"),
      {}, options);
}

BuildOptions xy_options(DType compute = DType::f32) { return test::options_for(4, {{"x", {6}}, {"y", {6}}}, compute); }

TEST_CASE("GPT-2 of 124M has Hugging Face's names and 124,439,808 parameters") {
  const Graph graph = model("gpt2", {}, test::text_options(4, 64));
  CHECK(graph.num_parameters() == 124'439'808);
  const std::map<std::string, std::string> shapes = parameter_shapes(graph);
  CHECK(shapes.size() == 2 + 12 * 12 + 2);
  CHECK(shapes.at("wte.weight") == "[50257, 768]");
  CHECK(shapes.at("wpe.weight") == "[1024, 768]");
  CHECK(shapes.at("h.11.ln_1.weight") == "[768]");
  CHECK(shapes.at("h.11.ln_1.bias") == "[768]");
  CHECK(shapes.at("h.11.attn.c_attn.weight") == "[2304, 768]");
  CHECK(shapes.at("h.11.attn.c_attn.bias") == "[2304]");
  CHECK(shapes.at("h.11.attn.c_proj.weight") == "[768, 768]");
  CHECK(shapes.at("h.0.mlp.c_fc.weight") == "[3072, 768]");
  CHECK(shapes.at("h.0.mlp.c_proj.weight") == "[768, 3072]");
  CHECK(shapes.at("ln_f.bias") == "[768]");
  CHECK(value_named(graph, "logits")->shape() == Shape{4, 64, 50257});
  CHECK(value_named(graph, "h.3.attn.core.lse")->shape() == Shape{4, 12, 64});
  CHECK(graph.blocks.size() == 12);
  CHECK(graph.blocks[3].name == "h.3");
  CHECK(graph.blocks[3].kind == "TransformerBlock");
}

TEST_CASE("a tied weight is one parameter with two readers") {
  const Graph graph = model("gpt2", test::kTinyGpt, test::text_options(2, 4));
  CHECK(node_named(graph, "logits").inputs[1] == node_named(graph, "wte").inputs[1]);
  CHECK(parameter_shapes(graph).count("logits.weight") == 0);
}

TEST_CASE("parameters start as the file says: output projections smaller, biases 0, norms 1") {
  const Graph graph = model("gpt2", test::kTinyGpt, test::text_options(2, 4));
  for (const Parameter& parameter : graph.parameters) {
    const std::string& name = graph.value(parameter.value).name;
    CAPTURE(name);
    if (name.ends_with("c_proj.weight"))
      CHECK(parameter.init.stddev == doctest::Approx(0.01));
    else if (name.ends_with(".bias"))
      CHECK((parameter.init.stddev == 0 && parameter.init.constant == 0));
    else if (name.find("ln_") != std::string::npos)
      CHECK((parameter.init.stddev == 0 && parameter.init.constant == 1));
    else
      CHECK(parameter.init.stddev == 0.02);
  }
}

TEST_CASE("Llama 3.2's 1B shape has its 1,498,482,688 parameters with a head of its own") {
  const Graph graph = model("llama", {}, test::text_options(1, 32, DType::bf16));
  CHECK(graph.num_parameters() == 1'498'482'688);
  const std::map<std::string, std::string> shapes = parameter_shapes(graph);
  CHECK(shapes.at("model.layers.15.self_attn.k_proj.weight") == "[512, 2048]");
  CHECK(shapes.at("lm_head.weight") == "[128256, 2048]");
  CHECK(shapes.count("lm_head.bias") == 0);
  const Node& attention = node_named(graph, "model.layers.0.self_attn.core");
  CHECK(attention.inputs.size() == 3);
  CHECK(attention.attributes == Attributes{{"heads", std::int64_t{32}},
                                           {"kv_heads", std::int64_t{8}},
                                           {"causal", true},
                                           {"packed", false},
                                           {"rope_theta", 500000.0}});
  CHECK(node_named(graph, "model.layers.0.mlp.down_proj").parallel == Parallel::row);
  CHECK(value_named(graph, "model.layers.0.input_layernorm.rstd")->shape() == Shape{32});
}

TEST_CASE("rotary positions become attributes for the heads and the sequence that are planned") {
  const auto attributes = [](const std::string& rope, std::int64_t seq) {
    const std::string file =
        "inputs: {ids: {dtype: i32, shape: [batch, seq]}, y: {dtype: i32, shape: [batch, seq]}}\nnodes:\n  - {name: e, "
        "op: embedding, input: ids, rows: 5, dim: "
        "8}\n"
        "  - {name: qkv, op: linear, out: 24}\n  - {name: a, op: attention, heads: 1, rope: " +
        rope + "}\n  - {name: loss, op: cross_entropy, input: [a, y]}\noutputs: {loss: loss}\n";
    const Graph graph =
        read_graph(yaml::parse(file, "graph.yaml"), {}, test::options_for(1, {{"ids", {seq}}, {"y", {seq}}}));
    return node_named(graph, "a").attributes;
  };
  const Attributes partial =
      attributes("{theta: \"${10 * 10}\", style: interleaved, partial: 0.5, scaling: {kind: linear, factor: 4}}", 3);
  CHECK(partial.real("rope_theta") == 100);
  CHECK(partial.flag("rope_interleaved"));
  CHECK(partial.integer("rope_dims") == 4);
  CHECK(partial.text("rope_scaling") == "linear;factor=4");
  const std::string longrope =
      "{theta: 100, scaling: {kind: longrope, short_factor: [1, 1, 2, 3], long_factor: [4, 5, 6, 7], "
      "original_max_position_embeddings: 4, attention_factor: 1.5}}";
  CHECK(attributes(longrope, 4).text("rope_scaling") == "longrope;attention_factor=1.5;factors=1,1,2,3");
  CHECK(attributes(longrope, 5).text("rope_scaling") == "longrope;attention_factor=1.5;factors=4,5,6,7");
}

TEST_CASE("the perceptron's hidden layers are repeated layers - 1 times") {
  const BuildOptions options = test::options_for(8, {{"features", {}}, {"targets", {}}});
  for (int layers : {1, 2, 4}) {
    const Graph graph = model("mlp", {{"layers", layers}, {"hidden", 32}}, options);
    CHECK(graph.num_parameters() == 64 * 32 + 32 + (layers - 1) * (32 * 32 + 32) + 32 * 10 + 10);
  }
}

TEST_CASE("the convolutional network's shapes are PyTorch's") {
  const Graph graph = model("convnet", {}, test::options_for(8, {{"images", {1, 28, 28}}, {"targets", {}}}));
  CHECK(value_named(graph, "conv1")->shape() == Shape{8, 16, 28, 28});
  CHECK(value_named(graph, "pool2")->shape() == Shape{8, 32, 7, 7});
  CHECK(value_named(graph, "pool2.index")->dtype() == DType::i32);
  CHECK(value_named(graph, "flat")->shape() == Shape{8, 1568});
  CHECK(value_named(graph, "flat")->alias_of == node_named(graph, "pool2").outputs[0]);
  CHECK(graph.num_parameters() == 16 * 9 + 16 + 32 * 16 * 9 + 32 + 1568 * 128 + 128 + 1280 + 10);
}

TEST_CASE("fields in f32 are cast once under bf16, the target of a regression not at all") {
  const std::string nodes =
      "  - {name: a, op: linear, input: x, out: 6}\n  - {name: b, op: linear, input: x, out: 6}\n  - {name: c, op: "
      "add, input: [a, b]}\n"
      "  - {name: loss, op: mse, input: [c, y]}\n";
  const Graph graph = inline_graph(nodes, xy_options(DType::bf16));
  CHECK(count_of(graph, Op::cast) == 1);
  CHECK(graph.value(node_named(graph, "loss").inputs[1]).dtype() == DType::f32);
  CHECK(value_named(graph, "a.weight")->dtype() == DType::bf16);
  CHECK(graph.loss.count_op == Op::mse_count);
  CHECK(graph.loss.scores == kNone);
  CHECK(count_of(inline_graph(nodes, xy_options()), Op::cast) == 0);
}

TEST_CASE("dropout is there in training with p > 0 alone, keyed by seed and name") {
  std::map<std::string, double> with = test::kTinyGpt;
  with["dropout"] = 0.1;
  BuildOptions options = test::text_options(2, 4);
  const Graph train = model("gpt2", with, options);
  CHECK(count_of(train, Op::dropout) == 5);
  REQUIRE(train.step != kNone);
  const Node& dropout = node_named(train, "h.1.mlp.dropout");
  CHECK(dropout.inputs[1] == train.step);
  CHECK(dropout.attributes.real("p") == 0.1);
  CHECK(dropout.attributes.integer("key") == static_cast<std::int64_t>(random_key(options.seed, "h.1.mlp.dropout")));
  options.mode = Mode::evaluate;
  const Graph evaluate = model("gpt2", with, options);
  CHECK(count_of(evaluate, Op::dropout) == 0);
  CHECK(evaluate.step == kNone);
  CHECK(count_of(model("gpt2", test::kTinyGpt, test::text_options(2, 4)), Op::dropout) == 0);
}

TEST_CASE("sampling ends at the logits and reads no targets") {
  BuildOptions options = test::options_for(1, {{"tokens", {4}}});
  options.mode = Mode::sample;
  const Graph graph = model("gpt2", test::kTinyGpt, options);
  CHECK(graph.loss.sum == kNone);
  REQUIRE(graph.logits != kNone);
  CHECK(graph.nodes.back().outputs[0] == graph.logits);
  REQUIRE(graph.inputs.size() == 1);
  CHECK(graph.value(graph.inputs[0]).name == "tokens");
  CHECK(graph.num_parameters() == model("gpt2", test::kTinyGpt, test::text_options(1, 4)).num_parameters());
}

TEST_CASE("the loss names its targets, how they are counted, and the scores") {
  const Graph graph = model("gpt2", test::kTinyGpt, test::text_options(2, 4));
  CHECK(graph.value(graph.loss.targets).name == "targets");
  CHECK(graph.value(graph.loss.sum).desc() == TensorDesc{DType::f64, {1}});
  CHECK(graph.loss.count_op == Op::cross_entropy_count);
  CHECK(graph.loss.count_attributes == Attributes{{"ignore_index", std::int64_t{-100}}});
  CHECK(graph.loss.scores == graph.logits);
}

TEST_CASE("names are looked up in the innermost block first, and groups nest") {
  const std::string nodes =
      "  - {name: fc, op: linear, input: x, out: 6}\n"
      "  - name: outer\n"
      "    nodes:\n"
      "      - {name: fc, op: linear, out: 6}\n"
      "      - repeat: 2\n"
      "        name: \"inner.{index}\"\n"
      "        nodes:\n"
      "          - {name: act, op: relu, input: fc}\n"
      "          - {name: sum, op: add, input: [block.input, act]}\n"
      "      - {name: last, op: add, input: [inner.0, inner.1]}\n"
      "  - {name: both, op: add, input: [outer, fc]}\n"
      "  - {name: loss, op: mse, input: [both, y]}\n";
  const Graph graph = inline_graph(nodes, xy_options());
  const auto input_name = [&](const std::string& node, std::size_t i) {
    return graph.value(node_named(graph, node).inputs[i]).name;
  };
  CHECK(input_name("outer.fc", 0) == "fc");
  CHECK(input_name("outer.inner.0.act", 0) == "outer.fc");
  CHECK(input_name("outer.inner.0.sum", 0) == "outer.fc");
  CHECK(input_name("outer.inner.1.sum", 0) == "outer.inner.0.sum");
  CHECK(input_name("outer.last", 1) == "outer.inner.1.sum");
  CHECK(input_name("both", 0) == "outer.last");
  CHECK(input_name("both", 1) == "fc");
  REQUIRE(graph.blocks.size() == 2);  // a group that neither repeats nor has a kind only prefixes names
  CHECK(graph.blocks[1].name == "outer.inner.1");
  CHECK(graph.blocks[1].kind.empty());
  CHECK(node_named(graph, "outer.last").block == kNone);
}

TEST_CASE("the pieces of a split are values with names of their own, and concat joins them in another order") {
  const std::string nodes =
      "  - repeat: 2\n"
      "    name: \"h.{index}\"\n"
      "    nodes:\n"
      "      - {name: s, op: split, input: block.input, into: {a: 2, b: 3, c: 1}}\n"
      "      - {name: j, op: concat, input: [s.c, s.b, s.a]}\n"
      "  - {name: loss, op: mse, input: [h.1, y]}\n";
  const std::string input = "  - {name: start, op: linear, input: x, out: 6}\n";
  const Graph graph = inline_graph(input + nodes, xy_options(DType::bf16));
  const Node& split = node_named(graph, "h.1.s");
  REQUIRE(split.outputs.size() == 3);
  CHECK(graph.value(split.inputs[0]).name == "h.0.j");
  CHECK(graph.value(split.outputs[0]).name == "h.1.s.a");
  CHECK(graph.value(split.outputs[1]).desc() == TensorDesc{DType::bf16, {4, 3}});
  CHECK(split.attributes == Attributes{});
  CHECK(node_named(graph, "h.1.j").inputs ==
        std::vector<ValueId>{split.outputs[2], split.outputs[1], split.outputs[0]});
  CHECK(value_named(graph, "h.1.j")->shape() == Shape{4, 6});
  const Graph rows = inline_graph(
      "  - {name: s, op: split, input: x, dim: 0, into: {a: 3, b: 1}}\n"
      "  - {name: j, op: concat, input: [s.b, s.a], dim: -2}\n"
      "  - {name: fc, op: linear, out: 6}\n  - {name: loss, op: mse, input: [fc, y]}\n",
      xy_options());
  CHECK(node_named(rows, "s").attributes == Attributes{{"dim", std::int64_t{-2}}});
  CHECK(value_named(rows, "j")->shape() == Shape{4, 6});
}

TEST_CASE("a class token goes before the places of every sample, and one place is cut out again") {
  const std::string nodes =
      "  - {name: patches, op: reshape, input: x, shape: [batch, 3, 2]}\n"
      "  - {name: turned, op: transpose, dims: [0, 2, 1]}\n"
      "  - {name: cls_token, op: parameter, shape: [1, 1, 3], init: {constant: 0.25}}\n"
      "  - {name: row, op: reshape, shape: [1, 3]}\n"
      "  - {name: cls, op: expand, input: [row, turned]}\n"
      "  - {name: all, op: concat, dim: 1, input: [cls, turned]}\n"
      "  - {name: first, op: slice, dim: 1, start: 0, size: 1}\n"
      "  - {name: last, op: slice, input: all, dim: 1, start: -1, size: 1}\n"
      "  - {name: average, op: mean, input: all, dim: 1}\n"
      "  - {name: both, op: concat, input: [first, last], dim: 1}\n"
      "  - {name: flat, op: flatten}\n"
      "  - {name: a, op: linear, out: 6}\n"
      "  - {name: b, op: linear, input: average, out: 6}\n"
      "  - {name: sum, op: add, input: [a, b]}\n"
      "  - {name: loss, op: mse, input: [sum, y]}\n";
  const Graph graph = inline_graph(nodes, xy_options());
  CHECK(value_named(graph, "turned")->shape() == Shape{4, 2, 3});
  CHECK(value_named(graph, "cls")->shape() == Shape{4, 1, 3});
  CHECK(value_named(graph, "all")->shape() == Shape{4, 3, 3});
  CHECK(node_named(graph, "last").attributes == Attributes{{"dim", std::int64_t{-2}}, {"start", std::int64_t{2}}});
  CHECK(value_named(graph, "average")->shape() == Shape{4, 3});
  CHECK(graph.value(graph.parameters[0].value).name == "cls_token");
  CHECK(value_named(graph, "cls_token")->kind == ValueKind::parameter);
  CHECK(graph.parameters[0].init.constant == 0.25);
  CHECK(graph.parameters[0].init.stddev == 0);
}

TEST_CASE("an input may be left out, be there under a condition, or have one of several shapes") {
  const std::string file =
      "params: {head: words, extra: false}\n"
      "inputs:\n"
      "  tokens: {dtype: i32, shape: [batch, seq]}\n"
      "  kinds: {dtype: i32, shape: [batch, seq], optional: true}\n"
      "  more: {if: \"${extra}\", dtype: i32, shape: [batch, seq]}\n"
      "  targets:\n"
      "    - {if: \"${head == 'words'}\", dtype: i32, shape: [batch, seq]}\n"
      "    - {dtype: i32, shape: [batch]}\n"
      "nodes:\n"
      "  - {name: wte, op: embedding, input: tokens, rows: 11, dim: 8}\n"
      "  - {name: wke, if: \"${inputs.kinds}\", op: embedding, input: kinds, rows: 3, dim: 8}\n"
      "  - {name: typed, if: \"${inputs.kinds}\", op: add, input: [wte, wke]}\n"
      "  - {name: wme, if: \"${inputs.more}\", op: embedding, input: more, rows: 3, dim: 8}\n"
      "  - {name: sum, if: \"${inputs.more}\", op: add, input: [typed, wme]}\n"
      "  - {name: average, if: \"${head != 'words'}\", op: mean, input: sum, dim: 1}\n"
      "  - {name: logits, op: linear, input: average, out: 11}\n"
      "  - {name: loss, op: cross_entropy, input: [logits, targets]}\n"
      "outputs: {loss: loss, logits: \"${if head == 'words' then 'logits' else 'logits'}\"}\n";
  const auto read = [&](std::map<std::string, Shape> fields, const Variables& with) {
    return read_graph(yaml::parse(file, "graph"), with, test::options_for(2, std::move(fields)));
  };
  const Graph plain = read({{"tokens", {5}}, {"targets", {5}}}, {});
  CHECK(plain.inputs.size() == 2);
  CHECK(plain.parameters.size() == 3);
  CHECK(value_named(plain, "logits")->shape() == Shape{2, 5, 11});
  const Variables classes{{"head", ParamValue(std::string("classes"))}, {"extra", ParamValue(1.0)}};
  const Graph all = read({{"tokens", {5}}, {"kinds", {5}}, {"more", {5}}, {"targets", {}}}, classes);
  CHECK(all.inputs.size() == 4);
  CHECK(all.parameters.size() == 5);
  CHECK(value_named(all, "logits")->shape() == Shape{2, 11});
  CHECK(value_named(all, "targets")->shape() == Shape{2});
  // Fields that nobody lists are those that the graph needs.
  BuildOptions options = test::options_for(2, {});
  options.any_fields = true;
  options.seq = 7;
  const Graph needed = read_graph(yaml::parse(file, "graph"), {}, options);
  CHECK(needed.inputs.size() == 2);
  CHECK(value_named(needed, "tokens")->shape() == Shape{2, 7});
  // What the data gives beyond that is a mistake, as is a field that is needed.
  CHECK_THROWS_AS(read({{"tokens", {5}}, {"more", {5}}, {"targets", {5}}}, {}), JobError);
  CHECK_THROWS_AS(read({{"kinds", {5}}, {"targets", {5}}}, {}), JobError);
}

TEST_CASE("a scale's factor may be rounded to the compute dtype first") {
  const std::string nodes =
      "  - {name: s, op: scale, input: x, factor: \"${sqrt(1536)}\", rounded: true}\n"
      "  - {name: fc, op: linear, out: 6}\n  - {name: loss, op: mse, input: [fc, y]}\n";
  // √1536 = 39.1918…; neighbours in bf16 are 39 and 39.25.
  CHECK(real(node_named(inline_graph(nodes, xy_options(DType::bf16)), "s"), "factor") == 39.25);
  CHECK(real(node_named(inline_graph(nodes, xy_options()), "s"), "factor") ==
        static_cast<double>(static_cast<float>(std::sqrt(1536.0))));
}

TEST_CASE("a convolution over a sequence has PyTorch's shapes") {
  const std::string nodes =
      "  - {name: x3, op: reshape, input: x, shape: [batch, 2, 3]}\n"
      "  - {name: conv1, op: conv1d, out: 4, kernel: 3, padding: 1}\n"
      "  - {name: conv2, op: conv1d, out: 6, kernel: 3, stride: 2, padding: 1, bias: false}\n"
      "  - {name: average, op: mean}\n  - {name: loss, op: mse, input: [average, y]}\n";
  const Graph graph = inline_graph(nodes, xy_options());
  CHECK(parameter_shapes(graph) == std::map<std::string, std::string>{{"conv1.weight", "[4, 2, 3]"},
                                                                      {"conv1.bias", "[4]"},
                                                                      {"conv2.weight", "[6, 4, 3]"}});
  CHECK(value_named(graph, "conv1")->shape() == Shape{4, 4, 3});
  CHECK(value_named(graph, "conv2")->shape() == Shape{4, 6, 2});
}

TEST_CASE("init and reshape take what the file says") {
  const std::string nodes =
      "  - {name: a, op: linear, input: x, out: 6, init: {constant: 0.5}}\n  - {name: r, op: reshape, shape: [batch, "
      "2, -1]}\n"
      "  - {name: n, op: layer_norm, bias: false, init: zeros}\n  - {name: f, op: flatten}\n  - {name: loss, op: mse, "
      "input: [f, y]}\n";
  const Graph graph = inline_graph(nodes, xy_options());
  CHECK(value_named(graph, "r")->shape() == Shape{4, 2, 3});
  CHECK(value_named(graph, "f")->shape() == Shape{4, 6});
  CHECK(graph.parameters[0].init.constant == 0.5);
  CHECK(graph.parameters[2].init.constant == 0);
  CHECK(node_named(graph, "n").inputs.size() == 2);
}

/// Names of the nodes, with their ops.
std::string nodes_of(const Graph& graph) {
  std::string out;
  for (const Node& node : graph.nodes) out += node.name + ":" + std::string(name_of(node.op)) + " ";
  return out;
}

Graph with_params(const std::string& params, const std::string& nodes, const Variables& with = {}) {
  return read_graph(yaml::parse("params: " + params +
                                    "\ninputs:\n  x: {dtype: f32, shape: [batch, 6]}\n  y: {dtype: f32, shape: [batch, "
                                    "6]}\nnodes:\n" +
                                    nodes + "outputs: {loss: loss}\n",
                                "graph.yaml"),
                    with, xy_options());
}

TEST_CASE("a node that is left out stands for its first input, unless another of its name is there") {
  const std::string nodes =
      "  - {name: a, op: linear, input: x, out: 6}\n"
      "  - {name: normed, op: rms_norm, if: \"${norm}\"}\n"
      "  - {name: act, op: gelu, approximate: \"${kind}\", input: normed}\n"
      "  - {name: last, op: silu, if: \"${act == 'relu'}\"}\n"
      "  - {name: last, op: tanh, if: \"${act != 'relu'}\"}\n"
      "  - {name: block, if: \"${norm}\", nodes: [{name: b, op: relu}, {name: c, op: tanh}]}\n"
      "  - {name: sum, op: add, input: [block, x]}\n"
      "  - {name: loss, op: mse, input: [sum, y]}\n";
  CHECK(nodes_of(with_params("{norm: true, act: gelu, kind: tanh}", nodes)) ==
        "a:linear normed:rms_norm act:gelu last:tanh block.b:relu block.c:tanh sum:add loss:mse ");
  const Variables other{{"norm", ParamValue(0.0)}, {"act", ParamValue(std::string("relu"))}};
  const Graph graph = with_params("{norm: true, act: gelu, kind: tanh}", nodes, other);
  CHECK(nodes_of(graph) == "a:linear act:gelu last:silu sum:add loss:mse ");
  CHECK(node_named(graph, "act").inputs[0] == value_named(graph, "a") - graph.values.data());
  CHECK(node_named(graph, "sum").inputs[0] == value_named(graph, "last") - graph.values.data());
}

TEST_CASE("values differ by layer, and an attribute that is null counts as not given") {
  const std::string nodes =
      "  - {name: a, op: linear, input: x, out: 6}\n"
      "  - repeat: 3\n"
      "    name: \"h.{index}\"\n"
      "    nodes:\n"
      "      - {name: up, op: linear, out: \"${sizes[index]}\", bias: \"${bias[index]}\"}\n"
      "      - {name: down, op: linear, out: 6, bias: \"${bias[index]}\"}\n"
      "      - {name: norm, op: rms_norm, if: \"${index > 0}\"}\n"
      "  - {name: loss, op: mse, input: [h.2, y]}\n";
  const Graph graph = with_params("{sizes: [3, 4, 5], bias: [false, null, true]}", nodes);
  CHECK(value_named(graph, "h.0.up")->shape() == Shape{4, 3});
  CHECK(value_named(graph, "h.2.up")->shape() == Shape{4, 5});
  CHECK(node_named(graph, "h.0.up").inputs.size() == 2);
  CHECK(node_named(graph, "h.1.up").inputs.size() == 3);  // by default there is one
  CHECK(value_named(graph, "h.0.norm") == nullptr);
  CHECK(value_named(graph, "h.1.norm") != nullptr);
  CHECK(value_named(with_params("{sizes: 7, bias: null}", nodes), "h.1.up")->shape() == Shape{4, 7});
}

TEST_CASE("time grows with the number of nodes, not with its square") {
  const yaml::Node file = yaml::read_file(std::string(TRAINER_SOURCE_DIR) + "/configs/models/gpt2.yaml");
  const auto best_of_five = [&](double layers) {
    auto best = std::numeric_limits<std::clock_t>::max();
    for (int i = 0; i < 5; ++i) {
      const std::clock_t start = std::clock();  // the processor's time: the machine may have other work
      Graph graph = read_graph(file, test::numbers({{"layers", layers}}), test::text_options(4, 64));
      differentiate(graph, DType::f32);
      recompute(graph, {RecomputePolicy::Mode::full, 1});
      best = std::min(best, std::clock() - start);
    }
    return static_cast<double>(best);
  };
  CHECK(best_of_five(16 * 12) < 64 * best_of_five(12));  // 16 where it is linear, 256 where it is quadratic
}

}  // namespace
}  // namespace trainer::read_graph_test
