// "<tensor>.rows.<first>-<last>.of.<rows>", written and read.
#include "engine/core/rows_of.h"

#include <charconv>

namespace trainer {
namespace {

constexpr std::string_view kRows = ".rows.", kOf = ".of.";

/// Takes the number in front of `text` away.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

}  // namespace

std::string name_of(const RowsOf& rows) {
  return rows.tensor + std::string(kRows) + std::to_string(rows.first) + "-" + std::to_string(rows.last) +
         std::string(kOf) + std::to_string(rows.rows);
}

std::optional<RowsOf> named_rows(std::string_view name) {
  const std::size_t at = name.rfind(kRows);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view text = name.substr(at + kRows.size());
  const std::optional<std::int64_t> first = take_number(text);
  if (!first || !take(text, "-")) return std::nullopt;
  const std::optional<std::int64_t> last = take_number(text);
  if (!last || !take(text, kOf)) return std::nullopt;
  const std::optional<std::int64_t> rows = take_number(text);
  if (!rows || !text.empty() || *first >= *last || *last > *rows) return std::nullopt;
  return RowsOf{std::string(name.substr(0, at)), *first, *last, *rows};
}

std::string whole_name(std::string_view name) {
  const std::optional<RowsOf> rows = named_rows(name);
  return rows ? rows->tensor : std::string(name);
}

}  // namespace trainer
