// Where a head lies, what a query sees, softcap and RoPE: shared by all attention kernels.
#pragma once

#include <climits>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/runtime/device.cuh"
#include "kernels/cuda/runtime/fault.cuh"

namespace trainer::kernels::cuda {

/// A score of a key that does not count: it vanishes beside any other, and is finite, since a row of a tile may have no
/// key that counts.
inline constexpr float kMaskedScore = -1e30F;

/// Head `head` of token `token`.
template <typename T>
__device__ __forceinline__ T* head_at(const HeadRows& rows, std::int64_t token, int head, int head_dim) {
  return static_cast<T*>(rows.data) + token * rows.stride + static_cast<std::int64_t>(head) * head_dim;
}

// ---- Which keys a query sees ----

/// Keys of a sample; those behind them pad it. A length that cannot be is one that can, and an error (check_length).
__device__ __forceinline__ int keys_of(const AttentionArguments& a, int batch) {
  return a.lengths == nullptr ? a.keys : min(max(a.lengths[batch], 1), a.keys);
}
/// Tells a length that cannot be; by one thread of a block.
__device__ __forceinline__ void check_length(const AttentionArguments& a, int batch) {
  if (a.lengths == nullptr || threadIdx.x != 0) return;
  const int length = a.lengths[batch];
  if (length < 1 || length > a.keys) report(a.fault, Fault::length, length, batch, a.keys);
}
/// The document of a position, or of the last one if it is beyond all; without documents all positions.
__device__ __forceinline__ DocumentBounds document_at(const AttentionArguments& a, int batch, int position) {
  if (a.documents == nullptr) return {0, INT_MAX};
  return a.documents[static_cast<std::int64_t>(batch) * a.keys + min(position, a.keys - 1)];
}
__device__ __forceinline__ bool within(DocumentBounds bounds, int position) {
  return position >= bounds.first && position < bounds.end;
}
/// Whether some of the positions [first, first + count) and of [other, other + others) are of different documents.
__device__ __forceinline__ bool parts_documents(const AttentionArguments& a, int batch, int first, int count, int other,
                                                int others) {
  return a.documents != nullptr &&
         (other < document_at(a, batch, first + count - 1).first || other + others > document_at(a, batch, first).end);
}
__device__ __forceinline__ bool is_padding(const AttentionArguments& a, int batch, int position) {
  return a.documents != nullptr && document_at(a, batch, position).first == a.keys;
}
/// The place of a position in its document; without documents the position itself.
__device__ __forceinline__ int place_of(const AttentionArguments& a, int batch, int position) {
  return max(position - document_at(a, batch, position).first, 0);
}

/// The keys that the query of a position sees. `count`: of the sample's keys.
__device__ __forceinline__ DocumentBounds keys_seen_by(const AttentionArguments& a, int batch, int count, int query) {
  const DocumentBounds own = document_at(a, batch, query);
  return {max(own.first, query - a.window + 1), min(min(own.end, count), a.causal ? query + 1 : INT_MAX)};
}
/// The positions of queries that see a key.
__device__ __forceinline__ DocumentBounds queries_that_see(const AttentionArguments& a, int batch, int count, int key) {
  const DocumentBounds own = document_at(a, batch, key);
  return {max(own.first, a.causal ? key : 0), key < count ? min(own.end, key + a.window) : 0};
}
/// The first key, and the end of the keys, that some of the queries of positions [first, first + count) see.
__device__ __forceinline__ int first_key_of(const AttentionArguments& a, int batch, int first) {
  return max(first - a.window + 1, document_at(a, batch, first).first);
}
__device__ __forceinline__ int end_key_of(const AttentionArguments& a, int batch, int keys, int first, int count) {
  const int last = min(first + count, a.origin + a.queries) - 1, end = min(keys, document_at(a, batch, last).end);
  return a.causal ? min(end, first + count) : end;
}
/// Rows of queries, the first and the end, that see some of the keys [first, first + count).
__device__ __forceinline__ int first_query_of(const AttentionArguments& a, int batch, int first) {
  return max(max(a.causal ? first : 0, document_at(a, batch, first).first) - a.origin, 0);
}
__device__ __forceinline__ int end_query_of(const AttentionArguments& a, int batch, int first, int count) {
  const int last = min(first + count, a.keys) - 1, end = min(a.queries, first - a.origin + count - 1 + a.window);
  return min(end, document_at(a, batch, last).end - a.origin);
}
/// Whether some of the queries of positions [query, query + queries) do not see some of the keys [key, key + keys).
__device__ __forceinline__ bool is_masked(const AttentionArguments& a, int batch, int count, int query, int queries,
                                          int key, int keys) {
  return key + keys > count || (a.causal && key + keys > query + 1) || query + queries - 1 - key >= a.window ||
         parts_documents(a, batch, query, queries, key, keys);
}

// ---- Softcap ----

/// tanh of a score in units of the softcap, the score not yet scaled.
__device__ __forceinline__ float capped_tanh(const AttentionArguments& a, float score) {
  return tanhf(score * (a.scale / a.softcap));
}
/// What stands in a score's place before it is scaled.
__device__ __forceinline__ float capped(const AttentionArguments& a, float tanh) {
  return tanh * (a.softcap / a.scale);
}

// ---- RoPE ----

struct CosSin {
  float cos, sin;
};
/// Of position · turns[pair] turns, times the rotation's factor. Whole turns are dropped in f64: what is left has the
/// accuracy of f32 at any position.
__device__ __forceinline__ CosSin angle_at(const Rotation& rotation, int position, int pair) {
  const double turns = position * rotation.turns[pair];
  CosSin result;
  sincospif(2 * static_cast<float>(turns - rint(turns)), &result.sin, &result.cos);
  result.cos *= rotation.factor, result.sin *= rotation.factor;
  return result;
}

/// Where the elements of pair `pair` of a head stand.
__device__ __forceinline__ int first_of_pair(const Rotation& rotation, int pair) {
  return rotation.interleaved ? 2 * pair : pair;
}
__device__ __forceinline__ int second_of_pair(const Rotation& rotation, int pair) {
  return rotation.interleaved ? 2 * pair + 1 : pair + rotation.half;
}

/// Turns `Rows` rows of floats in shared memory, of positions of a sample from `position` on, by sign times their
/// angles; by threads `first`, first + step ….
template <int Rows>
__device__ __forceinline__ void turn_rows(float* rows, int stride, const AttentionArguments& a, int batch,
                                          const Rotation& rotation, int position, float sign, int first, int step) {
  for (int i = first; i < Rows * rotation.half; i += step) {
    const int row = i / rotation.half, pair = i % rotation.half;
    const CosSin angle = angle_at(rotation, place_of(a, batch, position + row), pair);
    float *const at = rows + row * stride + first_of_pair(rotation, pair), *const other =
                                                                               rows + row * stride +
                                                                               second_of_pair(rotation, pair);
    const float x = *at, y = *other, sine = sign * angle.sin;
    *at = x * angle.cos - y * sine;
    *other = y * angle.cos + x * sine;
  }
}

}  // namespace trainer::kernels::cuda
