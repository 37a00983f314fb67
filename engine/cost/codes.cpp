// Times of coding are those of the kernels that do it, on slices of whole blocks.
#include "engine/cost/codes.h"

#include <algorithm>
#include <cmath>

#include "engine/core/compression.h"

namespace trainer::cost {
namespace {

TensorDesc flat(DType dtype, std::int64_t elements) { return {dtype, Shape{elements}}; }

// Slices are whole blocks.
std::int64_t slice_of(double elements, int ranks) {
  return std::max<std::int64_t>(1, std::llround(elements / static_cast<double>(ranks * kInt8Block))) * kInt8Block;
}

double encode_us(const CostModel& model, DType dtype, std::int64_t slice, std::int64_t slices) {
  return model
      .kernel({Op::quantize_int8,
               {{"slices", slices}, {"feedback", false}},
               {flat(dtype, slices * slice), flat(DType::u8, slices * int8_bytes(slice))}})
      .us;
}

}  // namespace

SentBySlices sent_by_slices(const ResolvedData& data, const Job& job, CollectiveKind kind, double elements) {
  const bool gathers = kind == CollectiveKind::all_gather, scatters = kind == CollectiveKind::reduce_scatter;
  const DType dtype = gathers ? job.precision.compute : job.precision.reduce;
  if ((gathers && data.int8_gathers) || (scatters && data.int8_reductions))
    return {gathers ? kind : CollectiveKind::all_to_all, DType::u8, int8_bytes(static_cast<std::int64_t>(elements))};
  return {kind, dtype, static_cast<std::int64_t>(elements * static_cast<double>(size_of(dtype)))};
}

CodingTime coding_of_gather(const CostModel& model, const ResolvedData& data, const Job& job, double elements,
                            int ranks) {
  if (!data.int8_gathers || ranks == 1) return {};
  const std::int64_t slice = slice_of(elements, ranks);
  const Signature decode{Op::dequantize_int8,
                         {{"slices", std::int64_t{ranks}}},
                         {flat(DType::u8, ranks * int8_bytes(slice)), flat(job.precision.compute, ranks * slice)}};
  return {encode_us(model, job.precision.compute, slice, 1), model.kernel(decode).us};
}

CodingTime coding_of_reduction(const CostModel& model, const ResolvedData& data, const Job& job, double elements,
                               int ranks) {
  if (!data.int8_reductions || ranks == 1) return {};
  const std::int64_t slice = slice_of(elements, ranks);
  const Signature decode{Op::dequantize_sum_int8,
                         {{"slices", std::int64_t{ranks}}},
                         {flat(DType::u8, ranks * int8_bytes(slice)), flat(job.precision.reduce, slice)}};
  return {encode_us(model, job.precision.reduce, slice, ranks), model.kernel(decode).us};
}

}  // namespace trainer::cost
