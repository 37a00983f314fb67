// Where a document of a row begins and ends (kernels/documents.h), by binary search: numbers ascend along a row if -1,
// the number of padding, is read without its sign. Whatever the numbers are, what is found lies within the row.
#pragma once

#include "kernels/cuda/runtime/device.cuh"
#include "kernels/cuda/runtime/fault.cuh"

namespace trainer::kernels::cuda {

__device__ __forceinline__ std::uint32_t as_unsigned(std::int32_t number) { return static_cast<std::uint32_t>(number); }

/// Tells a number that cannot stand at `position` of sample `sample`, whose row has `count`.
__device__ __forceinline__ void check_document(Fault* fault, const std::int32_t* row, int position, std::int64_t sample,
                                               int count) {
  const std::int32_t number = row[position];
  if (number < -1 || (position > 0 && as_unsigned(number) < as_unsigned(row[position - 1])))
    report(fault, Fault::document, number, sample * count + position, count);
}

/// The first of positions [0, position] whose number is not below that of `position`, which is `number`.
__device__ __forceinline__ int first_not_below(const std::int32_t* row, int position, std::int32_t number) {
  int first = 0, end = position;
  while (first < end) {
    const int middle = (first + end) / 2;
    if (as_unsigned(row[middle]) < as_unsigned(number))
      first = middle + 1;
    else
      end = middle;
  }
  return first;
}

/// The first of positions (position, count) whose number is above `number`, or count.
__device__ __forceinline__ int first_above(const std::int32_t* row, int position, int count, std::int32_t number) {
  int first = position + 1, end = count;
  while (first < end) {
    const int middle = (first + end) / 2;
    if (as_unsigned(row[middle]) > as_unsigned(number))
      end = middle;
    else
      first = middle + 1;
  }
  return first;
}

}  // namespace trainer::kernels::cuda
