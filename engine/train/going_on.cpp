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

// The longest prefix counts. Files and graphs are compared by their contents (kDataFiles, kGraph), not by where they are.
constexpr std::string_view kGraph = "model.graph.contents", kDataFiles = "data.train.contents", kAlphabet = "data.tokenizer.alphabet";
constexpr Row kTable[] = {
    {"name", {Change::output}},
    {"seed", {Change::never, "seed"}},
    {"goal", {Change::training}},
    {"model", {Change::never, "model"}},
    {"model.graph", {Change::output}},
    {kGraph, {Change::never, "model"}},
    {"trainable", {Change::never, "model"}},
    {"adapter", {Change::never, "model"}},
    {"data", {Change::never, "data"}},
    {"data.train", {Change::output}},
    {kDataFiles, {Change::never, "data"}},
    {"data.val", {Change::training}},
    {"data.val.fraction", {Change::never, "data"}},
    {"data.tokenizer", {Change::never, "tokenizer"}},
    {"data.seq_len", {Change::never, "seq_len"}},
    {"train", {Change::training}},
    {"train.batch.global", {Change::never, "batch"}},
    {"train.optimizer.name", {Change::never, "optimizer"}},
    {"train.optimizer.others.name", {Change::never, "optimizer"}},
    {"train.groups.optimizer.name", {Change::never, "optimizer"}},
    {"train.groups.optimizer.others.name", {Change::never, "optimizer"}},
    {"eval", {Change::training}},
    {"precision", {Change::training}},
    {"activation_checkpointing", {Change::training}},
    {"strategy", {Change::training}},
    {"cluster", {Change::training}},
    {"checkpoint", {Change::output}},
    {"log", {Change::output}},
};

bool is_under(std::string_view path, std::string_view prefix) {
  return path.starts_with(prefix) && (path.size() == prefix.size() || path[prefix.size()] == '.' || path[prefix.size()] == '[');
}

// "train.groups[0].match" as "train.groups.match".
std::string without_indices(std::string_view path) {
  std::string text;
  bool inside = false;
  for (const char c : path) {
    inside = c == '[' || (inside && c != ']');
    if (!inside && c != ']') text += c;
  }
  return text;
}

// How this start is made, not what the run is.
bool is_of_start(std::string_view path) { return path == "checkpoint.dir" || path == "checkpoint.resume" || path == "checkpoint.accept"; }

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

// What checkpoints meant before there was the key.
std::optional<std::string> value_before_key(const std::string& path) {
  if (path == "adapter") return "null";
  if (path == "trainable") return "all";
  return std::nullopt;
}

std::string describe_tokenizer(const std::string& json) { return json.empty() ? "(none)" : "alphabet " + checkpoint::checksum_of(json).substr(0, 12); }

Diagnostic mistake(const LoadedJob& loaded, const Difference& difference, const std::string& message) {
  Diagnostic mistake = loaded.at(difference.path, message);
  if (mistake.value.empty()) mistake.value = difference.after;
  if (!difference.note.empty()) mistake.value.clear();
  return mistake;
}

}  // namespace

ChangeRule change_rule(std::string_view at) {
  const std::string path = without_indices(at);
  const Row* longest = nullptr;
  for (const Row& row : kTable)
    if (is_under(path, row.prefix) && (longest == nullptr || row.prefix.size() > longest->prefix.size())) longest = &row;
  return longest == nullptr ? ChangeRule{} : longest->rule;
}

SavedJob describe_job(const LoadedJob& loaded) {
  SavedJob job;
  for (const Setting& setting : loaded.settings) job.settings.emplace_back(setting.path, setting.value);
  job.graph = checkpoint::checksum_of(graph_tree(loaded).flow()).substr(0, 12);
  job.data = data::fingerprint(loaded.job.data);
  return job;
}

std::vector<Difference> differences(const SavedFacts& before, const SavedFacts& after) {
  static const std::string kNotSet = "(not set)";
  std::vector<Difference> found;
  const auto compare = [&](const std::string& path, const std::string& a, const std::string& b) {
    if (same_value(a, b) || is_of_start(path)) return;
    const bool hashed = path == "model.init_from" && before.base;  // whether it is the same base says load_base
    found.push_back({path, shortened(a), shortened(b), hashed ? ChangeRule{Change::output} : change_rule(path)});
  };
  if (!before.tokenizer.empty() || !after.tokenizer.empty())
    compare(std::string(kAlphabet), describe_tokenizer(before.tokenizer), describe_tokenizer(after.tokenizer));
  if (!before.job || !after.job) return found;
  const std::map<std::string, std::string> was(before.job->settings.begin(), before.job->settings.end());
  std::map<std::string, std::string> is(after.job->settings.begin(), after.job->settings.end());
  for (const auto& [path, value] : after.job->settings) {
    const auto other = was.find(path);
    compare(path, other == was.end() ? value_before_key(path).value_or(kNotSet) : other->second, value);
  }
  for (const auto& [path, value] : before.job->settings)
    if (!is.contains(path)) compare(path, value, kNotSet);
  compare(std::string(kGraph), before.job->graph, after.job->graph);
  if (before.job->data.empty()) return found;
  for (const std::string& sentence : data::fingerprint_differences(before.job->data, after.job->data)) {
    const bool train = sentence.starts_with("data.train");
    const std::size_t colon = sentence.find(": ");
    found.push_back({train ? "data.train" : "data.val", "", "", change_rule(train ? kDataFiles : "data.val"), colon == std::string::npos ? sentence : sentence.substr(colon + 2)});
  }
  return found;
}

void require_same_run(const LoadedJob& loaded, const std::vector<Difference>& differences, const std::string& checkpoint) {
  const std::vector<std::string>& accepted = loaded.job.checkpoint.accept;
  std::vector<Diagnostic> mistakes;
  for (const Difference& one : differences) {
    if (one.rule.change != Change::never || std::find(accepted.begin(), accepted.end(), one.rule.accept) != accepted.end()) continue;
    mistakes.push_back(mistake(loaded, one, fmt::format("{}: the run in {} cannot go on with another value", one.values(), checkpoint)));
    mistakes.back().allowed =
        fmt::format("{}; or checkpoint.accept: [{}] to go on all the same; or model.init_from: {} and another checkpoint.dir, which starts a new run from these weights",
                    one.note.empty() ? one.before : "the same files", one.rule.accept, checkpoint);
  }
  if (!mistakes.empty()) throw JobError(std::move(mistakes));
}

void require_same_end(const LoadedJob& loaded, const std::vector<Difference>& differences, const std::string& checkpoint) {
  std::vector<Diagnostic> mistakes;
  for (const Difference& one : differences) {
    if (one.rule.change == Change::output) continue;
    mistakes.push_back(mistake(loaded, one, fmt::format("{}: the run in {} has finished with another value", one.values(), checkpoint)));
    mistakes.back().allowed = fmt::format("{}; more train.steps to go on; or another checkpoint.dir to train again", one.note.empty() ? one.before : "the same files");
  }
  if (!mistakes.empty()) throw JobError(std::move(mistakes));
}

}  // namespace trainer
