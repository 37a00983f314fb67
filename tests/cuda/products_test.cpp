// Matrix products by the emulated cuBLASLt: what is refused before it is asked for, what is said where a call fails,
// workspaces.
#include "kernels/cuda/gemm/products.h"

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "engine/core/error.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/target.h"
#include "tests/cuda/emulated/emulated.h"

#undef CHECK  // the program's; the rest is doctest's
#include <doctest/doctest.h>

using namespace trainer;
using namespace trainer::kernels::cuda;

namespace {

Device& device() {
  static Device one(0);
  return one;
}

ProductSpec spec_of(DType operands, DType result, Epilogue epilogue, std::int64_t columns) {
  return {.rows = 16,
          .columns = columns,
          .inner = 24,
          .operands = operands,
          .result = result,
          .epilogue = epilogue,
          .workspace_bytes = std::int64_t{1} << 20};
}

/// Device memory of a test's operands: never freed before its end.
struct Memory {
  ~Memory() {
    for (void* at : all) cudaFree(at);
  }
  char* operator()(std::size_t bytes) {
    void* at = nullptr;
    check(cudaMalloc(&at, bytes), "cudaMalloc");
    all.push_back(at);
    return static_cast<char*>(at);
  }
  std::vector<void*> all;
};

}  // namespace

TEST_CASE("products that cuBLASLt's documentation rules out are refused, and no others") {
  const auto makes = [](const ProductSpec& spec) { return Product::make(spec, device().context()) != nullptr; };
  for (DType c : {DType::f32, DType::bf16, DType::f16}) {
    CHECK(makes(spec_of(c, c, Epilogue::none, 7)));
    CHECK(makes(spec_of(c, DType::f32, Epilogue::none, 7)));
    CHECK(makes(spec_of(c, c, Epilogue::bias, 8)));
    CHECK(makes(spec_of(c, DType::f32, Epilogue::left_sums, 8)));
  }
  CHECK_FALSE(makes(spec_of(DType::f16, DType::bf16, Epilogue::none, 8)));
  CHECK_FALSE(makes(spec_of(DType::f32, DType::bf16, Epilogue::none, 8)));
  for (Epilogue gelu :
       {Epilogue::gelu, Epilogue::gelu_bias, Epilogue::gelu_aux, Epilogue::gelu_aux_bias, Epilogue::gelu_gradient}) {
    CHECK(makes(spec_of(DType::bf16, DType::bf16, gelu, 16)));
    CHECK_FALSE(makes(spec_of(DType::f32, DType::f32, gelu, 16)));
  }
  for (Epilogue with_aux : {Epilogue::gelu_aux, Epilogue::gelu_aux_bias, Epilogue::gelu_gradient})
    CHECK_FALSE(makes(spec_of(DType::bf16, DType::bf16, with_aux, 50257)));
}

TEST_CASE("a product keeps within the workspace that it was promised") {
  for (std::int64_t bytes : {std::int64_t{0}, std::int64_t{4096}, product_workspace(80), product_workspace(90)}) {
    ProductSpec spec = spec_of(DType::bf16, DType::bf16, Epilogue::none, 64);
    spec.workspace_bytes = bytes;
    const auto product = Product::make(spec, device().context());
    REQUIRE(product);
    CHECK(product->workspace_bytes() <= bytes);
  }
  CHECK(product_workspace(80) < product_workspace(90));
}

TEST_CASE("a bias gradient is column sums of our own, unless the library's epilogue was measured to be faster") {
  const TensorDesc x{DType::bf16, {96, 48}}, dy{DType::bf16, {96, 64}};
  const Signature s{Op::linear_grad_weight, {{"bias", true}}, {x, dy, {DType::f32, {64, 48}}, {DType::f32, {64}}}};
  Memory memory;
  std::vector<void*> operands;
  for (const TensorDesc& tensor : s.operands) operands.push_back(memory(static_cast<std::size_t>(tensor.bytes())));
  void* const workspace = memory(static_cast<std::size_t>(CudaTarget(90, 132).workspace_bytes(s)));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  const std::unique_ptr<kernels::Kernel> kernel = kernels::cuda::prepare(s, device().context());
  const std::int64_t before = emulated::counts().kernels;
  kernel->run({.operands = operands, .workspace = workspace, .stream = stream});
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  CHECK(emulated::counts().kernels > before);  // cuBLASLt's are not counted
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

TEST_CASE("a call that fails names the call, the product and the library's reason") {
  const ProductSpec spec = spec_of(DType::bf16, DType::f32, Epilogue::left_sums, 8);
  const auto product = Product::make(spec, device().context());
  REQUIRE(product);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  Memory memory;
  char* const left = memory(16 * 24 * 2 + 64);
  ProductOperands operands{.left = left + 2,
                           .right = memory(24 * 8 * 2),
                           .result = memory(16 * 8 * 4),
                           .bias = memory(16 * 4),
                           .workspace = memory(std::size_t{1} << 20)};
  std::string said;
  try {
    product->run(operands, stream);  // left is not aligned
  } catch (const IoError& error) {
    said = error.what();
  }
  CHECK(said.find("cublasLtMatmul") != std::string::npos);
  CHECK(said.find("product of bf16 [16, 24] · [24, 8] to f32, sums of the left operand") != std::string::npos);
  CHECK(said.find("status") != std::string::npos);
  operands.left = left;
  product->run(operands, stream);
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

TEST_CASE("products are captured, and a graph of them runs") {
  const ProductSpec spec{.rows = 2, .columns = 3, .inner = 2, .workspace_bytes = std::int64_t{1} << 20};
  const auto product = Product::make(spec, device().context());
  REQUIRE(product);
  Memory memory;
  auto *const left = reinterpret_cast<float*>(memory(16)), *const right = reinterpret_cast<float*>(memory(24)),
              *const result = reinterpret_cast<float*>(memory(24));
  void* const workspace = memory(std::size_t{1} << 20);
  for (int i = 0; i < 4; ++i) left[i] = static_cast<float>(i + 1);
  for (int i = 0; i < 6; ++i) right[i] = static_cast<float>(i);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  product->run({.left = left, .right = right, .result = result, .workspace = workspace}, stream);
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  const float truth[] = {6, 9, 12, 12, 19, 26};  // [1 2; 3 4] · [0 1 2; 3 4 5]
  for (int i = 0; i < 6; ++i) CHECK(result[i] == truth[i]);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}
