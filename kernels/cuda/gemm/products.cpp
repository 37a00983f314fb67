// Matrix products by cuBLASLt. Written from the comments in cublasLt.h and the cuBLAS documentation, section "Using the
// cuBLASLt API".
#include "kernels/cuda/gemm/products.h"

#include <cublasLt.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/core/check.h"
#include "engine/core/error.h"
#include "kernels/cuda/runtime/device_choices.h"
#include "kernels/cuda/runtime/libraries.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/timed_choices.h"

namespace trainer::kernels::cuda {
namespace {

constexpr int kCandidates = 8;  // that a choice by time looks at
constexpr auto kAlignment = static_cast<std::uint32_t>(kOperandAlignment);
constexpr std::int64_t kAuxRow = 8;  // elements: "must be divisible by 8" (CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD)

void check_products(cublasStatus_t status, const char* call, const std::string& of) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw IoError(std::string("cuBLASLt: ") + call + " for " + of + ": " + cublasLtGetStatusString(status) + " (" +
                  cublasLtGetStatusName(status) + ")");
}

using Descriptor = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using MatrixLayout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    case DType::f64:
    case DType::i32:
    case DType::u8:
      break;
  }
  UNREACHABLE("products are of f32, bf16 or f16, not " + std::string(name_of(dtype)));
}

cudaDataType_t data_type(Fp8Code code) { return code == Fp8Code::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2; }

std::int32_t scale_mode(ScaleBlock block) {
  switch (block) {
    case ScaleBlock::tensor:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case ScaleBlock::row_128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case ScaleBlock::square_128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    case ScaleBlock::row_32:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
  }
  UNREACHABLE("a block of scales outside the enum");
}

std::uint32_t library_epilogue(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::gelu:
      return CUBLASLT_EPILOGUE_GELU;
    case Epilogue::gelu_bias:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case Epilogue::gelu_aux:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::gelu_aux_bias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::gelu_gradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::left_sums:
      return CUBLASLT_EPILOGUE_BGRADB;  // left is cuBLASLt's B
  }
  UNREACHABLE("an epilogue outside the enum");
}

const char* name_of(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none:
      return "";
    case Epilogue::bias:
      return ", bias";
    case Epilogue::gelu:
      return ", gelu";
    case Epilogue::gelu_bias:
      return ", bias, gelu";
    case Epilogue::gelu_aux:
      return ", gelu with its input";
    case Epilogue::gelu_aux_bias:
      return ", bias, gelu with its input";
    case Epilogue::gelu_gradient:
      return ", gradient of gelu";
    case Epilogue::left_sums:
      return ", sums of the left operand";
  }
  return "";
}

bool has_bias(Epilogue e) {
  return e == Epilogue::bias || e == Epilogue::gelu_bias || e == Epilogue::gelu_aux_bias || e == Epilogue::left_sums;
}
bool has_aux(Epilogue e) {
  return e == Epilogue::gelu_aux || e == Epilogue::gelu_aux_bias || e == Epilogue::gelu_gradient;
}
bool has_gelu(Epilogue e) { return e == Epilogue::gelu || e == Epilogue::gelu_bias || has_aux(e); }

/// What the documentation rules out, so that it is not even asked for.
bool ruled_out(const ProductSpec& spec) {
  if (spec.result != spec.operands && spec.result != DType::f32) return true;
  if (spec.fp8 != Fp8Scales::none && spec.epilogue != Epilogue::none && spec.epilogue != Epilogue::bias) return true;
  if (has_gelu(spec.epilogue) && (spec.result == DType::f32 || spec.accumulate)) return true;
  return has_aux(spec.epilogue) && spec.columns % kAuxRow != 0;
}

}  // namespace

// Everything but the addresses. In cuBLASLt's terms D [m, n] = A·B has m = columns, n = rows, A = right and B = left.
struct Product::State {
  cublasLtHandle_t library = nullptr;
  ProductSpec spec;
  Descriptor descriptor;
  MatrixLayout a, b, d;
  cublasLtMatmulHeuristicResult_t chosen{};

  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check_products(cublasLtMatmulDescSetAttribute(descriptor.get(), attribute, &value, sizeof value),
                   "cublasLtMatmulDescSetAttribute", spec.str());
  }
  void set_addresses(void* bias, void* aux) {
    if (has_bias(spec.epilogue)) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (has_aux(spec.epilogue)) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
  }
  void set_scales(const void* left, const void* right) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, right);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, left);
  }
  void describe();
  void describe_fp8();
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(int count) const;
  void multiply(const ProductOperands& operands, const cublasLtMatmulHeuristicResult_t& with, cudaStream_t stream);
  cublasStatus_t try_to_multiply(const ProductOperands& operands, const cublasLtMatmulHeuristicResult_t& with,
                                 cudaStream_t stream);
  bool restore(const std::string& choice);
  std::optional<std::string> fastest(std::span<const cublasLtMatmulHeuristicResult_t> candidates,
                                     const Context& context);
};

namespace {

MatrixLayout layout_of(cudaDataType_t type, std::int64_t rows, std::int64_t columns, const std::string& of) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_products(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(rows),
                                            static_cast<std::uint64_t>(columns), rows),
                 "cublasLtMatrixLayoutCreate", of);
  return MatrixLayout(layout);
}

template <typename T>
void prefer(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value,
            const std::string& of) {
  check_products(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
                 "cublasLtMatmulPreferenceSetAttribute", of);
}

}  // namespace

void Product::State::describe() {
  const std::string name = spec.str();
  cublasLtMatmulDesc_t created = nullptr;
  check_products(cublasLtMatmulDescCreate(&created, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate", name);
  descriptor.reset(created);
  const auto op = [](bool transposed) { return static_cast<std::int32_t>(transposed ? CUBLAS_OP_T : CUBLAS_OP_N); };
  set(CUBLASLT_MATMUL_DESC_TRANSA, op(spec.right_transposed));
  set(CUBLASLT_MATMUL_DESC_TRANSB, op(spec.left_transposed));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, library_epilogue(spec.epilogue));
  // The heuristic takes the alignment of these two from their addresses.
  set_addresses(reinterpret_cast<void*>(std::uintptr_t{kAlignment}),
                reinterpret_cast<void*>(std::uintptr_t{kAlignment}));
  if (has_bias(spec.epilogue))
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(data_type(spec.result)));
  if (has_aux(spec.epilogue)) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, spec.columns);
  const std::int64_t m = spec.columns, n = spec.rows, k = spec.inner;
  const bool fp8 = spec.fp8 != Fp8Scales::none;
  const cudaDataType_t right = fp8 ? data_type(Fp8Code::e4m3) : data_type(spec.operands),
                       left = fp8 ? data_type(spec.left_code) : data_type(spec.operands);
  a = spec.right_transposed ? layout_of(right, k, m, name) : layout_of(right, m, k, name);
  b = spec.left_transposed ? layout_of(left, n, k, name) : layout_of(left, k, n, name);
  d = layout_of(data_type(spec.result), m, n, name);
  if (fp8) describe_fp8();
}

void Product::State::describe_fp8() {
  CHECK(spec.right_transposed && !spec.left_transposed, "codes lie with the dim that is summed over innermost");
  set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{0});
  set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(block_of(spec.fp8, spec.square_right)));
  set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(block_of(spec.fp8, false)));
  // As of the epilogue, the heuristic may look at addresses.
  set_scales(reinterpret_cast<void*>(std::uintptr_t{kAlignment}), reinterpret_cast<void*>(std::uintptr_t{kAlignment}));
}

std::vector<cublasLtMatmulHeuristicResult_t> Product::State::candidates(int count) const {
  const std::string name = spec.str();
  cublasLtMatmulPreference_t created = nullptr;
  check_products(cublasLtMatmulPreferenceCreate(&created), "cublasLtMatmulPreferenceCreate", name);
  const Preference preference(created);
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(spec.workspace_bytes), name);
  // Parts of a sum meet in f32, out of place: in place, or in 16 bits, they would be rounded on the way.
  prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE), name);
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(preference, attribute, kAlignment, name);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(count));
  int returned = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      library, descriptor.get(), a.get(), b.get(), d.get(), d.get(), preference.get(), count, found.data(), &returned);
  // An epilogue that it has not for these dtypes and sizes may be a conflict to it as well.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
      (status == CUBLAS_STATUS_INVALID_VALUE && spec.epilogue != Epilogue::none))
    return {};
  check_products(status, "cublasLtMatmulAlgoGetHeuristic", name);
  found.resize(static_cast<std::size_t>(returned));
  std::erase_if(found, [&](const auto& one) {
    return one.state != CUBLAS_STATUS_SUCCESS || one.workspaceSize > static_cast<std::size_t>(spec.workspace_bytes);
  });
  return found;
}

void Product::State::multiply(const ProductOperands& operands, const cublasLtMatmulHeuristicResult_t& with,
                              cudaStream_t stream) {
  check_products(try_to_multiply(operands, with, stream), "cublasLtMatmul", spec.str());
}

cublasStatus_t Product::State::try_to_multiply(const ProductOperands& operands,
                                               const cublasLtMatmulHeuristicResult_t& with, cudaStream_t stream) {
  set_addresses(operands.bias, operands.aux);
  if (spec.fp8 != Fp8Scales::none) set_scales(operands.left_scales, operands.right_scales);
  const float alpha = 1, beta = spec.accumulate ? 1.0F : 0.0F;
  return cublasLtMatmul(library, descriptor.get(), &alpha, operands.right, a.get(), operands.left, b.get(), &beta,
                        operands.result, d.get(), operands.result, d.get(), &with.algo, operands.workspace,
                        with.workspaceSize, stream);
}

// ---- The choice by time ----

namespace {

/// All that a choice depends on.
std::string key_of(const ProductSpec& spec) {
  return spec.str() + (spec.square_right ? ", squares of scales" : "") + ", workspace " +
         std::to_string(spec.workspace_bytes);
}

std::string hex_of(const cublasLtMatmulAlgo_t& algorithm) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < sizeof algorithm; ++i) {
    const unsigned char byte = reinterpret_cast<const unsigned char*>(&algorithm)[i];
    text += {kDigits[byte / 16], kDigits[byte % 16]};
  }
  return text;
}

std::optional<cublasLtMatmulAlgo_t> algorithm_of(const std::string& text) {
  cublasLtMatmulAlgo_t algorithm{};
  if (text.size() != 2 * sizeof algorithm) return std::nullopt;
  for (std::size_t i = 0; i < sizeof algorithm; ++i) {
    auto& byte = reinterpret_cast<unsigned char*>(&algorithm)[i];
    const char* const at = text.data() + 2 * i;
    if (const auto [end, error] = std::from_chars(at, at + 2, byte, 16); end != at + 2 || error != std::errc())
      return std::nullopt;
  }
  return algorithm;
}

}  // namespace

// An algorithm is opaque bytes, which the same version of the library may be given again.
bool Product::State::restore(const std::string& choice) {
  const std::optional<cublasLtMatmulAlgo_t> algorithm = algorithm_of(choice);
  if (!algorithm) return false;
  cublasLtMatmulHeuristicResult_t result{};
  if (cublasLtMatmulAlgoCheck(library, descriptor.get(), a.get(), b.get(), d.get(), d.get(), &*algorithm, &result) !=
          CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > static_cast<std::size_t>(spec.workspace_bytes))
    return false;
  chosen = result;
  chosen.algo = *algorithm;
  return true;
}

std::optional<std::string> Product::State::fastest(std::span<const cublasLtMatmulHeuristicResult_t> candidates,
                                                   const Context& context) {
  const bool fp8 = spec.fp8 != Fp8Scales::none;
  const std::int64_t operand = fp8 ? 1 : size_of(spec.operands), element = size_of(spec.result),
                     results = spec.rows * spec.columns * element;
  const Fp8Workspace sizes(spec.rows, spec.columns, spec.inner, spec.fp8, spec.square_right);
  Scratch scratch(context);
  const ProductOperands operands{.left = scratch.take(spec.rows * spec.inner * operand),
                                 .right = scratch.take(spec.inner * spec.columns * operand),
                                 .result = scratch.take(results),
                                 .bias = scratch.take(std::max(spec.rows, spec.columns) * element),
                                 .aux = scratch.take(has_aux(spec.epilogue) ? results : 0),
                                 .workspace = scratch.take(spec.workspace_bytes),
                                 .left_scales = scratch.take(fp8 ? sizes.left.scale_bytes() : 0),
                                 .right_scales = scratch.take(fp8 ? sizes.right.scale_bytes() : 0)};
  for (const void* at : {operands.left, operands.right, static_cast<const void*>(operands.result),
                         static_cast<const void*>(operands.bias), static_cast<const void*>(operands.aux),
                         static_cast<const void*>(operands.workspace), operands.left_scales, operands.right_scales})
    if (at == nullptr) return std::nullopt;
  constexpr float kRefused = std::numeric_limits<float>::infinity();
  std::vector<float> least(candidates.size(), kRefused);
  for (int turn = 0; turn < kTimedTurns; ++turn)
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const auto& candidate = candidates[i];
      // One that later runs could not take is none.
      if (turn == 0 ? !restore(hex_of(candidate.algo)) : least[i] == kRefused) continue;
      cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
      const float ms = time_on_device([&](cudaStream_t stream) {
        if (status == CUBLAS_STATUS_SUCCESS) status = try_to_multiply(operands, candidate, stream);
      });
      // The library may refuse what its own heuristic named.
      least[i] = status == CUBLAS_STATUS_SUCCESS ? std::min(least[i], ms) : kRefused;
    }
  const auto best = std::ranges::min_element(least);
  if (best == least.end() || *best == kRefused) return std::nullopt;
  return hex_of(candidates[static_cast<std::size_t>(best - least.begin())].algo);
}

// ---- Product ----

std::string ProductSpec::str() const {
  const auto matrix = [&](std::int64_t r, std::int64_t c, bool transposed) {
    const std::string size = "[" + std::to_string(transposed ? c : r) + ", " + std::to_string(transposed ? r : c) + "]";
    return transposed ? size + "ᵀ" : size;
  };
  const std::string of = fp8 == Fp8Scales::none ? std::string(trainer::name_of(operands))
                         : left_code == Fp8Code::e4m3
                             ? "fp8 (e4m3, scales: " + std::string(trainer::name_of(fp8)) + ")"
                             : "fp8 (e5m2 and e4m3, scales: " + std::string(trainer::name_of(fp8)) + ")";
  return "product of " + of + " " + matrix(rows, inner, left_transposed) + " · " +
         matrix(inner, columns, right_transposed) + (accumulate ? ", added to " : " to ") +
         std::string(trainer::name_of(result)) + name_of(epilogue);
}

Product::Product(std::unique_ptr<State> state) : state_(std::move(state)) {}
Product::~Product() = default;

std::unique_ptr<Product> Product::make(const ProductSpec& spec, const Context& context) {
  if (ruled_out(spec)) return nullptr;
  auto state = std::make_unique<State>();
  state->library = context.products;
  state->spec = spec;
  state->describe();
  const auto candidates = state->candidates(context.choices != nullptr ? kCandidates : 1);
  if (candidates.empty()) return nullptr;
  state->chosen = candidates.front();
  if (candidates.size() > 1 && !context.choices->choose(
                                   key_of(spec), [&](const std::string& choice) { return state->restore(choice); },
                                   [&] { return state->fastest(candidates, context); }))
    state->chosen = candidates.front();
  return std::unique_ptr<Product>(new Product(std::move(state)));
}

void Product::run(const ProductOperands& operands, cudaStream_t stream) {
  state_->multiply(operands, state_->chosen, stream);
}

std::int64_t Product::workspace_bytes() const { return static_cast<std::int64_t>(state_->chosen.workspaceSize); }

cublasLtContext* open_products() {
  cublasLtHandle_t handle = nullptr;
  check_products(cublasLtCreate(&handle), "cublasLtCreate", "this device");
  return handle;
}

void close_products(cublasLtContext* handle) {
  if (handle != nullptr) cublasLtDestroy(handle);
}

}  // namespace trainer::kernels::cuda
