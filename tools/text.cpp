// Formatting.
#include "tools/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace trainer::tools {
namespace {

std::string scaled(double value, double step, const std::array<std::string_view, 6>& units) {
  std::size_t unit = 0;
  while (std::abs(value) >= step && unit + 1 < units.size()) {
    value /= step;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} {}", value, units[0]) : fmt::format("{:.1f} {}", value, units[unit]);
}

// Characters, of UTF-8.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

// Digits and what stands among them: "1,234", "12.5%", "1/4", "-3e-7".
bool is_number(const std::string& text) { return text.find_first_not_of("0123456789,.%/+-e") == std::string::npos; }

}  // namespace

std::string bytes_text(double bytes) { return scaled(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB", "PiB"}); }
std::string flops_text(double flops) { return scaled(flops, 1000, {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"}); }

std::string count_text(double count) {
  if (count < 1e6) return grouped(std::llround(count));
  return count < 1e9 ? fmt::format("{:.1f} million", count / 1e6) : fmt::format("{:.2f} billion", count / 1e9);
}

std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string Table::str(int indent) const {
  std::vector<std::size_t> widths;
  std::vector<bool> numbers;  // whether a column holds nothing else, its head aside
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    numbers.resize(widths.size(), true);
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], width_of(row[i]));
      if (&row != &rows_.front() && !is_number(row[i])) numbers[i] = false;
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line(static_cast<std::size_t>(indent), ' ');
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - width_of(row[i]), ' ');
      line += i == 0 ? "" : "  ";
      line += i > 0 && numbers[i] ? blanks + row[i] : row[i] + blanks;
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace trainer::tools
