// attention_grad: probabilities are made again from lse, block by block (FlashAttention-2, algorithm 2), and held
// transposed as in the forward pass. A thread owns a kv head: its dk and dv are summed over blocks of queries and over
// the query heads of the group in a fixed order. Products per pair of blocks: k·qᵀ, v·doᵀ, pᵀ·do, dsᵀ·q, ds·k.
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/rows.h"
#include "kernels/cpu/attention/tiles.h"
#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

constexpr float kLog2E = 1.44269504f;

struct Scratch {
  float *k, *v, *dk, *dv;  // [padded_keys][width]
  float *q, *d_o;          // [kBlock][width]
  float *q_t, *do_t;       // [width][kBlock]; q_t scaled by scale · log2 e
  float* dq;               // [kBlock][width]
  float *p, *ds;           // [key][query]
  float *lse, *delta;      // [kBlock]; lse in units of log2
};

Scratch carve(const AttentionSizes& s, float* at) {
  const std::int64_t head = s.padded_keys() * s.padded_dim(), block = kAttentionBlock * s.padded_dim();
  const std::int64_t square = kAttentionBlock * kAttentionBlock;
  const auto take = [&at](std::int64_t floats) {
    float* taken = at;
    at += floats;
    return taken;
  };
  Scratch scratch{};
  scratch.k = take(head), scratch.v = take(head), scratch.dk = take(head), scratch.dv = take(head);
  scratch.q = take(block), scratch.d_o = take(block), scratch.q_t = take(block), scratch.do_t = take(block),
  scratch.dq = take(block);
  scratch.p = take(square), scratch.ds = take(square);
  scratch.lse = take(kAttentionBlock), scratch.delta = take(kAttentionBlock);
  return scratch;
}

using Block = AttentionBlock;

/// p = exp2(scores - lse) of a tile, 0 where masked.
template <bool masked, typename Tile>
VEC_INLINE void finish_probabilities(const Scratch s, Block block, int first_key, int first_vec, const Tile& tile) {
#pragma GCC unroll 4
  for (int v = 0; v < tile.vecs; ++v) {
    const int query = (first_vec + v) * kLanes;
    const F32 lse = load(s.lse + query);
    const Visible visible(block, query);
#pragma GCC unroll 16
    for (int r = 0; r < tile.rows; ++r) {
      F32 p = exp2_or_zero(tile.sum[r][v] - lse);
      if constexpr (masked) p = select(visible.key(first_key + r), p, F32{});
      store(s.p + (first_key + r) * kBlock + query, p);
    }
  }
}

/// probabilities() with a softcap: p holds scale/softcap · scores, whose tanh is t. ds gets the factor of v·doᵀ -
/// delta: p · (1 - t²).
void cap_probabilities(const Scratch s, Block block, float softcap_log2) {
  const int vecs = vecs_of(block.queries);
  for (int key = 0; key < round_up_16(block.keys); ++key) {
    for (int v = block.diagonal ? key / 16 * 16 / kLanes : 0; v < vecs; ++v) {
      const int query = v * kLanes, at = key * kBlock + query;
      const F32 t = tanh(load(s.p + at));
      const F32 p = select(Visible(block, query).key(key),
                           exp2_or_zero(fma(t, splat(softcap_log2), -load(s.lse + query))), F32{});
      store(s.p + at, p);
      store(s.ds + at, p * (1.0f - t * t));
    }
  }
}

/// p = exp2(k·qᵀ - lse), 0 where masked. softcap_log2 0: none.
void probabilities(const Scratch s, const float* k, int width, int dims, Block block, float softcap_log2) {
  const int vecs = vecs_of(block.queries);
  const Strided a{k, width, 1};
  const auto all_dims = [=](int, int) { return Depth{0, dims}; };
  for (int row = 0; row < block.keys; row += 16) {
    const int first_vec = block.diagonal ? row / kLanes : 0;
    if (softcap_log2 != 0)
      product(
          a, s.q_t, kBlock, row, row + 16, first_vec, vecs,
          all_dims, [=](int key, int vec, auto& tile) __attribute__((always_inline)) {
            store_tile(tile, s.p + key * kBlock + vec * kLanes, kBlock);
          });
    else if (block.masked())
      product(
          a, s.q_t, kBlock, row, row + 16, first_vec, vecs,
          all_dims, [=](int key, int vec, auto& tile) __attribute__((always_inline)) {
            finish_probabilities<true>(s, block, key, vec, tile);
          });
    else
      product(
          a, s.q_t, kBlock, row, row + 16, 0, vecs,
          all_dims, [=](int key, int vec, auto& tile) __attribute__((always_inline)) {
            finish_probabilities<false>(s, block, key, vec, tile);
          });
  }
  if (softcap_log2 != 0) cap_probabilities(s, block, softcap_log2);
}

/// ds = factors · (v·doᵀ - delta); factors are p, or with a softcap what is in ds.
void score_gradients(const Scratch s, const float* v, int width, int dims, Block block, const float* factors) {
  const auto all_dims = [=](int, int) { return Depth{0, dims}; };
  for (int row = 0; row < block.keys; row += 16) {
    product(
        {v, width, 1}, s.do_t, kBlock, row, row + 16, block.diagonal ? row / kLanes : 0, vecs_of(block.queries),
        all_dims, [=](int key, int vec, auto& tile) __attribute__((always_inline)) {
#pragma GCC unroll 4
          for (int c = 0; c < tile.vecs; ++c) {
            const int query = (vec + c) * kLanes;
            const F32 delta = load(s.delta + query);
#pragma GCC unroll 16
            for (int r = 0; r < tile.rows; ++r) {
              const int at = (key + r) * kBlock + query;
              store(s.ds + at, load(factors + at) * (tile.sum[r][c] - delta));
            }
          }
        });
  }
}

/// to += aᵀ·b, [keys][dims]: a is p or ds, b is do or q.
void add_over_queries(const float* a, const float* b, int width, int dims, Block block, float* to) {
  // On the diagonal a key is seen by the queries from its own place on; those after the last query by none.
  const auto depth_of = [=](int first, int) {
    return Depth{!block.diagonal ? 0 : first < block.queries ? first : block.queries, block.queries};
  };
  product(
      {a, kBlock, 1}, b, width, 0, round_up_16(block.keys), 0, vecs_of(dims),
      depth_of, [=](int row, int vec, auto& tile) __attribute__((always_inline)) {
        add_tile(tile, to + row * width + vec * kLanes, width);
      });
}

/// dq += ds·k.
void add_over_keys(const Scratch s, const float* k, int width, int dims, Block block) {
  const auto depth_of = [=](int, int last) {
    return Depth{0, block.diagonal && last < block.keys ? last : block.keys};
  };
  product(
      {s.ds, 1, kBlock}, k, width, 0, round_up_16(block.queries), 0, vecs_of(dims),
      depth_of, [=](int row, int vec, auto& tile) __attribute__((always_inline)) {
        add_tile(tile, s.dq + row * width + vec * kLanes, width);
      });
}

template <typename T>
class Backward {
 public:
  Backward(const AttentionSizes& sizes, const AttentionOperands& at, float* scratch)
      : s_(sizes),
        at_(at),
        scratch_(carve(sizes, scratch)),
        width_(static_cast<int>(sizes.padded_dim())),
        dims_(static_cast<int>(sizes.head_dim)),
        v_dims_(static_cast<int>(sizes.v_dim)),
        scale_(sizes.scale) {}

  void run(std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      batch_ = item / s_.kv_heads;
      kv_head_ = item % s_.kv_heads;
      pack_keys();
      for (std::int64_t g = 0; g < s_.group(); ++g)
        for (int block = 0; block < s_.query_blocks(); ++block) query_block(kv_head_ * s_.group() + g, block);
      write_keys();
    }
  }

 private:
  int length(std::int64_t first) const { return s_.keys - first < kBlock ? static_cast<int>(s_.keys - first) : kBlock; }

  /// Offsets of a head of query `first` in q and dq, and in o and do.
  std::int64_t query_at(std::int64_t head, std::int64_t first) const {
    return (batch_ * s_.queries + first) * s_.q_stride + head * s_.head_dim;
  }
  std::int64_t result_at(std::int64_t head, std::int64_t first) const {
    return ((batch_ * s_.queries + first) * s_.heads + head) * s_.v_dim;
  }
  /// Those of the sample's first key, and its value.
  std::int64_t keys_at() const { return batch_ * s_.keys * s_.kv_stride + kv_head_ * s_.head_dim; }
  std::int64_t values_at() const { return batch_ * s_.keys * s_.v_stride + kv_head_ * s_.v_dim; }

  void pack_keys() {
    const int keys = static_cast<int>(s_.keys);
    pack_rows(static_cast<const T*>(at_.k) + keys_at(), s_.kv_stride, keys, dims_, width_, turn_at(s_, 0), scratch_.k);
    pack_rows(static_cast<const T*>(at_.v) + values_at(), s_.v_stride, keys, v_dims_, width_, Turn{}, scratch_.v);
    for (std::int64_t i = 0; i < s_.padded_keys() * width_; i += kLanes) {
      store(scratch_.dk + i, F32{});
      store(scratch_.dv + i, F32{});
    }
  }

  void write_keys() {
    const int keys = static_cast<int>(s_.keys);
    unpack_rows(
        scratch_.dk, width_, keys, dims_, turn_at(s_, 0), [scale = scale_](int) { return scale; },
        static_cast<T*>(at_.dk) + keys_at(), s_.kv_stride);
    unpack_rows(
        scratch_.dv, width_, keys, v_dims_, Turn{}, [](int) { return 1.0f; }, static_cast<T*>(at_.dv) + values_at(),
        s_.v_stride);
  }

  void query_block(std::int64_t head, int index) {
    const QueryRows rows = s_.rows_of(index);
    enter_queries(head, rows);
    const int last_key_block = static_cast<int>(s_.seen_blocks(index)) - 1;
    const bool capped = s_.softcap != 0;
    for (int block = static_cast<int>(s_.first_seen(index)); block <= last_key_block; ++block) {
      const std::int64_t key = block * kAttentionBlock, at = key * width_;
      Block pair = s_.block_of(index, block, rows.end, length(key));
      if (pair.diagonal && rows.end < pair.keys) pair.keys = rows.end;
      probabilities(scratch_, scratch_.k + at, width_, dims_, pair, s_.softcap * kLog2E);
      score_gradients(scratch_, scratch_.v + at, width_, v_dims_, pair, capped ? scratch_.ds : scratch_.p);
      add_over_queries(scratch_.p, scratch_.d_o, width_, v_dims_, pair, scratch_.dv + at);
      add_over_queries(scratch_.ds, scratch_.q, width_, dims_, pair, scratch_.dk + at);
      add_over_keys(scratch_, scratch_.k + at, width_, dims_, pair);
    }
    unpack_rows(
        scratch_.dq + rows.begin * width_, width_, rows.count(), dims_, turn_at(s_, s_.origin + rows.first),
        [scale = scale_](int) { return scale; }, static_cast<T*>(at_.dq) + query_at(head, rows.first), s_.q_stride);
  }

  /// Packs q and do of a block, both ways; delta, lse; dq = 0.
  void enter_queries(std::int64_t head, QueryRows rows) {
    const std::int64_t o_stride = s_.heads * s_.v_dim;
    const T *d_o = static_cast<const T*>(at_.d_o) + result_at(head, rows.first),
            *o = static_cast<const T*>(at_.o) + result_at(head, rows.first);
    const int count = rows.count();
    pack_rows(static_cast<const T*>(at_.q) + query_at(head, rows.first), s_.q_stride, count, dims_, width_,
              turn_at(s_, s_.origin + rows.first), scratch_.q, rows.begin);
    pack_rows(d_o, o_stride, count, v_dims_, width_, Turn{}, scratch_.d_o, rows.begin);
    transpose(scratch_.q, width_, rows.end, dims_, s_.softcap != 0 ? scale_ / s_.softcap : scale_ * kLog2E,
              scratch_.q_t);
    transpose(scratch_.d_o, width_, rows.end, v_dims_, 1.0f, scratch_.do_t);
    place_rows(rows.begin, count, scratch_.delta,
               [=, this](float* delta) { row_products(d_o, o, o_stride, count, v_dims_, delta); });
    const float* lse = at_.lse + (batch_ * s_.heads + head) * s_.lse_stride + rows.first;
    place_rows(rows.begin, count, scratch_.lse, [=](float* log2) {
      for_each_vector(
          0, count, [&](std::int64_t i, auto ld, auto) __attribute__((always_inline)) {
            store(log2 + i, ld(lse + i) * kLog2E);
          });
    });
    for (int i = 0; i < kBlock * width_; i += kLanes) store(scratch_.dq + i, F32{});
  }

  const AttentionSizes& s_;
  const AttentionOperands& at_;
  const Scratch scratch_;
  const int width_, dims_, v_dims_;
  const float scale_;
  std::int64_t batch_ = 0, kv_head_ = 0;
};

}  // namespace

void attention_backward(const AttentionSizes& sizes, const AttentionOperands& at, std::int64_t begin, std::int64_t end,
                        float* scratch) {
  if (sizes.bf16)
    Backward<Bf16>(sizes, at, scratch).run(begin, end);
  else
    Backward<float>(sizes, at, scratch).run(begin, end);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
