// How the value that caused a mistake is found: by experiment. It has a part in it if another value changes the
// mistake.
#include "engine/compile/check_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/compile/choose.h"
#include "engine/compile/fixed.h"
#include "engine/compile/mesh_of.h"
#include "engine/compile/model_graph.h"
#include "engine/compile/optimizers.h"
#include "engine/compile/trained.h"
#include "engine/core/op_record.h"
#include "engine/job/aliases.h"
#include "engine/job/check.h"
#include "engine/job/expression.h"
#include "engine/job/nearest_numbers.h"
#include "engine/job/unsupported.h"
#include "engine/transform/position_wise.h"
#include "engine/transform/transform.h"

namespace trainer {
namespace {

using Params = std::map<std::string, ParamValue>;

/// What a graph is read with.
struct Given {
  Params with;
  std::int64_t seq_len = 0;
  bool any_fields = false;
};

bool same_place(const Diagnostic& a, const Diagnostic& b) {
  return a.file == b.file && a.line == b.line && a.column == b.column;
}

const Diagnostic* at_place_of(const Diagnostic& mistake, const std::vector<Diagnostic>& found) {
  const auto same = std::ranges::find_if(found, [&](const Diagnostic& other) { return same_place(mistake, other); });
  return same == found.end() ? nullptr : &*same;
}

/// The innermost mapping that holds the place, which of a mistake in a node is the node. `value` gets what stands at
/// the place itself.
const yaml::Node* mapping_at(const yaml::Node& node, int line, int column, const yaml::Node*& value) {
  const yaml::Node* found = nullptr;
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    const yaml::Node& item = node.items[i];
    const bool here = item.line == line && item.column == column;
    const bool key = node.is_mapping() && node.keys[i].line == line && node.keys[i].column == column;
    if (here || key) {
      value = &item;
      return item.is_mapping() && here ? &item : &node;
    }
    if (const yaml::Node* inside = mapping_at(item, line, column, value)) found = inside->is_mapping() ? inside : &node;
  }
  return found;
}

/// Names that the expressions of a tree read.
void collect_names(const yaml::Node& node, std::vector<std::string>& out) {
  for (std::string& name : names_in(node.text)) out.push_back(std::move(name));
  for (const yaml::Node& item : node.items) collect_names(item, out);
}

/// Finds whose mistake it is by experiment: a value of the job has part in a mistake if another one changes it.
class ModelCheck {
 public:
  ModelCheck(const LoadedJob& loaded, bool params, bool samples)
      : loaded_(loaded),
        job_(loaded.job),
        params_(params),
        samples_(samples),
        tree_(graph_tree(loaded)),
        given_{job_.model.with, job_.data.seq_len, !samples} {
    const yaml::Node* defaults = tree_.find("params");
    for (std::size_t i = 0; defaults != nullptr && i < defaults->keys.size(); ++i)
      if (const auto value = value_of(defaults->items[i])) defaults_[defaults->keys[i].text] = *value;
  }

  std::vector<Diagnostic> run() {
    std::vector<Diagnostic> out;
    found_ = mistakes(given_);
    const auto of_param = [&](const Diagnostic& mistake) {
      return mistake.path.starts_with("model.with.") &&
             defaults_.contains(mistake.path.substr(mistake.path.rfind('.') + 1));
    };
    // In the place of a param of the wrong kind its default was read.
    for (const Diagnostic& mistake : found_)
      if (of_param(mistake)) given_.with.erase(mistake.path.substr(mistake.path.rfind('.') + 1));
    params_ = params_ && std::ranges::none_of(found_, of_param);
    for (const Diagnostic& mistake : found_) {
      if (mistake.severity == Diagnostic::Severity::warning || mistake.path == "data.packing") {
        out.push_back(mistake);
        continue;
      }
      if (!params_ && !of_param(mistake) && depends_on_defaults(mistake)) continue;
      Diagnostic told = whose(mistake);
      if (at_place_of(told, out) == nullptr) out.push_back(std::move(told));
    }
    const auto is_error = [](const Diagnostic& one) { return one.severity == Diagnostic::Severity::error; };
    if (params_ && samples_ && std::ranges::none_of(found_, is_error))
      for (Diagnostic& mistake : of_selections()) out.push_back(std::move(mistake));
    return out;
  }

 private:
  std::vector<Diagnostic> mistakes(const Given& given) {
    ++num_reads_;
    BuildOptions options = build_options(job_, 1, BuildOptions::Mode::train);
    options.any_fields = options.any_fields || given.any_fields;
    if (given.any_fields) options.field_shapes.clear();
    set_length(options, given.seq_len);
    if (is_packed(given) && !reads_documents())
      return {loaded_.at("data.packing", "the graph has no input `documents`, by which packed rows stay apart",
                         "none; or a graph whose attention and positions read `documents`")};
    try {
      const Graph graph = read_graph(tree_, given.with, options);
      std::vector<Diagnostic> wrong = vocabulary(graph, given);
      if (wrong.empty()) wrong = joins_documents(graph, given);
      return wrong.empty() ? sees_its_targets(graph, given) : wrong;
    } catch (const JobError& error) {
      return error.diagnostics();
    }
  }

  /// Of `trainable`, `adapter` and optimizers, on a graph that is right.
  std::vector<Diagnostic> of_selections() const {
    try {
      optimizers_of(loaded_, whole_graph(loaded_));
    } catch (const JobError& error) {
      return error.diagnostics();
    }
    return {};
  }

  /// What the ids of `tokenizer: bytes` need, known without any data.
  std::vector<Diagnostic> vocabulary(const Graph& graph, const Given& given) const {
    constexpr std::int64_t kBytes = 256;
    const bool bytes =
        job_.data.format == DataFormat::text && job_.data.tokenizer == Tokenizer::bytes && !given.any_fields;
    for (const Node& node : graph.nodes) {
      if (!bytes || node.op != Op::embedding || graph.value(node.inputs[0]).name != "tokens") continue;
      const std::int64_t rows = graph.value(node.inputs[1]).shape()[0];
      if (rows >= kBytes) continue;
      Diagnostic mistake = at_origin(
          node, node.name + ".rows",
          fmt::format("`tokenizer: bytes` has {} ids, the model's vocabulary has {} rows; it must have at least {}",
                      kBytes, rows, kBytes));
      mistake.allowed = fmt::format("an integer of at least {}", kBytes);
      return {mistake};
    }
    return {};
  }

  bool is_packed(const Given& given) const { return job_.data.packing == Packing::documents && !given.any_fields; }

  bool reads_documents() const {
    const yaml::Node* inputs = tree_.find("inputs");
    return inputs != nullptr && inputs->is_mapping() && inputs->find("documents") != nullptr;
  }

  /// Where documents of a packed row would see each other, or go on counting positions.
  std::vector<Diagnostic> joins_documents(const Graph& graph, const Given& given) const {
    if (!is_packed(given)) return {};
    const auto within = [](const Node& node) {
      return node.op == Op::document_positions || node.op == Op::cross_entropy ||
             (node.op == Op::attention && flag(node, "by_document"));
    };
    const Node* meeting = where_positions_meet(graph, within);
    const auto counts_on = std::ranges::find_if(graph.nodes, [](const Node& node) { return node.op == Op::positions; });
    if (meeting == nullptr && counts_on == graph.nodes.end()) return {};
    const Node& node = meeting != nullptr ? *meeting : *counts_on;
    return {loaded_.at("data.packing",
                       meeting != nullptr ? "`" + node.name + "` of the graph works across the documents of a row"
                                          : "`" + node.name + "` of the graph counts on from one document to the next",
                       "none; or a graph in which it reads `documents: documents`")};
  }

  /// The targets of text are the tokens one place on: attention that is not causal reads them off its input.
  std::vector<Diagnostic> sees_its_targets(const Graph& graph, const Given& given) const {
    for (const Node& node : graph.nodes) {
      if (!job_.data.is_text() || given.any_fields || node.op != Op::attention || flag(node, "causal")) continue;
      Diagnostic warning = at_origin(
          node, node.name + ".causal",
          "attention that is not causal sees the tokens that it is to predict: the model learns to copy its input");
      warning.allowed = "causal: true for next-token targets";
      warning.severity = Diagnostic::Severity::warning;
      return {warning};
    }
    return {};
  }

  static Diagnostic at_origin(const Node& node, std::string path, std::string message) {
    Diagnostic out;
    out.file = node.origin.file;
    out.line = node.origin.line;
    out.column = node.origin.column;
    out.path = std::move(path);
    out.message = std::move(message);
    return out;
  }

  // ---- Whose mistake ------------------------------------------------------------------------------------------------

  Diagnostic whose(const Diagnostic& mistake) {
    if (mistake.path.starts_with("model.with.")) return unknown_param(mistake);
    const std::vector<std::string> own = names_at(mistake);
    std::vector<std::string> part;  // values of the job that have part in it
    for (const auto& [name, value] : given_.with)
      if (changes(mistake, name)) part.push_back(name);
    const auto has_part = [&](const std::string& name) { return std::ranges::find(part, name) != part.end(); };
    // What the command line says last is what was just changed.
    const auto overridden = [&](const std::vector<std::string>& names) {
      return std::ranges::find_if(
          names, [&](const std::string& name) { return has_part(name) && is_override("model.with." + name); });
    };
    for (const std::vector<std::string>* names : {&own, static_cast<const std::vector<std::string>*>(&part)})
      if (const auto name = overridden(*names); name != names->end()) return at_param(mistake, *name, own, part);
    if (is_override("data.seq_len") && depends_on_length(mistake)) return at_length(mistake, own);
    for (const std::string& name : own)
      if (has_part(name)) return at_param(mistake, name, own, part);
    for (const std::string& name : part)
      if (defaults_.contains(name) && gone(mistake, with_param(name, defaults_[name])))
        return at_param(mistake, name, own, part);
    if (!part.empty()) return at_param(mistake, part.front(), own, part);
    if (depends_on_length(mistake)) return at_length(mistake, own);
    if (mistake.path.starts_with("inputs") && gone(mistake, {given_.with, given_.seq_len, true}))
      return moved(mistake, "data.format");
    return mistake;
  }

  bool is_override(const std::string& path) const {
    const Setting* setting = loaded_.setting(path);
    return setting != nullptr && setting->from == Setting::From::command_line;
  }

  /// Names in the expression at the mistake's place, then those in the node around it.
  std::vector<std::string> names_at(const Diagnostic& mistake) const {
    std::vector<std::string> names;
    if (tree_.source == nullptr || mistake.file != tree_.file()) return names;
    const yaml::Node* value = nullptr;
    const yaml::Node* node = mapping_at(tree_, mistake.line, mistake.column, value);
    if (value != nullptr && !value->is_mapping()) collect_names(*value, names);
    if (node != nullptr && node->find("nodes") == nullptr) collect_names(*node, names);
    return names;
  }

  Given with_param(const std::string& name, ParamValue value) const {
    Given given = given_;
    given.with[name] = std::move(value);
    return given;
  }

  bool gone(const Diagnostic& mistake, const Given& given) { return at_place_of(mistake, mistakes(given)) == nullptr; }

  bool differs(const Diagnostic& mistake, const Given& given) {
    const std::vector<Diagnostic> found = mistakes(given);
    const Diagnostic* same = at_place_of(mistake, found);
    return same == nullptr || same->message != mistake.message || same->value != mistake.value;
  }

  bool changes(const Diagnostic& mistake, const std::string& name) {
    const ParamValue& now = given_.with.contains(name) ? given_.with[name] : defaults_[name];
    if (now.number() == nullptr) return differs(mistake, with_param(name, ParamValue()));
    const double value = *now.number();
    return differs(mistake, with_param(name, ParamValue(value + 1))) ||
           differs(mistake, with_param(name, ParamValue(value >= 1 ? 2 * value : 1)));
  }

  bool depends_on_length(const Diagnostic& mistake) {
    return samples_ && loaded_.setting("data.seq_len") != nullptr &&
           differs(mistake, {given_.with, given_.seq_len + 1, false});
  }

  /// A default may stand where the job has a value that is wrong, or a key that is misspelt.
  bool depends_on_defaults(const Diagnostic& mistake) {
    return std::ranges::any_of(defaults_, [&](const auto& param) {
      return !given_.with.contains(param.first) && changes(mistake, param.first);
    });
  }

  // ---- How it is told -----------------------------------------------------------------------------------------------

  static std::string place(const Diagnostic& mistake) {
    return fmt::format("{}:{}:{}: {}", mistake.file, mistake.line, mistake.column, mistake.path);
  }

  Diagnostic moved(const Diagnostic& mistake, const std::string& path) const {
    Diagnostic out = loaded_.at(path, mistake.message);
    out.allowed = mistake.allowed;
    out.suggestion = mistake.suggestion;
    out.note = place(mistake);
    if (mistake.path.starts_with("inputs")) out.message = mistake.path + ": " + out.message;
    return out;
  }

  Diagnostic unknown_param(const Diagnostic& mistake) const {
    const yaml::Node* model = loaded_.tree.find("model");
    const yaml::Node* with = model == nullptr ? nullptr : model->find("with");
    const std::string name = mistake.path.substr(mistake.path.rfind('.') + 1);
    const yaml::Node* key = with == nullptr ? nullptr : with->find_key(name);
    Diagnostic out = moved(mistake, mistake.path);
    if (key != nullptr) {
      const Diagnostic there = key->at(mistake.path, mistake.message);
      out.line = there.line;
      out.column = there.column;
      out.source = there.source;
      out.value.clear();
    }
    const Alias* alias = alias_of_key(mistake.path);
    const std::string prefix = "model.with.";
    if (alias != nullptr && alias->ours.starts_with(prefix) &&
        defaults_.contains(std::string(alias->ours.substr(prefix.size()))))
      out.suggestion = alias->ours.substr(prefix.size());
    out.note = fmt::format("{}:{}:{}: params", mistake.file, mistake.line, mistake.column);
    return out;
  }

  Diagnostic at_param(const Diagnostic& mistake, const std::string& name, const std::vector<std::string>& own,
                      std::vector<std::string> part) {
    Diagnostic out = moved(mistake, "model.with." + name);
    for (const std::string& other : own)
      if (defaults_.contains(other) && std::ranges::find(part, other) == part.end() && changes(mistake, other))
        part.push_back(other);
    std::erase(part, name);
    part.insert(part.begin(), name);
    out.message += values_text(part, depends_on_length(mistake));
    if (out.allowed.empty()) out.allowed = param_that_works(mistake, name);
    return out;
  }

  Diagnostic at_length(const Diagnostic& mistake, const std::vector<std::string>& own) {
    Diagnostic out = moved(mistake, "data.seq_len");
    std::vector<std::string> part;
    for (const std::string& other : own)
      if (defaults_.contains(other) && std::ranges::find(part, other) == part.end() && changes(mistake, other))
        part.push_back(other);
    out.message += values_text(part, true);
    const auto works = [&](std::int64_t length) { return gone(mistake, {given_.with, length, false}); };
    out.allowed = nearest_of(given_.seq_len, works);
    return out;
  }

  /// "; heads is 5, dim is 128, data.seq_len is 64".
  std::string values_text(const std::vector<std::string>& names, bool length) const {
    std::vector<std::string> texts;
    for (const std::string& name : names) {
      const bool given = given_.with.contains(name);
      texts.push_back(fmt::format("{} is {}{}", name, text_of(given ? given_.with.at(name) : defaults_.at(name)),
                                  given ? "" : " by default"));
    }
    if (length) texts.push_back(fmt::format("data.seq_len is {}", given_.seq_len));
    return texts.empty() ? "" : fmt::format("; {}", fmt::join(texts, ", "));
  }

  /// The nearest values below and above with which the mistake is gone and no other comes.
  std::string param_that_works(const Diagnostic& mistake, const std::string& name) {
    const double* number = given_.with[name].number();
    const std::optional<std::int64_t> value = number == nullptr ? std::nullopt : whole(*number);
    if (!value || *value < 1) return {};
    const auto works = [&](std::int64_t other) {
      const std::vector<Diagnostic> found = mistakes(with_param(name, ParamValue(static_cast<double>(other))));
      return at_place_of(mistake, found) == nullptr &&
             std::ranges::all_of(found, [&](const Diagnostic& one) { return at_place_of(one, found_) != nullptr; });
    };
    return nearest_of(*value, works);
  }

  /// Tried are neighbours, and the numbers that stand in the job and the graph with their divisors.
  template <typename Works>
  std::string nearest_of(std::int64_t value, Works works) {
    std::set<std::int64_t> tried;
    for (std::int64_t i = 1; i <= 16; ++i) tried.insert({value - i, value + i});
    const auto add = [&](const ParamValue& param) {
      const std::optional<std::int64_t> other = param.number() == nullptr ? std::nullopt : whole(*param.number());
      if (!other || *other < 1 || *other > 1'000'000) return;
      tried.insert(*other);
      for (const std::int64_t divisor : divisors(*other)) tried.insert(divisor);
    };
    for (const auto& [name, number] : defaults_) add(given_.with.contains(name) ? given_.with.at(name) : number);
    add(ParamValue(static_cast<double>(given_.seq_len)));
    std::optional<std::int64_t> below, above;
    for (auto other = tried.rbegin(); other != tried.rend() && !below && num_reads_ < kMostReads; ++other)
      if (*other >= 1 && *other < value && works(*other)) below = *other;
    for (auto other = tried.upper_bound(value); other != tried.end() && !above && num_reads_ < kMostReads; ++other)
      if (works(*other)) above = *other;
    if (below && above) return fmt::format("{} or {}", *below, *above);
    // A bound, if what lies far beyond it works as well.
    if (above) return fmt::format("{}{}", works(*above + 1) && works(3 * *above) ? "at least " : "", *above);
    if (below)
      return fmt::format(
          "{}{}", *below > 1 && works(*below - 1) && works(std::max<std::int64_t>(1, *below / 3)) ? "at most " : "",
          *below);
    return {};
  }

  static constexpr int kMostReads = 400;

  const LoadedJob& loaded_;
  const Job& job_;
  bool params_;
  const bool samples_;
  const yaml::Node tree_;
  Given given_;
  Params defaults_;
  std::vector<Diagnostic> found_;
  int num_reads_ = 0;
};

/// What is wrong with the model of a job. A mistake that a value of the job makes is told at that value, with its place
/// in the graph as a note; one of the graph itself stays there. Warnings are among them. Where `params` or `samples`
/// are not as the job says (ReadJob), what depends on them is left out. Throws IoError.
std::vector<Diagnostic> model_mistakes(const LoadedJob& loaded, bool params, bool samples) {
  try {
    return ModelCheck(loaded, params, samples).run();
  } catch (const JobError& error) {
    return error.diagnostics();  // no tree at all
  }
}

}  // namespace

LoadedJob load_checked_job(const std::string& path, const std::vector<std::string>& overrides,
                           const LoadOptions& options, const std::string& hardware_folder, const FindGpus& find_gpus) {
  return check_read_job(read_job(path, overrides, options), hardware_folder, find_gpus);
}

LoadedJob check_read_job(ReadJob read, const std::string& hardware_folder, const FindGpus& find_gpus) {
  std::vector<Diagnostic> mistakes = std::move(read.mistakes);
  const auto take = [&](const std::vector<Diagnostic>& more) {
    for (const Diagnostic& mistake : more)
      if (at_place_of(mistake, mistakes) == nullptr) mistakes.push_back(mistake);
  };
  const auto goes_through = [&](const auto& work) {
    try {
      work();
      return true;
    } catch (const JobError& error) {
      take(error.diagnostics());
      return false;
    }
  };
  LoadedJob& loaded = read.loaded;
  const bool resolved = read.cluster && goes_through([&] { resolve_cluster(loaded, hardware_folder, find_gpus); });
  if (read.cluster) take(unsupported(loaded));
  if (resolved && read.batch && !leaves_choices(loaded.job))
    goes_through([&] { check_batch(loaded, mesh_of(loaded)); });
  if (read.graph) {
    std::vector<Diagnostic> of_model = model_mistakes(loaded, read.params, read.samples);
    const auto warnings = std::ranges::stable_partition(
        of_model, [](const Diagnostic& one) { return one.severity == Diagnostic::Severity::error; });
    loaded.warnings.insert(loaded.warnings.end(), warnings.begin(), warnings.end());
    of_model.erase(warnings.begin(), warnings.end());
    take(of_model);
  }
  if (mistakes.empty()) return std::move(loaded);
  sort_mistakes(mistakes);
  std::ranges::stable_partition(
      mistakes, [&](const Diagnostic& mistake) { return mistake.file == loaded.file || mistake.file == kCommandLine; });
  throw JobError(std::move(mistakes));
}

}  // namespace trainer
