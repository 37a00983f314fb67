// Placing: offsets for what is alive at known times, so that nothing overlaps what is alive with it and little memory
// is lost between. Knows nothing of plans: memory.h says what is placed.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace trainer {

/// From the first access to the last, by issue index; -1: never.
struct Lifetime {
  std::int32_t first = -1;
  std::int32_t last = -1;
};

/// Something that needs a place: a multiple of kBufferAlignment.
struct Placed {
  std::int64_t bytes = 0;
  std::span<const Lifetime> lives;  ///< in order, disjoint, at least one
  std::int64_t offset = -1;
};

/// Sets every offset, to at least `base`, and returns the end of what is placed highest. Lifetimes are below
/// `num_instructions`. Large ones are placed first, of equal ones the first; each in the smallest gap that takes it.
std::int64_t place(std::vector<Placed>& items, std::int64_t base, std::size_t num_instructions);

/// The same in a fraction of the time where a program does the same over and over: `begins` are the instructions that
/// begin its segments, 0 the first. What lives within one segment is placed in a block of that segment's own, once for
/// all segments that are alike, and then the blocks are placed with the rest. Needs somewhat more memory. `bundled`:
/// what lives from one segment to another is one block too, as long as any of it lives; that takes still less time, and
/// more memory.
std::int64_t place_in_blocks(std::vector<Placed>& items, std::span<const std::int32_t> begins, std::int64_t base,
                             std::size_t num_instructions, bool bundled = false);

/// The most that is alive at once, on top of `base`: no placing ends below it.
std::int64_t most_alive(const std::vector<Placed>& items, std::int64_t base, std::size_t num_instructions);

}  // namespace trainer
