// Rounding: what a merged matrix loses of its adapter when it is rounded to the dtype of the files. Where an adapter
// adds less than half a step of the dtype, the sum is the base's weight again, and the adapter does nothing.
#pragma once

#include <map>
#include <span>
#include <string>

#include "engine/export/export.h"
#include "engine/export/source.h"

namespace trainer::exporting {

class Rounding {
 public:
  explicit Rounding(const Source& source) : source_(source) {}

  /// Adds elements of a tensor of the source: as f32, and as they were written. Others than merged matrices are left
  /// out.
  void add(const std::string& tensor, std::span<const float> exact, Precision precision,
           std::span<const std::byte> written);
  /// Tells the report of every merged matrix, the one that lost most first.
  void tell(Report& report) const;

 private:
  const Source& source_;
  std::map<std::string, double> squares_;  // of the errors, by matrix
};

}  // namespace trainer::exporting
