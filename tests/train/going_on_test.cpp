// Going on from a checkpoint: what may have changed is told, what may not is refused with both values, a finished run
// is left as it is.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/core/error.h"
#include "engine/job/fields.h"
#include "engine/train/going_on.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

const Overrides kFour{"train.steps=4"}, kEight{"train.steps=8"};

std::string refusal(const TinyJobs& jobs, const std::string& model, const Overrides& overrides) {
  return message_of<JobError>([&] { run(jobs.load(model, "run", overrides)); });
}

}  // namespace

TEST_CASE("what may not change between a stop and going on is refused with both values and the ways out") {
  const TinyJobs jobs;
  run(jobs.load("gpt2", "run", kFour));
  struct Case {
    std::string change, path, before, after, accept;
  };
  for (const Case& one :
       {Case{"seed=8", "seed", "7", "8", "seed"}, Case{"model.with.heads=1", "model.with.heads", "2", "1", "model"},
        Case{"train.batch.global=4", "train.batch.global", "8", "4", "batch"},
        Case{"data.seq_len=4", "data.seq_len", "8", "4", "seq_len"},
        Case{"train.optimizer.name=adam", "train.optimizer.name", "adamw", "adam", "optimizer"},
        Case{"data.shuffle=false", "data.shuffle", "true", "false", "data"}}) {
    CAPTURE(one.change);
    const std::string message = refusal(jobs, "gpt2", both(kEight, {one.change}));
    CHECK(contains(message, one.path + ": " + one.before + " → " + one.after));
    CHECK(contains(message, "checkpoint.accept: [" + one.accept + "]"));
    CHECK(contains(message, "model.init_from: " + jobs.path("run/step-00000004")));
    CHECK(names_in(jobs.path("run")) == std::vector<std::string>{"step-00000004"});
  }
  // Every difference at once; and named, it is accepted.
  const std::string all = refusal(jobs, "gpt2", both(kEight, {"seed=8", "model.with.heads=1"}));
  CHECK(contains(all, "seed: 7 → 8"));
  CHECK(contains(all, "model.with.heads: 2 → 1"));
  const Trained accepted = run(jobs.load("gpt2", "run", both(kEight, {"seed=8", "checkpoint.accept=[seed]"})));
  CHECK(accepted.report.first_step == 4);
  CHECK(std::count(accepted.messages.begin(), accepted.messages.end(), "changed: seed 7 → 8") == 1);
}

TEST_CASE("a parameter keeps its optimizer, however the groups are written") {
  const TinyJobs jobs;
  const auto groups = [](const std::string& match) {
    return "train.groups=[{match: [" + match + "], optimizer: {name: lion, lr: 1e-3}}]";
  };
  run(jobs.load("gpt2", "run", both(kFour, {groups("wte.weight")})));
  const std::string moved = refusal(jobs, "gpt2", both(kEight, {groups("wpe.weight")}));
  CHECK(contains(moved, "train.groups: adamw → lion (wpe.weight): the run in"));
  CHECK(contains(moved, "train.groups: lion → adamw (wte.weight): the run in"));
  CHECK(contains(moved, "adamw for these parameters; or checkpoint.accept: [optimizer]"));
  CHECK_FALSE(contains(moved, "(not set)"));
  const std::string none = refusal(jobs, "gpt2", both(kEight, {"train.groups=[]"}));
  CHECK(contains(none, "train.groups: lion → adamw (wte.weight)"));
  const std::string all = refusal(jobs, "gpt2", both(kEight, {groups("\"*\"")}));
  CHECK(contains(all, "train.groups: adamw → lion (h.0.attn.c_attn.bias, "));
  CHECK(contains(all, " other parameters)"));
  // The same optimizers, given otherwise, and a group that takes what it would have had without it.
  const Overrides swapped{"train.optimizer={name: lion, lr: 1e-3}",
                          "train.groups=[{match: [wte.weight], optimizer: {name: lion, lr: 2e-3}}, "
                          "{match: [\"*\"], optimizer: {name: adamw, lr: 1e-2}}]"};
  CHECK(run(jobs.load("gpt2", "run", both({"train.steps=5"}, swapped))).report.first_step == 4);
  // Accepted, exp_avg becomes a state of Lion.
  const Trained accepted =
      run(jobs.load("gpt2", "run", both(kEight, {groups("wte.weight, wpe.weight"), "checkpoint.accept=[optimizer]"})));
  CHECK(accepted.report.first_step == 5);
  CHECK(std::ranges::count(accepted.messages, "changed: train.groups adamw → lion (wpe.weight)") == 1);
}

TEST_CASE("keys that a checkpoint of an earlier version lacks count as what it did") {
  const TinyJobs jobs;
  const auto of_job = [&](const Overrides& overrides) {
    SavedFacts facts;
    facts.job = describe_job(jobs.load("mlp", "run", overrides));
    return facts;
  };
  SavedFacts before = of_job({});
  std::erase_if(before.job->settings, [](const auto& setting) {
    return setting.first == "train.groups" || setting.first == "train.optimizer.states" || setting.first == "adapter" ||
           setting.first == "trainable" || setting.first == "log.every";
  });
  REQUIRE(before.job->settings.size() + 5 == of_job({}).job->settings.size());
  CHECK(differences(before, of_job({})).empty());
  CHECK(differences(before, of_job({"train.groups=[]", "train.optimizer.states=f32", "adapter=null", "trainable=all"}))
            .empty());
  const std::vector<Difference> coded = differences(before, of_job({"train.optimizer.states=int8", "log.every=5"}));
  REQUIRE(coded.size() == 2);
  CHECK(coded[0].str() == "train.optimizer.states f32 → int8");
  CHECK(coded[1].str() == "log.every (not set) → 5");
  // Its one optimizer updated every parameter.
  SavedFacts after = of_job({"train.groups=[{match: [\"*.bias\"], optimizer: {name: lion, lr: 1e-3}}]"});
  after.optimizers = {{"a.weight", "adamw"}, {"a.bias", "lion"}};
  const std::vector<Difference> moved = differences(before, after);
  REQUIRE(!moved.empty());
  CHECK(moved.back().str() == "train.groups adamw → lion (a.bias)");
  CHECK(moved.back().rule.accept == "optimizer");
  // Of several, all that is known is the name of the first.
  before = of_job({"train.optimizer={name: muon, lr: 1e-2, others: {name: adam, lr: 1e-2}}"});
  after = of_job({"train.optimizer={name: adamw, lr: 1e-2}"});
  after.optimizers = {{"a.weight", "adamw"}, {"a.bias", "adamw"}};
  const std::vector<Difference> named = differences(before, after);
  REQUIRE(std::ranges::count(named, Change::never, [](const Difference& one) { return one.rule.change; }) == 1);
  CHECK(named.front().str() == "train.optimizer.name muon → adamw");
}

TEST_CASE("a key that was not there is advised to be left out") {
  const TinyJobs jobs;
  run(jobs.load("mlp", "run", kFour));
  const std::string message = refusal(jobs, "mlp", both(kEight, {"data.val={fraction: 0.2}"}));
  CHECK(contains(message, "data.val.fraction: (not set) → 0.2"));
  CHECK(contains(message, "without data.val.fraction; or checkpoint.accept: [data]"));
}

TEST_CASE("what may change is told, a line each") {
  const TinyJobs jobs;
  run(jobs.load("mlp", "run", kFour));
  const Trained resumed = run(jobs.load(
      "mlp", "run",
      both(kEight, {"train.optimizer.lr=0.005", "cluster.devices_per_node=2", "strategy=fsdp", "log.every=5"})));
  REQUIRE(resumed.start.has_value());
  const std::vector<std::string>& changes = resumed.start->changes;
  for (const char* change :
       {"train.steps 4 → 8", "train.optimizer.lr 1.0e-2 → 0.005", "strategy auto → fsdp", "log.every 10 → 5"}) {
    CAPTURE(std::string(change));
    CHECK(std::count(changes.begin(), changes.end(), change) == 1);
  }
  CHECK(resumed.report.steps == 8);
}

TEST_CASE("the same job goes on without a word of change, wherever its data lie") {
  const TinyJobs jobs;
  const Trained first = run(jobs.load("mlp", "run", kFour));
  std::filesystem::create_directories(jobs.path("moved"));
  std::filesystem::rename(jobs.path("table.csv"), jobs.path("moved/table.csv"));
  const Trained resumed = run(jobs.load("mlp", "run", {"train.steps=8", "data.train=" + jobs.path("moved/table.csv")}));
  CHECK(resumed.report.first_step == 4);
  CHECK(resumed.report.run_id == first.report.run_id);
  CHECK(resumed.report.run_id.size() == 16);
}

TEST_CASE("data and graphs that changed under the same name are refused") {
  const TinyJobs jobs;
  const std::string table = contents_of(jobs.path("table.csv")),
                    graph = contents_of(configs_dir() + "/models/mlp.yaml");
  jobs.write("mine.yaml", graph);
  const Overrides mine{"model.graph=" + jobs.path("mine.yaml")};
  run(jobs.load("mlp", "run", both(kFour, mine)));
  jobs.write("table.csv", table + table.substr(0, table.find('\n') + 1));
  const std::string data = refusal(jobs, "mlp", both(kEight, mine));
  CHECK(contains(data, "data.train"));
  CHECK(contains(data, "bytes"));
  CHECK(contains(data, "checkpoint.accept: [data]"));
  jobs.write("table.csv", table);
  jobs.write("mine.yaml", graph + "\n# a comment changes nothing\n");
  CHECK(run(jobs.load("mlp", "run", both({"train.steps=5"}, mine))).report.first_step == 4);
  std::string other = graph;
  const std::size_t at = other.find("relu");
  REQUIRE(at != std::string::npos);
  other.replace(at, 4, "gelu");
  jobs.write("mine.yaml", other);
  CHECK(contains(refusal(jobs, "mlp", both(kEight, mine)), "model.graph"));
}

TEST_CASE("another alphabet is refused, by a run and by an evaluation") {
  const TinyJobs jobs;
  std::string text;
  for (int i = 0; i < 40; ++i) text += "the quick brown fox jumps over the lazy dog ";
  jobs.write("a.txt", text);
  std::replace(text.begin(), text.end(), 'q', 'Q');
  jobs.write("b.txt", text);
  const auto on = [&](const char* file) {
    return Overrides{
        "data={format: text, tokenizer: chars, train: " + jobs.path(file) + ", val: {fraction: 0.2}, seq_len: 8}",
        "train.steps=4", "checkpoint.accept=[data]"};
  };
  const Trained trained = run(jobs.load("gpt2", "run", on("a.txt")));
  CHECK(contains(refusal(jobs, "gpt2", both(on("b.txt"), kEight)), "checkpoint.accept: [tokenizer]"));
  const LoadedJob loaded = jobs.load("gpt2", "run", on("b.txt"));
  const std::string message = message_of<DataError>(
      [&] { evaluate(loaded, compiled(loaded, Purpose::evaluate), trained.report.checkpoint, 0); });
  CHECK(contains(message, "another tokenizer"));
}

TEST_CASE("a finished run is left as it is, and refused where the job has changed") {
  const TinyJobs jobs;
  run(jobs.load("mlp", "run"));
  const auto files = files_of(jobs.path("run/step-00000006"));
  const Trained again = run(jobs.load("mlp", "run", {"log.every=3", "train.optimizer.lr=0.010"}));
  CHECK(again.report.finished_before);
  CHECK(again.report.steps == 6);
  CHECK(again.loss.empty());
  CHECK_FALSE(again.start.has_value());
  REQUIRE(!again.messages.empty());
  CHECK(contains(again.messages.back(), "nothing left to do: 6 of 6 steps"));
  CHECK(contains(refusal(jobs, "mlp", {"train.optimizer.lr=0.5"}),
                 "train.optimizer.lr: 1.0e-2 → 0.5: the run in " + jobs.path("run/step-00000006") + " has finished"));
  const std::string fewer = refusal(jobs, "mlp", {"train.steps=3"});
  CHECK(contains(fewer, "train.steps: 6 → 3"));
  CHECK(files_of(jobs.path("run/step-00000006")) == files);
  CHECK(run(jobs.load("mlp", "run", {"train.steps=7"})).report.first_step == 6);
}

TEST_CASE("a run from the start or from an earlier step is refused where later checkpoints would win") {
  const TinyJobs jobs;
  run(jobs.load("mlp", "run", {"checkpoint.every=2"}));
  for (const std::string& from : {std::string("none"), jobs.path("run/step-00000002")}) {
    const std::string message = refusal(jobs, "mlp", {"checkpoint.resume=" + from});
    CHECK(contains(message, "has a later checkpoint, step-00000006"));
    CHECK(contains(message, "another checkpoint.dir"));
  }
  CHECK(run(jobs.load("mlp", "other", {"checkpoint.resume=" + jobs.path("run/step-00000002")})).report.first_step == 2);
  CHECK(run(jobs.load("mlp", "fresh", {"checkpoint.resume=none"})).report.first_step == 0);
}

TEST_CASE("a checkpoint in a folder whose name begins like checkpoint.dir is not in it") {
  const TinyJobs jobs;
  run(jobs.load("mlp", "w2x"));
  const Trained trained = run(jobs.load("mlp", "w2", {"checkpoint.resume=" + jobs.path("w2x/step-00000006")}));
  CHECK(names_in(jobs.path("w2")) == std::vector<std::string>{"step-00000006"});
  CHECK(trained.report.checkpoint == jobs.path("w2/step-00000006"));
}

TEST_CASE("the checkpoint with the lowest validation loss is kept, saved when it was measured") {
  const TinyJobs jobs;
  // The rate is so large at the end that the loss rises again.
  const Overrides job{"data.val={fraction: 0.3}",
                      "train.steps=12",
                      "eval.every=1",
                      "eval.batches=100",
                      "checkpoint.keep=1",
                      "checkpoint.keep_best=true",
                      "train.optimizer={name: sgd, lr: 0.5}",
                      "train.lr_schedule={name: constant, warmup_steps: 0}"};
  const Trained trained = run(jobs.load("mlp", "run", job));
  const auto best = std::min_element(trained.evaluations.begin(), trained.evaluations.end(),
                                     [](const auto& a, const auto& b) { return a.val_loss < b.val_loss; });
  const std::string name = step_name(best->step);
  CHECK(std::filesystem::exists(jobs.path("run/" + name)));
  CHECK(std::filesystem::exists(jobs.path("run/step-00000012")));
  CHECK(names_in(jobs.path("run")).size() <= 3);  // the newest, the newest that is known to be good, the best
  const LoadedJob loaded = jobs.load("mlp", "run", job);
  CHECK(evaluate(loaded, compiled(loaded, Purpose::evaluate), jobs.path("run/" + name), 0).val_loss ==
        doctest::Approx(best->val_loss).epsilon(1e-6));
}

TEST_CASE("eval.every: null turns evaluation off") {
  const TinyJobs jobs;
  CHECK(run(jobs.load("mlp", "run", {"data.val={fraction: 0.3}", "eval.every=null"})).evaluations.empty());
}

TEST_CASE("every key of a job has its row in the table of what may change") {
  for (const FieldDef& field : job_fields()) {
    CAPTURE(std::string(field.name));
    const ChangeRule rule = change_rule(field.name);
    CHECK((rule.change != Change::never || !rule.accept.empty()));
  }
  CHECK(change_rule("train.optimizer.lr").change == Change::training);
  CHECK(change_rule("train.optimizer.name").accept == "optimizer");
  CHECK(change_rule("train.groups[3].optimizer.lr").change == Change::training);
  CHECK(change_rule("data.val").change == Change::training);
  CHECK(change_rule("data.val.fraction").accept == "data");
  CHECK(change_rule("nothing.known").change == Change::never);
}
