// What slices send and what that costs beside the wire: weights and gradients in their own dtype, or as codes of 8 bits
// (engine/core/compression.h), which kernels make and read.
#pragma once

#include <cstdint>

#include "engine/cost/cost_model.h"
#include "engine/job/job.h"
#include "engine/job/resolve.h"

namespace trainer::cost {

/// A collective as it runs.
struct SentBySlices {
  CollectiveKind kind;
  DType dtype;
  std::int64_t bytes;  ///< of the larger side
};

/// A gather of so many weights, or a sum (reduce-scatter, all-reduce) of gradients.
SentBySlices sent_by_slices(const ResolvedData& data, const Job& job, CollectiveKind kind, double elements);

struct CodingTime {
  double encode_us = 0, decode_us = 0;
};

/// Of all elements of a unit that is cut over so many ranks; nothing where no codes are sent.
CodingTime coding_of_gather(const CostModel& model, const ResolvedData& data, const Job& job, double elements,
                            int ranks);
CodingTime coding_of_reduction(const CostModel& model, const ResolvedData& data, const Job& job, double elements,
                               int ranks);

}  // namespace trainer::cost
