// The nearest name, for "did you mean".
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace trainer {

/// The candidate with the smallest edit distance to `word` (optimal string alignment: insertions, deletions,
/// substitutions and swaps of neighbours, letter case ignored), if that is at most a third of the longer one's length,
/// rounded up; of equals the one whose length is nearest, then the first. Empty if none is near.
std::string nearest(std::string_view word, std::span<const std::string_view> candidates);

/// Whether `word` is `meant` with one letter wrong, missing, too many or swapped.
bool is_slip(std::string_view word, std::string_view meant);

}  // namespace trainer
