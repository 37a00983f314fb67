// Jobs: mistakes found at their places, defaults, overrides, origins, paths.
#include "engine/job/job.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "engine/job/unsupported.h"
#include "tests/job/bad_files.h"

namespace trainer::job_test {
namespace {

const std::string kModel = "model: {graph: m.yaml}\n", kData = "data: {format: text, train: a.txt}\n",
                  kTrain = "train: {steps: 100}\n";
const std::string kSmall = kModel + kData + kTrain;
const LoadOptions kNoFiles{.configs_dir = {}, .check_files = false};

std::string source_dir() { return TRAINER_SOURCE_DIR; }

LoadedJob parsed(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_job(text, "jobs/job.yaml", overrides, kNoFiles);
}

std::vector<Diagnostic> mistakes_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parsed(text, overrides);
  } catch (const JobError& error) {
    return error.diagnostics();
  }
  return {};
}

TEST_CASE("every mistake of a job is told at its line and column, with its key path and the nearest name") {
  const std::vector<tests::BadFile> jobs =
      tests::read_bad_files(source_dir() + "/tests/job/bad_jobs.txt", [](std::string& text) {
        for (const auto& [name, whole] : {std::pair{"@model\n", kModel}, {"@data\n", kData}, {"@train\n", kTrain}}) {
          const std::size_t at = text.find(name);
          if (at != std::string::npos) text.replace(at, std::string(name).size(), whole);
        }
      });
  CHECK(jobs.size() >= 70);
  for (const tests::BadFile& job : jobs) tests::check_mistakes(job, "jobs/job.yaml", mistakes_of(job.text));
}

TEST_CASE("a mistake prints as file:line:column, key path, the nearest name and the line itself") {
  const std::vector<Diagnostic> found = mistakes_of(kModel + kData + "train: {steps: 10, optimiser: {name: adam}}\n");
  REQUIRE(found.size() == 1);
  CHECK(found[0].str() ==
        "jobs/job.yaml:3:20: error: train.optimiser: unknown key; did you mean \"optimizer\"?\n"
        "    train: {steps: 10, optimiser: {name: adam}}\n"
        "                       ^");
}

TEST_CASE("a number out of range names the value and the range") {
  const std::vector<Diagnostic> found = mistakes_of(kModel + kData + "train: {steps: -1}\n");
  REQUIRE(found.size() == 1);
  CHECK(found[0].value == "-1");
  CHECK(found[0].allowed == "an integer of at least 0");
}

TEST_CASE("what does not divide names the nearest that do") {
  const auto allowed = [](const std::string& text) {
    const std::vector<Diagnostic> found = mistakes_of(text);
    return found.size() == 1 ? found[0].allowed : std::to_string(found.size()) + " mistakes";
  };
  CHECK(allowed(kModel + kData + "train: {steps: 10, batch: {global: 12, micro: 5}}\n") == "1, 2, 3, 4, 6 or 12");
  CHECK(allowed(kModel + kData + "train: {steps: 10, batch: {global: 12, micro: 50}}\n") == "1, 2, 3, 4, 6 or 12");
  CHECK(allowed(kModel + kData +
                "train: {steps: 1, batch: {global: 10}}\nstrategy: ddp\ncluster: {devices_per_node: 4}\n") ==
        "8 or 12");
}

TEST_CASE("of very many mistakes the first fifty are told and the rest are counted") {
  std::string text = kSmall;
  for (int i = 0; i < 60; ++i) text += "unknown_" + std::to_string(i) + ": 1\n";
  const std::vector<Diagnostic> found = mistakes_of(text);
  REQUIRE(found.size() == 51);
  CHECK(found[49].line == 53);
  CHECK(found[50].str() == "jobs/job.yaml: error: and 10 more mistakes");
}

// ---- Good jobs ------------------------------------------------------------------------------------------------------

TEST_CASE("a job with a model folder has its tokenizer, unless it names another") {
  const auto tokenizer_of = [](const std::string& model, const std::string& tokenizer) {
    const DataJob data =
        parsed("model: " + model + "\ndata: {format: text, train: a.txt" + tokenizer + "}\n" + kTrain).job.data;
    return data.tokenizer == Tokenizer::file ? data.tokenizer_file : std::string(name_of(data.tokenizer));
  };
  CHECK(tokenizer_of("{from: qwen}", "") == "jobs/qwen");
  CHECK(tokenizer_of("{from: qwen}", ", tokenizer: auto") == "jobs/qwen");
  CHECK(tokenizer_of("{from: qwen}", ", tokenizer: bytes") == "bytes");
  CHECK(tokenizer_of("{from: qwen}", ", tokenizer: other/tokenizer.json") == "jobs/other/tokenizer.json");
  CHECK(tokenizer_of("{graph: m.yaml}", "") == "bytes");
  const LoadedJob loaded = parsed("model: {from: qwen}\ndata: {format: text, train: a.txt}\n" + kTrain);
  CHECK(loaded.setting("data.tokenizer")->value == "auto");
  CHECK(loaded.setting("data.tokenizer")->from == Setting::From::otherwise);
  CHECK(parsed("model: {from: qwen}\ndata: {format: tokens, train: a.bin}\n" + kTrain).setting("data.tokenizer") ==
        nullptr);
}

TEST_CASE("model, data and steps are a whole job, and the rest has defaults") {
  const Job job = parsed(kSmall).job;
  CHECK(job.name == "job");
  CHECK(job.seed == 1337);
  CHECK(job.model.graph == "jobs/m.yaml");
  CHECK(job.data.train.paths == std::vector<std::string>{"jobs/a.txt"});
  CHECK_FALSE(job.data.has_val());
  CHECK(job.data.tokenizer == Tokenizer::bytes);
  CHECK(job.data.seq_len == 256);
  CHECK(job.data.shuffle);
  CHECK(job.train.steps == 100);
  CHECK(job.train.batch.global == 64);
  CHECK_FALSE(job.train.batch.micro);
  CHECK(job.train.optimizer.name == OptimizerName::adamw);
  CHECK(job.train.optimizer.lr == 1e-3);
  CHECK(job.train.optimizer.betas == std::array<double, 2>{0.9, 0.999});
  CHECK(job.train.optimizer.weight_decay == 0.1);
  CHECK(job.train.lr_schedule.name == ScheduleName::cosine);
  CHECK(job.train.clip_norm == 1.0);
  CHECK_FALSE(job.eval);
  CHECK(job.precision.compute == DType::f32);
  CHECK(job.activation_checkpointing.mode == CheckpointingMode::automatic);  // strategy: auto decides it too
  CHECK(job.strategy.free.data);
  CHECK(job.cluster.device == Device::automatic);
  CHECK(job.checkpoint.dir == "jobs/runs/job");
  CHECK(parsed("name: a/b\n" + kSmall).job.checkpoint.dir == "jobs/runs/a_b");
  CHECK_FALSE(parsed(kSmall + "checkpoint: {dir: null}\n").job.checkpoint.dir);
  CHECK(job.train.on_nan == OnNan::stop);
  CHECK(job.log.every == 10);
  CHECK_FALSE(job.log.jsonl);
}

TEST_CASE("every key has its place in the job") {
  const Job job = parsed(R"(
name: full
seed: 7
model: {graph: {nodes: []}, with: {layers: 6, dropout: 0.5}, init_from: weights.safetensors}
trainable: ["*norm*", head.weight]
adapter: {kind: lora, rank: 8, alpha: 12.5, dropout: 0.1, targets: ["*.q_proj"], scaled_by_root: true, magnitude: false, from: start.safetensors}
data: {format: tokens, train: [a.bin, /b.bin], val: v.bin, token_type: u32, seq_len: 1_024, shuffle: false}
train:
  steps: 1e3
  batch: {global: 64, micro: 2}
  optimizer: {name: sgd, lr: 0.1, momentum: 0.9, nesterov: true, weight_decay: 0.01, decay: all}
  lr_schedule: {name: wsd, warmup_steps: 100, min_lr: 0.01, decay_steps: 200}
  clip_norm: null
eval: {every: 50, batches: 3}
precision: {params: bf16, compute: f16, reduce: bf16, loss_scale: 1024}
activation_checkpointing: {mode: every_n, every: 3}
strategy:
  data: {kind: fsdp, sharding: hybrid_shard, replicate: 2, keep: step, reduce: micro_batch, prefetch: 3, bucket_mb: 12.5, compression: none}
  tensor: {degree: 2, sequence_parallel: true}
  pipeline: {degree: 2, schedule: zb_v, split: [h.1, h.2, h.3]}
  wrap: {policy: size, min_params: 1_000, excluded: ["h.*.ln_1", ln_f]}
cluster: {device: cuda, backend: nccl, nodes: 2, devices_per_node: 8, hardware: h100}
checkpoint: {dir: ../runs/full, every: 10, keep: null, keep_best: true, format: sharded, resume: step-5, accept: [data, seed]}
log: {every: 1, jsonl: log.jsonl, tensorboard: tb, trace: /tmp/trace.json}
)")
                      .job;
  CHECK(job.name == "full");
  CHECK(job.seed == 7);
  CHECK(job.model.graph.empty());
  REQUIRE(job.model.inline_graph);
  CHECK(job.model.inline_graph->find("nodes") != nullptr);
  CHECK(job.model.with == std::map<std::string, ParamValue>{{"layers", ParamValue(6.0)}, {"dropout", ParamValue(0.5)}});
  CHECK(job.model.init_from == "jobs/weights.safetensors");
  CHECK(job.trainable.kind == TrainableJob::Kind::globs);
  CHECK(job.trainable.globs == std::vector<std::string>{"*norm*", "head.weight"});
  REQUIRE(job.adapter);
  CHECK(job.adapter->kind == AdapterKind::lora);
  CHECK(job.adapter->rank == 8);
  CHECK(job.adapter->alpha == 12.5);
  CHECK(job.adapter->dropout == 0.1);
  CHECK(job.adapter->targets == std::vector<std::string>{"*.q_proj"});
  CHECK(job.adapter->scaled_by_root);
  CHECK(job.adapter->from == "jobs/start.safetensors");
  CHECK(job.data.format == DataFormat::tokens);
  CHECK(job.data.train.paths == std::vector<std::string>{"jobs/a.bin", "/b.bin"});
  REQUIRE(std::holds_alternative<DataFiles>(job.data.val));
  CHECK(std::get<DataFiles>(job.data.val).paths == std::vector<std::string>{"jobs/v.bin"});
  CHECK(job.data.token_type == TokenType::u32);
  CHECK(job.data.seq_len == 1024);
  CHECK_FALSE(job.data.shuffle);
  CHECK(job.train.steps == 1000);
  CHECK(job.train.batch.micro == 2);
  CHECK(job.train.optimizer.name == OptimizerName::sgd);
  CHECK(job.train.optimizer.momentum == 0.9);
  CHECK(job.train.optimizer.nesterov);
  CHECK(job.train.optimizer.decay == Decay::all);
  CHECK(job.train.lr_schedule.decay_steps == 200);
  CHECK_FALSE(job.train.clip_norm);
  REQUIRE(job.eval);
  CHECK(job.eval->batches == 3);
  CHECK(job.precision.params == DType::bf16);
  CHECK(job.precision.compute == DType::f16);
  CHECK(job.precision.loss_scale.mode == LossScale::Mode::fixed);
  CHECK(job.precision.loss_scale.factor == 1024);
  CHECK(job.activation_checkpointing.mode == CheckpointingMode::every_n);
  CHECK(job.activation_checkpointing.every == 3);
  CHECK_FALSE(job.strategy.free.any());
  CHECK(job.strategy.data.kind == DataKind::fsdp);
  CHECK(job.strategy.data.sharding == Sharding::hybrid_shard);
  CHECK(job.strategy.data.replicate == 2);
  CHECK(job.strategy.data.keep == Keep::step);
  CHECK(job.strategy.data.reduce == Reduce::micro_batch);
  CHECK(job.strategy.data.prefetch == 3);
  CHECK(job.strategy.data.bucket_mb == 12.5);
  CHECK(job.strategy.data.compression.kind == Compression::Kind::none);
  CHECK(job.strategy.tensor.degree == 2);
  CHECK(job.strategy.tensor.sequence_parallel);
  CHECK(job.strategy.pipeline.degree == 2);
  CHECK(job.strategy.pipeline.schedule == PipelineSchedule::zb_v);
  CHECK(job.strategy.pipeline.virtual_stages == 2);
  CHECK(job.strategy.pipeline.split_policy == SplitPolicy::names);
  CHECK(job.strategy.pipeline.split == std::vector<std::string>{"h.1", "h.2", "h.3"});
  CHECK(job.strategy.wrap.policy == WrapPolicy::size);
  CHECK(job.strategy.wrap.min_params == 1000);
  CHECK(job.strategy.wrap.excluded == std::vector<std::string>{"h.*.ln_1", "ln_f"});
  CHECK(job.cluster.device == Device::cuda);
  CHECK(job.cluster.backend == Backend::nccl);
  CHECK(job.cluster.nodes == 2);
  CHECK(job.cluster.devices_per_node == 8);
  CHECK(job.cluster.hardware == "h100");
  CHECK(job.checkpoint.dir == "runs/full");
  CHECK_FALSE(job.checkpoint.keep);
  CHECK(job.checkpoint.keep_best);
  CHECK(job.checkpoint.accept == std::vector<std::string>{"data", "seed"});
  CHECK(job.checkpoint.format == CheckpointFormat::sharded);
  CHECK(job.checkpoint.resume == CheckpointJob::Resume::path);
  CHECK(job.checkpoint.resume_from == "jobs/step-5");
  CHECK(job.log.jsonl == "jobs/log.jsonl");
  CHECK(job.log.trace == "/tmp/trace.json");
}

TEST_CASE("all is trained, but where there is an adapter nothing else, unless the job says so") {
  const std::string base = "model: {graph: m.yaml, init_from: w.safetensors}\n" + kData + kTrain;
  CHECK(parsed(kSmall).job.trainable.kind == TrainableJob::Kind::all);
  CHECK_FALSE(parsed(kSmall).job.adapter);
  for (const char* adapter : {"adapter: lora\n", "adapter: {}\n", "adapter: {targets: all-linear}\n"}) {
    CAPTURE(std::string(adapter));
    const LoadedJob loaded = parsed(base + adapter);
    REQUIRE(loaded.job.adapter);
    CHECK(loaded.job.adapter->rank == 16);
    CHECK(loaded.job.adapter->alpha == 32);
    CHECK(loaded.job.adapter->targets.empty());
    CHECK(loaded.job.trainable.kind == TrainableJob::Kind::adapter);
    CHECK(parsed(effective_job(loaded)).job.trainable.kind == TrainableJob::Kind::adapter);
    CHECK(parsed(base + adapter + "trainable: all\n").job.trainable.kind == TrainableJob::Kind::all);
  }
  CHECK_FALSE(parsed(base + "adapter: null\n").job.adapter);
}

TEST_CASE("a table's target is a column's number or name, and idx has two files") {
  CHECK(std::get<std::int64_t>(
            parsed(kModel + kTrain + "data: {format: table, train: a.csv, target: 3}").job.data.target) == 3);
  CHECK(std::get<std::string>(
            parsed(kModel + kTrain + "data: {format: table, train: a.csv, target: label}").job.data.target) == "label");
  const Job job =
      parsed(kModel + kTrain + "data: {format: idx, train: {images: i, labels: l}, val: {fraction: 0.1}}").job;
  CHECK(job.data.train.images == "jobs/i");
  CHECK(job.data.train.labels == "jobs/l");
  CHECK(std::get<double>(job.data.val) == 0.1);
  CHECK(job.eval);
}

TEST_CASE("a strategy's name gives what its explicit form gives") {
  for (const char* kind : {"ddp", "zero1", "zero2", "zero3", "fsdp", "local_sgd"}) {
    CAPTURE(kind);
    const StrategyJob named = parsed(kSmall + "strategy: " + kind).job.strategy;
    const StrategyJob form = parsed(kSmall + "strategy: {data: {kind: " + kind + "}}").job.strategy;
    CHECK(named.free == form.free);
    CHECK(named.data.kind == form.data.kind);
    CHECK(named.data.sharding == form.data.sharding);
    CHECK(named.data.replicate == form.data.replicate);
    CHECK(named.data.keep == form.data.keep);
    CHECK(named.data.reduce == form.data.reduce);
    CHECK(named.data.prefetch == form.data.prefetch);
    CHECK(named.data.bucket_mb == form.data.bucket_mb);
    CHECK(named.data.compression.kind == form.data.compression.kind);
    CHECK(named.data.every == form.data.every);
    CHECK(named.data.outer.has_value() == form.data.outer.has_value());
    CHECK(named.data.delayed == form.data.delayed);
    CHECK(named.wrap.excluded == form.wrap.excluded);
    CHECK(named.wrap.policy == form.wrap.policy);
  }
  CHECK_FALSE(parsed(kSmall + "strategy: tensor").job.strategy.tensor.degree);
  CHECK_FALSE(parsed(kSmall + "strategy: pipeline").job.strategy.pipeline.degree);
}

TEST_CASE("a profile fills in what the file leaves open, visibly") {
  const LoadedJob loaded = parsed(kSmall + "strategy: {data: {kind: ddp, bucket_mb: 7}, profile: low_bandwidth}");
  CHECK(loaded.job.strategy.data.bucket_mb == 7);
  CHECK(loaded.job.strategy.data.compression.kind == Compression::Kind::int8);
  CHECK(loaded.setting("strategy.data.compression")->from == Setting::From::profile);
  CHECK(effective_job(loaded).find("compression: int8") != std::string::npos);
}

TEST_CASE("a profile fills in only what the kind of strategy can do") {
  const auto filled = [](const std::string& data, const std::string& profile) {
    const LoadedJob loaded = parsed(kSmall + "strategy: {data: " + data + ", profile: " + profile + "}");
    std::string out;
    for (const Setting& setting : loaded.settings)
      if (setting.from == Setting::From::profile)
        out += setting.path.substr(setting.path.rfind('.') + 1) + "=" + setting.value + " ";
    return out;
  };
  CHECK(filled("{kind: ddp}", "low_bandwidth") == "bucket_mb=100 compression=int8 ");
  CHECK(filled("{kind: ddp}", "high_bandwidth") == "bucket_mb=25 compression=none ");
  CHECK(filled("{kind: ddp, compression: {top_k: 0.01}}", "low_bandwidth") == "bucket_mb=100 ");
  CHECK(filled("{kind: zero1}", "low_bandwidth") == "bucket_mb=100 compression=int8 ");
  CHECK(filled("{kind: zero2}", "low_bandwidth") == "bucket_mb=100 ");
  CHECK(filled("{kind: zero3}", "low_bandwidth") == "bucket_mb=100 ");
  CHECK(filled("{kind: fsdp}", "low_bandwidth") == "bucket_mb=100 ");
  CHECK(filled("{kind: fsdp, sharding: no_shard}", "low_bandwidth") == "bucket_mb=100 compression=int8 ");
  CHECK(filled("{kind: local_sgd}", "low_bandwidth") == "bucket_mb=100 every=50 ");
  CHECK(filled("{kind: local_sgd}", "high_bandwidth") == "bucket_mb=25 every=10 ");
}

TEST_CASE("local SGD takes DiLoCo's outer optimizer, with its numbers unless others are given") {
  const auto data = [](const std::string& keys) {
    return parsed(kSmall + "strategy: {data: {kind: local_sgd" + keys + "}}").job.strategy.data;
  };
  CHECK_FALSE(data("").outer);
  CHECK_FALSE(data(", outer: none").outer);
  CHECK(data(", delayed: true").delayed);
  const std::optional<OuterJob> given = data(", outer: {lr: 0.9, momentum: 0.8, nesterov: false}").outer,
                                plain = data(", outer: {}").outer;
  REQUIRE(given);
  CHECK(given->lr == 0.9);
  CHECK(given->momentum == 0.8);
  CHECK_FALSE(given->nesterov);
  REQUIRE(plain);
  CHECK(plain->lr == 0.7);
  CHECK(plain->momentum == 0.9);
  CHECK(plain->nesterov);
  REQUIRE(data(", outer: {momentum: 0}").outer);
  CHECK_FALSE(data(", outer: {momentum: 0}").outer->nesterov);
}

TEST_CASE("local SGD in parts ends its round with the last one, and compresses outer gradients") {
  const auto data = [](const std::string& keys) {
    return parsed(kSmall + "strategy: {data: {kind: local_sgd, every: 10, " + keys + "}}").job.strategy.data;
  };
  const DataStrategyJob one = data("outer: {}"), three = data("parts: 3, outer: {compression: int8}"),
                        top = data("outer: {compression: {top_k: 0.5}}");
  CHECK(one.parts == 1);
  CHECK(one.step_of_part(0) == 10);
  CHECK(one.compression_of_sums().kind == Compression::Kind::none);
  CHECK(three.step_of_part(0) == 3);
  CHECK(three.step_of_part(1) == 6);
  CHECK(three.step_of_part(2) == 10);
  CHECK(three.compression_of_sums().kind == Compression::Kind::int8);
  CHECK(top.compression_of_sums().fraction == 0.5);
}

TEST_CASE("a pipeline's chunks are by cost, of equal size, or begin at names; each schedule has its number of them") {
  const auto pipeline = [](const std::string& keys) {
    return parsed(kSmall + "strategy: {pipeline: {degree: 2" + keys + "}}").job.strategy.pipeline;
  };
  CHECK(pipeline("").split_policy == SplitPolicy::automatic);
  CHECK(pipeline(", split: uniform").split_policy == SplitPolicy::uniform);
  CHECK(pipeline(", split: [h.1]").split_policy == SplitPolicy::names);
  for (const char* schedule : {"gpipe", "1f1b", "zb_h1", "zb_h2"})
    CHECK(pipeline(std::string(", schedule: ") + schedule).virtual_stages == 1);
  for (const char* schedule : {"interleaved", "looped_bfs", "zb_v"})
    CHECK(pipeline(std::string(", schedule: ") + schedule).virtual_stages == 2);
  CHECK(pipeline(", schedule: looped_bfs, virtual_stages: 1").virtual_stages == 1);
  CHECK(pipeline(", schedule: looped_bfs, virtual_stages: 4").virtual_stages == 4);
}

TEST_CASE("an axis of one rank takes no keys but its degree") {
  const LoadedJob loaded = parsed(kSmall + "strategy: {tensor: {degree: 1}, pipeline: {degree: 1.0}}");
  CHECK(loaded.job.strategy.pipeline.schedule == PipelineSchedule::one_f_one_b);
  CHECK(loaded.setting("strategy.pipeline.schedule") == nullptr);
  CHECK(loaded.setting("strategy.tensor.sequence_parallel") == nullptr);
  // An override may take an axis away whose keys stay in the file.
  const std::string text = kSmall + "strategy: {pipeline: {degree: 4, schedule: zb_v, split: uniform}}";
  CHECK(parsed(text, {"strategy.pipeline.degree=1"}).job.strategy.pipeline.virtual_stages == 1);
}

TEST_CASE("the explicit form with all its keys is a strategy") {
  const Job job = parsed(kSmall + R"(
strategy:
  data:     {kind: fsdp, sharding: full_shard, replicate: 1, keep: auto, reduce: auto, prefetch: 1, bucket_mb: 25, compression: none}
  tensor:   {degree: 2, sequence_parallel: true}
  pipeline: {degree: 4, schedule: 1f1b, virtual_stages: 1, split: auto}
  wrap:     {policy: transformer, block: TransformerBlock}
  profile:  high_bandwidth
)")
                      .job;
  CHECK(job.strategy.tensor.sequence_parallel);
  CHECK(job.strategy.data.replicate == 1);
}

TEST_CASE("nodes that keep f32 stay in the file where an override computes in f32 all the same") {
  const std::string text = kSmall + "precision: {compute: bf16}\nstrategy: {wrap: {excluded: [ln_f]}}\n";
  CHECK(parsed(text, {"precision.compute=f32"}).job.strategy.wrap.excluded.size() == 1);
  CHECK(mistakes_of(kSmall, {"strategy.wrap.excluded=[ln_f]"}).size() == 1);
}

TEST_CASE("a key without effect names the values that would give it one") {
  const auto allowed = [](const std::string& strategy) {
    const std::vector<Diagnostic> found = mistakes_of(kSmall + "strategy: " + strategy + "\n");
    return found.size() == 1 ? found[0].allowed : std::to_string(found.size()) + " mistakes";
  };
  CHECK(allowed("{pipeline: {degree: 1, schedule: gpipe}}") == "only where degree is above 1, auto");
  CHECK(allowed("{pipeline: {degree: 1, virtual_stages: 2}}") == "only where degree is above 1, auto");
  CHECK(allowed("{data: {kind: zero1, keep: use}}") == "only where kind is zero3, fsdp");
  CHECK(allowed("{data: {kind: fsdp, sharding: no_shard, keep: use}}") ==
        "only where kind is zero3 or sharding is full_shard, shard_grad_op, hybrid_shard");
  CHECK(allowed("{data: {kind: zero2, compression: bf16}}") == "none, or the kinds ddp, zero1, and fsdp with no_shard");
}

TEST_CASE("every job of configs/ is right, is carried out by this build, and loads in under 5 ms") {
  double least_ms = 1e9;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/configs")) {
    if (entry.path().extension() != ".yaml") continue;
    CAPTURE(entry.path().string());
    for (int i = 0; i < 3; ++i) {
      const std::clock_t begin = std::clock();
      const LoadedJob loaded = load_job(entry.path().string());
      least_ms = std::min(least_ms, 1000.0 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
      CHECK(unsupported(loaded).empty());
    }
    ++count;
  }
  CHECK(count >= 9);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(least_ms < 5);
#endif
}

// ---- Overrides ------------------------------------------------------------------------------------------------------

TEST_CASE("an override replaces a value, and one that was not there") {
  const LoadedJob loaded =
      parsed(kSmall, {"train.steps=7", "train.optimizer.betas=[0.8, 0.9]", "log={every: 2}", "train.clip_norm="});
  CHECK(loaded.job.train.steps == 7);
  CHECK(loaded.job.train.optimizer.betas == std::array<double, 2>{0.8, 0.9});
  CHECK(loaded.job.log.every == 2);
  CHECK_FALSE(loaded.job.train.clip_norm);
  CHECK(loaded.setting("train.steps")->from == Setting::From::command_line);
  CHECK(loaded.setting("train.optimizer.lr")->from == Setting::From::otherwise);
}

TEST_CASE("of two overrides of a key the last holds") {
  CHECK(parsed(kSmall, {"train.steps=7", "train.steps=8"}).job.train.steps == 8);
}

TEST_CASE("paths of the command line are relative to the working directory") {
  const LoadedJob loaded = parsed(kSmall, {"data.train=other/b.txt"});
  CHECK(loaded.job.data.train.paths == std::vector<std::string>{std::filesystem::absolute("other/b.txt").string()});
}

TEST_CASE("a mistake in an override is told at the command line") {
  const std::vector<Diagnostic> found = mistakes_of(kSmall, {"train.steps=many", "train.optimiser.lr=1"});
  REQUIRE(found.size() == 2);
  CHECK(found[0].path == "train.optimiser");
  CHECK(found[0].suggestion == "optimizer");
  CHECK(found[1].str() ==
        "command line: error: train.steps: wrong type (found many); allowed: an integer of at least 0\n"
        "    train.steps=many\n"
        "                ^");
}

TEST_CASE("an override that is not YAML is told at its place") {
  const std::vector<Diagnostic> found = mistakes_of(kSmall, {"train.steps=[1,"});
  REQUIRE(found.size() == 1);
  CHECK(found[0].path == "train.steps");
  CHECK(found[0].file == "command line");
}

TEST_CASE("an override that is none is a mistake of the command line") {
  for (const char* text : {"train.steps", "=3", ".steps=3", "train..steps=3", "train.=3"})
    CHECK_THROWS_AS(parsed(kSmall, {text}), UsageError);
}

TEST_CASE("an override under a value that is no section is a mistake") {
  const std::vector<Diagnostic> found = mistakes_of(kSmall + "strategy: ddp\n", {"strategy.data.kind=fsdp"});
  REQUIRE(found.size() == 1);
  CHECK(found[0].message.find("no section") != std::string::npos);
}

TEST_CASE("what an override switches off may stay in the file") {
  const std::string text = kSmall + "checkpoint: {dir: runs, every: 10}\n";
  CHECK_FALSE(parsed(text, {"checkpoint.dir=null"}).job.checkpoint.dir);
  CHECK(mistakes_of(text, {"checkpoint.dir=null", "checkpoint.every=5"}).size() == 1);
}

TEST_CASE("a run cut short from the command line keeps its warm-up") {
  const std::string text =
      kModel + kData + "train: {steps: 1000, lr_schedule: {name: wsd, warmup_steps: 100, decay_steps: 200}}\n";
  CHECK(parsed(text, {"train.steps=5"}).job.train.lr_schedule.warmup_steps == 100);
  CHECK(parsed(text, {"train.steps=0"}).job.train.steps == 0);
}

// ---- The effective job ----------------------------------------------------------------------------------------------

TEST_CASE("the effective job is a job that reads back to the same") {
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/configs")) {
    if (entry.path().extension() != ".yaml") continue;
    CAPTURE(entry.path().string());
    const LoadedJob first = load_job(entry.path().string(), {"train.optimizer.weight_decay=0.25"});
    const LoadedJob second = parse_job(effective_job(first), entry.path().string());
    REQUIRE(first.settings.size() == second.settings.size());
    for (std::size_t i = 0; i < first.settings.size(); ++i) {
      CHECK(first.settings[i].path == second.settings[i].path);
      CHECK(first.settings[i].value == second.settings[i].value);
    }
  }
}

TEST_CASE("the effective job says where each value came from") {
  const std::string text = effective_job(parsed(kSmall, {"seed=3"}));
  const auto line_of = [&](const std::string& key) {
    const std::size_t begin = text.find(key);
    return begin == std::string::npos ? std::string() : text.substr(begin, text.find('\n', begin) - begin);
  };
  CHECK(line_of("seed:").ends_with("# command line"));
  CHECK(line_of("steps:").ends_with("# job.yaml:3"));
  CHECK(line_of("clip_norm:").ends_with("# default"));
}

// ---- What a build can do --------------------------------------------------------------------------------------------

TEST_CASE("a value that is known but beyond this build is refused at its place, by its name") {
  const auto refusals = [](const std::string& text) {
    std::string out;
    for (const Diagnostic& mistake : unsupported(parsed(kSmall + text))) {
      out += mistake.path + "@" + std::to_string(mistake.line) + ":" + std::to_string(mistake.column) + " ";
      CHECK_FALSE(mistake.allowed.empty());
    }
    return out;
  };
  CHECK(refusals("strategy: auto").empty());
  CHECK(refusals("strategy: ddp").empty());
  CHECK(refusals("strategy: {data: {kind: ddp}, wrap: {policy: transformer}}").empty());
  for (const char* name : {"fsdp", "zero1", "zero2", "zero3", "tensor", "pipeline"})
    CHECK(refusals("strategy: " + std::string(name)).empty());
  CHECK(refusals("strategy: local_sgd").empty());
  CHECK(refusals("strategy: {data: {compression: int8}}").empty());
  CHECK(refusals("precision: {compute: bf16}\nstrategy: {wrap: {excluded: [ln_f]}}").empty());
  CHECK(refusals("strategy: {profile: low_bandwidth}").empty());
  CHECK(refusals("strategy: {offload: disk}").empty());
  CHECK(
      refusals("strategy: {offload: {optimizer: host, gradients: host, parameters: none, activations: disk}}").empty());
  const std::string on_host = "strategy: {offload: {optimizer: host, update: host}}";
  CHECK(refusals(on_host).empty());
  CHECK_THROWS_WITH_AS(refusals("strategy: {offload: {optimizer: disk, update: host}}"),
                       doctest::Contains("4:39: error: strategy.offload.update: has no effect where "), JobError);
  CHECK_THROWS_WITH_AS(refusals("precision: {compute: f16}\n" + on_host),
                       doctest::Contains("5:47: error: strategy.offload.update: no kernel of a processor makes "),
                       JobError);
  CHECK(refusals("cluster: {device: cuda, backend: nccl}") == "");  // can be planned
  CHECK(refusals("cluster: {backend: mpi, nodes: 2}") == "");       // whether MPI is there counts where ranks start
  CHECK(refusals("precision: {params: bf16, compute: f16, reduce: f16, loss_scale: dynamic}") ==
        "precision.params@4:21 precision.reduce@4:49 ");  // whether a device computes in f16 counts where it is known
}

TEST_CASE(
    "where no GPU can be used, jobs for GPUs can be planned and not run: the refusal says why and stands where they "
    "were asked for") {
  const auto refusal = [](const std::string& text, const std::string& no_gpu) {
    std::string out;
    for (const Diagnostic& mistake : not_runnable(parsed(kSmall + text), no_gpu)) {
      out += mistake.path + "@" + std::to_string(mistake.line) + ":" + std::to_string(mistake.column) + " ";
      CHECK(mistake.message.find(": " + no_gpu + "; ") != std::string::npos);
    }
    return out;
  };
  for (const std::string why : {"this build has no CUDA", "no driver of NVIDIA's is installed"}) {
    CHECK(refusal("cluster: {device: cuda, hardware: h100-sxm}", why) == "cluster.hardware@4:35 ");
    CHECK(refusal("cluster: {device: cuda}", why) == "cluster.device@4:19 ");
    CHECK(refusal("cluster: {backend: nccl}", why) == "cluster.backend@4:20 ");
    CHECK(refusal("cluster: {device: cpu, backend: mpi}", why) == "");
  }
  CHECK(refusal("cluster: {device: cuda, hardware: h100-sxm, backend: nccl}", "") == "");
}

TEST_CASE("amounts of memory take binary units, and a goal is one of three") {
  const Job job = parsed(kSmall + "goal: memory\ncluster: {memory_limit: 1.5GiB, price_per_device_hour: 2.5}\n").job;
  CHECK(job.goal == Goal::memory);
  CHECK(job.cluster.memory_limit == std::int64_t{3} << 29);
  CHECK(job.cluster.price_per_device_hour == 2.5);
  CHECK(parsed(kSmall).job.goal == Goal::time);
  CHECK_FALSE(parsed(kSmall).job.cluster.memory_limit);
  const auto limit = [](const std::string& text) {
    return parsed(kSmall + "cluster: {memory_limit: " + text + "}\n").job.cluster.memory_limit;
  };
  CHECK(limit("1_000_000") == 1'000'000);
  CHECK(limit("512 KiB") == 512 << 10);
  CHECK(limit("2TiB") == std::int64_t{2} << 40);
  CHECK(limit("0.5MiB") == 1 << 19);
  for (const char* wrong : {"70GB", "0GiB", "-1GiB", "1.5", "0", "GiB", "1e3GiB", "01GiB", "true", "1.2345GiB"}) {
    CAPTURE(wrong);
    CHECK(mistakes_of(kSmall + "cluster: {memory_limit: " + wrong + "}\n").size() == 1);
  }
}

TEST_CASE("a graph that is not there names where it was looked for") {
  try {
    parse_job(kSmall, "jobs/job.yaml", {}, {.configs_dir = "/nowhere", .check_files = true});
    FAIL("a graph was found");
  } catch (const JobError& error) {
    REQUIRE(error.diagnostics().size() == 1);
    CHECK(error.diagnostics()[0].line == 1);
    CHECK(error.diagnostics()[0].message == "no such file; looked for jobs/m.yaml and /nowhere/m.yaml");
  }
}

TEST_CASE("a graph is found among the installed configs") {
  const std::string text = "model: {graph: models/gpt2.yaml}\n" + kData + kTrain;
  const LoadedJob loaded =
      parse_job(text, "elsewhere/job.yaml", {}, {.configs_dir = source_dir() + "/configs", .check_files = true});
  CHECK(graph_tree(loaded).find("nodes") != nullptr);
}

}  // namespace
}  // namespace trainer::job_test
