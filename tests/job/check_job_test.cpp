// Jobs held to their graphs: mistakes of all stages in one report, each at the line of the job that makes it.
#include "engine/compile/check_job.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>

#include "tests/temporary.h"

namespace trainer {
namespace {

const std::string kConfigs = std::string(TRAINER_SOURCE_DIR) + "/configs";

struct Job {
  std::string with = "{layers: 2, heads: 4, dim: 64, vocab: 256, context: 128}";
  std::string graph = "models/gpt2.yaml";
  std::string data = "{format: text, train: text.txt, seq_len: 64}";
  std::string train = "{steps: 10, batch: {global: 16, micro: 4}}";
  std::string more{};
  std::vector<std::string> overrides{};

  std::string text() const {
    return "model:\n  graph: " + graph + "\n  with: " + with + "\ndata: " + data + "\ntrain: " + train +
           "\ncluster: {device: cpu}\n" + more;
  }
};

/// What is said of the job: errors, or the warnings of one that is right.
std::vector<Diagnostic> told(const Job& job, const std::map<std::string, std::string>& files = {}) {
  const tests::TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& text) { folder.write(name, text); };
  for (const auto& [name, text] : files) write(name, text);
  write("job.yaml", job.text());
  try {
    return load_checked_job(folder.path("job.yaml"), job.overrides, {kConfigs, true, 0}, kConfigs + "/hardware")
        .warnings;
  } catch (const JobError& error) {
    return error.diagnostics();
  }
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void check_place(const Diagnostic& one, const std::string& path, int line) {
  CAPTURE(one.str());
  CHECK(one.path == path);
  CHECK(one.line == line);
  CHECK(contains(one.file, "job.yaml"));
}

TEST_CASE("a job that is right has nothing said of it") { CHECK(told(Job{}).empty()); }

TEST_CASE("packed rows need a graph that keeps documents apart") {
  const std::string data = "{format: documents, train: rows.jsonl, seq_len: 64, packing: documents}";
  const std::string with = "{layers: 2, heads: 4, dim: 64, vocab: 300, context: 128}";
  CHECK(told({.with = with, .data = data}).empty());
  const std::string inputs =
      "name: own\ninputs:\n  tokens: {dtype: i32, shape: [batch, seq]}\n  targets: {dtype: i32, shape: [batch, seq]}\n";
  const std::string documents = "  documents: {dtype: i32, shape: [batch, seq]}\n";
  const auto nodes = [](const std::string& attention, const std::string& positions) {
    return "nodes:\n  - {name: wte, op: embedding, input: tokens, rows: 300, dim: 16}\n  - {name: wpe, op: positions, "
           "rows: "
           "64, dim: 16" +
           positions + "}\n  - {name: h, op: add, input: [wte, wpe]}\n  - {name: qkv, op: linear, out: 48}\n" +
           "  - {name: core, op: attention, heads: 2, causal: true" + attention +
           "}\n  - {name: head, op: linear, out: 300}\n  - {name: loss, op: cross_entropy, input: [head, "
           "targets]}\noutputs: {loss: loss, logits: head}\n";
  };
  const std::string by = ", documents: documents";
  const auto wrong = [&](const std::string& graph) {
    const std::vector<Diagnostic> found =
        told({.with = "{}", .graph = "own.yaml", .data = data}, {{"own.yaml", graph}});
    REQUIRE(found.size() == 1);
    check_place(found[0], "data.packing", 4);
    return found[0].message;
  };
  CHECK(told({.with = "{}", .graph = "own.yaml", .data = data}, {{"own.yaml", inputs + documents + nodes(by, by)}})
            .empty());
  CHECK(contains(wrong(inputs + nodes("", "")), "no input `documents`"));
  CHECK(contains(wrong(inputs + documents + nodes("", by)), "`core` of the graph works across the documents"));
  CHECK(contains(wrong(inputs + documents + nodes(by, "")), "`wpe` of the graph counts on from one document"));
}

TEST_CASE("heads that do not divide are told at the job's line, with heads that do and the place in the graph") {
  const std::vector<Diagnostic> found = told({.with = "{layers: 2, heads: 5, dim: 64, vocab: 256, context: 128}"});
  REQUIRE(found.size() == 1);
  check_place(found[0], "model.with.heads", 3);
  CHECK(found[0].column == 28);
  CHECK(found[0].value == "5");
  CHECK(found[0].allowed == "4 or 8");
  CHECK(contains(found[0].message, "dim is 64"));
  CHECK(contains(found[0].note, "models/gpt2.yaml:28:"));
}

TEST_CASE("a width that does not divide by the graph's own heads is told at the width") {
  const std::vector<Diagnostic> found = told({.with = "{layers: 2, dim: 100, vocab: 256, context: 128}"});
  REQUIRE(found.size() == 1);
  check_place(found[0], "model.with.dim", 3);
  CHECK(found[0].allowed == "96 or 108");
}

TEST_CASE("a param that is a word where the graph has a number is told at its key") {
  const std::vector<Diagnostic> found = told({.with = "{layers: twelve, heads: 4, dim: 64, vocab: 256}"});
  REQUIRE(found.size() == 1);
  check_place(found[0], "model.with.layers", 3);
  CHECK(found[0].message == "wrong kind of value");
  CHECK(found[0].allowed == "a number, as 12");
}

TEST_CASE("a param that the graph lacks is told at its key, with the name that other tools' word stands for") {
  const std::vector<Diagnostic> found = told({.with = "{n_layer: 2, heads: 4, dim: 64, vocab: 256, hedas: 3}"});
  REQUIRE(found.size() == 2);
  check_place(found[0], "model.with.n_layer", 3);
  CHECK(found[0].suggestion == "layers");
  check_place(found[1], "model.with.hedas", 3);
  CHECK(found[1].suggestion == "heads");
}

TEST_CASE("samples longer than the model's context are told in the job's words") {
  const std::vector<Diagnostic> given = told({.data = "{format: text, train: text.txt, seq_len: 512}"});
  REQUIRE(given.size() == 1);
  check_place(given[0], "model.with.context", 3);
  CHECK(contains(given[0].message, "data.seq_len is 512"));
  CHECK(given[0].allowed == "at least 512");
  const std::vector<Diagnostic> by_default = told(
      {.with = "{layers: 2, heads: 4, dim: 64, vocab: 256}", .data = "{format: text, train: text.txt, seq_len: 2048}"});
  REQUIRE(by_default.size() == 1);
  check_place(by_default[0], "data.seq_len", 4);
  CHECK(by_default[0].allowed == "at most 1024");
}

TEST_CASE("a vocabulary that bytes do not fit in is known without data") {
  const std::vector<Diagnostic> found = told({.with = "{layers: 2, heads: 4, dim: 64, vocab: 100, context: 128}"});
  REQUIRE(found.size() == 1);
  check_place(found[0], "model.with.vocab", 3);
  CHECK(contains(found[0].message, "`tokenizer: bytes` has 256 ids"));

  // Another width would not divide by the heads, which hides this mistake but does not mend it.
  const std::vector<Diagnostic> overridden =
      told({.overrides = {"model.with={layers: 2, heads: 2, dim: 32, vocab: 100, context: 64}"}});
  REQUIRE(overridden.size() == 1);
  CHECK(overridden[0].path == "model.with.vocab");
}

TEST_CASE("data of another format than the graph reads is told at the data") {
  const std::vector<Diagnostic> found = told({.data = "{format: table, train: table.csv}"});
  REQUIRE_FALSE(found.empty());
  for (const Diagnostic& one : found) check_place(one, "data.format", 4);
}

TEST_CASE("mistakes of job, batch and graph come in one report") {
  const std::vector<Diagnostic> found =
      told({.with = "{layer: 2, heads: 5, dim: 64, vocab: 100}",
            .train = "{steps: 10, batch: {global: 16, micro: 5}, optimizer: {name: adamW}}",
            .more = "gpus: 2\n"});
  const auto has = [&](const std::string& path) {
    return std::ranges::any_of(found, [&](const Diagnostic& one) { return one.path == path; });
  };
  CHECK(has("model.with.layer"));
  CHECK(has("model.with.heads"));
  CHECK(has("train.batch.micro"));
  CHECK(has("train.optimizer.name"));
  CHECK(has("gpus"));
  CHECK(found.size() == 5);
}

TEST_CASE("what follows from another mistake is left out") {
  // Which params there are is not known while one of them is wrong: a context by default is no mistake of the job.
  const std::vector<Diagnostic> found = told({.with = "{layers: 2, heads: 4, dim: 64, vocab: 256, context: many}",
                                              .data = "{format: text, train: text.txt, seq_len: 2048}"});
  REQUIRE(found.size() == 1);
  CHECK(found[0].path == "model.with.context");
}

const std::string kGraph =
    "params: {dim: 8}\n"
    "inputs: {tokens: {dtype: i32, shape: [batch, seq]}, targets: {dtype: i32, shape: [batch, seq]}}\n"
    "nodes:\n"
    "  - {name: e, op: embedding, input: tokens, rows: 256, dim: \"${dim}\"}\n"
    "  - {name: a, op: ACT}\n"
    "  - {name: qkv, op: linear, out: \"${3 * dim}\"}\n"
    "  - {name: att, op: attention, heads: 2, causal: CAUSAL}\n"
    "  - {name: logits, op: linear, out: 256, input: IN}\n"
    "  - {name: loss, op: cross_entropy, input: [logits, targets]}\n"
    "outputs: {LOSS: loss, logits: logits}\n";

std::string graph(std::string act, std::string causal = "true", std::string in = "att", std::string loss = "loss") {
  std::string text = kGraph;
  for (const auto& [from, to] : {std::pair{"ACT", act}, {"CAUSAL", causal}, {"IN", in}, {"LOSS", loss}})
    text.replace(text.find(from), std::string(from).size(), to);
  return text;
}

TEST_CASE("mistakes of a graph itself stay at its lines, those of all its parts at once") {
  const std::vector<Diagnostic> found =
      told({.with = "{dim: 16}", .graph = "mine.yaml"}, {{"mine.yaml", graph("swish", "true", "atf", "los")}});
  REQUIRE(found.size() == 4);
  CHECK(found[0].line == 5);
  CHECK(found[0].suggestion == "silu");
  CHECK(found[1].line == 8);
  CHECK(found[1].suggestion == "att");
  CHECK(found[2].line == 10);
  CHECK(found[3].line == 10);
  for (const Diagnostic& one : found) CHECK(contains(one.file, "mine.yaml"));
}

TEST_CASE("attention that sees the tokens it is to predict is warned of") {
  const std::vector<Diagnostic> found =
      told({.with = "{dim: 16}", .graph = "mine.yaml"}, {{"mine.yaml", graph("silu", "false")}});
  REQUIRE(found.size() == 1);
  CHECK(found[0].severity == Diagnostic::Severity::warning);
  CHECK(contains(found[0].str(), "mine.yaml:7:"));
  CHECK(contains(found[0].str(), ": warning: att.causal: "));
  CHECK(told({.with = "{dim: 16}", .graph = "mine.yaml"}, {{"mine.yaml", graph("silu")}}).empty());
}

}  // namespace
}  // namespace trainer
