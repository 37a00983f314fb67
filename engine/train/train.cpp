// The loop of one rank, and what rank 0 does besides: tell monitors, decide on signals, commit checkpoints.
#include "engine/train/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/checkpoint.h"
#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/run/executor.h"
#include "engine/train/evaluation.h"
#include "engine/train/inputs.h"
#include "engine/train/ranks.h"
#include "engine/train/weights.h"

namespace trainer {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

// What all ranks share: the job, the data, where to begin, and what rank 0 reports.
struct Run {
  const LoadedJob& loaded;
  const CompiledJob& compiled;
  const Monitors& monitors;
  const TrainOptions& options;
  data::Data data{};
  std::optional<checkpoint::Checkpoint> resumed{};
  std::optional<checkpoint::Store> store{};
  RunReport report{};
  std::vector<RankTrace> traces{};
  std::vector<std::optional<NonFinite>> non_finite{};

  const Job& job() const { return loaded.job; }
  template <typename Tell>
  void tell(Tell&& tell_one) const {
    for (const auto& monitor : monitors) tell_one(*monitor);
  }
};

// ---- Where a run begins -------------------------------------------------------------------------------------------

void find_start(Run& run) {
  const CheckpointJob& job = run.job().checkpoint;
  if (job.resume == CheckpointJob::Resume::path) {
    const std::vector<std::string> damaged = checkpoint::verify(job.resume_from);
    if (!damaged.empty()) throw DataError("checkpoint is damaged: " + damaged.front());
    run.resumed = checkpoint::open_checkpoint(job.resume_from);
  } else if (job.resume == CheckpointJob::Resume::automatic && job.dir) {
    checkpoint::NewestWhole newest = checkpoint::newest_whole(*job.dir);
    for (const std::string& damage : newest.damaged) run.tell([&](Monitor& monitor) { monitor.message("passed over a damaged checkpoint: " + damage); });
    if (!newest.checkpoint && !newest.damaged.empty())
      throw DataError("no checkpoint in " + *job.dir + " is whole: " + newest.damaged.front() + " (checkpoint.resume=none starts anew)");
    run.resumed = std::move(newest.checkpoint);
  }
  if (!run.resumed) return;
  run.report.first_step = run.resumed->manifest.step;
  run.tell([&](Monitor& monitor) { monitor.message(fmt::format("resuming from {} after {} steps", run.resumed->path, run.report.first_step)); });
}

void fill_weights(const Run& run, Executor& executor, int threads) {
  const ModelJob& model = run.job().model;
  set_scalars(executor, 1.0F);
  if (run.resumed) {
    load_weights(executor, run.resumed->tensors, run.resumed->path, false);
    load_states(executor, run.resumed->tensors, run.resumed->path);
  } else if (model.init_from) {
    load_weights_from(executor, *model.init_from);
  } else {
    draw_weights(executor, run.job().seed, threads);
  }
  executor.run(executor.role().program_index("refresh"));
}

// ---- One rank ------------------------------------------------------------------------------------------------------

class RankLoop {
 public:
  RankLoop(Run& run, Communicator& communicator)
      : run_(run),
        job_(run.job()),
        communicator_(communicator),
        rank_(communicator.rank()),
        device_(cpu_device(threads_per_rank(communicator.world_size()))),
        executor_(device_->load(run.compiled.plan, rank_, communicator)),
        role_(executor_->role()),
        step_program_(role_.program_index("step")),
        binder_(*executor_, *run.data.train, step_program_, run.compiled.batch.micro * run.compiled.batch.micro_batches) {
    fill_weights(run, *executor_, threads_per_rank(communicator.world_size()));
    executor_->bind(role_.field_index("lr"), &lr_);
    executor_->bind(role_.field_index("metrics"), &metrics_);
    if (const std::int32_t field = role_.field_index("step"); field >= 0) executor_->bind(field, &step_number_);
    executor_->record_times(static_cast<bool>(run.options.trace));
    std::vector<int> everyone(static_cast<std::size_t>(communicator.world_size()));
    for (std::size_t i = 0; i < everyone.size(); ++i) everyone[i] = static_cast<int>(i);
    everyone_ = communicator.group(everyone);
    const int data_rank = run.compiled.plan.mesh.data_rank(rank_);
    if (job_.eval && run.data.val && role_.program_index("evaluate") >= 0)
      evaluation_.emplace(*executor_, run.data.val, run.compiled.batch, data_rank, job_.eval->batches);
  }

  void train() {
    const std::int64_t first = run_.report.first_step, last = job_.train.steps;
    const BatchShape& batch = run_.compiled.batch;
    std::int64_t saved = run_.resumed && job_.checkpoint.dir && run_.resumed->path.starts_with(*job_.checkpoint.dir) ? first : -1;
    std::int64_t evaluated = -1, step = first;
    {
      data::Loader loader(run_.data.train, data::SampleOrder(run_.data.train->num_samples(), batch.global, job_.data.shuffle, job_.seed),
                          data::share_of(run_.compiled.plan.mesh.data_rank(rank_), batch.data_ranks, batch.global), first);
      if (rank_ == 0) run_.report.startup_ms = milliseconds(Clock::now() - run_.options.process_start);
      while (step < last && !stopped_) {
        one_step(loader, step++);
        stopped_ = agree(run_.options.stop != nullptr && run_.options.stop->load());
        if (evaluation_ && step % job_.eval->every == 0) evaluate(evaluated = step);
        if (job_.checkpoint.dir && step % job_.checkpoint.every == 0) save(saved = step);
      }
    }
    if (evaluation_ && evaluated != step && !stopped_) evaluate(step);
    if (job_.checkpoint.dir && saved != step) save(step);
    if (rank_ == 0) report(step);
    if (run_.options.trace) {
      const auto spans = executor_->times(step_program_);
      run_.traces[static_cast<std::size_t>(rank_)] = {rank_, {spans.begin(), spans.end()}};
    }
  }

 private:
  void one_step(data::Loader& loader, std::int64_t step) {
    const Clock::time_point begin = Clock::now();
    binder_.bind(loader.next());
    lr_ = static_cast<float>(learning_rate(job_.train, step));
    step_number_ = static_cast<std::int32_t>(step);
    executor_->run(step_program_);
    if (metrics_.factor == 0 || !std::isfinite(metrics_.grad_norm) || !std::isfinite(metrics_.loss)) stop_at_non_finite(step);
    const double ms = milliseconds(Clock::now() - begin);
    if (rank_ != 0) return;
    step_ms_.push_back(ms);
    run_.report.loss = metrics_.loss;
    StepRecord record;
    record.step = step;
    record.num_steps = job_.train.steps;
    record.loss = metrics_.loss;
    record.lr = lr_;
    record.grad_norm = metrics_.grad_norm;
    record.tokens = tokens_per_step();
    record.step_ms = ms;
    record.tokens_per_s = static_cast<double>(record.tokens) / ms * 1e3;
    run_.tell([&](Monitor& monitor) { monitor.step(record); });
  }

  std::int64_t tokens_per_step() const {
    const bool text = job_.data.format == DataFormat::text || job_.data.format == DataFormat::tokens;
    return run_.compiled.batch.global * (text ? job_.data.seq_len : 1);
  }

  // The update was not made, so the same step again, looked at node by node, shows where it began.
  [[noreturn]] void stop_at_non_finite(std::int64_t step) {
    const float loss = metrics_.loss, norm = metrics_.grad_norm;
    run_.non_finite[static_cast<std::size_t>(rank_)] = executor_->find_non_finite(step_program_);
    communicator_.barrier();
    if (job_.checkpoint.dir) save(step);
    std::string where = "no single tensor shows it: a sum over tensors overflowed";
    std::int32_t earliest = std::numeric_limits<std::int32_t>::max();  // a reduction carries it to the other ranks later
    for (std::size_t rank = 0; rank < run_.non_finite.size(); ++rank) {
      const std::optional<NonFinite>& found = run_.non_finite[rank];
      if (!found || found->instruction >= earliest) continue;
      earliest = found->instruction;
      where = fmt::format("the first tensor that is not finite is {} (element {}), written by {} in micro-batch {} of rank {}", found->value, found->element, found->node,
                          found->micro_batch, rank);
    }
    throw NonFiniteError(fmt::format("step {}: loss {}, gradient norm {}: {}; the update was not made", step, loss, norm, where));
  }

  // True where any rank says so, at the same step on all.
  bool agree(bool mine) {
    if (communicator_.world_size() == 1) return mine;
    float sum = mine ? 1.0F : 0.0F;
    communicator_.all_reduce(*everyone_, DType::f32, &sum, 1);
    return sum > 0;
  }

  void evaluate(std::int64_t step) {
    const EvaluationRecord record = evaluation_->run(step);
    if (rank_ != 0) return;
    run_.report.val_loss = record.val_loss;
    run_.report.val_accuracy = record.val_accuracy;
    run_.tell([&](Monitor& monitor) { monitor.evaluation(record); });
  }

  void save(std::int64_t step) {
    const bool sharded = job_.checkpoint.format == CheckpointFormat::sharded;
    const int owners = sharded ? std::min(communicator_.world_size(), static_cast<int>(role_.units.size())) : 1;
    if (rank_ == 0) run_.store->begin(step);
    communicator_.barrier();
    write_weights(*executor_, *job_.checkpoint.dir, step, {rank_ < owners ? rank_ : -1, owners});
    communicator_.barrier();
    if (rank_ != 0) return;
    run_.report.checkpoint = run_.store->commit(step, hash_of(run_.compiled.plan), metadata(), static_cast<int>(job_.checkpoint.keep.value_or(0)));
    run_.tell([&](Monitor& monitor) { monitor.checkpoint(step, run_.report.checkpoint); });
  }

  std::string metadata() const {
    nlohmann::json json{{"name", job_.name}, {"strategy", run_.compiled.data_kind}, {"world_size", communicator_.world_size()}};
    if (run_.data.tokenizer) json["tokenizer"] = nlohmann::json::parse(run_.data.tokenizer->json());
    return json.dump();
  }

  void report(std::int64_t step) {
    RunReport& report = run_.report;
    report.steps = step;
    report.allocated_bytes = executor_->allocated_bytes();
    report.bytes_sent = communicator_.bytes_sent();
    report.stopped_by_signal = stopped_ && step < job_.train.steps;
    if (step_ms_.empty()) return;
    // The first step touches its memory for the first time; it is no measure of the others.
    std::vector<double> times(step_ms_.begin() + (step_ms_.size() > 1 ? 1 : 0), step_ms_.end());
    double total = 0;
    for (double ms : times) total += ms;
    report.tokens_per_s = static_cast<double>(tokens_per_step()) * static_cast<double>(times.size()) / total * 1e3;
    std::sort(times.begin(), times.end());
    report.step_ms_median = times[times.size() / 2];
    report.step_ms_p95 = times[std::min(times.size() - 1, times.size() * 95 / 100)];
  }

  Run& run_;
  const Job& job_;
  Communicator& communicator_;
  const int rank_;
  std::unique_ptr<DeviceBackend> device_;
  std::unique_ptr<Executor> executor_;
  const Role& role_;
  const std::int32_t step_program_;
  BatchBinder binder_;
  std::unique_ptr<Communicator::Group> everyone_;
  std::optional<Evaluation> evaluation_;
  std::vector<double> step_ms_;
  bool stopped_ = false;

  // Fields of the plan.
  float lr_ = 0;
  std::int32_t step_number_ = 0;
  struct Metrics {
    float factor = 0, loss_scale = 0, grad_norm = 0, loss = 0;
  } metrics_;
};

}  // namespace

RunReport train(const LoadedJob& loaded, const CompiledJob& compiled, const Monitors& monitors, const TrainOptions& options) {
  Run run{loaded, compiled, monitors, options};
  const int world = compiled.plan.mesh.world_size();
  if (loaded.job.checkpoint.dir) run.store.emplace(*loaded.job.checkpoint.dir);
  run.data = open_inputs(loaded, compiled);
  find_start(run);
  run.traces.resize(static_cast<std::size_t>(world));
  run.non_finite.resize(static_cast<std::size_t>(world));
  for (const MemoryReport& report : compiled.memory) run.report.planned_peak_bytes = std::max(run.report.planned_peak_bytes, report.peak_bytes);
  run_ranks(world, [&](Communicator& communicator) { RankLoop(run, communicator).train(); });
  if (options.trace) options.trace(run.traces);
  return run.report;
}

}  // namespace trainer
