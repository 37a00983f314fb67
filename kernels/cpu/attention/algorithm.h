// The implementations of attention that preparation chooses from, one for each instruction set and one for AMX tiles.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/core/rope.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/runtime/isa.h"
#include "kernels/kernel.h"

namespace trainer::kernels::cpu {

/// Blocks of queries [begin, end) of the list ordered by (batch, kv head, query head, block), or, backward, items
/// [begin, end) of the list ordered by (batch, kv head).
using AttentionLoops = void (*)(const AttentionSizes&, const AttentionOperands&, std::int64_t begin, std::int64_t end,
                                float* scratch);

/// One implementation: its loops, and the floats of scratch that a thread of each needs.
struct AttentionAlgorithm {
  AttentionLoops forward, backward;
  std::int64_t (*forward_scratch)(const AttentionSizes&);
  std::int64_t (*backward_scratch)(const AttentionSizes&);
};

/// The algorithm for an instruction set and dtype.
AttentionAlgorithm attention_algorithm(Isa isa, bool bf16);

/// The algorithm on tiles with tiles emulated in memory, for tests on machines without them: between the portable
/// vectors, or those of avx512_bf16.
AttentionAlgorithm emulated_attention_algorithm(Isa vectors);

/// Rows of AttentionSizes::rotation, of positions from `first` on, as many as `table` holds.
void turn_table(const RopeFrequencies& rope, std::int64_t first, std::span<float> table);

/// How the forward pass is cut over threads: on how many, and where part `part` of `parts` begins in the list of query
/// blocks, each weighed by the blocks of keys it sees.
int forward_threads(const AttentionSizes& sizes, int threads);
std::int64_t first_query_block(const AttentionSizes& sizes, int part, int parts);
/// The first of the list of query blocks before which weight `goal` lies, `per_head` being that of each head.
std::int64_t first_query_block(const AttentionSizes& sizes, std::int64_t goal, std::int64_t per_head);

/// Operands from query `query` and key `key` of a sample on. Those that are not there stay so.
AttentionOperands operands_at(const AttentionSizes& sizes, const AttentionOperands& all, std::int64_t sample,
                              std::int64_t query, std::int64_t key);
/// Makes `count` rows of `elements` 0, `stride` elements apart.
void clear_rows(const AttentionSizes& sizes, void* rows, std::int64_t stride, std::int64_t elements,
                std::int64_t count);

/// What prepare_attention, prepare_attention_grad and their workspaces are for an algorithm of one's own choice.
std::unique_ptr<Kernel> prepare_attention(const Signature& signature, int threads, const AttentionAlgorithm& algorithm);
std::unique_ptr<Kernel> prepare_attention_grad(const Signature& signature, int threads,
                                               const AttentionAlgorithm& algorithm);
std::int64_t attention_workspace(const Signature& signature, int threads, const AttentionAlgorithm& algorithm);
std::int64_t attention_grad_workspace(const Signature& signature, int threads, const AttentionAlgorithm& algorithm);

}  // namespace trainer::kernels::cpu
