// Sums over ranks, as every communicator makes them: in rank order, bf16 in f32 and rounded once. So the bits do not
// depend on how ranks talk to each other, on how a collective is cut, or on timing.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "engine/core/dtype.h"

namespace trainer {

/// outputs[k][output_first + i] = Σ over m of inputs[m][first + i], for i in [0, last − first); indices count elements.
/// dtype f32, f64 or bf16. An output may be an input's very place, but may not overlap one otherwise.
void sum_in_rank_order(DType dtype, std::span<const void* const> inputs, std::int64_t first, std::int64_t last,
                       std::span<void* const> outputs, std::int64_t output_first);

/// Elements [first, last) of `elements` that member `index` of `members` sums: equal slices where they divide, else the
/// last is shorter.
std::pair<std::int64_t, std::int64_t> slice_of(std::int64_t elements, std::int64_t index, std::int64_t members);

}  // namespace trainer
