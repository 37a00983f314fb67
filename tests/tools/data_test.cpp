// trainer data, and runs on rows, as users and scripts see them.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/chat/tiny_chat.h"
#include "tests/temporary.h"
#include "tests/tools/process.h"
#include "tests/tools/workplace.h"

namespace trainer::data_test {

using namespace trainer::tests;
using nlohmann::json;

namespace {

/// A job of chats on the folder "m".
class ChatJob : public TemporaryFolder {
 public:
  ChatJob() {
    std::filesystem::copy(std::string(TRAINER_SOURCE_DIR) + "/tests/goldens/folders/llama3", path("m"));
    write_tiny_chat(*this, "m");
    write("a.jsonl", R"({"messages": [{"role": "user", "content": "b"}, {"role": "assistant", "content": "a"}]})"
                     "\n"
                     R"({"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "<>"}]})"
                     "\n");
    write("job.yaml",
          "model: {from: m}\n"
          "data: {format: chat, train: a.jsonl, seq_len: 16}\n"
          "train: {steps: 2, batch: {global: 2}}\n");
  }

  Outcome run(const std::vector<std::string>& arguments) const { return trainer::tests::trainer(path(), arguments); }
};

}  // namespace

TEST_CASE("trainer data gives ids, targets and documents of each sample, without padding") {
  const ChatJob job;
  const Outcome outcome = job.run({"data", "job.yaml", "--json"});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  const json rows = json::parse(outcome.out);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0]["ids"] == json({4, 5, 1, 7, 0, 5, 0, 7}));
  CHECK(rows[0]["trained"] == json({false, false, false, false, false, false, true, true}));
  CHECK(rows[0]["documents"] == json({0, 0, 0, 0, 0, 0, 0, 0}));
  CHECK(rows[1]["ids"] == json({4, 5, 0, 1, 7, 0, 5, 2, 3, 7}));  // a marker in a message is text
  const Outcome text = job.run({"data", "job.yaml", "--rows", "1"});
  CHECK(text.out ==
        "sample 0: 8 tokens, 2 trained\n"
        "    context u : b <> a :\n"
        "    trained a <>\n"
        "rows: 2 of 18 tokens\n"
        "samples: 2 of 16 tokens; 5 targets, 47.1% padding\n");
}

TEST_CASE("a run on chats says what became of its rows, and its checkpoint chats by the same template") {
  const ChatJob job;
  job.write("own.jinja", "{% for m in messages %}<{{ m.content }}<>{% endfor %}{{ '<' if add_generation_prompt }}");
  const Outcome outcome = job.run({"run", "job.yaml", "checkpoint.dir=out", "data.template=own.jinja"});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  CHECK(outcome.err.find("rows: 2 of 14 tokens\n") != std::string::npos);
  std::filesystem::remove(job.path("own.jinja"));
  CHECK(std::filesystem::exists(job.path("out/step-00000002/chat_template.jinja")));
  job.write("input.txt", "ab\n");
  const Outcome chat =
      Process(job.path(), {"-c", std::string(TRAINER_COMMAND) + " chat out --json --max-tokens 3 < input.txt"},
              "/bin/sh")
          .wait();
  CHECK_MESSAGE(chat.code == 0, chat.err);
}

TEST_CASE("rows that are wrong end a run with their places, and validate --files tells them too") {
  const ChatJob job;
  job.write("a.jsonl", "{\"text\": 1}\n{\"messages\": 1}\n");
  const Outcome outcome = job.run({"run", "job.yaml", "checkpoint.dir=null"});
  CHECK(outcome.code == 65);
  CHECK_MESSAGE(outcome.err.find("a.jsonl:1: has no \"messages\": it has \"text\"") != std::string::npos, outcome.err);
  CHECK_MESSAGE(outcome.err.find("\n  a.jsonl:2: \"messages\" is no list") != std::string::npos, outcome.err);
  const Outcome validated = job.run({"validate", "--files", "job.yaml"});
  CHECK(validated.code == 65);
  CHECK_MESSAGE(validated.err.find("a.jsonl:2: \"messages\" is no list") != std::string::npos, validated.err);
}

TEST_CASE("a run on rows goes on only with the same rows and the same template") {
  const ChatJob job;
  const std::vector<std::string> run{"run", "job.yaml", "checkpoint.dir=out"};
  REQUIRE(job.run(run).code == 0);
  const auto with = [&](const std::string& more) {
    std::vector<std::string> arguments = run;
    arguments.insert(arguments.end(), {"train.steps=3", more});
    return job.run(arguments);
  };
  const Outcome other = with("data.train_on=all");
  CHECK(other.code == 78);
  CHECK_MESSAGE(other.err.find("data.train_on") != std::string::npos, other.err);
  job.write("m/chat_template.jinja", "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<>{% endfor %}a:");
  const Outcome changed = with("log.every=1");
  CHECK(changed.code == 78);
  CHECK_MESSAGE(changed.err.find("the chat template") != std::string::npos, changed.err);
  write_tiny_chat(job, "m");
  const Outcome same = with("log.every=1");
  CHECK_MESSAGE(same.code == 0, same.err);
}

TEST_CASE("a model of documents of bytes ends its text where they end") {
  const Workplace run;
  run.write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"ab\"}\n");
  run.write("bytes.yaml",
            "model: {graph: models/gpt2.yaml, with: {layers: 1, heads: 1, dim: 16, vocab: 257, context: 8}}\n"
            "data: {format: documents, train: a.jsonl, seq_len: 4}\n"
            "train: {steps: 60, batch: {global: 2}, optimizer: {lr: 1.0e-2}}\n"
            "checkpoint: {dir: out}\n");
  const Outcome trained = run({"run", "bytes.yaml"});
  REQUIRE_MESSAGE(trained.code == 0, trained.err);
  CHECK_MESSAGE(trained.err.find("rows: 2 of 6 tokens\nsamples: 2 of 4 tokens; 4 targets") != std::string::npos,
                trained.err);
  const json sampled = parsed(run({"sample", "bytes.yaml", "--prompt", "a", "--temperature", "0", "--json"}));
  CHECK(sampled["text"] == "ab");
  CHECK(sampled["ids"] == json({97, 98}));
  const json on =
      parsed(run({"sample", "bytes.yaml", "--prompt", "a", "--temperature", "0", "--json", "--stop", "98"}));
  CHECK(on["text"] == "a");
}

TEST_CASE("trainer data shows labelled texts, the names of their classes and what was cut") {
  const ChatJob job;
  job.write("m/config.json", R"({"id2label": {"0": "no", "1": "yes"}})");
  job.write("l.jsonl",
            "{\"text\": \"ab\", \"label\": \"yes\"}\n"
            "{\"text\": \"abab\", \"label\": 0}\n"
            "{\"text\": \"b\", \"label\": 0.5}\n");
  job.write("labelled.yaml",
            "model: {graph: models/decoder.yaml}\n"
            "data: {format: labelled, train: l.jsonl, seq_len: 3, too_long: truncate, tokenizer: m/tokenizer.json}\n"
            "train: {steps: 2, batch: {global: 2}}\n");
  const Outcome outcome = job.run({"data", "labelled.yaml"});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  CHECK(outcome.out ==
        "sample 0: 2 tokens, label 1 (yes)\n"
        "    a b\n"
        "sample 1: 3 tokens, label 0 (no)\n"
        "    a b a\n"
        "sample 2: 1 tokens, label 0.5\n"
        "    b\n"
        "rows: 3 of 7 tokens; 1 truncated\n"
        "samples: 3 of 3 tokens; 33.3% padding\n");
  const json rows = json::parse(job.run({"data", "labelled.yaml", "--json"}).out);
  CHECK(rows[0] == json({{"ids", {0, 1}}, {"label", 1}}));
  CHECK(rows[2]["label"] == 0.5);
}

}  // namespace trainer::data_test
