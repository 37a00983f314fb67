// What a plan holds of quantized matrices (engine/core/quantized.h).
#pragma once

#include <cstdint>
#include <optional>

#include "engine/compile/compile.h"

namespace trainer::report {

/// Of the whole model: each matrix once, however many ranks hold it or parts of it.
struct QuantizedCost {
  Quantization as = Quantization::none;
  std::int64_t matrices = 0;
  std::int64_t elements = 0;
  std::int64_t bytes = 0;

  double bytes_per_element() const { return static_cast<double>(bytes) / static_cast<double>(elements); }
};

/// Nothing where no matrix is quantized.
std::optional<QuantizedCost> quantized_of(const CompiledJob& compiled);

}  // namespace trainer::report
