// What launchers share on the host: checked calls, handles, and what preparation checks.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <type_traits>

#include "engine/core/signature.h"
#include "kernels/cuda/table.h"
#include "kernels/prepare.h"

namespace trainer::kernels::cuda {

/// Throws IoError, naming the call, where it stands, and CUDA's reason, unless the call succeeded.
void check(cudaError_t status, const char* call, const char* file = __builtin_FILE(), int line = __builtin_LINE());

/// How much shared memory a block of the current device can have. Throws IoError where that is less than `bytes`.
std::size_t most_shared(std::size_t bytes);

/// Owns a C handle: `destroy` is called where it is not null.
template <typename T, auto destroy>
struct Destroy {
  void operator()(T handle) const { destroy(handle); }
  using pointer = T;
};
template <typename T, auto destroy>
using Handle = std::unique_ptr<std::remove_pointer_t<T>, Destroy<T, destroy>>;

inline cudaStream_t stream_of(const Call& call) { return static_cast<cudaStream_t>(call.stream); }

/// Raises Bug unless operand `operand` is f32, bf16 or f16; returns which.
DType expect_compute_dtype(const Signature& signature, int operand);
/// The same of f32 or bf16, in which gradients of parameters are reduced.
DType expect_reduce_dtype(const Signature& signature, int operand);

}  // namespace trainer::kernels::cuda
