// How a job is loaded: the file's tree, the overrides laid over it, the table of fields, the rules, the typed Job.
#include <algorithm>
#include <filesystem>

#include "engine/job/check.h"
#include "engine/job/folder_job.h"
#include "engine/job/job.h"
#include "engine/job/peft_config.h"
#include "engine/job/rules.h"

namespace trainer {
namespace {

/// Moves a tree parsed from an override's value to its place within the override, which has no line.
void place_in_override(yaml::Node& node, const std::shared_ptr<const yaml::Source>& source, int offset) {
  if (node.line == 1) node.column += offset;
  node.line = 0;
  node.source = source;
  for (yaml::Node& key : node.keys) place_in_override(key, source, offset);
  for (yaml::Node& item : node.items) place_in_override(item, source, offset);
}

yaml::Node parse_override(const std::string& path, const std::string& value,
                          const std::shared_ptr<const yaml::Source>& source) {
  const int offset = static_cast<int>(path.size()) + 1;
  try {
    yaml::Node node = yaml::parse(value, std::string(kCommandLine));
    place_in_override(node, source, offset);
    return node;
  } catch (const JobError& error) {
    std::vector<Diagnostic> mistakes = error.diagnostics();
    for (Diagnostic& mistake : mistakes) {
      if (mistake.line == 1) mistake.column += offset;
      mistake.line = 0;
      mistake.path = path;
      mistake.source = source->text;
    }
    throw JobError(std::move(mistakes));
  }
}

/// Puts `value` at `path` below `root`, making the sections on the way.
void put(yaml::Node& root, std::string_view path, yaml::Node value) {
  yaml::Node* at = &root;
  for (std::string_view rest = path;;) {
    const std::string_view name = rest.substr(0, rest.find('.'));
    if (!at->is_mapping() && !at->is_null()) {
      Diagnostic mistake = value.at(std::string(path), "\"" + std::string(name) + "\" has no section to stand in");
      mistake.value = at->brief();
      throw JobError({std::move(mistake)});
    }
    at->kind = yaml::Kind::mapping;
    at->text.clear();
    auto* found = const_cast<yaml::Node*>(at->find(name));
    if (found == nullptr || name.size() == rest.size()) {
      yaml::Node key;
      key.text = name;
      key.column = static_cast<int>(name.data() - path.data()) + 1;
      key.source = value.source;
      if (found == nullptr) {
        at->keys.push_back(key);
        at->items.emplace_back();
        found = &at->items.back();
        found->source = value.source;
        found->column = key.column;
      } else {
        at->keys[static_cast<std::size_t>(found - at->items.data())] = key;
      }
    }
    at = found;
    if (name.size() == rest.size()) break;
    rest.remove_prefix(name.size() + 1);
  }
  *at = std::move(value);
}

void apply(yaml::Node& root, const std::string& override_text) {
  const std::size_t equals = override_text.find('=');
  const std::string path = override_text.substr(0, equals);
  const bool empty_name =
      path.empty() || path.front() == '.' || path.back() == '.' || path.find("..") != std::string::npos;
  const bool deep = std::ranges::count(path, '.') >= yaml::kMaxDepth;
  if (equals == std::string::npos || empty_name || deep) {
    throw UsageError("\"" + override_text + "\" is no override; write key.path=value, as train.steps=100");
  }
  const auto source = std::make_shared<const yaml::Source>(std::string(kCommandLine), override_text);
  put(root, path, parse_override(path, override_text.substr(equals + 1), source));
}

const yaml::Node* value_at(const yaml::Node& root, std::string_view section, std::string_view key) {
  const yaml::Node* at = root.is_mapping() ? root.find(section) : nullptr;
  return at != nullptr && at->is_mapping() ? at->find(key) : nullptr;
}

/// A launcher's ranks are shared equally by the nodes, unless the job says how many a node has. What does not divide
/// stays, to be refused where ranks are started.
void take_launched(yaml::Node& root, int world_size) {
  const yaml::Node* devices = value_at(root, "cluster", "devices_per_node");
  if (devices != nullptr && devices->text != "auto") return;
  const yaml::Node* nodes_given = value_at(root, "cluster", "nodes");
  const std::int64_t nodes = nodes_given == nullptr ? 1 : nodes_given->as_integer().value_or(0);
  if (nodes <= 0 || world_size % nodes != 0) return;
  const std::string share = "cluster.devices_per_node=" + std::to_string(world_size / nodes);
  apply(root, share);
}

/// Puts into each group's optimizer the keys of train.optimizer that it leaves out, where both have the same name.
/// Returns their paths.
std::vector<std::string> inherit_optimizer(yaml::Node& root) {
  std::vector<std::string> inherited;
  const yaml::Node* base = value_at(root, "train", "optimizer");
  const yaml::Node* groups = value_at(root, "train", "groups");
  if (base == nullptr || !base->is_mapping() || groups == nullptr || !groups->is_sequence()) return {};
  const std::string name = base->find("name") == nullptr ? "adamw" : base->find("name")->text;
  for (const yaml::Node& group : groups->items) {
    auto* optimizer = const_cast<yaml::Node*>(group.is_mapping() ? group.find("optimizer") : nullptr);
    if (optimizer == nullptr || !optimizer->is_mapping()) continue;
    if (optimizer->find("name") == nullptr || optimizer->find("name")->text != name) continue;
    const yaml::Node* momentum = optimizer->find("momentum");
    const bool has_none = momentum != nullptr && momentum->as_number() == 0.0;
    for (std::size_t i = 0; i < base->keys.size(); ++i) {
      const std::string& key = base->keys[i].text;
      if (optimizer->find(key) != nullptr || (has_none && (key == "nesterov" || key == "states"))) continue;
      optimizer->keys.push_back(base->keys[i]);
      optimizer->items.push_back(base->items[i]);
      const std::ptrdiff_t index = &group - groups->items.data();
      inherited.push_back("train.groups[" + std::to_string(index) + "].optimizer." + key);
    }
  }
  return inherited;
}

std::vector<Setting> settings_of(const Checked& checked) {
  std::vector<Setting> settings;
  for (const std::string& path : checked.order) {
    if (checked.sections.contains(path + "[0]")) continue;  // a list of sections is what these are
    const CheckedValue& value = *checked.find(path);
    Setting setting{path, value.node.flow(), value.from, 0, 0};
    if (value.from != Setting::From::profile && value.from != Setting::From::otherwise) {
      setting.line = value.node.line;
      setting.column = value.node.column;
    }
    settings.push_back(std::move(setting));
  }
  return settings;
}

/// Whether it is at `path` or below.
bool is_at(const Diagnostic& mistake, std::string_view path) {
  if (!mistake.path.starts_with(path)) return false;
  return mistake.path.size() == path.size() || mistake.path[path.size()] == '.' || mistake.path[path.size()] == '[';
}

void tell_what_is_known(ReadJob& read, const Checked& checked) {
  const auto wrong = [&](std::string_view path) {
    return std::ranges::any_of(read.mistakes, [&](const Diagnostic& mistake) { return is_at(mistake, path); });
  };
  const auto has = [&](std::string_view path) {
    return checked.find(path) != nullptr || checked.sections.contains(path);
  };
  read.graph = (!read.loaded.job.model.graph.empty() || read.loaded.job.model.inline_graph) && !wrong("model.graph");
  read.params = read.graph && !wrong("model");
  // A default may stand in for a key that is misspelt.
  const auto by_default = [&](std::string_view path) {
    const CheckedValue* value = checked.find(path);
    return value != nullptr && value->from == Setting::From::otherwise;
  };
  read.samples = has("data.format") && !wrong("data.format") &&
                 (!wrong("data") || !(wrong("data.seq_len") || by_default("data.seq_len") || wrong("data.tokenizer") ||
                                      by_default("data.tokenizer")));
  read.cluster = has("cluster") && !wrong("cluster") && !wrong("precision") && !wrong("goal");
  read.batch = read.cluster && !wrong("strategy") && !wrong("train.batch") && has("train.batch");
}

ReadJob read_tree(yaml::Node tree, const std::string& path, const std::vector<std::string>& overrides,
                  const LoadOptions& options) {
  ReadJob read;
  expand_short_forms(tree, job_fields());
  for (const std::string& override_text : overrides) {
    try {
      apply(tree, override_text);
      expand_short_forms(tree, job_fields());
    } catch (const JobError& error) {
      read.mistakes.insert(read.mistakes.end(), error.diagnostics().begin(), error.diagnostics().end());
    }
  }
  if (options.world_size > 0) take_launched(tree, options.world_size);
  const std::vector<std::string> inherited = inherit_optimizer(tree);
  Checked checked = check(job_fields(), tree, Words::of_jobs);
  read.mistakes.insert(read.mistakes.end(), checked.mistakes.begin(), checked.mistakes.end());
  const std::vector<Diagnostic> rules = check_rules(checked, tree);
  read.mistakes.insert(read.mistakes.end(), rules.begin(), rules.end());
  // Mistakes in what a group took over from train.optimizer are told there.
  std::erase_if(read.mistakes, [&](const Diagnostic& mistake) {
    return std::ranges::any_of(inherited, [&](const std::string& path) { return is_at(mistake, path); });
  });
  read.loaded.job = bind(checked, path, options, read.mistakes);
  read.loaded.file = path;
  read.loaded.settings = settings_of(checked);
  if (read.loaded.job.model.folder) read.loaded.warnings = read.loaded.job.model.folder->warnings;
  read.loaded.tree = std::move(tree);
  tell_what_is_known(read, checked);
  sort_mistakes(read.mistakes);
  return read;
}

LoadedJob without_mistakes(ReadJob read) {
  if (!read.mistakes.empty()) throw JobError(std::move(read.mistakes));
  return std::move(read.loaded);
}

}  // namespace

ReadJob read_job(const std::string& path, const std::vector<std::string>& overrides, const LoadOptions& options) {
  if (!is_model_folder(path)) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error))
      throw IoError(path + ": is a folder without a config.json, and so neither a job nor a model");
    return read_tree(yaml::read_file(path), path, overrides, options);
  }
  ReadJob read = read_tree(yaml::parse(job_of_folder(path, overrides, options), path), name_of_folder(path) + ".yaml",
                           overrides, options);
  read.loaded.file = path;
  return read;
}

ReadJob read_job_text(std::string text, const std::string& path, const std::vector<std::string>& overrides,
                      const LoadOptions& options) {
  return read_tree(yaml::parse(std::move(text), path), path, overrides, options);
}

LoadedJob load_job(const std::string& path, const std::vector<std::string>& overrides, const LoadOptions& options) {
  return without_mistakes(read_job(path, overrides, options));
}

LoadedJob parse_job(std::string text, const std::string& path, const std::vector<std::string>& overrides,
                    const LoadOptions& options) {
  return without_mistakes(read_job_text(std::move(text), path, overrides, options));
}

yaml::Node graph_tree(const LoadedJob& loaded) {
  const ModelJob& model = loaded.job.model;
  return model.inline_graph ? *model.inline_graph : yaml::read_file(model.graph);
}

const Setting* LoadedJob::setting(std::string_view path) const {
  const auto found = std::ranges::find(settings, path, &Setting::path);
  return found == settings.end() ? nullptr : &*found;
}

Diagnostic LoadedJob::at(std::string_view path, std::string message, std::string allowed) const {
  Diagnostic mistake = mistake_at(tree, path, std::move(message), std::move(allowed));
  if (const Setting* found = setting(path)) mistake.value = found->value;
  return mistake;
}

std::string Setting::origin(const std::string& file) const {
  switch (from) {
    case From::file:
      return file + ":" + std::to_string(line);
    case From::command_line:
      return std::string(kCommandLine);
    case From::profile:
      return "profile";
    case From::folder:
      if (path.starts_with("adapter."))
        return line > 0 ? kPeftConfig + (":" + std::to_string(line)) : "adapter's folder";
      return line > 0 ? "config.json:" + std::to_string(line) : "model folder";
    case From::otherwise:
      return "default";
  }
  return "";
}

}  // namespace trainer
