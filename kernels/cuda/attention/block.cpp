// attention_block and attention_block_grad: which chunks meet, and what runs in which order. Samples and pairs of
// chunks run one after the other, each a launch of attention's kernels on rows that lie where they are.
#include "kernels/cuda/attention/block.h"

#include <algorithm>
#include <limits>

#include "engine/core/zigzag.h"
#include "kernels/attention_block.h"
#include "kernels/cuda/attention/block_workspace.h"
#include "kernels/cuda/families.h"

namespace trainer::kernels::cuda {
namespace {

/// What does not change from run to run.
struct Block {
  AttentionBlockShape shape;
  DType dtype;
  Rotation rotation;
  AttentionArguments sizes;  ///< of a pair of chunks; no addresses
  BlockWorkspace at;
  bool sums_apart;  ///< the result is in 16 bits

  explicit Block(const Signature& s)
      : shape(attention_block_shape(s)),
        dtype(expect_compute_dtype(s, 0)),
        rotation(rotation_of(s, shape.of.head_dim)),
        at(s),
        sums_apart(shape.last && dtype != DType::f32) {
    const AttentionShape& a = shape.of;
    CHECK(!a.padded && !a.by_document, describe(s) + ": on GPUs a ring takes no lengths and no documents");
    CHECK(std::max(a.head_dim, a.v_dim) <= kLargestHeadDim,
          describe(s) + ": on GPUs a head has at most " + std::to_string(kLargestHeadDim) + " elements");
    CHECK(a.heads * (a.keys / 32 + 1) * 2 <= std::numeric_limits<int>::max() &&
              shape.ranks * a.keys <= std::numeric_limits<int>::max(),
          describe(s) + ": more blocks than a launch has");
    sizes.batch = 1;
    sizes.keys = static_cast<int>(a.keys / 2);
    sizes.heads = static_cast<int>(a.heads), sizes.kv_heads = static_cast<int>(a.kv_heads);
    sizes.head_dim = static_cast<int>(a.head_dim), sizes.v_dim = static_cast<int>(a.v_dim);
    sizes.causal = a.causal;
    sizes.vectors = a.head_dim * size_of(dtype) % 16 == 0 && a.v_dim * size_of(dtype) % 16 == 0;
    sizes.scale = static_cast<float>(a.scale), sizes.softcap = static_cast<float>(a.softcap);
    sizes.window = a.window < shape.ranks * a.keys ? static_cast<int>(a.window) : 1 << 30;
  }

  std::int64_t q_width() const { return shape.of.heads * shape.of.head_dim; }
  std::int64_t o_width() const { return shape.of.heads * shape.of.v_dim; }
  std::int64_t k_width() const { return shape.of.kv_heads * shape.of.head_dim; }
  std::int64_t v_width() const { return shape.of.kv_heads * shape.of.v_dim; }
  std::int64_t query_tokens() const { return shape.of.batch * shape.of.queries; }
  std::int64_t key_tokens() const { return shape.of.batch * shape.of.keys; }

  ZigzagRows rows(std::int64_t tokens, std::int64_t heads, std::int64_t dim, std::int64_t rank) const {
    return {static_cast<int>(shape.of.batch), static_cast<int>(tokens),
            static_cast<int>(heads),          static_cast<int>(dim),
            static_cast<int>(rank),           static_cast<int>(shape.ranks)};
  }
  ZigzagRows query_rows(std::int64_t rank) const {
    return rows(shape.of.queries, shape.of.heads, shape.of.head_dim, rank);
  }
  ZigzagRows key_rows(std::int64_t rank) const {
    return rows(shape.of.keys, shape.of.kv_heads, shape.of.head_dim, ring_source(rank, shape.ranks, shape.step));
  }
  PairRows pair_rows(std::int64_t first, std::int64_t count) const {
    return {static_cast<int>(first), static_cast<int>(count), static_cast<int>(shape.of.queries),
            static_cast<int>(shape.of.heads), static_cast<int>(shape.of.v_dim)};
  }
};

template <typename T = char>
T* in_workspace(const Call& call, std::int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(call.workspace) + offset);
}
void* moved(const Block& block, void* p, std::int64_t elements) {
  return static_cast<char*>(p) + elements * size_of(block.dtype);
}

/// q and k, turned where there is a rotation.
struct Turned {
  void *q, *k;
};
Turned turn(const Call& call, const Block& block, int q) {
  if (block.rotation.half == 0) return {operand<void>(call, q), operand<void>(call, q + 1)};
  const Turned to{in_workspace(call, block.at.q), in_workspace(call, block.at.k)};
  turn_part(call, block.dtype, block.query_rows(call.origin), block.rotation, operand<void>(call, q), to.q);
  turn_part(call, block.dtype, block.key_rows(call.origin), block.rotation, operand<void>(call, q + 1), to.k);
  return to;
}

/// A pair of chunks of a sample: rows of queries and keys from the first of the part on.
struct Pair {
  std::int64_t query, key;      // tokens, samples before included
  std::int64_t first, queries;  // in the sample's part
  AttentionArguments sizes;
};

/// Calls visit(pair) for every pair of which some queries see some keys.
template <typename Visit>
void for_each_pair(const Call& call, const Block& block, const Visit& visit) {
  const AttentionShape& a = block.shape.of;
  const std::int64_t c_q = a.queries / 2, c_k = a.keys / 2;
  for (std::int64_t sample = 0; sample < a.batch; ++sample)
    for (const ChunkPair& chunks : ChunkPairs(call.origin, block.shape.ranks, block.shape.step, a.causal)) {
      const std::int64_t apart = a.causal ? chunks.apart * c_k : 0;
      const std::int64_t queries = a.causal ? std::min(c_q, c_k + a.window - 1 - apart) : c_q;
      if (queries <= 0) continue;
      Pair pair{sample * a.queries + chunks.queries * c_q, sample * a.keys + chunks.keys * c_k, chunks.queries * c_q,
                queries, block.sizes};
      pair.sizes.queries = static_cast<int>(queries);
      pair.sizes.origin = static_cast<int>(apart);
      visit(sample, pair);
    }
}

void run_forward(const Call& call, const Block& block) {
  const AttentionShape& a = block.shape.of;
  expect_ring_rank(block.shape, call.origin);
  const int before = block.shape.num_inputs(), result = before + (block.shape.continues ? 2 : 0);
  float* const o = block.sums_apart ? in_workspace<float>(call, block.at.o) : operand<float>(call, result);
  float* const lse = operand<float>(call, result + 1);
  const std::int64_t elements = block.query_tokens() * block.o_width(), sums = block.query_tokens() * a.heads;
  const auto copy = [&](float* to, const float* from, std::int64_t count) {
    if (to == from) return;
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(float), cudaMemcpyDeviceToDevice,
                          stream_of(call)),
          "cudaMemcpyAsync");
  };
  if (block.shape.continues) {
    copy(o, operand<float>(call, before), elements);
    copy(lse, operand<float>(call, before + 1), sums);
  } else {
    fill_part(call, o, 0, elements);
    fill_part(call, lse, -std::numeric_limits<float>::infinity(), sums);
  }
  const Turned turned = turn(call, block, 0);
  void* const v = operand<void>(call, 2);
  for_each_pair(call, block, [&](std::int64_t sample, const Pair& pair) {
    AttentionArguments at = pair.sizes;
    at.q = {moved(block, turned.q, pair.query * block.q_width()), block.q_width()};
    at.k = {moved(block, turned.k, pair.key * block.k_width()), block.k_width()};
    at.v = {moved(block, v, pair.key * block.v_width()), block.v_width()};
    at.o = {in_workspace(call, block.at.o_new), block.o_width()};
    at.lse = in_workspace<float>(call, block.at.lse_new);
    if (block.dtype == DType::f32)
      attention_forward_f32(call, at);
    else
      attention_forward(call, block.dtype, at);
    join_pair(call, block.dtype, block.pair_rows(pair.first, pair.queries), at.o.data, at.lse,
              o + sample * a.queries * block.o_width(), lse + sample * a.heads * a.queries);
  });
  if (block.sums_apart)
    finish_part(call, block.dtype, block.rows(a.queries, a.heads, a.v_dim, 0), Rotation{}, o, nullptr,
                operand<void>(call, result));
}

void run_backward(const Call& call, const Block& block) {
  const AttentionShape& a = block.shape.of;
  expect_ring_rank(block.shape, call.origin);
  const int o = 1 + block.shape.num_inputs(), before = o + 2, result = before + (block.shape.continues ? 1 : 0);
  float *const dq = in_workspace<float>(call, block.at.dq), *const dv = operand<float>(call, result + 2);
  float* const dk = in_workspace<float>(call, block.at.dk);
  fill_part(call, dq, 0, block.query_tokens() * block.q_width());
  fill_part(call, dk, 0, block.key_tokens() * block.k_width());
  fill_part(call, dv, 0, block.key_tokens() * block.v_width());
  const Turned turned = turn(call, block, 1);
  for_each_pair(call, block, [&](std::int64_t sample, const Pair& pair) {
    AttentionArguments at = pair.sizes;
    at.q = {moved(block, turned.q, pair.query * block.q_width()), block.q_width()};
    at.k = {moved(block, turned.k, pair.key * block.k_width()), block.k_width()};
    at.v = {moved(block, operand<void>(call, 3), pair.key * block.v_width()), block.v_width()};
    at.d_o = {moved(block, operand<void>(call, 0), pair.query * block.o_width()), block.o_width()};
    at.o = {moved(block, operand<void>(call, o), pair.query * block.o_width()), block.o_width()};
    at.lse = in_workspace<float>(call, block.at.lse);
    at.delta = in_workspace<float>(call, block.at.delta);
    at.dq = {in_workspace(call, block.at.dq_new), block.q_width()};
    at.dk = {in_workspace(call, block.at.dk_new), block.k_width()};
    at.dv = {in_workspace(call, block.at.dv_new), block.v_width()};
    take_columns(call, block.pair_rows(pair.first, pair.queries),
                 operand<float>(call, o + 1) + sample * a.heads * a.queries, at.lse);
    attention_delta(call, block.dtype, at);
    if (block.dtype == DType::f32)
      attention_backward_f32(call, at, Rotation{});
    else
      attention_backward(call, block.dtype, at, Rotation{});
    const std::int64_t keys = a.keys / 2;
    add_pair(call, block.dtype, at.dq.data, pair.queries * block.q_width(), dq + pair.query * block.q_width());
    add_pair(call, block.dtype, at.dk.data, keys * block.k_width(), dk + pair.key * block.k_width());
    add_pair(call, block.dtype, at.dv.data, keys * block.v_width(), dv + pair.key * block.v_width());
  });
  finish_part(call, block.shape.last ? block.dtype : DType::f32, block.query_rows(call.origin), block.rotation, dq,
              block.shape.continues ? operand<float>(call, before) : nullptr, operand<void>(call, result));
  finish_part(call, DType::f32, block.key_rows(call.origin), block.rotation, dk, nullptr,
              operand<void>(call, result + 1));
}

}  // namespace

Prepared prepare_attention_block(const Signature& signature, const Context&) {
  const Block block(signature);
  if (block.dtype == DType::f32)
    allow_attention_forward_f32(block.sizes.widest());
  else
    allow_attention_forward(block.dtype, block.sizes.widest());
  return make_kernel([block](const Call& call) { run_forward(call, block); });
}

Prepared prepare_attention_block_grad(const Signature& signature, const Context&) {
  const Block block(signature);
  if (block.dtype == DType::f32)
    allow_attention_backward_f32(block.sizes.widest());
  else
    allow_attention_backward(block.dtype, block.sizes.widest());
  return make_kernel([block](const Call& call) { run_backward(call, block); });
}

}  // namespace trainer::kernels::cuda
