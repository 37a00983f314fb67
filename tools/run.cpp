// trainer run: find out who started it, compile, show what will happen, train. In a process that a launcher started as
// another rank than 0, it says nothing but what goes wrong.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/core/error.h"
#include "engine/monitor/monitors.h"
#include "engine/report/compare_times.h"
#include "engine/report/plan_report.h"
#include "engine/report/table.h"
#include "engine/report/trace.h"
#include "engine/train/ranks.h"
#include "engine/train/train.h"
#include "tools/command.h"
#include "tools/own_rank.h"
#include "tools/planned.h"

namespace trainer::tools {
namespace {

using Clock = std::chrono::steady_clock;

// Read by every rank's thread, set by a signal handler: both may touch an atomic without a lock.
std::atomic<bool> stop_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

constexpr std::string_view text_of(int signal) {
  switch (signal) {
    case SIGINT:
      return "\nCtrl-C: finishing this step, then saving and ending; Ctrl-C again ends at once and saves nothing\n";
    case SIGTERM:
      return "\nSIGTERM: finishing this step, then saving and ending\n";
    case SIGHUP:
      return "\nSIGHUP (the terminal was closed): finishing this step, then saving and ending\n";
    case SIGXCPU:
      return "\nthe limit of processor time (ulimit -t) is nearly used up: finishing this step, then saving and "
             "ending\n";
    default:
      return "\nSIGUSR1: finishing this step, then saving and ending\n";
  }
}

// The first signal asks the run to save and end. A second Ctrl-C means it: the process ends as by default.
void request_stop(int signal) {
  if (stop_requested.exchange(true)) {
    if (signal == SIGINT) {
      std::signal(SIGINT, SIG_DFL);
      std::raise(SIGINT);
    }
    return;
  }
  if (speaks()) say_now(text_of(signal));
}

// Where the limit at which the kernel kills is also the first, there would be no signal before: a tenth of it, at most
// a minute, is kept for the step at hand and the save.
void keep_time_to_save() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_CPU, &limit) != 0 || limit.rlim_max == RLIM_INFINITY || limit.rlim_cur < limit.rlim_max)
    return;
  limit.rlim_cur = limit.rlim_max - std::clamp<rlim_t>(limit.rlim_max / 10, 1, 60);
  if (limit.rlim_cur > 0) ::setrlimit(RLIMIT_CPU, &limit);
}

void catch_signals() {
  struct sigaction action {
  }, before{};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGTERM, SIGINT, SIGUSR1, SIGXCPU}) ::sigaction(signal, &action, nullptr);
  if (::sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
    ::sigaction(SIGHUP, &action, nullptr);  // nohup
  keep_time_to_save();
}

// When the kernel started this process, on the steady clock: field 22 of /proc/self/stat, in ticks since the machine's
// start.
Clock::time_point process_start() {
  std::ifstream file("/proc/self/stat");
  std::string stat{std::istreambuf_iterator<char>(file), {}};
  stat.erase(0, std::min(stat.size(), stat.rfind(')') + 1));  // the name may hold blanks
  std::istringstream fields(stat);
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double ticks = 0;
  timespec since_boot{};
  if (!(fields >> ticks) || ::clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0) return Clock::now();
  const double age = static_cast<double>(since_boot.tv_sec) + static_cast<double>(since_boot.tv_nsec) * 1e-9 -
                     ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return Clock::now() - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::max(age, 0.0)));
}

void say_header(const LoadedJob& loaded, const CompiledJob& compiled, int threads) {
  const Job& job = loaded.job;
  if (!job.checkpoint.dir) say("weights will not be saved: checkpoint.dir is null\n");
  const bool all = compiled.num_trained == compiled.num_parameters;
  say("{}: {} parameters{}, {} steps, {}\n", job.name, count_text(static_cast<double>(compiled.num_parameters)),
      all ? "" : fmt::format(", {} of them trained", count_text(static_cast<double>(compiled.num_trained))),
      grouped(job.train.steps), report::batch_line(compiled.batch));
  say("strategy: {} ({}), compute in {}\n", report::strategy_line(compiled),
      compiled.alternatives.empty() ? compiled.strategy_why : "chosen; trainer plan says why",
      name_of(job.precision.compute));
  say("memory: {} of {} a rank: {}\n", bytes_text(static_cast<double>(report::fullest(compiled).peak_bytes)),
      bytes_text(static_cast<double>(compiled.limit_bytes)), report::memory_line(compiled));
  if (const auto costs = without_bf16(loaded, compiled, threads)) say("{}\n", report::text_of(*costs));
}

// Where the last step's time went, of a few ranks; the trace has all.
void say_times(const std::vector<report::RankTimes>& times) {
  constexpr std::size_t kShown = 8;
  for (std::size_t rank = 0; rank < std::min(times.size(), kShown); ++rank)
    say("rank {}, last step: {}\n", rank, report::times_text(times[rank]));
}

// How far the model of this machine is off, and where.
void say_comparison(const cost::Prediction& predicted, const std::vector<report::TimeDifference>& differences,
                    const std::vector<RankTrace>& ranks) {
  constexpr std::size_t kShown = 10;
  std::int64_t begin = INT64_MAX, end = INT64_MIN;
  for (const RankTrace& rank : ranks)
    for (const Span& span : rank.spans) {
      begin = std::min(begin, rank.start_ns + span.begin_ns);
      end = std::max(end, rank.start_ns + span.end_ns);
    }
  say("the step was predicted to take {:.2f} ms ({:.2f} to {:.2f}) and took {:.2f} ms; what differs most, on a "
      "rank:\n{}",
      predicted.step_us * 1e-3, predicted.low_us * 1e-3, predicted.high_us * 1e-3,
      static_cast<double>(end - begin) * 1e-6, report::differences_text(differences, kShown));
}

// mpirun sends its ranks SIGTERM when it is to end, and SIGKILL a second later: too early for long steps.
class GraceNotice final : public Monitor {
 public:
  void step(const StepRecord& record) override {
    if (++steps_ != 2 || record.step_ms < 500 * grace_s()) return;  // the first one's time is no measure
    say("a step takes {:.1f} s, and mpirun kills its ranks {:g} s after Ctrl-C or SIGTERM, before they can save: to "
        "end this run with its "
        "weights saved, send SIGUSR1 to mpirun (configs/cluster/README.md)\n",
        record.step_ms * 1e-3, grace_s());
  }

 private:
  static double grace_s() {
    const char* const given = std::getenv("OMPI_MCA_odls_base_sigkill_timeout");  // mpirun --mca sets it for its ranks
    return given == nullptr ? 1 : std::atof(given);
  }
  int steps_ = 0;
};

// Opens the trace when training begins: a run that does not begin leaves an earlier one as it is.
class TraceFile final : public Monitor {
 public:
  TraceFile(std::string path, std::optional<TraceWriter>& trace) : path_(std::move(path)), trace_(trace) {}
  void start(const StartRecord&) override { trace_.emplace(path_); }

 private:
  const std::string path_;
  std::optional<TraceWriter>& trace_;
};

Monitors monitors_of(const Job& job, std::optional<TraceWriter>& trace) {
  Monitors monitors;
  ProgressOptions progress = progress_options(STDERR_FILENO, job.log.every);
  if (!job.data.is_text()) progress.unit = "samples";
  monitors.push_back(progress_monitor(progress));
  if (job.log.jsonl) monitors.push_back(jsonl_monitor(*job.log.jsonl));
  if (job.log.tensorboard) monitors.push_back(tensorboard_monitor(*job.log.tensorboard));
  if (job.log.trace) monitors.push_back(std::make_unique<TraceFile>(*job.log.trace, trace));
  if (const std::optional<Launcher> launcher = detect_launcher(process_environment());
      launcher && launcher->source.find("Open MPI") != std::string::npos)
    monitors.push_back(std::make_unique<GraceNotice>());
  return monitors;
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// Of a step with log.trace, on a rank: what ran, how long, and how long it had to.
Json works_json(const std::vector<report::TimeDifference>& works) {
  Json list = Json::array();
  for (const report::TimeDifference& one : works)
    list.push_back({{"work", one.work},
                    {"count", one.count},
                    {"measured_ms", one.measured_us * 1e-3},
                    {"predicted_ms", one.predicted_us * 1e-3},
                    {"floor_ms", one.floor_us > 0 ? Json(one.floor_us * 1e-3) : Json(nullptr)}});
  return list;
}

void put_report(const CompiledJob& compiled, const RunReport& report,
                const std::vector<report::TimeDifference>& works) {
  const auto measured = [&](double value) { return report.finished_before ? Json(nullptr) : Json(value); };
  Json document{{"plan_hash", hash_of(compiled.plan)},
                {"strategy", report::strategy_json(compiled)},
                {"world_size", compiled.plan.mesh.world_size()},
                {"run_id", report.run_id},
                {"finished_before", report.finished_before},
                {"first_step", report.first_step},
                {"steps", report.steps},
                {"loss", or_null(report.loss)},
                {"val_loss", or_null(report.val_loss)},
                {"val_accuracy", or_null(report.val_accuracy)},
                {"exact_match", or_null(report.exact_match)},
                {"tokens_per_s", measured(report.tokens_per_s)},
                {"step_ms", {{"median", measured(report.step_ms_median)}, {"p95", measured(report.step_ms_p95)}}},
                {"startup_ms", measured(report.startup_ms)},
                {"planned_peak_bytes", report.planned_peak_bytes},
                {"allocated_bytes", report.finished_before ? Json(nullptr) : Json(report.allocated_bytes)},
                {"offloaded_bytes", report.finished_before ? Json(nullptr) : Json(report.offloaded_bytes)},
                {"counted_bytes", report.counted_bytes > 0 ? Json(report.counted_bytes) : Json(nullptr)},
                {"bytes_sent", report.bytes_sent},
                {"checkpoint", report.checkpoint.empty() ? Json(nullptr) : Json(report.checkpoint)},
                {"skipped_steps", report.skipped_steps},
                {"rollbacks", report.rollbacks},
                {"stopped_by_signal", report.stopped_by_signal},
                {"log_failure", report.log_failure.empty() ? Json(nullptr) : Json(report.log_failure)}};
  for (const Figures* figures : {&report.figures, &report.val_figures})
    for (const auto& [name, value] : *figures) document[name] = value;
  if (!works.empty()) document["works"] = works_json(works);
  put_document(document);
}

void put_summary(const RunReport& report) {
  put("steps: {}\n", report.steps);
  if (report.loss) put("loss: {:.4f}\n", *report.loss);
  if (report.val_loss) put("validation loss: {:.4f}\n", *report.val_loss);
  if (report.val_accuracy) put("validation accuracy: {:.2f}%\n", 100 * *report.val_accuracy);
  if (report.exact_match) put("exact match: {:.2f}%\n", 100 * *report.exact_match);
  for (const Figures* figures : {&report.figures, &report.val_figures})
    for (const auto& [name, value] : *figures) put("{}: {:.4f}\n", name, value);
  if (report.step_ms_median > 0)
    put("step: {:.1f} ms (median), {:.1f} ms (95th percentile)\n", report.step_ms_median, report.step_ms_p95);
  if (!report.checkpoint.empty()) put("checkpoint: {}\n", report.checkpoint);
}

RunReport run(const JobArguments& arguments, const OwnRank& own, TrainOptions options) {
  const LoadedJob& loaded = own.loaded;
  const CompiledJob compiled = compile_here(loaded, Purpose::train, own.threads);
  check_same_plan(own.process.get(), compiled.plan);
  const bool first = speaks();
  if (first) say_header(loaded, compiled, own.threads);
  tokenize_alone(own, compiled);
  if (first) options.peak_flops = peak_flops_here(loaded, compiled, own.threads);
  std::optional<TraceWriter> trace;
  std::vector<report::TimeDifference> works;
  if (loaded.job.log.trace) {
    options.trace = [&](const std::vector<RankTrace>& ranks) {
      const CompiledJob full = written_out(compiled);
      const report::Meetings meetings(full.plan);
      const report::PredictedStep predicted = predict_here(loaded, full, own.threads);
      say_times(report::write_trace(*trace, full.plan, predicted.times, meetings, ranks));
      works = report::compare_times(full.plan, predicted.machine->device, predicted.times, meetings, ranks);
      say_comparison(predicted.times, works, ranks);
    };
  }
  RunReport report;
  {
    const Monitors monitors = first ? monitors_of(loaded.job, trace) : Monitors{};
    catch_signals();
    report = train(loaded, compiled, monitors, options);
  }
  if (!first) return report;
  if (arguments.json)
    put_report(compiled, report, works);
  else
    put_summary(report);
  return report;
}

void say_log_failure(const RunReport& report) {
  if (!speaks()) return;
  const std::string weights = report.checkpoint.empty() ? "its weights are not saved, as the job has no checkpoint.dir"
                                                        : "its weights are saved in " + report.checkpoint;
  say("trainer: input/output: {}\ntraining ended after step {} because this log cannot be written; {}\n",
      report.log_failure, report.steps, weights);
}

int run(const JobArguments& arguments) {
  if (const std::optional<int> code = run_as_ranks(arguments, Reads::data)) return *code;
  TrainOptions options;
  options.process_start = process_start();
  options.stop = &stop_requested;
  never_wait_for_readers();
  const OwnRank own = join_ranks(arguments, Reads::data);
  options.process = own.process.get();
  options.threads = own.threads;
  RunReport report;
  abort_on_error(own.process.get(), [&] { report = run(arguments, own, options); });
  if (!report.log_failure.empty()) return say_log_failure(report), kInputOutput;
  return report.stopped_by_signal ? kStopped : kDone;
}

}  // namespace

void add_run(CommandLine& app, Work& work) {
  Subcommand* command = app.add_subcommand("run", "plans and trains; goes on where a run before stopped");
  auto arguments = std::make_shared<JobArguments>();
  arguments->add_to(*command);
  command->footer(
      "Examples:\n"
      "  trainer run configs/quickstart.yaml\n"
      "  trainer run job.yaml train.steps=100 'train.optimizer={name: lion, lr: 1e-4}'\n"
      "  trainer run job.yaml cluster.devices_per_node=2 --json >report.json\n"
      "  mpirun -n 4 trainer run job.yaml          each rank a process; srun does the same\n"
      "  trainer run job.yaml cluster.hardware=h100-sxm       a process for each GPU, which it starts itself\n"
      "\n"
      "Checkpoints go to checkpoint.dir, runs/<name> beside the job by default; null saves nothing. The same command "
      "goes\n"
      "on from the newest whole checkpoint there and says what has changed since: steps, rates, strategy, precision "
      "and the\n"
      "like may; model, adapter, trainable, data, tokenizer, seq_len, batch.global, seed, objective and the optimizer\n"
      "of a parameter may not (78), unless checkpoint.accept names them. A finished run says that nothing is left to "
      "do. Another\n"
      "checkpoint.dir starts over.\n"
      "Files are written while the next steps run, from a copy in host memory, if that fits; checkpoint.behind=false\n"
      "writes them in the step. Too little free space for what is kept and one more checkpoint is refused (74).\n"
      "At a loss or gradient that is not finite the run saves nothing and exits 65; train.on_nan=skip or rollback go "
      "on.\n"
      "Text under a tokenizer.json is tokenized once, into ~/.cache/trainer; TRAINER_CACHE names another folder, or "
      "off.\n"
      "SIGTERM, SIGINT (Ctrl-C), SIGHUP and SIGUSR1 finish the step, save and exit 143. A job that does not fit into\n"
      "memory is refused (78) before anything is allocated.\n");
  command->callback([arguments, &work] { work = [arguments] { return run(*arguments); }; });
}

}  // namespace trainer::tools
