// attention and attention_grad: checks, RoPE's table, and the cut of the work over threads.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/core/op_record.h"
#include "engine/core/rope.h"
#include "kernels/cpu/attention/algorithm.h"
#include "kernels/cpu/attention/documents.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

bool is_packed(const Signature& s) { return flag(s, "packed"); }

/// The sizes of a signature whose q (or qkv) is operand `q`. Raises Bug where the operands do not fit together.
AttentionSizes sizes_of(const Signature& s, int q) {
  const AttentionShape shape = attention_shape(s, q);
  AttentionSizes sizes;
  sizes.bf16 = expect_compute_dtype(s, q);
  sizes.heads = shape.heads;
  sizes.kv_heads = shape.kv_heads;
  sizes.batch = shape.batch;
  sizes.queries = shape.queries;
  sizes.keys = shape.keys;
  sizes.head_dim = shape.head_dim;
  sizes.v_dim = shape.v_dim;
  sizes.causal = shape.causal;
  sizes.scale = static_cast<float>(shape.scale);
  sizes.softcap = static_cast<float>(shape.softcap);
  sizes.window = shape.window < shape.keys ? shape.window : std::int64_t{1} << 40;
  sizes.q_stride = s.operands[static_cast<std::size_t>(q)].shape[2];
  sizes.kv_stride = shape.packed ? sizes.q_stride : sizes.kv_heads * sizes.head_dim;
  sizes.v_stride = shape.packed ? sizes.q_stride : sizes.kv_heads * sizes.v_dim;
  sizes.lse_stride = shape.queries;
  return sizes;
}

/// Checks operands [first, …): q, k, v or qkv.
void expect_qkv(const Signature& s, const AttentionSizes& sizes, int first) {
  const DType dtype = sizes.bf16 ? DType::bf16 : DType::f32;
  expect_shape(s, first, dtype, Shape{sizes.batch, sizes.queries, sizes.q_stride});
  if (is_packed(s)) return;
  expect_shape(s, first + 1, dtype, Shape{sizes.batch, sizes.keys, sizes.kv_stride});
  expect_shape(s, first + 2, dtype, Shape{sizes.batch, sizes.keys, sizes.v_stride});
}

/// Checks o and lse, or do.
void expect_o(const Signature& s, const AttentionSizes& sizes, int operand) {
  expect_shape(s, operand, sizes.bf16 ? DType::bf16 : DType::f32,
               Shape{sizes.batch, sizes.queries, sizes.heads * sizes.v_dim});
}
void expect_lse(const Signature& s, const AttentionSizes& sizes, int operand) {
  expect_shape(s, operand, DType::f32, Shape{sizes.batch, sizes.heads, sizes.queries});
}

/// RoPE's frequencies; `sizes` gets what they mean for rows.
RopeFrequencies take_rope(const Signature& s, AttentionSizes& sizes) {
  RopeFrequencies rope = rope_frequencies(s.attributes, sizes.head_dim);
  sizes.turned = rope.dims(), sizes.interleaved = rope.interleaved;
  return rope;
}

/// The table AttentionSizes::rotation speaks of; empty without RoPE.
std::vector<float> rotation_table(const RopeFrequencies& rope, const AttentionSizes& sizes) {
  std::vector<float> table(static_cast<std::size_t>(sizes.keys * rope.dims()));
  turn_table(rope, 0, table);
  return table;
}

/// `p` moved by `elements` of c.
void* advance(const AttentionSizes& sizes, void* p, std::int64_t elements) {
  return static_cast<char*>(p) + elements * (sizes.bf16 ? 2 : 4);
}

/// Addresses of q, k and v from operands [first, …), packed or not.
struct Three {
  void *q, *k, *v;
};
Three three_of(const AttentionSizes& sizes, bool packed, const Call& call, int first) {
  void* q = operand<void>(call, first);
  if (!packed) return {q, operand<void>(call, first + 1), operand<void>(call, first + 2)};
  return {q, advance(sizes, q, sizes.heads * sizes.head_dim),
          advance(sizes, q, (sizes.heads + sizes.kv_heads) * sizes.head_dim)};
}

int backward_threads(const AttentionSizes& s, int threads) {
  return static_cast<int>(std::min<std::int64_t>(threads, s.batch * s.kv_heads));
}

/// Pieces of whole heads that `threads` threads claim, where there are `heads`.
int pieces_of(std::int64_t heads, int threads) {
  constexpr int kPieces = 8;  // a thread
  return threads == 1
             ? 1
             : static_cast<int>(std::max<std::int64_t>(threads, std::min<std::int64_t>(heads, kPieces * threads)));
}

}  // namespace

std::int64_t first_query_block(const AttentionSizes& s, std::int64_t goal, std::int64_t per_head) {
  const std::int64_t rest = goal % per_head;
  std::int64_t block = 0;
  for (std::int64_t before = 0; before < rest; ++block) before += s.seen_blocks(block) - s.first_seen(block);
  return goal / per_head * s.query_blocks() + block;
}

std::int64_t first_query_block(const AttentionSizes& s, int part, int parts) {
  const std::int64_t heads = s.batch * s.heads, per_head = s.pairs_of_blocks();
  return first_query_block(s, heads * per_head / parts * part + heads * per_head % parts * part / parts, per_head);
}

AttentionOperands operands_at(const AttentionSizes& s, const AttentionOperands& all, std::int64_t sample,
                              std::int64_t query, std::int64_t key) {
  const auto moved = [&](const void* p, std::int64_t elements) {
    return p == nullptr ? nullptr : advance(s, const_cast<void*>(p), elements);
  };
  const std::int64_t row = sample * s.queries + query, of_keys = sample * s.keys + key, q = row * s.q_stride,
                     k = of_keys * s.kv_stride, v = of_keys * s.v_stride, o = row * s.heads * s.v_dim,
                     lse = sample * s.heads * s.lse_stride + query;
  AttentionOperands at = all;
  at.q = moved(all.q, q), at.dq = moved(all.dq, q);
  at.k = moved(all.k, k), at.dk = moved(all.dk, k);
  at.v = moved(all.v, v), at.dv = moved(all.dv, v);
  at.o = moved(all.o, o), at.o_out = moved(all.o_out, o), at.d_o = moved(all.d_o, o);
  if (all.lse != nullptr) at.lse = all.lse + lse;
  if (all.lse_out != nullptr) at.lse_out = all.lse_out + lse;
  return at;
}

void clear_rows(const AttentionSizes& s, void* rows, std::int64_t stride, std::int64_t elements, std::int64_t count) {
  for (std::int64_t row = 0; row < count; ++row)
    std::memset(advance(s, rows, row * stride), 0, static_cast<std::size_t>(elements * (s.bf16 ? 2 : 4)));
}

/// Samples with lengths: each is an attention of its own, of as many keys. Calls run(sizes, operands, items of the
/// sample) for a part of all items, of which each sample has `items`.
template <typename Run>
void for_each_sample(const AttentionSizes& s, const AttentionOperands& at, const std::int32_t* lengths,
                     std::int64_t items, int part, int of, Run&& run) {
  const Range range = partition(s.batch * items, part, of);
  for (std::int64_t b = range.begin / items; b * items < range.end; ++b) {
    AttentionSizes sample = s;
    sample.batch = 1, sample.keys = lengths[b];
    run(sample, operands_at(s, at, b, 0, 0),
        Range{std::max<std::int64_t>(range.begin - b * items, 0), std::min(range.end - b * items, items)});
  }
}

/// Makes the gradients of keys [first, last) of some kv heads 0.
void clear_padding(const AttentionSizes& s, const AttentionOperands& at, std::int64_t first, std::int64_t last,
                   Range heads) {
  const AttentionOperands from = operands_at(s, at, 0, 0, first);
  clear_rows(s, advance(s, from.dk, heads.begin * s.head_dim), s.kv_stride, heads.size() * s.head_dim, last - first);
  clear_rows(s, advance(s, from.dv, heads.begin * s.v_dim), s.v_stride, heads.size() * s.v_dim, last - first);
}

/// The lengths of samples, operand `index`.
const std::int32_t* lengths_of(const AttentionSizes& s, const Call& call, int index) {
  const auto* lengths = operand<std::int32_t>(call, index);
  check_lengths({lengths, static_cast<std::size_t>(s.batch)}, s.keys);
  return lengths;
}

void turn_table(const RopeFrequencies& rope, std::int64_t first, std::span<float> table) {
  const auto half = static_cast<std::int64_t>(rope.angles.size());
  const std::int64_t rows = half == 0 ? 0 : static_cast<std::int64_t>(table.size()) / (2 * half);
  for (std::int64_t j = 0; j < half; ++j) {
    const double frequency = rope.angles[static_cast<std::size_t>(j)];
    for (std::int64_t i = 0; i < rows; ++i) {
      float* const row = table.data() + i * 2 * half;
      const double angle = static_cast<double>(first + i) * frequency;
      row[j] = static_cast<float>(rope.factor * std::cos(angle));
      row[half + j] = static_cast<float>(rope.factor * std::sin(angle));
    }
  }
}

int forward_threads(const AttentionSizes& s, int threads) {
  const std::int64_t blocks =
      (s.queries + kAttentionBlock - 1) / kAttentionBlock;  // at least so many, wherever the queries begin
  return static_cast<int>(std::min<std::int64_t>(threads, s.batch * s.heads * blocks));
}
std::int64_t attention_workspace(const Signature& signature, int threads, const AttentionAlgorithm& algorithm) {
  const AttentionSizes s = sizes_of(signature, 0);
  return forward_threads(s, threads) * algorithm.forward_scratch(s) * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t attention_grad_workspace(const Signature& signature, int threads, const AttentionAlgorithm& algorithm) {
  const AttentionSizes s = sizes_of(signature, 1);
  return backward_threads(s, threads) * algorithm.backward_scratch(s) * static_cast<std::int64_t>(sizeof(float));
}

Prepared prepare_attention(const Signature& signature, int threads, const AttentionAlgorithm& algorithm) {
  AttentionSizes sizes = sizes_of(signature, 0);
  const RopeFrequencies rope = take_rope(signature, sizes);
  const AttentionShape shape = attention_shape(signature, 0);
  const bool packed = shape.packed;
  const int o = shape.num_inputs(), parts = forward_threads(sizes, threads);
  expect_operands(signature, static_cast<std::size_t>(o) + 2);
  expect_qkv(signature, sizes, 0);
  expect_o(signature, sizes, o);
  expect_lse(signature, sizes, o + 1);
  return make_kernel([=, scratch = algorithm.forward_scratch(sizes), table = rotation_table(rope, sizes),
                      documents = AttentionDocuments()](const Call& call) mutable {
    expect_attention_origin(shape, call.origin);
    sizes.origin = call.origin;
    sizes.rotation = table.empty() ? nullptr : table.data();
    const Three in = three_of(sizes, packed, call, 0);
    AttentionOperands at;
    at.q = in.q, at.k = in.k, at.v = in.v;
    at.o_out = operand<void>(call, o), at.lse_out = operand<float>(call, o + 1);
    const std::int32_t* lengths = shape.padded ? lengths_of(sizes, call, o - 1) : nullptr;
    if (shape.by_document) documents.read(sizes, operand<std::int32_t>(call, o - 1));
    const auto own_of = [&](int thread) { return static_cast<float*>(call.workspace) + thread * scratch; };
    if (lengths == nullptr && !shape.by_document) {
      const int pieces = pieces_of(sizes.batch * sizes.heads, parts);
      return parallel_claims(pieces, parts, [&](int piece, int thread) {
        algorithm.forward(sizes, at, first_query_block(sizes, piece, pieces),
                          first_query_block(sizes, piece + 1, pieces), own_of(thread));
      });
    }
    parallel(parts, [&](int part, int of) {
      float* const own = own_of(part);
      if (lengths != nullptr)
        return for_each_sample(sizes, at, lengths, sizes.heads * sizes.query_blocks(), part, of,
                               [&](const AttentionSizes& s, const AttentionOperands& sample, Range items) {
                                 algorithm.forward(s, sample, items.begin, items.end, own);
                               });
      documents.clear_unseen(AttentionPass::forward, at, part, of);
      documents.for_each(AttentionPass::forward, at, part, of,
                         [&](const AttentionSizes& s, const AttentionOperands& document, Range items) {
                           algorithm.forward(s, document, items.begin, items.end, own);
                         });
    });
  });
}

Prepared prepare_attention_grad(const Signature& signature, int threads, const AttentionAlgorithm& algorithm) {
  AttentionSizes sizes = sizes_of(signature, 1);
  const RopeFrequencies rope = take_rope(signature, sizes);
  const AttentionShape shape = attention_shape(signature, 1);
  const bool packed = shape.packed;
  const int o = 1 + shape.num_inputs(), parts = backward_threads(sizes, threads);
  expect_operands(signature, static_cast<std::size_t>(o) + (packed ? 3 : 5));
  expect_o(signature, sizes, 0);
  expect_qkv(signature, sizes, 1);
  expect_o(signature, sizes, o);
  expect_lse(signature, sizes, o + 1);
  expect_qkv(signature, sizes, o + 2);
  return make_kernel([=, scratch = algorithm.backward_scratch(sizes), table = rotation_table(rope, sizes),
                      documents = AttentionDocuments()](const Call& call) mutable {
    expect_attention_origin(shape, call.origin);
    sizes.origin = call.origin;
    sizes.rotation = table.empty() ? nullptr : table.data();
    const Three in = three_of(sizes, packed, call, 1), out = three_of(sizes, packed, call, o + 2);
    AttentionOperands at;
    at.d_o = operand<void>(call, 0), at.q = in.q, at.k = in.k, at.v = in.v;
    at.o = operand<void>(call, o), at.lse = operand<float>(call, o + 1);
    at.dq = out.q, at.dk = out.k, at.dv = out.v;
    const std::int32_t* lengths = shape.padded ? lengths_of(sizes, call, o - 1) : nullptr;
    if (shape.by_document) documents.read(sizes, operand<std::int32_t>(call, o - 1));
    const auto own_of = [&](int thread) { return static_cast<float*>(call.workspace) + thread * scratch; };
    if (lengths == nullptr && !shape.by_document) {
      const std::int64_t heads = sizes.batch * sizes.kv_heads;
      const int pieces = pieces_of(heads, parts);
      return parallel_claims(pieces, parts, [&](int piece, int thread) {
        const Range items = partition(heads, piece, pieces);
        algorithm.backward(sizes, at, items.begin, items.end, own_of(thread));
      });
    }
    parallel(parts, [&](int part, int of) {
      float* const own = own_of(part);
      if (lengths != nullptr)
        return for_each_sample(sizes, at, lengths, sizes.kv_heads, part, of,
                               [&](const AttentionSizes& s, const AttentionOperands& sample, Range items) {
                                 algorithm.backward(s, sample, items.begin, items.end, own);
                                 clear_padding(s, sample, s.keys, sizes.keys, items);
                               });
      documents.clear_unseen(AttentionPass::backward, at, part, of);
      documents.for_each(AttentionPass::backward, at, part, of,
                         [&](const AttentionSizes& s, const AttentionOperands& document, Range items) {
                           algorithm.backward(s, document, items.begin, items.end, own);
                         });
    });
  });
}

// ---- the table's entries

namespace {

bool has_bf16(const Signature& signature) { return signature.operands.at(0).dtype == DType::bf16; }

AttentionAlgorithm algorithm_of(const Signature& signature, const Context& context) {
  return attention_algorithm(context.isa, has_bf16(signature));
}

}  // namespace

std::int64_t attention_workspace(const Signature& signature, const Context& context) {
  return attention_workspace(signature, context.threads, algorithm_of(signature, context));
}
std::int64_t attention_grad_workspace(const Signature& signature, const Context& context) {
  return attention_grad_workspace(signature, context.threads, algorithm_of(signature, context));
}
Prepared prepare_attention(const Signature& signature, const Context& context) {
  return prepare_attention(signature, context.threads, algorithm_of(signature, context));
}
Prepared prepare_attention_grad(const Signature& signature, const Context& context) {
  return prepare_attention_grad(signature, context.threads, algorithm_of(signature, context));
}

}  // namespace trainer::kernels::cpu
