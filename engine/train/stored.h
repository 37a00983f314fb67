// Where a checkpoint or a folder has a weight. That is a tensor of the weight's name, but for rows of a table
// (engine/core/rows_of.h): a model has them in the whole table, a checkpoint of an adapter by themselves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/tensor_store.h"
#include "engine/plan/pieces.h"

namespace trainer {

struct Stored {
  std::string name;
  Shape shape{};
  std::int64_t first = 0;  ///< the element of the stored tensor at which the weight begins
};

/// As a model has it.
Stored in_model(const UnitTensor& tensor);
/// As `tensors` has it; as a model would where it has it in neither way.
Stored in_store(const UnitTensor& tensor, const checkpoint::TensorStore& tensors);

/// Pieces of the weight as pieces of the stored tensor.
std::vector<Piece> pieces_in(const Stored& stored, std::vector<Piece> pieces);

}  // namespace trainer
