// Values of graph files.
#include "engine/transform/file_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trainer {
namespace {

constexpr std::string_view kNodeKeys[] = {"name", "op", "input", "init", "if"};

constexpr double kMostSize = 2147483647;  // so that products of two sizes are exact

std::string range_of(const AttributeDef& def) {
  const std::string kind = def.type == AttributeDef::Type::integer ? "an integer" : "a number";
  if (std::isfinite(def.below)) return fmt::format("{}, at least {} and below {}", kind, def.least, def.below);
  if (def.type == AttributeDef::Type::integer)
    return fmt::format("{}, {} to {}", kind, std::max(def.least, -kMostSize), kMostSize);
  return std::isfinite(def.least) ? fmt::format("{}, {} {}", kind, def.above ? "above" : "at least", def.least) : kind;
}

}  // namespace

void FileValues::wrong(const yaml::Node& node, const std::string& path, const std::string& allowed) {
  Diagnostic& diagnostic = mistakes_.add(node, path, "wrong kind of value");
  diagnostic.value = node.brief();
  diagnostic.allowed = allowed;
}

bool FileValues::need_mapping(const yaml::Node& node, const std::string& path, const std::string& allowed) {
  if (!node.is_mapping()) wrong(node, path, allowed);
  return node.is_mapping();
}

bool FileValues::need_sequence(const yaml::Node& node, const std::string& path, const std::string& allowed) {
  if (!node.is_sequence()) wrong(node, path, allowed);
  return node.is_sequence();
}

void FileValues::check_keys(const yaml::Node& node, const std::string& path, const std::string& message,
                            std::span<const std::string_view> allowed) {
  for (const yaml::Node& key : node.keys)
    if (std::find(allowed.begin(), allowed.end(), key.text) == allowed.end())
      mistakes_.unknown(key, path.empty() ? key.text : path + "." + key.text, message, key.text, allowed);
}

void FileValues::expression_mistake(const ExpressionError& error, const yaml::Node& node, const std::string& path) {
  yaml::Node place = node;  // Points at the character itself where the text stands on one line as it is.
  if (node.source != nullptr && node.source->line(node.line).find(node.text) != std::string::npos)
    place.column += static_cast<int>(error.offset) + (node.quoted ? 1 : 0);
  Diagnostic& diagnostic = mistakes_.add(place, path, error.what());
  diagnostic.value = node.text;
  diagnostic.suggestion = error.suggestion;
}

void FileValues::wrong_value(const yaml::Node& node, const std::string& path, const ParamValue& value,
                             const std::string& allowed) {
  Diagnostic& diagnostic = mistakes_.add(node, path, "wrong kind of value");
  diagnostic.value = fmt::format("{} = {}", node.brief(), text_of(value));
  diagnostic.allowed = allowed;
}

std::optional<ParamValue> FileValues::evaluated(const yaml::Node& node, const std::string& path) {
  if (!node.is_scalar()) return {};
  try {
    return evaluate_template(node.text, variables_);
  } catch (const ExpressionError& error) {
    expression_mistake(error, node, path);
    return ParamValue();
  }
}

bool FileValues::is_null(const yaml::Node& node) const {
  try {
    const std::optional<ParamValue> value = node.is_scalar() ? evaluate_template(node.text, variables_) : std::nullopt;
    return value && value->is_null();
  } catch (const ExpressionError&) {
    return false;  // told where the value is read
  }
}

std::optional<ParamValue> FileValues::value(const yaml::Node& node, const std::string& path) {
  if (node.is_sequence()) {
    ParamValue::List items;
    for (const yaml::Node& item : node.items) {
      const std::optional<ParamValue> one = item.is_sequence() ? std::nullopt : value(item, path);
      if (!one && item.is_sequence()) wrong(item, path, "a number, true, false, a word or null");
      if (!one) return {};
      items.push_back(*one);
    }
    return ParamValue(std::move(items));
  }
  const std::size_t before = mistakes_.count();
  if (const std::optional<ParamValue> value = evaluated(node, path))
    return mistakes_.count() == before ? value : std::nullopt;
  const std::optional<ParamValue> value = value_of(node);
  if (!value) wrong(node, path, "a number, true, false, a word, null, or a list of these");
  return value;
}

std::optional<double> FileValues::number(const yaml::Node& node, const std::string& path) {
  if (const std::optional<double> value = node.as_number()) return value;
  const std::size_t before = mistakes_.count();
  const std::optional<ParamValue> value = evaluated(node, path);
  if (value && value->number() != nullptr) return *value->number();
  if (mistakes_.count() != before) return {};
  if (value)
    wrong_value(node, path, *value, "a number");
  else
    wrong(node, path, "a number or \"${expression}\"");
  return {};
}

std::optional<std::int64_t> FileValues::integer(const yaml::Node& node, const std::string& path) {
  if (const std::optional<std::int64_t> value = node.as_integer()) return value;
  const std::optional<double> value = number(node, path);
  if (!value) return {};
  if (const std::optional<std::int64_t> result = whole(*value)) return result;
  Diagnostic& diagnostic = mistakes_.add(node, path, fmt::format("must be a whole number, but is {}", *value));
  diagnostic.value = node.brief();
  return {};
}

std::optional<bool> FileValues::flag(const yaml::Node& node, const std::string& path) {
  if (const std::optional<bool> value = node.as_bool()) return value;
  const std::size_t before = mistakes_.count();
  const std::optional<ParamValue> value = evaluated(node, path);
  if (value && value->number() != nullptr && (*value->number() == 0 || *value->number() == 1))
    return *value->number() == 1;
  if (mistakes_.count() != before) return {};
  if (value)
    wrong_value(node, path, *value, "true or false");
  else
    wrong(node, path, "true or false");
  return {};
}

std::optional<std::string> FileValues::word(const yaml::Node& node, const std::string& path) {
  const std::size_t before = mistakes_.count();
  const std::optional<ParamValue> value = evaluated(node, path);
  if (!value) return text(node, path);
  if (value->word() != nullptr && !value->word()->empty()) return *value->word();
  if (mistakes_.count() == before) wrong_value(node, path, *value, "a word");
  return {};
}

std::optional<std::string> FileValues::text(const yaml::Node& node, const std::string& path) {
  if (const std::optional<std::string> value = node.as_string(); value && !value->empty()) return value;
  wrong(node, path, "a name");
  return {};
}

std::optional<std::string> FileValues::substituted(const yaml::Node& node, const std::string& path) {
  const std::optional<std::string> written = text(node, path);
  try {
    return written ? std::optional(substitute(*written, variables_)) : std::nullopt;
  } catch (const ExpressionError& error) {
    expression_mistake(error, node, path);
    return {};
  }
}

std::optional<std::string> FileValues::name(const yaml::Node& node, const std::string& path) {
  const std::optional<std::string> name = substituted(node, path);
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-'; };
  if (!name || (std::all_of(name->begin(), name->end(), fits) && *name != "block.input")) return name;
  wrong(node, path, "letters, digits, '_', '-' and '.' (and not block.input)");
  return {};
}

std::optional<std::vector<std::pair<std::string, const yaml::Node*>>> FileValues::names(const yaml::Node& node,
                                                                                        const std::string& path) {
  std::vector<std::pair<std::string, const yaml::Node*>> list;
  const auto read = [&](const yaml::Node& item) {
    const std::optional<std::string> name = substituted(item, path);
    if (name) list.emplace_back(*name, &item);
    return name.has_value();
  };
  if (node.is_scalar()) return read(node) ? std::optional(list) : std::nullopt;
  if (!need_sequence(node, path, "the name of a node, or a list of names")) return {};
  bool all = true;
  for (const yaml::Node& item : node.items) all = read(item) && all;
  return all ? std::optional(list) : std::nullopt;
}

std::optional<Init> FileValues::init(const yaml::Node& node, const std::string& path) {
  if (node.is_scalar() && node.text == "zeros") return Init{};
  if (node.is_scalar() && node.text == "ones") return Init{.constant = 1};
  if (node.is_scalar() && node.text == "sinusoids") return Init{.sinusoids = true};
  const std::string kind = node.is_mapping() && node.items.size() == 1 ? node.keys[0].text : "";
  if (kind != "normal" && kind != "uniform" && kind != "constant") {
    wrong(node, path, "{normal: stddev}, {uniform: bound}, {constant: value}, zeros, ones or sinusoids");
    return {};
  }
  const std::optional<double> value = number(node.items[0], path + "." + kind);
  if (!value) return {};
  if (kind != "constant" && *value < 0) {
    wrong(node.items[0], path + "." + kind, "a number, at least 0");
    return {};
  }
  if (kind == "normal") return Init{.stddev = *value};
  return kind == "uniform" ? Init{.uniform = *value} : Init{.constant = *value};
}

std::optional<std::int64_t> FileValues::dim(const yaml::Node& node, const std::string& path) {
  if (node.is_scalar() && !node.quoted)
    if (const auto at = variables_.find(node.text); at != variables_.end() && at->second.number() != nullptr)
      if (const std::optional<std::int64_t> size = whole(*at->second.number())) return size;
  return integer(node, path);
}

std::optional<Attributes> FileValues::attributes(const OpDef& def, const yaml::Node& node, const std::string& name) {
  std::vector<std::string_view> allowed(std::begin(kNodeKeys), std::end(kNodeKeys));
  for (const AttributeDef& attribute : record(def.op).attributes)
    if (attribute.in_file()) allowed.push_back(attribute.name);
  check_keys(node, name, "unknown attribute of " + std::string(name_of(def.op)), allowed);
  Attributes given;
  bool complete = true;
  for (const AttributeDef& attribute_def : record(def.op).attributes) {
    if (!attribute_def.in_file()) continue;
    const yaml::Node* value = node.find(attribute_def.name);
    if (value != nullptr && is_null(*value)) value = nullptr;
    const std::string path = name + "." + std::string(attribute_def.name);
    if (value != nullptr) {
      const std::optional<Attribute> read = attribute(attribute_def, *value, path);
      if (read) given.set(attribute_def.name, *read);
      complete = complete && read;
    } else if (attribute_def.required()) {
      mistakes_.add(node, path, std::string(name_of(def.op)) + " needs `" + std::string(attribute_def.name) + "`")
          .allowed = std::string(attribute_def.help);
      complete = false;
    } else if (attribute_def.otherwise) {
      given.set(attribute_def.name, *attribute_def.otherwise);
    }
  }
  return complete ? std::optional(given) : std::nullopt;
}

std::optional<Attribute> FileValues::attribute(const AttributeDef& def, const yaml::Node& node,
                                               const std::string& path) {
  switch (def.type) {
    case AttributeDef::Type::flag: {
      const std::optional<bool> value = flag(node, path);
      return value ? std::optional<Attribute>(*value) : std::nullopt;
    }
    case AttributeDef::Type::integer:
    case AttributeDef::Type::real:
      return ranged(def, node, path);
    case AttributeDef::Type::choice: {
      const std::optional<std::string> chosen = node.is_scalar() ? word(node, path) : std::nullopt;
      if (!chosen && node.is_scalar()) return {};
      if (chosen && std::find(def.choices.begin(), def.choices.end(), *chosen) != def.choices.end())
        return Attribute(*chosen);
      mistakes_.unknown(node, path, "unknown value", chosen.value_or(node.brief()), def.choices);
      return {};
    }
    case AttributeDef::Type::rope:
      return rope(node, path);
    case AttributeDef::Type::text:
    case AttributeDef::Type::node: {
      const std::optional<std::string> value = text(node, path);
      return value ? std::optional<Attribute>(*value) : std::nullopt;
    }
    case AttributeDef::Type::dims:
      return dims(node, path);
    case AttributeDef::Type::pieces:
      return pieces(node, path);
  }
  return {};
}

std::optional<Attribute> FileValues::ranged(const AttributeDef& def, const yaml::Node& node, const std::string& path) {
  const bool whole_number = def.type == AttributeDef::Type::integer;
  std::optional<double> value;
  if (!whole_number)
    value = number(node, path);
  else if (const auto integral = integer(node, path))
    value = static_cast<double>(*integral);
  if (!value) return {};
  if ((def.above ? *value > def.least : *value >= def.least) && *value < def.below &&
      (!whole_number || std::abs(*value) <= kMostSize)) {
    if (whole_number) return static_cast<std::int64_t>(*value);
    return *value;
  }
  Diagnostic& diagnostic = mistakes_.add(node, path, "out of range");
  diagnostic.value = node.as_number() ? node.brief() : fmt::format("{} = {}", node.brief(), *value);
  diagnostic.allowed = range_of(def);
  return {};
}

std::optional<Attribute> FileValues::dims(const yaml::Node& node, const std::string& path) {
  if (!need_sequence(node, path, "a list of sizes, of which one may be -1")) return {};
  std::string text;
  for (const yaml::Node& item : node.items) {
    const std::optional<std::int64_t> size = dim(item, path);
    if (!size) return {};
    text += (text.empty() ? "" : ",") + std::to_string(*size);
  }
  return Attribute(text);
}

std::optional<Attribute> FileValues::pieces(const yaml::Node& node, const std::string& path) {
  static const std::string kAllowed = "names and sizes of pieces: {gate: 128, up: 128}";
  if (!need_mapping(node, path, kAllowed)) return {};
  if (node.items.empty()) {
    wrong(node, path, kAllowed);
    return {};
  }
  std::string text;
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    const std::optional<std::string> piece = name(node.keys[i], path);
    if (!piece) return {};
    const std::string at = path + "." + node.keys[i].text;
    if (*piece != node.keys[i].text) {
      wrong(node.keys[i], at, "the name of a piece, without {index}");
      return {};
    }
    const std::optional<std::int64_t> size = dim(node.items[i], at);
    if (!size) return {};
    if (*size < 1 || static_cast<double>(*size) > kMostSize) {
      wrong(node.items[i], at, fmt::format("a size, 1 to {}", kMostSize));
      return {};
    }
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", *piece, *size);
  }
  return Attribute(text);
}

}  // namespace trainer
