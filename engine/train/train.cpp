// The loop of one rank, and what rank 0 does besides: tell monitors, decide on signals, commit checkpoints.
#include "engine/train/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/checkpoint/checkpoint.h"
#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/run/executor.h"
#include "engine/train/device.h"
#include "engine/train/evaluation.h"
#include "engine/train/inputs.h"
#include "engine/train/ranks.h"
#include "engine/train/weights.h"

namespace trainer {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

// What the ranks of this process share: the job, the data, and what its first rank reports.
struct Run {
  const LoadedJob& loaded;
  const CompiledJob& compiled;
  const Monitors& monitors;
  const TrainOptions& options;
  data::Data data{};
  RunReport report{};
  std::vector<RankTrace> traces{};

  const Job& job() const { return loaded.job; }
  // A log that cannot be written is told nothing more, and ends the run with its weights saved: see log_failure.
  template <typename Tell>
  void tell(Tell&& tell_one) const {
    for (const auto& monitor : monitors) {
      if (std::find(broken.begin(), broken.end(), monitor.get()) != broken.end()) continue;
      try {
        tell_one(*monitor);
      } catch (const IoError& error) {
        broken.push_back(monitor.get());
        if (log_failure.empty()) log_failure = error.what();
      }
    }
  }
  /// Tells the monitors a text. Lives no longer than the run.
  Tell message() const {
    return [this](const std::string& text) { tell([&](Monitor& monitor) { monitor.message(text); }); };
  }
  mutable std::vector<const Monitor*> broken{};
  mutable std::string log_failure{};  // the first one's reason
};

// ---- Where a run begins -------------------------------------------------------------------------------------------

// The checkpoint to go on from; empty: none.
std::string choose_checkpoint(const Run& run) {
  const CheckpointJob& job = run.job().checkpoint;
  if (job.resume == CheckpointJob::Resume::path) {
    const std::vector<std::string> damaged = checkpoint::verify(job.resume_from);
    if (!damaged.empty()) throw DataError("checkpoint is damaged: " + damaged.front());
    return job.resume_from;
  }
  if (job.resume != CheckpointJob::Resume::automatic || !job.dir) return "";
  const checkpoint::NewestWhole newest = checkpoint::newest_whole(*job.dir);
  tell_passed_over(newest, run.message());
  if (!newest.checkpoint && !newest.damaged.empty())
    throw DataError("no checkpoint in " + *job.dir + " is whole: " + newest.damaged.front() + " (checkpoint.resume=none starts anew)");
  return newest.checkpoint ? newest.checkpoint->path : "";
}

// Rank 0 chooses, and all open the same.
std::optional<checkpoint::Checkpoint> find_start(const Run& run, int rank, Talk& talk) {
  const std::string path = talk.from_first(rank == 0 ? choose_checkpoint(run) : "");
  if (path.empty()) return std::nullopt;
  checkpoint::Checkpoint start = checkpoint::open_checkpoint(path);
  if (rank == 0) run.tell([&](Monitor& monitor) { monitor.message(fmt::format("resuming from {} after {} steps", path, start.manifest.step)); });
  return start;
}

void fill_weights(const Run& run, const std::optional<checkpoint::Checkpoint>& start, const LoadedRank& rank, int threads, Talk& talk) {
  const ModelJob& model = run.job().model;
  set_scalars(rank.executor, static_cast<float>(run.job().precision.loss_scale.factor));
  if (start) {
    load_weights(rank, start->tensors, start->path, false);
    load_states(rank, start->tensors, start->path);
  } else if (model.init_from) {
    load_weights_from(rank, *model.init_from, talk, run.message());
  } else {
    draw_weights(rank, run.job().seed, threads);
  }
  rank.executor.run(rank.executor.role().program_index("refresh"));
}

// ---- What was not finite, between ranks -----------------------------------------------------------------------------

std::string to_text(const std::optional<NonFinite>& found) {
  if (!found) return "";
  return nlohmann::json{{"node", found->node}, {"value", found->value}, {"element", found->element}, {"micro_batch", found->micro_batch}, {"instruction", found->instruction}}.dump();
}

// Of all ranks the one that found it earliest has the cause: a reduction carries it to the others later.
std::string describe_non_finite(const std::vector<std::string>& by_rank) {
  std::string where = "no single tensor shows it: a sum over tensors overflowed";
  std::int32_t earliest = std::numeric_limits<std::int32_t>::max();
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].empty()) continue;
    const nlohmann::json found = nlohmann::json::parse(by_rank[rank]);
    if (found["instruction"] >= earliest) continue;
    earliest = found["instruction"];
    where = fmt::format("the first tensor that is not finite is {} (element {}), written by {} in micro-batch {} of rank {}", found["value"].get<std::string>(),
                        found["element"].get<std::int64_t>(), found["node"].get<std::string>(), found["micro_batch"].get<int>(), rank);
  }
  return where;
}

// ---- One rank ------------------------------------------------------------------------------------------------------

class RankLoop {
 public:
  RankLoop(Run& run, Communicator& communicator)
      : run_(run),
        job_(run.job()),
        communicator_(communicator),
        rank_(communicator.rank()),
        leads_(rank_ == 0 || run.options.process != nullptr),
        talk_(communicator),
        store_(rank_ == 0 && job_.checkpoint.dir ? std::make_optional<checkpoint::Store>(*job_.checkpoint.dir, run.message()) : std::nullopt),
        start_(find_start(run, rank_, talk_)),
        threads_(run.options.threads > 0 ? run.options.threads : threads_per_rank(ranks_per_node(job_))),
        device_(device_for(job_, communicator, threads_)),
        executor_(device_->load(run.compiled.plan, rank_, communicator)),
        role_(executor_->role()),
        step_program_(role_.program_index("step")),
        averaging_program_(role_.program_index("step_averaging")),
        average_program_(role_.program_index("average")),
        settle_program_(role_.program_index("settle")),
        binder_(*executor_, *run.data.train, step_program_, run.compiled.batch.micro * run.compiled.batch.micro_batches) {
    fill_weights(run, start_, loaded_rank(), threads_, talk_);
    loss_scale_ = loss_scale_of(*executor_);
    executor_->bind(role_.field_index("lr"), &lr_);
    executor_->bind(role_.field_index("metrics"), &metrics_);
    if (const std::int32_t field = role_.field_index("step"); field >= 0) executor_->bind(field, &step_number_);
    executor_->record_times(static_cast<bool>(run.options.trace));
    const int data_rank = run.compiled.plan.mesh.data_rank(rank_);
    if (job_.eval && run.data.val && role_.program_index("evaluate") >= 0)
      evaluation_.emplace(*executor_, run.compiled, run.data.val, data_rank, job_.eval->batches);
  }

  void train() {
    try {
      steps();
    } catch (...) {
      tell_of_step();
      throw;
    }
  }

 private:
  void steps() {
    const std::int64_t first = start_ ? start_->manifest.step : 0, last = job_.train.steps;
    const BatchShape& batch = run_.compiled.batch;
    std::int64_t saved = start_ && job_.checkpoint.dir && start_->path.starts_with(*job_.checkpoint.dir) ? first : -1;
    std::int64_t evaluated = -1, step = first;
    {
      data::Loader loader(run_.data.train, data::SampleOrder(run_.data.train->num_samples(), batch.global, job_.data.shuffle, job_.seed),
                          data::share_of(run_.compiled.plan.mesh.data_rank(rank_), batch.data_ranks, batch.global), first);
      if (leads_) run_.report.startup_ms = milliseconds(Clock::now() - run_.options.process_start);
      while (step < last && !stopped_) {
        one_step(loader, step++);
        if (averages() && step % job_.strategy.data.every == 0) average(step);
        const bool asked = run_.options.stop != nullptr && run_.options.stop->load();
        stopped_ = talk_.any(asked || (leads_ && !run_.log_failure.empty()));
        if (evaluation_ && step % job_.eval->every == 0) evaluate(evaluated = step);  // at an average: the job's rules see to it
        if (job_.checkpoint.dir && step % job_.checkpoint.every == 0) save(saved = step);
      }
    }
    tell_of_step();
    if (averages() && averaged_ != step && step > first) average(step);
    if (evaluation_ && evaluated != step && !stopped_) evaluate(step);
    if (job_.checkpoint.dir && saved != step) save(step);
    if (store_) store_->remove_older(step, kept());
    const std::vector<RankReport> ranks = report_ranks();
    const std::string log_failure = talk_.from_first(rank_ == 0 ? run_.log_failure : "");
    if (leads_) run_.report.log_failure = log_failure;
    if (leads_) report(first, step, ranks);
    if (run_.options.trace) gather_traces();
  }

  void one_step(data::Loader& loader, std::int64_t step) {
    const Clock::time_point begin = Clock::now();
    binder_.bind(loader.next());
    lr_ = static_cast<float>(learning_rate(job_.train, step));
    step_number_ = static_cast<std::int32_t>(step);
    const std::int64_t sent = communicator_.bytes_sent();
    const std::int32_t program = averaging_program_ >= 0 && step % job_.strategy.data.every == 0 ? averaging_program_ : step_program_;
    if (program == step_program_) step_start_ = Clock::now();
    executor_->start(program);
    tell_of_step();
    executor_->finish();
    bytes_sent_ += communicator_.bytes_sent() - sent;
    const float loss_scale = std::exchange(loss_scale_, metrics_.loss_scale);  // the step leaves that of the next one
    const bool skipped = judge(step, loss_scale);
    const double ms = milliseconds(Clock::now() - begin);
    if (!leads_) return;
    step_ms_.push_back(ms);
    run_.report.loss = metrics_.loss;
    StepRecord& record = untold_.emplace();
    record.step = step;
    record.num_steps = job_.train.steps;
    record.loss = metrics_.loss;
    record.lr = lr_;
    record.grad_norm = metrics_.grad_norm;
    record.tokens = tokens_per_step();
    record.step_ms = ms;
    record.tokens_per_s = static_cast<double>(record.tokens) / ms * 1e3;
    if (job_.precision.loss_scale.mode != LossScale::Mode::none) record.loss_scale = loss_scale;
    record.skipped = skipped;
    if (!executor_->runs_beside_host()) tell_of_step();
  }

  // Monitors hear of a step when it has ended, or, where the device works beside the host, while it works on the next.
  void tell_of_step() {
    if (!untold_) return;
    const StepRecord record = *untold_;
    untold_.reset();
    run_.tell([&](Monitor& monitor) { monitor.step(record); });
  }

  std::int64_t tokens_per_step() const {
    const bool text = job_.data.format == DataFormat::text || job_.data.format == DataFormat::tokens;
    return run_.compiled.batch.global * (text ? job_.data.seq_len : 1);
  }

  // Whether the step was left out because it overflowed at a loss scale that has since become smaller. Does not return from one that made no
  // update for another reason.
  bool judge(std::int64_t step, float loss_scale) {
    const bool overflowed = !std::isfinite(metrics_.grad_norm) || !std::isfinite(metrics_.loss), bad = overflowed || metrics_.factor == 0;
    const bool skipped = overflowed && scales_dynamically() && loss_scale > static_cast<float>(job_.precision.loss_scale.smallest);
    if (averages() ? talk_.any(bad) : bad && !skipped) stop_at_non_finite(step, loss_scale);  // ranks that trained apart have metrics of their own
    return skipped;
  }

  bool scales_dynamically() const { return job_.precision.loss_scale.mode == LossScale::Mode::dynamic; }

  // The update was not made, so the same step again, looked at node by node, shows where it began. A dynamic scale is at its smallest, and
  // stays there.
  [[noreturn]] void stop_at_non_finite(std::int64_t step, float loss_scale) {
    const float loss = metrics_.loss, norm = metrics_.grad_norm;
    const std::vector<std::string> found = talk_.to_first(to_text(executor_->find_non_finite(step_program_)));
    const std::string where = talk_.from_first(rank_ == 0 ? describe_non_finite(found) : "");
    if (job_.checkpoint.dir) save(step);
    const std::string scale = scales_dynamically() ? fmt::format(", at the smallest loss scale, {}", loss_scale) : loss_scale != 1 ? fmt::format(", at loss scale {}", loss_scale) : "";
    throw NonFiniteError(fmt::format("step {}: loss {}, gradient norm {}{}: {}; the update was not made", step, loss, norm, scale, where));
  }

  void evaluate(std::int64_t step) {
    tell_of_step();
    const EvaluationRecord record = evaluation_->run(step);
    if (!leads_) return;
    run_.report.val_loss = record.val_loss;
    run_.report.val_accuracy = record.val_accuracy;
    run_.tell([&](Monitor& monitor) { monitor.evaluation(record); });
  }

  // ---- Rounds of local SGD ----

  bool averages() const { return average_program_ >= 0; }

  void average(std::int64_t step) {
    executor_->run(average_program_);
    averaged_ = step;
  }

  void save(std::int64_t step) {
    tell_of_step();
    if (settle_program_ >= 0) executor_->run(settle_program_);
    if (store_) store_->begin(step);
    communicator_.barrier();
    if (job_.checkpoint.format == CheckpointFormat::sharded)
      save_sharded(loaded_rank(), *job_.checkpoint.dir, step);
    else
      save_full(loaded_rank(), communicator_, *job_.checkpoint.dir, step);
    communicator_.barrier();
    if (!store_) return;
    run_.report.checkpoint = store_->commit(step, hash_of(run_.compiled.plan), metadata(), kept());
    run_.tell([&](Monitor& monitor) { monitor.checkpoint(step, run_.report.checkpoint); });
  }

  int kept() const { return static_cast<int>(job_.checkpoint.keep.value_or(0)); }

  LoadedRank loaded_rank() { return {*executor_, run_.compiled.plan, rank_}; }

  std::string metadata() const {
    nlohmann::json json{{"name", job_.name}, {"strategy", run_.compiled.data_kind}, {"world_size", communicator_.world_size()}};
    if (run_.data.tokenizer) json["tokenizer"] = nlohmann::json::parse(run_.data.tokenizer->json());
    return json.dump();
  }

  void gather_traces() {
    // The ranks of one machine share its steady clock. Those of several leave a barrier together, as near as it goes.
    communicator_.barrier();
    const Clock::time_point zero = job_.cluster.nodes > 1 ? Clock::now() : Clock::time_point{};
    const std::int64_t start = std::chrono::duration_cast<std::chrono::nanoseconds>(step_start_ - zero).count();
    const auto spans = executor_->times(step_program_);
    std::string mine(reinterpret_cast<const char*>(&start), sizeof start);
    mine.append(reinterpret_cast<const char*>(spans.data()), spans.size_bytes());
    const std::vector<std::string> all = talk_.to_first(mine);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const std::size_t bytes = all[rank].size() - sizeof start;
      RankTrace& trace = run_.traces.emplace_back(RankTrace{static_cast<int>(rank), 0, std::vector<Span>(bytes / sizeof(Span))});
      std::memcpy(&trace.start_ns, all[rank].data(), sizeof start);
      std::memcpy(trace.spans.data(), all[rank].data() + sizeof start, bytes);
    }
  }

  std::vector<RankReport> report_ranks() {
    const std::vector<std::int64_t> planned = talk_.each(role_.total_bytes), allocated = talk_.each(executor_->allocated_bytes()), counted = talk_.each(executor_->counted_bytes()), sent = talk_.each(bytes_sent_);
    std::vector<RankReport> ranks;
    for (std::size_t rank = 0; rank < planned.size(); ++rank) ranks.push_back({planned[rank], allocated[rank], counted[rank], sent[rank]});
    return ranks;
  }

  void report(std::int64_t first, std::int64_t step, const std::vector<RankReport>& ranks) {
    RunReport& report = run_.report;
    report.first_step = first;
    report.steps = step;
    report.ranks = ranks;
    report.bytes_sent = ranks.front().bytes_sent;
    for (const RankReport& rank : ranks) {
      report.allocated_bytes = std::max(report.allocated_bytes, rank.allocated_bytes);
      report.counted_bytes = std::max(report.counted_bytes, rank.counted_bytes);
    }
    report.stopped_by_signal = stopped_ && step < job_.train.steps && report.log_failure.empty();
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
  const bool leads_;  // the first rank of its process, which reports
  Talk talk_;
  std::optional<checkpoint::Store> store_;             // rank 0's
  std::optional<checkpoint::Checkpoint> start_;
  const int threads_;
  std::unique_ptr<DeviceBackend> device_;
  std::unique_ptr<Executor> executor_;
  const Role& role_;
  const std::int32_t step_program_, averaging_program_, average_program_, settle_program_;  // -1: the plan has no such
  BatchBinder binder_;
  std::optional<Evaluation> evaluation_;
  std::vector<double> step_ms_;
  std::optional<StepRecord> untold_;
  Clock::time_point step_start_{};  // of the last run of the step program
  std::int64_t bytes_sent_ = 0;
  bool stopped_ = false;
  std::int64_t averaged_ = -1;  // step of the last average

  // Fields of the plan.
  float lr_ = 0;
  std::int32_t step_number_ = 0;
  float loss_scale_ = 1;  // of the next step
  struct Metrics {
    float factor = 0, loss_scale = 0, grad_norm = 0, loss = 0;
  } metrics_;
};

}  // namespace

RunReport train(const LoadedJob& loaded, const CompiledJob& compiled, const Monitors& monitors, const TrainOptions& options) {
  Run run{loaded, compiled, monitors, options};
  abort_on_error(options.process, [&] {
    run.data = open_inputs(loaded, compiled);
    for (const MemoryReport& report : compiled.memory) run.report.planned_peak_bytes = std::max(run.report.planned_peak_bytes, report.peak_bytes);
    const int threads = options.threads > 0 ? options.threads : threads_per_rank(ranks_per_node(loaded.job));
    require_threads_of(loaded.job, options.process, threads);
    run_ranks(options.process, compiled.plan.mesh.world_size(), [&](Communicator& communicator) { RankLoop(run, communicator).train(); });
    if (options.trace && !run.traces.empty()) options.trace(run.traces);
  });
  return run.report;
}

}  // namespace trainer
