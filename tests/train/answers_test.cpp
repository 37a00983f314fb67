// eval.generate: a model that has learnt its answers gives all of them and one that has not gives none, on one rank and
// on ranks that share the questions; what it counts as right is what a sampler generates from the same weights.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/train/sampler.h"
#include "tests/chat/tiny_chat.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

constexpr const char* kJob = R"(
seed: 7
model: {graph: models/llama.yaml, with: {layers: 2, heads: 4, kv_heads: 2, dim: 32, hidden: 48, vocab: 257, rope_theta: 100}}
data: {format: completion, train: rows.jsonl, val: rows.jsonl, tokenizer: bytes, seq_len: 80, shuffle: true}
train:
  steps: 60
  batch: {global: 4, micro: auto}
  optimizer: {name: adamw, lr: 2.0e-2}
  lr_schedule: {name: cosine, warmup_steps: 5}
eval: {every: 1000, generate: {file: questions.jsonl, max_tokens: 12}}
precision: {compute: f32}
checkpoint: {every: 1000, dir: run}
)";

// One prompt is longer than the block in which prompts are read.
const std::vector<std::pair<std::string, std::string>> kRows{
    {"ab=", "cde"},
    {"b=", "x"},
    {"what is the name of the largest of the moons of the planet Saturn?", "Titan"},
    {"zz", "top"}};

std::string row(const std::string& prompt, const std::string& what, const std::string& answer) {
  return nlohmann::json{{"prompt", prompt}, {what, answer}}.dump() + "\n";
}

class Folder : public TemporaryFolder {
 public:
  Folder() {
    std::string rows, questions;
    for (const auto& [prompt, answer] : kRows) {
      rows += row(prompt, "completion", answer);
      questions += row(prompt, "answer", " " + answer + "\n");  // white space at the ends is no difference
    }
    write("rows.jsonl", rows);
    write("questions.jsonl", questions);
    write("job.yaml", kJob);
  }
  LoadedJob load(const Overrides& overrides = {}) const {
    return load_job(path("job.yaml"), overrides, {.configs_dir = configs_dir()});
  }
};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("answers that were learnt are all right, those of drawn weights are wrong, whatever the ranks") {
  const Folder folder;
  const Trained trained = run(folder.load());
  REQUIRE(trained.evaluations.size() == 1);
  CHECK(trained.evaluations[0].exact_match == 1.0);
  CHECK(trained.report.exact_match == 1.0);
  const Overrides drawn{"train.steps=0", "checkpoint.dir=null"};
  CHECK(run(folder.load(drawn)).evaluations.at(0).exact_match == 0.0);

  // An answer more that the model does not know: 4 of 5, which 2, 3 or 4 ranks share unevenly.
  std::string questions = row("b=", "answer", "y");
  for (const auto& [prompt, answer] : kRows) questions += row(prompt, "answer", answer);
  folder.write("five.jsonl", questions);
  const std::string weights = "model.init_from=" + trained.report.checkpoint,
                    five = "eval.generate=" + folder.path("five.jsonl");
  const LoadedJob alone = folder.load({five, "eval.generate.max_tokens=12"});
  const EvaluationRecord record = evaluate(alone, compiled(alone, Purpose::evaluate), trained.report.checkpoint, 0);
  CHECK(record.exact_match == 0.8);
  for (const char* strategy : {"ddp", "zero1", "fsdp"})
    for (const char* ranks : {"2", "4"}) {
      CAPTURE(std::string(strategy) + " over " + ranks);
      const Trained shared = run(
          folder.load(both(drawn, {weights, five, "eval.generate.max_tokens=12", std::string("strategy=") + strategy,
                                   std::string("cluster.devices_per_node=") + ranks})));
      REQUIRE(shared.evaluations.size() == 1);
      CHECK(shared.evaluations[0].exact_match == 0.8);
    }
}

TEST_CASE("what is right is what a sampler generates from the weights of that step") {
  const Folder folder;
  const Trained trained = run(folder.load({"train.steps=25"}));  // it knows some of them
  LoadedJob loaded = folder.load();
  const std::vector<CompiledJob> plans{compiled(loaded, Purpose::sample)};
  std::string questions;
  with_sampler(
      loaded, plans, trained.report.checkpoint, [](const std::string&) {},
      [&](Sampler& sampler) {
        for (const auto& [prompt, answer] : kRows) {
          std::vector<std::int32_t> ids(prompt.begin(), prompt.end());
          std::string text;
          for (std::int32_t id = 0; text.size() < 12; ids.push_back(id), text += static_cast<char>(id))
            if ((id = draw(sampler.after(ids), {.temperature = 0}, 0)) > 127) break;
          questions += row(prompt, "answer", text + (questions.empty() ? "!" : ""));
        }
      });
  folder.write("questions.jsonl", questions);
  loaded = folder.load();
  const EvaluationRecord record = evaluate(loaded, compiled(loaded, Purpose::evaluate), trained.report.checkpoint, 0);
  CHECK(record.exact_match.value() == 0.75);
}

TEST_CASE("an adapter's answers are those of base and adapter together") {
  const Folder folder;
  const Trained base = run(folder.load({"train.steps=0", "checkpoint.dir=" + folder.path("base")}));
  const Trained trained = run(folder.load(
      {"model.init_from=" + base.report.checkpoint, "adapter={kind: lora, rank: 16, alpha: 32}", "train.steps=120"}));
  REQUIRE(trained.evaluations.size() == 1);
  CHECK(trained.evaluations[0].exact_match.value() >= 0.5);
}

TEST_CASE("the plan counts keys and values of generation as memory that stays") {
  const Folder folder;
  const auto held = [&] {
    const CompiledJob job = compiled(folder.load());
    std::int64_t bytes = 0;
    for (const State& state : job.plan.roles[0].states) bytes += state.region.bytes;
    return std::pair(bytes, job.plan.roles[0].persistent_bytes);
  };
  const auto with = held();
  std::string plain = kJob;
  const std::string generate = ", generate: {file: questions.jsonl, max_tokens: 12}";
  plain.erase(plain.find(generate), generate.size());
  folder.write("job.yaml", plain);
  const auto without = held();
  CHECK(without.first == 0);
  CHECK(with.first == 2 * 2 * 80 * 2 * 8 * 4);  // layers, keys and values, positions, heads, size of one, f32
  CHECK(with.second >= without.second + with.first);
}

TEST_CASE("questions that cannot be asked are named with their lines, and plans that cannot generate at the key") {
  const Folder folder;
  const auto told = [&](const std::string& questions, const Overrides& overrides = {}) {
    folder.write("questions.jsonl", questions);
    return message_of([&] {
      const LoadedJob loaded = folder.load(both({"checkpoint.dir=null"}, overrides));
      run(loaded, compiled(loaded));
    });
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  contains(told("{\"prompt\": \"a\", \"answer\": \"b\"}\n{\"prompt\": \"a\"}\n"),
           "questions.jsonl:2: has no \"answer\"; a question has \"prompt\" and \"answer\"");
  contains(told("{\"prompt\": 1, \"answer\": \"b\"}\n"), "questions.jsonl:1: \"prompt\" is no string");
  contains(told(""), "questions.jsonl: has no rows");
  contains(
      told(row(std::string(69, 'a'), "answer", "b")),
      "questions.jsonl:1: its prompt has 69 tokens, and with 12 of an answer (eval.generate.max_tokens) that is more "
      "than data.seq_len: 80");
  contains(told("{}", {"eval.generate.file=" + folder.path("none.jsonl")}), "none.jsonl");
  for (const char* strategy :
       {"strategy={tensor: 2}", "strategy={pipeline: 2}", "strategy={context: {degree: 2, kind: gather}}"})
    contains(told(row("a", "answer", "b"), {strategy, "cluster.devices_per_node=2"}), "eval.generate.file");
  contains(message_of([&] {
             folder.load({"data={format: text, train: " + folder.path("rows.jsonl") + ", val: 0.5, seq_len: 8}"});
           }),
           "only with data.format: chat, completion or documents");
}

TEST_CASE("prompts of chats are rendered by the template, and an answer ends with the turn") {
  const TemporaryFolder folder;
  std::filesystem::copy(configs_dir() + "/../tests/goldens/folders/llama3", folder.path("m"));
  write_tiny_chat(folder, "m");
  // The model learns what follows "u:ab<>a:" (tests/chat/tiny_chat.h).
  folder.write("rows.jsonl",
               R"({"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "bba"}]})"
               "\n");
  // A tokenizer without a decoder puts spaces between tokens.
  folder.write("questions.jsonl", row("ab", "answer", "b b a") + row("b", "answer", "no"));
  folder.write("job.yaml", R"(
model: {from: m, weights: random}
data: {format: chat, train: rows.jsonl, val: rows.jsonl, seq_len: 32}
train: {steps: 40, batch: 1, optimizer: {name: adamw, lr: 1.0e-2}}
eval: {every: 1000, generate: {file: questions.jsonl, max_tokens: 8}}
precision: {compute: f32}
checkpoint: null
)");
  const Trained trained = run(load_job(folder.path("job.yaml"), {}, {.configs_dir = configs_dir()}));
  CAPTURE(trained.loss.back());
  CHECK(trained.evaluations.at(0).exact_match.value() == 0.5);
}
