// How the section `gguf` is evaluated: names are matched by pattern, values are computed by expressions.
#include "engine/export/gguf_mapping.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/job/yaml.h"

namespace trainer::exporting {
namespace {

namespace fs = std::filesystem;
using Entries = FamilyEntries;

constexpr std::array<std::string_view, 12> kKeys{"architecture", "let",   "integers", "floats",   "words", "flags",
                                                 "tensors",      "names", "pairs",    "plus_one", "f32",   "refuse"};
constexpr std::string_view kWarn = "warn";

[[noreturn]] void fail(const yaml::Node& node, const std::string& what) { throw JobError({node.at("gguf", what)}); }

/// Whether `name` is `pattern`, whose `{}` is a number; that number as text.
std::optional<std::string> matched(std::string_view pattern, std::string_view name) {
  const std::size_t hole = pattern.find("{}");
  if (hole == std::string_view::npos) return pattern == name ? std::optional<std::string>("") : std::nullopt;
  const std::string_view before = pattern.substr(0, hole), after = pattern.substr(hole + 2);
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after))
    return std::nullopt;
  const std::string_view number = name.substr(before.size(), name.size() - before.size() - after.size());
  const bool digits = std::ranges::all_of(number, [](unsigned char c) { return std::isdigit(c) != 0; });
  return digits ? std::optional<std::string>(number) : std::nullopt;
}

ParamValue value_of_expression(const yaml::Node& expression, const Variables& variables) {
  try {
    return evaluate(expression.text, variables);
  } catch (const ExpressionError& error) {
    fail(expression, error.what());
  }
}

/// Of a key of the section that is a condition; `what` is its value.
bool holds(const std::string& condition, const yaml::Node& what, const Variables& variables) {
  yaml::Node node = what;
  node.text = condition;
  return value_of_expression(node, variables).truth();
}

double number_of(const ParamValue& value, const yaml::Node& origin) {
  if (value.number() == nullptr) fail(origin, "the value is no number: " + text_of(value));
  return *value.number();
}

std::int64_t integer_of(const ParamValue& value, const yaml::Node& origin) {
  const std::optional<std::int64_t> number = whole(number_of(value, origin));
  if (!number || *number < 0 || *number > 0xFFFFFFFFLL) fail(origin, "the value is no u32: " + text_of(value));
  return *number;
}

template <typename T, typename Each>
std::vector<T> list_of(const ParamValue& value, Each&& each) {
  std::vector<T> list;
  for (const ParamValue& one : *value.list()) list.push_back(each(one));
  return list;
}

GgufValue integer_value(const ParamValue& value, const yaml::Node& origin) {
  if (value.list() == nullptr) return static_cast<std::uint32_t>(integer_of(value, origin));
  return list_of<std::int32_t>(
      value, [&](const ParamValue& one) { return static_cast<std::int32_t>(integer_of(one, origin)); });
}

GgufValue flag_value(const ParamValue& value, const yaml::Node&) {
  if (value.list() == nullptr) return value.truth();
  return list_of<bool>(value, [](const ParamValue& one) { return one.truth(); });
}

GgufValue float_value(const ParamValue& value, const yaml::Node& origin) {
  return static_cast<float>(number_of(value, origin));
}

GgufValue word_value(const ParamValue& value, const yaml::Node& origin) {
  if (value.word() == nullptr) fail(origin, "the value is no word: " + text_of(value));
  return *value.word();
}

}  // namespace

/// The section with those of the families that this one is based on.
struct GgufMapping::Section {
  std::string architecture;
  Entries let, integers, floats, words, flags, tensors, names, pairs, refuse, warn;
  std::vector<std::string> plus_one, f32;

  void read(const std::string& file, const std::string& families) {
    const yaml::Node tree = yaml::read_file(file);
    if (const yaml::Node* base = tree.find("base")) read((fs::path(families) / base->text).string(), families);
    const yaml::Node* section = tree.find("gguf");
    if (section == nullptr) return;
    for (const yaml::Node& key : section->keys)
      if (key.text != kWarn && std::ranges::find(kKeys, key.text) == kKeys.end())
        fail(key, "unknown key of the section gguf: " + key.text);
    if (const yaml::Node* node = section->find("architecture")) architecture = node->text;
    for (const auto& [key, entries] :
         {std::pair("let", &let), std::pair("integers", &integers), std::pair("floats", &floats),
          std::pair("words", &words), std::pair("flags", &flags), std::pair("tensors", &tensors),
          std::pair("names", &names), std::pair("pairs", &pairs), std::pair("refuse", &refuse),
          std::pair("warn", &warn)})
      lay_over(*entries, section->find(key));
    for (const auto& [key, list] : {std::pair("plus_one", &plus_one), std::pair("f32", &f32)})
      if (const yaml::Node* node = section->find(key))
        for (const yaml::Node& item : node->items) list->push_back(item.text);
  }
};

GgufMapping::GgufMapping(const ModelFolder& folder, const std::string& configs_dir) : family_(folder.family) {
  Section section;
  const std::string families = (fs::path(configs_dir) / "families").string();
  section.read(families + "/" + folder.family + ".yaml", families);
  if (section.architecture.empty())
    throw DataError(folder.path + ": models of the family " + folder.family + " cannot be written as GGUF");
  architecture_ = section.architecture;
  plus_one_ = std::move(section.plus_one);
  f32_ = std::move(section.f32);

  Variables variables = folder.variables;
  for (const auto& [name, value] : folder.with) variables[name] = value;
  for (const auto& [name, expression] : section.let) variables[name] = value_of_expression(expression, variables);
  for (const auto& [condition, why] : section.refuse)
    if (holds(condition, why, variables))
      throw DataError(
          fmt::format("{}: cannot be a GGUF file that llama.cpp computes rightly: {}", folder.path, why.text));
  for (const auto& [condition, what] : section.warn)
    if (holds(condition, what, variables)) warnings_.push_back(what.text);
  const auto add = [&](const Entries& entries, auto&& as_value) {
    for (const auto& [name, expression] : entries) {
      const ParamValue value = value_of_expression(expression, variables);
      if (!value.is_null()) keys_.push_back({architecture_ + "." + name, as_value(value, expression)});
    }
  };
  add(section.integers, integer_value);
  add(section.floats, float_value);
  add(section.words, word_value);
  add(section.flags, flag_value);
  for (const auto& [name, expression] : section.tensors) {
    const ParamValue value = value_of_expression(expression, variables);
    if (value.is_null()) continue;
    if (value.list() == nullptr) fail(expression, "the value is no list: " + text_of(value));
    tensors_[name] =
        list_of<float>(value, [&](const ParamValue& one) { return static_cast<float>(number_of(one, expression)); });
  }
  for (const auto& [pattern, name] : section.names) names_.emplace_back(pattern, name.text);
  for (const auto& [pattern, heads] : section.pairs)
    pairs_[pattern] = integer_of(value_of_expression(heads, variables), heads);
}

GgufPlace GgufMapping::place(const std::string& parameter) const {
  const std::size_t dot = parameter.rfind('.');
  const std::string node = parameter.substr(0, dot), kind = dot == std::string::npos ? "" : parameter.substr(dot);
  const auto any = [&](const std::vector<std::string>& patterns) {
    return std::ranges::any_of(patterns,
                               [&](const std::string& pattern) { return matched(pattern, node).has_value(); });
  };
  for (const auto& [pattern, name] : names_) {
    const std::optional<std::string> number = matched(pattern, node);
    if (!number) continue;
    GgufPlace place{.name = name + kind};
    if (const std::size_t hole = place.name.find("{}"); hole != std::string::npos) place.name.replace(hole, 2, *number);
    for (const auto& [paired, heads] : pairs_)
      if (matched(paired, node)) place.pair_heads = heads;
    place.add = any(plus_one_) ? 1.0F : 0.0F;
    place.f32 = any(f32_);
    return place;
  }
  throw DataError(fmt::format("{}: the family {} has no name for it in GGUF", parameter, family_));
}

}  // namespace trainer::exporting
