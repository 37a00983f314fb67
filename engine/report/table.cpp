// Columns that line up.
#include "engine/report/table.h"

#include <algorithm>
#include <string_view>

namespace trainer::report {
namespace {

// Characters, of UTF-8.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

// Digits and what stands among them, with a unit of size behind them or not: "1,234", "12.5%", "1/4", "-3e-7", "1.5
// GiB".
bool is_number(std::string_view text) {
  for (const std::string_view unit : {" B", " KiB", " MiB", " GiB", " TiB", " PiB"})
    if (text.ends_with(unit)) text.remove_suffix(unit.size());
  return text.find_first_not_of("0123456789,.%/+-e") == std::string_view::npos;
}

}  // namespace

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

}  // namespace trainer::report
