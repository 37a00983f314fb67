// attention, forward, in bf16 on AMX tiles: online softmax over blocks of 64 keys, scores by rows of queries. Products
// take a third of the time that the exponentials take; the scores of the next block are therefore issued before the
// softmax of this one, and run under it.
#include "kernels/cpu/attention/amx.h"
#include "kernels/cpu/attention/attention.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

constexpr float kLn2 = 0.693147181f;
constexpr float kMasked = -1e30f;  // a score that vanishes beside any other, and does not overflow

struct Scratch {
  std::uint32_t* k;         // per block of keys, words over dims: [width / 2][kBlock]
  std::uint32_t* v;         // words over keys: [padded_keys / 2][width]
  Matrix<Bf16> rows, q;     // [kBlock][width]: k or v on their way; q
  Matrix<float> scores[2];  // [kBlock queries][kBlock keys]
  Matrix<Bf16> p;           // [kBlock][kBlock]
  Matrix<float> o;          // [kBlock][width], not yet divided by sum
  float *largest, *sum;     // [kBlock], in units of log2
};

class Forward {
 public:
  Forward(const AttentionSizes& sizes, const AttentionOperands& at, float* scratch)
      : s_(sizes),
        at_(at),
        width_(static_cast<int>(sizes.tile_dim())),
        dims_(static_cast<int>(sizes.head_dim)),
        v_dims_(static_cast<int>(sizes.v_dim)),
        scale_(kLog2E * sizes.scale) {
    Carver carver{reinterpret_cast<char*>(scratch)};
    m_.k = carver.take<std::uint32_t>(sizes.padded_keys() * width_ / 2);
    m_.v = carver.take<std::uint32_t>(sizes.padded_keys() * width_ / 2);
    m_.rows = {carver.take<Bf16>(kBlock * width_), width_};
    m_.q = {carver.take<Bf16>(kBlock * width_), width_};
    for (Matrix<float>& scores : m_.scores) scores = {carver.take<float>(kBlock * kBlock), kBlock};
    m_.p = {carver.take<Bf16>(kBlock * kBlock), kBlock};
    m_.o = {carver.take<float>(kBlock * width_), width_};
    m_.largest = carver.take<float>(kBlock);
    m_.sum = carver.take<float>(kBlock);
  }

  void run(std::int64_t begin, std::int64_t end) {
    const std::int64_t blocks = s_.query_blocks(), per_kv_head = blocks * s_.group();
    Tiles::configure();
    for (std::int64_t unit = begin; unit < end; ++unit) {
      if (unit == begin || unit % per_kv_head == 0) {
        batch_ = unit / per_kv_head / s_.kv_heads;
        kv_head_ = unit / per_kv_head % s_.kv_heads;
        packed_ = 0;
      }
      query_block(kv_head_ * s_.group() + unit / blocks % s_.group(), unit % blocks);
    }
    Tiles::release();
  }

 private:
  int length(std::int64_t first) const { return s_.keys - first < kBlock ? static_cast<int>(s_.keys - first) : kBlock; }

  /// Packs the head's k and v up to block `last`, as far as this was not done before.
  void pack_keys(int last) {
    for (; packed_ <= last; ++packed_) {
      const std::int64_t first = packed_ * kAttentionBlock;
      const std::int64_t token = batch_ * s_.keys + first, from = token * s_.kv_stride + kv_head_ * s_.head_dim,
                         from_v = token * s_.v_stride + kv_head_ * s_.v_dim;
      copy_rows(static_cast<const Bf16*>(at_.k) + from, s_.kv_stride, length(first), dims_, turn_at(s_, first),
                m_.rows);
      transpose_words(m_.rows.data, width_ / 2, kBlock, width_ / 2, m_.k + first * width_ / 2, kBlock);
      copy_rows(static_cast<const Bf16*>(at_.v) + from_v, s_.v_stride, length(first), v_dims_, Turn{}, m_.rows);
      pair_rows(m_.rows, kBlock, m_.v + first * width_ / 2);
    }
  }

  void query_block(std::int64_t head, std::int64_t index) {
    const QueryRows rows = s_.rows_of(index);
    const int first = static_cast<int>(s_.first_seen(index)), last = static_cast<int>(s_.seen_blocks(index)) - 1;
    pack_keys(last);
    copy_rows(static_cast<const Bf16*>(at_.q) + (batch_ * s_.queries + rows.first) * s_.q_stride + head * s_.head_dim,
              s_.q_stride, rows.count(), dims_, turn_at(s_, s_.origin + rows.first), m_.q, rows.begin);
    for (int i = 0; i < kBlock; i += kLanes) {
      store(m_.largest + i, splat(kMasked));
      store(m_.sum + i, F32{});
    }
    const auto diagonal = [&](int block) { return s_.causal && block == s_.first_block() + index; };
    scores(first, diagonal(first));
    for (int block = first; block <= last; ++block) {
      if (block < last) scores(block + 1, diagonal(block + 1));
      const AttentionBlock pair = s_.block_of(index, block, kBlock, length(block * kAttentionBlock));
      softmax(block, pair, block > first);
      accumulate(block, pair.diagonal, block > first);
    }
    write(head, rows);
  }

  /// scores = q·kᵀ of a block; on the diagonal without the square above it.
  void scores(int block, bool diagonal) {
    const int steps = width_ / 32;
    const Matrix<std::uint32_t> k{m_.k + block * kAttentionBlock * width_ / 2, kBlock};
    multiply(m_.q, k, m_.scores[block % 2], kBlock, kBlock, false, [=](int row, int column) {
      return Depth{0, diagonal && column > row ? 0 : steps};
    });
  }

  /// p = exp2(scores · scale - largest) after largest took in this block; sum and o are scaled to the new largest.
  void softmax(int block, AttentionBlock pair, bool more) {
    const Matrix<float> scores = m_.scores[block % 2];
    if (s_.softcap != 0) cap_scores(scores, s_.scale, s_.softcap);
    for (int row = 0; row < kBlock; row += kLanes) {
      if (pair.masked() || pair.keys < kBlock)
        softmax_rows<true>(scores, row, pair, more);
      else
        softmax_rows<false>(scores, row, pair, more);
    }
  }

  template <bool masked>
  [[gnu::always_inline]] void softmax_rows(Matrix<float> scores, int row, AttentionBlock pair, bool more) {
    const int used = pair.diagonal && row < 32 ? 32 : kBlock;  // what is beyond, `accumulate` does not read
    F32 tops[kLanes];
#pragma GCC unroll 1
    for (int r = 0; r < kLanes; ++r) {
      F32 top = splat(kMasked);
      for (int key = 0; key < used; key += kLanes) {
        F32 score = load(scores.at(row + r, key));
        if constexpr (masked) {
          score = select(visible(key, seen_by(pair, row + r)), score, splat(kMasked));
          store(scores.at(row + r, key), score);
        }
        top = max(top, score);
      }
      tops[r] = top;
    }
    const F32 before = load(m_.largest + row);
    const F32 largest = max(before, reduce_rows(
                                        tops, [](F32 a, F32 b) __attribute__((always_inline)) { return max(a, b); }) *
                                        scale_);
    const F32 shrink = exp2_or_zero(before - largest);
    store(m_.largest + row, largest);
    F32 sums[kLanes];
#pragma GCC unroll 1
    for (int r = 0; r < kLanes; ++r) {
      const F32 top = splat(m_.largest[row + r]);
      F32 sum{};
      for (int key = 0; key < used; key += kLanes) {
        F32 t = fma(load(scores.at(row + r, key)), splat(scale_), -top);
        if constexpr (masked) t = min(F32{}, t);  // where all are masked so far, rounding leaves a huge difference
        const F32 p = exp2_for_bf16(t);
        sum += p;
        store(m_.p.at(row + r, key), p);
      }
      sums[r] = sum;
    }
    const F32 sum = reduce_rows(
        sums, [](F32 a, F32 b) __attribute__((always_inline)) { return a + b; });
    store(m_.sum + row, fma(load(m_.sum + row), shrink, sum));
    if (more) rescale(row, shrink);
  }

  /// o · shrink for kLanes rows; mostly the largest score stays what it was, and nothing is to be done.
  [[gnu::always_inline]] void rescale(int row, F32 shrink) {
    for (int r = 0; r < kLanes; ++r) {
      if (shrink[r] == 1.0f) continue;
      const F32 factor = splat(shrink[r]);
      for (int d = 0; d < width_; d += kLanes) store(m_.o.at(row + r, d), load(m_.o.at(row + r, d)) * factor);
    }
  }

  /// o += p·v.
  void accumulate(int block, bool diagonal, bool more) {
    const Matrix<std::uint32_t> v{m_.v + block * kAttentionBlock * width_ / 2, width_};
    multiply(m_.p, v, m_.o, kBlock, width_, more, [=](int row, int) { return Depth{0, diagonal && row == 0 ? 1 : 2}; });
  }

  void write(std::int64_t head, QueryRows rows) {
    const std::int64_t row = s_.heads * s_.v_dim;
    alignas(64) float inverse[kBlock], lse[kBlock];
    for (int i = 0; i < kBlock; i += kLanes) {
      store(inverse + i, 1.0f / load(m_.sum + i));
      store(lse + i, fma(load(m_.largest + i), splat(kLn2), log(load(m_.sum + i))));
    }
    unpack_rows(
        m_.o.at(rows.begin, 0), width_, rows.count(), v_dims_, Turn{},
        [from = inverse + rows.begin](int i) { return from[i]; },
        static_cast<Bf16*>(at_.o_out) + (batch_ * s_.queries + rows.first) * row + head * s_.v_dim, row);
    __builtin_memcpy(at_.lse_out + (batch_ * s_.heads + head) * s_.lse_stride + rows.first, lse + rows.begin,
                     static_cast<std::size_t>(rows.count()) * sizeof(float));
  }

  const AttentionSizes& s_;
  const AttentionOperands& at_;
  const int width_, dims_, v_dims_;
  const float scale_;
  Scratch m_{};
  std::int64_t batch_ = 0, kv_head_ = 0, packed_ = 0;  // packed_: blocks of k and v of this head in scratch
};

}  // namespace

void attention_tiles_forward(const AttentionSizes& sizes, const AttentionOperands& at, std::int64_t begin,
                             std::int64_t end, float* scratch) {
  Forward(sizes, at, scratch).run(begin, end);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
