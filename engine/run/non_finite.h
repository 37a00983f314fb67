// The search for the first value that is not finite, the same on every device that can show its memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "engine/run/executor.h"

namespace trainer {

/// Index of the first of `elements` values at `data` that is infinite or NaN; -1: none is, or their dtype has no such
/// values.
std::int64_t first_non_finite(DType dtype, const std::byte* data, std::int64_t elements);

/// Shows a region to first_non_finite as it lies in the device's memory, in one piece or several: index of the first of
/// its elements, or -1.
using FirstIn = std::function<std::int64_t(DType dtype, const Region& region)>;

/// What a launch, instruction `index` of its program, wrote that is not finite; other instructions write no results.
/// Packed operands are left out: their inputs were looked at.
std::optional<NonFinite> inspect_results(const Role& role, const Issued& issued, std::int32_t index,
                                         const FirstIn& first_in);

}  // namespace trainer
