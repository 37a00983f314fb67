// Param values from YAML and as text.
#include "engine/job/param_value.h"

#include <array>
#include <charconv>

#include "engine/job/expression.h"
#include "engine/job/yaml.h"

namespace trainer {
namespace {

std::string printed(double value) {
  std::array<char, 32> buffer;
  const std::optional<std::int64_t> integer = whole(value);
  const auto [end, error] = integer ? std::to_chars(buffer.data(), buffer.data() + buffer.size(), *integer)
                                    : std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return std::string(buffer.data(), end);
}

}  // namespace

std::string text_of(const ParamValue& value) {
  if (value.number() != nullptr) return printed(*value.number());
  if (value.word() != nullptr) return "'" + *value.word() + "'";
  if (value.list() == nullptr) return "null";
  std::string out;
  for (const ParamValue& item : *value.list()) out += (out.empty() ? "" : ", ") + text_of(item);
  return "[" + out + "]";
}

std::optional<ParamValue> value_of(const yaml::Node& node) {
  if (node.is_mapping()) return {};
  if (node.is_sequence()) {
    ParamValue::List items;
    for (const yaml::Node& item : node.items) {
      if (!item.is_scalar()) return {};
      items.push_back(*value_of(item));
    }
    return ParamValue(std::move(items));
  }
  if (node.is_null()) return ParamValue();
  if (const std::optional<bool> flag = node.as_bool()) return ParamValue(*flag ? 1.0 : 0.0);
  if (const std::optional<double> number = node.as_number()) return ParamValue(*number);
  return ParamValue(node.text);
}

}  // namespace trainer
