// Matrices that are held quantized (engine/core/quantized.h), as they are loaded, and as they count when an adapter is
// added to them.
#pragma once

#include <string>
#include <vector>

#include "engine/checkpoint/tensor_store.h"
#include "engine/train/held_buffer.h"

namespace trainer {

/// What a rank holds of a part of a quantized matrix.
struct HeldPart {
  QuantizedPart part;
  HeldBuffer buffer;
  Shape shape;  ///< of the part, of all ranks
  std::vector<Piece> pieces;
};

/// Quantizes what the rank holds of a matrix, whose held parts are `parts`, as it is read: the rows of a group at a
/// time, so no more of it is ever in memory. Groups are those of the whole matrix, whatever the rank holds of them.
/// Raises DataError, naming `source`, for a number that is not finite.
void load_quantized(const checkpoint::TensorStore& tensors, const std::string& source,
                    const std::vector<HeldPart>& parts);

/// A range of a matrix as f32, each element the value that it has when the matrix is held quantized.
void read_dequantized(const checkpoint::TensorStore& tensors, const std::string& matrix, Quantization as,
                      const checkpoint::Range& range, float* out);

}  // namespace trainer
