// Direct preference optimization against TRL's DPOTrainer (tests/goldens/dpo_goldens.py): the ids and masks of rows,
// and 20 steps of a tiny Llama with LoRA and with all of it trained, on one rank and under strategies. Both compute in
// f32, from the same weights, in other orders of sums: with some 40 targets of a sequence, rewards of order 1 are
// within 1e-4.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/data/data.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

using Json = nlohmann::json;

constexpr double kBound = 1e-4;

std::string golden(const std::string& name) { return std::string(TRAINER_SOURCE_DIR) + "/tests/goldens/dpo/" + name; }

const Json& expected() {
  static const Json json = Json::parse(std::ifstream(golden("expected.json")));
  return json;
}

const std::string kLora = "adapter={from: " + golden("lora") + "}";

class Jobs {
 public:
  Jobs() {
    jobs_.write("dpo.yaml", "model: {from: " + golden("model") + "}\ndata: {format: preference, train: " +
                                golden("pairs.jsonl") + R"(, seq_len: 40, shuffle: false}
train:
  steps: 20
  objective: {kind: dpo, beta: 0.3}
  batch: {global: 4}
  optimizer: {name: adamw, lr: 5.0e-4, betas: [0.9, 0.95], eps: 1.0e-6, weight_decay: 0}
  lr_schedule: constant
precision: f32
strategy: ddp
cluster: {device: cpu}
)");
  }
  LoadedJob load(Overrides overrides = {}, const std::string& run = "") {
    return jobs_.load("dpo", run.empty() ? "run" + std::to_string(++runs_) : run, std::move(overrides));
  }
  std::string path(const std::string& name) const { return jobs_.path(name); }
  std::string write(const std::string& name, const std::string& text) const { return jobs_.write(name, text); }

 private:
  TinyJobs jobs_;
  int runs_ = 0;
};

double figure(const Figures& figures, const std::string& name) {
  for (const auto& [own, value] : figures)
    if (own == name) return value;
  return NAN;
}

/// Whether steps [first, …) are TRL's.
void check_steps(const Trained& run, const Json& want, std::size_t first = 0) {
  REQUIRE(first + run.loss.size() == want["loss"].size());
  for (std::size_t i = 0; i < run.loss.size(); ++i) {
    CAPTURE(i);
    const std::size_t step = first + i;
    CHECK(std::fabs(run.loss[i] - want["loss"][step].get<double>()) < kBound);
    for (const auto& [own, its] : {std::pair("rewards_chosen", "rewards/chosen"),
                                   {"rewards_rejected", "rewards/rejected"},
                                   {"rewards_accuracy", "rewards/accuracies"}})
      CHECK(std::fabs(figure(run.figures[i], own) - want[its][step].get<double>()) < kBound);
  }
  CHECK(run.report.planned_peak_bytes == run.report.allocated_bytes);
}

data::Data rows_of(const LoadedJob& loaded) { return data::open_data(loaded.job.data, {}); }

std::string mistake_of(const LoadedJob& loaded) {
  try {
    rows_of(loaded);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("pairs of text and of messages have TRL's ids and masks") {
  Jobs jobs;
  for (const std::string name : {"pairs", "chats"}) {
    const data::Data data =
        rows_of(jobs.load({"data.train=" + golden(name + ".jsonl"), "data.seq_len=200", "train.steps=1"}));
    const data::RowSamples& samples = *data.train_rows.front();
    const Json& want = expected()[name];
    REQUIRE(samples.num_samples() == static_cast<std::int64_t>(want.size()));
    for (std::size_t i = 0; i < want.size(); ++i) {
      CAPTURE(i);
      const auto chosen = want[i]["chosen"].get<std::vector<std::int32_t>>(),
                 rejected = want[i]["rejected"].get<std::vector<std::int32_t>>();
      std::vector<std::int32_t> ids = chosen;
      ids.insert(ids.end(), rejected.begin(), rejected.end());
      const data::SampleIds got = samples.ids_of(static_cast<std::int64_t>(i));
      CHECK(got.ids == ids);
      std::vector<std::uint8_t> trained;
      for (const auto* sequence : {&chosen, &rejected})
        for (std::size_t k = 0; k < sequence->size(); ++k)
          trained.push_back(k > 0 && k >= want[i]["prompt"].get<std::size_t>() ? 1 : 0);
      CHECK(got.trained == trained);
    }
  }
}

TEST_CASE("a sample is two windows, chosen before rejected, each padded") {
  Jobs jobs;
  jobs.write("rows.jsonl", R"({"prompt": "ab", "chosen": "c", "rejected": "def"})");
  const data::Data data =
      rows_of(jobs.load({"data.train=" + jobs.path("rows.jsonl"), "data.tokenizer=bytes", "data.seq_len=6"}));
  std::vector<std::int32_t> tokens(12), targets(12);
  std::byte* fields[] = {reinterpret_cast<std::byte*>(tokens.data()), reinterpret_cast<std::byte*>(targets.data())};
  data.train->read(0, fields);
  CHECK(tokens == std::vector<std::int32_t>{'a', 'b', 'c', 256, 0, 0, 'a', 'b', 'd', 'e', 'f', 256});
  const std::int32_t no = -100;
  CHECK(targets == std::vector<std::int32_t>{no, 'c', 256, no, no, no, no, 'd', 'e', 'f', 256, no});
}

TEST_CASE("what is wrong with a row of a pair is said with its place") {
  Jobs jobs;
  const auto mistake = [&](const std::string& row, Overrides overrides = {}) {
    jobs.write("rows.jsonl", R"({"prompt": "a", "chosen": "b", "rejected": "c"})"
                             "\n" +
                                 row + "\n");
    return mistake_of(jobs.load(both({"data.train=" + jobs.path("rows.jsonl")}, overrides)));
  };
  const auto says = [](const std::string& text, const std::string& what) {
    CAPTURE(text);
    CHECK(text.find("rows.jsonl:2: ") != std::string::npos);
    CHECK(text.find(what) != std::string::npos);
  };
  says(mistake(R"({"prompt": "a", "chosen": "b"})"), "has no \"rejected\": it has \"prompt\" and \"chosen\"");
  says(mistake(R"({"chosen": "b", "rejected": "c"})"), "has no \"prompt\"");
  says(mistake(R"({"prompt": "a", "chosen": 1, "rejected": "c"})"), "is neither text nor a list of messages");
  says(mistake(R"({"prompt": "a", "chosen": "b", "rejected": []})"), "one is text and one a list");
  const std::string chats =
      R"("chosen": [{"role": "assistant", "content": "b"}], "rejected": [{"role": "assistant", "content": "c"}]})";
  says(mistake(R"({"prompt": "a", )" + chats), "\"prompt\" is no list of messages");
  says(mistake("{" + chats), "has no prompt");
  says(mistake(R"({"prompt": [{"role": "user", "content": "a"}], )" + chats, {"data.tokenizer=bytes"}),
       "need a chat template");
  says(mistake(R"({"prompt": [{"content": "a"}], )" + chats), "message 1 has no \"role\"");
  says(mistake(R"({"prompt": "a", "chosen": "a long answer, longer than a sample", "rejected": "c"})",
               {"data.tokenizer=bytes", "data.seq_len=16"}),
       "data.too_long: drop or truncate");
}

TEST_CASE("pairs that are too long are dropped or truncated, and one without targets is left out") {
  Jobs jobs;
  jobs.write("rows.jsonl", R"({"prompt": "ab", "chosen": "cdefghij", "rejected": "k"}
{"prompt": "abcdefghij", "chosen": "k", "rejected": "l"}
{"prompt": "a", "chosen": "b", "rejected": "c"}
)");
  const auto counts = [&](const std::string& too_long) {
    return rows_of(jobs.load({"data.train=" + jobs.path("rows.jsonl"), "data.tokenizer=bytes", "data.seq_len=6",
                              "data.too_long=" + too_long, "train.batch.global=1"}))
        .train_rows.front()
        ->counts();
  };
  const data::RowCounts dropped = counts("drop"), truncated = counts("truncate");
  CHECK(dropped.dropped == 2);
  CHECK(dropped.samples == 1);
  CHECK(truncated.truncated == 2);
  CHECK(truncated.without_targets == 1);
  CHECK(truncated.samples == 2);
}

TEST_CASE("20 steps are TRL's, with LoRA and with all trained, on one rank and under strategies") {
  Jobs jobs;
  const Overrides two{"cluster.devices_per_node=2"};
  for (const bool lora : {false, true}) {
    const Json& want = expected()[lora ? "lora" : "full"];
    const Overrides base = lora ? Overrides{kLora} : Overrides{};
    const std::vector<Overrides> ways{
        {},
        {"train.batch.micro=1", "activation_checkpointing=full"},
        both(two, {"train.batch.micro=1"}),
        both(two, {"strategy=zero1"}),
        both(two, {"strategy=fsdp", "activation_checkpointing=selective"}),
        both(two, {"strategy=tensor"}),
        both(two, {"strategy={tensor: {degree: 2, sequence_parallel: true}}"}),
        both(two, {"strategy=pipeline", "train.batch.micro=1"}),
    };
    for (const Overrides& way : ways) {
      std::string text;
      for (const std::string& one : way) text += one + " ";
      CAPTURE(lora);
      CAPTURE(text);
      check_steps(run(jobs.load(both(base, way))), want);
    }
  }
}

TEST_CASE("a run that stops goes on to TRL's steps under another strategy, its reference where it began") {
  Jobs jobs;
  for (const bool lora : {false, true}) {
    CAPTURE(lora);
    const std::string dir = lora ? "lora" : "full";
    const Overrides base = both(lora ? Overrides{kLora} : Overrides{}, {"checkpoint.resume=auto"});
    const Overrides first{"train.steps=8", "checkpoint.format=sharded", "cluster.devices_per_node=2", "strategy=fsdp"};
    const Trained begun = run(jobs.load(both(base, first), dir));
    REQUIRE(begun.loss.size() == 8);
    const Tensors saved = weights_of(begun.report.checkpoint);
    CHECK(saved.contains("reference.model.norm.weight") == !lora);
    check_steps(run(jobs.load(base, dir)), expected()[dir], 8);
  }
}

TEST_CASE("an evaluation counts pairs, and those beyond the data not at all") {
  Jobs jobs;
  const auto evaluated = [&](const std::string& rows, const std::string& micro) {
    std::ifstream pairs(golden("pairs.jsonl"));
    std::string text;
    for (int i = 0; i < std::stoi(rows); ++i) {
      std::string line;
      std::getline(pairs, line);
      text += line + "\n";
    }
    jobs.write("val.jsonl", text);
    const Trained run_of = run(jobs.load({"data.val=" + jobs.path("val.jsonl"), "train.steps=4",
                                          "eval={every: 4, batches: 100}", "train.batch.micro=" + micro}));
    REQUIRE(run_of.evaluations.size() == 1);
    return run_of.evaluations.front();
  };
  const EvaluationRecord each = evaluated("7", "1"), together = evaluated("7", "4");
  CHECK(std::fabs(each.val_loss - together.val_loss) < 1e-6);
  for (const char* name : {"val_rewards_chosen", "val_rewards_rejected", "val_rewards_accuracy"})
    CHECK(std::fabs(figure(each.figures, name) - figure(together.figures, name)) < 1e-6);
  CHECK_FALSE(each.val_accuracy);
}

TEST_CASE("a job that asks for dpo without pairs, or pairs without dpo, is a mistake at its place") {
  Jobs jobs;
  const auto mistake = [&](const Overrides& overrides) -> std::string {
    try {
      compiled(jobs.load(overrides));
    } catch (const JobError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(mistake({"train.objective=auto"}).find("data.format: pairs of answers are for train.objective: dpo") !=
        std::string::npos);
  CHECK(mistake({"data.format=completion"}).find("dpo compares the two answers of a pair") != std::string::npos);
  CHECK(mistake({"data.packing=documents"}).find("data.packing") != std::string::npos);
  CHECK(mistake({"data.too_long=split"}).find("data.too_long") != std::string::npos);
  CHECK(mistake({"strategy={context: {degree: 2}}", "cluster.devices_per_node=2"})
            .find("strategy.context.degree: dpo compares whole sequences") != std::string::npos);
  CHECK(mistake({"train.objective={kind: dpo, beta: 0}"}).find("train.objective.beta") != std::string::npos);
}
