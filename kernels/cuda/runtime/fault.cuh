// How a kernel says that it was given an id or a target that it cannot take (table.h: Fault).
#pragma once

#include "kernels/cuda/runtime/device.cuh"

namespace trainer::kernels::cuda {

/// Records it, if nothing is recorded: the fields of a record are of one thread.
__device__ __forceinline__ void report(Fault* fault, Fault::Kind kind, std::int32_t value, std::int64_t place,
                                       std::int64_t bound) {
  if (atomicCAS(&fault->kind, Fault::none, kind) != Fault::none) return;
  volatile Fault* const to = fault;
  to->value = value;
  to->place = place;
  to->bound = bound;
  __threadfence_system();
}

}  // namespace trainer::kernels::cuda
