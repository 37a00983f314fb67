// attention_grad in bf16 on AMX tiles: the products and their order are those of backward_loops.cpp. Scores are
// held by rows of queries, so that ds is an operand of dq as it lies; p and ds in words are operands of dvᵀ and dkᵀ,
// which are summed transposed and turned once for each kv head.
#include "kernels/cpu/attention/amx.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/runtime/ahead.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

struct Scratch {
  std::uint32_t *k, *v;               // per block of keys, words over dims: [width / 2][kBlock]
  std::uint32_t* k_rows;              // words over keys: [padded_keys / 2][width]
  float *dk, *dv;                     // per block of keys, transposed: [width][kBlock]
  Matrix<Bf16> q, d_o;                // [kBlock][width]; also k or v on their way
  Matrix<Bf16> q_t, do_t;             // [width][kBlock]
  Matrix<float> scores, dp;           // [kBlock queries][kBlock keys]
  Matrix<std::uint32_t> p, ds_words;  // words over queries: [kBlock / 2][kBlock keys]
  Matrix<Bf16> ds;                    // [kBlock queries][kBlock keys]
  Matrix<float> dq;                   // [kBlock][width]; also words of q or do, and dk or dv, on their way
  float *lse, *delta;                 // [kBlock]; lse in units of log2
};

using Block = AttentionBlock;

/// Rows of one head lie a full row of all heads apart, so the hardware prefetcher does not follow them. This class
/// prefetches what the gradient reads of the next head of keys, and of the queries that share it, while the loops work
/// on this one.
class NextHead {
 public:
  NextHead() = default;
  NextHead(const AttentionSizes& s, const AttentionOperands& at, std::int64_t batch, std::int64_t kv_head) {
    constexpr std::int64_t kBytes = sizeof(Bf16);
    const auto rows = [&](const void* from, std::int64_t count, std::int64_t stride, std::int64_t width) {
      return Ahead(static_cast<const Bf16*>(from) + batch * count * stride + kv_head * width, stride * kBytes, count,
                   width * kBytes);
    };
    const std::int64_t of_query = s.group() * s.head_dim, of_result = s.group() * s.v_dim;
    parts_[0] = rows(at.k, s.keys, s.kv_stride, s.head_dim);
    parts_[1] = rows(at.v, s.keys, s.v_stride, s.v_dim);
    parts_[2] = rows(at.q, s.queries, s.q_stride, of_query);
    parts_[3] = rows(at.d_o, s.queries, s.heads * s.v_dim, of_result);
    parts_[4] = rows(at.o, s.queries, s.heads * s.v_dim, of_result);
    std::int64_t lines = 0;
    for (const Ahead& part : parts_) lines += part.lines();
    const std::int64_t turns = s.pairs_of_blocks() * s.group();
    if (turns == 0 || lines > kMostLines) return;
    for (int i = 0; i < kParts; ++i) each_[i] = (parts_[i].lines() + turns - 1) / turns;
  }

  /// Once for each block of keys that a block of queries meets.
  void ask() {
    for (int i = 0; i < kParts; ++i) parts_[i].ask(each_[i]);
  }

 private:
  static constexpr int kParts = 5;
  static constexpr std::int64_t kMostLines = 4096;  // 256 KiB: of larger heads it would push this one's out of L2
  Ahead parts_[kParts];
  std::int64_t each_[kParts]{};
};

class Backward {
 public:
  Backward(const AttentionSizes& sizes, const AttentionOperands& at, float* scratch)
      : s_(sizes),
        at_(at),
        width_(static_cast<int>(sizes.tile_dim())),
        dims_(static_cast<int>(sizes.head_dim)),
        v_dims_(static_cast<int>(sizes.v_dim)),
        scale_(sizes.scale) {
    Carver carver{reinterpret_cast<char*>(scratch)};
    const std::int64_t head = sizes.padded_keys() * width_, block = kBlock * width_, square = kBlock * kBlock;
    m_.k = carver.take<std::uint32_t>(head / 2), m_.v = carver.take<std::uint32_t>(head / 2);
    m_.k_rows = carver.take<std::uint32_t>(head / 2);
    m_.dk = carver.take<float>(head), m_.dv = carver.take<float>(head);
    m_.q = {carver.take<Bf16>(block), width_}, m_.d_o = {carver.take<Bf16>(block), width_};
    m_.q_t = {carver.take<Bf16>(block), kBlock}, m_.do_t = {carver.take<Bf16>(block), kBlock};
    m_.scores = {carver.take<float>(square), kBlock}, m_.dp = {carver.take<float>(square), kBlock};
    m_.p = {carver.take<std::uint32_t>(square / 2), kBlock},
    m_.ds_words = {carver.take<std::uint32_t>(square / 2), kBlock};
    m_.ds = {carver.take<Bf16>(square), kBlock};
    m_.dq = {carver.take<float>(block), width_};
    m_.lse = carver.take<float>(kBlock), m_.delta = carver.take<float>(kBlock);
  }

  void run(std::int64_t begin, std::int64_t end) {
    Tiles::configure();
    for (std::int64_t item = begin; item < end; ++item) {
      batch_ = item / s_.kv_heads;
      kv_head_ = item % s_.kv_heads;
      const std::int64_t next = item + 1;
      next_ = next < end ? NextHead(s_, at_, next / s_.kv_heads, next % s_.kv_heads) : NextHead();
      const int key_blocks = static_cast<int>(s_.key_blocks()), first = static_cast<int>(s_.first_seen(0)),
                seen = static_cast<int>(s_.seen_blocks(s_.query_blocks() - 1));
      for (int block = first; block < seen; ++block) pack_keys(block);
      for (std::int64_t g = 0; g < s_.group(); ++g)
        for (int block = 0; block < s_.query_blocks(); ++block) query_block(kv_head_ * s_.group() + g, block, g == 0);
      for (int block = 0; block < first; ++block) clear_keys(block);
      for (int block = seen; block < key_blocks; ++block) clear_keys(block);
      for (int block = 0; block < key_blocks; ++block) write_keys(block);
    }
    Tiles::release();
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
  std::int64_t key_at(std::int64_t first) const {
    return (batch_ * s_.keys + first) * s_.kv_stride + kv_head_ * s_.head_dim;
  }
  std::int64_t value_at(std::int64_t first) const {
    return (batch_ * s_.keys + first) * s_.v_stride + kv_head_ * s_.v_dim;
  }

  void pack_keys(int block) {
    const std::int64_t first = block * kAttentionBlock, from = key_at(first), to = first * width_ / 2;
    copy_rows(static_cast<const Bf16*>(at_.k) + from, s_.kv_stride, length(first), dims_, turn_at(s_, first), m_.q);
    transpose_words(m_.q.data, width_ / 2, kBlock, width_ / 2, m_.k + to, kBlock);
    pair_rows(m_.q, kBlock, m_.k_rows + to);
    copy_rows(static_cast<const Bf16*>(at_.v) + value_at(first), s_.v_stride, length(first), v_dims_, Turn{}, m_.q);
    transpose_words(m_.q.data, width_ / 2, kBlock, width_ / 2, m_.v + to, kBlock);
  }

  /// dk = dv = 0 of keys that no query sees.
  void clear_keys(int block) {
    const std::int64_t first = block * kAttentionBlock;
    for (std::int64_t i = first * width_; i < (first + kBlock) * width_; i += kLanes) {
      store(m_.dk + i, F32{});
      store(m_.dv + i, F32{});
    }
  }

  void write_keys(int block) {
    const std::int64_t first = block * kAttentionBlock, to = key_at(first);
    transpose_words(m_.dk + first * width_, kBlock, width_, kBlock, m_.dq.data, width_);
    unpack_rows(
        m_.dq.data, width_, length(first), dims_, turn_at(s_, first), [scale = scale_](int) { return scale; },
        static_cast<Bf16*>(at_.dk) + to, s_.kv_stride);
    transpose_words(m_.dv + first * width_, kBlock, width_, kBlock, m_.dq.data, width_);
    unpack_rows(
        m_.dq.data, width_, length(first), v_dims_, Turn{}, [](int) { return 1.0f; },
        static_cast<Bf16*>(at_.dv) + value_at(first), s_.v_stride);
  }

  /// A block of queries against all blocks of keys it sees. Where the queries are the first that see a block of keys,
  /// its dk and dv begin.
  void query_block(std::int64_t head, int index, bool first_head) {
    const QueryRows rows = s_.rows_of(index);
    const int first = static_cast<int>(s_.first_seen(index)), last = static_cast<int>(s_.seen_blocks(index)) - 1;
    enter_queries(head, rows);
    for (int block = first; block <= last; ++block) {
      const Block pair = s_.block_of(index, block, rows.end, length(block * kAttentionBlock));
      const bool begins = first_head && (index == 0 || pair.diagonal);
      scores(block, pair.diagonal);
      next_.ask();
      if (s_.softcap != 0) cap();
      if (pair.masked() || pair.keys < kBlock)
        gradients<true>(pair);
      else
        gradients<false>(pair);
      accumulate(block, pair.diagonal, !begins, block > first);
    }
    unpack_rows(
        m_.dq.at(rows.begin, 0), width_, rows.count(), dims_, turn_at(s_, s_.origin + rows.first),
        [scale = scale_](int) { return scale; }, static_cast<Bf16*>(at_.dq) + query_at(head, rows.first), s_.q_stride);
  }

  void enter_queries(std::int64_t head, QueryRows rows) {
    const std::int64_t o_stride = s_.heads * s_.v_dim, o_at = result_at(head, rows.first);
    const Bf16 *d_o = static_cast<const Bf16*>(at_.d_o) + o_at, *o = static_cast<const Bf16*>(at_.o) + o_at;
    const int count = rows.count();
    copy_rows(static_cast<const Bf16*>(at_.q) + query_at(head, rows.first), s_.q_stride, count, dims_,
              turn_at(s_, s_.origin + rows.first), m_.q, rows.begin);
    copy_rows(d_o, o_stride, count, v_dims_, Turn{}, m_.d_o, rows.begin);
    turn(m_.q, m_.q_t);
    turn(m_.d_o, m_.do_t);
    place_rows(rows.begin, count, m_.delta,
               [=, this](float* delta) { row_products(d_o, o, o_stride, count, v_dims_, delta); });
    const float* lse = at_.lse + (batch_ * s_.heads + head) * s_.lse_stride + rows.first;
    place_rows(rows.begin, count, m_.lse, [=](float* log2) {
      for_each_vector(
          0, count, [&](std::int64_t i, auto ld, auto) __attribute__((always_inline)) {
            store(log2 + i, ld(lse + i) * kLog2E);
          });
    });
  }

  /// to[d][row] = from[row][d].
  void turn(Matrix<Bf16> from, Matrix<Bf16> to) {
    std::uint32_t* words = reinterpret_cast<std::uint32_t*>(m_.dq.data);
    pair_rows(from, kBlock, words);
    transpose_words(words, width_, kBlock / 2, width_, to.data, kBlock / 2);
  }

  /// scores = q·kᵀ, dp = do·vᵀ; on the diagonal without the square above it.
  void scores(int block, bool diagonal) {
    const std::int64_t at = block * kAttentionBlock * width_ / 2;
    const auto steps_of = [=, steps = width_ / 32](int row, int column) {
      return Depth{0, diagonal && column > row ? 0 : steps};
    };
    multiply(m_.q, Matrix<std::uint32_t>{m_.k + at, kBlock}, m_.scores, kBlock, kBlock, false, steps_of);
    multiply(m_.d_o, Matrix<std::uint32_t>{m_.v + at, kBlock}, m_.dp, kBlock, kBlock, false, steps_of);
  }

  /// Scores after the softcap; dp - delta times its slope, 1 - tanh².
  void cap() {
    cap_scores(m_.scores, s_.scale, s_.softcap);
    for (int row = 0; row < kBlock; ++row) {
      const F32 delta = splat(m_.delta[row]);
      for (int key = 0; key < kBlock; key += kLanes) {
        const F32 t = load(m_.scores.at(row, key)) * splat(s_.scale / s_.softcap);
        store(m_.dp.at(row, key), fma(load(m_.dp.at(row, key)) - delta, 1.0f - t * t, delta));
      }
    }
  }

  /// p = exp2(scores - lse), ds = p · (dp - delta), in the forms of `accumulate`.
  template <bool masked>
  void gradients(Block block) {
    const F32 scale = splat(scale_ * kLog2E);
    for (int row = 0; row < kBlock; row += 2) {
      const int used = block.diagonal && row < 32 ? 32 : kBlock;
      const F32 lse[2] = {splat(m_.lse[row]), splat(m_.lse[row + 1])},
                delta[2] = {splat(m_.delta[row]), splat(m_.delta[row + 1])};
      for (int key = 0; key < used; key += kLanes) {
        F32 p[2], ds[2];
#pragma GCC unroll 2
        for (int r = 0; r < 2; ++r) {
          p[r] = exp2_for_bf16(fma(load(m_.scores.at(row + r, key)), scale, -lse[r]));
          if constexpr (masked) {
            p[r] = select(visible(key, seen_by(block, row + r)), p[r], F32{});
          }
          ds[r] = p[r] * (load(m_.dp.at(row + r, key)) - delta[r]);
          store(m_.ds.at(row + r, key), ds[r]);
        }
        store(reinterpret_cast<float*>(m_.p.at(row / 2, key)), pair_words(p[0], p[1]));
        store(reinterpret_cast<float*>(m_.ds_words.at(row / 2, key)), pair_words(ds[0], ds[1]));
      }
    }
  }

  /// dvᵀ += doᵀ·p, dkᵀ += qᵀ·ds, dq += ds·k.
  void accumulate(int block, bool diagonal, bool add, bool more) {
    const std::int64_t at = block * kAttentionBlock * width_;
    const auto queries_of = [=](int, int key) { return Depth{diagonal && key > 0 ? 1 : 0, 2}; };
    multiply(m_.do_t, m_.p, Matrix<float>{m_.dv + at, kBlock}, width_, kBlock, add, queries_of);
    multiply(m_.q_t, m_.ds_words, Matrix<float>{m_.dk + at, kBlock}, width_, kBlock, add, queries_of);
    multiply(m_.ds, Matrix<std::uint32_t>{m_.k_rows + at / 2, width_}, m_.dq, kBlock, width_, more,
             [=](int query, int) {
               return Depth{0, diagonal && query == 0 ? 1 : 2};
             });
  }

  const AttentionSizes& s_;
  const AttentionOperands& at_;
  const int width_, dims_, v_dims_;
  const float scale_;
  Scratch m_{};
  NextHead next_;
  std::int64_t batch_ = 0, kv_head_ = 0;
};

}  // namespace

void attention_tiles_backward(const AttentionSizes& sizes, const AttentionOperands& at, std::int64_t begin,
                              std::int64_t end, float* scratch) {
  Backward(sizes, at, scratch).run(begin, end);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
