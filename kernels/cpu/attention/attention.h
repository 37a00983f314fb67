// What preparation of attention hands to its loops: sizes and addresses. There are two ways (algorithm.h):
//
// - forward_loops.cpp, backward_loops.cpp: all arithmetic in f32, for every instruction set. bf16 is
//   widened where a head's rows are packed. Products run at the rate of the FMAs; vdpbf16ps in their place would halve
//   it (on Sapphire Rapids it issues every second cycle).
// - attention_amx_*_loops.cpp: bf16 products on AMX tiles, softmax in f32.
//
// Prefetching the rows that the next head will pack was tried and gained nothing.
#pragma once

#include <cstdint>

namespace trainer::kernels::cpu {

/// Queries and keys are worked on in blocks of this many; scratch is padded to whole blocks.
inline constexpr std::int64_t kAttentionBlock = 64;

/// Rows [begin, end) of a block hold queries [first, first + count()); those before are padding.
struct QueryRows {
  std::int64_t first = 0;
  int begin = 0, end = 0;
  [[gnu::always_inline]] constexpr int count() const { return end - begin; }
};

/// How a block of queries meets a block of keys: which they are, and that query i sees key j only where j ≤ i if
/// `diagonal`, and where j > i + beyond, keys before that being outside of its window.
struct AttentionBlock {
  int queries = 0, keys = 0;
  bool diagonal = false;
  int beyond = 0;

  /// Whether some queries do not see some keys.
  [[gnu::always_inline]] constexpr bool masked() const { return diagonal || cut(); }
  [[gnu::always_inline]] constexpr bool cut() const { return beyond > -static_cast<int>(kAttentionBlock); }
};

// Members are always inlined, as in bf16.h: loops of different instruction sets include this.
struct AttentionSizes {
  std::int64_t batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0;
  std::int64_t head_dim = 0, v_dim = 0;  ///< of q and k, and of v and o
  std::int64_t origin = 0;               ///< position of the first query; that of the first key is 0
  bool causal = true;
  bool bf16 = false;
  float scale = 0;            ///< on scores
  float softcap = 0;          ///< 0: none
  std::int64_t window = 0;    ///< a query at position p sees no key before p − window + 1; no window: beyond all keys
  std::int64_t q_stride = 0;  ///< elements from one token's q to the next token's; also of dq
  std::int64_t kv_stride = 0;   ///< the same for k and dk
  std::int64_t v_stride = 0;    ///< the same for v and dv
  std::int64_t lse_stride = 0;  ///< numbers from one head's lse to the next head's; as many as queries, or more
  std::int64_t turned = 0;      ///< elements of a head, from its first on, that RoPE turns; even
  bool interleaved = false;     ///< in pairs of neighbours, not of halves
  /// [keys][turned]: the cosines of a position's turned/2 angles, then their sines; null without RoPE.
  const float* rotation = nullptr;

  [[gnu::always_inline]] constexpr std::int64_t group() const { return heads / kv_heads; }
  [[gnu::always_inline]] constexpr std::int64_t key_blocks() const {
    return (keys + kAttentionBlock - 1) / kAttentionBlock;
  }
  [[gnu::always_inline]] constexpr std::int64_t padded_keys() const { return key_blocks() * kAttentionBlock; }
  /// Blocks of queries are cut by position, as blocks of keys are: a causal block of queries meets that of the same
  /// positions on the diagonal, and no other in part. Where the queries begin within a block, its rows before them are
  /// padding.
  [[gnu::always_inline]] constexpr std::int64_t first_block() const { return origin / kAttentionBlock; }
  [[gnu::always_inline]] constexpr std::int64_t query_blocks() const {
    return (origin + queries + kAttentionBlock - 1) / kAttentionBlock - first_block();
  }
  /// Queries of block `index`, counted from the first of the queries, see blocks of keys [first_seen, seen_blocks).
  [[gnu::always_inline]] constexpr std::int64_t first_seen(std::int64_t index) const {
    const std::int64_t key = (first_block() + index) * kAttentionBlock - window + 1;
    return key > 0 ? key / kAttentionBlock : 0;
  }
  [[gnu::always_inline]] constexpr std::int64_t seen_blocks(std::int64_t index) const {
    const std::int64_t own = first_block() + index + 1, all = key_blocks();
    return causal && own < all ? own : all;
  }
  /// Blocks of keys that the blocks of queries of a head see, all together.
  [[gnu::always_inline]] constexpr std::int64_t pairs_of_blocks() const {
    std::int64_t pairs = 0;
    for (std::int64_t index = 0; index < query_blocks(); ++index) pairs += seen_blocks(index) - first_seen(index);
    return pairs;
  }
  [[gnu::always_inline]] constexpr QueryRows rows_of(std::int64_t index) const {
    const std::int64_t position = (first_block() + index) * kAttentionBlock, past = origin + queries - position;
    const std::int64_t padding = origin > position ? origin - position : 0,
                       end = past < kAttentionBlock ? past : kAttentionBlock;
    return {position + padding - origin, static_cast<int>(padding), static_cast<int>(end)};
  }
  /// Block of queries `index` against block of keys `keys_index`, of which `keys` count.
  [[gnu::always_inline]] constexpr AttentionBlock block_of(std::int64_t index, std::int64_t keys_index, int queries,
                                                           int key_count) const {
    const std::int64_t apart = (first_block() + index - keys_index) * kAttentionBlock - window;
    return {queries, key_count, causal && keys_index == first_block() + index,
            apart > -kAttentionBlock ? static_cast<int>(apart) : -static_cast<int>(kAttentionBlock)};
  }
  /// Floats of a row in scratch: whole vectors of every instruction set.
  [[gnu::always_inline]] constexpr std::int64_t padded_dim() const { return (widest() + 15) / 16 * 16; }
  /// The same for tiles: whole steps of a sum over dims.
  [[gnu::always_inline]] constexpr std::int64_t tile_dim() const { return (widest() + 31) / 32 * 32; }
  [[gnu::always_inline]] constexpr std::int64_t widest() const { return head_dim > v_dim ? head_dim : v_dim; }
};

/// Addresses of one run; elements of q, k, v, o and their gradients are f32 or bf16 as AttentionSizes says.
struct AttentionOperands {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  const float* lse = nullptr;  ///< backward only
  const void *d_o = nullptr, *o = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  void* o_out = nullptr;  ///< forward only
  float* lse_out = nullptr;
};

}  // namespace trainer::kernels::cpu
