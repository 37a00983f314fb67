// How a tree is checked: key by key along the table, each value against every form of its field.
#include "engine/job/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/job/aliases.h"
#include "engine/job/bytes.h"
#include "engine/job/expression.h"
#include "engine/job/nearest.h"

namespace trainer {
namespace {

bool within(const Form& form, double value) {
  if (!std::isfinite(value)) return false;
  if (value < form.least || (form.above_least && value == form.least)) return false;
  return value < form.most || (!form.below_most && value == form.most);
}

bool is_identifier(std::string_view text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  return !text.empty() && letter(text[0]) &&
         std::all_of(text.begin(), text.end(), [&](char c) { return letter(c) || digit(c); });
}

bool is_number_form(const Form& form) {
  return form.kind == Form::Kind::integer || form.kind == Form::Kind::number || form.kind == Form::Kind::bytes;
}

/// Beyond a billion digits are hard to count.
std::string printed(double value) {
  return whole(value) && std::abs(value) <= 1e9 ? fmt::format("{}", *whole(value)) : fmt::format("{:g}", value);
}

/// Bounds that no job comes near are told where `value` is beyond them.
std::string range_text(const Form& form, std::optional<double> value = {}) {
  if (form.kind == Form::Kind::integer && form.least == form.most) return printed(form.least);
  const bool low = std::isfinite(form.least),
             high = std::isfinite(form.most) && (form.most < kMostInteger || (value && *value > form.most));
  const std::string what = form.kind == Form::Kind::integer ? "an integer" : "a number";
  if (low && high) {
    return fmt::format("{} {} {} {} {}", what, form.above_least ? "above" : "from", printed(form.least),
                       form.below_most ? "to below" : "to", printed(form.most));
  }
  if (low) return fmt::format("{} {} {}", what, form.above_least ? "above" : "of at least", printed(form.least));
  return what;
}

std::string list_text(const Form& form) {
  const std::string item = allowed_text(form.items);
  if (form.min_items == form.max_items) return fmt::format("a list of {}, each {}", form.min_items, item);
  return fmt::format("a list{} of {}", form.min_items > 0 ? " (not empty)" : "", item);
}

std::string one_text(const Form& form) {
  switch (form.kind) {
    case Form::Kind::null:
      return "null";
    case Form::Kind::word:
      return form.words.size() == 1 ? std::string(form.words[0])
                                    : fmt::format("one of {}", fmt::join(form.words, ", "));
    case Form::Kind::integer:
    case Form::Kind::number:
      return range_text(form);
    case Form::Kind::bytes:
      return "bytes: an integer above 0, or a number with KiB, MiB, GiB or TiB, as 80GiB";
    case Form::Kind::flag:
      return "true or false";
    case Form::Kind::text:
      return "a string";
    case Form::Kind::path:
      return fmt::format("a path: with a / in it, or *{}", form.name);
    case Form::Kind::expression:
      return "an expression \"${…}\"";
    case Form::Kind::list:
      return list_text(form);
    case Form::Kind::map:
      return "a mapping from names to " + allowed_text(form.items);
    case Form::Kind::section: {
      std::vector<std::string_view> keys;
      for (const FieldDef& field : form.fields) {
        if (std::ranges::find(keys, field.name) == keys.end()) keys.push_back(field.name);
      }
      const std::string mapping = fmt::format("a mapping with {}", fmt::join(keys, ", "));
      return form.shorthand.empty() ? mapping : allowed_text(short_forms(form)) + " or " + mapping;
    }
    case Form::Kind::tree:
    case Form::Kind::reference:
      return "a mapping";
  }
  return "";
}

/// Adds the paths of all keys called `name`.
void find_keys(const std::vector<FieldDef>& fields, std::string_view name, const std::string& prefix,
               std::set<std::string>& out) {
  for (const FieldDef& field : fields) {
    if (field.name == name) out.insert(prefix + std::string(name));
    for (const Form& form : field.forms)
      if (form.kind == Form::Kind::section) find_keys(form.fields, name, prefix + std::string(field.name) + ".", out);
  }
}

/// The only key of jobs with this name; empty if there is none or more than one.
std::string key_of_job(std::string_view name) {
  std::set<std::string> paths;
  find_keys(job_fields(), name, "", paths);
  return paths.size() == 1 ? *paths.begin() : "";
}

class Checker {
 public:
  Checker(Checked& out, Words words) : out_(out), words_(words) {}

  /// `where` is blamed for what is missing: the section's key, or the section itself.
  void section(const std::vector<FieldDef>& fields, const yaml::Node& node, const yaml::Node& where,
               const std::string& prefix) {
    const std::set<std::string> meant = unknown_keys(fields, node, prefix);
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const std::string_view name = fields[i].name;
      const auto same = [&](const FieldDef& other) { return other.name == name; };
      if (std::any_of(fields.begin(), fields.begin() + static_cast<std::ptrdiff_t>(i), same)) continue;
      std::vector<const FieldDef*> variants;
      for (const FieldDef& field : fields) {
        if (same(field)) variants.push_back(&field);
      }
      field(variants, node, where, prefix, meant.contains(std::string(name)));
    }
  }

 private:
  /// yes, no, or unknown because what decides is a mistake itself.
  enum class Truth { no, yes, unknown };

  struct Verdict {
    Truth truth = Truth::yes;
    int num_met = -1;      ///< conditions that hold
    Setting::From from{};  ///< of the value that decided against
    std::string reason{};  ///< "train.optimizer.name is sgd"
  };

  /// The keys that were meant by those which are not known.
  std::set<std::string> unknown_keys(const std::vector<FieldDef>& fields, const yaml::Node& node,
                                     const std::string& prefix) {
    std::vector<std::string_view> known;
    for (const FieldDef& field : fields) {
      if (std::ranges::find(known, field.name) == known.end()) known.push_back(field.name);
    }
    std::set<std::string> meant;
    for (const yaml::Node& key : node.keys) {
      if (std::ranges::find(known, key.text) != known.end()) continue;
      Diagnostic mistake = key.at(prefix + key.text, "unknown key");
      explain_key(mistake, key.text, prefix, known);
      meant.insert(mistake.suggestion.empty() ? key.text.substr(0, key.text.find(':')) : mistake.suggestion);
      out_.mistakes.push_back(std::move(mistake));
    }
    return meant;
  }

  /// What was meant by a key that is not known.
  void explain_key(Diagnostic& mistake, const std::string& key, const std::string& prefix,
                   const std::vector<std::string_view>& known) const {
    const std::size_t colon = key.find(':');
    if (colon != std::string::npos && std::ranges::find(known, key.substr(0, colon)) != known.end()) {
      mistake.message =
          fmt::format("a space is missing after the colon of \"{}: {}\"", key.substr(0, colon), key.substr(colon + 1));
      return;
    }
    const Alias* alias = words_ == Words::of_jobs ? alias_of_key(prefix + key) : nullptr;
    const std::string near = nearest(key, known);
    // One slip of the hand is likelier than a word of another tool.
    if (is_slip(key, near))
      mistake.suggestion = near;
    else if (alias != nullptr)
      answer(mistake, *alias);
    else if (words_ == Words::of_jobs && !key_of_job(key).empty())
      mistake.suggestion = key_of_job(key);
    else
      mistake.suggestion = near;
    for (const std::string& section : {prefix, path_of_words(prefix)})
      if (mistake.suggestion.starts_with(section)) mistake.suggestion.erase(0, section.size());
    if (mistake.suggestion.empty()) mistake.allowed = fmt::format("{}", fmt::join(known, ", "));
  }

  /// `elsewhere`: an unknown key of the section means this one.
  void field(const std::vector<const FieldDef*>& variants, const yaml::Node& node, const yaml::Node& where,
             const std::string& prefix, bool elsewhere) {
    const std::string path = prefix + std::string(variants.front()->name);
    const FieldDef* active = nullptr;
    bool doubtful = false;
    Verdict against;
    std::vector<std::size_t> failed;  // of each variant, its first condition that does not hold
    for (const FieldDef* variant : variants) {
      const Verdict verdict = holds(*variant, prefix);
      failed.push_back(verdict.num_met < 0 ? 0 : static_cast<std::size_t>(verdict.num_met));
      if (verdict.truth == Truth::yes) active = variant;
      if (verdict.truth == Truth::unknown) doubtful = true;
      if (verdict.truth == Truth::no && verdict.num_met >= against.num_met) against = verdict;
    }
    const yaml::Node* key = node.find_key(variants.front()->name);
    if (active == nullptr) {
      if (doubtful)
        out_.doubtful.insert(path);
      else if (key != nullptr && !is_wrong_anyway(variants, *node.find(key->text), path))
        no_effect(variants, failed, *key, path, against);
      return;
    }
    if (key != nullptr) return value(active->forms, *node.find(active->name), *key, path);
    if (elsewhere)
      out_.doubtful.insert(path);
    else
      absent(*active, where, path);
  }

  /// A value that would be wrong under every condition is told as that: what it has no effect on is the smaller
  /// mistake.
  bool is_wrong_anyway(const std::vector<const FieldDef*>& variants, const yaml::Node& node, const std::string& path) {
    std::vector<Form> forms;
    for (const FieldDef* variant : variants) forms.insert(forms.end(), variant->forms.begin(), variant->forms.end());
    const auto may_be_short = [](const Form& form) {
      using Kind = Form::Kind;
      return form.kind == Kind::list || form.kind == Kind::map || form.kind == Kind::tree ||
             (form.kind == Kind::section && !form.shorthand.empty());
    };
    if (!node.is_scalar() || std::ranges::any_of(forms, may_be_short)) return false;
    if (std::ranges::any_of(forms, [&](const Form& form) { return accepts(form, node); })) return false;
    wrong(variants.size() == 1 ? forms : distinct(forms), node, path);
    return true;
  }

  static std::vector<Form> distinct(const std::vector<Form>& forms) {
    std::vector<Form> out;
    for (const Form& form : forms)
      if (std::ranges::none_of(out, [&](const Form& other) { return one_text(other) == one_text(form); }))
        out.push_back(form);
    return out;
  }

  void no_effect(const std::vector<const FieldDef*>& variants, const std::vector<std::size_t>& failed,
                 const yaml::Node& key, const std::string& path, const Verdict& against) {
    // An override may switch off what keys of the file belong to; that is its point, not a mistake of the file.
    if (against.from == Setting::From::command_line && !is_override(key)) return;
    out_.mistakes.push_back(key.at(path, "has no effect where " + against.reason, only_where(variants, failed)));
  }

  /// "only where kind is ddp, zero1": of each variant the condition that failed; variants that failed by one path
  /// together.
  static std::string only_where(const std::vector<const FieldDef*>& variants, const std::vector<std::size_t>& failed) {
    std::vector<std::string_view> paths;
    std::map<std::string_view, std::vector<std::string>> wanted;  // by path
    for (std::size_t i = 0; i < variants.size(); ++i) {
      const Condition& condition = variants[i]->conditions[failed[i]];
      if (condition.words.empty() && !condition.above) return "";  // the message has it
      std::vector<std::string>& texts = wanted[condition.path];
      if (texts.empty()) paths.push_back(condition.path);
      std::vector<std::string> more(condition.words.begin(), condition.words.end());
      if (condition.above) more.push_back("above " + printed(*condition.above));
      for (std::string& text : more)
        if (std::ranges::find(texts, text) == texts.end()) texts.push_back(std::move(text));
    }
    std::vector<std::string> out;
    for (const std::string_view path : paths)
      out.push_back(fmt::format("{} is {}", path, fmt::join(wanted[path], ", ")));
    return fmt::format("only where {}", fmt::join(out, " or "));
  }

  void absent(const FieldDef& field, const yaml::Node& where, const std::string& path) {
    if (field.absent == FieldDef::Absent::required) {
      out_.mistakes.push_back(where.at(path, "missing", allowed_text(field.forms)));
      out_.doubtful.insert(path);
    } else if (field.absent == FieldDef::Absent::fill) {
      yaml::Node empty;
      empty.kind = yaml::Kind::mapping;
      out_.sections.insert(path);
      section(field.forms.front().fields, empty, where, path + ".");
    } else if (field.absent == FieldDef::Absent::otherwise) {
      const yaml::Node node = yaml::parse(std::string(field.otherwise), "default");
      if (!node.is_mapping()) note(path, node, Setting::From::otherwise);
    }
  }

  Verdict holds(const FieldDef& field, const std::string& prefix) const {
    int num_met = 0;
    for (const Condition& condition : field.conditions) {
      const std::string path = prefix + std::string(condition.path);
      const CheckedValue* found = out_.find(path);
      if (found != nullptr && !matches(condition, found->node)) {
        return {
            .truth = Truth::no, .num_met = num_met, .from = found->from, .reason = path + " is " + found->node.flow()};
      }
      if (found == nullptr && !out_.sections.contains(path)) {
        // A value that does not apply decides against; one that is wrong or missing decides nothing.
        const bool unknown = out_.doubtful.contains(path) || !has_parent(path);
        return {.truth = unknown ? Truth::unknown : Truth::no,
                .num_met = num_met,
                .from = {},
                .reason = path + " is not there"};
      }
      if (found == nullptr && !condition.words.empty())
        return {.truth = Truth::no, .num_met = num_met, .from = {}, .reason = path + " is a mapping"};
      ++num_met;
    }
    return {.truth = Truth::yes, .num_met = num_met, .from = {}, .reason = {}};
  }

  static bool matches(const Condition& condition, const yaml::Node& node) {
    if (condition.above) return node.as_number().value_or(*condition.above) > *condition.above;
    return condition.words.empty() ? !node.is_null()
                                   : std::ranges::find(condition.words, node.text) != condition.words.end();
  }

  bool has_parent(const std::string& path) const {
    const std::size_t dot = path.rfind('.');
    return dot == std::string::npos || out_.sections.contains(path.substr(0, dot));
  }

  void value(const std::vector<Form>& forms, const yaml::Node& node, const yaml::Node& key, const std::string& path) {
    if (node.is_scalar()) return scalar(forms, node, path);
    const Form* form = node.is_sequence() ? find_list(forms) : find_mapping(forms, node);
    if (form == nullptr) return wrong(forms, node, path);
    const std::size_t before = out_.mistakes.size();
    switch (form->kind) {
      case Form::Kind::list:
        list(*form, node, path);
        break;
      case Form::Kind::map:
        map(*form, node, path);
        break;
      case Form::Kind::tree:
        note(path, node, from(node));
        break;
      default:
        out_.sections.insert(path);
        section(form->fields, node, is_override(node) ? node : key, path + ".");
    }
    if (out_.mistakes.size() > before) out_.doubtful.insert(path);
  }

  static const Form* find_list(const std::vector<Form>& forms) {
    const auto found = std::ranges::find(forms, Form::Kind::list, &Form::kind);
    return found == forms.end() ? nullptr : &*found;
  }

  /// The mapping form that knows most of the keys.
  static const Form* find_mapping(const std::vector<Form>& forms, const yaml::Node& node) {
    const Form* best = nullptr;
    std::ptrdiff_t most = -1;
    for (const Form& form : forms) {
      if (form.kind == Form::Kind::map || form.kind == Form::Kind::tree) return &form;
      if (form.kind != Form::Kind::section) continue;
      const auto known =
          std::ranges::count_if(form.fields, [&](const FieldDef& field) { return node.find(field.name) != nullptr; });
      if (known > most) best = &form;
      most = std::max(most, known);
    }
    return best;
  }

  void scalar(const std::vector<Form>& forms, const yaml::Node& node, const std::string& path) {
    if (std::ranges::any_of(forms, [&](const Form& form) { return accepts(form, node); }))
      return note(path, node, from(node));
    wrong(forms, node, path);
  }

  void list(const Form& form, const yaml::Node& node, const std::string& path) {
    if (node.items.size() < form.min_items || node.items.size() > form.max_items) {
      out_.mistakes.push_back(node.at(path, fmt::format("a list of {}", node.items.size()), list_text(form)));
      out_.mistakes.back().value = node.brief();
      return;
    }
    bool right = true;
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      const yaml::Node& item = node.items[i];
      if (item.is_scalar() && std::ranges::any_of(form.items, [&](const Form& one) { return accepts(one, item); }))
        continue;
      const std::string inner = fmt::format("{}[{}]", path, i);
      const std::size_t before = out_.mistakes.size();
      item.is_mapping() ? value(form.items, item, item, inner) : wrong(form.items, item, inner);
      right = right && out_.mistakes.size() == before;
    }
    if (right) note(path, node, from(node));
  }

  void map(const Form& form, const yaml::Node& node, const std::string& path) {
    for (std::size_t i = 0; i < node.keys.size(); ++i) {
      const std::string inner = path + "." + node.keys[i].text;
      if (is_identifier(node.keys[i].text)) {
        value(form.items, node.items[i], node.keys[i], inner);
      } else {
        out_.mistakes.push_back(node.keys[i].at(inner, "not a name", "letters, digits and _, no digit first"));
      }
    }
  }

  void wrong(const std::vector<Form>& forms, const yaml::Node& node, const std::string& path) {
    const auto has = [&](auto test) { return std::ranges::any_of(forms, test); };
    const bool words = has([](const Form& form) { return form.kind == Form::Kind::word; });
    const bool integer =
        has([](const Form& form) { return form.kind == Form::Kind::integer || form.kind == Form::Kind::bytes; });
    const bool numbers = has(is_number_form);
    const std::optional<double> number = node.as_number();
    std::string message = "wrong type";
    if (node.is_null())
      message = "a value is missing";
    else if (number && numbers)
      message =
          integer && std::isfinite(*number) && *number != std::floor(*number) ? "not a whole number" : "out of range";
    else if (words && node.as_string())
      message = "unknown name";
    else if (node.is_scalar() && node.quoted && node.text.empty())
      message = "an empty string";
    Diagnostic mistake = node.at(path, message, allowed_for(forms, number));
    mistake.value = node.brief();
    if (node.is_scalar() && !node.is_null()) explain_value(mistake, forms, node, path);
    out_.mistakes.push_back(std::move(mistake));
    out_.doubtful.insert(path);
  }

  static std::string allowed_for(const std::vector<Form>& forms, std::optional<double> number) {
    if (forms.size() == 1 && number && is_number_form(forms.front()) && forms.front().kind != Form::Kind::bytes)
      return range_text(forms.front(), number);
    return allowed_text(forms);
  }

  void explain_value(Diagnostic& mistake, const std::vector<Form>& forms, const yaml::Node& node,
                     const std::string& path) const {
    const Alias* alias = words_ == Words::of_jobs ? alias_of_value(path, node.text) : nullptr;
    const bool section = std::ranges::any_of(forms, [](const Form& form) { return form.kind == Form::Kind::section; });
    if (alias != nullptr)
      answer(mistake, *alias);
    else if (section && !node.quoted && node.text.find_first_of(":= ") != std::string::npos)
      mistake.message +=
          is_tight(node.text) ? "; a space is missing after the colon" : "; the lines of a section are `key: value`";
    else
      mistake.suggestion = suggestion(forms, node);
  }

  /// `steps:100`, which YAML reads as one word.
  static bool is_tight(const std::string& text) {
    const std::size_t colon = text.find(':');
    return colon != std::string::npos && is_identifier(text.substr(0, colon));
  }

  static std::string suggestion(const std::vector<Form>& forms, const yaml::Node& node) {
    for (const Form& form : forms) {
      if (form.kind == Form::Kind::word) return nearest(node.text, form.words);
      if (form.kind == Form::Kind::flag) {
        if (node.text == "yes" || node.text == "on") return "true";
        if (node.text == "no" || node.text == "off") return "false";
      }
    }
    return {};
  }

  void note(const std::string& path, const yaml::Node& node, Setting::From from) {
    if (out_.values.emplace(path, CheckedValue{node, from}).second) out_.order.push_back(path);
  }

  static bool is_override(const yaml::Node& node) {
    return node.source != nullptr && node.source->name == kCommandLine;
  }
  static Setting::From from(const yaml::Node& node) {
    return is_override(node) ? Setting::From::command_line : Setting::From::file;
  }

  Checked& out_;
  const Words words_;
};

}  // namespace

// Names are strings, so `true` or `1` quoted would be one and unquoted not.
bool accepts(const Form& form, const yaml::Node& node) {
  switch (form.kind) {
    case Form::Kind::null:
      return node.is_null();
    case Form::Kind::word:
      return node.as_string() && std::ranges::find(form.words, node.text) != form.words.end();
    case Form::Kind::integer:
      return node.as_number() && whole(*node.as_number()) && within(form, *node.as_number());
    case Form::Kind::number:
      return node.as_number() && within(form, *node.as_number());
    case Form::Kind::bytes:
      return bytes_of(node).has_value();
    case Form::Kind::flag:
      return node.as_bool().has_value();
    case Form::Kind::text:
      return node.as_string() && !node.text.empty();
    case Form::Kind::path:
      return node.as_string() && (node.text.find('/') != std::string::npos || node.text.ends_with(form.name));
    case Form::Kind::expression:
      return node.as_string() && node.text.starts_with("${") && node.text.find('}') == node.text.size() - 1;
    case Form::Kind::list:
    case Form::Kind::map:
    case Form::Kind::section:
    case Form::Kind::tree:
    case Form::Kind::reference:
      return false;
  }
  return false;
}

const CheckedValue* Checked::find(std::string_view path) const {
  const auto found = values.find(path);
  return found == values.end() ? nullptr : &found->second;
}

const yaml::Node& Checked::node(std::string_view path) const {
  static const yaml::Node null;
  const CheckedValue* value = find(path);
  return value == nullptr ? null : value->node;
}

Checked check(const std::vector<FieldDef>& fields, const yaml::Node& root, Words words) {
  Checked out;
  if (!root.is_mapping()) {
    const char* what = root.is_null() ? "the file is empty" : "the file is not a mapping";
    out.mistakes.push_back(root.at("", what, one_text(form::section(fields))));
    return out;
  }
  Checker(out, words).section(fields, root, root, "");
  return out;
}

std::string allowed_text(const std::vector<Form>& forms) {
  std::vector<std::string> texts;
  for (const Form& form : forms) texts.push_back(one_text(form));
  return fmt::format("{}", fmt::join(texts, " or "));
}

void sort_mistakes(std::vector<Diagnostic>& mistakes) {
  const auto place = [](const Diagnostic& mistake) {
    const bool override_text = mistake.file == kCommandLine;
    return std::tuple(override_text, mistake.line, override_text ? 0 : mistake.column);
  };
  std::ranges::stable_sort(mistakes, {}, place);
}

}  // namespace trainer
