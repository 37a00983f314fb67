// trainer init: a starter job, commented, that validates and runs as it is.
#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/data/files.h"
#include "engine/job/folder_job.h"
#include "tools/command.h"
#include "tools/machine.h"

namespace trainer::tools {
namespace {

constexpr const char* kStarter =
    R"({schema}# A job: what is trained, on what, and how. `trainer plan {file}` shows what a step will do,
# `trainer run {file}` trains. A key left out has its default; `trainer plan {file} --effective` shows them all.
name: {name}

model:
  graph: models/gpt2.yaml        # a graph file beside this one, or one of trainer: gpt2 llama mlp convnet bert vit
  with: {{layers: 4, heads: 4, dim: 128, vocab: 256, context: 128}}   # replaces the graph's params
  # init_from: path              # start from a checkpoint directory or a .safetensors file
# adapter: {{rank: 16, alpha: 32}}   # LoRA: small matrices are trained beside the frozen weights of init_from

data:
  format: text                   # text | tokens (a file of ids) | table (CSV) | idx (MNIST's files)
  train: [{data}]
  val: {{fraction: 0.05}}          # held out: the last part of the samples; or files of their own
  tokenizer: bytes               # bytes (256 ids) | chars
  seq_len: 128                   # tokens of a sample

train:
  steps: 1000
  batch: {{global: 16, micro: auto}}    # samples of a step, and of a micro-batch; auto: as fits into memory
  optimizer: {{name: adamw, lr: 2.0e-3, betas: [0.9, 0.99], weight_decay: 0.1}}   # or sgd, adam, lion, muon
  lr_schedule: {{name: cosine, warmup_steps: 50, min_lr: 1.0e-4}}                 # or constant, linear, wsd
  clip_norm: 1.0                 # of the global gradient norm; null: off
eval: {{every: 250, batches: 20}}

precision: {{compute: f32}}        # bf16 is faster where the processor has it; weights and sums stay f32
# activation_checkpointing: {{mode: selective}}   # less memory for more computation: none | full | selective | every_n

# cluster: {{devices_per_node: 2}}   # ranks, as threads that share the cores

checkpoint: {{dir: runs/{name}, every: 250, keep: 2}}    # the same command goes on from the newest one
log: {{every: 10, jsonl: runs/{name}/log.jsonl}}         # tensorboard: a folder; trace: a file for ui.perfetto.dev
)";

constexpr const char* kDefaultData = "/usr/include/c++/**";

// As a YAML string in double quotes.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string plain_name(const std::string& stem) {
  std::string name;
  for (const char c : stem) name += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' ? c : '-';
  return std::isalpha(static_cast<unsigned char>(name.empty() ? '-' : name.front())) != 0 ? name : "job-" + name;
}

/// The line by which editors complete and check the file; empty where no schema is installed.
std::string schema_line() {
  const std::filesystem::path schema =
      std::filesystem::path(configs_dir()).parent_path() / "schemas" / "job.schema.json";
  std::error_code error;
  if (configs_dir().empty() || !std::filesystem::is_regular_file(schema, error)) return "";
  return "# yaml-language-server: $schema=" + schema.string() + "\n";
}

/// The job can be written before its data is there, and seldom is.
void warn_of_data(const std::string& path, const std::string& data) {
  const std::string beside = (std::filesystem::path(path).parent_path() / data).lexically_normal().string();
  try {
    data::expand_paths({beside});
  } catch (const std::exception& error) {
    say("warning: --data: {}; `trainer run` will need it\n", error.what());
  }
}

void write_new(const std::string& path, const std::string& text) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file) fail_io(path, errno == EEXIST ? "a starter job is written to a new file only" : "creating");
  write_all(file, text.data(), text.size(), path);
}

/// The job that the commands take a model folder for, beside the folder's name in the working directory.
int init_for_folder(const std::string& folder) {
  const std::string path = plain_name(name_of_folder(folder)) + ".yaml";
  write_new(path, schema_line() + job_of_folder(folder, {}, load_options()));
  say("wrote {}. data.train is yours to fill in. Next:\n  trainer plan {}\n  trainer run {}\n", path, path, path);
  return kDone;
}

int init(const std::string& path, const std::string& data) {
  if (is_model_folder(path)) return init_for_folder(path);
  const std::string text =
      fmt::format(fmt::runtime(kStarter), fmt::arg("file", path), fmt::arg("schema", schema_line()),
                  fmt::arg("name", plain_name(std::filesystem::path(path).stem())), fmt::arg("data", quoted(data)));
  write_new(path, text);
  warn_of_data(path, data);
  say("wrote {}. Next:\n  trainer plan {}\n  trainer run {}\n", path, path, path);
  return kDone;
}

}  // namespace

void add_init(CommandLine& app, Work& work) {
  struct Arguments {
    std::string path = "job.yaml", data = kDefaultData;
  };
  Subcommand* command =
      app.add_subcommand("init", "writes a commented starter job, or the job that a model folder stands for");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("FILE", arguments->path,
                   "the new file; or a model folder, whose job is written into the working directory")
      ->capture_default_str()
      ->type_name("");
  command->add_option("--data", arguments->data, "the text to train on: a file or a glob, relative to FILE")
      ->capture_default_str()
      ->type_name("PATH");
  command->footer(
      "Examples:\n"
      "  trainer init job.yaml\n"
      "  trainer init shakespeare.yaml --data input.txt\n"
      "  trainer init models/Qwen2.5-0.5B\n"
      "\n"
      "A file that is there is never overwritten.\n");
  command->callback([arguments, &work] { work = [arguments] { return init(arguments->path, arguments->data); }; });
}

}  // namespace trainer::tools
