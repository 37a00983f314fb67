// The loop of one rank, and what rank 0 also does: tell monitors, decide on signals, commit checkpoints.
#include "engine/train/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "engine/checkpoint/checkpoint.h"
#include "engine/core/error.h"
#include "engine/run/executor.h"
#include "engine/train/answers.h"
#include "engine/train/base.h"
#include "engine/train/checkpoint_plan.h"
#include "engine/train/evaluation.h"
#include "engine/train/going_on.h"
#include "engine/train/inputs.h"
#include "engine/train/non_finite.h"
#include "engine/train/ranks.h"
#include "engine/train/retention.h"
#include "engine/train/run_report.h"
#include "engine/train/saver.h"
#include "engine/train/start.h"
#include "engine/train/steps.h"

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
  std::shared_ptr<const data::Questions> questions{};
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

/// From a checkpoint, whose base, if it has one, is there.
void fill_from(const Run& run, const checkpoint::Checkpoint& start, const LoadedRank& rank) {
  set_scalars(rank.executor, static_cast<float>(run.job().precision.loss_scale.factor));
  load_weights(
      rank, start.tensors, start.path, false,
      is_of_adapter(run.compiled) ? [](const Unit& unit, const UnitTensor&) { return unit.trained(); } : Wanted());
  load_states(rank, start.tensors, start.path);
  const Role& role = rank.executor.role();
  rank.executor.run(role.program_index(ProgramKind::refresh));
  if (load_apart(rank, start.tensors, start.path)) rank.executor.run(role.program_index(ProgramKind::swap));
}

/// As a run begins or goes on. Returns the base of its adapter.
std::optional<SavedBase> fill_weights(const Run& run, const Start& start, const LoadedRank& rank, int threads,
                                      Communicator& communicator, ControlChannel& channel) {
  const ModelJob& model = run.job().model;
  std::optional<SavedBase> base;
  if (start.checkpoint) {
    if (is_of_adapter(run.compiled))
      base = load_base(run.loaded, run.compiled, rank, start.facts, start.checkpoint->path, communicator, channel,
                       run.message());
    fill_from(run, *start.checkpoint, rank);
    return base;
  }
  set_scalars(rank.executor, static_cast<float>(run.job().precision.loss_scale.factor));
  if (run.job().adapter) {
    base = load_first_weights(run.loaded, run.compiled, rank, threads, communicator, channel, run.message());
    if (!is_of_adapter(run.compiled)) base.reset();
  } else if (model.init_from) {
    load_model(run.loaded.job, rank, channel, run.message());
  } else {
    draw_weights(rank, run.job().seed, threads);
  }
  rank.executor.run(rank.executor.role().program_index(ProgramKind::refresh));
  return base;
}

// ---- One rank ------------------------------------------------------------------------------------------------------

class RankLoop {
  static constexpr std::int64_t kMostRollbacks = 3;
  enum class Outcome : std::uint8_t { updated, overflowed, not_finite };

 public:
  RankLoop(Run& run, Communicator& communicator, ControlChannel& channel, const SavedFacts& now, Start start)
      : run_(run),
        job_(run.job()),
        communicator_(communicator),
        rank_(communicator.rank()),
        leads_(rank_ == 0 || run.options.process != nullptr),
        channel_(channel),
        start_(std::move(start)),
        retention_(start_.store ? std::make_optional<Retention>(*start_.store, job_.checkpoint) : std::nullopt),
        facts_(now),
        threads_(run.options.threads > 0 ? run.options.threads : threads_per_rank(ranks_per_node(job_))),
        device_(device_for(job_, communicator, threads_)),
        executor_(device_->load(run.compiled.plan, rank_, communicator)),
        role_(executor_->role()),
        settle_program_(role_.program_index(ProgramKind::settle)),
        swap_program_(role_.program_index(ProgramKind::swap)),
        steps_(job_, run.compiled, *executor_, communicator, *run.data.train) {
    for (int part = 0; role_.program(ProgramKind::average, part) != nullptr; ++part)
      average_programs_.push_back(role_.program_index(ProgramKind::average, part));
    facts_.base = fill_weights(run, start_, loaded_rank(), threads_, communicator_, channel_);
    loss_scale_ = loss_scale_of(*executor_);
    executor_->bind(role_.field_index("metrics"), &metrics_);
    if (const std::int32_t field = role_.field_index("routers"); field >= 0) executor_->bind(field, routers_.data());
    bind_figures();
    executor_->record_times(static_cast<bool>(run.options.trace));
    if (job_.checkpoint.dir)
      saver_.emplace(job_, run.compiled, loaded_rank(), channel_,
                     Saver::First{start_.store.get(), retention_ ? &*retention_ : nullptr,
                                  [this](std::int64_t step, const std::string& path) { committed(step, path); }});
    if (job_.eval && run.data.val && role_.program_index(ProgramKind::evaluate) >= 0)
      evaluation_.emplace(*executor_, run.compiled, run.data.val, rank_, job_.eval->batches);
    if (evaluation_ && run.questions) answers_.emplace(*executor_, run.compiled, run.questions, rank_);
  }

  void train() {
    try {
      steps();
    } catch (...) {
      tell_of_step();
      if (saver_) saver_->finish_after_error();
      throw;
    }
  }

 private:
  void steps() {
    take_over();
    const BatchShape& batch = run_.compiled.batch;
    const auto [index, of] = run_.options.share;
    const std::int64_t global = batch.global * of;
    const int mine = run_.compiled.plan.mesh.index(rank_, kBatchAxes);
    data::Loader loader(run_.data.train, data::SampleOrder(run_.data.parts, global, job_.data.shuffle, job_.seed),
                        data::share_of(mine * of + index, batch.data_ranks * of, global), next_batch_);
    if (leads_) run_.report.startup_ms = milliseconds(Clock::now() - run_.options.process_start);
    const std::int64_t first = step_;
    goes_ahead_ = can_go_ahead();
    for (bool ended = false; !ended;) {
      ended = step_ >= job_.train.steps || (stopped_ && !steps_.is_ahead());
      const std::string trouble = ended ? end() : advance(loader);
      if (trouble.empty()) continue;
      recover(trouble);
      ended = false;
    }
    tell_of_step();
    if (run_.options.at_end) run_.options.at_end(rank_, *executor_);
    if (saver_) saver_->finish();
    if (retention_) retention_->finish(step_);
    const std::vector<RankReport> ranks = report_ranks(*executor_, bytes_sent_ + steps_.bytes_sent(), channel_);
    const std::string log_failure = channel_.from_first(rank_ == 0 ? run_.log_failure : "");
    if (leads_) run_.report.log_failure = log_failure;
    if (leads_) report(first, ranks);
    if (run_.options.trace) {
      channel_.barrier();
      std::vector<RankTrace> traces =
          gather_traces(*executor_, steps_.program(), steps_.program_start(), job_.cluster.nodes > 1, channel_);
      if (rank_ == 0) run_.traces = std::move(traces);
    }
  }

  void bind_figures() {
    if (run_.compiled.figures.empty()) return;
    figures_.resize(run_.compiled.figures.size() + 1);
    executor_->bind(role_.field_index("figures"), figures_.data());
  }

  void report(std::int64_t first, const std::vector<RankReport>& ranks) {
    RunReport& report = run_.report;
    report.first_step = first;
    report.steps = step_;
    report.rollbacks = rollbacks_;
    report.stopped_by_signal = stopped_ && step_ < job_.train.steps && report.log_failure.empty();
    add_ranks(report, ranks);
    add_times(report, step_ms_, tokens_per_step());
  }

  // Goes on where the checkpoint was. A rollback needs one to go back to from the first step on.
  void take_over() {
    if (start_.checkpoint) step_ = start_.checkpoint->manifest.step;
    next_batch_ = step_ + start_.facts.batches_left_out;
    rollbacks_ = start_.facts.rollbacks;
    began_ = step_;
    if (start_.in_dir) saved_ = step_;
    if (retention_ && start_.in_dir) retention_->take_over(step_);
    const std::string best =
        channel_.from_first(retention_ && retention_->best_loss() ? fmt::format("{}", *retention_->best_loss()) : "");
    best_loss_ = best.empty() ? INFINITY : std::stod(best);
    if (leads_) tell_of_start();
    if (job_.train.on_nan != OnNan::rollback || saved_ == step_ || !job_.checkpoint.dir) return;
    if (const std::string trouble = save(); !trouble.empty()) recover(trouble);
  }

  void tell_of_start() {
    StartRecord record;
    record.run_id = run_.report.run_id = start_.facts.run_id;
    record.step = step_;
    if (start_.checkpoint) record.checkpoint = start_.checkpoint->path;
    record.plan_hash = hash_of(run_.compiled.plan);
    record.changes = start_.changes;
    for (const auto& monitor : run_.monitors) monitor->start(record);  // one that cannot be written ends the run here
  }

  // A step and what follows it. Returns what was not finite, where the run cannot go on from it; else nothing.
  std::string advance(data::Loader& loader) {
    if (std::string trouble = one_step(loader, step_); !trouble.empty()) return trouble;
    ++step_;
    if (!executor_->runs_beside_host()) tell_and_ask();
    if (saver_) saver_->commit_if_written();
    average_what_is_due();
    if (evaluation_ && step_ % job_.eval->every == 0)  // at an average: the job's rules see to it
      if (std::string trouble = evaluate(); !trouble.empty()) return trouble;
    return job_.checkpoint.dir && (step_ % job_.checkpoint.every == 0 || is_best()) ? save() : "";
  }

  // What follows the last step. Returns as advance() does.
  std::string end() {
    if (executor_->runs_beside_host()) tell_and_ask();
    if (averages() && !averages_parts() && averaged_ != step_ && step_ > began_) average();
    if (evaluation_ && evaluated_ != step_ && !stopped_)
      if (std::string trouble = evaluate(); !trouble.empty()) return trouble;
    return job_.checkpoint.dir && saved_ != step_ ? save() : "";
  }

  // Whether these weights have the lowest validation loss so far, and are to be kept for it.
  bool is_best() const { return job_.checkpoint.keep_best && evaluated_ == step_ && val_loss_ < best_loss_; }

  std::string one_step(data::Loader& loader, std::int64_t step) {
    const double ms = steps_.run(loader, step, goes_ahead_ && follows_at_once(step), [&] {
      if (executor_->runs_beside_host()) tell_and_ask();
    });
    ++next_batch_;
    const float loss_scale = std::exchange(loss_scale_, metrics_.loss_scale);  // the step leaves that of the next one
    const Outcome outcome = judge(loss_scale);
    if (outcome == Outcome::not_finite) {
      const std::string trouble = describe(step, loss_scale);
      set_scalars(*executor_, loss_scale_);
      if (!trouble.empty() && job_.train.on_nan != OnNan::skip) return trouble;
      if (!trouble.empty() && leads_) run_.tell([&](Monitor& monitor) { monitor.message(trouble); });
    }
    after_skipped_ = outcome != Outcome::updated;
    if (!after_skipped_ && saver_) saver_->finite();
    record(step, outcome, loss_scale, ms);
    return "";
  }

  // Whether all ranks' devices can start ahead, and the job allows it. Ranks that train apart judge together, which
  // they do between two steps. Where steps are skipped, one that is started again must find all as it was; but running
  // statistics and what compression rounded off change in a step that makes no update too.
  bool can_go_ahead() const {
    const bool can = steps_.can_go_ahead() && !averages() && job_.train.on_nan != OnNan::skip;
    return !channel_.any(!can);
  }

  // Whether the next step begins where this one ends, if it is finite. The same on all ranks.
  bool follows_at_once(std::int64_t step) const {
    const std::int64_t end = step + 1;
    return end < job_.train.steps && !stopped_ && !after_skipped_ && !(saver_ && saver_->under_way()) &&
           !(evaluation_ && end % job_.eval->every == 0) && !(job_.checkpoint.dir && end % job_.checkpoint.every == 0);
  }

  void record(std::int64_t step, Outcome outcome, float loss_scale, double ms) {
    if (!leads_) return;
    step_ms_.push_back(ms);
    run_.report.loss = metrics_.loss;
    run_.report.figures = figures_of(run_.compiled.figures, figures_);
    if (outcome != Outcome::updated) ++run_.report.skipped_steps;
    StepRecord& record = untold_.emplace();
    record.step = step;
    record.num_steps = job_.train.steps;
    record.loss = metrics_.loss;
    record.lr = static_cast<float>(learning_rate(job_.train, job_.train.optimizer, step));
    record.grad_norm = metrics_.grad_norm;
    record.tokens = tokens_per_step();
    record.step_ms = ms;
    record.tokens_per_s = static_cast<double>(record.tokens) / ms * 1e3;
    record.samples = next_batch_ * run_.compiled.batch.global;
    record.epoch = static_cast<double>(record.samples) / static_cast<double>(run_.data.train->num_samples());
    record.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    if (run_.options.peak_flops > 0)
      record.mfu = run_.compiled.model_flops_per_step / (ms * 1e-3 * run_.options.peak_flops);
    if (job_.precision.loss_scale.mode != LossScale::Mode::none) record.loss_scale = loss_scale;
    if (role_.field_index("routers") >= 0) {
      record.aux_loss = routers_[0] / static_cast<double>(run_.compiled.batch.global);
      record.dropped = std::llround(routers_[1]);
    }
    record.skipped = outcome != Outcome::updated;
    record.lowers_scale = outcome == Outcome::overflowed;
    record.memory_bytes = std::max(executor_->allocated_bytes(), counted_bytes_);
    record.figures = figures_of(run_.compiled.figures, figures_);
  }

  // What the ranks tell each other and the user after a step: at once, or, where a device works beside the host, while
  // it works on the next one, so that it waits for nobody's answer. There a stop takes effect one step later, or two
  // where that device was given the step after as well.
  void tell_and_ask() {
    counted_bytes_ = std::max(counted_bytes_, executor_->counted_bytes());
    tell_of_step();
    const bool asked = run_.options.stop != nullptr && run_.options.stop->load();
    stopped_ = channel_.any(stopped_ || asked || (leads_ && !run_.log_failure.empty()));
  }

  void tell_of_step() {
    if (!untold_) return;
    const StepRecord record = *untold_;
    untold_.reset();
    run_.tell([&](Monitor& monitor) { monitor.step(record); });
  }

  std::int64_t tokens_per_step() const {
    return run_.compiled.batch.global * (job_.data.is_text() ? job_.data.tokens() : 1);
  }

  // Of the last step. An overflow is at a loss scale that has since become smaller. Whatever was not finite made no
  // update.
  Outcome judge(float loss_scale) {
    const bool overflowed = !std::isfinite(metrics_.grad_norm) || !std::isfinite(metrics_.loss),
               bad = overflowed || metrics_.factor == 0;
    if (overflowed && scales_dynamically() && loss_scale > static_cast<float>(job_.precision.loss_scale.smallest))
      return Outcome::overflowed;
    return (averages() ? channel_.any(bad) : bad)
               ? Outcome::not_finite
               : Outcome::updated;  // ranks that trained apart have metrics of their own
  }

  bool scales_dynamically() const { return job_.precision.loss_scale.mode == LossScale::Mode::dynamic; }

  // The update was not made, so the same step again, looked at node by node, shows where it began. A dynamic scale is
  // at its smallest, and stays there. Of skipped steps in a row only the first is looked at: nothing.
  std::string describe(std::int64_t step, float loss_scale) {
    if (job_.train.on_nan == OnNan::skip && after_skipped_) return "";
    const float loss = metrics_.loss, norm = metrics_.grad_norm;
    steps_.bind_again();
    const std::string where = locate_non_finite(*executor_, steps_.program(), channel_);
    const std::string scale = scales_dynamically() ? fmt::format(", at the smallest loss scale, {}", loss_scale)
                              : loss_scale != 1    ? fmt::format(", at loss scale {}", loss_scale)
                                                   : "";
    return channel_.from_first(fmt::format("step {}: loss {}, gradient norm {}{}: {}; the update was not made", step,
                                           loss, norm, scale, where));
  }

  // Goes back to the last good checkpoint, leaving out the batches since, where the job says so; else throws.
  void recover(const std::string& trouble) {
    tell_of_step();
    if (saver_) saver_->finish();
    const bool rolls_back = job_.train.on_nan == OnNan::rollback;
    Retention::Fallback fallback;
    if (retention_) fallback = retention_->fall_back();
    const std::string good = channel_.from_first(fallback.good);
    const bool goes_on = rolls_back && !good.empty() && rollbacks_ < kMostRollbacks;
    if (!goes_on)
      throw NonFiniteError(
          channel_.from_first(trouble + advice(fallback, job_.train.on_nan, rollbacks_ >= kMostRollbacks)));
    const checkpoint::Checkpoint back = checkpoint::open_checkpoint(good);
    fill_from(run_, back, loaded_rank());
    loss_scale_ = loss_scale_of(*executor_);
    const std::int64_t from = std::exchange(step_, back.manifest.step);
    began_ = saved_ = step_;
    evaluated_ = averaged_ = -1;
    after_skipped_ = false;
    ++rollbacks_;
    if (!leads_) return;
    RollbackRecord record;
    record.step = step_;
    record.checkpoint = good;
    record.reason = fmt::format("{}; went back from step {} to {} and left out the batches since (rollback {} of {})",
                                trouble, from, good, rollbacks_, kMostRollbacks);
    run_.tell([&](Monitor& monitor) { monitor.rollback(record); });
  }

  std::string evaluate() {
    tell_of_step();
    swap();
    EvaluationRecord record = evaluation_->run(step_);
    if (answers_) record.exact_match = answers_->exact_match(channel_);
    swap();
    bind_figures();  // the field is of both programs
    evaluated_ = step_;
    val_loss_ = record.val_loss;
    if (leads_) {
      run_.report.val_loss = record.val_loss;
      run_.report.val_accuracy = record.val_accuracy;
      run_.report.exact_match = record.exact_match;
      run_.report.val_figures = record.figures;
      run_.tell([&](Monitor& monitor) { monitor.evaluation(record); });
    }
    if (!channel_.any(!std::isfinite(record.val_loss))) return "";
    const std::string weight = non_finite_weight(loaded_rank(), channel_);
    return fmt::format("after {} steps: validation loss {}{}", step_, record.val_loss,
                       weight.empty() ? "" : "; the weight " + weight);
  }

  // ---- Rounds of local SGD ----

  bool averages() const { return !average_programs_.empty(); }
  bool averages_parts() const { return average_programs_.size() > 1; }

  void average() {
    for (const std::int32_t program : average_programs_) average_by(program);
  }

  void average_by(std::int32_t program) {
    const std::int64_t sent = communicator_.bytes_sent();
    executor_->run(program);
    bytes_sent_ += communicator_.bytes_sent() - sent;
    averaged_ = step_;
  }

  // Each part at a step of its own. After the last step all parts, so that no step is lost; a run that was stopped goes
  // on in the middle of a round.
  void average_what_is_due() {
    if (averages() && step_ == job_.train.steps) return average();
    const DataStrategyJob& data = job_.strategy.data;
    for (std::size_t part = 0; part < average_programs_.size(); ++part)
      if ((step_ - data.step_of_part(static_cast<std::int64_t>(part))) % data.every == 0)
        average_by(average_programs_[part]);
  }

  // Exchanges each rank's own weights with the model that all ranks agreed on last. The second call undoes the first.
  void swap() {
    if (swap_program_ >= 0) executor_->run(swap_program_);
  }

  std::string save() {
    tell_of_step();
    if (settle_program_ >= 0) executor_->run(settle_program_);
    swap();
    if (const std::string weight = non_finite_weight(loaded_rank(), channel_); !weight.empty())
      return fmt::format("after {} steps: the weight {}", step_, weight);
    saver_->save(step_, saved_facts());
    swap();
    saved_ = step_;
    if (evaluated_ == step_) best_loss_ = std::min(best_loss_, val_loss_);
    return "";
  }

  void committed(std::int64_t step, const std::string& path) {
    run_.report.checkpoint = path;
    run_.tell([&](Monitor& monitor) { monitor.checkpoint(step, path); });
  }

  LoadedRank loaded_rank() { return {*executor_, run_.compiled.plan, rank_}; }

  SavedFacts saved_facts() const {
    SavedFacts facts = facts_;
    facts.run_id = start_.facts.run_id;
    if (evaluated_ == step_) facts.val_loss = val_loss_;
    facts.after_skipped = after_skipped_;
    facts.batches_left_out = next_batch_ - step_;
    facts.rollbacks = rollbacks_;
    return facts;
  }

  Run& run_;
  const Job& job_;
  Communicator& communicator_;
  const int rank_;
  const bool leads_;  // the first rank of its process, which reports
  ControlChannel& channel_;
  Start start_;                         // its store is rank 0's
  std::optional<Retention> retention_;  // of that
  SavedFacts facts_;                    // of this job
  const int threads_;
  std::unique_ptr<DeviceBackend> device_;
  std::unique_ptr<Executor> executor_;
  const Role& role_;
  const std::int32_t settle_program_, swap_program_;  // -1: there is no such
  std::vector<std::int32_t> average_programs_;        // of each part
  Steps steps_;
  std::optional<Evaluation> evaluation_;
  std::optional<Answers> answers_;  // of eval.generate
  std::optional<Saver> saver_;      // where there is checkpoint.dir
  bool goes_ahead_ = false;         // steps are started before the last is finished
  std::vector<double> step_ms_;
  std::optional<StepRecord> untold_;
  std::int64_t bytes_sent_ = 0;     // between steps
  std::int64_t counted_bytes_ = 0;  // of the device's memory, the most so far
  bool stopped_ = false;
  std::int64_t step_ = 0;        // updates made
  std::int64_t next_batch_ = 0;  // of the step to come; ahead of step_ by what rollbacks left out
  std::int64_t began_ = 0;       // step of the weights that were drawn or loaded
  std::int64_t rollbacks_ = 0;
  bool after_skipped_ = false;                                // the last step made no update
  std::int64_t saved_ = -1, evaluated_ = -1, averaged_ = -1;  // steps of the last of each
  double val_loss_ = 0;                                       // of the last evaluation
  double best_loss_ = INFINITY;                               // lowest of those whose weights were saved

  // Fields of the plan.
  float loss_scale_ = 1;  // of the next step
  struct Metrics {
    float factor = 0, loss_scale = 0, grad_norm = 0, loss = 0;
  } metrics_;
  std::array<double, 2> routers_{};  // sums of all routers' losses over samples, and what capacities left out
  std::vector<double> figures_;      // as Loss::figures
};

std::map<std::string, std::string> optimizers_of_parameters(const CompiledJob& compiled) {
  std::map<std::string, std::string> names;
  for (const Role& role : compiled.plan.roles)
    for (const Unit& unit : role.units)
      for (const UnitTensor& tensor : unit.tensors)
        if (unit.trained())
          names[tensor.name] = name_of(compiled.optimizers[static_cast<std::size_t>(unit.optimizer)].name);
  return names;
}

SavedFacts facts_of_job(const Run& run) {
  SavedFacts facts{.name = run.job().name,
                   .strategy = std::string(name_of(run.compiled.strategy.data.kind)),
                   .world_size = run.compiled.plan.mesh.world_size(),
                   .tokenizer = ""};
  if (run.data.tokenizer) facts.tokenizer = canonical_json(run.data.tokenizer->json());
  facts.job = describe_job(run.loaded);
  facts.optimizers = optimizers_of_parameters(run.compiled);
  return facts;
}

void require_space(const Run& run, const Start& start) {
  const std::int64_t step = start.checkpoint ? start.checkpoint->manifest.step : 0;
  const std::string lack = lack_of_space(run.job(), run.compiled, step);
  if (!lack.empty()) throw IoError(lack);
}

void train_rank(Run& run, Communicator& communicator) {
  ControlChannel& channel = communicator.control();
  const bool first = communicator.rank() == 0;
  const SavedFacts now = first ? facts_of_job(run) : SavedFacts{};
  Start start = find_start(run.loaded, now, communicator, channel, run.message());
  if (!start.finished) {
    if (start.store) require_space(run, start);
    return RankLoop(run, communicator, channel, now, std::move(start)).train();
  }
  if (start.store) {  // a run that was killed after its last save had no time to
    Retention retention(*start.store, run.job().checkpoint);
    retention.take_over(start.checkpoint->manifest.step);
    retention.finish(start.checkpoint->manifest.step);
  }
  if (!first && run.options.process == nullptr) return;
  run.report.finished_before = true;
  run.report.first_step = run.report.steps = start.checkpoint->manifest.step;
  run.report.checkpoint = start.checkpoint->path;
  run.report.run_id = start.facts.run_id;
}

}  // namespace

RunReport train(const LoadedJob& loaded, const CompiledJob& compiled, const Monitors& monitors,
                const TrainOptions& options) {
  Run run{loaded, compiled, monitors, options};
  abort_on_error(options.process, [&] {
    run.data = open_inputs(loaded, compiled);
    if (run.data.has_rows()) run.message()(data::summary_of_rows(run.data, loaded.job.data.seq_len));
    run.questions = open_questions(loaded, compiled);
    for (const MemoryReport& report : compiled.memory)
      run.report.planned_peak_bytes = std::max(run.report.planned_peak_bytes, report.peak_bytes);
    require_threads_of(loaded.job, options.process,
                       options.threads > 0 ? options.threads : threads_per_rank(ranks_per_node(loaded.job)));
    run_ranks(options.process, compiled.plan.mesh.world_size(),
              [&](Communicator& communicator) { train_rank(run, communicator); });
    if (options.trace && !run.traces.empty()) options.trace(run.traces);
  });
  return run.report;
}

}  // namespace trainer
