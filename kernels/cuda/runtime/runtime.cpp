// Errors of CUDA, and a device with its library handles.
#include "kernels/cuda/runtime/runtime.h"

#include <cublasLt.h>

#include <algorithm>
#include <span>
#include <utility>

#include "engine/core/environment.h"
#include "engine/core/error.h"
#include "kernels/cuda/runtime/device_choices.h"
#include "kernels/cuda/runtime/libraries.h"
#include "kernels/cuda/runtime/timed_choices.h"
#include "kernels/documents.h"

namespace trainer::kernels::cuda {

void check(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError();             // the sticky copy of the same error is not the next call's
  const std::string path = file;  // of this tree, wherever it was compiled
  const std::size_t tree = std::max(path.rfind("engine/") + 1, path.rfind("kernels/") + 1);
  throw IoError("CUDA: " + std::string(call) + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) +
                ", " + path.substr(tree == 0 ? 0 : tree - 1) + ":" + std::to_string(line) + ")");
}

std::size_t most_shared(std::size_t bytes) {
  int device = 0, most = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  if (bytes > static_cast<std::size_t>(most))
    throw IoError("a kernel takes " + std::to_string(bytes) +
                  " bytes of shared memory for each block, and this GPU has " + std::to_string(most));
  return static_cast<std::size_t>(most);
}

DType expect_compute_dtype(const Signature& signature, int operand) {
  const DType dtype = signature.operands[static_cast<std::size_t>(operand)].dtype;
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16)
    refuse_dtypes(signature, "f32, bf16 or f16 for operand " + std::to_string(operand));
  return dtype;
}

DType expect_reduce_dtype(const Signature& signature, int operand) {
  const DType dtype = signature.operands[static_cast<std::size_t>(operand)].dtype;
  if (dtype != DType::f32 && dtype != DType::bf16)
    refuse_dtypes(signature, "f32 or bf16 for operand " + std::to_string(operand));
  return dtype;
}

Device::Device(int ordinal) {
  check(cudaSetDevice(ordinal), "cudaSetDevice");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  name_ = properties.name;
  context_.device = ordinal;
  context_.capability = properties.major * 10 + properties.minor;
  context_.units = properties.multiProcessorCount;
  context_.shared_bytes = properties.sharedMemPerBlockOptin;
  void* fault = nullptr;
  check(cudaHostAlloc(&fault, sizeof(Fault), cudaHostAllocMapped), "cudaHostAlloc");
  context_.fault = new (fault) Fault;
  context_.products = open_products();
  context_.notes = &notes_;
  if (environment::value_of(environment::kCudnn) != "0") context_.cudnn = open_cudnn();
}

Device::~Device() {
  close_cudnn(context_.cudnn);
  close_products(context_.products);
  cudaFreeHost(context_.fault);
}

DeviceChoices& Device::begin_choices(std::byte* memory, std::int64_t bytes) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, context_.device), "cudaGetDeviceProperties");
  timed_ = TimedChoices::of(properties);
  choices_ = std::make_unique<DeviceChoices>(kind_of(properties), timed_);
  context_.choices = choices_.get();
  context_.scratch = memory;
  context_.scratch_bytes = bytes;
  return *choices_;
}

void Device::end_choices() {
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // nothing fills the memory any more
  if (timed_ != nullptr)
    if (std::optional<std::string> note = timed_->take_note()) notes_.push_back(std::move(*note));
  context_.choices = nullptr;
  context_.scratch = nullptr;
  context_.scratch_bytes = 0;
}

std::vector<std::string> Device::take_notes() { return std::exchange(notes_, {}); }

void Device::throw_fault() {
  const volatile Fault& fault = *context_.fault;
  const std::int32_t kind = fault.kind;
  if (kind == Fault::none) return;
  if (kind == Fault::document) {
    context_.fault->kind = Fault::none;
    throw DataError(wrong_document(fault.value, fault.place / fault.bound, fault.place % fault.bound));
  }
  const bool length = kind == Fault::length;
  const std::string text = std::string(kind == Fault::id ? "id "
                                       : length          ? "length "
                                                         : "target ") +
                           std::to_string(fault.value) + (length ? " of sample " : " at place ") +
                           std::to_string(fault.place) + " of the batch is outside of " + (length ? "1 to " : "0 to ") +
                           std::to_string(fault.bound - (length ? 0 : 1));
  context_.fault->kind = Fault::none;
  throw DataError(text);
}

}  // namespace trainer::kernels::cuda
