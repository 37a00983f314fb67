// Attention with scores in full, and its gradient from the saved logarithms (lse) and outputs.
// Legend: B batch, T position, H head, D element of a head.
#include <algorithm>
#include <cmath>

#include "engine/core/op_record.h"
#include "engine/core/rope.h"
#include "tests/reference/reference.h"

namespace trainer::reference {

namespace {

/// Where q, k and v lie among the operands that start at `first`, packed or not.
struct Heads {
  std::int64_t batch, queries, keys, origin, heads, kv_heads, dim;
  bool packed, causal;
  RopeFrequencies rope;
  double scale, softcap;
  std::int64_t window, v_dim;
  const Tensor *lengths = nullptr, *documents = nullptr;
  std::int64_t ranks = 0, source = 0;  // of a block of a ring, whose origin is the rank; 0 ranks: none

  Heads(const Call& c, std::size_t first) : Heads(c.attributes, c.in[first].shape) {
    v_dim = dim;
    if (!packed) keys = c.in[first + 1].shape[1], v_dim = c.in[first + 2].shape[2] / kv_heads;
    origin = c.origin;
    if (c.attributes.has("ranks")) {
      ranks = c.attributes.integer("ranks");
      source = (origin - c.attributes.integer("step") + ranks) % ranks;
    }
    if (flag_of(Op::attention, c.attributes, "padded")) lengths = &c.in[first + (packed ? 1 : 3)];
    if (flag_of(Op::attention, c.attributes, "by_document")) documents = &c.in[first + (packed ? 1 : 3)];
  }
  Heads(const Attributes& a, const Shape& first)
      : batch(first[0]),
        queries(first[1]),
        keys(first[1]),
        origin(0),
        heads(a.integer("heads")),
        kv_heads(a.integer("kv_heads")),
        packed(a.has("packed") && a.flag("packed")),
        causal(a.flag("causal")),
        softcap(real_of(Op::attention, a, "softcap")),
        window(integer_of(Op::attention, a, "window")) {
    dim = first[2] / (packed ? heads + 2 * kv_heads : heads);
    rope = rope_frequencies(a, dim);
    scale = a.has("scale") ? a.real("scale") : 1 / std::sqrt(static_cast<double>(dim));
  }
  std::int64_t size(int part) const { return part == 2 ? v_dim : dim; }
  std::int64_t num(int part) const { return part == 0 ? heads : kv_heads; }
  int operand(int part) const { return packed ? 0 : part; }
  /// The position in the whole sequence of row `t` of queries, and of keys. In a ring a rank has the chunks that are as
  /// far from the front and from the back as its number says.
  std::int64_t of_query(std::int64_t t) const { return ranks == 0 ? origin + t : zigzag(origin, queries, t); }
  std::int64_t of_key(std::int64_t u) const { return ranks == 0 ? u : zigzag(source, keys, u); }
  std::int64_t zigzag(std::int64_t rank, std::int64_t rows, std::int64_t row) const {
    const std::int64_t chunk = rows / 2, from_the_end = rows - 1 - row;
    return row < chunk ? rank * chunk + row : ranks * rows - 1 - (rank * chunk + from_the_end);
  }
  /// Where row `t` of part 0 (q), 1 (k) or 2 (v) of sample `b` stands, in its document if there are documents.
  std::int64_t position(int part, std::int64_t b, std::int64_t t) const {
    const std::int64_t at = part == 0 ? of_query(t) : of_key(t);
    if (documents == nullptr) return at;
    std::int64_t before = at;
    while (before > 0 && document(b, before - 1) == document(b, at)) --before;
    return at - before;
  }
  double document(std::int64_t b, std::int64_t position) const {
    return (*documents)[b * keys * std::max<std::int64_t>(ranks, 1) + position];
  }
  bool pads(std::int64_t b, std::int64_t t) const { return documents != nullptr && document(b, of_query(t)) == -1; }
  /// Whether query `t` of sample `b` sees key `u`.
  bool sees(std::int64_t b, std::int64_t t, std::int64_t u) const {
    const std::int64_t before = of_query(t) - of_key(u);
    if (lengths != nullptr && static_cast<double>(of_key(u)) >= (*lengths)[b]) return false;
    if (documents != nullptr && (pads(b, t) || document(b, of_query(t)) != document(b, of_key(u)))) return false;
    return (!causal || before >= 0) && (window == 0 || before < window);
  }
  /// A score, which is the product of a query and a key, and its slope.
  double score(double product) const {
    return softcap == 0 ? scale * product : softcap * std::tanh(scale * product / softcap);
  }
  double slope(double product) const {
    return softcap == 0 ? scale : scale / std::pow(std::cosh(scale * product / softcap), 2);
  }
  /// Index of element 0 of head `h` of a part, in its operand.
  std::int64_t at(int part, std::int64_t b, std::int64_t t, std::int64_t h) const {
    if (!packed) return ((b * (part == 0 ? queries : keys) + t) * num(part) + h) * size(part);
    const std::int64_t before = part == 0 ? 0 : part == 1 ? heads : heads + kv_heads;
    return ((b * queries + t) * (heads + 2 * kv_heads) + before + h) * dim;
  }
  /// Queries share the keys and values of their group.
  std::int64_t group(std::int64_t h) const { return h / (heads / kv_heads); }
};

using Vector = std::vector<double>;

/// Turns the pairs of `x` by the angles of position `t`; backwards for gradients.
Vector rotated(Vector x, std::int64_t t, const RopeFrequencies& rope, double direction) {
  const std::size_t pairs = rope.angles.size();
  for (std::size_t j = 0; j < pairs; ++j) {
    const double angle = direction * static_cast<double>(t) * rope.angles[j];
    double &first = x[rope.interleaved ? 2 * j : j], &second = x[rope.interleaved ? 2 * j + 1 : j + pairs];
    const double a = first, b = second;
    first = rope.factor * (a * std::cos(angle) - b * std::sin(angle));
    second = rope.factor * (b * std::cos(angle) + a * std::sin(angle));
  }
  return x;
}

/// A head's vector; queries and keys come turned.
Vector head(const Heads& s, const std::vector<Tensor>& operands, int first, int part, std::int64_t b, std::int64_t t,
            std::int64_t h) {
  const auto begin = operands[static_cast<std::size_t>(first + s.operand(part))].data.begin() + s.at(part, b, t, h);
  const Vector x(begin, begin + s.size(part));
  return part == 2 ? x : rotated(x, s.position(part, b, t), s.rope, 1);
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void add_to(Tensor& out, std::int64_t at, const Vector& x, double factor) {
  for (std::size_t i = 0; i < x.size(); ++i) out[at + static_cast<std::int64_t>(i)] += factor * x[i];
}

}  // namespace

void attention(const Call& c) {
  const Heads s(c, 0);
  for (std::int64_t i = 0; i < s.batch * s.heads * s.queries; ++i) {
    const std::int64_t t = i % s.queries, h = i / s.queries % s.heads, b = i / (s.queries * s.heads);
    if (s.pads(b, t)) continue;
    const Vector q = head(s, c.in, 0, 0, b, t, h);
    Vector scores;
    for (std::int64_t u = 0; u < s.keys; ++u)
      scores.push_back(s.sees(b, t, u) ? s.score(dot(q, head(s, c.in, 0, 1, b, u, s.group(h)))) : -INFINITY);
    double largest = -INFINITY, sum = 0;
    for (double score : scores) largest = std::fmax(largest, score);
    for (double score : scores) sum += std::exp(score - largest);
    const double lse = largest + std::log(sum);
    c.out[1][i] = lse;
    for (std::size_t u = 0; u < scores.size(); ++u) {
      const Vector v = head(s, c.in, 0, 2, b, static_cast<std::int64_t>(u), s.group(h));
      add_to(c.out[0], ((b * s.queries + t) * s.heads + h) * s.v_dim, v, std::exp(scores[u] - lse));
    }
  }
}

void attention_block(const Call& c) {
  const Heads s(c, 0);
  const std::size_t before = s.lengths != nullptr || s.documents != nullptr ? 4 : 3;
  const bool continues = flag_of(Op::attention_block, c.attributes, "continues");
  for (std::int64_t i = 0; i < s.batch * s.heads * s.queries; ++i) {
    const std::int64_t t = i % s.queries, h = i / s.queries % s.heads, b = i / (s.queries * s.heads);
    const std::int64_t at = ((b * s.queries + t) * s.heads + h) * s.v_dim;
    const Vector q = head(s, c.in, 0, 0, b, t, h);
    // All terms of the softmax, and what they weigh: the keys here, and what came before as one.
    Vector logs;
    std::vector<Vector> values;
    for (std::int64_t u = 0; u < s.keys; ++u) {
      if (!s.sees(b, t, u)) continue;
      logs.push_back(s.score(dot(q, head(s, c.in, 0, 1, b, u, s.group(h)))));
      values.push_back(head(s, c.in, 0, 2, b, u, s.group(h)));
    }
    if (continues && c.in[before + 1][i] > -INFINITY) {
      logs.push_back(c.in[before + 1][i]);
      values.emplace_back(c.in[before].data.begin() + at, c.in[before].data.begin() + at + s.v_dim);
    }
    c.out[1][i] = -INFINITY;
    if (logs.empty()) continue;
    double largest = -INFINITY, sum = 0;
    for (double one : logs) largest = std::fmax(largest, one);
    for (double one : logs) sum += std::exp(one - largest);
    c.out[1][i] = largest + std::log(sum);
    for (std::size_t u = 0; u < logs.size(); ++u) add_to(c.out[0], at, values[u], std::exp(logs[u] - c.out[1][i]));
  }
}

void document_positions(const Call& c) {
  const std::int64_t batch = c.out[0].shape[0], seq = c.out[0].shape[1], all = c.in[0].shape[1];
  const std::int64_t offset = integer_of(Op::document_positions, c.attributes, "offset");
  for (std::int64_t i = 0; i < batch * seq; ++i) {
    const bool second = integer_of(Op::document_positions, c.attributes, "zigzag") > 0 && i % seq >= seq / 2;
    const std::int64_t at = i / seq * all + (second ? all - c.origin - seq : c.origin) + i % seq;
    std::int64_t before = at;
    while (before % all > 0 && c.in[0][before - 1] == c.in[0][at]) --before;
    c.out[0][i] = static_cast<double>(offset + (c.in[0][at] == -1 ? 0 : at - before));
  }
}

void attention_grad(const Call& c) {
  const Heads s(c, 1);
  const std::size_t after = (s.packed ? 2U : 4U) + (s.lengths != nullptr || s.documents != nullptr ? 1 : 0);
  const Tensor &dout = c.in[0], &out = c.in[after], &lse = c.in[after + 1];
  if (s.ranks > 0 && flag_of(Op::attention_block_grad, c.attributes, "continues")) c.out[0].data = c.in[after + 2].data;
  const auto gradient = [&](int part) -> Tensor& { return c.out[static_cast<std::size_t>(s.operand(part))]; };
  for (std::int64_t i = 0; i < s.batch * s.heads * s.queries; ++i) {
    const std::int64_t t = i % s.queries, h = i / s.queries % s.heads, b = i / (s.queries * s.heads), g = s.group(h);
    const std::int64_t at = ((b * s.queries + t) * s.heads + h) * s.v_dim;
    const Vector dy(dout.data.begin() + at, dout.data.begin() + at + s.v_dim),
        y(out.data.begin() + at, out.data.begin() + at + s.v_dim);
    const Vector q = head(s, c.in, 1, 0, b, t, h);
    for (std::int64_t u = 0; u < s.keys; ++u) {
      if (!s.sees(b, t, u)) continue;
      const Vector k = head(s, c.in, 1, 1, b, u, g), v = head(s, c.in, 1, 2, b, u, g);
      const double product = dot(q, k), p = std::exp(s.score(product) - lse[i]);
      const double dproduct = s.slope(product) * p * (dot(dy, v) - dot(dy, y));
      add_to(gradient(0), s.at(0, b, t, h), rotated(k, s.position(0, b, t), s.rope, -1), dproduct);
      add_to(gradient(1), s.at(1, b, u, g), rotated(q, s.position(1, b, u), s.rope, -1), dproduct);
      add_to(gradient(2), s.at(2, b, u, g), dy, p);
    }
  }
}

}  // namespace trainer::reference
