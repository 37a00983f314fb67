// attention, forward: online softmax over blocks of keys (FlashAttention-2, algorithm 1). Scores are held transposed,
// [key][query], so that a vector holds 16 queries: largest score, sum and correction need no work across lanes, and k
// is read one element at a time as it lies. Scores are in units of log2: q carries scale · log2 e.
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/rows.h"
#include "kernels/cpu/attention/tiles.h"
#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
constexpr float kMasked = -1e30f;  // a score that vanishes beside any other, and does not overflow

struct Scratch {
  float *k, *v;                       // [padded_keys][width]
  float* q_t;                         // [width][kBlock], scaled
  float* o;                           // [kBlock][width], not yet divided by sum; before that, q as it was packed
  float* p;                           // [key][query]: scores, then probabilities times exp(lse - largest)
  float *largest, *sum, *correction;  // [kBlock]
};

Scratch carve(const AttentionSizes& s, float* at) {
  const std::int64_t head = s.padded_keys() * s.padded_dim(), block = kAttentionBlock * s.padded_dim();
  Scratch scratch{};
  scratch.k = at;
  scratch.v = scratch.k + head;
  scratch.q_t = scratch.v + head;
  scratch.o = scratch.q_t + block;
  scratch.p = scratch.o + block;
  scratch.largest = scratch.p + kAttentionBlock * kAttentionBlock;
  scratch.sum = scratch.largest + kAttentionBlock;
  scratch.correction = scratch.sum + kAttentionBlock;
  return scratch;
}

using Block = AttentionBlock;

/// Stores a tile of scores and takes it into each query's largest; keys that a query may not see and those beyond the
/// last are masked where `masked` says that the tile has such.
template <bool masked, typename Tile>
VEC_INLINE void finish_scores(const Scratch s, Block block, int first_key, int first_vec, const Tile& tile) {
#pragma GCC unroll 4
  for (int v = 0; v < tile.vecs; ++v) {
    const int query = (first_vec + v) * kLanes;
    const Visible visible(block, query);
    F32 top = load(s.largest + query);
#pragma GCC unroll 16
    for (int r = 0; r < tile.rows; ++r) {
      const int key = first_key + r;
      F32 score = tile.sum[r][v];
      if constexpr (masked) score = select(visible.key(key), score, splat(kMasked));
      store(s.p + key * kBlock + query, score);
      top = max(top, score);
    }
    store(s.largest + query, top);
  }
}

/// scores() with a softcap: p holds scale/softcap · scores, which become softcap · tanh of that, in units of log2.
void cap_scores(const Scratch s, Block block, float softcap_log2) {
  const int vecs = vecs_of(block.queries);
  for (int key = 0; key < round_up_16(block.keys); ++key) {
    for (int v = block.diagonal ? key / 16 * 16 / kLanes : 0; v < vecs; ++v) {
      const int query = v * kLanes;
      float* at = s.p + key * kBlock + query;
      const F32 score = select(Visible(block, query).key(key), tanh(load(at)) * splat(softcap_log2), splat(kMasked));
      store(at, score);
      store(s.largest + query, max(load(s.largest + query), score));
    }
  }
}

/// p = k·qᵀ, masked; largest = the largest of each query's scores so far. softcap_log2 0: none.
void scores(const Scratch s, const float* k, int width, int dims, Block block, float softcap_log2) {
  const int vecs = vecs_of(block.queries);
  const Strided a{k, width, 1};
  const auto all_dims = [=](int, int) { return Depth{0, dims}; };
  for (int row = 0; row < block.keys; row += 16) {
    if (softcap_log2 != 0)
      product(
          a, s.q_t, kBlock, row, row + 16, block.diagonal ? row / kLanes : 0, vecs,
          all_dims, [=](int key, int vec, auto& tile) __attribute__((always_inline)) {
            store_tile(tile, s.p + key * kBlock + vec * kLanes, kBlock);
          });
    else if (block.masked() || row + 16 > block.keys)
      product(
          a, s.q_t, kBlock, row, row + 16, block.diagonal ? row / kLanes : 0, vecs,
          all_dims, [=](int key, int vec, auto& tile) __attribute__((always_inline)) {
            finish_scores<true>(s, block, key, vec, tile);
          });
    else
      product(
          a, s.q_t, kBlock, row, row + 16, 0, vecs,
          all_dims, [=](int key, int vec, auto& tile) __attribute__((always_inline)) {
            finish_scores<false>(s, block, key, vec, tile);
          });
  }
  if (softcap_log2 != 0) cap_scores(s, block, softcap_log2);
}

/// p = exp2(p - largest) and their sum over the keys; `before` is largest before this block.
void probabilities(const Scratch s, const float* before, Block block) {
  for (int v = 0; v < vecs_of(block.queries); ++v) {
    const int query = v * kLanes;
    const F32 top = load(s.largest + query), shrink = exp2_or_zero(load(before + query) - top);
    const int keys = block.diagonal && (query + kLanes) < block.keys ? query + kLanes : block.keys;
    F32 sum[4] = {};
    for (int key = 0; key < round_up_16(keys); key += 4) {
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        float* at = s.p + (key + r) * kBlock + query;
        const F32 p = exp2_or_zero(load(at) - top);
        store(at, p);
        sum[r] += p;
      }
    }
    store(s.correction + query, shrink);
    store(s.sum + query, load(s.sum + query) * shrink + ((sum[0] + sum[1]) + (sum[2] + sum[3])));
  }
}

/// o = o · correction + p·v. The first block has no o to correct.
void accumulate(const Scratch s, const float* v, int width, int dims, Block block, bool first) {
  const auto depth_of = [=](int, int last) {
    return Depth{0, block.diagonal && last < block.keys ? last : block.keys};
  };
  product(
      {s.p, 1, kBlock}, v, width, 0, round_up_16(block.queries), 0, vecs_of(dims),
      depth_of, [=](int row, int vec, auto& tile) __attribute__((always_inline)) {
        float* o = s.o + row * width + vec * kLanes;
#pragma GCC unroll 16
        for (int r = 0; r < tile.rows; ++r) {
          const F32 shrink = splat(s.correction[row + r]);
#pragma GCC unroll 4
          for (int c = 0; c < tile.vecs; ++c) {
            float* at = o + r * width + c * kLanes;
            store(at, first ? tile.sum[r][c] : fma(load(at), shrink, tile.sum[r][c]));
          }
        }
      });
}

template <typename T>
class Forward {
 public:
  Forward(const AttentionSizes& sizes, const AttentionOperands& at, float* scratch)
      : s_(sizes),
        at_(at),
        scratch_(carve(sizes, scratch)),
        width_(static_cast<int>(sizes.padded_dim())),
        dims_(static_cast<int>(sizes.head_dim)),
        v_dims_(static_cast<int>(sizes.v_dim)),
        scale_(sizes.softcap != 0 ? sizes.scale / sizes.softcap : kLog2E * sizes.scale) {}

  void run(std::int64_t begin, std::int64_t end) {
    const std::int64_t blocks = s_.query_blocks(), per_kv_head = blocks * s_.group();
    for (std::int64_t unit = begin; unit < end; ++unit) {
      if (unit == begin || unit % per_kv_head == 0) enter_head(unit / per_kv_head);
      query_block(unit / blocks % s_.group(), unit % blocks);
    }
  }

 private:
  void enter_head(std::int64_t item) {
    batch_ = item / s_.kv_heads;
    kv_head_ = item % s_.kv_heads;
    packed_ = 0;
  }

  /// Packs the head's k and v up to block `last`, as far as this was not done before.
  void pack_keys(int last) {
    for (; packed_ <= last; ++packed_) {
      const std::int64_t first = packed_ * kAttentionBlock, left = s_.keys - first;
      const int count = left < kBlock ? static_cast<int>(left) : kBlock;
      const std::int64_t token = batch_ * s_.keys + first, from = token * s_.kv_stride + kv_head_ * s_.head_dim,
                         from_v = token * s_.v_stride + kv_head_ * s_.v_dim;
      pack_rows(static_cast<const T*>(at_.k) + from, s_.kv_stride, count, dims_, width_, turn_at(s_, first),
                scratch_.k + first * width_);
      pack_rows(static_cast<const T*>(at_.v) + from_v, s_.v_stride, count, v_dims_, width_, Turn{},
                scratch_.v + first * width_);
    }
  }

  void query_block(std::int64_t head_in_group, std::int64_t index) {
    const std::int64_t head = kv_head_ * s_.group() + head_in_group, row = s_.q_stride;
    const QueryRows rows = s_.rows_of(index);
    const int first_key_block = static_cast<int>(s_.first_seen(index)),
              last_key_block = static_cast<int>(s_.seen_blocks(index)) - 1;
    pack_keys(last_key_block);
    pack_rows(static_cast<const T*>(at_.q) + (batch_ * s_.queries + rows.first) * row + head * s_.head_dim, row,
              rows.count(), dims_, width_, turn_at(s_, s_.origin + rows.first), scratch_.o, rows.begin);
    transpose(scratch_.o, width_, rows.end, dims_, scale_, scratch_.q_t);
    for (int i = 0; i < kBlock; i += kLanes) {
      store(scratch_.largest + i, splat(kMasked));
      store(scratch_.sum + i, F32{});
    }
    for (int block = first_key_block; block <= last_key_block; ++block) attend(index, block, rows.end, first_key_block);
    write(head, rows);
  }

  void attend(std::int64_t index, int key_block, int queries, int first_key_block) {
    const std::int64_t first = key_block * kAttentionBlock, left = s_.keys - first;
    Block block = s_.block_of(index, key_block, queries, static_cast<int>(left < kBlock ? left : kBlock));
    if (block.diagonal && queries < block.keys) block.keys = queries;
    alignas(64) float before[kBlock];
    for (int i = 0; i < kBlock; i += kLanes) store(before + i, load(scratch_.largest + i));
    scores(scratch_, scratch_.k + first * width_, width_, dims_, block, s_.softcap * kLog2E);
    probabilities(scratch_, before, block);
    accumulate(scratch_, scratch_.v + first * width_, width_, v_dims_, block, key_block == first_key_block);
  }

  void write(std::int64_t head, QueryRows rows) {
    const std::int64_t row = s_.heads * s_.v_dim;
    T* o = static_cast<T*>(at_.o_out) + (batch_ * s_.queries + rows.first) * row + head * s_.v_dim;
    const float* inverse = scratch_.correction + rows.begin;
    alignas(64) float lse[kBlock];
    for (int i = 0; i < rows.end; i += kLanes) {
      store(scratch_.correction + i, 1.0f / load(scratch_.sum + i));
      store(lse + i, fma(load(scratch_.largest + i), splat(kLn2), log(load(scratch_.sum + i))));
    }
    unpack_rows(
        scratch_.o + rows.begin * width_, width_, rows.count(), v_dims_, Turn{},
        [inverse](int i) { return inverse[i]; }, o, row);
    __builtin_memcpy(at_.lse_out + (batch_ * s_.heads + head) * s_.lse_stride + rows.first, lse + rows.begin,
                     static_cast<std::size_t>(rows.count()) * sizeof(float));
  }

  const AttentionSizes& s_;
  const AttentionOperands& at_;
  const Scratch scratch_;
  const int width_, dims_, v_dims_;
  const float scale_;
  std::int64_t batch_ = 0, kv_head_ = 0, packed_ = 0;  // packed_: blocks of k and v of this head in scratch
};

}  // namespace

void attention_forward(const AttentionSizes& sizes, const AttentionOperands& at, std::int64_t begin, std::int64_t end,
                       float* scratch) {
  if (sizes.bf16)
    Forward<Bf16>(sizes, at, scratch).run(begin, end);
  else
    Forward<float>(sizes, at, scratch).run(begin, end);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
