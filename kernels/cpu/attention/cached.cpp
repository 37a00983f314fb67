// attention_cached: the tokens' rows enter the caches and their queries are turned; then one token attends on vectors
// along a head (cached.h), several through attention's blocks, as keys that need no turning.
#include "kernels/cpu/attention/cached.h"

#include <algorithm>
#include <vector>

#include "engine/core/op_record.h"
#include "kernels/attention_cached.h"
#include "kernels/cpu/attention/algorithm.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/by_isa.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {

DECLARE_BY_ISA(void copy_heads(const HeadCopy&, std::int64_t begin, std::int64_t end);
               void attend_cached(const CachedPart&, float* results, float* scratch);
               void join_cached(const float* results, std::int64_t parts, std::int64_t stride, std::int64_t v_dim,
                                bool bf16, void* o);)

namespace {

using At = CachedAttentionOperands;

constexpr std::int64_t kKeysOfPart = 256;  // at least, of a head's keys that several threads share

struct Loops {
  void (*copy)(const HeadCopy&, std::int64_t, std::int64_t);
  void (*attend)(const CachedPart&, float*, float*);
  void (*join)(const float*, std::int64_t, std::int64_t, std::int64_t, bool, void*);
};
Loops loops_for(Isa isa) {
  return {CHOOSE_BY_ISA(isa, copy_heads), CHOOSE_BY_ISA(isa, attend_cached), CHOOSE_BY_ISA(isa, join_cached)};
}

/// Sizes of attention's blocks over so many keys; queries and keys come turned.
AttentionSizes block_sizes(const CachedAttentionShape& a, std::int64_t keys) {
  AttentionSizes s;
  s.bf16 = a.dtype == DType::bf16;
  s.batch = 1, s.queries = a.tokens, s.keys = keys, s.heads = a.heads, s.kv_heads = a.kv_heads;
  s.head_dim = a.head_dim, s.v_dim = a.v_dim;
  s.origin = keys - a.tokens;
  s.scale = static_cast<float>(a.scale), s.softcap = static_cast<float>(a.softcap);
  s.window = a.window < a.room ? a.window : std::int64_t{1} << 40;
  s.q_stride = a.heads * a.head_dim, s.kv_stride = a.kv_heads * a.head_dim, s.v_stride = a.kv_heads * a.v_dim;
  s.lse_stride = a.tokens;
  return s;
}

CachedPart part_sizes(const CachedAttentionShape& a) {
  CachedPart part;
  part.bf16 = a.dtype == DType::bf16;
  part.k_stride = a.kv_heads * a.head_dim, part.v_stride = a.kv_heads * a.v_dim;
  part.group = a.heads / a.kv_heads, part.head_dim = a.head_dim, part.v_dim = a.v_dim;
  part.scale = static_cast<float>(a.scale), part.softcap = static_cast<float>(a.softcap);
  return part;
}

/// Into how many parts the keys of a head are cut, so that every thread has one.
std::int64_t parts_of_head(const CachedAttentionShape& a, int threads) {
  const std::int64_t items = a.batch * a.kv_heads, most = (a.room + kKeysOfPart - 1) / kKeysOfPart;
  return std::clamp<std::int64_t>((threads + items - 1) / items, 1, most);
}

constexpr std::int64_t kFloat = sizeof(float);

/// Where the parts of the workspace begin, in bytes. Turned queries come first, in the compute dtype.
struct Workspace {
  std::int64_t rest = 0, scratch = 0, bytes = 0;  ///< results, or logarithms of sums; then scratch, `scratch` a thread
};
Workspace workspace_of(const CachedAttentionShape& a, int threads, const AttentionAlgorithm& algorithm) {
  Workspace w;
  w.rest = aligned(a.batch * a.tokens * a.heads * a.head_dim * size_of(a.dtype));
  if (a.tokens == 1) {
    const CachedPart part = part_sizes(a);
    const std::int64_t parts = parts_of_head(a, threads);
    w.scratch = part.scratch();
    w.bytes = w.rest + (a.batch * a.kv_heads * parts * part.group * part.result() + threads * w.scratch) * kFloat;
  } else {
    const AttentionSizes s = block_sizes(a, a.room);
    w.scratch = algorithm.forward_scratch(s);
    w.bytes = w.rest + aligned(a.heads * a.tokens * kFloat) + forward_threads(s, threads) * w.scratch * kFloat;
  }
  w.bytes = aligned(w.bytes);
  return w;
}

class CachedAttention {
 public:
  CachedAttention(const Signature& signature, const Context& context)
      : a_(cached_attention_shape(signature)),
        threads_(context.threads),
        algorithm_(attention_algorithm(context.isa, a_.dtype == DType::bf16)),
        loops_(loops_for(context.isa)),
        rope_(rope_frequencies(signature.attributes, a_.head_dim)),
        workspace_(workspace_of(a_, threads_, algorithm_)),
        table_(static_cast<std::size_t>(a_.tokens * rope_.dims())) {
    expect_compute_dtype(signature, At::q);
  }

  void operator()(const Call& call) {
    const std::int64_t position = *operand<std::int32_t>(call, At::position);
    expect_cached_position(a_, position);
    turn_table(rope_, position, table_);
    enter(call, position);
    if (a_.tokens == 1)
      attend_one(call, position);
    else
      attend_block(call, position);
  }

 private:
  char* moved(void* p, std::int64_t elements) const { return static_cast<char*>(p) + elements * size_of(a_.dtype); }

  HeadCopy copy_of(std::int64_t heads, std::int64_t dim, bool turns) const {
    HeadCopy copy;
    copy.heads = heads, copy.dim = dim;
    copy.table = turns && !table_.empty() ? table_.data() : nullptr;
    copy.turned = rope_.dims(), copy.interleaved = rope_.interleaved, copy.bf16 = a_.dtype == DType::bf16;
    return copy;
  }

  /// Keys and values into the caches, turned queries into the workspace.
  void enter(const Call& call, std::int64_t position) {
    const std::int64_t q_row = a_.heads * a_.head_dim, k_row = a_.kv_heads * a_.head_dim,
                       v_row = a_.kv_heads * a_.v_dim;
    HeadCopy q = copy_of(a_.heads, a_.head_dim, true), k = copy_of(a_.kv_heads, a_.head_dim, true),
             v = copy_of(a_.kv_heads, a_.v_dim, false);
    for (std::int64_t b = 0; b < a_.batch; ++b) {
      q.from = moved(call.operands[At::q], b * a_.tokens * q_row);
      q.to = moved(call.workspace, b * a_.tokens * q_row);
      k.from = moved(call.operands[At::k], b * a_.tokens * k_row);
      k.to = moved(call.operands[At::k_cache], (b * a_.room + position) * k_row);
      v.from = moved(call.operands[At::v], b * a_.tokens * v_row);
      v.to = moved(call.operands[At::v_cache], (b * a_.room + position) * v_row);
      const int threads = threads_for(a_.tokens * (q_row + k_row + v_row) * kFloat, threads_);
      parallel_ranges(a_.tokens, 1, threads, [&](std::int64_t begin, std::int64_t end) {
        for (const HeadCopy* copy : {&q, &k, &v}) loops_.copy(*copy, begin, end);
      });
    }
  }

  void attend_one(const Call& call, std::int64_t position) {
    const CachedPart sizes = part_sizes(a_);
    const std::int64_t first = std::max<std::int64_t>(0, position - a_.window + 1), seen = position + 1 - first;
    const std::int64_t items = a_.batch * a_.kv_heads, most = parts_of_head(a_, threads_);
    const std::int64_t parts = std::min(most, (seen + kKeysOfPart - 1) / kKeysOfPart), result = sizes.result();
    auto* const results = reinterpret_cast<float*>(static_cast<char*>(call.workspace) + workspace_.rest);
    float* const scratch = results + items * most * sizes.group * result;
    const auto result_of = [&](std::int64_t item, std::int64_t part) {
      return results + (item * parts + part) * sizes.group * result;
    };
    const auto bytes = seen * (sizes.k_stride + sizes.v_stride) * a_.batch * size_of(a_.dtype);
    parallel(threads_for(bytes, threads_), [&](int thread, int of) {
      const Range mine = partition(items * parts, thread, of);
      for (std::int64_t i = mine.begin; i < mine.end; ++i) {
        const std::int64_t item = i / parts, b = item / a_.kv_heads, head = item % a_.kv_heads;
        const Range keys = partition(seen, static_cast<int>(i % parts), static_cast<int>(parts));
        const std::int64_t row = b * a_.room + first + keys.begin;
        CachedPart part = sizes;
        part.keys = keys.size();
        part.q = moved(call.workspace, item * sizes.group * a_.head_dim);
        part.k = moved(call.operands[At::k_cache], row * sizes.k_stride + head * a_.head_dim);
        part.v = moved(call.operands[At::v_cache], row * sizes.v_stride + head * a_.v_dim);
        loops_.attend(part, result_of(item, i % parts), scratch + thread * workspace_.scratch);
      }
    });
    for (std::int64_t item = 0; item < items; ++item)
      for (std::int64_t g = 0; g < sizes.group; ++g)
        loops_.join(result_of(item, 0) + g * result, parts, sizes.group * result, a_.v_dim, sizes.bf16,
                    moved(call.operands[At::o], (item * sizes.group + g) * a_.v_dim));
  }

  void attend_block(const Call& call, std::int64_t position) {
    const AttentionSizes sizes = block_sizes(a_, position + a_.tokens);
    auto* const lse = reinterpret_cast<float*>(static_cast<char*>(call.workspace) + workspace_.rest);
    float* const scratch = lse + aligned(a_.heads * a_.tokens * kFloat) / kFloat;
    for (std::int64_t b = 0; b < a_.batch; ++b) {
      AttentionOperands at;
      at.q = moved(call.workspace, b * a_.tokens * sizes.q_stride);
      at.k = moved(call.operands[At::k_cache], b * a_.room * sizes.kv_stride);
      at.v = moved(call.operands[At::v_cache], b * a_.room * sizes.v_stride);
      at.o_out = moved(call.operands[At::o], b * a_.tokens * a_.heads * a_.v_dim);
      at.lse_out = lse;
      parallel(forward_threads(sizes, threads_), [&](int part, int of) {
        algorithm_.forward(sizes, at, first_query_block(sizes, part, of), first_query_block(sizes, part + 1, of),
                           scratch + part * workspace_.scratch);
      });
    }
  }

  const CachedAttentionShape a_;
  const int threads_;
  const AttentionAlgorithm algorithm_;
  const Loops loops_;
  const RopeFrequencies rope_;
  const Workspace workspace_;
  std::vector<float> table_;  // of the new tokens' positions
};

}  // namespace

std::int64_t attention_cached_workspace(const Signature& signature, const Context& context) {
  const CachedAttentionShape a = cached_attention_shape(signature);
  return workspace_of(a, context.threads, attention_algorithm(context.isa, a.dtype == DType::bf16)).bytes;
}

Prepared prepare_attention_cached(const Signature& signature, const Context& context) {
  return make_kernel(CachedAttention(signature, context));
}

}  // namespace trainer::kernels::cpu
