// How near names are: by edit distance (Damerau's, with swapped neighbours), ignoring case.
#include "engine/job/nearest.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace trainer {
namespace {

constexpr std::size_t kLongest = 64;  // no name is longer, and the distance costs the product of the lengths

char folded(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const char x = folded(a[i - 1]), y = folded(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (x == y ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && x == folded(b[j - 2]) && folded(a[i - 2]) == y;
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view best;
  std::size_t least = kLongest;
  if (word.size() > kLongest) return {};
  const auto apart = [&](std::string_view other) {
    return std::max(word.size(), other.size()) - std::min(word.size(), other.size());
  };
  for (const std::string_view candidate : candidates) {
    const std::size_t far = distance(word, candidate);
    const bool nearer = far < least || (far == least && apart(candidate) < apart(best));
    if (nearer && far <= (std::max(word.size(), candidate.size()) + 2) / 3 && far < candidate.size()) {
      best = candidate;
      least = far;
    }
  }
  return std::string(best);
}

bool is_slip(std::string_view word, std::string_view meant) {
  return std::max(word.size(), meant.size()) <= kLongest && meant.size() > 3 && distance(word, meant) == 1;
}

}  // namespace trainer
