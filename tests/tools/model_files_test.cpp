// What belongs to a model besides its weights: the ids of its text in the cache, and the files that make a checkpoint a
// model by itself.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>

#include "tests/temporary.h"
#include "tests/tools/process.h"

namespace trainer::model_files_test {

using trainer::tests::contains;
using trainer::tests::contents_of;
using trainer::tests::Outcome;
using trainer::tests::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

constexpr const char* kJob = R"(
model:
  graph: own.yaml
  with: {layers: 1, heads: 2, dim: 16, vocab: 290, context: 8}
data: {format: text, train: text.txt, tokenizer: mine/tokenizer.json, seq_len: 8}
train: {steps: 3, batch: {global: 4}, optimizer: {lr: 1.0e-2}}
cluster: {devices_per_node: 1}
)";

const std::string kSource = TRAINER_SOURCE_DIR;

/// A folder with a job, its text, its graph and a tokenizer of its own.
class Workplace : public TemporaryFolder {
 public:
  Workplace() {
    write("job.yaml", kJob);
    write("own.yaml", contents_of(kSource + "/configs/models/gpt2.yaml"));
    std::string text;
    for (int i = 0; i < 60; ++i) text += "the quick brown fox jumps over the lazy dog\n";
    write("text.txt", text);
    write("rows.jsonl", "{\"text\": \"the lazy fox\"}\n{\"ids\": [1, 280, 7]}\n{\"text\": \"dog\"}\n");
    good({"tokenizer", "train", "--vocab", "280", "text.txt", "-o", "mine"});
  }
  Outcome operator()(const std::vector<std::string>& arguments) const {
    return trainer::tests::trainer(path(), arguments);
  }
  /// What a command that must end well puts out.
  std::string good(const std::vector<std::string>& arguments) const {
    const Outcome outcome = (*this)(arguments);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome.out;
  }
  std::vector<std::string> cached() const {
    std::vector<std::string> files;
    if (fs::exists(path("cache/trainer/tokens")))
      for (const auto& entry : fs::directory_iterator(path("cache/trainer/tokens")))
        if (entry.path().extension() == ".ids") files.push_back(entry.path().string());
    return files;
  }
};

}  // namespace

TEST_CASE("text is tokenized once, into a cache that can be moved, turned off, damaged and removed") {
  const Workplace in;
  const auto losses = [&](const std::string& dir) {
    const Outcome outcome = in({"run", "job.yaml", "checkpoint.dir=" + dir, "log.every=1"});
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK_FALSE(contains(outcome.err, "tokenizing"));  // no progress in a pipe
    return outcome.out.substr(0, outcome.out.find("step:"));
  };
  const std::string first = losses("a");
  REQUIRE(in.cached().size() == 1);
  const std::string file = in.cached()[0], ids = contents_of(file);
  const auto written = fs::last_write_time(file);
  CHECK(losses("b") == first);
  CHECK(fs::last_write_time(file) == written);
  fs::resize_file(file, 100);
  CHECK(losses("c") == first);
  CHECK(contents_of(file) == ids);
  fs::remove_all(in.path("cache"));
  REQUIRE(::setenv("TRAINER_CACHE", "off", 1) == 0);
  CHECK(losses("d") == first);
  CHECK(in.cached().empty());
  REQUIRE(::setenv("TRAINER_CACHE", in.path("elsewhere").c_str(), 1) == 0);
  CHECK(losses("e") == first);
  CHECK(fs::exists(in.path("elsewhere/tokens")));
  REQUIRE(::setenv("TRAINER_CACHE", in.path("text.txt").c_str(), 1) == 0);  // no folder
  const Outcome refused = in({"run", "job.yaml", "checkpoint.dir=f"});
  REQUIRE(::unsetenv("TRAINER_CACHE") == 0);
  CHECK(refused.code == 74);
  CHECK(contains(refused.err, "TRAINER_CACHE"));
}

TEST_CASE("a checkpoint is scored by itself, as its job scores it, when job, graph and tokenizer are gone") {
  const Workplace in;
  in.good({"run", "job.yaml"});
  const std::string expected = in.good({"score", "job.yaml", "rows.jsonl"});
  CHECK(contains(expected, "\"logprobs\":[null,-"));
  for (const char* gone : {"job.yaml", "own.yaml", "mine", "text.txt", "cache"}) fs::remove_all(in.path(gone));
  fs::rename(in.path("runs/job"), in.path("away"));
  CHECK(in.good({"score", "away", "rows.jsonl"}) == expected);
  CHECK(in.good({"score", "away/step-00000003", "rows.jsonl"}) == expected);
}

namespace {

/// A folder with a model folder, and a job that trains it.
void write_tuning(const TemporaryFolder& in) {
  fs::copy(kSource + "/tests/goldens/folders/qwen2", in.path("m"));
  std::string ids;
  for (int i = 0; i < 200; ++i) ids += {static_cast<char>(i * 7 % 61), '\0'};
  in.write("ids.bin", ids);
  in.write("job.yaml",
           "model: {from: m}\n"
           "data: {format: tokens, train: ids.bin, token_type: u16, seq_len: 8}\n"
           "train: {steps: 2, batch: {global: 4}, optimizer: {lr: 1.0e-2}}\n"
           "cluster: {devices_per_node: 1}\n");
  in.write("rows.jsonl", "{\"ids\": [1, 2, 3, 4, 5]}\n{\"ids\": [60]}\n");
}

}  // namespace

TEST_CASE("a job with model.from is scored by its newest checkpoint, and that checkpoint without the folder") {
  const TemporaryFolder in;
  write_tuning(in);
  const auto good = [&](const std::vector<std::string>& arguments) {
    const Outcome outcome = trainer::tests::trainer(in.path(), arguments);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome.out;
  };
  const Outcome early = trainer::tests::trainer(in.path(), {"score", "job.yaml", "rows.jsonl"});
  CHECK(early.code == 65);
  CHECK(contains(early.err, "no checkpoint here yet; for the weights from which the job starts, name m"));
  good({"run", "job.yaml"});
  const std::string base = good({"score", "m", "rows.jsonl"}), tuned = good({"score", "job.yaml", "rows.jsonl"});
  CHECK(base != tuned);
  CHECK(good({"score", "job.yaml", "rows.jsonl", "--checkpoint", "runs/job"}) == tuned);
  fs::remove_all(in.path("m"));
  fs::remove(in.path("job.yaml"));
  CHECK(good({"score", "runs/job", "rows.jsonl"}) == tuned);
  good({"export", "runs/job", "exported"});
  CHECK(good({"score", "exported", "rows.jsonl"}) == tuned);
}

TEST_CASE("a checkpoint of an adapter is scored by itself beside its base, wherever that is") {
  const TemporaryFolder in;
  write_tuning(in);
  const auto outcome = [&](const std::vector<std::string>& arguments) {
    return trainer::tests::trainer(in.path(), arguments);
  };
  REQUIRE(outcome({"run", "job.yaml", "adapter={rank: 2}", "checkpoint.dir=lora"}).code == 0);
  const std::string expected =
      outcome({"score", "job.yaml", "rows.jsonl", "adapter={rank: 2}", "--checkpoint", "lora"}).out;
  CHECK(contains(expected, "\"logprobs\":[null,-"));
  CHECK(outcome({"score", "m", "rows.jsonl"}).out != expected);
  CHECK(outcome({"score", "lora", "rows.jsonl"}).out == expected);
  fs::rename(in.path("m"), in.path("base"));
  const Outcome without = outcome({"score", "lora", "rows.jsonl"});
  CHECK(without.code == 65);
  CHECK(contains(without.err, "--base"));
  CHECK(outcome({"score", "lora", "rows.jsonl", "--base", "base"}).out == expected);
}

TEST_CASE("a checkpoint keeps the tokenizer of its text beside that of the model folder") {
  const TemporaryFolder in;
  write_tuning(in);
  std::string config = contents_of(in.path("m/config.json"));
  config.replace(config.find("\"vocab_size\": 61"), 16, "\"vocab_size\": 600");
  in.write("m/config.json", config);
  const std::string tokenizers = kSource + "/tests/goldens/tokenizers/";
  fs::copy(tokenizers + "llama3.json", in.path("m/tokenizer.json"));
  fs::copy(tokenizers + "gpt2_prefix.json", in.path("other.json"));
  in.write("text.txt", std::string(400, 'a') + " the quick brown fox");
  in.write("rows.jsonl", "{\"text\": \"the quick <|im_start|>fox\"}\n");
  const auto good = [&](const std::vector<std::string>& arguments) {
    const Outcome outcome = trainer::tests::trainer(in.path(), arguments);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome.out;
  };
  for (const std::string tokenizer : {"other.json", "auto"}) {
    CAPTURE(tokenizer);
    const std::string dir = "of-" + tokenizer,
                      data = "data={format: text, train: text.txt, seq_len: 8, tokenizer: " + tokenizer + "}";
    good({"run", "job.yaml", "model.weights=random", data, "checkpoint.dir=" + dir});
    const std::string scored = good({"score", dir, "rows.jsonl"});
    CHECK(scored == good({"score", "job.yaml", "rows.jsonl", "model.weights=random", data, "--checkpoint", dir}));
    const std::string ids = good({"tokenize", tokenizer == "auto" ? "m" : tokenizer, "rows.jsonl", "--special"});
    CHECK(contains(scored, ids.substr(0, ids.find(']'))));
    CHECK(contents_of(in.path(dir + "/step-00000002/tokenizer.json")) == contents_of(in.path("m/tokenizer.json")));
    CHECK(fs::exists(in.path(dir + "/step-00000002/data_tokenizer.json")) == (tokenizer != "auto"));
  }
}

}  // namespace trainer::model_files_test
