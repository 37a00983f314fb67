// How the nearest names are found: by edit distance, where `*` costs nothing; one name for all layers.
#include "engine/transform/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "engine/core/glob.h"

namespace trainer {
namespace {

constexpr std::size_t kMostNames = 3;

/// The fewest letters to insert, delete or replace for `glob` to match `name`.
std::size_t distance(std::string_view glob, std::string_view name) {
  std::vector<std::size_t> last(name.size() + 1), row(name.size() + 1);
  for (std::size_t j = 0; j <= name.size(); ++j) last[j] = j;
  for (const char letter : glob) {
    const bool star = letter == '*';
    row[0] = star ? last[0] : last[0] + 1;
    for (std::size_t j = 1; j <= name.size(); ++j)
      row[j] = star ? std::min(last[j], row[j - 1])
                    : std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter == name[j - 1] ? 0 : 1)});
    std::swap(last, row);
  }
  return last[name.size()];
}

/// The name with each run of digits as one sign: alike for all layers.
std::string without_numbers(std::string_view name) {
  std::string text;
  for (const char letter : name) {
    const bool digit = std::isdigit(static_cast<unsigned char>(letter)) != 0;
    if (!digit || !text.ends_with('#')) text += digit ? '#' : letter;
  }
  return text;
}

}  // namespace

std::string nearest_names(std::string_view glob, std::span<const std::string_view> names) {
  const auto letters =
      static_cast<std::size_t>(std::count_if(glob.begin(), glob.end(), [](char letter) { return letter != '*'; }));
  std::vector<std::pair<std::size_t, std::string_view>> near;
  std::set<std::string> seen;
  for (const std::string_view name : names) {
    const std::size_t far = distance(glob, name);
    if (far <= (letters + 2) / 3 && seen.insert(without_numbers(name)).second) near.emplace_back(far, name);
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  if (near.size() > kMostNames) near.resize(kMostNames);
  std::string text;
  for (const auto& [far, name] : near) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

std::vector<bool> select(std::span<const std::string> globs, std::span<const std::string_view> names,
                         std::string_view what, std::string_view key, std::vector<SelectionMistake>& mistakes) {
  std::vector<bool> selected(names.size(), false);
  for (std::size_t i = 0; i < globs.size(); ++i) {
    bool any = false;
    for (std::size_t n = 0; n < names.size(); ++n) {
      if (!name_matches(globs[i], names[n])) continue;
      selected[n] = any = true;
    }
    if (!any)
      mistakes.push_back({fmt::format("{}[{}]", key, i), fmt::format("no {} matches \"{}\"", what, globs[i]),
                          nearest_names(globs[i], names)});
  }
  return selected;
}

}  // namespace trainer
