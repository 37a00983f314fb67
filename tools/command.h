// What the subcommands share: how they enter the command line, their exit codes, and where a job comes from.
// A subcommand is a file with one function add_<name>, declared here and called in main.cpp.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/job/job.h"
#include "engine/report/json.h"
#include "engine/train/generator.h"
#include "tools/command_line.h"
#include "tools/output.h"

namespace trainer::tools {

/// sysexits.h where it has a fitting one; 143 is what a shell reports of a process that SIGTERM ended.
enum ExitCode : int {
  kDone = 0,
  kUsage = 64,
  kBadData = 65,
  kBug = 70,
  kInputOutput = 74,
  kBadJob = 78,
  kStopped = 143
};

/// What a rank that this command started itself ends with when another one failed; start_ranks does not take it for the
/// reason.
inline constexpr int kConsequence = 75;
/// kConsequence in such a rank, else kInputOutput.
int exit_after_loss();

void add_run(CommandLine& app, Work& work);
void add_plan(CommandLine& app, Work& work);
void add_validate(CommandLine& app, Work& work);
void add_verify(CommandLine& app, Work& work);
void add_eval(CommandLine& app, Work& work);
void add_sample(CommandLine& app, Work& work);
void add_score(CommandLine& app, Work& work);
void add_chat(CommandLine& app, Work& work);
void add_export(CommandLine& app, Work& work);
void add_inspect(CommandLine& app, Work& work);
void add_schema(CommandLine& app, Work& work);
void add_init(CommandLine& app, Work& work);
void add_doctor(CommandLine& app, Work& work);
void add_calibrate(CommandLine& app, Work& work);
void add_data(CommandLine& app, Work& work);
void add_tokenize(CommandLine& app, Work& work);
void add_tokenizer(CommandLine& app, Work& work);

using report::Json;

/// A job on the command line: JOB [key=value …], and --json.
struct JobArguments {
  std::string path;
  std::vector<std::string> overrides;
  std::string base;  ///< of add_base_option: replaces model.init_from; UsageError for a job without an adapter
  bool json = false;
  bool or_checkpoint = false;  ///< JOB may be a checkpoint or an adapter by itself: engine/train/checkpoint_job.h

  /// Whether JOB is a checkpoint by itself.
  bool is_checkpoint() const;
  /// Whether JOB is a folder with an adapter of PEFT.
  bool is_adapter() const;
  /// Whether no file says what the job is: JOB is a model folder, a checkpoint or an adapter.
  bool is_made_up() const;
  void add_to(Subcommand& command);
  /// `world_size`: ranks that a launcher started; 0: no launcher.
  /// The job's cluster is resolved.
  /// Mistakes of all stages are thrown at once; warnings are said.
  LoadedJob load(int world_size = 0) const;
  /// The same, with the warnings left in LoadedJob::warnings.
  LoadedJob load_silently(int world_size = 0) const;
  /// load_silently, and what this computer cannot run is refused.
  LoadedJob load_to_run(int world_size = 0) const;
};

/// How jobs are loaded on this machine.
LoadOptions load_options(int world_size = 0);

/// --checkpoint, for commands that read weights.
void add_checkpoint_option(Subcommand& command, std::string& checkpoint);
/// Where weights for use are: the checkpoint given, else JOB where that is a checkpoint or a model folder, else the
/// job's checkpoint.dir. Throws UsageError where there is none.
std::string weights_of(const JobArguments& arguments, const LoadedJob& loaded, const std::string& given);
/// The one given, else the job's checkpoint.dir. Throws UsageError where there is neither.
std::string checkpoint_of(const LoadedJob& loaded, const std::string& given);

/// --temperature, --top-k, --top-p and --seed.
void add_drawing_options(Subcommand& command, Drawing& drawing);

/// --base, for the same commands: where the base of an adapter is, if not at the job's model.init_from.
void add_base_option(Subcommand& command, JobArguments& arguments);

/// Compiles for this machine, with `threads` threads a rank (0: its share). Throws JobError where the plan does not fit
/// into its memory.
CompiledJob compile_here(const LoadedJob& loaded, Purpose purpose, int threads = 0);
/// The same, fitting or not: CompiledJob::fits says.
CompiledJob plan_here(const LoadedJob& loaded, Purpose purpose, int threads = 0);

/// Tells people on stderr what went wrong and whose affair it is; returns the exit code. Takes the exception in flight.
int report_error();

void put_document(const Json& json);

}  // namespace trainer::tools
