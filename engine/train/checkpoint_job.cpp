// How files are carried into a checkpoint, and how a job is written from its settings.
#include "engine/train/checkpoint_job.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>

#include "engine/checkpoint/folder_files.h"
#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/data/data.h"
#include "engine/job/yaml.h"
#include "engine/tokenizer/text_tokenizer.h"
#include "engine/train/saved_facts.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

/// Names in a checkpoint. The tokenizer of data whose model folder has another one gets a name of its own.
constexpr std::string_view kGraph = "graph.yaml", kTokenizer = "tokenizer.json", kOfData = "data_tokenizer.json",
                           kTemplate = "chat_template.jinja";

/// Sections that say what the model is and what it reads.
constexpr std::array<std::string_view, 6> kKept{"seed", "model", "trainable", "adapter", "data", "train.objective"};

bool is_kept(std::string_view path) {
  return std::ranges::any_of(kKept, [&](std::string_view section) {
    return path.starts_with(section) && (path.size() == section.size() || path[section.size()] == '.');
  });
}

std::string quoted(const std::string& text) {
  yaml::Node node;
  node.text = text;
  node.quoted = true;
  return node.flow();
}

bool is_named(const std::string& path, std::string_view name) { return fs::path(path).filename() == name; }

bool is_tokenizer_file(const std::string& value) {
  return value != "auto" && value != name_of(Tokenizer::bytes) && value != name_of(Tokenizer::chars);
}

/// The settings of a job for this checkpoint, from those of the job that wrote it.
std::vector<Setting> settings_of(const checkpoint::Checkpoint& checkpoint, const SavedFacts& facts) {
  const auto holds = [&](std::string_view name) {
    return std::ranges::any_of(checkpoint.manifest.files, [&](const auto& file) { return file.name == name; });
  };
  std::vector<Setting> settings;
  const auto add = [&](const std::string& path, const std::string& value) {
    settings.push_back({path, value, Setting::From::file, 0, 0});
  };
  for (const auto& [path, value] : facts.job->settings) {
    if (!is_kept(path) || path == "model.init_from" || path == "adapter.from") continue;
    if (path == "model.from" && holds("config.json"))
      add(path, ".");
    else if (path == "model.weights" && facts.base)
      add(path, "random");  // they are the base's, which model.init_from names
    else if (path == "model.graph" && holds(kGraph))
      add(path, quoted(std::string(kGraph)));
    else if (path == "data.tokenizer" && is_tokenizer_file(value) && holds(kTokenizer))
      add(path, quoted(std::string(holds(kOfData) ? kOfData : kTokenizer)));
    else if (path == "data.template" && value != "auto" && holds(kTemplate))
      add(path, "auto");
    else
      add(path, value);
    if (path == "model.graph" || path == "model.from")
      if (facts.base) add("model.init_from", quoted(fs::absolute(facts.base->from).string()));
  }
  add("train.steps", "1");
  add("strategy", "auto");
  return settings;
}

/// The newest checkpoint that can be opened; nothing where a live run replaced it meanwhile.
std::optional<checkpoint::Checkpoint> open_newest_now(const std::string& dir) {
  std::string damage;
  for (const checkpoint::CheckpointPath& each : checkpoint::list_checkpoints(dir)) {
    try {
      return checkpoint::open_checkpoint(each.path);
    } catch (const DataError& error) {
      if (!exists(each.path)) return std::nullopt;
      if (damage.empty()) damage = error.what();
    }
  }
  throw DataError(damage.empty() ? dir + ": no checkpoint here" : "checkpoint is damaged: " + damage);
}

checkpoint::Checkpoint open_newest(const std::string& path) {
  if (exists(path + "/" + checkpoint::kManifestName)) return checkpoint::open_checkpoint(path);
  return checkpoint::while_replaced(path, [&] { return open_newest_now(path); });
}

}  // namespace

void carry_model(checkpoint::Store& store, const Job& job) {
  const ModelJob& model = job.model;
  const std::string of_folder = model.folder ? model.folder->path + "/" + std::string(kTokenizer) : "";
  const std::string& own_template = job.data.chat_template;
  if (model.folder) {
    std::vector<std::string> files = checkpoint::files_beside_weights(model.folder->path);
    if (!own_template.empty()) std::erase_if(files, [](const std::string& file) { return is_named(file, kTemplate); });
    store.carry(files);
  } else if (!model.inline_graph) {
    store.carry_as(model.graph, std::string(kGraph));
  }
  if (!own_template.empty()) store.carry_as(own_template, std::string(kTemplate));
  if (!data::is_tokenized(job.data)) return;
  const std::string file = tokenizer::tokenizer_file_in(job.data.tokenizer_file);
  const bool has_one = model.folder && exists(of_folder);
  std::error_code error;
  if (has_one && fs::equivalent(file, of_folder, error)) return;
  store.carry_as(file, std::string(has_one ? kOfData : kTokenizer));
  if (model.folder) return;
  // The special tokens and the chat template of a tokenizer whose model is a graph file.
  std::vector<std::string> files = checkpoint::files_beside_weights(fs::path(file).parent_path().string());
  std::erase_if(files, [&](const std::string& each) {
    return is_named(each, kTokenizer) || is_named(each, "config.json") ||
           (!own_template.empty() && is_named(each, kTemplate));
  });
  store.carry(files);
}

bool is_checkpoint(const std::string& path) {
  return is_directory(path) &&
         (exists(path + "/" + checkpoint::kManifestName) || !checkpoint::list_checkpoints(path).empty());
}

JobOfCheckpoint job_of_checkpoint(const std::string& path) {
  const checkpoint::Checkpoint checkpoint = open_newest(path);
  const SavedFacts facts = facts_of(checkpoint.manifest, checkpoint.path);
  if (!facts.job)
    throw DataError(checkpoint.path + ": does not hold its job: name the job, and this as its --checkpoint");
  LoadedJob job;
  job.file = checkpoint.path + "/job.yaml";
  job.settings = settings_of(checkpoint, facts);
  return {effective_job(job), job.file};
}

}  // namespace trainer
