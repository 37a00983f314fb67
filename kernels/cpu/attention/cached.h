// What attention_cached hands to its loops (cached_loops.cpp). Rows of heads are as in attention.h. A single new token
// is worked on here, on vectors along a head: its keys and values are read once, and that bounds it. Several go through
// the blocks of forward_loops.cpp, once their rows are turned.
#pragma once

#include <cstdint>

namespace trainer::kernels::cpu {

/// Rows of heads that are copied, turned by RoPE where there is a table (rows.h).
struct HeadCopy {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t heads = 0, dim = 0;  ///< of a row, in which heads lie side by side
  const float* table = nullptr;     ///< [rows][turned]; null: no rotation
  std::int64_t turned = 0;
  bool interleaved = false, bf16 = false;
};

/// Queries of one token that share a kv head, against some of its keys.
struct CachedPart {
  const void *q = nullptr, *k = nullptr, *v = nullptr;  ///< the first query, and the head's rows of the first key
  std::int64_t k_stride = 0, v_stride = 0;              ///< elements from one key to the next
  std::int64_t keys = 0, group = 0, head_dim = 0, v_dim = 0;
  float scale = 0, softcap = 0;
  bool bf16 = false;

  /// Floats of a row in scratch: whole vectors of every instruction set.
  [[gnu::always_inline]] static constexpr std::int64_t padded(std::int64_t n) { return (n + 15) / 16 * 16; }
  /// Floats of what comes of a query: the largest score and the sum of exponentials (in units of log2), and behind them
  /// the sum of values.
  [[gnu::always_inline]] constexpr std::int64_t result() const { return 16 + padded(v_dim); }
  /// Floats of scratch.
  [[gnu::always_inline]] constexpr std::int64_t scratch() const { return group * padded(head_dim) + 64; }
};

}  // namespace trainer::kernels::cpu
