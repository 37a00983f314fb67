// What arrives of numbers that ranks send as codes, worked out on the host in f64 for the simulations of
// `trainer verify`, by the formulas of kernels/compression.h.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/job/job.h"

namespace trainer {

/// Adds values, element by element. REQUIRES: as many as `sum` has.
void add_to(std::vector<double>& sum, const std::vector<double>& values);

/// Rounded to the nearest of a dtype.
std::vector<double> rounded_to(DType dtype, const std::vector<double>& values);

/// As codes of 8 bits in `slices` equal slices, in blocks with a scale of their own.
std::vector<double> as_int8(const std::vector<double>& values, std::size_t slices);

/// Sums over ranks of one flat buffer, compressed with error feedback: what ranks could not send they keep for the
/// next.
class CompressedSums {
 public:
  CompressedSums(const Compression& compression, std::size_t ranks, std::size_t elements)
      : compression_(compression), residuals_(ranks, std::vector<double>(elements)) {}

  /// Of one buffer of each rank. `sliced`: each rank needs but its slice, so the sum is not compressed once more.
  /// REQUIRES: there is a compression.
  std::vector<double> sum(const std::vector<std::vector<double>>& of_ranks, bool sliced);

 private:
  Compression compression_;
  std::vector<std::vector<double>> residuals_;  // of each rank
};

}  // namespace trainer
