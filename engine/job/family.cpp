// config.json is read as YAML, of which JSON is a part: that gives each key its line. First its keys are flattened
// (`rope_scaling.factor`), then checked against the family's lists; then its expressions are evaluated with them.
#include "engine/job/family.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "engine/core/glob.h"
#include "engine/job/nearest.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::array kFamilyKeys = std::to_array<std::string_view>(
    {"base", "gguf", "graph", "data", "architectures", "part", "sections", "counts", "keys", "ignore", "require", "let",
     "refuse", "with", "longest", "not_applied", "options", "warn", "tensors"});
constexpr std::string_view kConfig = "config.json";
constexpr std::size_t kMostNames = 40;  // that a message lists

[[noreturn]] void fail(const yaml::Node& node, const std::string& path, const std::string& message) {
  throw JobError({node.at(path, message)});
}

std::string joined(const std::string& prefix, const std::string& key) {
  return prefix.empty() ? key : prefix + "." + key;
}

std::vector<std::string> texts_of(const yaml::Node* list) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; list != nullptr && i < list->items.size(); ++i) texts.push_back(list->items[i].text);
  return texts;
}

using Entries = FamilyEntries;

/// A family file with those that it is based on.
struct Family {
  std::string graph, part, longest;
  std::vector<std::string> architectures, ignore;
  Entries sections, counts, keys, require, options, let, refuse, warn, with, not_applied;
  bool tensors = false;  // what its data are
  DiskNames names;
  Entries ignore_if;  // an expression, and globs over tensors
  Entries copies_if;  // an expression, and names in files to names of the graph
  Entries tell;

  void read(const std::string& file, const std::string& folder) {
    const yaml::Node tree = yaml::read_file(file);
    if (!tree.is_mapping()) fail(tree, "", "a family is a mapping");
    for (const yaml::Node& key : tree.keys)
      if (std::ranges::find(kFamilyKeys, key.text) == kFamilyKeys.end()) fail(key, key.text, "unknown key of a family");
    if (const yaml::Node* base = tree.find("base")) read((fs::path(folder) / base->text).string(), folder);
    if (const yaml::Node* node = tree.find("graph")) graph = node->text;
    if (const yaml::Node* node = tree.find("data")) tensors = node->text == "tensors";
    if (const yaml::Node* node = tree.find("part")) part = node->text;
    if (const yaml::Node* node = tree.find("longest")) longest = node->text;
    for (std::string& name : texts_of(tree.find("architectures"))) architectures.push_back(std::move(name));
    for (std::string& key : texts_of(tree.find("ignore"))) ignore.push_back(std::move(key));
    lay_over(sections, tree.find("sections"));
    lay_over(counts, tree.find("counts"));
    lay_over(keys, tree.find("keys"));
    lay_over(require, tree.find("require"));
    lay_over(let, tree.find("let"));
    lay_over(refuse, tree.find("refuse"));
    lay_over(with, tree.find("with"));
    lay_over(not_applied, tree.find("not_applied"));
    lay_over(options, tree.find("options"));
    lay_over(warn, tree.find("warn"));
    if (const yaml::Node* tensors_of_files = tree.find("tensors")) {
      const auto add = [&](std::vector<std::string>& to, std::string_view key) {
        for (std::string& text : texts_of(tensors_of_files->find(key))) to.push_back(std::move(text));
      };
      add(names.prefixes, "prefixes");
      add(names.transposed, "transposed");
      add(names.ignored, "ignore");
      const yaml::Node* renamed = tensors_of_files->find("renamed");
      for (std::size_t i = 0; renamed != nullptr && i < renamed->keys.size(); ++i)
        names.renamed.emplace_back(renamed->keys[i].text, renamed->items[i].text);
      const yaml::Node* in_files = tensors_of_files->find("in_files");
      for (std::size_t i = 0; in_files != nullptr && i < in_files->keys.size(); ++i)
        names.in_files.emplace_back(in_files->keys[i].text, in_files->items[i].text);
      lay_over(ignore_if, tensors_of_files->find("ignore_if"));
      lay_over(copies_if, tensors_of_files->find("copies_if"));
      lay_over(tell, tensors_of_files->find("tell"));
    }
  }

  bool ignores(const std::string& key) const {
    return std::ranges::any_of(ignore, [&](const std::string& glob) { return name_matches(glob, key); });
  }
};

bool is_whole(const ParamValue& value) { return value.number() != nullptr && whole(*value.number()).has_value(); }

/// What a key may hold, by what stands for it where it is left out; empty if `value` is right.
std::string wanted(const yaml::Node& value, const yaml::Node& otherwise) {
  if (otherwise.is_null() || value.is_null()) return "";
  if (otherwise.as_bool()) return value.as_bool() ? "" : "true or false";
  if (otherwise.as_integer()) {
    const std::int64_t least = std::min<std::int64_t>(1, *otherwise.as_integer());
    return value.as_integer() && *value.as_integer() >= least ? "" : fmt::format("an integer of at least {}", least);
  }
  if (otherwise.as_number()) return value.as_number() ? "" : "a number";
  if (otherwise.is_sequence()) return value.is_sequence() ? "" : "a list";
  return value.as_string() ? "" : "a string";
}

class Reader {
 public:
  Reader(const std::string& path, const std::string& configs_dir, const yaml::Node& config, const Variables& with)
      : configs_dir_(configs_dir), config_(config), chosen_(with) {
    folder_.path = path;
  }

  ModelFolder read() {
    if (!config_.is_mapping()) fail(config_, "", "config.json is no JSON object");
    find_family();
    check_architecture();
    if (family_.part.empty()) {
      flatten(config_, "");
    } else {
      const yaml::Node* part = config_.find(family_.part);
      if (part == nullptr || !part->is_mapping())
        fail(config_, family_.part, "missing: the section that describes the text model");
      read_beside(family_.part);
      flatten(*part, "");
    }
    fill_in();
    raise();
    check_values();
    raise();
    evaluate_all();
    raise();
    folder_.part = family_.part;
    folder_.variables = std::move(variables_);
    return std::move(folder_);
  }

 private:
  // ---- Which family ----

  void find_family() {
    family_node_ = config_.find("model_type");
    const std::vector<std::string> known = family_names(configs_dir_);
    if (family_node_ == nullptr)
      throw JobError({config_.at("model_type", "missing: it names the family of the model",
                                 fmt::format("one of {}", fmt::join(known, ", ")))});
    const std::string& name = family_node_->text;
    if (std::ranges::find(known, name) == known.end()) {
      Diagnostic mistake = family_node_->at("model_type", "no such family of models is known");
      if (name.find("moe") != std::string::npos || name.starts_with("deepseek"))
        mistake.message = "this model with experts cannot be read yet";
      mistake.value = family_node_->brief();
      mistake.suggestion = nearest(name, std::vector<std::string_view>(known.begin(), known.end()));
      mistake.allowed = fmt::format("one of {}", fmt::join(known, ", "));
      throw JobError({mistake});
    }
    folder_.family = name;
    const std::string families = (fs::path(configs_dir_) / "families").string();
    family_.read(families + "/" + name + ".yaml", families);
    folder_.graph = (fs::path(configs_dir_) / family_.graph).lexically_normal().string();
    folder_.names = family_.names;
    folder_.tensors = family_.tensors;
  }

  void check_architecture() {
    const yaml::Node* given = config_.find("architectures");
    if (!family_.architectures.empty()) variables_["architecture"] = ParamValue(family_.architectures.front());
    if (given == nullptr || given->is_null() || (given->is_sequence() && given->items.empty())) return;
    const bool right = given->is_sequence() && given->items.size() == 1 &&
                       std::ranges::find(family_.architectures, given->items[0].text) != family_.architectures.end();
    if (right) {
      variables_["architecture"] = ParamValue(given->items[0].text);
      return;
    }
    Diagnostic mistake = given->at("architectures", "this model of the family cannot be read");
    mistake.value = given->brief();
    mistake.allowed = fmt::format("one of {}", fmt::join(family_.architectures, ", "));
    mistakes_.push_back(std::move(mistake));
  }

  // ---- Keys ----

  /// Of a model that is a section of config.json: what stands beside it. The dtype there is that of the model as well.
  void read_beside(const std::string& part) {
    for (std::size_t i = 0; i < config_.keys.size(); ++i) {
      const yaml::Node& key = config_.keys[i];
      const std::string& name = key.text;
      if (name == "dtype" || name == "torch_dtype")
        take_dtype(name, config_.items[i]);
      else if (name != part && !is_known_everywhere(name) && !family_.ignores(name) && !family_.ignores("/" + name))
        unknown(key, name);
    }
  }

  static bool is_known_everywhere(std::string_view key) { return key == "model_type" || key == "architectures"; }

  void flatten(const yaml::Node& node, const std::string& prefix) {
    for (std::size_t i = 0; i < node.keys.size(); ++i) {
      const yaml::Node &key = node.keys[i], &value = node.items[i];
      const std::string written = joined(prefix, key.text);
      if (prefix.empty() && is_known_everywhere(written)) continue;
      count(written, value);
      const std::string name = in_section(written);
      if (default_of(name) == nullptr && family_.ignores(written)) continue;
      if (value.is_mapping()) {
        flatten(value, written);
      } else if (const yaml::Node* otherwise = default_of(name)) {
        if (const std::string allowed = wanted(value, *otherwise); !allowed.empty())
          wrong(value, written, "wrong kind of value", allowed);
        given_.insert_or_assign(name, value);
        written_.insert_or_assign(name, written);
        const std::optional<ParamValue> read = value_of(value);
        if (read)
          variables_[name] = *read;
        else
          wrong(value, written, "wrong kind of value", "a list of numbers or words");
      } else if (!(value.is_null() && is_section(written))) {
        unknown(key, written);
      }
    }
  }

  void count(const std::string& written, const yaml::Node& value) {
    for (const auto& [name, section] : family_.counts) {
      if (section.text != written || !value.is_mapping()) continue;
      variables_[name] = ParamValue(static_cast<double>(value.keys.size()));
      given_.insert_or_assign(name, value);
    }
  }

  /// `rope_scaling.factor` as `rope.factor`, if rope_scaling is the section of that name that is there.
  std::string in_section(const std::string& written) const {
    for (const auto& [name, candidates] : family_.sections)
      for (const yaml::Node& candidate : candidates.items) {
        if (!written.starts_with(candidate.text + ".")) continue;
        return name + written.substr(candidate.text.size());
      }
    return written;
  }

  bool is_section(const std::string& written) const {
    return std::ranges::any_of(family_.sections, [&](const auto& section) {
      return std::ranges::any_of(section.second.items,
                                 [&](const yaml::Node& candidate) { return candidate.text == written; });
    });
  }

  const yaml::Node* default_of(const std::string& name) const {
    const auto found = std::ranges::find(family_.keys, name, &Entries::value_type::first);
    return found == family_.keys.end() ? nullptr : &found->second;
  }

  void fill_in() {
    for (const auto& [name, section] : family_.counts) variables_.try_emplace(name);
    for (const auto& [name, otherwise] : family_.options) {
      const auto chosen = chosen_.find(name);
      variables_[name] = chosen == chosen_.end() ? value_of(otherwise).value_or(ParamValue()) : chosen->second;
    }
    for (const auto& [name, otherwise] : family_.keys)
      if (!variables_.contains(name)) variables_[name] = value_of(otherwise).value_or(ParamValue());
    for (const char* name : {"torch_dtype", "dtype"})
      if (const auto dtype = given_.find(name); dtype != given_.end()) take_dtype(name, dtype->second);
  }

  void take_dtype(const std::string& name, const yaml::Node& node) {
    const std::string& text = node.text;
    if (text == "float32") folder_.dtype = DType::f32;
    if (text == "bfloat16") folder_.dtype = DType::bf16;
    if (text == "float16") folder_.dtype = DType::f16;
    if (!folder_.dtype && !node.is_null()) wrong(node, name, "unknown dtype", "float32, bfloat16, float16");
  }

  void check_values() {
    for (const auto& [name, allowed] : family_.require) {
      const auto given = given_.find(name);
      if (given == given_.end()) continue;
      const std::optional<ParamValue> value = value_of(given->second);
      const bool right =
          std::ranges::any_of(allowed.items, [&](const yaml::Node& one) { return value_of(one) == value; });
      if (right) continue;
      std::vector<std::string> texts;
      for (const yaml::Node& one : allowed.items) texts.push_back(one.flow());
      wrong(given->second, written_.at(name), fmt::format("a {} of this kind cannot be computed", folder_.family),
            fmt::format("{}", fmt::join(texts, ", ")));
    }
    for (const auto& [name, without] : family_.not_applied) {
      const auto given = given_.find(name);
      if (given == given_.end() || value_of(given->second) == value_of(without)) continue;
      warn(given->second, written_.at(name), "is not applied: training goes on as with " + without.flow());
    }
  }

  void warn(const yaml::Node& node, const std::string& path, const std::string& message) {
    Diagnostic warning = node.at(path, message);
    warning.value = node.brief();
    warning.severity = Diagnostic::Severity::warning;
    folder_.warnings.push_back(std::move(warning));
  }

  // ---- Params ----

  void evaluate_all() {
    for (const auto& [name, expression] : family_.let)
      if (const std::optional<ParamValue> value = evaluated(name, expression)) variables_[name] = *value;
    for (const auto& [condition, why] : family_.refuse) {
      const yaml::Node* origin = origin_of(condition);
      if (evaluate(condition, variables_).truth())
        wrong(origin != nullptr ? *origin : config_, path_of(condition), why.text, "");
    }
    for (const auto& [condition, what] : family_.warn) {
      const yaml::Node* origin = origin_of(condition);
      if (evaluate(condition, variables_).truth())
        warn(origin != nullptr ? *origin : config_, path_of(condition), what.text);
    }
    for (const auto& [name, expression] : family_.with)
      if (const std::optional<ParamValue> value = evaluated(name, expression)) {
        folder_.with[name] = *value;
        if (const yaml::Node* origin = origin_of(expression.text)) folder_.origins.insert_or_assign(name, *origin);
      }
    for (const auto& [condition, globs] : family_.ignore_if)
      if (evaluate(condition, variables_).truth())
        for (const std::string& glob : texts_of(&globs)) folder_.names.ignored.push_back(substitute(glob, variables_));
    for (const auto& [condition, copies] : family_.copies_if)
      if (evaluate(condition, variables_).truth()) add_copies(copies);
    for (const auto& [option, tensor] : family_.tell) folder_.told[option] = substitute(tensor.text, variables_);
    if (family_.longest.empty()) return;
    const auto longest = variables_.find(family_.longest);
    if (longest != variables_.end() && is_whole(longest->second)) folder_.longest = whole(*longest->second.number());
  }

  void add_copies(const yaml::Node& copies) {
    for (std::size_t i = 0; i < copies.keys.size(); ++i) {
      folder_.names.copies.emplace_back(substitute(copies.keys[i].text, variables_), copies.items[i].text);
      folder_.names.ignored.push_back(folder_.names.copies.back().first);
    }
  }

  /// A mistake is that of the first key of config.json that the expression reads; without one it is the family's.
  std::optional<ParamValue> evaluated(const std::string& name, const yaml::Node& expression) {
    if (expression.as_number() || expression.as_bool() || expression.is_null()) return value_of(expression);
    try {
      return evaluate(expression.text, variables_);
    } catch (const ExpressionError& error) {
      const yaml::Node* origin = origin_of(expression.text);
      if (origin == nullptr) fail(expression, name, error.what());
      wrong(*origin, name, error.what(), "");
      return {};
    }
  }

  const yaml::Node* origin_of(const std::string& expression) const {
    const std::string name = key_of(expression);
    const auto given = given_.find(name);
    return given == given_.end() ? nullptr : &given->second;
  }

  /// The first key of config.json that the expression reads and that is given, straight or by `let`; "" if none is.
  std::string key_of(const std::string& expression) const {
    for (const std::string& name : names_in("${" + expression + "}"))
      if (given_.contains(name)) return name;
    for (const std::string& name : names_in("${" + expression + "}")) {
      const auto let = std::ranges::find(family_.let, name, &Entries::value_type::first);
      if (let == family_.let.end()) continue;
      if (const std::string key = key_of(let->second.text); !key.empty()) return key;
    }
    return "";
  }

  /// How config.json calls it.
  std::string path_of(const std::string& expression) const {
    const std::string key = key_of(expression);
    const auto written = written_.find(key);
    if (written != written_.end()) return written->second;
    const auto counted = std::ranges::find(family_.counts, key, &Entries::value_type::first);
    return counted == family_.counts.end() ? key : counted->second.text;
  }

  // ---- Mistakes ----

  void wrong(const yaml::Node& node, const std::string& path, const std::string& message, const std::string& allowed) {
    Diagnostic mistake = node.at(path, message, allowed);
    mistake.value = node.brief();
    mistakes_.push_back(std::move(mistake));
  }

  void unknown(const yaml::Node& key, const std::string& written) {
    std::vector<std::string_view> known;
    for (const auto& [name, otherwise] : family_.keys) known.push_back(name);
    Diagnostic mistake = key.at(written, fmt::format("a key that the family {} does not know", folder_.family));
    mistake.suggestion = nearest(in_section(written), known);
    if (known.size() <= kMostNames) mistake.allowed = fmt::format("{}", fmt::join(known, ", "));
    mistakes_.push_back(std::move(mistake));
  }

  void raise() {
    if (mistakes_.empty()) return;
    std::ranges::stable_sort(mistakes_, [](const Diagnostic& a, const Diagnostic& b) {
      return std::pair(a.line, a.column) < std::pair(b.line, b.column);
    });
    throw JobError(std::move(mistakes_));
  }

  const std::string& configs_dir_;
  const yaml::Node& config_;
  const Variables& chosen_;
  const yaml::Node* family_node_ = nullptr;
  Family family_;
  ModelFolder folder_;
  std::map<std::string, yaml::Node> given_;     // by flattened name
  std::map<std::string, std::string> written_;  // that, as the file has it
  Variables variables_;
  std::vector<Diagnostic> mistakes_;
};

}  // namespace

void lay_over(FamilyEntries& entries, const yaml::Node* mapping) {
  for (std::size_t i = 0; mapping != nullptr && i < mapping->keys.size(); ++i) {
    const std::string& key = mapping->keys[i].text;
    const auto same = std::ranges::find(entries, key, &FamilyEntries::value_type::first);
    if (same == entries.end())
      entries.emplace_back(key, mapping->items[i]);
    else
      same->second = mapping->items[i];
  }
}

bool is_model_folder(const std::string& path) {
  std::error_code error;
  // Checkpoints hold a config.json too, but under other names than the folder's files.
  return fs::is_regular_file(fs::path(path) / kConfig, error) && !fs::exists(fs::path(path) / "manifest.json", error);
}

ModelFolder read_model_folder(const std::string& path, const std::string& configs_dir, const Variables& with) {
  const yaml::Node config = yaml::read_file((fs::path(path) / kConfig).string());
  return Reader(path, configs_dir, config, with).read();
}

std::vector<std::string> family_names(const std::string& configs_dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(configs_dir) / "families", error))
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  std::ranges::sort(names);
  return names;
}

}  // namespace trainer
