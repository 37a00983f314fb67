// The table of keys that may change, and how the saved job is compared with the new one by it.
#include "engine/train/going_on.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "engine/checkpoint/checksum.h"
#include "engine/data/fingerprint.h"

namespace trainer {
namespace {

struct Row {
  std::string_view prefix;
  ChangeRule rule;
};

// The longest prefix counts. Files and graphs are compared by their contents (kDataFiles, kGraph), not by where they
// are.
constexpr std::string_view kGraph = "model.graph.contents", kDataFiles = "data.train.contents",
                           kTemplate = "data.template.contents", kAlphabet = "data.tokenizer.alphabet";
constexpr Row kTable[] = {
    {"name", {Change::output}},
    {"seed", {Change::never, "seed"}},
    {"goal", {Change::training}},
    {"model", {Change::never, "model"}},
    {"model.graph", {Change::output}},
    {"model.from", {Change::output}},
    {"model.weights", {Change::output}},
    {kGraph, {Change::never, "model"}},
    {"trainable", {Change::never, "model"}},
    {"adapter", {Change::never, "model"}},
    {"data", {Change::never, "data"}},
    {"data.train", {Change::output}},
    {kDataFiles, {Change::never, "data"}},
    {"data.template", {Change::output}},
    {kTemplate, {Change::never, "data"}},
    {"data.val", {Change::training}},
    {"data.val.fraction", {Change::never, "data"}},
    {"data.tokenizer", {Change::never, "tokenizer"}},
    {"data.seq_len", {Change::never, "seq_len"}},
    {"train", {Change::training}},
    {"train.batch.global", {Change::never, "batch"}},
    {"train.objective", {Change::never, "objective"}},
    {"train.optimizer.name", {Change::never, "optimizer"}},  // where the optimizers of parameters are not known
    {"eval", {Change::training}},
    {"precision", {Change::training}},
    {"activation_checkpointing", {Change::training}},
    {"strategy", {Change::training}},
    {"cluster", {Change::training}},
    {"checkpoint", {Change::output}},
    {"log", {Change::output}},
};

bool is_under(std::string_view path, std::string_view prefix) {
  return path.starts_with(prefix) &&
         (path.size() == prefix.size() || path[prefix.size()] == '.' || path[prefix.size()] == '[');
}

// How this start is made, not what the run is.
bool is_of_start(std::string_view path) {
  return path == "checkpoint.dir" || path == "checkpoint.resume" || path == "checkpoint.accept";
}

bool same_value(const std::string& a, const std::string& b) {
  if (a == b) return true;
  char *end_a = nullptr, *end_b = nullptr;
  const double x = std::strtod(a.c_str(), &end_a), y = std::strtod(b.c_str(), &end_b);
  return !a.empty() && !b.empty() && *end_a == '\0' && *end_b == '\0' && x == y;
}

std::string shortened(const std::string& value) {
  constexpr std::size_t kShown = 80;
  return value.size() <= kShown ? value : value.substr(0, kShown) + "…";
}

const std::string kNotSet = "(not set)";

using Settings = std::map<std::string, std::string>;

Settings by_path(const SavedJob& job) { return {job.settings.begin(), job.settings.end()}; }

// A key that a checkpoint lacks: what it meant before there was the key.
std::string value_before_key(const std::string& path) {
  if (path == "trainable") return "all";
  if (path == "train.groups") return "[]";
  if (path == "train.objective.kind") return "auto";
  if (path == "train.optimizer.states") return "f32";
  if (path == "checkpoint.behind") return "false";
  return kNotSet;
}

// The adapter as it is in a job; "null": there is none.
std::string adapter_in(const SavedJob& job) {
  constexpr std::string_view kPrefix = "adapter.";
  std::string keys;
  for (const auto& [path, value] : job.settings)
    if (path.starts_with(kPrefix))
      keys += fmt::format("{}{}: {}", keys.empty() ? "" : ", ", path.substr(kPrefix.size()), value);
  return keys.empty() ? "null" : "{" + keys + "}";
}

// ---- Optimizers of parameters ----

constexpr std::string_view kOptimizer = "train.optimizer.name";

// Of a checkpoint that does not say which optimizer updated which parameter: the one that updated all of them, if the
// job had only one.
std::string only_optimizer(const SavedJob& job) {
  std::string name;
  for (const auto& [path, value] : job.settings) {
    if (path.starts_with("train.groups[")) return "";
    if (path == kOptimizer) name = value;
  }
  return name == "muon" ? "" : name;
}

// The key that gave parameters another optimizer.
std::string changed_key(const SavedJob& before, const SavedJob& after) {
  const auto groups = [](const SavedJob& job) {
    Settings settings = by_path(job);
    std::erase_if(settings, [](const auto& one) { return !one.first.starts_with("train.groups["); });
    return settings;
  };
  if (groups(before) != groups(after)) return "train.groups";
  const auto name = [](const SavedJob& job) { return by_path(job)[std::string(kOptimizer)]; };
  return name(before) != name(after) ? std::string(kOptimizer) : "train.optimizer.others.name";
}

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  const std::size_t shown = names.size() <= kShown + 1 ? names.size() : kShown;
  const std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<long>(shown), ", "));
  return shown == names.size() ? text : fmt::format("{} and {} other parameters", text, names.size() - shown);
}

// One for each two optimizers of which the second now updates parameters of the first. A parameter that was not trained
// before has none. Nothing: the checkpoint does not say which optimizer updated which parameter.
std::optional<std::vector<Difference>> optimizer_differences(const SavedFacts& before, const SavedFacts& after) {
  const std::string of_all = before.optimizers.empty() ? only_optimizer(*before.job) : "";
  if (after.optimizers.empty() || (before.optimizers.empty() && of_all.empty())) return std::nullopt;
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> changed;
  for (const auto& [parameter, optimizer] : after.optimizers) {
    const auto saved = before.optimizers.find(parameter);
    const std::string was = saved != before.optimizers.end() ? saved->second : of_all;
    if (!was.empty() && was != optimizer) changed[{was, optimizer}].push_back(parameter);
  }
  std::vector<Difference> found;
  for (const auto& [names, parameters] : changed)
    found.push_back({changed_key(*before.job, *after.job), names.first, names.second, change_rule(kOptimizer), "",
                     listed(parameters)});
  return found;
}

bool names_optimizer(const std::string& path) {
  return path.ends_with(".name") && (is_under(path, "train.optimizer") || is_under(path, "train.groups"));
}

// ---- Messages ----

// The value that there was, as advice.
std::string as_before(const Difference& difference) {
  if (!difference.note.empty()) return "the same files";
  if (difference.before == kNotSet) return "without " + difference.path;
  return difference.parameters.empty() ? difference.before : difference.before + " for these parameters";
}

// How to use the checkpoint for a new run. An adapter of another rank, or of other linears, cannot be read.
std::string as_new_run(const LoadedJob& loaded, const SavedFacts& before, const std::vector<Difference>& differences,
                       const std::string& checkpoint) {
  if (!before.base)
    return fmt::format("model.init_from: {} and another checkpoint.dir, which starts a new run from these weights",
                       checkpoint);
  const bool fits = loaded.job.adapter && std::ranges::none_of(differences, [](const Difference& one) {
                      return one.path == "adapter.rank" || one.path == "adapter.targets";
                    });
  if (!fits) return "another checkpoint.dir, which starts a new run";
  return fmt::format("adapter.from: {} and another checkpoint.dir, which starts a new run from this adapter",
                     checkpoint);
}

std::string describe_tokenizer(const std::string& json) {
  const bool file = json.find("\"hash\"") != std::string::npos;
  return json.empty() ? "(none)" : (file ? "tokenizer " : "alphabet ") + checkpoint::checksum_of(json).substr(0, 12);
}

Diagnostic mistake(const LoadedJob& loaded, const Difference& difference, const std::string& message) {
  Diagnostic mistake = loaded.at(difference.path, message);
  if (mistake.value.empty()) mistake.value = difference.after;
  if (!difference.note.empty()) mistake.value.clear();
  return mistake;
}

}  // namespace

ChangeRule change_rule(std::string_view path) {
  const Row* longest = nullptr;
  for (const Row& row : kTable)
    if (is_under(path, row.prefix) && (longest == nullptr || row.prefix.size() > longest->prefix.size()))
      longest = &row;
  return longest == nullptr ? ChangeRule{} : longest->rule;
}

SavedJob describe_job(const LoadedJob& loaded) {
  SavedJob job;
  for (const Setting& setting : loaded.settings) {
    job.settings.emplace_back(setting.path, setting.value);
    if (setting.from == Setting::From::otherwise) job.defaults.insert(setting.path);
  }
  job.graph = checkpoint::checksum_of(graph_tree(loaded).flow()).substr(0, 12);
  job.data = data::fingerprint(loaded.job.data);
  return job;
}

namespace {

// Collects the differences of two checkpoints.
class Comparison {
 public:
  Comparison(const SavedFacts& before, const SavedFacts& after) : before_(before), after_(after) {}

  std::vector<Difference> run() {
    if (!before_.tokenizer.empty() || !after_.tokenizer.empty())
      compare(std::string(kAlphabet), describe_tokenizer(before_.tokenizer), describe_tokenizer(after_.tokenizer));
    if (!before_.job || !after_.job) return std::move(found_);
    optimizers_ = optimizer_differences(before_, after_);
    settings();
    if (optimizers_) found_.insert(found_.end(), optimizers_->begin(), optimizers_->end());
    compare(std::string(kGraph), before_.job->graph, after_.job->graph);
    data_files();
    return std::move(found_);
  }

 private:
  void settings() {
    const SavedJob &before = *before_.job, &after = *after_.job;
    const Settings was = by_path(before), is = by_path(after);
    const std::string adapter = adapter_in(before), adapter_now = adapter_in(after);
    other_adapter_ = (adapter == "null") != (adapter_now == "null");
    for (const auto& [path, value] : after.settings) {
      const auto other = was.find(path);
      const bool same_default = other == was.end() && after.defaults.contains(path);
      if (!same_default && !told_elsewhere(path))
        compare(path, other == was.end() ? value_before_key(path) : other->second, value);
    }
    if (other_adapter_) compare("adapter", adapter, adapter_now);
    for (const auto& [path, value] : before.settings)
      if (!is.contains(path) && !told_elsewhere(path)) compare(path, value, kNotSet);
  }

  // An adapter that is there in one job only is told once; so is a default of `trainable`, which follows from it.
  bool told_elsewhere(const std::string& path) const {
    if (path == "adapter" || (other_adapter_ && path.starts_with("adapter."))) return true;
    // Tokenizers are compared by what they are: `auto` and the path of the same file are the same.
    if (path == "data.tokenizer") return !before_.tokenizer.empty() && before_.tokenizer == after_.tokenizer;
    if (path.starts_with("data.mix[") && path.find(".files") != std::string::npos) return true;  // by their contents
    if (other_adapter_ && path == "trainable") return after_.job->defaults.contains(path);
    return optimizers_ && !optimizers_->empty() && names_optimizer(path);
  }

  void compare(const std::string& path, const std::string& a, const std::string& b) {
    if (same_value(a, b) || is_of_start(path)) return;
    ChangeRule rule = change_rule(path);
    if (path == "model.init_from" && before_.base) rule = {Change::output};  // load_base compares the bases
    if (path == kOptimizer && optimizers_) rule = {Change::training};        // no parameter has another optimizer
    found_.push_back({path, shortened(a), shortened(b), rule});
  }

  void data_files() {
    if (before_.job->data.empty()) return;
    for (const std::string& sentence : data::fingerprint_differences(before_.job->data, after_.job->data)) {
      const std::size_t colon = sentence.find(": ");
      const std::string path = sentence.substr(0, colon);
      const std::string_view rule = path == "data.train"      ? kDataFiles
                                    : path == "data.template" ? kTemplate
                                                              : "data.val";
      found_.push_back({path, "", "", change_rule(rule), sentence.substr(colon + 2)});
    }
  }

  const SavedFacts &before_, &after_;
  std::optional<std::vector<Difference>> optimizers_;
  bool other_adapter_ = false;
  std::vector<Difference> found_;
};

}  // namespace

std::vector<Difference> differences(const SavedFacts& before, const SavedFacts& after) {
  return Comparison(before, after).run();
}

void require_same_run(const LoadedJob& loaded, const SavedFacts& before, const std::vector<Difference>& differences,
                      const std::string& checkpoint) {
  const std::vector<std::string>& accepted = loaded.job.checkpoint.accept;
  std::vector<Diagnostic> mistakes;
  for (const Difference& one : differences) {
    if (one.rule.change != Change::never || std::ranges::find(accepted, one.rule.accept) != accepted.end()) continue;
    mistakes.push_back(mistake(
        loaded, one, fmt::format("{}: the run in {} cannot go on with another value", one.values(), checkpoint)));
    mistakes.back().allowed = fmt::format("{}; or checkpoint.accept: [{}] to go on all the same; or {}", as_before(one),
                                          one.rule.accept, as_new_run(loaded, before, differences, checkpoint));
  }
  if (!mistakes.empty()) throw JobError(std::move(mistakes));
}

void require_same_end(const LoadedJob& loaded, const std::vector<Difference>& differences,
                      const std::string& checkpoint) {
  std::vector<Diagnostic> mistakes;
  for (const Difference& one : differences) {
    if (one.rule.change == Change::output) continue;
    mistakes.push_back(mistake(
        loaded, one, fmt::format("{}: the run in {} has finished with another value", one.values(), checkpoint)));
    mistakes.back().allowed =
        fmt::format("{}; more train.steps to go on; or another checkpoint.dir to train again", as_before(one));
  }
  if (!mistakes.empty()) throw JobError(std::move(mistakes));
}

}  // namespace trainer
