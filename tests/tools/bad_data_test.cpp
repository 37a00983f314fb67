// Data and weights that are wrong, and outputs that cannot be written, as the commands tell them.
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/tools/workplace.h"

namespace trainer::bad_data_test {

using nlohmann::json;
using namespace trainer::tests;

TEST_CASE("missing data exits 65, a missing checkpoint too, each named") {
  const Workplace in;
  const Outcome data = in({"run", in.with_change("text.txt", "nowhere.txt")});
  CHECK(data.code == 65);
  CHECK(contains(data.err, "nowhere.txt"));
  const Outcome checkpoint = in({"sample", "job.yaml", "--checkpoint", "nowhere"});
  CHECK(checkpoint.code == 65);
  CHECK(contains(checkpoint.err, "nowhere"));
  CHECK(in({"eval", "job.yaml", "checkpoint.dir=null"}).code == 64);
  CHECK(in({"inspect", "text.txt"}).code == 65);
  CHECK(in({"inspect", "logs"}).code == 65);
}

TEST_CASE("bad data ends a run before its first step, at the line of the job that names it") {
  const Workplace in;
  std::string ids(4000, '\0');
  ids[3001] = '\x7f';  // id 32512 at offset 3000
  in.write("ids.bin", ids);
  in.write("ids.bin.gz", "\x1f\x8b\x08" + std::string(6, '\0') + "\x03" + ids);
  const auto run = [&](const std::string& from, const std::string& to) {
    const Outcome outcome = in({"run", in.with_change(from, to)});
    CHECK(outcome.code == 65);
    CHECK_FALSE(contains(outcome.err, "step 1"));
    CHECK_FALSE(std::filesystem::exists(in.path("runs/step-00000002")));
    return outcome.err;
  };
  const std::string text = "format: text\n  train: text.txt";
  CHECK(contains(run(text, "format: tokens\n  train: ids.bin"),
                 "changed.yaml:7:10: error: data.train: ids.bin: offset 3000: token id 32512 is outside of the "
                 "vocabulary of 256"));
  CHECK(contains(run(text, "format: tokens\n  train: ids.bin.gz"),
                 "changed.yaml:7:10: error: data.train: ids.bin.gz: is a gzip file; unpack it with gunzip"));
  CHECK(contains(run("global: 4", "global: 4000"),
                 "data.train: the training part has 263 samples, fewer than one batch of 4000"));
  CHECK(contains(run("fraction: 0.2", "fraction: 0.001"),
                 "changed.yaml:8:8: error: data.val: text.txt: the validation part has no sample"));
}

// How a run ends whose text is changed when it has trained some steps.
Outcome run_with_change(const std::function<void(const std::string& path)>& change) {
  const Workplace in;
  std::string text;
  while (text.size() < (std::size_t{4} << 20)) text += "the quick brown fox jumps over the lazy dog\n";
  const std::string path = in.write("text.txt", text);
  Process process(in.path(), {"run", "job.yaml", "data.tokenizer=chars", "eval.every=1000000000", "train.steps=1000000",
                              "checkpoint.every=1000000000"});
  for (int tries = 0; tries < 600 && !contains(process.err_so_far(), "loss"); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  change(path);
  return process.wait();
}

TEST_CASE("a data file that becomes shorter, or another text, under a run ends it with the file's name") {
  const Outcome shorter = run_with_change([](const std::string& path) { std::filesystem::resize_file(path, 5000); });
  CHECK(shorter.code == 74);
  CHECK(contains(shorter.err,
                 "text.txt: the file became shorter while it was in use: it had 4194344 bytes and now has 5000"));
  const Outcome other = run_with_change([](const std::string& path) {
    std::fstream(path, std::ios::binary | std::ios::in | std::ios::out) << std::string(std::size_t{4} << 20, '#');
  });
  CHECK(other.code == 65);
  CHECK(contains(other.err, "text.txt: offset "));
  CHECK(contains(other.err, "it was changed while it was in use"));
}

TEST_CASE("validate --files says of data and initial weights what run would, all at once") {
  const Workplace in;
  CHECK(in({"validate", "--files", "job.yaml"}).code == 0);
  CHECK(in({"validate", in.with_change("text.txt", "nowhere.txt")}).code == 0);  // without --files no data is read
  const auto errors = [&](const std::string& from, const std::string& to) {
    const Outcome outcome = in({"validate", "--files", "--json", in.with_change(from, to)});
    CHECK(outcome.code == 65);
    std::vector<std::string> lines;
    const json document = parsed(outcome);
    for (const json& error : document["jobs"][0]["errors"])
      lines.push_back(error["line"].dump() + " " + error["path"].get<std::string>() + ": " +
                      error["message"].get<std::string>());
    return lines;
  };
  using Lines = std::vector<std::string>;
  CHECK(errors("text.txt\n  val: {fraction: 0.2}", "[a.txt, text.txt, b.txt]\n  val: '*.none'") ==
        Lines{"7 data.train: a.txt: no such file", "7 data.train: b.txt: no such file",
              "8 data.val: *.none: no file matches"});
  CHECK(contains(errors("global: 4", "global: 4000").at(0),
                 "7 data.train: the training part has 263 samples, fewer than one batch of 4000"));
  CHECK(contains(errors("context: 8}", "context: 8}\n  init_from: nowhere").at(0),
                 "5 model.init_from: nowhere: there is no such file"));

  in.write("small.yaml", contents_of(in.path("job.yaml")).replace(std::string(kJob).find("dim: 16"), 7, "dim: 8 "));
  REQUIRE(in({"run", "small.yaml", "checkpoint.dir=small"}).code == 0);
  for (const std::string from : {"small", "small/step-00000006", "small/step-00000006/model.safetensors"}) {
    const Lines lines = errors("context: 8}", "context: 8}\n  init_from: " + from);
    REQUIRE(lines.size() == 1);
    CHECK(contains(lines[0], "5 model.init_from: " + from + " does not fit the model:"));
    CHECK(contains(lines[0], "wte.weight is [256, 8], the model has [256, 16]"));
  }
  in.write("empty.txt", "");
  CHECK(errors("text.txt\n  val: {fraction: 0.2}", "empty.txt\n  val: small.yaml") ==
        Lines{"7 data.train: empty.txt: the training part has no sample of seq_len + 1 = 9 tokens"});
}

TEST_CASE("an output that cannot be written exits 74 and is named") {
  const Workplace in;
  const Outcome outcome = in({"run", "job.yaml", "log.jsonl=text.txt/log.jsonl"});
  CHECK(outcome.code == 74);
  CHECK(contains(outcome.err, "text.txt"));
}

TEST_CASE("a run that diverges stops before the update, names the step, and exits 65") {
  const Workplace in;
  const Outcome outcome = in({"run", "job.yaml", "train.optimizer={name: sgd, lr: 1e30}", "train.clip_norm=null"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 65);
  CHECK(contains(outcome.err, "diverged: step "));
}

}  // namespace trainer::bad_data_test
