// Loading and compiling jobs for the subcommands; errors to exit codes.
#include "tools/command.h"

#include <filesystem>
#include <system_error>

#include <nlohmann/json.hpp>

#include "engine/comm/communicator.h"
#include "engine/compile/check_job.h"
#include "engine/compile/choose.h"
#include "engine/compile/fit.h"
#include "engine/core/environment.h"
#include "engine/core/error.h"
#include "engine/core/system_error.h"
#include "engine/job/folder_job.h"
#include "engine/job/peft_config.h"
#include "engine/job/yaml.h"
#include "engine/train/checkpoint_job.h"
#include "engine/train/ranks.h"
#include "engine/train/train.h"
#include "kernels/cpu/runtime/isa.h"
#include "tools/machine.h"

namespace trainer::tools {

LoadOptions load_options(int world_size) {
  const bool bf16 = kernels::cpu::detect_isa() >= kernels::cpu::Isa::avx512_bf16;
  return {.configs_dir = configs_dir(), .bf16 = bf16, .world_size = world_size};
}

void JobArguments::add_to(Subcommand& command) {
  command
      .add_option(
          or_checkpoint ? "MODEL" : "JOB", path,
          or_checkpoint ? "a job, a checkpoint, a model folder or a folder with an adapter of peft" : "the job file")
      ->required()
      ->type_name("");
  command.add_option("OVERRIDES", overrides, "key.path=value: replaces what the file says; the value is YAML")
      ->type_name("");
  command.add_flag("--json", json, "makes stdout one JSON document");
}

LoadedJob JobArguments::load(int world_size) const {
  LoadedJob loaded = load_silently(world_size);
  for (const Diagnostic& warning : loaded.warnings) say("{}\n", warning.str());
  return loaded;
}

namespace {

/// Where the base of an adapter of PEFT is: `given`, or what the adapter says.
std::string base_of_peft_folder(const std::string& path, const std::string& given) {
  const std::string base = given.empty() ? read_peft_config(path, {}, true).base : given;
  if (is_model_folder(base)) return base;
  throw DataError(path + ": is an adapter, and its base" + (base.empty() ? "" : " (" + base + ")") +
                  " is no model folder here; --base names one");
}

}  // namespace

LoadedJob JobArguments::load_silently(int world_size) const {
  const LoadOptions options = load_options(world_size);
  if (is_adapter()) {
    const std::string text = job_of_peft_folder(path, base_of_peft_folder(path, base), overrides, options);
    ReadJob job = read_job_text(text, name_of_folder(path) + ".yaml", overrides, options);
    job.loaded.file = path;
    return check_read_job(std::move(job), hardware_dir(), gpus_here);
  }
  const std::optional<JobOfCheckpoint> of =
      is_checkpoint() ? std::optional(job_of_checkpoint(path)) : std::optional<JobOfCheckpoint>();
  const auto read = [&](const std::vector<std::string>& all) {
    return of ? read_job_text(of->text, of->path, all, options) : read_job(path, all, options);
  };
  ReadJob job = read(overrides);
  if (!base.empty() && job.loaded.job.model.folder) {
    job.loaded.job.model.init_from = base;  // of what model.from describes
  } else if (!base.empty()) {
    std::vector<std::string> all = overrides;
    yaml::Node from;
    from.text = base;
    from.quoted = true;
    all.push_back("model.init_from=" + from.flow());
    job = read(all);
  }
  LoadedJob loaded = check_read_job(std::move(job), hardware_dir(), gpus_here);
  if (!base.empty() && !loaded.job.adapter) throw UsageError("--base is the base of an adapter, and the job has none");
  return loaded;
}

bool JobArguments::is_checkpoint() const { return or_checkpoint && trainer::is_checkpoint(path); }

bool JobArguments::is_adapter() const { return or_checkpoint && is_peft_folder(path); }

bool JobArguments::is_made_up() const { return is_model_folder(path) || is_checkpoint() || is_adapter(); }

LoadedJob JobArguments::load_to_run(int world_size) const {
  LoadedJob loaded = load_silently(world_size);
  require_runnable(loaded);
  return loaded;
}

void add_checkpoint_option(Subcommand& command, std::string& checkpoint) {
  command
      .add_option("--checkpoint", checkpoint,
                  "a step's directory, a directory of them (its newest whole one), or a .safetensors file. Default: "
                  "the job's checkpoint.dir")
      ->type_name("PATH");
}

void add_drawing_options(Subcommand& command, Drawing& drawing) {
  command
      .add_option("--temperature", drawing.temperature,
                  "below 1 sharpens, above 1 flattens; 0 always takes the likeliest token")
      ->at_least(0)
      ->capture_default_str()
      ->type_name("T");
  command.add_option("--top-k", drawing.top_k, "draws from the k likeliest tokens; 0: from all")
      ->at_least(0)
      ->capture_default_str()
      ->type_name("K");
  command
      .add_option("--top-p", drawing.top_p,
                  "draws from the likeliest tokens whose probabilities add up to p; 1: from all")
      ->within(0, 1)
      ->capture_default_str()
      ->type_name("P");
  command.add_option("--seed", drawing.seed, "of the draws: the same seed, the same text")
      ->capture_default_str()
      ->type_name("S");
}

void add_base_option(Subcommand& command, JobArguments& arguments) {
  command
      .add_option(
          "--base", arguments.base,
          "of an adapter: where its base is. Default: the job's model.init_from, or what the adapter's folder says")
      ->type_name("PATH");
}

std::string weights_of(const JobArguments& arguments, const LoadedJob& loaded, const std::string& given) {
  if (!given.empty()) return given;
  if (arguments.is_checkpoint() || arguments.is_adapter()) return arguments.path;
  const ModelJob& model = loaded.job.model;
  if (is_model_folder(arguments.path) && model.init_from) return *model.init_from;
  std::string dir = checkpoint_of(loaded, given);
  if (model.folder && !trainer::is_checkpoint(dir))
    throw DataError(dir + ": no checkpoint here yet; for the weights from which the job starts, name " +
                    model.folder->path + " in its place");
  return dir;
}

std::string checkpoint_of(const LoadedJob& loaded, const std::string& given) {
  if (!given.empty()) return given;
  if (!loaded.job.checkpoint.dir)
    throw UsageError("the job has no checkpoint.dir: name a checkpoint with --checkpoint");
  return *loaded.job.checkpoint.dir;
}

CompiledJob plan_here(const LoadedJob& loaded, Purpose purpose, int threads) {
  const bool alone = purpose == Purpose::sample || (purpose == Purpose::score && leaves_choices(loaded.job));
  Machine machine(loaded, alone ? 1 : ranks_per_node(loaded.job), threads);
  return compile(loaded, machine.timing(), purpose);
}

CompiledJob compile_here(const LoadedJob& loaded, Purpose purpose, int threads) {
  CompiledJob compiled = plan_here(loaded, purpose, threads);
  if (!compiled.fits) throw JobError({does_not_fit(loaded, compiled)});
  return compiled;
}

int exit_after_loss() {
  return environment::value_of(environment::kStarted) ? kConsequence : static_cast<int>(kInputOutput);
}

int report_error() {
  try {
    throw;
  } catch (const JobError& error) {
    say("{}\n", error.what());
    return kBadJob;
  } catch (const UsageError& error) {
    say("trainer: {}\n", error.what());
    return kUsage;
  } catch (const DataError& error) {
    say("trainer: bad data: {}\n", error.what());
    return kBadData;
  } catch (const NonFiniteError& error) {
    say("trainer: training diverged: {}\n", error.what());
    return kBadData;
  } catch (const AbortedError&) {
    return exit_after_loss();  // told when it happened: by OnLoss::tell
  } catch (const IoError& error) {
    say("trainer: input/output: {}\n", error.what());
    return kInputOutput;
  } catch (const std::bad_alloc&) {
    say("trainer: input/output: {}\n", memory_refused());
    return kInputOutput;
  } catch (const std::filesystem::filesystem_error& error) {
    say("trainer: input/output: {}: {}\n", error.path1().string(), system_text(error.code().value()));
    return kInputOutput;
  } catch (const std::system_error& error) {  // of the standard library: it starts threads, all else we do ourselves
    const bool thread = error.code() == std::errc::resource_unavailable_try_again;
    say("trainer: input/output: {}\n", thread ? threads_refused() : error.what());
    return kInputOutput;
  } catch (const std::exception& error) {
    say("trainer: this is a bug of trainer {}, not of your job: {}\n"
        "Please report it with the job file, the command line and what `trainer doctor --json` prints.\n",
        TRAINER_VERSION, error.what());
    return kBug;
  }
}

void put_document(const Json& json) { put("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace)); }

}  // namespace trainer::tools
