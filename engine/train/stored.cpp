// Rows of a table are a run of its flat elements; a part of a quantized matrix is made of the matrix.
#include "engine/train/stored.h"

#include "engine/core/rows_of.h"

namespace trainer {

Stored in_model(const UnitTensor& tensor) {
  if (tensor.init.quantized) return {tensor.init.quantized.matrix, tensor.init.quantized.shape, 0};
  const std::optional<RowsOf> rows = named_rows(tensor.name);
  if (!rows) return {tensor.name, tensor.spec.whole, 0};
  const std::int64_t columns = tensor.spec.whole[1];
  return {rows->tensor, {rows->rows, columns}, rows->first * columns};
}

Stored in_store(const UnitTensor& tensor, const checkpoint::TensorStore& tensors) {
  if (tensors.find(tensor.name) != nullptr) return {tensor.name, tensor.spec.whole, 0};
  return in_model(tensor);
}

std::vector<Piece> pieces_in(const Stored& stored, std::vector<Piece> pieces) {
  for (Piece& piece : pieces) piece.global += stored.first;
  return pieces;
}

}  // namespace trainer
