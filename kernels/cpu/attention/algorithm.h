// The implementations of attention that preparation chooses from, one for each instruction set and one for AMX tiles.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/runtime/isa.h"
#include "kernels/kernel.h"

namespace trainer::kernels::cpu {

/// Blocks of queries [begin, end) of the list ordered by (batch, kv head, query head, block), or, backward, items [begin,
/// end) of the list ordered by (batch, kv head).
using AttentionLoops = void (*)(const AttentionSizes&, const AttentionOperands&, std::int64_t begin, std::int64_t end, float* scratch);

/// One implementation: its loops, and the floats of scratch that a thread of each needs.
struct AttentionWay {
  AttentionLoops forward, backward;
  std::int64_t (*forward_scratch)(const AttentionSizes&);
  std::int64_t (*backward_scratch)(const AttentionSizes&);
};

/// The way for an instruction set and dtype.
AttentionWay attention_way(Isa isa, bool bf16);

/// The tiles' way with tiles emulated in memory, for tests on machines without them: between the portable vectors, or those
/// of avx512_bf16.
AttentionWay emulated_attention_way(Isa vectors);

/// What prepare_attention, prepare_attention_grad and their workspaces are for a way of one's own choice.
std::unique_ptr<Kernel> prepare_attention(const Signature& signature, int threads, const AttentionWay& way);
std::unique_ptr<Kernel> prepare_attention_grad(const Signature& signature, int threads, const AttentionWay& way);
std::int64_t attention_workspace(const Signature& signature, int threads, const AttentionWay& way);
std::int64_t attention_grad_workspace(const Signature& signature, int threads, const AttentionWay& way);

}  // namespace trainer::kernels::cpu
