// Quantized matrices (engine/core/quantized.h) on the host: what is made of the rows of a weight that is loaded, and
// the weight that it stands for, as kernels have it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/quantized.h"

namespace trainer {

/// The parts of some rows.
struct QuantizedRows {
  std::vector<unsigned char> codes, scales, groups;

  const std::vector<unsigned char>& of(QuantizedPart::Kind kind) const {
    return kind == QuantizedPart::Kind::codes ? codes : kind == QuantizedPart::Kind::scales ? scales : groups;
  }
};

/// Of `rows` rows of `in` f32 elements. The code of an element is the nearest one of w / scale; the scale of a block of
/// nf4 is that of the code nearest to (max |w| − mean) / spread. REQUIRES: the elements are finite; the rows begin with
/// a group.
QuantizedRows quantize_rows(Quantization as, const float* w, std::int64_t rows, std::int64_t in);

/// The elements that such rows stand for.
std::vector<float> dequantize_rows(Quantization as, const QuantizedRows& parts, std::int64_t rows, std::int64_t in);

}  // namespace trainer
