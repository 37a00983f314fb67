// attention_cached: rows into the caches, and one token against its keys by online softmax, 64 keys at a time.
#include "kernels/cpu/attention/cached.h"

#include "kernels/cpu/attention/rows.h"
#include "kernels/cpu/attention/tiles.h"
#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kMasked = -1e30f;  // a score that vanishes beside any other, and does not overflow

template <typename T>
void copy_rows(const HeadCopy& copy, std::int64_t begin, std::int64_t end) {
  const std::int64_t row = copy.heads * copy.dim;
  const int dims = static_cast<int>(copy.dim);
  for (std::int64_t i = begin; i < end; ++i) {
    const T* from = static_cast<const T*>(copy.from) + i * row;
    T* to = static_cast<T*>(copy.to) + i * row;
    if (copy.table == nullptr) {
      __builtin_memcpy(to, from, static_cast<std::size_t>(row) * sizeof(T));
      continue;
    }
    const Turn turn{copy.table + i * copy.turned, static_cast<int>(copy.turned), copy.interleaved};
    for (std::int64_t head = 0; head < copy.heads; ++head)
      turn_rows(from + head * copy.dim, row, 1, dims, turn, to + head * copy.dim, dims);
  }
}

/// Queries widened and scaled, so that a product with a key is a score in units of log2, or of the softcap.
template <typename T>
void scale_queries(const CachedPart& part, float* q) {
  const float scale = part.softcap != 0 ? part.scale / part.softcap : part.scale * kLog2E;
  const int dims = static_cast<int>(part.head_dim), width = static_cast<int>(CachedPart::padded(part.head_dim));
  scale_columns(
      static_cast<const T*>(part.q), part.head_dim, static_cast<int>(part.group), 0, dims,
      [scale](int) { return scale; }, q, width);
}

/// Scores of `count` keys for one query; kMasked for the rest of the block.
template <typename T>
void scores(const CachedPart& part, const float* q, const T* k, int count, float* p) {
  for (int key = 0; key < count; ++key) {
    const T* row = k + key * part.k_stride;
    p[key] = sum(sum_of(
        part.head_dim, [=](std::int64_t i, auto ld)
                           __attribute__((always_inline)) { return ld(row + i) * ld(q + i); }));
  }
  for (int key = count; key < kBlock; ++key) p[key] = kMasked;
  if (part.softcap == 0) return;
  const F32 cap = splat(part.softcap * kLog2E);
  for (int key = 0; key < kBlock; key += kLanes) {
    const I32 there = (I32)count_from(static_cast<std::uint32_t>(key)) < count;
    store(p + key, select(there, tanh(load(p + key)) * cap, splat(kMasked)));
  }
}

/// p = exp2(p - largest), added to the sum; by what the sums so far shrink.
float soften(float* p, float* largest_score, float* sum_of_all) {
  F32 top = splat(*largest_score);
  for (int key = 0; key < kBlock; key += kLanes) top = max(load(p + key), top);
  const float most = largest(top);
  const F32 all = splat(most);
  F32 total{};
  for (int key = 0; key < kBlock; key += kLanes) {
    const F32 weight = exp2_or_zero(load(p + key) - all);
    store(p + key, weight);
    total += weight;
  }
  alignas(64) float shrink[kLanes];
  store(shrink, exp2_or_zero(splat(*largest_score - most)));
  *largest_score = most;
  *sum_of_all = *sum_of_all * shrink[0] + sum(total);
  return shrink[0];
}

/// o = o · shrink + p·v.
template <typename T>
void add_values(const CachedPart& part, const float* p, const T* v, int count, float shrink, float* o) {
  for_each_column(
      static_cast<int>(part.v_dim), [=](int d, auto ld, auto, auto vecs) __attribute__((always_inline)) {
        F32 sums[4];
#pragma GCC unroll 4
        for (int i = 0; i < vecs.value; ++i) sums[i] = load(o + d + i * kLanes) * splat(shrink);
        for (int key = 0; key < count; ++key) {
          const F32 weight = splat(p[key]);
#pragma GCC unroll 4
          for (int i = 0; i < vecs.value; ++i)
            sums[i] = fma(weight, ld(v + key * part.v_stride + d + i * kLanes), sums[i]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < vecs.value; ++i) store(o + d + i * kLanes, sums[i]);
      });
}

template <typename T>
void attend(const CachedPart& part, float* results, float* scratch) {
  const std::int64_t width = CachedPart::padded(part.head_dim);
  float* const p = scratch + part.group * width;
  for (std::int64_t g = 0; g < part.group; ++g) {
    float* const result = results + g * part.result();
    zero_row(result, 0, static_cast<int>(part.result()));
    result[0] = kMasked;
  }
  scale_queries<T>(part, scratch);
  for (std::int64_t first = 0; first < part.keys; first += kBlock) {
    const int count = part.keys - first < kBlock ? static_cast<int>(part.keys - first) : kBlock;
    const T *k = static_cast<const T*>(part.k) + first * part.k_stride,
            *v = static_cast<const T*>(part.v) + first * part.v_stride;
    for (std::int64_t g = 0; g < part.group; ++g) {
      float* const result = results + g * part.result();
      scores(part, scratch + g * width, k, count, p);
      const float shrink = soften(p, result, result + 1);
      add_values(part, p, v, count, shrink, result + 16);
    }
  }
}

template <typename T>
void join(const float* results, std::int64_t parts, std::int64_t stride, std::int64_t v_dim, T* o) {
  float most = results[0], total = 0;
  for (std::int64_t i = 1; i < parts; ++i) most = results[i * stride] > most ? results[i * stride] : most;
  alignas(64) float share[kLanes];
  const auto share_of = [&](std::int64_t i) {
    store(share, exp2_or_zero(splat(results[i * stride] - most)));
    return share[0];
  };
  for (std::int64_t i = 0; i < parts; ++i) total += share_of(i) * results[i * stride + 1];
  for_each_vector(
      0, v_dim, [&](std::int64_t d, auto, auto st) __attribute__((always_inline)) {
        F32 sums{};
        for (std::int64_t i = 0; i < parts; ++i)
          sums = fma(splat(share_of(i)), load(results + i * stride + 16 + d), sums);
        st(o + d, sums / splat(total));
      });
}

}  // namespace

void copy_heads(const HeadCopy& copy, std::int64_t begin, std::int64_t end) {
  if (copy.bf16)
    copy_rows<Bf16>(copy, begin, end);
  else
    copy_rows<float>(copy, begin, end);
}

void attend_cached(const CachedPart& part, float* results, float* scratch) {
  if (part.bf16)
    attend<Bf16>(part, results, scratch);
  else
    attend<float>(part, results, scratch);
}

void join_cached(const float* results, std::int64_t parts, std::int64_t stride, std::int64_t v_dim, bool bf16,
                 void* o) {
  if (bf16)
    join(results, parts, stride, v_dim, static_cast<Bf16*>(o));
  else
    join(results, parts, stride, v_dim, static_cast<float*>(o));
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
