// Cases of attention and attention_grad, held to the naive sums in f64 of kernels/attention.h on any Runner. Inputs are
// rounded to the kernel's dtype before the reference sees them, so that what is left is the kernel's arithmetic and the
// rounding of its outputs. Ranks of arrays: q, o: [batch, seq, heads, dim]; k, v: [batch, keys, kv_heads, dim]; lse:
// [batch, heads, seq].
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/core/rope.h"
#include "kernels/bf16.h"
#include "tests/kernels/f16.h"
#include "tests/kernels/runner.h"

namespace trainer::kernels::test::attention {

struct Case {
  std::int64_t batch = 2, seq = 65, heads = 4, kv_heads = 2, dim = 16;
  bool causal = true, packed = true;
  double theta = 0;
  DType dtype = DType::f32;
  std::int64_t keys = 0,
               origin = 0;     ///< keys of the whole sequence (0: seq), of which the queries begin at position `origin`
  bool interleaved = false;    ///< RoPE's pairs
  std::int64_t rope_dims = 0;  ///< elements of a head that turn (0: all)
  std::string scaling{};       ///< of RoPE's frequencies
  double factor = 0, softcap = 0;         ///< on scores (0: 1/√dim), and their bound (0: none)
  std::int64_t window = 0;                ///< keys that a query sees at most (0: all before it)
  std::int64_t v_dim = 0;                 ///< elements of a head of v and o (0: as of q and k)
  std::vector<std::int32_t> lengths{};    ///< keys of each sample; none: all of them
  std::vector<std::int32_t> documents{};  ///< of each key, -1 of padding; none: each sample is one

  std::int64_t num_keys() const { return keys == 0 ? seq : keys; }
  std::int64_t tokens() const { return batch * seq; }
  std::int64_t key_tokens() const { return batch * num_keys(); }
  std::int32_t document(std::int64_t b, std::int64_t position) const {
    return documents.empty() ? 0 : documents[static_cast<std::size_t>(b * num_keys() + position)];
  }
  /// Where the document of a position begins and ends; of padding, nowhere.
  std::int64_t document_begin(std::int64_t b, std::int64_t position) const {
    std::int64_t begin = position;
    while (begin > 0 && document(b, begin - 1) == document(b, position)) --begin;
    return begin;
  }
  std::int64_t document_end(std::int64_t b, std::int64_t position) const {
    std::int64_t end = position;
    while (document(b, position) != -1 && end < num_keys() && document(b, end) == document(b, position)) ++end;
    return end;
  }
  /// Keys that query `t` sees: [first, seen).
  std::int64_t first(std::int64_t b, std::int64_t t) const {
    const std::int64_t begin = documents.empty() ? 0 : document_begin(b, origin + t);
    return window == 0 ? begin : std::max<std::int64_t>(begin, origin + t - window + 1);
  }
  std::int64_t seen(std::int64_t b, std::int64_t t) const {
    if (!documents.empty()) {
      const std::int64_t end = document_end(b, origin + t);
      return document(b, origin + t) == -1 ? first(b, t) : causal ? std::min(end, origin + t + 1) : end;
    }
    const std::int64_t there = lengths.empty() ? num_keys() : lengths[static_cast<std::size_t>(b)];
    return causal ? std::min(there, origin + t + 1) : there;
  }
  std::size_t num_inputs() const { return (packed ? 1U : 3U) + (lengths.empty() && documents.empty() ? 0U : 1U); }
  double scale() const { return factor != 0 ? factor : 1 / std::sqrt(static_cast<double>(dim)); }
  double capped(double score) const { return softcap == 0 ? score : softcap * std::tanh(score / softcap); }
  /// The slope of `capped` where it gave `score`.
  double slope(double score) const { return softcap == 0 ? 1 : 1 - score / softcap * (score / softcap); }
  std::string str() const {
    return std::string(name_of(dtype)) + " batch " + std::to_string(batch) + " seq " + std::to_string(seq) + " heads " +
           std::to_string(heads) + "/" + std::to_string(kv_heads) + " dim " + std::to_string(dim) +
           (causal ? " causal" : "") + (packed ? " packed" : "") + " theta " + std::to_string(theta) + " keys " +
           std::to_string(num_keys()) + " origin " + std::to_string(origin) +
           (theta > 0 ? (interleaved ? " neighbours of " : " halves of ") + std::to_string(turned()) + " " + scaling
                      : "") +
           " scale " + std::to_string(scale()) + " softcap " + std::to_string(softcap) + " window " +
           std::to_string(window) + " values " + std::to_string(values()) + (lengths.empty() ? "" : " lengths") +
           (documents.empty() ? "" : " documents");
  }
  std::int64_t values() const { return v_dim == 0 ? dim : v_dim; }
  std::int64_t turned() const { return rope_dims == 0 ? dim : rope_dims; }
  Attributes attributes() const {
    Attributes all{
        {"heads", heads}, {"kv_heads", kv_heads}, {"causal", causal}, {"packed", packed}, {"rope_theta", theta}};
    if (interleaved) all.set("rope_interleaved", true);
    if (rope_dims != 0) all.set("rope_dims", rope_dims);
    if (!scaling.empty()) all.set("rope_scaling", scaling);
    if (factor != 0) all.set("scale", factor);
    if (softcap != 0) all.set("softcap", softcap);
    if (window != 0) all.set("window", window);
    if (!lengths.empty()) all.set("padded", true);
    if (!documents.empty()) all.set("by_document", true);
    return all;
  }
};

/// Queries of a part of a sequence: how many, of how many keys, from which position. Parts begin and end on blocks and
/// within them.
struct Part {
  std::int64_t seq, keys, origin;
};
inline constexpr Part kParts[] = {{17, 65, 0},   {17, 65, 48},  {64, 192, 64}, {64, 192, 128}, {65, 200, 70},
                                  {40, 150, 30}, {33, 129, 96}, {1, 100, 50},  {1, 100, 99},   {30, 130, 33}};

/// RoPE other than that of halves of whole heads: neighbours, parts of a head, scaled frequencies.
inline std::vector<Case> rope_cases(DType dtype) {
  std::vector<Case> cases;
  const auto add = [&](std::int64_t dim, bool packed, bool interleaved, std::int64_t dims, std::string scaling) {
    cases.push_back({1, 67, 2, 1, dim, true, packed, 1000.0, dtype, 0, 0, interleaved, dims, std::move(scaling)});
  };
  for (const auto& [dim, dims] : {std::pair{8, 0}, {20, 0}, {64, 0}, {20, 6}, {64, 16}, {100, 70}}) {
    add(dim, true, true, dims, "");
    if (dims != 0) add(dim, false, false, dims, "");
  }
  add(16, true, false, 0, "linear;factor=4");
  add(16, false, true, 0, "llama3;factor=8;high_freq_factor=4;low_freq_factor=1;original_max_position_embeddings=64");
  add(24, true, false, 16, "yarn;factor=8;original_max_position_embeddings=32");
  add(12, false, false, 8, "longrope;attention_factor=1.25;factors=1,1.5,2,9");
  cases.push_back({2, 40, 2, 1, 20, true, false, 1e4, dtype, 150, 30, true, 12,
                   "yarn;factor=8;original_max_position_embeddings=32"});
  return cases;
}

/// Scores that are scaled otherwise, bounded, and of keys within a window: smaller than a block, of a block, of
/// several, for whole sequences and parts of them.
inline std::vector<Case> score_cases(DType dtype) {
  std::vector<Case> cases;
  const auto add = [&](Case c, double factor, double softcap, std::int64_t window) {
    c.dtype = dtype, c.factor = factor, c.softcap = softcap, c.window = window;
    cases.push_back(c);
  };
  for (const auto& [seq, window] : {std::pair{65, 1}, {65, 5}, {130, 17}, {200, 64}, {200, 65}, {70, 69}, {300, 100}})
    add({1, seq, 2, 1, 16, true, window % 2 == 0}, 0, 0, window);
  for (bool causal : {true, false}) {
    add({1, 67, 2, 1, 20, causal, true}, 0, 1.5, 0);
    add({1, 130, 2, 2, 64, causal, false, 500.0}, 0.3, 2, 0);
    add({1, 67, 1, 1, 12, causal, true}, 0.05, 0, 0);
  }
  add({1, 40, 1, 1, 256, true, true}, 0, 30, 7);
  add({1, 150, 2, 1, 100, true, true, 500.0}, 0.2, 3, 33);
  for (const auto& [seq, keys, origin] : kParts) {
    add({1, seq, 2, 1, 16, true, false, 10000.0, dtype, keys, origin}, 0, 0, 20);
    add({1, seq, 2, 2, 12, true, false, 0, dtype, keys, origin}, 0.4, 2, 70);
  }
  return cases;
}

/// Keys of another sequence, shorter or longer.
inline std::vector<Case> cross_cases(DType dtype) {
  std::vector<Case> cases;
  for (const auto& [seq, keys] : {std::pair{7, 1}, {65, 17}, {130, 64}, {200, 65}, {1, 130}, {40, 150}})
    cases.push_back({2, seq, 2, 1, seq % 2 == 0 ? 16 : 20, false, false, 0, dtype, keys});
  cases.push_back({1, 70, 2, 2, 64, false, false, 0, dtype, 33, 90});  // a part of the queries
  cases.back().softcap = 2;
  return cases;
}

/// Heads of v and o that are smaller or larger than those of q and k, as of DeepSeek's latent attention.
inline std::vector<Case> value_cases(DType dtype) {
  std::vector<Case> cases;
  for (const auto& [dim, values] : {std::pair{24, 16}, {16, 24}, {7, 40}, {48, 33}, {80, 64}, {192, 128}, {20, 136}}) {
    cases.push_back({1, 67, 2, 1, dim, true, false, dim % 2 == 0 ? 500.0 : 0, dtype});
    cases.back().v_dim = values;
  }
  cases.push_back({2, 40, 2, 1, 20, true, false, 1e4, dtype, 150, 30});  // a part of the queries
  cases.back().v_dim = 12, cases.back().softcap = 2, cases.back().window = 50;
  cases.push_back({1, 70, 2, 2, 16, false, false, 0, dtype, 33});  // another sequence
  cases.back().v_dim = 48;
  return cases;
}

/// Samples that are padded: in the middle of a block, at its end, to all but one key, not at all; causal queries beyond
/// a length see all that is there.
inline std::vector<Case> length_cases(DType dtype) {
  std::vector<Case> cases;
  const auto add = [&](Case c, std::vector<std::int32_t> lengths) {
    c.dtype = dtype, c.batch = static_cast<std::int64_t>(lengths.size()), c.lengths = std::move(lengths);
    cases.push_back(std::move(c));
  };
  for (const bool causal : {true, false}) {
    add({3, 67, 2, 1, 16, causal, true}, {67, 1, 40});
    add({2, 200, 2, 2, 20, causal, false, 500.0}, {70, 128});
    add({4, 130, 4, 2, 64, causal, true}, {64, 65, 130, 63});
    add({2, 40, 1, 1, 12, causal, false, 0, dtype, 150, 30}, {100, 33});  // a part of the queries
  }
  add({2, 40, 2, 1, 16, false, false, 0, dtype, 150}, {17, 129});  // another sequence
  add({2, 90, 1, 1, 100, true, true, 100.0}, {89, 5});
  cases.back().softcap = 2;
  add({1, 70, 1, 1, 256, false, true}, {66});
  return cases;
}

/// Rows of documents of such lengths, then padding.
inline std::vector<std::int32_t> documents_of(std::int64_t keys, const std::vector<std::vector<std::int64_t>>& rows) {
  std::vector<std::int32_t> documents;
  for (const std::vector<std::int64_t>& lengths : rows) {
    std::vector<std::int32_t> row;
    for (std::size_t i = 0; i < lengths.size(); ++i)
      row.insert(row.end(), static_cast<std::size_t>(lengths[i]), static_cast<std::int32_t>(i));
    row.resize(static_cast<std::size_t>(keys), -1);
    documents.insert(documents.end(), row.begin(), row.end());
  }
  return documents;
}

/// Rows of several documents: of one token, that end within blocks and at their ends, with padding and without, a whole
/// row of padding; with all that attention has, and of a part of the queries, which begins in a document or in padding.
inline std::vector<Case> document_cases(DType dtype) {
  std::vector<Case> cases;
  const auto add = [&](Case c, const std::vector<std::vector<std::int64_t>>& rows) {
    c.dtype = dtype, c.batch = static_cast<std::int64_t>(rows.size()), c.documents = documents_of(c.num_keys(), rows);
    cases.push_back(std::move(c));
  };
  for (const bool causal : {true, false}) {
    add({3, 67, 2, 1, 16, causal, true}, {{1, 2, 64}, {40, 1, 20}, {}});
    add({1, 150, 2, 2, 20, causal, false, 500.0}, {{64, 64, 1, 1, 20}});
    add({1, 130, 2, 1, 64, causal, true, 100.0}, {{65, 30}});
    for (const auto& [seq, keys, origin] : {Part{17, 65, causal ? 0 : 48}, {64, 192, 64}, {40, 150, 30}, {1, 100, 50}})
      add({1, seq, 2, 1, 12, causal, false, origin % 3 == 0 ? 1000.0 : 0, dtype, keys, origin},
          {{origin / 2 + 1, 20, keys - origin / 2 - 40}});
    add({2, 40, 1, 1, 12, causal, false, 100.0, dtype, 150, 60}, {{20, 30}, {70, 5, 1}});  // parts that are padding
  }
  add({1, 90, 2, 1, 100, true, true, 100.0}, {{30, 50, 3}});
  cases.back().softcap = 2, cases.back().window = 9;
  add({1, 150, 2, 1, 24, true, false, 100.0}, {{3, 90}});
  cases.back().v_dim = 16, cases.back().window = 65, cases.back().factor = 0.3, cases.back().rope_dims = 10;
  cases.back().interleaved = true;
  add({1, 40, 1, 1, 256, false, true}, {{17, 20}});
  add({1, 260, 1, 1, 32, true, true}, {{70, 1, 140, 40}});
  return cases;
}

using Doubles = std::vector<double>;

// ---- The reference ----

struct Inputs {
  Doubles q, k, v, d_o;
};
struct Outputs {
  Doubles o, lse;
};
struct Gradients {
  Doubles dq, dk, dv;
};

/// Element offset of a head's vector of query, or key, `t`.
inline std::size_t at(const Case& c, std::int64_t b, std::int64_t t, std::int64_t head) {
  return static_cast<std::size_t>(((b * c.seq + t) * c.heads + head) * c.dim);
}
inline std::size_t result_at(const Case& c, std::int64_t b, std::int64_t t, std::int64_t head) {
  return static_cast<std::size_t>(((b * c.seq + t) * c.heads + head) * c.values());
}
inline std::size_t value_at(const Case& c, std::int64_t b, std::int64_t t, std::int64_t head) {
  return static_cast<std::size_t>(((b * c.num_keys() + t) * c.kv_heads + head) * c.values());
}
inline std::size_t key_at(const Case& c, std::int64_t b, std::int64_t t, std::int64_t head) {
  return static_cast<std::size_t>(((b * c.num_keys() + t) * c.kv_heads + head) * c.dim);
}

/// Every head's vectors turned by their positions, the first of which is `origin`; `sign` -1 turns back.
inline Doubles rotated(const Case& c, Doubles x, std::int64_t heads, std::int64_t rows, std::int64_t origin,
                       double sign) {
  if (c.theta == 0) return x;
  const std::int64_t pairs = c.turned() / 2;
  const RopeFrequencies scaled = rope_frequencies(c.attributes(), c.dim);
  const auto frequency = [&](std::int64_t j) {
    return c.scaling.empty() ? std::pow(c.theta, -static_cast<double>(j) / static_cast<double>(pairs))
                             : scaled.angles[static_cast<std::size_t>(j)];
  };
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t t = 0; t < rows; ++t) {
      const std::int64_t place = origin + t - (c.documents.empty() ? 0 : c.document_begin(b, origin + t));
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t j = 0; j < pairs; ++j) {
          const std::size_t vector = static_cast<std::size_t>(((b * rows + t) * heads + h) * c.dim);
          double& first = x[vector + static_cast<std::size_t>(c.interleaved ? 2 * j : j)];
          double& second = x[vector + static_cast<std::size_t>(c.interleaved ? 2 * j + 1 : j + pairs)];
          const double angle = static_cast<double>(place) * frequency(j);
          const double x1 = first, x2 = second, cosine = scaled.factor * std::cos(angle),
                       sine = sign * scaled.factor * std::sin(angle);
          first = x1 * cosine - x2 * sine;
          second = x2 * cosine + x1 * sine;
        }
    }
  return x;
}
inline Doubles rotated_q(const Case& c, Doubles q, double sign) {
  return rotated(c, std::move(q), c.heads, c.seq, c.origin, sign);
}
inline Doubles rotated_k(const Case& c, Doubles k, double sign) {
  return rotated(c, std::move(k), c.kv_heads, c.num_keys(), 0, sign);
}

inline double dot(std::int64_t dim, const Doubles& x, std::size_t i, const Doubles& y, std::size_t j) {
  double sum = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) sum += x[i + d] * y[j + d];
  return sum;
}

inline void add(std::int64_t dim, double factor, const Doubles& x, std::size_t i, Doubles& y, std::size_t j) {
  for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) y[j + d] += factor * x[i + d];
}

inline Outputs reference(const Case& c, const Inputs& in) {
  const Doubles q = rotated_q(c, in.q, 1), k = rotated_k(c, in.k, 1);
  Outputs out{Doubles(in.d_o.size()), Doubles(static_cast<std::size_t>(c.tokens() * c.heads))};
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < c.seq; ++i) {
        const std::int64_t kv = h / (c.heads / c.kv_heads), first = c.first(b, i), end = c.seen(b, i);
        if (first == end) continue;  // padding
        Doubles s;
        for (std::int64_t j = first; j < end; ++j)
          s.push_back(c.capped(c.scale() * dot(c.dim, q, at(c, b, i, h), k, key_at(c, b, j, kv))));
        const double top = *std::max_element(s.begin(), s.end());
        double sum = 0;
        for (double x : s) sum += std::exp(x - top);
        const double lse = top + std::log(sum);
        out.lse[static_cast<std::size_t>((b * c.heads + h) * c.seq + i)] = lse;
        for (std::int64_t j = first; j < end; ++j)
          add(c.values(), std::exp(s[static_cast<std::size_t>(j - first)] - lse), in.v, value_at(c, b, j, kv), out.o,
              result_at(c, b, i, h));
      }
  return out;
}

inline Gradients reference_grad(const Case& c, const Inputs& in, const Outputs& out) {
  const Doubles q = rotated_q(c, in.q, 1), k = rotated_k(c, in.k, 1);
  Gradients g{Doubles(q.size()), Doubles(k.size()), Doubles(in.v.size())};
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < c.seq; ++i) {
        const std::int64_t kv = h / (c.heads / c.kv_heads);
        const std::size_t qi = at(c, b, i, h), oi = result_at(c, b, i, h);
        const double delta = dot(c.values(), in.d_o, oi, out.o, oi),
                     lse = out.lse[static_cast<std::size_t>((b * c.heads + h) * c.seq + i)];
        for (std::int64_t j = c.first(b, i); j < c.seen(b, i); ++j) {
          const std::size_t kj = key_at(c, b, j, kv), vj = value_at(c, b, j, kv);
          const double score = c.capped(c.scale() * dot(c.dim, q, qi, k, kj)), p = std::exp(score - lse),
                       ds = p * c.slope(score) * (dot(c.values(), in.d_o, oi, in.v, vj) - delta);
          add(c.dim, ds * c.scale(), k, kj, g.dq, qi);
          add(c.dim, ds * c.scale(), q, qi, g.dk, kj);
          add(c.values(), p, in.d_o, oi, g.dv, vj);
        }
      }
  g.dq = rotated_q(c, g.dq, -1);
  g.dk = rotated_k(c, g.dk, -1);
  return g;
}

// ---- Memory of the kernel's dtype ----

inline void put(DType dtype, char* to, std::int64_t index, double value) {
  if (dtype == DType::bf16)
    reinterpret_cast<Bf16*>(to)[index] = to_bf16(static_cast<float>(value));
  else if (dtype == DType::f16)
    reinterpret_cast<std::uint16_t*>(to)[index] = f16_bits(value);
  else
    reinterpret_cast<float*>(to)[index] = static_cast<float>(value);
}
inline double get(DType dtype, const char* from, std::int64_t index) {
  if (dtype == DType::bf16) return to_f32(reinterpret_cast<const Bf16*>(from)[index]);
  return dtype == DType::f16 ? f16_value(reinterpret_cast<const std::uint16_t*>(from)[index])
                             : reinterpret_cast<const float*>(from)[index];
}
inline double rounded(DType dtype, double x) {
  char memory[4];
  put(dtype, memory, 0, x);
  return get(dtype, memory, 0);
}

inline Doubles normals(DType dtype, std::int64_t count, unsigned seed, double deviation = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0, deviation);
  Doubles x(static_cast<std::size_t>(count));
  for (double& value : x) value = rounded(dtype, normal(generator));
  return x;
}

inline Inputs inputs_of(const Case& c, unsigned seed = 1, double deviation = 1) {
  const std::int64_t q = c.tokens() * c.heads * c.dim, k = c.key_tokens() * c.kv_heads * c.dim;
  const std::int64_t v = c.key_tokens() * c.kv_heads * c.values(), o = c.tokens() * c.heads * c.values();
  return {normals(c.dtype, q, seed, deviation), normals(c.dtype, k, seed + 1, deviation), normals(c.dtype, v, seed + 2),
          normals(c.dtype, o, seed + 3)};
}

/// 64-byte aligned memory between two guards.
class Guarded {
 public:
  explicit Guarded(std::int64_t bytes)
      : bytes_(bytes), memory_(static_cast<std::size_t>(bytes + 3 * kGuard), kPattern) {
    begin_ = memory_.data() + kGuard;
    begin_ += (64 - reinterpret_cast<std::uintptr_t>(begin_) % 64) % 64;
  }
  char* data() { return begin_; }
  std::int64_t bytes() const { return bytes_; }
  bool whole() const {
    return std::all_of(memory_.data(), static_cast<const char*>(begin_), is_pattern) &&
           std::all_of(static_cast<const char*>(begin_) + bytes_, memory_.data() + memory_.size(), is_pattern);
  }
  bool operator==(const Guarded& other) const {
    return bytes_ == other.bytes_ && std::memcmp(begin_, other.begin_, static_cast<std::size_t>(bytes_)) == 0;
  }

 private:
  static constexpr std::int64_t kGuard = 256;
  static constexpr char kPattern = 0x5A;
  static bool is_pattern(char c) { return c == kPattern; }
  std::int64_t bytes_;
  std::vector<char> memory_;
  char* begin_ = nullptr;
};

/// The descriptors of qkv, or of q, k, v, as the case wants them.
inline std::vector<TensorDesc> trio_descs(const Case& c) {
  if (c.packed) return {{c.dtype, Shape{c.batch, c.seq, (c.heads + 2 * c.kv_heads) * c.dim}}};
  return {{c.dtype, Shape{c.batch, c.seq, c.heads * c.dim}},
          {c.dtype, Shape{c.batch, c.num_keys(), c.kv_heads * c.dim}},
          {c.dtype, Shape{c.batch, c.num_keys(), c.kv_heads * c.values()}}};
}

/// visit(operand, index, part, element) for every element of q (part 0), k (1) and v (2).
template <typename Visit>
void each_of_trio(const Case& c, Visit visit) {
  const std::int64_t widths[] = {c.heads * c.dim, c.kv_heads * c.dim, c.kv_heads * c.values()};
  std::int64_t before = 0;
  for (int part = 0; part < 3; ++part) {
    for (std::int64_t t = 0; t < (part == 0 ? c.tokens() : c.key_tokens()); ++t)
      for (std::int64_t i = 0; i < widths[part]; ++i) {
        const std::int64_t row = widths[0] + widths[1] + widths[2];
        visit(c.packed ? 0 : part, c.packed ? t * row + before + i : t * widths[part] + i, part,
              static_cast<std::size_t>(t * widths[part] + i));
      }
    before += widths[part];
  }
}

// ---- One run ----

struct Run {
  std::vector<Guarded> operands;
};

inline Signature signature_of(const Case& c, Op op) {
  const TensorDesc o{c.dtype, Shape{c.batch, c.seq, c.heads * c.values()}},
      lse{DType::f32, Shape{c.batch, c.heads, c.seq}};
  Signature s{op, c.attributes(), trio_descs(c)};
  if (op == Op::attention_grad) s.operands.insert(s.operands.begin(), o);
  if (!c.lengths.empty()) s.operands.push_back({DType::i32, Shape{c.batch}});
  if (!c.documents.empty()) s.operands.push_back({DType::i32, Shape{c.batch, c.num_keys()}});
  s.operands.insert(s.operands.end(), {o, lse});
  if (op == Op::attention_grad)
    for (const TensorDesc& desc : trio_descs(c)) s.operands.push_back(desc);
  return s;
}

inline Run prepared_run(const Signature& s) {
  Run run;
  for (const TensorDesc& desc : s.operands) run.operands.emplace_back(desc.bytes());
  return run;
}

inline void launch(const Signature& s, Runner& runner, Run& run, std::int64_t origin = 0) {
  std::vector<void*> addresses;
  for (Guarded& operand : run.operands) addresses.push_back(operand.data());
  runner.run(s, addresses, origin);
  CHECK(std::all_of(run.operands.begin(), run.operands.end(), [](const Guarded& operand) { return operand.whole(); }));
}

inline void put_trio(const Case& c, const Inputs& in, Run& run, std::size_t first) {
  const Doubles* parts[] = {&in.q, &in.k, &in.v};
  each_of_trio(c, [&](int operand, std::int64_t index, int part, std::size_t element) {
    put(c.dtype, run.operands[first + static_cast<std::size_t>(operand)].data(), index, (*parts[part])[element]);
  });
  for (const auto* masks : {&c.lengths, &c.documents})
    if (!masks->empty())
      std::memcpy(run.operands[first + c.num_inputs() - 1].data(), masks->data(), masks->size() * sizeof(std::int32_t));
}

inline void put_all(DType dtype, const Doubles& x, Guarded& to) {
  for (std::size_t i = 0; i < x.size(); ++i) put(dtype, to.data(), static_cast<std::int64_t>(i), x[i]);
}
inline Doubles get_all(DType dtype, Guarded& from) {
  Doubles x(static_cast<std::size_t>(from.bytes() / size_of(dtype)));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = get(dtype, from.data(), static_cast<std::int64_t>(i));
  return x;
}

inline Run run_forward(const Case& c, const Inputs& in, Runner& runner) {
  const Signature s = signature_of(c, Op::attention);
  Run run = prepared_run(s);
  put_trio(c, in, run, 0);
  launch(s, runner, run, c.origin);
  return run;
}

inline Outputs outputs_of(const Case& c, Run& run) {
  const std::size_t o = run.operands.size() - 2;
  return {get_all(c.dtype, run.operands[o]), get_all(DType::f32, run.operands[o + 1])};
}

inline Run run_backward(const Case& c, const Inputs& in, const Outputs& out, Runner& runner) {
  const Signature s = signature_of(c, Op::attention_grad);
  Run run = prepared_run(s);
  const std::size_t o = 1 + c.num_inputs();
  put_all(c.dtype, in.d_o, run.operands[0]);
  put_trio(c, in, run, 1);
  put_all(c.dtype, out.o, run.operands[o]);
  put_all(DType::f32, out.lse, run.operands[o + 1]);
  launch(s, runner, run, c.origin);
  return run;
}

inline Gradients gradients_of(const Case& c, Run& run) {
  const std::size_t q = static_cast<std::size_t>(c.tokens() * c.heads * c.dim),
                    k = static_cast<std::size_t>(c.key_tokens() * c.kv_heads * c.dim),
                    v = static_cast<std::size_t>(c.key_tokens() * c.kv_heads * c.values());
  Gradients g{Doubles(q), Doubles(k), Doubles(v)};
  Doubles* parts[] = {&g.dq, &g.dk, &g.dv};
  each_of_trio(c, [&](int operand, std::int64_t index, int part, std::size_t element) {
    Guarded& from = run.operands[c.num_inputs() + 3 + static_cast<std::size_t>(operand)];
    (*parts[part])[element] = get(c.dtype, from.data(), index);
  });
  return g;
}

// ---- Comparison ----

/// Largest distance between x and y, in units of the bound: `rounding` · |y| for the output's own rounding, and n ·
/// (largest |y|) for what comes before it. Of f32 sums n is eps · (8 + √(seq · dim)): errors of a sum grow as the root
/// of its length, and each score's error, some eps · √dim · |score| with |score| ≤ 8, scales a probability. `terms` is
/// what rounded factors add to n. The largest is 1 at least, the inputs' own size, since do·v - delta may cancel to
/// nothing.
inline double worst(const Case& c, const Doubles& x, const Doubles& y, double rounding, double terms) {
  const double n = terms + 0x1p-23 * (8 + std::sqrt(static_cast<double>(c.num_keys() * c.dim)));
  double largest = 1, ratio = 0;
  for (double value : y) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double distance = std::abs(x[i] - y[i]), bound = rounding * std::abs(y[i]) + n * largest;
    ratio = std::isfinite(distance) ? std::max(ratio, distance / bound) : INFINITY;
  }
  return ratio;
}

/// Where factors are rounded, each term's p or ds has the error of the dtype, and q and k after RoPE, which scales a
/// probability by some eps · |score| / 2: n grows by 2 eps, or 4 eps with RoPE; lse of rounded q and k by eps.
struct Bounds {
  double rounding, terms, lse_terms;
};
inline Bounds bounds_of(const Case& c, const Runner& runner) {
  const double eps = c.dtype == DType::bf16 ? 0x1p-8 : c.dtype == DType::f16 ? 0x1p-11 : 0x1p-23;
  const bool rope = c.theta > 0, rounds = c.dtype != DType::f32 && runner.rounds_factors();
  return {eps, !rounds ? 0 : rope ? 4 * eps : 2 * eps, !rounds ? 0 : rope ? eps : 0x1p-18};
}

inline Outputs rounded(const Case& c, Outputs out) {
  for (double& x : out.o) x = rounded(c.dtype, x);
  for (double& x : out.lse) x = rounded(DType::f32, x);
  return out;
}

inline void check_same(std::vector<Guarded>& first, std::vector<Guarded>& now) {
  if (first.empty())
    first = std::move(now);
  else
    CHECK(first == now);
}

/// Holds every runner to the reference, and those of a family to the same bits.
template <typename Runners>
void check_case(const Case& c, const Runners& runners) {
  const Inputs in = inputs_of(c);
  const Outputs truth = reference(c, in), given = rounded(c, truth);
  const Gradients gradient = reference_grad(c, in, given);
  std::map<int, std::vector<Guarded>> first_forward, first_backward;
  for (const auto& runner : runners) {
    CAPTURE(c.str());
    CAPTURE(runner->name());
    const Bounds bounds = bounds_of(c, *runner);
    Run forward = run_forward(c, in, *runner);
    const Outputs out = outputs_of(c, forward);
    CHECK(worst(c, out.o, truth.o, bounds.rounding, bounds.terms) <= 1);
    CHECK(worst(c, out.lse, truth.lse, 0x1p-23, bounds.lse_terms) <= 1);
    Run backward = run_backward(c, in, given, *runner);
    const Gradients g = gradients_of(c, backward);
    CHECK(worst(c, g.dq, gradient.dq, bounds.rounding, bounds.terms) <= 1);
    CHECK(worst(c, g.dk, gradient.dk, bounds.rounding, bounds.terms) <= 1);
    CHECK(worst(c, g.dv, gradient.dv, bounds.rounding, bounds.terms) <= 1);
    check_same(first_forward[runner->family()], forward.operands);
    check_same(first_backward[runner->family()], backward.operands);
  }
}

}  // namespace trainer::kernels::test::attention
