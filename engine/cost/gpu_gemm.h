// Time of a matrix product on a GPU's tensor cores, as libraries of kernels run it: the output is cut into tiles, tiles
// go to the multiprocessors in waves, each tile runs over K, and the library takes the tile shape and the split of K
// that are fastest.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"
#include "engine/cost/estimate.h"
#include "engine/cost/machine_model.h"

namespace trainer::cost {

/// C [m, n] = A·B over k.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::bf16;    ///< of A and B
  bool fp8 = false;             ///< codes of A and B are multiplied, at the device's peak of fp8
  double result_bytes = 0;      ///< that C moves: written, and read before if it accumulates
  double operand_bytes = 0;     ///< that A, B and all else are read with
  std::int64_t alignment = 16;  ///< bytes, of the rows of A, B and C: below 16 no vector loads or stores
  double share = 1;             ///< of what a plain product reaches (convolutions gather their operand)
};

/// Without the launch.
Estimate gpu_product(const DeviceModel& device, const Product& product);

}  // namespace trainer::cost
