// Rows of a plan are padded to one length, which a causal model does not see (row_groups.h). A plan gives statistics of
// each row of logits, of every part of the classes (kernels/loss.h); log-probabilities are put together here.
#include "engine/train/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/compile/choose.h"
#include "engine/compile/lengths.h"
#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/data/loader.h"
#include "engine/train/base.h"
#include "engine/train/inputs.h"
#include "engine/train/ranks.h"

namespace trainer {
namespace {

constexpr std::int64_t kTokensAtOnce = 2048;  // of a rank's batch: products of so many rows are at their full rate
constexpr std::int64_t kLengthMultiple = 8;
constexpr std::int64_t kStats = 5;

/// Rows as samples of one length: the tokens, and as targets the tokens one place on. Nobody reads what the places
/// behind them give.
class RowsDataset : public data::Dataset {
 public:
  RowsDataset(const Rows& rows, std::int64_t length) : rows_(rows), length_(length) {
    for (const char* name : {"tokens", "targets"}) fields_.push_back({name, DType::i32, {length}});
  }
  std::int64_t num_samples() const override { return static_cast<std::int64_t>(rows_.size()); }
  const std::vector<data::SampleField>& fields() const override { return fields_; }
  void read(std::int64_t sample, std::span<std::byte* const> out) const override {
    const std::vector<std::int32_t>& ids = rows_[static_cast<std::size_t>(sample)];
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(length_), 0), targets(tokens.size(), 0);
    std::copy(ids.begin(), ids.end(), tokens.begin());
    std::copy(ids.begin() + 1, ids.end(), targets.begin());
    std::memcpy(out[0], tokens.data(), tokens.size() * sizeof(std::int32_t));
    std::memcpy(out[1], targets.data(), targets.size() * sizeof(std::int32_t));
  }

 private:
  const Rows& rows_;
  std::int64_t length_;
  std::vector<data::SampleField> fields_;
};

/// ln p of a target, from the statistics of each part of the classes, `stride` apart.
float logprob_of(const float* stats, std::int64_t parts, std::int64_t stride) {
  float most = stats[0];
  for (std::int64_t p = 1; p < parts; ++p) most = std::max(most, stats[p * stride]);
  double total = 0, target = 0;
  for (std::int64_t p = 0; p < parts; ++p) {
    const float* part = stats + p * stride;
    total += static_cast<double>(part[1]) * std::exp(static_cast<double>(part[0]) - static_cast<double>(most));
    target += static_cast<double>(part[2]);
  }
  return static_cast<float>(target - static_cast<double>(most) - std::log(total));
}

/// One rank's part of every batch.
class Scorer {
 public:
  Scorer(Executor& executor, const CompiledJob& compiled, int rank, const Rows& rows, std::int64_t length)
      : executor_(executor),
        length_(length),
        global_batch_(compiled.batch.micro * compiled.batch.data_ranks),
        share_(data::share_of(compiled.plan.mesh.index(rank, kBatchAxes), compiled.batch.data_ranks, global_batch_)),
        program_(executor.role().program_index(ProgramKind::sample)),
        dataset_(std::make_shared<RowsDataset>(rows, length)),
        binder_(executor, {compiled.plan.mesh, compiled.plan.mesh.coordinates(rank)}, *dataset_, program_,
                compiled.batch.micro),
        loader_(dataset_, data::SampleOrder(dataset_->num_samples(), global_batch_, false, 0), share_) {
    const std::int32_t field = executor.role().field_index("logits");
    if (field < 0) return;  // another stage has them
    const Spec& spec = executor.role().fields[static_cast<std::size_t>(field)].spec;
    parts_ = spec.whole[0];
    stats_.resize(static_cast<std::size_t>(local_shape(spec, compiled.plan.mesh).elements()));
    reports_ = compiled.plan.mesh.index(rank, Axes::of(Axis::tensor)) == 0;
    executor.bind(field, stats_.data());
  }

  /// Runs the next batch; the log-probabilities of this rank's samples, if it is the one to tell them.
  std::string next() {
    binder_.bind(loader_.next());
    executor_.run(program_);
    if (!reports_) return {};
    std::vector<float> logprobs(static_cast<std::size_t>(share_.count * length_));
    for (std::size_t i = 0; i < logprobs.size(); ++i)
      logprobs[i] =
          logprob_of(stats_.data() + static_cast<std::int64_t>(i) * kStats, parts_, share_.count * length_ * kStats);
    return {reinterpret_cast<const char*>(logprobs.data()), logprobs.size() * sizeof(float)};
  }

 private:
  Executor& executor_;
  const std::int64_t length_, global_batch_;
  const data::Share share_;
  const std::int32_t program_;
  const std::shared_ptr<RowsDataset> dataset_;
  BatchBinder binder_;
  data::Loader loader_;
  std::int64_t parts_ = 0;
  std::vector<float> stats_;  // f32 [parts, samples · length, 5]
  bool reports_ = false;
};

}  // namespace

void set_batch_for_scoring(LoadedJob& loaded, const Rows& rows) {
  Job& job = loaded.job;
  std::int64_t longest = 1;
  for (const std::vector<std::int32_t>& row : rows) longest = std::max(longest, static_cast<std::int64_t>(row.size()));
  const std::int64_t rounded = (longest + kLengthMultiple - 1) / kLengthMultiple * kLengthMultiple;
  const bool known = !job.model.folder || !job.model.folder->longest || rounded <= *job.model.folder->longest;
  job.data.seq_len = known && lengths_of_one_model(loaded, {longest, rounded}).size() == 1 ? rounded : longest;
  const std::int64_t ranks = leaves_choices(job) ? 1 : world_size_of(job);
  const std::int64_t most = std::max<std::int64_t>(1, static_cast<std::int64_t>(rows.size()) / ranks);
  const std::int64_t micro = std::clamp<std::int64_t>(kTokensAtOnce / job.data.seq_len, 1, most);
  job.train.batch = {.global = micro, .micro = micro};
}

void check_ids(const CompiledJob& compiled, const Rows& rows) {
  CHECK(compiled.vocabulary.has_value(), "scoring needs a model that reads tokens");
  const std::int64_t vocabulary = *compiled.vocabulary;
  for (std::size_t row = 0; row < rows.size(); ++row)
    for (std::size_t i = 0; i < rows[row].size(); ++i)
      if (rows[row][i] < 0 || rows[row][i] >= vocabulary)
        throw DataError(
            fmt::format("row {}: id {} at place {} is none of the model's {}", row + 1, rows[row][i], i, vocabulary));
}

void score(const LoadedJob& loaded, const CompiledJob& compiled, const std::string& weights, const Rows& rows,
           const std::function<void(std::size_t row, std::span<const float> logprobs)>& take, const EvaluateOn& on) {
  check_ids(compiled, rows);
  const Mesh& mesh = compiled.plan.mesh;
  const int threads = on.threads > 0 ? on.threads : threads_per_rank(mesh.world_size());
  const std::int64_t length = loaded.job.data.seq_len, at_once = compiled.batch.micro * compiled.batch.data_ranks;
  require_threads_of(loaded.job, on.process, threads);
  run_ranks(on.process, mesh.world_size(), [&](Communicator& communicator) {
    const std::unique_ptr<DeviceBackend> device = device_for(loaded.job, communicator, threads);
    const std::unique_ptr<Executor> executor = device->load(compiled.plan, communicator.rank(), communicator);
    ControlChannel& channel = communicator.control();
    load_for_use(loaded, compiled, {*executor, compiled.plan, communicator.rank()}, weights, communicator, channel,
                 on.tell);
    executor->run(executor->role().program_index(ProgramKind::refresh));
    Scorer scorer(*executor, compiled, communicator.rank(), rows, length);
    for (std::size_t first = 0; first < rows.size(); first += static_cast<std::size_t>(at_once)) {
      std::string all;
      for (const std::string& part : channel.to_first(scorer.next())) all += part;
      if (communicator.rank() != 0) continue;
      const auto* logprobs = reinterpret_cast<const float*>(all.data());
      for (std::size_t i = 0; i < static_cast<std::size_t>(at_once) && first + i < rows.size(); ++i)
        take(first + i, {logprobs + i * static_cast<std::size_t>(length),
                         rows[first + i].empty() ? 0 : rows[first + i].size() - 1});
    }
  });
}

}  // namespace trainer
