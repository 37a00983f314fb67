// Gemm: products of f32 or bf16 matrices with sums in f32, the core of the linear ops. The order of the additions
// depends on k and the method alone: a result depends neither on the number of threads nor, but for a single row of A,
// which has a method of its own, on the other sizes.
#pragma once

#include "kernels/cpu/gemm/problem.h"
#include "kernels/cpu/runtime/isa.h"

namespace trainer::kernels::cpu::gemm {

/// How products are computed: by f32 multiply-adds of widened blocks; of operands as they lie, where one is small; by
/// vdpbf16ps; on AMX tiles; by either without its instructions, for tests of that path on other machines; or as the
/// product of one row, bound by reading B.
enum class Method : std::uint8_t { widen, direct, pairs, emulated_pairs, tiles, emulated_tiles, row };

Method method_for(const Problem& problem, Isa isa);

/// Bytes of workspace that `run` needs; a multiple of 64. Looks at sizes and orders only.
std::int64_t workspace_bytes(const Problem& problem, Method method, Isa isa, int threads);

/// At least that of every product with at most as many rows of A and steps of k, by whatever method.
std::int64_t most_workspace_bytes(const Problem& problem, Isa isa, int threads);

/// Runs on a team of `threads`. REQUIRES: workspace_bytes at `workspace`, 64-byte aligned.
void run(const Problem& problem, Method method, Isa isa, int threads, void* workspace);

}  // namespace trainer::kernels::cpu::gemm
