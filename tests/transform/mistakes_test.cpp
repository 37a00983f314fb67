// Every mistake of a graph file is told at its line and column, with what is allowed or meant; several at once.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/core/error.h"
#include "tests/transform/files.h"

namespace trainer::mistakes_test {
namespace {

using Mode = BuildOptions::Mode;

/// `@` in `file` marks where the mistake must be told, and is taken out; `text` is a part of the whole message.
struct Case {
  const char* what;
  std::string file;
  std::string text;
};

const std::string kHead =
    "inputs:\n"
    "  ids: {dtype: i32, shape: [batch, seq]}\n"
    "  targets: {dtype: i32, shape: [batch, seq]}\n"
    "params: {dim: 8, heads: 2}\n"
    "nodes:\n"
    "  - {name: wte, op: embedding, input: ids, rows: 11, dim: \"${dim}\"}\n";
const std::string kTail =
    "  - {name: head, op: linear, out: 11}\n"
    "  - {name: loss, op: cross_entropy, input: [head, targets]}\n"
    "outputs: {loss: loss, logits: head}\n";

std::string with(const std::string& nodes) { return kHead + nodes + kTail; }

/// Attention of the sequence to twice as many keys, of two heads of 2 elements. `mark` stands before the inputs.
std::string cross(const std::string& attributes, const std::string& mark = "") {
  return with(
      "  - {name: k, op: reshape, shape: [batch, 10, 4]}\n  - {name: q, op: linear, input: wte, out: 4}\n"
      "  - {name: a, op: attention, input: " +
      mark + "[q, k, k], heads: 2, " + attributes + "}\n");
}

/// Attention of heads of 4 elements with such a rope. `mark` stands before the mapping.
std::string rope(const std::string& keys, const std::string& mark = "") {
  return with("  - {name: q, op: linear, out: 24}\n  - {name: a, op: attention, heads: 2, rope: " + mark + "{" + keys +
              "}}\n");
}

std::vector<Case> cases() {
  return {
      {"an unknown key of the file", "@node: []\n" + with(""), "did you mean \"nodes\""},
      {"an unknown op", with("  - {name: a, op: @linaer, out: 3}\n"), "did you mean \"linear\""},
      {"an op of the step", with("  - {name: a, op: @adamw}\n"), "unknown op"},
      {"a gradient op", with("  - {name: a, op: @gelu_grad}\n"), "unknown op"},
      {"an unknown attribute", with("  - {name: a, op: linear, @ouput: 3}\n"), "unknown attribute of linear"},
      {"an attribute of another op", with("  - {name: a, op: rms_norm, @bias: true}\n"),
       "a.bias: unknown attribute of rms_norm"},
      {"a missing attribute", with("  - @{name: a, op: linear}\n"), "linear needs `out`"},
      {"a missing op", with("  - @{name: a, out: 3}\n"), "needs an `op`"},
      {"a missing name", with("  - @{op: gelu}\n"), "needs a `name`"},
      {"a name with spaces", with("  - {name: @\"a b\", op: gelu}\n"), "letters, digits"},
      {"a choice that is none", with("  - {name: a, op: gelu, approximate: @erf}\n"), "one of tanh, none"},
      {"a choice misspelt", with("  - {name: a, op: linear, out: 8, parallel: @colum}\n"), "did you mean \"column\""},
      {"a number below its range", with("  - {name: a, op: linear, out: @0}\n"), "an integer, 1 to 2147483647"},
      {"a share of one", with("  - {name: a, op: dropout, p: @1}\n"), "below 1"},
      {"a fraction for an integer", with("  - {name: a, op: linear, out: @2.5}\n"), "whole number"},
      {"text for a number", with("  - {name: a, op: linear, out: @many}\n"), "a number or"},
      {"a number for a flag", with("  - {name: a, op: linear, out: 8, bias: @3}\n"), "true or false"},
      {"an unknown variable", with("  - {name: a, op: linear, out: \"${@dimm}\"}\n"), "did you mean \"dim\""},
      {"a broken expression", with("  - {name: a, op: linear, out: \"${dim +@}\"}\n"), "${dim +}"},
      {"an unknown input", with("  - {name: a, op: gelu, input: @wtf}\n"), "did you mean \"wte\""},
      {"an unknown name in a list", with("  - {name: a, op: add, input: [wte, @wto]}\n"), "did you mean \"wte\""},
      {"an input too few", with("  - @{name: a, op: add}\n"), "add takes 2 inputs, 1 given"},
      {"an input too many", with("  - {name: a, op: gelu, input: @[wte, wte]}\n"), "gelu takes 1 input, 2 given"},
      {"a forward reference", with("  - {name: a, op: add, input: [wte, @b]}\n  - {name: b, op: gelu}\n"),
       "\"b\" stands later, in line 8"},
      {"a node that takes itself", with("  - {name: a, op: add, input: [wte, @a]}\n"), "no cycle"},
      {"a cycle of two", with("  - {name: a, op: gelu, input: @b}\n  - {name: b, op: gelu, input: a}\n"), "no cycle"},
      {"a duplicate name", with("  - {name: @wte, op: gelu}\n"), "taken already, in line 6"},
      {"a name of a field", with("  - {name: @ids, op: gelu}\n"), "taken already, in line 2"},
      {"a repetition without index", with("  - repeat: 2\n    name: @h\n    nodes:\n      - {name: a, op: gelu}\n"),
       "{index}"},
      {"a node nobody reads", with("  - @{name: a, op: gelu}\n  - {name: b, op: gelu, input: wte}\n"),
       "nothing reads this"},
      {"a repetition below zero", with("  - repeat: @-1\n    name: \"h.{index}\"\n    nodes: [{name: a, op: gelu}]\n"),
       "0 to"},
      {"a repetition that never ends",
       with("  - repeat: @1e15\n    name: \"h.{index}\"\n    nodes: [{name: a, op: gelu}]\n"), "0 to"},
      {"a group without nodes", with("  - @{repeat: 2, name: \"h.{index}\"}\n"), "needs `nodes`"},
      {"a group without a name", with("  - @{repeat: 2, nodes: [{name: a, op: gelu}]}\n"), "needs a `name`"},
      {"an unknown key of a group",
       with("  - {repeat: 2, name: \"h.{index}\", @blok: B, nodes: [{name: a, op: gelu}]}\n"),
       "did you mean \"block\""},
      {"block.input outside a block", with("  - {name: a, op: gelu, input: @block.input}\n"), "only inside a block"},
      {"heads that do not divide",
       with("  - {name: qkv, op: linear, out: 24}\n  - {name: a, op: attention, heads: @5}\n"), "heads do not divide"},
      {"kv heads that do not divide",
       with("  - {name: qkv, op: linear, out: 24}\n  - {name: a, op: attention, heads: 4, kv_heads: @3}\n"),
       "3 key/value heads do not divide 4"},
      {"two inputs of attention", with("  - {name: a, op: attention, heads: 2, input: @[wte, wte]}\n"), "[q, k, v]"},
      {"heads of odd size under rope",
       with("  - {name: q, op: linear, out: 18}\n  - {name: a, op: attention, heads: 2, rope: @{theta: 1e4}}\n"),
       "even size"},
      {"a wrong rope", with("  - {name: a, op: attention, heads: 2, rope: @yes}\n"), "none, or {theta: 10000}"},
      {"a rope without its base", with("  - {name: a, op: attention, heads: 2, rope: @{style: halves}}\n"),
       "none, or {theta: 10000}"},
      {"an offset of two", with("  - {name: n, op: rms_norm, offset: @2}\n"), "at least 0 and below 2"},
      {"a cast of neither order", with("  - {name: n, op: rms_norm, cast: @never}\n"), "before"},
      {"causal attention to another sequence", cross("causal: true", "@"), "is needed"},
      {"values that are no heads",
       with("  - {name: v, op: linear, out: 7}\n  - {name: a, op: attention, heads: 2, input: @[wte, wte, v]}\n"),
       "heads of another size"},
      {"rotary positions over two sequences", cross("causal: false, rope: @{theta: 100}"), "the queries' own sequence"},
      {"a window that looks ahead",
       with("  - {name: q, op: linear, out: 24}\n  - {name: a, op: attention, heads: 2, causal: false, window: @4}\n"),
       "a window needs `causal: true`"},
      {"lengths that are none",
       with("  - {name: q, op: linear, out: 24}\n  - {name: a, op: attention, heads: 2, lengths: @ids}\n"),
       "i32 [2] is needed"},
      {"lengths by the name of nothing",
       with("  - {name: q, op: linear, out: 24}\n  - {name: a, op: attention, heads: 2, lengths: @idz}\n"),
       "did you mean \"ids\""},
      {"documents that are floats",
       with("  - {name: q, op: linear, out: 24}\n  - {name: a, op: attention, heads: 2, documents: @wte}\n"),
       "where i32 [2, 5] is needed"},
      {"documents of positions that are floats",
       with("  - {name: wpe, op: positions, input: ids, rows: 9, dim: 8, documents: @wte}\n"),
       "where i32 [2, 5] is needed"},
      {"documents by the name of nothing",
       with("  - {name: wpe, op: positions, input: ids, rows: 9, dim: 8, documents: @idz}\n"), "did you mean \"ids\""},
      {"documents and keys of another sequence", cross("causal: false, documents: @ids"),
       "documents need keys of the queries' own sequence"},
      {"too few rows for the places in documents",
       with("  - {name: wpe, op: positions, input: ids, rows: @4, dim: 8, documents: ids}\n"),
       "the sequence has 5 positions, the table 4 rows"},
      {"a scale of nothing", with("  - {name: a, op: attention, heads: 2, scale: @0}\n"), "above 0"},
      {"an unknown key of rope", rope("theta: 1e4, @scalng: 2"), "did you mean \"scaling\""},
      {"an unknown style", rope("theta: 1e4, style: @pairs"), "halves"},
      {"more than all of a head", rope("theta: 1e4, partial: @1.5"), "at most 1"},
      {"an odd part of a head", rope("theta: 1e4, partial: 0.75", "@"), "even part of a head, not 3 of 4"},
      {"an unknown scaling", rope("theta: 1e4, scaling: {kind: @lama3}"), "did you mean \"llama3\""},
      {"a scaling without its kind", rope("theta: 1e4, scaling: @{factor: 2}"), "{kind: llama3"},
      {"a scaling that lacks a key", rope("theta: 1e4, scaling: @{kind: linear}"), "needs `factor`"},
      {"a key of another scaling", rope("theta: 1e4, scaling: {kind: linear, factor: 2, @beta_fast: 3}"),
       "unknown key of the scaling linear"},
      {"a factor of nothing", rope("theta: 1e4, scaling: {kind: linear, factor: @0}"), "above 0"},
      {"a factor for each pair",
       rope("theta: 1e4, scaling: {kind: longrope, original_max_position_embeddings: 64, factor: 2, "
            "short_factor: [1, 1], long_factor: [1, 1, 1]}",
            "@"),
       "long_factor has 3 numbers where 2 are needed"},
      {"shapes that do not add", with("  - {name: a, op: linear, out: 4}\n  - {name: b, op: add, input: @[wte, a]}\n"),
       "do not fit"},
      {"a small first operand",
       with("  - {name: p, op: positions, input: ids, rows: 9, dim: 8}\n  - {name: b, op: add, input: @[p, wte]}\n"),
       "give the larger one first"},
      {"values for ids", with("  - {name: a, op: @embedding, rows: 3, dim: 8}\n"), "ids must be i32"},
      {"ids for values", with("  - {name: a, op: gelu, input: @ids}\n"), "must hold values"},
      {"too few positions",
       with("  - {name: p, op: positions, input: ids, rows: @3, dim: 8}\n  - {name: b, op: add, input: [wte, p]}\n"),
       "5 positions, the table 3 rows"},
      {"an image that is none", with("  - {name: a, op: @conv2d, out: 3, kernel: 3}\n"),
       "[n, channels, height, width]"},
      {"a sequence that is none",
       with("  - {name: i, op: reshape, shape: [batch, 5, 4, 2]}\n  - {name: a, op: @conv1d, out: 3, kernel: 3}\n"),
       "[n, channels, length]"},
      {"a reshape that does not fit", with("  - {name: a, op: reshape, shape: @[batch, 7]}\n"),
       "does not have the elements"},
      {"pieces that are not the whole", with("  - {name: a, op: split, into: @{b: 3, c: 4}}\n"), "make up 7"},
      {"no pieces", with("  - {name: a, op: split, into: @{}}\n"), "{gate: 128, up: 128}"},
      {"pieces without names", with("  - {name: a, op: split, into: @[4, 4]}\n"), "{gate: 128, up: 128}"},
      {"a piece of nothing", with("  - {name: a, op: split, into: {b: 8, c: @0}}\n"), "a size, 1 to"},
      {"a piece whose name counts", with("  - {name: a, op: split, into: {@\"{batch}\": 8}}\n"), "without {index}"},
      {"a split of a dim that is not there", with("  - {name: a, op: split, dim: @3, into: {b: 4, c: 4}}\n"),
       "has 3 dims"},
      {"a split read by its own name",
       with("  - {name: a, op: split, into: {b: 4, c: 4}}\n  - {name: d, op: gelu, input: @a}\n"), "a.b, a.c"},
      {"a split read by who stands behind it",
       with("  - {name: a, op: split, into: {b: 4, c: 4}}\n  - @{name: d, op: gelu}\n"), "makes several values"},
      {"a piece that nobody reads",
       with("  - {name: a, op: split, into: {b: 4, @c: 4}}\n  - {name: d, op: gelu, input: a.b}\n"),
       "nothing reads this"},
      {"a piece that is misspelt",
       with("  - {name: a, op: split, into: {gate: 4, up: 4}}\n  - {name: d, op: mul, input: [a.gate, @a.upp]}\n"),
       "did you mean \"a.up\""},
      {"a loss of several values", kHead + "  - {name: s, op: split, into: {a: 4, b: 4}}\noutputs: {loss: @s}\n",
       "makes several values"},
      {"joined with itself alone", with("  - {name: a, op: concat, input: @[wte]}\n"), "takes 2 to 64 inputs"},
      {"joined with another shape",
       with("  - {name: a, op: linear, out: 5}\n  - {name: b, op: concat, dim: 1, input: @[wte, a]}\n"),
       "differ in another dim than 1"},
      {"a slice beyond the end", with("  - {name: a, op: slice, dim: 1, start: @3, size: 3}\n"), "no 3 places from 3"},
      {"a slice before the start", with("  - {name: a, op: slice, dim: 1, start: @-6, size: 1}\n"),
       "no 1 places from -6"},
      {"a slice larger than the whole", with("  - {name: a, op: slice, dim: 1, size: @6}\n"), "no 6 places"},
      {"dims of a transpose that are not all", with("  - {name: a, op: transpose, dims: @[0, 1]}\n"),
       "each stands here once"},
      {"a dim twice", with("  - {name: a, op: transpose, dims: @[0, 1, 1]}\n"), "each stands here once"},
      {"a mean over no dim", with("  - {name: a, op: mean, dim: @-4}\n"), "has 3 dims"},
      {"a parameter of unknown size", with("  - {name: a, op: parameter, shape: @[1, -1]}\n"), "at least 1"},
      {"a parameter that reads", with("  - {name: a, op: parameter, input: @wte, shape: [1, 8]}\n"), "takes 0 inputs"},
      {"one input of expand", with("  - {name: a, op: expand, input: @wte}\n"), "takes 2 inputs"},
      {"positions from further down than the table",
       with(
           "  - {name: p, op: positions, input: ids, rows: @6, dim: 8, offset: 2}\n  - {name: b, op: add, input: [wte, "
           "p]}\n"),
       "5 positions from row 2 on, the table 6 rows"},
      {"a weight tied to no node", with("  - {name: a, op: linear, out: 11, weight: @wtee}\n"), "did you mean \"wte\""},
      {"a weight tied to one without",
       with("  - {name: g, op: gelu}\n  - {name: a, op: linear, out: 11, weight: @g}\n"), "has no weight"},
      {"a tied weight of another shape", with("  - {name: a, op: linear, out: 12, weight: @wte, bias: false}\n"),
       "[12, 8] is needed"},
      {"init of a tied weight", with("  - {name: a, op: linear, out: 11, weight: wte, bias: false, init: @zeros}\n"),
       "give its `init` there"},
      {"init without parameters", with("  - {name: a, op: gelu, init: @zeros}\n"), "gelu has no parameters"},
      {"an unknown init", with("  - {name: a, op: linear, out: 8, init: @{cauchy: 1}}\n"),
       "{normal: stddev}, {uniform: bound}"},
      {"sinusoids that are no matrix",
       with("  - {name: a, op: parameter, shape: [8], init: @sinusoids}\n  - {name: b, op: add, input: [wte, a]}\n"),
       "a matrix with an even number of columns"},
      {"a negative bound", with("  - {name: a, op: linear, out: 8, init: {uniform: @-1}}\n"), "at least 0"},
      {"a cap of nothing", with("  - {name: a, op: softcap, cap: @0}\n"), "above 0"},
      {"a scale without its factor", with("  - @{name: a, op: scale}\n"), "needs `factor`"},
      {"a negative deviation", with("  - {name: a, op: linear, out: 8, init: {normal: @-1}}\n"), "at least 0"},
      {"dropout of what has no batch",
       with("  - {name: p, op: positions, input: ids, rows: 9, dim: 8}\n  - {name: d, op: @dropout, p: 0.5}\n  - "
            "{name: b, op: add, input: "
            "[wte, d]}\n"),
       "first dim is the batch"},
      {"a size beyond all memory", with("  - {name: a, op: linear, out: @3000000000}\n"), "1 to 2147483647"},
      {"a tensor beyond all memory",
       with("  - {name: a, op: linear, out: 2000000000}\n  - {name: b, op: @linear, out: 2000000000}\n"), "too large"},
      {"repetitions without bound",
       with("  - repeat: 99999\n    name: \"a.{index}\"\n    nodes:\n      - @{repeat: 99999, name: \"b.{index}\", "
            "nodes: []}\n"),
       "at most 100000 nodes"},
      {"a first node without input",
       "inputs: {ids: {dtype: i32, shape: [batch, seq]}, targets: {dtype: i32, shape: [batch, seq]}}\nnodes:\n  - "
       "@{name: a, op: "
       "gelu}\noutputs: {loss: a}\n",
       "the first node"},
      {"a group that is empty",
       "inputs: {ids: {dtype: i32, shape: [batch, seq]}, targets: {dtype: i32, shape: [batch, seq]}}\nnodes:\n  - "
       "{repeat: 0, name: "
       "\"h.{index}\", nodes: []}\n"
       "  - {name: g, nodes: []}\n  - {name: a, op: gelu, input: @g}\noutputs: {loss: a}\n",
       "no node or input"},
      {"no outputs", "@" + kHead + "  - {name: head, op: linear, out: 11}\n", "outputs: missing"},
      {"no loss", kHead + "  - {name: head, op: linear, out: 11}\noutputs: @{logits: head}\n", "training needs a loss"},
      {"a loss that is none",
       kHead + "  - {name: head, op: linear, out: 11}\n  - {name: l, op: cross_entropy, input: [head, "
               "targets]}\noutputs: {loss: @head}\n",
       "is no loss"},
      {"an auxiliary loss that is none",
       kHead + "  - {name: head, op: linear, out: 11}\n  - {name: l, op: cross_entropy, input: [head, "
               "targets]}\noutputs: {loss: l, auxiliary: {loss: @head, weight: 1}}\n",
       "outputs.auxiliary.loss: this node is no loss"},
      {"an auxiliary loss that is the loss",
       kHead + "  - {name: head, op: linear, out: 11}\n  - {name: l, op: cross_entropy, input: [head, "
               "targets]}\noutputs: {loss: l, auxiliary: {loss: @l, weight: 1}}\n",
       "this is `outputs.loss` already"},
      {"an auxiliary loss without its weight",
       kHead + "  - {name: head, op: linear, out: 11}\n  - {name: l, op: cross_entropy, input: [head, "
               "targets]}\n  - {name: m, op: cross_entropy, input: [head, targets]}\noutputs: {loss: l, auxiliary: "
               "@{loss: m}}\n",
       "outputs.auxiliary.weight: missing"},
      {"an auxiliary loss that counts for nothing",
       kHead + "  - {name: head, op: linear, out: 11}\n  - {name: l, op: cross_entropy, input: [head, "
               "targets]}\n  - {name: m, op: cross_entropy, input: [head, targets]}\noutputs: {loss: l, auxiliary: "
               "{loss: m, weight: @0}}\n",
       "a number above 0"},
      {"a first index of what does not repeat", with("  - {name: g, first: @1, nodes: [{name: a, op: gelu}]}\n"),
       "only a group with `repeat` counts"},
      {"an unknown output",
       kHead + "  - {name: head, op: linear, out: 11}\n  - {name: l, op: cross_entropy, input: [head, "
               "targets]}\noutputs: {loss: l, "
               "@logit: head}\n",
       "did you mean \"logits\""},
      {"an output that is no node",
       kHead + "  - {name: head, op: linear, out: 11}\n  - {name: l, op: cross_entropy, input: [head, "
               "targets]}\noutputs: {loss: @los}\n",
       "no node"},
      {"targets of another shape",
       kHead + "  - {name: h, op: linear, out: 11}\n  - {name: f, op: reshape, shape: [-1, 11]}\n  - {name: l, op: "
               "cross_entropy, input: "
               "@[f, targets]}\noutputs: {loss: l}\n",
       "need targets of shape"},
      {"targets that are computed",
       kHead + "  - {name: h, op: linear, out: 11}\n  - {name: f, op: reshape, shape: [-1, 11]}\n  - {name: t, op: "
               "reshape, input: "
               "targets, shape: [-1]}\n"
               "  - {name: l, op: cross_entropy, input: [f, t]}\noutputs: {loss: @l}\n",
       "a field of the data"},
      {"no inputs", "@nodes: []\noutputs: {}\n", "inputs: missing"},
      {"a field the data has not",
       "inputs: {@idz: {dtype: i32, shape: [batch, seq]}, targets: {dtype: i32, shape: [batch, seq]}}\nnodes: "
       "[]\noutputs: {}\n",
       "did you mean \"ids\""},
      {"a field the graph does not read", "inputs: @{ids: {dtype: i32, shape: [batch, seq]}}\nnodes: []\noutputs: {}\n",
       "the field \"targets\""},
      {"a shape that is not the data's",
       "inputs: {ids: {dtype: i32, shape: @[batch, 7]}, targets: {dtype: i32, shape: [batch, seq]}}\nnodes: "
       "[]\noutputs: {}\n",
       "the data gives [5]"},
      {"a shape without batch",
       "inputs: {ids: {dtype: i32, shape: @[seq]}, targets: {dtype: i32, shape: [batch, seq]}}\nnodes: []\noutputs: "
       "{}\n",
       "first dim must be batch"},
      {"an unknown dtype",
       "inputs: {ids: {dtype: @i64, shape: [batch, seq]}, targets: {dtype: i32, shape: [batch, seq]}}\nnodes: "
       "[]\noutputs: {}\n",
       "one of f32, i32"},
      {"a param with a name of graphs", "params: {@seq: 3}\nnodes: []\n", "meaning of its own"},
      {"nodes that are no list",
       "inputs: {ids: {dtype: i32, shape: [batch, seq]}, targets: {dtype: i32, shape: [batch, seq]}}\nnodes: @{a: "
       "1}\noutputs: {}\n",
       "a list of nodes"},
      {"a file that is no mapping", "@[1, 2]\n", "a mapping with"},
      {"an empty file", "@", "a mapping with"},
  };
}

BuildOptions ids_options() { return test::options_for(2, {{"ids", {5}}, {"targets", {5}}}); }

std::vector<Diagnostic> mistakes_of(const std::string& file, const std::map<std::string, double>& params = {},
                                    BuildOptions options = ids_options()) {
  try {
    read_graph(yaml::parse(file, "graph.yaml"), test::numbers(params), options);
  } catch (const JobError& error) {
    return error.diagnostics();
  }
  return {};
}

TEST_CASE("the graph that the mistakes are put into is right") { CHECK(mistakes_of(with("")).empty()); }

/// Takes the mark out of `file`; its place as "line:column".
std::string take_mark(std::string& file) {
  const std::size_t at = file.find('@');
  REQUIRE(at != std::string::npos);
  file.erase(at, 1);
  const std::size_t line_start = at == 0 ? std::string::npos : file.rfind('\n', at - 1);
  const auto line = 1 + std::count(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  return std::to_string(line) + ":" + std::to_string(line_start == std::string::npos ? at + 1 : at - line_start);
}

TEST_CASE("every mistake is told at its place, with what is meant or allowed") {
  std::vector<Case> cases_list = cases();
  for (Case& item : cases_list) {
    const std::string expected = take_mark(item.file);
    const std::string what = item.what;
    CAPTURE(what);
    CAPTURE(expected);
    CAPTURE(item.file);
    const std::vector<Diagnostic> found = mistakes_of(item.file);
    REQUIRE(!found.empty());
    bool told = false;
    std::string all;
    for (const Diagnostic& diagnostic : found) {
      all += diagnostic.str() + "\n";
      const std::string where = std::to_string(diagnostic.line) + ":" + std::to_string(diagnostic.column);
      told = told || (diagnostic.file == "graph.yaml" && where == expected &&
                      diagnostic.str().find(item.text) != std::string::npos);
    }
    CHECK_MESSAGE(told, all);
  }
}

TEST_CASE("a mistake draws no others after it: what reads the node is passed over") {
  const std::vector<Diagnostic> found =
      mistakes_of(with("  - {name: a, op: linear, out: -3}\n  - {name: b, op: add, input: [wte, a]}\n"));
  REQUIRE(found.size() == 1);
  CHECK(found[0].path == "a.out");
}

TEST_CASE("all mistakes of a file are told at once, in its order, and those of a repeated block once") {
  const std::vector<Diagnostic> found =
      mistakes_of(with("  - repeat: 12\n    name: \"h.{index}\"\n    nodes:\n      - {name: a, op: linear, oot: 8}\n   "
                       "   - {name: b, op: "
                       "gelu, approximate: no}\n  - {name: c, op: gleu}\n"));
  std::vector<int> lines;
  for (const Diagnostic& diagnostic : found) lines.push_back(diagnostic.line);
  CHECK(lines == std::vector<int>{10, 10, 11, 12});  // `oot` is unknown, and `out` missing
  CHECK(found[2].path == "h.0.b.approximate");
}

TEST_CASE("a param that the graph does not have is named with the nearest") {
  const std::vector<Diagnostic> found = mistakes_of(with(""), {{"dimm", 8}});
  REQUIRE(found.size() == 1);
  CHECK(found[0].path == "model.with.dimm");
  CHECK(found[0].suggestion == "dim");
}

TEST_CASE("sampling without logits is a mistake") {
  BuildOptions options = ids_options();
  options.mode = Mode::sample;
  const std::vector<Diagnostic> found = mistakes_of(kHead +
                                                        "  - {name: head, op: linear, out: 11}\n  - {name: l, op: "
                                                        "cross_entropy, input: [head, targets]}\noutputs: {loss: l}\n",
                                                    {}, options);
  REQUIRE(found.size() == 1);
  CHECK(found[0].message.find("sampling needs logits") != std::string::npos);
}

}  // namespace
}  // namespace trainer::mistakes_test
