// A set of characters as ranges of code points: the classes of patterns, most of which have a few hundred ranges.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "engine/core/utf8.h"
#include "engine/tokenizer/unicode.h"

namespace trainer::tokenizer {

class CharacterSet {
 public:
  /// Adds `first` to `last`, both included. REQUIRES: first <= last < kNumCodePoints.
  void add(char32_t first, char32_t last) {
    ranges_.push_back({first, last});
    merged_ = ranges_.size() == 1;
    if (ranges_.size() >= kMostUnmerged) merge();
  }
  void add(std::span<const CodePointRange> ranges) {
    for (const CodePointRange& range : ranges) add(range.first, range.last);
  }
  void clear() { ranges_.clear(), merged_ = true; }

  /// The set's ranges in ascending order, with a gap between any two.
  const std::vector<CodePointRange>& ranges() {
    merge();
    return ranges_;
  }

  /// All code points that the set does not have.
  void invert() {
    merge();
    std::vector<CodePointRange> others;
    char32_t next = 0;
    for (const CodePointRange& range : ranges_) {
      if (range.first > next) others.push_back({next, range.first - 1});
      next = range.last + 1;
    }
    if (next < kNumCodePoints) others.push_back({next, kNumCodePoints - 1});
    ranges_ = std::move(others);
  }

 private:
  static constexpr std::size_t kMostUnmerged = 16384;  // no class of a pattern has so many ranges once merged

  void merge() {
    if (std::exchange(merged_, true)) return;
    std::ranges::sort(ranges_, {}, &CodePointRange::first);
    std::size_t kept = 0;
    for (const CodePointRange& range : ranges_) {
      if (kept > 0 && range.first <= ranges_[kept - 1].last + 1)
        ranges_[kept - 1].last = std::max(ranges_[kept - 1].last, range.last);
      else
        ranges_[kept++] = range;
    }
    ranges_.resize(kept);
  }

  std::vector<CodePointRange> ranges_;
  bool merged_ = true;
};

}  // namespace trainer::tokenizer
