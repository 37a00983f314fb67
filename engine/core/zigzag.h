// A sequence in zigzag order over n ranks: it is 2n chunks of equal length, and rank r has chunks r and 2n − 1 − r, in
// this order. Under a causal mask every rank then has the same work, whichever rank's keys it meets: all pairs of
// chunks that see each other are half of all pairs. Sources: Llama 3 team, "The Llama 3 Herd of Models", 2024, section
// 3.3.2 (the order); Brandon et al., "Striped Attention", 2023 (why even work matters in a ring).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace trainer {

/// The chunk that is half 0 or 1 of a rank's part.
constexpr std::int64_t zigzag_chunk(std::int64_t rank, std::int64_t ranks, int half) {
  return half == 0 ? rank : 2 * ranks - 1 - rank;
}

/// The rank whose keys and values a rank has after so many shifts to the next rank.
constexpr std::int64_t ring_source(std::int64_t rank, std::int64_t ranks, std::int64_t step) {
  return (rank - step % ranks + ranks) % ranks;
}

/// A chunk of a rank's queries beside one of the keys that it has: halves of their parts, and by how many chunks the
/// queries come later.
struct ChunkPair {
  int queries = 0, keys = 0;
  std::int64_t apart = 0;
};

/// The pairs of a rank at a step of the ring of which queries see keys: in the order of queries, then of keys.
class ChunkPairs {
 public:
  constexpr ChunkPairs(std::int64_t rank, std::int64_t ranks, std::int64_t step, bool causal) {
    const std::int64_t source = ring_source(rank, ranks, step);
    for (int queries : {0, 1})
      for (int keys : {0, 1}) {
        const std::int64_t apart = zigzag_chunk(rank, ranks, queries) - zigzag_chunk(source, ranks, keys);
        if (!causal || apart >= 0) pairs_[count_++] = {queries, keys, apart};
      }
  }
  constexpr const ChunkPair* begin() const { return pairs_.data(); }
  constexpr const ChunkPair* end() const { return pairs_.data() + count_; }
  constexpr std::size_t size() const { return count_; }

 private:
  std::array<ChunkPair, 4> pairs_{};
  std::size_t count_ = 0;
};

}  // namespace trainer
