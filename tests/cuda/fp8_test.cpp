// Products in fp8 on each kind of GPU: linear and its gradients against a formula in f64 of quantized operands, which
// is written here from the definitions of the formats, and against the product of the operands themselves.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/fp8.h"
#include "kernels/cuda/gemm/products.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/target.h"
#include "tests/cuda/emulated/emulated.h"

#undef CHECK  // the program's; the rest is doctest's
#include <doctest/doctest.h>

using namespace trainer;
using namespace trainer::kernels::cuda;

namespace {

constexpr int kCapabilities[] = {89, 90, 100};

class OfCapability {
 public:
  explicit OfCapability(int capability) { emulated::settings().capability = capability; }
  ~OfCapability() { emulated::settings().capability = 90; }
};

/// A matrix as bf16 has it. Its rows and columns have magnitudes of their own, which differ by more than fp8 can hold.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<float> at{};

  Matrix(std::int64_t rows, std::int64_t columns) : rows(rows), columns(columns) {
    at.resize(static_cast<std::size_t>(rows * columns));
  }
  Matrix(std::int64_t rows, std::int64_t columns, unsigned seed) : Matrix(rows, columns) {
    std::minstd_rand random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        (*this)(r, c) = bf16_of(normal(random) * std::ldexp(1.0F, static_cast<int>(r / 40 % 3 + c / 96 % 3) * 2 - 4));
  }
  static float bf16_of(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    bits = (bits + 0x7FFFu + (bits >> 16 & 1u)) & 0xFFFF0000u;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  float& operator()(std::int64_t r, std::int64_t c) { return at[static_cast<std::size_t>(r * columns + c)]; }
  float operator()(std::int64_t r, std::int64_t c) const { return at[static_cast<std::size_t>(r * columns + c)]; }
  Matrix transposed() const {
    Matrix other(columns, rows);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) other(c, r) = (*this)(r, c);
    return other;
  }
};

// ---- The formats, by their definitions ----

struct Format {
  int bits, smallest;  ///< of the fraction; exponent of the smallest normal number
  double largest;
};
constexpr Format kE4m3{3, -6, 448}, kE5m2{2, -14, 57344};

double nearest(const Format& format, double value) {
  if (value == 0) return 0;
  const double step = std::ldexp(1.0, std::max(std::ilogb(value), format.smallest) - format.bits);
  return std::clamp(std::nearbyint(value / step) * step, -format.largest, format.largest);
}

/// Rows are summed over. A scale is of `high` rows and `wide` columns.
Matrix quantized(const Matrix& m, const Format& format, std::int64_t high, std::int64_t wide, bool power_of_two) {
  Matrix result(m.rows, m.columns);
  for (std::int64_t r0 = 0; r0 < m.rows; r0 += high)
    for (std::int64_t c0 = 0; c0 < m.columns; c0 += wide) {
      const std::int64_t r1 = std::min(m.rows, r0 + high), c1 = std::min(m.columns, c0 + wide);
      float most = 0;
      for (std::int64_t r = r0; r < r1; ++r)
        for (std::int64_t c = c0; c < c1; ++c) most = std::max(most, std::abs(m(r, c)));
      float scale = std::max(most / static_cast<float>(format.largest), 0x1p-126F);
      if (power_of_two) scale = std::exp2(std::ceil(std::log2(scale)));
      const float inverse = 1 / scale;
      for (std::int64_t r = r0; r < r1; ++r)
        for (std::int64_t c = c0; c < c1; ++c)
          result(r, c) = static_cast<float>(nearest(format, m(r, c) * inverse)) * scale;
    }
  return result;
}

constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max() / 2;

Matrix quantized_for(int capability, const Matrix& m, const Format& format, bool weight) {
  if (capability == 89) return quantized(m, format, kAll, kAll, false);
  if (capability == 90) return quantized(m, format, weight ? 128 : 1, 128, false);
  return quantized(m, format, 1, 32, true);
}

/// left · rightᵀ in f64.
std::vector<double> product(const Matrix& left, const Matrix& right) {
  std::vector<double> result;
  for (std::int64_t r = 0; r < left.rows; ++r)
    for (std::int64_t c = 0; c < right.rows; ++c) {
      double sum = 0;
      for (std::int64_t k = 0; k < left.columns; ++k) sum += double{left(r, k)} * double{right(c, k)};
      result.push_back(sum);
    }
  return result;
}

double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

// ---- Runs ----

/// Operands after a run of `s` on a GPU of `capability`; bf16 and f32 as f32. What is not given begins as NaN.
std::vector<std::vector<float>> run_on(int capability, const Signature& s, const std::vector<const Matrix*>& given) {
  const OfCapability scope(capability);
  Device device(0);
  std::vector<void*> operands;
  for (std::size_t i = 0; i < s.operands.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(s.operands[i].bytes());
    check(cudaMalloc(&operands.emplace_back(), bytes), "cudaMalloc");
    if (i >= given.size() || given[i] == nullptr) continue;
    std::vector<std::uint16_t> narrow;
    for (const float value : given[i]->at) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, 4);
      narrow.push_back(static_cast<std::uint16_t>(bits >> 16));
    }
    const bool f32 = s.operands[i].dtype == DType::f32;
    check(cudaMemcpy(operands[i], f32 ? static_cast<const void*>(given[i]->at.data()) : narrow.data(), bytes,
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
  const auto workspace_bytes =
      static_cast<std::size_t>(CudaTarget(capability, device.context().units).workspace_bytes(s));
  void* workspace = nullptr;
  check(cudaMalloc(&workspace, workspace_bytes), "cudaMalloc");
  check(cudaMemset(workspace, 0xFF, workspace_bytes), "cudaMemset");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  const std::unique_ptr<kernels::Kernel> kernel = prepare(s, device.context());
  kernel->run({.operands = operands, .workspace = workspace, .stream = stream});
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  std::vector<std::vector<float>> results;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const auto elements = static_cast<std::size_t>(s.operands[i].elements());
    std::vector<float>& result = results.emplace_back(elements);
    if (s.operands[i].dtype == DType::f32) {
      check(cudaMemcpy(result.data(), operands[i], elements * 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
    } else {
      std::vector<std::uint16_t> narrow(elements);
      check(cudaMemcpy(narrow.data(), operands[i], elements * 2, cudaMemcpyDeviceToHost), "cudaMemcpy");
      for (std::size_t j = 0; j < elements; ++j) {
        const std::uint32_t bits = std::uint32_t{narrow[j]} << 16;
        std::memcpy(&result[j], &bits, 4);
      }
    }
    cudaFree(operands[i]);
  }
  cudaFree(workspace);
  return results;
}

/// `made` is `truth` rounded to a result of `epsilon`, after sums in f32 whose terms have magnitudes of `scale`.
void check_close(const std::vector<float>& made, const std::vector<double>& truth, double epsilon) {
  REQUIRE(made.size() == truth.size());
  double largest = 0;
  for (const double value : truth) largest = std::max(largest, std::abs(value));
  int wrong = 0;
  for (std::size_t i = 0; i < made.size(); ++i)
    wrong += !(std::abs(made[i] - truth[i]) <= epsilon * std::abs(truth[i]) + 1e-5 * largest);
  CHECK(wrong == 0);
}

/// ‖made − truth‖ / ‖truth‖.
double distance(const std::vector<float>& made, const std::vector<double>& truth) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < made.size(); ++i) {
    difference += (made[i] - truth[i]) * (made[i] - truth[i]);
    norm += truth[i] * truth[i];
  }
  return std::sqrt(difference / norm);
}

constexpr double kBf16 = 0x1p-8, kF32 = 0x1p-20;

/// Sizes that are no multiples of 128, and on 10.0 none of 128 but of 32.
struct Sizes {
  std::int64_t rows, in, out;
};
Sizes sizes_of(int capability) { return capability == 100 ? Sizes{160, 288, 96} : Sizes{144, 272, 80}; }

std::string word_of(int capability) { return std::string(name_of(fp8_scales_of(capability))); }

}  // namespace

TEST_CASE("linear in fp8 is the product of quantized operands, with a bias, GELU and what it read") {
  for (const int capability : kCapabilities) {
    CAPTURE(capability);
    const Sizes z = sizes_of(capability);
    const Matrix x(z.rows, z.in, 1), weight(z.out, z.in, 2), bias(1, z.out, 3);
    const std::vector<double> sums =
        product(quantized_for(capability, x, kE4m3, false), quantized_for(capability, weight, kE4m3, true));
    const TensorDesc of_x{DType::bf16, {z.rows, z.in}}, of_weight{DType::bf16, {z.out, z.in}},
        of_bias{DType::bf16, {z.out}}, of_y{DType::bf16, {z.rows, z.out}};
    const auto plain =
        run_on(capability, {Op::linear, {{"bias", false}, {"fp8", word_of(capability)}}, {of_x, of_weight, of_y}},
               {&x, &weight});
    check_close(plain[2], sums, kBf16);
    // The operands themselves: within what codes of three bits lose, and not nearer than they can be.
    const double lost = distance(plain[2], product(x, weight));
    CHECK(lost < 0.06);
    CHECK(lost > 0.005);

    const auto whole = run_on(capability,
                              {Op::linear,
                               {{"bias", true}, {"gelu", true}, {"pre", true}, {"fp8", word_of(capability)}},
                               {of_x, of_weight, of_bias, of_y, of_y}},
                              {&x, &weight, &bias});
    std::vector<double> pre = sums, activated;
    for (std::size_t i = 0; i < pre.size(); ++i) pre[i] += bias.at[i % static_cast<std::size_t>(z.out)];
    check_close(whole[4], pre, kBf16);
    for (const float one : whole[4]) activated.push_back(gelu(one));
    check_close(whole[3], activated, kBf16);
  }
}

TEST_CASE("gradients of a linear in fp8: dy of e5m2, and each operand quantized along the dim that is summed over") {
  for (const int capability : kCapabilities) {
    CAPTURE(capability);
    const Sizes z = sizes_of(capability);
    const Matrix x(z.rows, z.in, 1), weight(z.out, z.in, 2), dy(z.rows, z.out, 4), before(z.out, z.in, 5);
    const TensorDesc of_x{DType::bf16, {z.rows, z.in}}, of_weight{DType::bf16, {z.out, z.in}},
        of_dy{DType::bf16, {z.rows, z.out}}, of_dweight{DType::f32, {z.out, z.in}}, of_dbias{DType::f32, {z.out}};

    const auto dx = run_on(
        capability, {Op::linear_grad_input, {{"fp8", word_of(capability)}}, {of_dy, of_weight, of_x}}, {&dy, &weight});
    check_close(dx[2],
                product(quantized_for(capability, dy, kE5m2, false),
                        quantized_for(capability, weight.transposed(), kE4m3, true)),
                kBf16);
    CHECK(distance(dx[2], product(dy, weight.transposed())) < 0.1);

    std::vector<double> truth = product(quantized_for(capability, dy.transposed(), kE5m2, false),
                                        quantized_for(capability, x.transposed(), kE4m3, false));
    for (std::size_t i = 0; i < truth.size(); ++i) truth[i] += before.at[i];
    const Matrix no_bias(1, z.out);
    const auto dweight = run_on(capability,
                                {Op::linear_grad_weight,
                                 {{"bias", true}, {"accumulate", true}, {"fp8", word_of(capability)}},
                                 {of_x, of_dy, of_dweight, of_dbias}},
                                {&x, &dy, &before, &no_bias});
    check_close(dweight[2], truth, kF32);
    // The bias gradient is of dy as it is.
    std::vector<double> columns(static_cast<std::size_t>(z.out));
    for (std::int64_t r = 0; r < z.rows; ++r)
      for (std::int64_t c = 0; c < z.out; ++c) columns[static_cast<std::size_t>(c)] += dy(r, c);
    check_close(dweight[3], columns, kF32);
  }
}

TEST_CASE("operands of zeros give zeros, and one that is not finite is seen in the result") {
  for (const int capability : kCapabilities) {
    CAPTURE(capability);
    const Sizes z = sizes_of(capability);
    const Matrix nothing(z.rows, z.in), weight(z.out, z.in, 2);
    const Signature s{Op::linear,
                      {{"bias", false}, {"fp8", word_of(capability)}},
                      {{DType::bf16, {z.rows, z.in}}, {DType::bf16, {z.out, z.in}}, {DType::bf16, {z.rows, z.out}}}};
    const auto zeros = run_on(capability, s, {&nothing, &weight});
    CHECK(std::all_of(zeros[2].begin(), zeros[2].end(), [](float value) { return value == 0; }));
    for (const float wrong : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      Matrix x(z.rows, z.in, 1);
      x(3, 5) = wrong;
      const auto y = run_on(capability, s, {&x, &weight});
      for (std::int64_t c = 0; c < z.out; ++c)
        CHECK_FALSE(std::isfinite(y[2][static_cast<std::size_t>(3 * z.out + c)]));
    }
  }
}

TEST_CASE("codes and scales are within the workspace that is planned") {
  const Signature s{Op::linear,
                    {{"bias", false}, {"fp8", std::string("block_128")}},
                    {{DType::bf16, {65536, 768}}, {DType::bf16, {2304, 768}}, {DType::bf16, {65536, 2304}}}};
  const std::int64_t codes = 65536 * 768 + 2304 * 768, scales = 4 * (6 * 65536 + 18 * 8);
  const std::int64_t bytes = CudaTarget(90, 132).workspace_bytes(s) - product_workspace(90);
  CHECK(bytes >= codes + scales);
  CHECK(bytes < codes + scales + 4 * 256);
}

TEST_CASE("what cuBLASLt does not take of fp8 is refused") {
  ProductSpec spec{.rows = 64,
                   .columns = 64,
                   .inner = 64,
                   .right_transposed = true,
                   .operands = DType::bf16,
                   .result = DType::bf16,
                   .workspace_bytes = 1 << 20,
                   .square_right = true};
  const auto makes = [&](int capability, Fp8Scales scales) {
    const OfCapability scope(capability);
    Device device(0);
    spec.fp8 = scales;
    return Product::make(spec, device.context()) != nullptr;
  };
  for (const Fp8Scales scales : {Fp8Scales::tensor, Fp8Scales::block_128, Fp8Scales::block_32}) {
    CHECK_FALSE(makes(80, scales));
    CHECK(makes(89, scales) == (scales == Fp8Scales::tensor));
    CHECK(makes(90, scales) == (scales != Fp8Scales::block_32));
    CHECK(makes(100, scales) == (scales != Fp8Scales::block_128));
  }
  spec.epilogue = Epilogue::bias;
  CHECK(makes(90, Fp8Scales::block_128));
  spec.epilogue = Epilogue::gelu;
  CHECK_FALSE(makes(90, Fp8Scales::block_128));
  spec.epilogue = Epilogue::none;
  spec.inner = 40;
  CHECK_FALSE(makes(90, Fp8Scales::block_128));
}
