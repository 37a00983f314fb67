// Offsets by liveness. Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020,
// section 5 ("greedy by size"): large buffers first, each at the lowest offset where nothing placed overlaps it in
// time.
#include "engine/plan/placing.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <utility>

#include "engine/core/signature.h"

namespace trainer {
namespace {

// Addresses in use: disjoint, ascending, and what touches is one.
class Occupied {
 public:
  using Range = std::pair<std::int64_t, std::int64_t>;  // [first, second)

  void add(std::int64_t first, std::int64_t last) {
    const auto from = std::lower_bound(ranges_.begin(), ranges_.end(), first,
                                       [](const Range& range, std::int64_t at) { return range.second < at; });
    auto to = from;
    for (; to != ranges_.end() && to->first <= last; ++to)
      first = std::min(first, to->first), last = std::max(last, to->second);
    if (from == to) {
      ranges_.insert(from, {first, last});
    } else {
      *from = {first, last};
      ranges_.erase(std::next(from), to);
    }
  }

  /// Adds all of another. Few ranges are looked up one by one; many are merged in one pass, by way of `merged`.
  void add(const Occupied& other, std::vector<Range>& merged) {
    constexpr std::size_t kFew = 4;
    if (ranges_.empty()) {
      ranges_ = other.ranges_;
    } else if (other.ranges_.size() <= kFew) {
      for (const auto& [first, last] : other.ranges_) add(first, last);
    } else {
      merged.clear();
      auto a = ranges_.begin();
      auto b = other.ranges_.begin();
      while (a != ranges_.end() || b != other.ranges_.end()) {
        const Range& next = b == other.ranges_.end() || (a != ranges_.end() && a->first < b->first) ? *a++ : *b++;
        if (merged.empty() || next.first > merged.back().second)
          merged.push_back(next);
        else
          merged.back().second = std::max(merged.back().second, next.second);
      }
      ranges_.swap(merged);
    }
  }

  void clear() { ranges_.clear(); }
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

// Where what is placed lies, over time: a segment tree over instructions. An item is noted in the few largest spans
// that its lifetime covers, and in all spans that hold one of these, so a newcomer meets a few short lists instead of
// everything alive with it.
class Placer {
 public:
  Placer(std::int64_t base, std::size_t num_instructions)
      : base_(base), width_(std::bit_ceil(num_instructions)), spans_(2 * width_) {}

  std::int64_t place(std::span<const Lifetime> lives, std::int64_t bytes) {
    taken_.clear();
    const auto take = [&](const Occupied& occupied) { taken_.add(occupied, merged_); };
    for (const Lifetime& life : lives)
      for_each_span(
          life, [&](Span& covered) { take(covered.sometimes); }, [&](Span& cut) { take(cut.always); });
    std::int64_t best = -1, best_gap = 0, at = base_;
    for (const auto& [first, last] : taken_.ranges()) {
      const std::int64_t gap = first - at;
      if (gap >= bytes && (best < 0 || gap < best_gap)) best = at, best_gap = gap;
      at = std::max(at, last);
    }
    if (best < 0) best = at;
    const std::int64_t end = best + bytes;
    const auto note = [&](Span& covered) {
      covered.always.add(best, end);
      covered.sometimes.add(best, end);
    };
    for (const Lifetime& life : lives) for_each_span(life, note, [&](Span& cut) { cut.sometimes.add(best, end); });
    end_ = std::max(end_, end);
    return best;
  }

  std::int64_t end() const { return std::max(end_, base_); }

 private:
  struct Span {
    Occupied always;     // by what lives through this span, and not through the one that holds it
    Occupied sometimes;  // by any that live in it
  };

  // The fewest spans that make up a lifetime, and the larger ones that it cuts: those that hold one of these and reach
  // beyond it.
  template <typename Covered, typename Cut>
  void for_each_span(const Lifetime& life, const Covered& covered, const Cut& cut) {
    const std::size_t first = static_cast<std::size_t>(life.first) + width_,
                      last = static_cast<std::size_t>(life.last) + width_;
    for (std::size_t a = first, b = last + 1; a < b; a /= 2, b /= 2) {
      if (a % 2 == 1) covered(spans_[a++]);
      if (b % 2 == 1) covered(spans_[--b]);
    }
    for (int level = 1; (width_ >> level) > 0; ++level) {
      const std::size_t a = first >> level, b = last >> level;
      const bool before = a << level != first, behind = (b + 1) << level != last + 1;
      if (before || (a == b && behind)) cut(spans_[a]);
      if (a != b && behind) cut(spans_[b]);
    }
  }

  const std::int64_t base_;
  const std::size_t width_;
  std::int64_t end_ = 0;
  // Of width_ instructions, its halves (2, 3), theirs (4 to 7), …: children of i are 2i, 2i + 1.
  std::vector<Span> spans_;
  Occupied taken_;
  std::vector<Occupied::Range> merged_;
};

// What lives within a segment, or from one to another, by the order of the items.
struct Segment {
  std::vector<std::size_t> items;
  std::int32_t begin = 0;
  Lifetime life;  // of all of them

  void add(std::size_t item, const Lifetime& its) {
    life = items.empty() ? its : Lifetime{std::min(life.first, its.first), std::max(life.last, its.last)};
    items.push_back(item);
  }
};

// `within`: what lives within segments that have any of that. `across`: the rest, each by itself, or where it is
// `bundled` all that lives from one segment to another together.
void split(const std::vector<Placed>& items, std::span<const std::int32_t> begins, std::size_t num_instructions,
           bool bundled, std::vector<Segment>& within, std::vector<Segment>& across) {
  std::vector<std::size_t> segment_at(num_instructions);
  within.resize(begins.size());
  for (std::size_t s = 0; s < begins.size(); ++s) {
    const std::size_t end = s + 1 < begins.size() ? static_cast<std::size_t>(begins[s + 1]) : num_instructions;
    within[s].begin = begins[s];
    std::fill(segment_at.begin() + begins[s], segment_at.begin() + static_cast<std::ptrdiff_t>(end), s);
  }
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> bundle_of;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Lifetime life{items[i].lives.front().first, items[i].lives.back().last};
    const std::size_t from = segment_at[static_cast<std::size_t>(life.first)],
                      to = segment_at[static_cast<std::size_t>(life.last)];
    if (from == to) {
      within[from].add(i, life);
    } else if (!bundled || items[i].lives.size() > 1) {
      across.emplace_back().add(i, life);
    } else {
      const auto [at, added] = bundle_of.try_emplace({from, to}, across.size());
      if (added) across.emplace_back();
      across[at->second].add(i, life);
    }
  }
  std::erase_if(within, [](const Segment& segment) { return segment.items.empty(); });
}

// Segments with the same pattern are placed alike: bytes and times of their items.
using Pattern = std::vector<std::int64_t>;

Pattern pattern_of(const Segment& segment, const std::vector<Placed>& items) {
  Pattern pattern;
  for (const std::size_t item : segment.items) {
    pattern.push_back(items[item].bytes);
    for (const Lifetime& life : items[item].lives) {
      pattern.push_back(life.first - segment.begin);
      pattern.push_back(life.last - segment.begin);
    }
  }
  return pattern;
}

struct PlacedBlock {
  std::vector<std::int64_t> offsets;  // of the segment's items
  std::int64_t bytes = 0;
};

PlacedBlock block_of(const Segment& segment, const std::vector<Placed>& items) {
  std::vector<Lifetime> lives;
  for (const std::size_t item : segment.items)
    for (const Lifetime& life : items[item].lives)
      lives.push_back({life.first - segment.begin, life.last - segment.begin});
  std::vector<Placed> own;
  std::size_t at = 0;
  for (const std::size_t item : segment.items) {
    const std::size_t count = items[item].lives.size();
    own.push_back({items[item].bytes, std::span(lives).subspan(at, count)});
    at += count;
  }
  PlacedBlock block;
  block.bytes = place(own, 0, static_cast<std::size_t>(segment.life.last - segment.begin) + 1);
  for (const Placed& one : own) block.offsets.push_back(one.offset);
  return block;
}

}  // namespace

std::int64_t place(std::vector<Placed>& items, std::int64_t base, std::size_t num_instructions) {
  std::vector<std::pair<std::int64_t, std::size_t>> order;  // what is largest, and then first, is least
  order.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) order.emplace_back(-items[i].bytes, i);
  std::sort(order.begin(), order.end());
  Placer placer(base, num_instructions);
  for (const auto& [_, i] : order) items[i].offset = placer.place(items[i].lives, aligned(items[i].bytes));
  return placer.end();
}

std::int64_t place_in_blocks(std::vector<Placed>& items, std::span<const std::int32_t> begins, std::int64_t base,
                             std::size_t num_instructions, bool bundled) {
  std::vector<Segment> segments, bundles;
  split(items, begins, num_instructions, bundled, segments, bundles);
  std::map<Pattern, PlacedBlock> blocks;
  std::vector<const PlacedBlock*> block_of_segment;
  std::vector<Placed> outer;
  for (const Segment& segment : segments) {
    const auto [at, added] = blocks.try_emplace(pattern_of(segment, items));
    if (added) at->second = block_of(segment, items);
    block_of_segment.push_back(&at->second);
    outer.push_back({at->second.bytes, {&segment.life, 1}});
  }
  for (const Segment& bundle : bundles) {
    const bool one = bundle.items.size() == 1;
    std::int64_t bytes = 0;
    for (const std::size_t item : bundle.items) bytes += one ? items[item].bytes : aligned(items[item].bytes);
    outer.push_back({bytes, one ? items[bundle.items[0]].lives : std::span(&bundle.life, 1)});
  }
  const std::int64_t end = place(outer, base, num_instructions);
  for (std::size_t s = 0; s < segments.size(); ++s)
    for (std::size_t i = 0; i < segments[s].items.size(); ++i)
      items[segments[s].items[i]].offset = outer[s].offset + block_of_segment[s]->offsets[i];
  for (std::size_t b = 0; b < bundles.size(); ++b) {
    std::int64_t at = outer[segments.size() + b].offset;
    for (const std::size_t item : bundles[b].items) {
      items[item].offset = at;
      at += aligned(items[item].bytes);
    }
  }
  return end;
}

std::int64_t most_alive(const std::vector<Placed>& items, std::int64_t base, std::size_t num_instructions) {
  std::vector<std::int64_t> change(num_instructions + 1, 0);
  for (const Placed& item : items)
    for (const Lifetime& life : item.lives) {
      change[static_cast<std::size_t>(life.first)] += aligned(item.bytes);
      change[static_cast<std::size_t>(life.last) + 1] -= aligned(item.bytes);
    }
  std::int64_t most = base, live = base;
  for (const std::int64_t by : change) most = std::max(most, live += by);
  return most;
}

}  // namespace trainer
