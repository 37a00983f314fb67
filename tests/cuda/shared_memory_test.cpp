// Kernels within the shared memory of each kind of GPU: of 8.6 and 8.9 a block has 99 KiB, of 8.0 163, of 9.0 and 10.0
// 227.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/target.h"
#include "tests/cuda/emulated/block.h"
#include "tests/cuda/emulated/emulated.h"
#include "tests/temporary.h"

#undef CHECK  // the program's; the rest is doctest's
#include <doctest/doctest.h>

using namespace trainer;
using namespace trainer::kernels::cuda;
using trainer::tests::contains;

namespace {

class OfCapability {
 public:
  explicit OfCapability(int capability) { emulated::settings().capability = capability; }
  ~OfCapability() { emulated::settings().capability = 90; }
};

/// The bytes of all operands after one run of `s` on a GPU of `capability`, on operands of the same random numbers, of
/// which integers are 0x3DCC to 0x3F7B.
/// `later`: what is prepared between preparing and running it.
std::vector<std::byte> run_on(int capability, const Signature& s, const Signature* later = nullptr) {
  const OfCapability scope(capability);
  Device device(0);
  const Context& context = device.context();
  std::vector<void*> operands;
  std::minstd_rand random(7);
  for (const TensorDesc& tensor : s.operands) {
    std::vector<std::uint16_t> words(static_cast<std::size_t>(tensor.bytes()) / 2);
    // 0.1 to 1 as bf16, and two of them as f32.
    for (std::uint16_t& word : words) word = static_cast<std::uint16_t>(0x3DCCu + random() % 0x1B0u);
    for (std::size_t high = 1; tensor.dtype == DType::i32 && high < words.size(); high += 2) words[high] = 0;
    check(cudaMalloc(&operands.emplace_back(), words.size() * 2), "cudaMalloc");
    check(cudaMemcpy(operands.back(), words.data(), words.size() * 2, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  void* workspace = nullptr;
  check(cudaMalloc(&workspace, static_cast<std::size_t>(CudaTarget(capability, context.units).workspace_bytes(s))),
        "cudaMalloc");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  const std::unique_ptr<kernels::Kernel> kernel = prepare(s, context);
  const std::unique_ptr<kernels::Kernel> other = later != nullptr ? prepare(*later, context) : nullptr;
  kernel->run({.operands = operands, .workspace = workspace, .stream = stream});
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  std::vector<std::byte> all;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const auto size = static_cast<std::size_t>(s.operands[i].bytes());
    all.resize(all.size() + size);
    check(cudaMemcpy(all.data() + all.size() - size, operands[i], size, cudaMemcpyDeviceToHost), "cudaMemcpy");
    cudaFree(operands[i]);
  }
  cudaFree(workspace);
  return all;
}

Signature norm_grad_of(DType c, std::int64_t dim) {
  const TensorDesc rows{c, {5, dim}}, stat{DType::f32, {5}}, gradient{DType::f32, {dim}};
  return {Op::layer_norm_grad,
          {{"bias", true}, {"residual", true}, {"weight", true}, {"accumulate", false}},
          {rows, rows, {c, {dim}}, stat, stat, rows, rows, gradient, gradient}};
}

Signature attention_grad_of(DType c, std::int64_t head_dim) {
  const TensorDesc rows{c, {1, 40, head_dim}};
  return {Op::attention_grad,
          {{"heads", std::int64_t{1}}, {"kv_heads", std::int64_t{1}}, {"packed", false}, {"causal", true}},
          {rows, rows, rows, rows, rows, {DType::f32, {1, 1, 40}}, rows, rows, rows}};
}

Signature cross_entropy_and_grad_of(DType c, std::int64_t classes) {
  const TensorDesc logits{c, {2, classes}};
  return {Op::cross_entropy_and_grad,
          {{"label_smoothing", 0.1}},
          {logits, {DType::i32, {2}}, {DType::f32, {1}}, {DType::f64, {1}}, logits}};
}

}  // namespace

TEST_CASE("a row of logits that shared memory does not hold as a whole has the same loss and gradient, to the bit") {
  // Bytes of a row: within that of every GPU, of some, and of none.
  for (const std::int64_t bytes : {64 << 10, 120 << 10, 200 << 10, 300 << 10})
    for (const DType c : {DType::bf16, DType::f32}) {
      const Signature s = cross_entropy_and_grad_of(c, bytes / size_of(c));
      CAPTURE(kernels::describe(s));
      const std::vector<std::byte> expected = run_on(90, s);
      for (const int capability : {80, 86, 100}) CHECK(run_on(capability, s) == expected);
    }
}

TEST_CASE("gradients of norms keep within the shared memory of every kind of GPU, and are the same to the bit") {
  for (const DType c : {DType::bf16, DType::f32})
    for (const std::int64_t dim : {1024, 5120, 8192, 12288}) {
      const Signature s = norm_grad_of(c, dim);
      CAPTURE(kernels::describe(s));
      const std::vector<std::byte> expected = run_on(90, s);
      for (const int capability : {80, 86, 89, 100}) CHECK(run_on(capability, s) == expected);
    }
}

TEST_CASE("a kernel that was prepared for much shared memory runs after the same function was prepared for less") {
  const Signature wide = norm_grad_of(DType::bf16, 8192), narrower = norm_grad_of(DType::bf16, 5120);
  CHECK(run_on(90, wide, &narrower) == run_on(90, wide));
}

TEST_CASE("a kernel that takes more shared memory than a GPU has is refused with both numbers") {
  CHECK(run_on(89, attention_grad_of(DType::bf16, 256)) == run_on(90, attention_grad_of(DType::bf16, 256)));
  run_on(90, attention_grad_of(DType::f32, 256));
  std::string why;
  try {
    run_on(89, attention_grad_of(DType::f32, 256));
  } catch (const IoError& error) {
    why = error.what();
  }
  CHECK(contains(why, "bytes of shared memory for each block, and this GPU has 101376"));
}
