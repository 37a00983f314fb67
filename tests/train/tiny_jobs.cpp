// Tiny jobs and their data.
#include "tests/train/tiny_jobs.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include <doctest/doctest.h>

#include "engine/checkpoint/checkpoint.h"
#include "engine/core/random.h"
#include "engine/train/replicas.h"
#include "kernels/cpu/table.h"

namespace trainer::tests {
namespace {

constexpr std::string_view kTokens = R"(
data: {format: tokens, token_type: u16, train: tokens.bin, seq_len: 8, shuffle: true}
)";

constexpr std::string_view kTable = R"(
data: {format: table, train: table.csv, target: -1, normalize: standard, shuffle: true}
)";

// The large eps of AdamW keeps an update linear in the gradient where the gradient is nothing but rounding (the keys'
// biases).
constexpr std::string_view kTraining = R"(
train:
  steps: 6
  batch: {global: 8, micro: auto}
  optimizer: {name: adamw, lr: 1.0e-2, betas: [0.9, 0.95], eps: 1.0e-3, weight_decay: 0.1}
  lr_schedule: {name: cosine, warmup_steps: 2, min_lr: 1.0e-3}
  clip_norm: null
precision: {params: f32, compute: f32, reduce: f32, loss_scale: none}
checkpoint: {every: 1000000, keep: null, format: full, resume: auto}
)";

constexpr std::string_view kGpt2 =
    "seed: 7\nmodel: {graph: models/gpt2.yaml, with: {layers: 2, heads: 2, dim: 16, vocab: 32, context: 8, dropout: "
    "0.0}}\n";
constexpr std::string_view kLlama =
    "seed: 7\nmodel: {graph: models/llama.yaml, with: {layers: 2, heads: 4, kv_heads: 2, dim: 16, hidden: 24, vocab: "
    "32, rope_theta: "
    "100}}\n";
constexpr std::string_view kMlp =
    "seed: 7\nmodel: {graph: models/mlp.yaml, with: {features: 6, hidden: 32, layers: 3, classes: 4, dropout: 0.0}}\n";

// Ids whose successor is likely the next but one: there is something to learn.
std::string tokens(std::int64_t count) {
  std::string bytes;
  std::uint64_t id = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    id = random_below(1, 0, static_cast<std::uint64_t>(i), 4) == 0
             ? random_below(1, 1, static_cast<std::uint64_t>(i), 32)
             : (id + 2) % 32;
    bytes.push_back(static_cast<char>(id));
    bytes.push_back('\0');
  }
  return bytes;
}

// Four clouds around different corners.
std::string table(std::int64_t rows) {
  std::vector<float> noise(static_cast<std::size_t>(rows * 6));
  fill_normal(2, 0, 0, rows * 6, noise.data());
  std::string text;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t group = static_cast<std::int64_t>(random_below(2, 1, static_cast<std::uint64_t>(row), 4));
    for (std::int64_t column = 0; column < 6; ++column)
      text +=
          std::to_string(noise[static_cast<std::size_t>(row * 6 + column)] + (column % 4 == group ? 1.5F : 0.0F)) + ",";
    text += std::to_string(group) + "\n";
  }
  return text;
}

class Recorder final : public Monitor {
 public:
  Recorder(Trained& trained, const std::function<void(std::int64_t)>& after_step)
      : trained_(trained), after_step_(after_step) {}
  void step(const StepRecord& record) override {
    trained_.loss.push_back(record.loss);
    trained_.grad_norm.push_back(record.grad_norm);
    trained_.figures.push_back(record.figures);
    if (record.loss_scale) trained_.loss_scale.push_back(*record.loss_scale);
    if (record.aux_loss) trained_.aux_loss.push_back(*record.aux_loss);
    if (record.dropped) trained_.dropped.push_back(*record.dropped);
    if (record.skipped) trained_.skipped.push_back(record.step);
    if (after_step_) after_step_(record.step);
  }
  void evaluation(const EvaluationRecord& record) override { trained_.evaluations.push_back(record); }
  void message(const std::string& text) override { trained_.messages.push_back(text); }
  void start(const StartRecord& record) override { trained_.start = record; }
  void rollback(const RollbackRecord& record) override { trained_.messages.push_back(record.reason); }

 private:
  Trained& trained_;
  const std::function<void(std::int64_t)>& after_step_;
};

}  // namespace

std::string configs_dir() { return std::string(TRAINER_SOURCE_DIR) + "/configs"; }

Overrides both(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TinyJobs::TinyJobs() {
  write("tokens.bin", tokens(8 * 40 + 1));
  write("table.csv", table(90));
  const std::string training(kTraining);
  write("gpt2.yaml", std::string(kGpt2) + std::string(kTokens) + training);
  write("llama.yaml", std::string(kLlama) + std::string(kTokens) + training);
  write("mlp.yaml", std::string(kMlp) + std::string(kTable) + training);
}

LoadedJob TinyJobs::load(const std::string& name, const std::string& run, Overrides overrides) const {
  overrides.insert(overrides.begin(), "checkpoint.dir=" + path(run));
  return load_job(path(name + ".yaml"), overrides, {.configs_dir = configs_dir()});
}

std::string step_name(std::int64_t step) {
  const std::string digits = std::to_string(step);
  return "step-" + std::string(8 - digits.size(), '0') + digits;
}

void copy_step(const TinyJobs& jobs, const std::string& from, std::int64_t step, const std::string& to) {
  std::filesystem::create_directories(jobs.path(to));
  std::filesystem::copy(jobs.path(from) + "/" + step_name(step), jobs.path(to) + "/" + step_name(step));
}

const LoadedJob& from_the_start(const LoadedJob& loaded) {
  if (loaded.job.checkpoint.resume == CheckpointJob::Resume::none)
    std::filesystem::remove_all(*loaded.job.checkpoint.dir);
  return loaded;
}

CompiledJob compiled(const LoadedJob& loaded, Purpose purpose) {
  const int threads = threads_per_rank(world_size_of(loaded.job));
  const kernels::cpu::CpuTarget target({.isa = kernels::cpu::detect_isa(), .threads = threads});
  return compile(loaded, {.target = &target, .memory_bytes = std::int64_t{64} << 30, .threads = threads}, purpose);
}

Trained run(const LoadedJob& loaded, const std::function<void(std::int64_t)>& after_step, TrainOptions options) {
  return run(loaded, compiled(loaded), after_step, std::move(options));
}

Trained run(const LoadedJob& loaded, const CompiledJob& compiled, const std::function<void(std::int64_t)>& after_step,
            TrainOptions options) {
  Trained trained;
  Monitors monitors;
  monitors.push_back(std::make_unique<Recorder>(trained, after_step));
  Replicas replicas(compiled.plan);
  if (!options.at_end) options.at_end = [&](int rank, const Executor& executor) { replicas.add(rank, executor); };
  trained.report = train(loaded, compiled, monitors, options);
  CHECK(replicas.different() == std::vector<std::string>{});
  return trained;
}

Tensors tensors_of(const std::string& checkpoint) {
  const auto saved = checkpoint::open_checkpoint(checkpoint);
  Tensors tensors;
  for (const checkpoint::TensorInfo& info : saved.tensors.tensors()) {
    if (info.dtype != DType::f32) continue;
    std::vector<float>& values = tensors[info.name];
    values.resize(static_cast<std::size_t>(info.shape.elements()));
    saved.tensors.read(info.name, 0, info.shape.elements(), values.data());
  }
  return tensors;
}

Tensors weights_of(const std::string& checkpoint) {
  Tensors tensors = tensors_of(checkpoint);
  std::erase_if(tensors, [](const auto& entry) {
    return entry.first.find(".exp_avg") != std::string::npos ||
           entry.first.find(".outer_momentum") != std::string::npos || entry.first == "loss_scale";
  });
  return tensors;
}

double largest_difference(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.size() != values.size()) return INFINITY;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double difference = std::fabs(static_cast<double>(values[i]) - static_cast<double>(other->second[i]));
      if (std::isnan(difference)) return INFINITY;
      largest = std::max(largest, difference);
    }
  }
  return largest;
}

std::map<std::string, std::string> files_of(const std::string& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint))
    files[entry.path().filename()] = contents_of(entry.path());
  // The manifest has a line for each of its parts.
  std::string same;
  std::istringstream manifest(files["manifest.json"]);
  for (std::string line; std::getline(manifest, line);)
    if (!contains(line, "\"metadata\": ") && !line.starts_with("  \"checksum\": ")) same += line + "\n";
  files["manifest.json"] = same;
  return files;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

EnvironmentSetting::EnvironmentSetting(const char* name, const std::string& value) : name_(name) {
  const char* before = std::getenv(name);
  was_set_ = before != nullptr;
  if (was_set_) before_ = before;
  ::setenv(name, value.c_str(), 1);
}

EnvironmentSetting::~EnvironmentSetting() {
  if (was_set_)
    ::setenv(name_, before_.c_str(), 1);
  else
    ::unsetenv(name_);
}

Overrides table_of(const TinyJobs& jobs, const std::string& name, int batches, const std::vector<int>& poisoned,
                   const std::vector<int>& left_out) {
  constexpr int kBatch = 8;
  const auto has = [](const std::vector<int>& list, int batch) {
    return std::find(list.begin(), list.end(), batch) != list.end();
  };
  std::string text;
  for (int row = 0; row < batches * kBatch; ++row) {
    const int batch = row / kBatch;
    if (has(left_out, batch)) continue;
    for (int column = 0; column < 6; ++column)
      text += has(poisoned, batch) && row % kBatch == 6
                  ? "3.0e38,"
                  : std::to_string(0.1 * (row * 7 % 11) + 0.05 * column + 0.01 * batch) + ",";
    text += std::to_string(row * 5 % 4) + "\n";
  }
  jobs.write(name, text);
  return {"data.train=" + jobs.path(name), "data.normalize=none", "data.shuffle=false"};
}

}  // namespace trainer::tests
