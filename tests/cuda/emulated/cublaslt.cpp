// cuBLASLt in host memory: the functions that kernels/cuda/gemm/products.cpp calls, from the comments of cublasLt.h and
// the cuBLAS documentation ("Using the cuBLASLt API"): what each attribute means and its type, which combinations of
// dtypes CUBLAS_COMPUTE_32F has, that matrices count columns first, that rows of auxiliary output have multiples of 8
// elements, that a workspace is aligned to 256 bytes. Sums are f32.
//
// Of fp8 it takes what the documentation lists ("FP8 kernels", "Narrow precisions usage"): from compute capability 8.9
// on, e4m3 by e4m3 or by e5m2, A transposed and B not before 10.0, rows of multiples of 16 bytes, scales of tensors on
// all, of blocks of 128 on 9.0 (not of squares on both sides), of blocks of 32 from 10.0 on, no epilogue but a bias.
// Scales are read where "Scaling factors layouts" puts them.
//
// Harder than the real one, so that mistakes show: epilogues of 16-bit results want whole multiples of 8 rows (so that
// what stands in for them is tested); an algorithm is refused for a problem other than the one that it was found for;
// its workspace is filled with garbage; where a caller allows reductions that round on the way, the first algorithm is
// one of those.
#include <cublasLt.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/cuda/emulated/block.h"
#include "tests/cuda/emulated/emulated.h"

namespace emulated = trainer::emulated;

struct cublasLtContext {
  int opened = 1;
};

namespace {

struct Layout {
  cudaDataType type;
  std::int64_t rows, columns, ld;
  friend bool operator==(const Layout&, const Layout&) = default;
};

struct Descriptor {
  std::int32_t transposed_a = CUBLAS_OP_N, transposed_b = CUBLAS_OP_N, bias_type = -1;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  void* aux = nullptr;
  std::int64_t aux_ld = 0;
  std::int32_t a_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, b_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  const void *a_scales = nullptr, *b_scales = nullptr;
  std::int8_t fast = 0;
};

struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment[4] = {256, 256, 256, 256};  // A, B, C, D
};

struct Problem {
  Descriptor descriptor;
  Layout a, b, c, d;
};

// What an opaque algorithm holds.
struct Algorithm {
  std::uint64_t problem;    // hash of the one that it was found for
  std::uint32_t parts;      // of the sum
  std::uint32_t rounds;     // 1: parts are rounded to D's dtype
  std::uint64_t workspace;  // bytes
  std::uint32_t alignment[4];
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <typename T, typename Opaque>
T& in(Opaque* opaque) {
  return *reinterpret_cast<T*>(opaque);
}

bool is_16_bits(cudaDataType type) { return type == CUDA_R_16BF || type == CUDA_R_16F; }
bool is_fp8(cudaDataType type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

float load(cudaDataType type, const void* at, std::int64_t i) {
  if (is_fp8(type))
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<const __nv_fp8_storage_t*>(at)[i],
                                                       type == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2)));
  if (type == CUDA_R_32F) return static_cast<const float*>(at)[i];
  if (type == CUDA_R_16BF) return __bfloat162float(static_cast<const __nv_bfloat16*>(at)[i]);
  return __half2float(static_cast<const __half*>(at)[i]);
}
void store(cudaDataType type, void* at, std::int64_t i, float value) {
  if (type == CUDA_R_32F)
    static_cast<float*>(at)[i] = value;
  else if (type == CUDA_R_16BF)
    static_cast<__nv_bfloat16*>(at)[i] = __float2bfloat16_rn(value);
  else
    static_cast<__half*>(at)[i] = __float2half_rn(value);
}
float rounded(cudaDataType type, float value) {
  float kept = 0;
  store(type, &kept, 0, value);
  return load(type, &kept, 0);
}

bool has_bias(std::uint32_t e) { return (e & CUBLASLT_EPILOGUE_BIAS) != 0; }
bool has_gelu(std::uint32_t e) { return (e & CUBLASLT_EPILOGUE_GELU) != 0; }
bool has_aux(std::uint32_t e) { return (e & 128) != 0; }
bool is_gelu_gradient(std::uint32_t e) { return e == CUBLASLT_EPILOGUE_DGELU || e == CUBLASLT_EPILOGUE_DGELU_BGRAD; }
bool has_sums(std::uint32_t e) {
  return e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB || e == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}

bool is_known(std::uint32_t e) {
  switch (e) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
      return true;
    default:
      return false;  // not emulated
  }
}

std::int64_t inner_of(const Problem& p) { return p.descriptor.transposed_a == CUBLAS_OP_N ? p.a.columns : p.a.rows; }

/// What is listed of products in fp8.
cublasStatus_t check_fp8(const Problem& p) {
  const Descriptor& d = p.descriptor;
  const int capability = emulated::settings().capability;
  const auto not_supported = CUBLAS_STATUS_NOT_SUPPORTED;
  if (capability < 89 || !is_fp8(p.b.type)) return not_supported;
  if (p.a.type == CUDA_R_8F_E5M2 && p.b.type == CUDA_R_8F_E5M2) return not_supported;
  const bool any_layout = capability >= 100 && capability < 120;
  if (!any_layout && (d.transposed_a != CUBLAS_OP_T || d.transposed_b != CUBLAS_OP_N)) return not_supported;
  if (p.a.ld % 16 != 0 || p.b.ld % 16 != 0 || p.d.rows % 16 != 0 || inner_of(p) % 16 != 0) return not_supported;
  if (!is_16_bits(p.d.type) && p.d.type != CUDA_R_32F) return not_supported;
  if (d.epilogue != CUBLASLT_EPILOGUE_DEFAULT && d.epilogue != CUBLASLT_EPILOGUE_BIAS) return not_supported;
  if (d.epilogue == CUBLASLT_EPILOGUE_BIAS && d.bias_type != CUDA_R_16BF && d.bias_type != CUDA_R_16F)
    return not_supported;
  for (const std::int32_t mode : {d.a_mode, d.b_mode}) switch (mode) {
      case CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F:
        break;
      case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
      case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
        if (capability != 90 || p.b.columns % 8 != 0) return not_supported;
        break;
      case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0:
        if (!any_layout || inner_of(p) % 32 != 0) return not_supported;
        break;
      default:
        return not_supported;
    }
  const auto is_128 = [](std::int32_t mode) {
    return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F || mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  };
  if (d.a_mode != d.b_mode && !(is_128(d.a_mode) && is_128(d.b_mode))) return not_supported;
  if (d.a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F && d.b_mode == d.a_mode) return not_supported;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check(const Problem& p) {
  const Descriptor& d = p.descriptor;
  for (const Layout* layout : {&p.a, &p.b, &p.c, &p.d})
    if (layout->rows <= 0 || layout->columns <= 0 || layout->ld < layout->rows) return CUBLAS_STATUS_INVALID_VALUE;
  const bool a_as_is = d.transposed_a == CUBLAS_OP_N, b_as_is = d.transposed_b == CUBLAS_OP_N;
  const std::int64_t m = a_as_is ? p.a.rows : p.a.columns, n = b_as_is ? p.b.columns : p.b.rows,
                     k = b_as_is ? p.b.rows : p.b.columns;
  if (m != p.d.rows || n != p.d.columns || k != inner_of(p) || p.c.rows != m || p.c.columns != n)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (p.c.type != p.d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (is_fp8(p.a.type)) return check_fp8(p);
  if (p.a.type != p.b.type) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.a.type != CUDA_R_32F && !is_16_bits(p.a.type)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.d.type != p.a.type && p.d.type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!is_known(d.epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if ((has_bias(d.epilogue) || has_sums(d.epilogue)) && d.bias_type != -1 && d.bias_type != p.d.type)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (has_aux(d.epilogue) && (d.aux_ld % 8 != 0 || d.aux_ld < m)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if ((has_gelu(d.epilogue) || is_gelu_gradient(d.epilogue)) && p.d.type == CUDA_R_32F)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (d.epilogue != CUBLASLT_EPILOGUE_DEFAULT && is_16_bits(p.a.type) && m % 8 != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

/// Of everything that an algorithm may depend on: not the addresses.
std::uint64_t hash_of(const Problem& p) {
  std::uint64_t hash = 14695981039346656037u;
  const auto mix = [&](std::int64_t value) { hash = (hash ^ static_cast<std::uint64_t>(value)) * 1099511628211u; };
  for (const Layout* l : {&p.a, &p.b, &p.c, &p.d})
    for (std::int64_t value : {static_cast<std::int64_t>(l->type), l->rows, l->columns, l->ld}) mix(value);
  const Descriptor& d = p.descriptor;
  for (std::int64_t value : {static_cast<std::int64_t>(d.transposed_a), static_cast<std::int64_t>(d.transposed_b),
                             static_cast<std::int64_t>(d.epilogue), d.aux_ld, static_cast<std::int64_t>(d.a_mode),
                             static_cast<std::int64_t>(d.b_mode), static_cast<std::int64_t>(d.fast)})
    mix(value);
  return hash;
}

/// The scale of element `k` of row `i` of an operand whose rows are summed over: [across, inner].
float scale_of(std::int32_t mode, const void* scales, std::int64_t i, std::int64_t k, std::int64_t across,
               std::int64_t inner) {
  const auto blocks = [](std::int64_t count, std::int64_t of) { return (count + of - 1) / of; };
  const auto* const floats = static_cast<const float*>(scales);
  switch (mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:  // rows first, a multiple of 4 of them
      return floats[k / 128 * blocks(across, 4) * 4 + i];
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:  // blocks of a row first, a multiple of 4 of them
      return floats[i / 128 * blocks(blocks(inner, 128), 4) * 4 + k / 128];
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: {  // tiles of 128 rows and 4 blocks, in which 32 rows are apart
      const std::int64_t block = k / 32, tile = i / 128 * blocks(blocks(inner, 32), 4) + block / 4;
      const int code =
          static_cast<const std::uint8_t*>(scales)[tile * 512 + (i % 32) * 16 + (i % 128) / 32 * 4 + block % 4];
      return code == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0F, code - 127);
    }
    default:
      return floats[0];
  }
}

/// op(matrix) as f32: `across` values for each of `inner`, one after the other.
std::vector<float> by_inner(const Layout& layout, const void* at, bool inner_is_columns, std::int64_t inner,
                            std::int64_t across) {
  std::vector<float> values(static_cast<std::size_t>(inner * across));
  for (std::int64_t k = 0; k < inner; ++k)
    for (std::int64_t i = 0; i < across; ++i)
      values[static_cast<std::size_t>(k * across + i)] =
          load(layout.type, at, inner_is_columns ? k * layout.ld + i : i * layout.ld + k);
  return values;
}

void multiply_by_scales(std::vector<float>& values, std::int32_t mode, const void* scales, std::int64_t inner,
                        std::int64_t across) {
  for (std::int64_t k = 0; k < inner; ++k)
    for (std::int64_t i = 0; i < across; ++i)
      values[static_cast<std::size_t>(k * across + i)] *= scale_of(mode, scales, i, k, across, inner);
}

constexpr float kGelu = 0.7978845608028654F, kCubic = 0.044715F;
float gelu(float x) { return 0.5F * x * (1 + std::tanh(kGelu * (x + kCubic * x * x * x))); }
float gelu_slope(float x) {
  const float t = std::tanh(kGelu * (x + kCubic * x * x * x));
  return 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * kGelu * (1 + 3 * kCubic * x * x);
}

struct Run {
  Problem problem;
  Algorithm algorithm;
  float alpha, beta;
  const void *a, *b, *c;
  void *d, *workspace;

  void operator()() const;
  void finish(std::int64_t column, const std::vector<float>& sums) const;
  void sum_operand(const std::vector<float>& values, std::int64_t across) const;
};

void Run::operator()() const {
  const std::int64_t m = problem.d.rows, n = problem.d.columns, inner = inner_of(problem);
  std::memset(workspace, 0xA5, algorithm.workspace);
  const Descriptor& how = problem.descriptor;
  std::vector<float> left = by_inner(problem.a, a, how.transposed_a == CUBLAS_OP_N, inner, m);
  std::vector<float> right = by_inner(problem.b, b, how.transposed_b != CUBLAS_OP_N, inner, n);
  if (is_fp8(problem.a.type)) {
    multiply_by_scales(left, how.a_mode, how.a_scales, inner, m);
    multiply_by_scales(right, how.b_mode, how.b_scales, inner, n);
  }
  const auto parts = static_cast<std::int64_t>(algorithm.parts);
  std::vector<float> sums(static_cast<std::size_t>(m)), part(sums);
  for (std::int64_t column = 0; column < n; ++column) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (std::int64_t p = 0; p < parts; ++p) {
      std::fill(part.begin(), part.end(), 0.0F);
      for (std::int64_t k = inner * p / parts; k < inner * (p + 1) / parts; ++k) {
        const float* const from = left.data() + k * m;
        const float by = right[static_cast<std::size_t>(k * n + column)];
        for (std::int64_t i = 0; i < m; ++i) part[static_cast<std::size_t>(i)] += from[i] * by;
      }
      for (std::int64_t i = 0; i < m; ++i) {
        const float value = part[static_cast<std::size_t>(i)];
        sums[static_cast<std::size_t>(i)] += algorithm.rounds != 0 ? rounded(problem.d.type, value) : value;
      }
    }
    finish(column, sums);
  }
  if (how.epilogue == CUBLASLT_EPILOGUE_BGRADA) sum_operand(left, m);
  if (how.epilogue == CUBLASLT_EPILOGUE_BGRADB) sum_operand(right, n);
}

/// A column of D: bias is added before the activation, C before both.
void Run::finish(std::int64_t column, const std::vector<float>& sums) const {
  const Descriptor& how = problem.descriptor;
  const cudaDataType type = problem.d.type;
  for (std::int64_t i = 0; i < problem.d.rows; ++i) {
    float value = alpha * sums[static_cast<std::size_t>(i)];
    if (beta != 0) value += beta * load(problem.c.type, c, column * problem.c.ld + i);
    if (has_bias(how.epilogue)) value += load(type, how.bias, i);
    if (is_gelu_gradient(how.epilogue))
      value *= gelu_slope(load(type, how.aux, column * how.aux_ld + i));
    else if (has_aux(how.epilogue))
      store(type, how.aux, column * how.aux_ld + i, value);
    if (has_gelu(how.epilogue)) value = gelu(value);
    store(type, d, column * problem.d.ld + i, value);
  }
}

void Run::sum_operand(const std::vector<float>& values, std::int64_t across) const {
  for (std::int64_t i = 0; i < across; ++i) {
    float sum = 0;
    for (std::size_t at = static_cast<std::size_t>(i); at < values.size(); at += static_cast<std::size_t>(across))
      sum += values[at];
    store(problem.d.type, problem.descriptor.bias, i, sum);
  }
}

bool aligned_to(const void* at, std::uint64_t bytes) { return reinterpret_cast<std::uintptr_t>(at) % bytes == 0; }

/// Reads an attribute of exactly its size.
template <typename T>
cublasStatus_t take(T& field, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "emulated status";
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* descriptor, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *descriptor = reinterpret_cast<cublasLtMatmulDesc_t>(new Descriptor);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t descriptor) {
  delete &in<Descriptor>(descriptor);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  auto& d = in<Descriptor>(descriptor);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(d.transposed_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(d.transposed_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(d.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(d.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return take(d.bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return take(d.aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return take(d.aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return take(d.a_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return take(d.b_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return take(d.a_scales, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return take(d.b_scales, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return take(d.fast, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t ld) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &in<Layout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &in<Preference>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  auto& p = in<Preference>(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(p.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(p.reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return take(p.alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return take(p.alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return take(p.alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(p.alignment[3], value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t descriptor,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
  *returned = 0;
  if (handle == nullptr || requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const Problem problem{in<Descriptor>(descriptor), in<Layout>(a), in<Layout>(b), in<Layout>(c), in<Layout>(d)};
  if (const cublasStatus_t status = check(problem); status != CUBLAS_STATUS_SUCCESS) return status;
  const auto& wanted = in<Preference>(preference);
  const std::uint32_t lossy =
      wanted.reductions & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
  for (std::uint32_t parts : {3u, 1u, 2u}) {
    if (*returned == requested) break;
    const std::uint64_t workspace =
        parts == 1 ? 0 : std::uint64_t{4} * parts * static_cast<std::uint64_t>(problem.d.rows * problem.d.columns);
    if (workspace > wanted.workspace || (parts > 1 && (wanted.reductions & CUBLASLT_REDUCTION_SCHEME_MASK) == 0))
      continue;
    Algorithm algorithm{hash_of(problem), parts, parts > 1 && lossy != 0 ? 1u : 0u, workspace, {}};
    std::copy_n(wanted.alignment, 4, algorithm.alignment);
    cublasLtMatmulHeuristicResult_t& result = results[(*returned)++];
    result = {};
    std::memcpy(&result.algo, &algorithm, sizeof algorithm);
    result.workspaceSize = workspace;
    result.state = CUBLAS_STATUS_SUCCESS;
  }
  return *returned > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t descriptor,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (handle == nullptr || algo == nullptr || result == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const Problem problem{in<Descriptor>(descriptor), in<Layout>(a), in<Layout>(b), in<Layout>(c), in<Layout>(d)};
  if (const cublasStatus_t status = check(problem); status != CUBLAS_STATUS_SUCCESS) return status;
  Algorithm algorithm;
  std::memcpy(&algorithm, algo, sizeof algorithm);
  if (algorithm.problem != hash_of(problem)) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = algorithm.workspace;  // the algorithm itself is not written there
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t descriptor, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t stream) {
  if (handle == nullptr || algo == nullptr || a == nullptr || b == nullptr || d == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  Run run{{in<Descriptor>(descriptor), in<Layout>(a_layout), in<Layout>(b_layout), in<Layout>(c_layout),
           in<Layout>(d_layout)},
          {},
          *static_cast<const float*>(alpha),
          *static_cast<const float*>(beta),
          a,
          b,
          c,
          d,
          workspace};
  std::memcpy(&run.algorithm, algo, sizeof run.algorithm);
  if (const cublasStatus_t status = check(run.problem); status != CUBLAS_STATUS_SUCCESS) return status;
  if (run.algorithm.problem != hash_of(run.problem)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (run.algorithm.workspace > workspace_bytes || (run.algorithm.workspace > 0 && workspace == nullptr) ||
      !aligned_to(workspace, 256))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (run.beta != 0 && c == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (c == d && !(run.problem.c == run.problem.d)) return CUBLAS_STATUS_INVALID_VALUE;
  const void* const operands[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (!aligned_to(operands[i], run.algorithm.alignment[i])) return CUBLAS_STATUS_INVALID_VALUE;
  const Descriptor& how = run.problem.descriptor;
  if (is_fp8(run.problem.a.type) && (how.a_scales == nullptr || how.b_scales == nullptr ||
                                     !aligned_to(how.a_scales, 16) || !aligned_to(how.b_scales, 16)))
    return CUBLAS_STATUS_INVALID_VALUE;
  if ((has_bias(how.epilogue) || has_sums(how.epilogue)) && how.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (has_aux(how.epilogue) && (how.aux == nullptr || !aligned_to(how.aux, 16))) return CUBLAS_STATUS_INVALID_VALUE;
  if (static_cast<std::int64_t>(run.algorithm.parts) == emulated::settings().parts_fail)
    return CUBLAS_STATUS_EXECUTION_FAILED;
  emulated::enqueue(
      stream,
      [run] {
        run();
        return true;
      },
      "a product");
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
