// attention_block, attention_block_grad. A head's rows are widened to f32, turned by their positions and laid dense,
// and each pair of chunks that see each other (in each document) is an attention of its own on the loops of attention
// (forward_loops.cpp, backward_loops.cpp), so no loop knows of rings. Forward, a thread owns a head; backward, a kv
// head, whose dk and dv it sums over the group in a fixed order. bf16 is computed in f32 throughout: what a ring adds
// up is rounded once, and tiles of bf16 (AMX) are not used.
#include "kernels/attention_block.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "engine/core/narrow.h"
#include "engine/core/rope.h"
#include "engine/core/zigzag.h"
#include "kernels/cpu/attention/algorithm.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"
#include "kernels/documents.h"

namespace trainer::kernels::cpu {
namespace {

constexpr std::int64_t kNoWindow = std::int64_t{1} << 40;
constexpr float kNothing = -std::numeric_limits<float>::infinity();  // lse of no keys

/// Queries of a sample beside keys of it, in rows of the rank's parts.
struct Rectangle {
  std::int64_t first_query = 0, queries = 0, first_key = 0, keys = 0;
  std::int64_t apart = 0;  ///< position of the first query less that of the first key
};

/// The rectangles of every sample at a rank's step. Its memory serves again.
class Rectangles {
 public:
  void find(const AttentionBlockShape& shape, std::int64_t rank, const std::int32_t* mask) {
    rectangles_.clear();
    ends_.clear();
    if (shape.of.padded) check_lengths({mask, static_cast<std::size_t>(shape.of.batch)}, shape.ranks * shape.of.keys);
    if (shape.of.by_document)
      find_documents({mask, static_cast<std::size_t>(shape.of.batch * shape.ranks * shape.of.keys)}, shape.of.batch,
                     documents_);
    std::size_t document = 0;
    for (std::int64_t sample = 0; sample < shape.of.batch; ++sample) {
      std::size_t end = document;
      while (shape.of.by_document && end < documents_.size() && documents_[end].sample == sample) ++end;
      for (const ChunkPair& pair : ChunkPairs(rank, shape.ranks, shape.step, shape.of.causal)) {
        const std::int64_t whole = shape.ranks * shape.of.keys;
        if (!shape.of.by_document) add(shape, rank, pair, {0, 0, shape.of.padded ? mask[sample] : whole});
        for (std::size_t i = document; i < end; ++i) add(shape, rank, pair, documents_[i]);
      }
      document = end;
      ends_.push_back(rectangles_.size());
    }
  }

  std::span<const Rectangle> of(std::int64_t sample) const {
    const auto at = static_cast<std::size_t>(sample);
    const std::size_t first = sample == 0 ? 0 : ends_[at - 1];
    return {rectangles_.data() + first, ends_[at] - first};
  }

 private:
  /// A pair's keys of a run of positions, and the queries that see some of them: those of the run where it is a
  /// document, else all.
  void add(const AttentionBlockShape& shape, std::int64_t rank, const ChunkPair& pair, const DocumentRun& run) {
    const std::int64_t c_q = shape.of.queries / 2, c_k = shape.of.keys / 2;
    const std::int64_t source = ring_source(rank, shape.ranks, shape.step);
    const std::int64_t q = zigzag_chunk(rank, shape.ranks, pair.queries) * c_q;
    const std::int64_t k = zigzag_chunk(source, shape.ranks, pair.keys) * c_k;
    const std::int64_t first_key = std::max(run.begin, k), last_key = std::min(run.end, k + c_k);
    std::int64_t first = q, last = q + c_q;
    if (shape.of.by_document) first = std::max(run.begin, q), last = std::min(run.end, q + c_q);
    if (shape.of.causal && shape.of.window > 0) last = std::min(last, last_key + shape.of.window - 1);
    if (first >= last || first_key >= last_key) return;
    rectangles_.push_back({pair.queries * c_q + first - q, last - first, pair.keys * c_k + first_key - k,
                           last_key - first_key, first - first_key});
  }

  std::vector<DocumentRun> documents_;
  std::vector<Rectangle> rectangles_;
  std::vector<std::size_t> ends_;  // of each sample
};

/// The loops' sizes for a rectangle of one head, with dense rows.
AttentionSizes sizes_of(const AttentionBlockShape& shape, std::int64_t queries, std::int64_t keys, std::int64_t apart) {
  const AttentionShape& a = shape.of;
  AttentionSizes sizes;
  sizes.batch = sizes.heads = sizes.kv_heads = 1;
  sizes.queries = queries, sizes.keys = keys;
  sizes.head_dim = a.head_dim, sizes.v_dim = a.v_dim;
  sizes.origin = a.causal ? apart : 0;
  sizes.causal = a.causal;
  sizes.scale = static_cast<float>(a.scale), sizes.softcap = static_cast<float>(a.softcap);
  sizes.window = a.window > 0 ? a.window : kNoWindow;
  sizes.q_stride = sizes.kv_stride = a.head_dim, sizes.v_stride = a.v_dim;
  sizes.lse_stride = queries;
  return sizes;
}
AttentionSizes largest(const AttentionBlockShape& shape) {
  return sizes_of(shape, shape.of.queries / 2, shape.of.keys / 2, 0);
}

/// Rows of one head of a tensor [batch, rows, heads · dim].
struct HeadRows {
  std::int64_t first, stride, rows, dim;  ///< elements; `first` is that of the head's first row

  HeadRows(std::int64_t sample, std::int64_t head, std::int64_t heads, std::int64_t count, std::int64_t width)
      : first(sample * count * heads * width + head * width), stride(heads * width), rows(count), dim(width) {}
};

void read_rows(bool bf16, const void* from, const HeadRows& at, float* to) {
  for (std::int64_t row = 0; row < at.rows; ++row, to += at.dim) {
    const std::int64_t first = at.first + row * at.stride;
    if (!bf16) {
      std::memcpy(to, static_cast<const float*>(from) + first, static_cast<std::size_t>(at.dim) * sizeof(float));
      continue;
    }
    const auto* bits = static_cast<const std::uint16_t*>(from) + first;
    for (std::int64_t i = 0; i < at.dim; ++i) {
      const std::uint32_t wide = std::uint32_t{bits[i]} << 16;
      std::memcpy(to + i, &wide, sizeof(float));
    }
  }
}

void write_rows(bool bf16, const float* from, const HeadRows& at, void* to) {
  for (std::int64_t row = 0; row < at.rows; ++row, from += at.dim) {
    const std::int64_t first = at.first + row * at.stride;
    if (bf16)
      from_f32(from, at.dim, DType::bf16, static_cast<std::uint16_t*>(to) + first);
    else
      std::memcpy(static_cast<float*>(to) + first, from, static_cast<std::size_t>(at.dim) * sizeof(float));
  }
}

/// RoPE of dense rows, of the positions of a rank's part.
class Rotation {
 public:
  Rotation(const Signature& signature, const AttentionBlockShape& shape, std::int64_t rows)
      : frequencies_(rope_frequencies(signature.attributes, shape.of.head_dim)),
        dim_(shape.of.head_dim),
        ranks_(shape.ranks),
        table_(static_cast<std::size_t>(rows * frequencies_.dims())) {}

  /// Makes it that of `rank`'s part; the same one again costs nothing.
  void enter(std::int64_t rank) {
    if (rank == rank_ || table_.empty()) return;
    const std::size_t half = table_.size() / 2;
    const std::int64_t c = static_cast<std::int64_t>(half) / frequencies_.dims();
    for (int i : {0, 1})
      turn_table(frequencies_, zigzag_chunk(rank, ranks_, i) * c,
                 std::span(table_).subspan(static_cast<std::size_t>(i) * half, half));
    rank_ = rank;
  }

  void turn(float* rows) const { turn(rows, 1); }
  void turn_back(float* rows) const { turn(rows, -1); }

 private:
  void turn(float* rows, float sign) const {
    const std::int64_t dims = frequencies_.dims(), half = dims / 2;
    if (table_.empty()) return;
    const std::int64_t count = static_cast<std::int64_t>(table_.size()) / dims;
    const std::int64_t next = frequencies_.interleaved ? 2 : 1, other = frequencies_.interleaved ? 1 : half;
    for (std::int64_t i = 0; i < count; ++i, rows += dim_) {
      const float* const cosines = table_.data() + i * dims;
      for (std::int64_t j = 0; j < half; ++j) {
        float &x = rows[j * next], &y = rows[j * next + other];
        const float c = cosines[j], s = sign * cosines[half + j], turned = x * c - y * s;
        y = y * c + x * s;
        x = turned;
      }
    }
  }

  RopeFrequencies frequencies_;
  std::int64_t dim_, ranks_, rank_ = -1;
  std::vector<float> table_;  // of each row, as turn_table makes it
};

/// Floats, one run after the other.
class Carver {
 public:
  explicit Carver(float* at) : at_(at) {}
  float* take(std::int64_t floats) {
    float* const taken = at_;
    at_ += (floats + 15) / 16 * 16;
    taken_ += (floats + 15) / 16 * 16;
    return taken;
  }
  std::int64_t taken() const { return taken_; }

 private:
  float* at_;
  std::int64_t taken_ = 0;
};

struct ForwardScratch {
  float *q, *k, *v, *o, *lse;  // of a head
  float *o_new, *lse_new;      // of a rectangle
  float* loops;
};
std::int64_t carve(const AttentionBlockShape& shape, const AttentionAlgorithm& algorithm, float* at,
                   ForwardScratch& scratch) {
  const AttentionShape& a = shape.of;
  Carver carver(at);
  scratch.q = carver.take(a.queries * a.head_dim);
  scratch.k = carver.take(a.keys * a.head_dim);
  scratch.v = carver.take(a.keys * a.v_dim);
  scratch.o = carver.take(a.queries * a.v_dim);
  scratch.lse = carver.take(a.queries);
  scratch.o_new = carver.take(a.queries / 2 * a.v_dim);
  scratch.lse_new = carver.take(a.queries / 2);
  scratch.loops = carver.take(algorithm.forward_scratch(largest(shape)));
  return carver.taken();
}

struct BackwardScratch {
  float *q, *d_o, *o, *dq;          // of a head
  float *k, *v, *dk, *dv;           // of a kv head
  float *dq_new, *dk_new, *dv_new;  // of a rectangle
  float* loops;
};
std::int64_t carve(const AttentionBlockShape& shape, const AttentionAlgorithm& algorithm, float* at,
                   BackwardScratch& scratch) {
  const AttentionShape& a = shape.of;
  Carver carver(at);
  scratch.q = carver.take(a.queries * a.head_dim), scratch.dq = carver.take(a.queries * a.head_dim);
  scratch.d_o = carver.take(a.queries * a.v_dim), scratch.o = carver.take(a.queries * a.v_dim);
  scratch.k = carver.take(a.keys * a.head_dim), scratch.dk = carver.take(a.keys * a.head_dim);
  scratch.v = carver.take(a.keys * a.v_dim), scratch.dv = carver.take(a.keys * a.v_dim);
  scratch.dq_new = carver.take(a.queries / 2 * a.head_dim);
  scratch.dk_new = carver.take(a.keys / 2 * a.head_dim);
  scratch.dv_new = carver.take(a.keys / 2 * a.v_dim);
  scratch.loops = carver.take(algorithm.backward_scratch(largest(shape)));
  return carver.taken();
}

void add_rows(const float* from, std::int64_t elements, float* to) {
  for (std::int64_t i = 0; i < elements; ++i) to[i] += from[i];
}

/// Joins what a rectangle gave to what its queries have so far.
void join(const ForwardScratch& scratch, const Rectangle& at, std::int64_t dim) {
  for (std::int64_t i = 0; i < at.queries; ++i) {
    float* const o = scratch.o + (at.first_query + i) * dim;
    const float* const added = scratch.o_new + i * dim;
    float& lse = scratch.lse[at.first_query + i];
    const float top = std::max(lse, scratch.lse_new[i]);
    const float before = std::exp(lse - top), now = std::exp(scratch.lse_new[i] - top), sum = before + now;
    for (std::int64_t j = 0; j < dim; ++j) o[j] = (before * o[j] + now * added[j]) / sum;
    lse = top + std::log(sum);
  }
}

/// What preparation of both ops knows.
struct Prepare {
  AttentionBlockShape shape;
  bool bf16;
  int parts;
  AttentionAlgorithm algorithm;

  Prepare(const Signature& signature, const Context& context)
      : shape(attention_block_shape(signature)),
        bf16(signature.operands[0].dtype == DType::bf16),
        parts(static_cast<int>(std::min<std::int64_t>(
            context.threads,
            shape.of.batch * (signature.op == Op::attention_block ? shape.of.heads : shape.of.kv_heads)))),
        algorithm(attention_algorithm(context.isa, false)) {}

  HeadRows queries(std::int64_t sample, std::int64_t head) const {
    return {sample, head, shape.of.heads, shape.of.queries, shape.of.head_dim};
  }
  HeadRows results(std::int64_t sample, std::int64_t head) const {
    return {sample, head, shape.of.heads, shape.of.queries, shape.of.v_dim};
  }
  HeadRows keys(std::int64_t sample, std::int64_t kv_head) const {
    return {sample, kv_head, shape.of.kv_heads, shape.of.keys, shape.of.head_dim};
  }
  HeadRows values(std::int64_t sample, std::int64_t kv_head) const {
    return {sample, kv_head, shape.of.kv_heads, shape.of.keys, shape.of.v_dim};
  }
};

class Forward {
 public:
  Forward(const Signature& signature, const Context& context)
      : is_(signature, context),
        of_queries_(signature, is_.shape, is_.shape.of.queries),
        of_keys_(signature, is_.shape, is_.shape.of.keys) {
    ForwardScratch scratch{};
    floats_ = carve(is_.shape, is_.algorithm, nullptr, scratch);
  }

  std::int64_t workspace() const { return is_.parts * floats_ * static_cast<std::int64_t>(sizeof(float)); }

  void operator()(const Call& call) {
    const AttentionShape& a = is_.shape.of;
    const int mask = 3, before = is_.shape.num_inputs(), o = before + (is_.shape.continues ? 2 : 0);
    expect_ring_rank(is_.shape, call.origin);
    rectangles_.find(is_.shape, call.origin, before > mask ? operand<std::int32_t>(call, mask) : nullptr);
    of_queries_.enter(call.origin);
    of_keys_.enter(ring_source(call.origin, is_.shape.ranks, is_.shape.step));
    parallel(is_.parts, [&](int part, int of) {
      ForwardScratch scratch{};
      carve(is_.shape, is_.algorithm, static_cast<float*>(call.workspace) + part * floats_, scratch);
      const Range items = partition(a.batch * a.heads, part, of);
      std::int64_t there = -1;  // the kv head in scratch
      for (std::int64_t item = items.begin; item < items.end; ++item) {
        const std::int64_t sample = item / a.heads, head = item % a.heads, kv_head = head / (a.heads / a.kv_heads);
        if (const std::int64_t kv = sample * a.kv_heads + kv_head; kv != there) {
          read_rows(is_.bf16, operand<void>(call, 1), is_.keys(sample, kv_head), scratch.k);
          read_rows(is_.bf16, operand<void>(call, 2), is_.values(sample, kv_head), scratch.v);
          of_keys_.turn(scratch.k);
          there = kv;
        }
        read_rows(is_.bf16, operand<void>(call, 0), is_.queries(sample, head), scratch.q);
        of_queries_.turn(scratch.q);
        begin(call, before, sample, head, scratch);
        for (const Rectangle& one : rectangles_.of(sample)) attend(one, scratch);
        write_rows(is_.bf16 && is_.shape.last, scratch.o, is_.results(sample, head), operand<void>(call, o));
        std::memcpy(operand<float>(call, o + 1) + item * a.queries, scratch.lse,
                    static_cast<std::size_t>(a.queries) * sizeof(float));
      }
    });
  }

 private:
  void begin(const Call& call, int before, std::int64_t sample, std::int64_t head,
             const ForwardScratch& scratch) const {
    const AttentionShape& a = is_.shape.of;
    if (!is_.shape.continues) {
      std::fill_n(scratch.o, a.queries * a.v_dim, 0.0F);
      std::fill_n(scratch.lse, a.queries, kNothing);
      return;
    }
    read_rows(false, operand<void>(call, before), is_.results(sample, head), scratch.o);
    std::memcpy(scratch.lse, operand<float>(call, before + 1) + (sample * a.heads + head) * a.queries,
                static_cast<std::size_t>(a.queries) * sizeof(float));
  }

  void attend(const Rectangle& one, const ForwardScratch& scratch) const {
    const AttentionShape& a = is_.shape.of;
    const AttentionSizes sizes = sizes_of(is_.shape, one.queries, one.keys, one.apart);
    AttentionOperands at;
    at.q = scratch.q + one.first_query * a.head_dim;
    at.k = scratch.k + one.first_key * a.head_dim;
    at.v = scratch.v + one.first_key * a.v_dim;
    at.o_out = scratch.o_new, at.lse_out = scratch.lse_new;
    is_.algorithm.forward(sizes, at, 0, sizes.query_blocks(), scratch.loops);
    join(scratch, one, a.v_dim);
  }

  Prepare is_;
  Rotation of_queries_, of_keys_;
  Rectangles rectangles_;
  std::int64_t floats_ = 0;
};

class Backward {
 public:
  Backward(const Signature& signature, const Context& context)
      : is_(signature, context),
        of_queries_(signature, is_.shape, is_.shape.of.queries),
        of_keys_(signature, is_.shape, is_.shape.of.keys) {
    BackwardScratch scratch{};
    floats_ = carve(is_.shape, is_.algorithm, nullptr, scratch);
  }

  std::int64_t workspace() const { return is_.parts * floats_ * static_cast<std::int64_t>(sizeof(float)); }

  void operator()(const Call& call) {
    const AttentionShape& a = is_.shape.of;
    const int mask = 4, o = 1 + is_.shape.num_inputs(), before = o + 2, dq = before + (is_.shape.continues ? 1 : 0);
    expect_ring_rank(is_.shape, call.origin);
    rectangles_.find(is_.shape, call.origin, o > mask ? operand<std::int32_t>(call, mask) : nullptr);
    of_queries_.enter(call.origin);
    of_keys_.enter(ring_source(call.origin, is_.shape.ranks, is_.shape.step));
    parallel(is_.parts, [&](int part, int of) {
      BackwardScratch scratch{};
      carve(is_.shape, is_.algorithm, static_cast<float*>(call.workspace) + part * floats_, scratch);
      const Range items = partition(a.batch * a.kv_heads, part, of);
      for (std::int64_t item = items.begin; item < items.end; ++item) {
        const std::int64_t sample = item / a.kv_heads, kv_head = item % a.kv_heads, group = a.heads / a.kv_heads;
        enter_keys(call, sample, kv_head, scratch);
        for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          enter_queries(call, o, sample, head, scratch);
          const float* const lse = operand<float>(call, o + 1) + (sample * a.heads + head) * a.queries;
          for (const Rectangle& one : rectangles_.of(sample)) attend(one, lse, scratch);
          of_queries_.turn_back(scratch.dq);
          if (is_.shape.continues) {
            read_rows(false, operand<void>(call, before), is_.queries(sample, head), scratch.q);
            add_rows(scratch.q, a.queries * a.head_dim, scratch.dq);
          }
          write_rows(is_.bf16 && is_.shape.last, scratch.dq, is_.queries(sample, head), operand<void>(call, dq));
        }
        of_keys_.turn_back(scratch.dk);
        write_rows(false, scratch.dk, is_.keys(sample, kv_head), operand<void>(call, dq + 1));
        write_rows(false, scratch.dv, is_.values(sample, kv_head), operand<void>(call, dq + 2));
      }
    });
  }

 private:
  void enter_keys(const Call& call, std::int64_t sample, std::int64_t kv_head, const BackwardScratch& scratch) const {
    const AttentionShape& a = is_.shape.of;
    read_rows(is_.bf16, operand<void>(call, 2), is_.keys(sample, kv_head), scratch.k);
    read_rows(is_.bf16, operand<void>(call, 3), is_.values(sample, kv_head), scratch.v);
    of_keys_.turn(scratch.k);
    std::fill_n(scratch.dk, a.keys * a.head_dim, 0.0F);
    std::fill_n(scratch.dv, a.keys * a.v_dim, 0.0F);
  }

  void enter_queries(const Call& call, int o, std::int64_t sample, std::int64_t head,
                     const BackwardScratch& scratch) const {
    read_rows(is_.bf16, operand<void>(call, 1), is_.queries(sample, head), scratch.q);
    of_queries_.turn(scratch.q);
    read_rows(is_.bf16, operand<void>(call, 0), is_.results(sample, head), scratch.d_o);
    read_rows(is_.bf16, operand<void>(call, o), is_.results(sample, head), scratch.o);
    std::fill_n(scratch.dq, is_.shape.of.queries * is_.shape.of.head_dim, 0.0F);
  }

  void attend(const Rectangle& one, const float* lse, const BackwardScratch& scratch) const {
    const AttentionShape& a = is_.shape.of;
    const AttentionSizes sizes = sizes_of(is_.shape, one.queries, one.keys, one.apart);
    const std::int64_t q = one.first_query * a.head_dim, o = one.first_query * a.v_dim, k = one.first_key * a.head_dim,
                       v = one.first_key * a.v_dim;
    AttentionOperands at;
    at.q = scratch.q + q, at.k = scratch.k + k, at.v = scratch.v + v;
    at.d_o = scratch.d_o + o, at.o = scratch.o + o, at.lse = lse + one.first_query;
    at.dq = scratch.dq_new, at.dk = scratch.dk_new, at.dv = scratch.dv_new;
    is_.algorithm.backward(sizes, at, 0, 1, scratch.loops);
    add_rows(scratch.dq_new, one.queries * a.head_dim, scratch.dq + q);
    add_rows(scratch.dk_new, one.keys * a.head_dim, scratch.dk + k);
    add_rows(scratch.dv_new, one.keys * a.v_dim, scratch.dv + v);
  }

  Prepare is_;
  Rotation of_queries_, of_keys_;
  Rectangles rectangles_;
  std::int64_t floats_ = 0;
};

}  // namespace

std::int64_t attention_block_workspace(const Signature& signature, const Context& context) {
  return Forward(signature, context).workspace();
}
std::int64_t attention_block_grad_workspace(const Signature& signature, const Context& context) {
  return Backward(signature, context).workspace();
}
Prepared prepare_attention_block(const Signature& signature, const Context& context) {
  return make_kernel([run = Forward(signature, context)](const Call& call) mutable { run(call); });
}
Prepared prepare_attention_block_grad(const Signature& signature, const Context& context) {
  return make_kernel([run = Backward(signature, context)](const Call& call) mutable { run(call); });
}

}  // namespace trainer::kernels::cpu
