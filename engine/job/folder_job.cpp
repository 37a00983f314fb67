// How the job is written: as YAML, which `trainer init` saves and every other command reads like a job file.
#include "engine/job/folder_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace trainer {
namespace {

constexpr std::int64_t kLongestSequence = 2048;

/// Processors are the default; a hardware file whose name does not begin with "cpu" is that of a GPU.
bool is_on_gpus(const std::vector<std::string>& overrides) {
  bool gpus = false;
  for (const std::string& override_text : overrides) {
    const std::size_t equals = override_text.find('=');
    if (equals == std::string::npos) continue;
    const std::string_view path = std::string_view(override_text).substr(0, equals),
                           value = std::string_view(override_text).substr(equals + 1);
    if (path == "cluster.device") gpus = value == "cuda";
    if (path == "cluster.hardware" && value != "auto") gpus = !value.starts_with("cpu");
  }
  return gpus;
}

/// The last value that the overrides give a key; `otherwise` if there is none.
std::string overridden(const std::vector<std::string>& overrides, const std::string& path, std::string otherwise) {
  for (const std::string& text : overrides)
    if (text.starts_with(path + "=")) otherwise = text.substr(path.size() + 1);
  return otherwise;
}

/// What to train on: nothing in the folder says that.
std::string data_of(const ModelFolder& folder, const std::string& format) {
  const std::int64_t seq_len = std::min(kLongestSequence, folder.longest.value_or(kLongestSequence));
  if (format == "tokens")
    return fmt::format(
        "  format: tokens                 # a file of token ids\n"
        "  train: train.bin               # what to train on: nothing in the folder says that\n"
        "  token_type: u32\n"
        "  seq_len: {}\n",
        seq_len);
  if (format == "labelled")
    return fmt::format(
        "  format: labelled               # rows {{\"text\": …, \"label\": …}} of JSONL or Parquet\n"
        "  train: train.jsonl             # what to train on: nothing in the folder says that\n"
        "  seq_len: {}\n",
        seq_len);
  if (format == "tensors")
    return std::string(
               "  format: tensors                # safetensors files: a tensor for each input, its dim 0 the samples\n"
               "  train: train.safetensors       # what to train on: nothing in the folder says that\n") +
           (folder.longest ? fmt::format("  seq_len: {}\n", seq_len) : "");
  return fmt::format(
      "  format: text                   # files of text, which become ids by the folder's tokenizer.json\n"
      "  train: train.txt               # what to train on: nothing in the folder says that\n"
      "  seq_len: {}\n",
      seq_len);
}

/// What the model of the folder is trained on.
std::string format_of(const ModelFolder& folder) {
  if (folder.tensors) return "tensors";
  const auto head = folder.with.find("head");
  const std::string* word = head == folder.with.end() ? nullptr : head->second.word();
  return word != nullptr && *word != "words" ? "labelled" : "text";
}

/// In double quotes, as YAML and JSON write it.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

std::string name_of_folder(const std::string& path) {
  return std::filesystem::path(path + "/.").lexically_normal().parent_path().filename().string();
}

std::string job_of_folder(const std::string& path, const std::vector<std::string>& overrides,
                          const LoadOptions& options) {
  const ModelFolder folder = read_model_folder(path, options.configs_dir);
  const bool bf16 = is_on_gpus(overrides) || options.bf16;
  return fmt::format(
      "# The job that the model folder {0} stands for.\n"
      "model:\n"
      "  from: {0}                      # its config.json says what the model is; its weights are where training "
      "starts\n"
      "data:\n"
      "{1}"
      "train:\n"
      "  steps: 1000\n"
      "  batch: {{global: 64}}            # samples of a step\n"
      "  optimizer: {{name: adamw, lr: 2.0e-5}}\n"
      "  lr_schedule: {{name: cosine, warmup_steps: 50}}\n"
      "precision: {{compute: {2}}}\n"
      "strategy: auto\n",
      quoted(path), data_of(folder, overridden(overrides, "data.format", format_of(folder))), bf16 ? "bf16" : "f32");
}

std::string job_of_peft_folder(const std::string& path, const std::string& base,
                               const std::vector<std::string>& overrides, const LoadOptions& options) {
  return job_of_folder(base, overrides, options) + "adapter: {from: " + quoted(path) + "}\n";
}

}  // namespace trainer
