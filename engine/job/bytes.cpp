// How an amount of memory is parsed.
#include "engine/job/bytes.h"

#include <array>
#include <cmath>
#include <string_view>

#include "engine/job/expression.h"
#include "engine/job/fields.h"

namespace trainer {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 4> kUnits{{{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}}};

bool digits(std::string_view text, std::size_t least, std::size_t most) {
  return text.size() >= least && text.size() <= most && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// What kBytesPattern takes before the unit: no sign, no exponent, no leading zero but the one before a point.
bool plain_number(std::string_view text) {
  const std::size_t point = text.find('.');
  const std::string_view before = text.substr(0, point);
  if (!digits(before, 1, 6)) return false;
  if (point == std::string_view::npos) return before.front() != '0';
  const std::string_view after = text.substr(point + 1);
  return digits(after, 1, 3) && (before == "0" ? after.back() != '0' : before.front() != '0');
}

}  // namespace

std::optional<std::int64_t> bytes_of(const yaml::Node& node) {
  if (const std::optional<double> number = node.as_number()) {
    const std::optional<std::int64_t> bytes = whole(*number);
    return bytes && *bytes >= 1 ? bytes : std::nullopt;
  }
  const std::optional<std::string> text = node.as_string();
  if (!text) return std::nullopt;
  for (const Unit& unit : kUnits) {
    if (!text->ends_with(unit.name)) continue;
    std::string_view number = std::string_view(*text).substr(0, text->size() - unit.name.size());
    if (number.ends_with(' ')) number.remove_suffix(1);
    if (!plain_number(number)) return std::nullopt;
    return static_cast<std::int64_t>(std::floor(std::stod(std::string(number)) * unit.bytes));
  }
  return std::nullopt;
}

}  // namespace trainer
