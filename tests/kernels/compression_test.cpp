// Compressed gradients: against the f64 reference, and the promises of error feedback: nothing is lost, nothing is
// poisoned.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "engine/core/compression.h"
#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

const DType kDTypes[] = {DType::f32, DType::bf16};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TensorDesc bytes_of(std::int64_t n) { return {DType::u8, {n}}; }
TensorDesc f32(std::int64_t n) { return {DType::f32, {n}}; }

/// A compressed tensor of normals, as the reference makes it.
Tensor int8_tensor(std::int64_t slices, std::int64_t elements, std::uint64_t seed) {
  const std::int64_t n = slices * elements;
  Tensor gradient = normal_tensor({n}, seed), zero({n});
  return reference::run(Op::quantize_int8, {{"slices", slices}}, {gradient, zero},
                        {Shape{n}, Shape{slices * int8_bytes(elements)}})[1];
}

/// Values far from each other in size, many of them equal.
Tensor tied_tensor(std::int64_t n, std::uint64_t seed) {
  Tensor tensor = integer_tensor({n}, seed, -4, 5);
  for (std::int64_t i = 0; i < n; i += 3) tensor[i] *= 0x1p-20;
  return tensor;
}

const float* scales_of(const Buffer& packed, std::int64_t elements) {
  return reinterpret_cast<const float*>(packed.as<char>() + int8_scales_offset(elements));
}

}  // namespace

TEST_CASE("bf16 with error feedback sends the sum rounded and keeps the rest") {
  for (DType r : kDTypes)
    for (std::int64_t n : {1, 15, 17, 40001}) {
      const Shape shape{n};
      hold(Op::compress_bf16, {}, {{r, normal_tensor(shape, 90)}, {DType::f32, normal_tensor(shape, 91, 0x1p-9)}},
           {{DType::f32, shape, 0, 0, 1, false}, {DType::bf16, shape}});
    }
}

TEST_CASE("bf16 with error feedback keeps the residual where infinities and NaN are sent") {
  for (double poison : {kInfinity, std::nan(""), 3.4e38}) {  // the last is an infinity once rounded
    Tensor gradient = normal_tensor({40}, 92);
    gradient[17] = poison;
    hold(Op::compress_bf16, {}, {{DType::f32, gradient}, {DType::f32, normal_tensor({40}, 93)}},
         {{DType::f32, Shape{40}, 0, 0, 1, false}, {DType::bf16, Shape{40}}});
  }
}

TEST_CASE("int8 codes, scales and residuals follow their formula, in every slice") {
  for (DType r : kDTypes)
    for (std::int64_t elements : {1, 63, 256, 257, 1000, 5120})
      for (std::int64_t slices : {1, 3}) {
        const Shape shape{slices * elements};
        // The residual is a fused multiply-add, or (portable) one with two roundings of values below the largest, of
        // which it is at most 1/254; alone in its block it is nothing but rounding.
        const double rounding = (elements == 1 ? 8000 : 256) * kEpsF32;
        hold(Op::quantize_int8, {{"slices", slices}},
             {{r, normal_tensor(shape, 94)}, {DType::f32, normal_tensor(shape, 95, 1e-2)}},
             {{DType::f32, shape, 0, rounding, 1, false}, {DType::u8, Shape{slices * int8_bytes(elements)}}});
      }
}

TEST_CASE("int8 without feedback has the codes and scales of what it is given") {
  // Many values in bf16 lie in the middle between two codes but for the rounding of the block's inverse scale, which
  // portable kernels round once more with the product.
  for (DType r : kDTypes)
    for (std::int64_t elements : {1, 63, 256, 257, 1000, 5120})
      for (std::int64_t slices : {1, 3})
        hold(Op::quantize_int8, {{"slices", slices}, {"feedback", false}},
             {{r, normal_tensor({slices * elements}, 94)}},
             {{DType::u8, Shape{slices * int8_bytes(elements)}, 0, r == DType::bf16 ? 1.0 : 0.0}});
  Tensor poisoned = normal_tensor({600}, 98);
  poisoned[300] = kInfinity;
  hold(Op::quantize_int8, {{"feedback", false}}, {{DType::f32, poisoned}}, {{DType::u8, Shape{int8_bytes(600)}}});
}

TEST_CASE("int8 loses nothing: code times scale plus residual is the sum, within half a scale of it") {
  const std::int64_t n = 100003;
  for (DType r : kDTypes)
    for (Runner* runner : few_runners()) {
      const Buffer gradient = normals(r, n, 96), residual = normals(DType::f32, n, 97),
                   before = normals(DType::f32, n, 97);
      Buffer packed(int8_bytes(n));
      runner->run({Op::quantize_int8, {}, {{r, {n}}, f32(n), bytes_of(int8_bytes(n))}},
                  {gradient.data(), residual.data(), packed.data()});
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        const double a = read(gradient, r, i) + static_cast<double>(before.as<float>()[i]),
                     scale = static_cast<double>(scales_of(packed, n)[i / 256]);
        const double kept = static_cast<double>(residual.as<float>()[i]);
        const bool whole = std::abs(packed.as<std::int8_t>()[i] * scale + kept - a) <= 4 * kEpsF32 * 127 * scale;
        wrong += !whole || std::abs(kept) > scale * (0.5 + 1e-4);
      }
      CHECK(wrong == 0);
    }
}

TEST_CASE("int8 blocks that are not finite arrive as NaN and keep their residual; the others are as without them") {
  const std::int64_t n = 1000;
  for (double poison : {kInfinity, -kInfinity, std::nan("")})
    for (Runner* runner : few_runners()) {
      Tensor values = normal_tensor({n}, 98);
      values[300] = poison;
      const Buffer gradient = buffer_of(DType::f32, values), residual = normals(DType::f32, n, 99),
                   before = normals(DType::f32, n, 99);
      Buffer packed(int8_bytes(n)), y(4 * n);
      runner->run({Op::quantize_int8, {}, {f32(n), f32(n), bytes_of(int8_bytes(n))}},
                  {gradient.data(), residual.data(), packed.data()});
      runner->run({Op::dequantize_int8, {}, {bytes_of(int8_bytes(n)), f32(n)}}, {packed.data(), y.data()});
      for (std::int64_t i = 0; i < n; ++i) {
        CHECK(std::isnan(y.as<float>()[i]) == (i / 256 == 1));
        if (i / 256 == 1)
          CHECK(residual.as<float>()[i] == before.as<float>()[i]);
        else
          CHECK(std::isfinite(residual.as<float>()[i]));
      }
    }
}

TEST_CASE("an int8 block of zeros, or of numbers too small for a scale, sends zeros and keeps them") {
  for (double size : {0.0, 1e-37})
    hold(Op::quantize_int8, {}, {{DType::f32, Tensor({300}, size)}, {DType::f32, Tensor({300}, 0)}},
         {{DType::f32, Shape{300}, 0, 0, 1, false}, {DType::u8, Shape{int8_bytes(300)}}});
}

TEST_CASE("dequantised slices stand one after the other, and their sum is in order") {
  for (DType r : kDTypes)
    for (std::int64_t elements : {1, 65, 256, 1000, 20001})
      for (std::int64_t slices : {1, 2, 5}) {
        const Input packed{DType::u8, int8_tensor(slices, elements, 100)};
        hold(Op::dequantize_int8, {{"slices", slices}}, {packed}, {{r, Shape{slices * elements}, bound(r)}});
        hold(Op::dequantize_sum_int8, {{"slices", slices}}, {packed},
             {{r, Shape{elements}, bound(r), 2 * static_cast<double>(slices) * kEpsF32}});
      }
}

TEST_CASE("the k largest are sent, in ascending order, and the residual keeps the others") {
  for (DType r : kDTypes)
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                               {33, 1},
                               {33, 33},
                               {1000, 10},
                               {40003, 400},
                               {70001, 1},
                               {70001, 700},
                               {70001, 20000}}) {
      const Shape shape{n};
      hold(Op::top_k_compress, {{"k", k}}, {{r, normal_tensor(shape, 101)}, {DType::f32, normal_tensor(shape, 102)}},
           {{DType::f32, shape, 0, 0, 1, false}, {DType::u8, Shape{top_k_bytes(k)}}});
    }
}

TEST_CASE("of equals the first are sent, whatever the sample makes of them") {
  for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{100, 30}, {70001, 5000}, {70001, 700}})
    for (const Tensor& gradient : {tied_tensor(n, 103), Tensor({n}, 0), Tensor({n}, -2)}) {
      const Shape shape{n};
      hold(Op::top_k_compress, {{"k", k}}, {{DType::f32, gradient}, {DType::f32, Tensor(shape)}},
           {{DType::f32, shape, 0, 0, 1, false}, {DType::u8, Shape{top_k_bytes(k)}}});
    }
}

TEST_CASE("large values in few places are found where no sample looks, and where all of them are in one part") {
  const std::int64_t n = 200000, k = 500;
  Tensor hidden({n}), crowded = normal_tensor({n}, 104, 1e-3);
  for (std::int64_t i = 0; i < k; ++i) hidden[20 + 200 * i] = static_cast<double>(i - 250);
  for (std::int64_t i = 0; i < 40000; ++i) crowded[150000 + i] = 1 + static_cast<double>(i % 7919);
  for (const Tensor& gradient : {hidden, crowded})
    hold(Op::top_k_compress, {{"k", k}}, {{DType::f32, gradient}, {DType::f32, Tensor({n})}},
         {{DType::f32, Shape{n}, 0, 0, 1, false}, {DType::u8, Shape{top_k_bytes(k)}}});
}

TEST_CASE("infinities and NaN count as largest, arrive, and never stay in the residual") {
  for (std::int64_t poisoned : {1, 40}) {
    const std::int64_t n = 70000, k = 20;
    Tensor gradient = normal_tensor({n}, 105);
    for (std::int64_t i = 0; i < poisoned; ++i) gradient[11 + 1000 * i] = i % 2 ? std::nan("") : -kInfinity;
    for (Runner* runner : few_runners()) {
      const Buffer g = buffer_of(DType::f32, gradient), residual = buffer_of(DType::f32, Tensor({n}));
      Buffer packed(top_k_bytes(k)), y(4 * n);
      runner->run({Op::top_k_compress, {{"k", k}}, {f32(n), f32(n), bytes_of(top_k_bytes(k))}},
                  {g.data(), residual.data(), packed.data()});
      runner->run({Op::top_k_sum, {{"k", k}, {"ranks", std::int64_t{1}}}, {bytes_of(top_k_bytes(k)), f32(n)}},
                  {packed.data(), y.data()});
      CHECK(std::all_of(residual.as<float>(), residual.as<float>() + n, [](float x) { return std::isfinite(x); }));
      CHECK(std::count_if(y.as<float>(), y.as<float>() + n, [](float x) { return !std::isfinite(x); }) ==
            std::min(k, poisoned));
    }
  }
}

TEST_CASE("the pairs of all ranks are added up") {
  for (DType r : kDTypes)
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {100, 7}, {8192, 100}, {30001, 3000}})
      for (std::int64_t ranks : {1, 3}) {
        Tensor all(Shape{ranks * top_k_bytes(k)});
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const Tensor pairs = reference::run(Op::top_k_compress, {{"k", k}},
                                              {normal_tensor({n}, 110 + static_cast<std::uint64_t>(rank)), Tensor({n})},
                                              {Shape{n}, Shape{top_k_bytes(k)}})[1];
          std::copy(pairs.data.begin(), pairs.data.end(), all.data.begin() + rank * top_k_bytes(k));
        }
        hold(Op::top_k_sum, {{"k", k}, {"ranks", ranks}}, {{DType::u8, all}},
             {{r, Shape{n}, bound(r), static_cast<double>(ranks) * kEpsF32}});
      }
}

TEST_CASE("error feedback delivers a constant gradient in full: what was sent so far and the residual are its sum") {
  const std::int64_t n = 2000, k = 100, steps = 30;
  const Buffer gradient = normals(DType::f32, n, 120), residual = buffer_of(DType::f32, Tensor({n}));
  std::vector<double> sent(static_cast<std::size_t>(n));
  Buffer packed(top_k_bytes(k)), y(4 * n);
  for (std::int64_t step = 0; step < steps; ++step) {
    best_runner().run({Op::top_k_compress, {{"k", k}}, {f32(n), f32(n), bytes_of(top_k_bytes(k))}},
                      {gradient.data(), residual.data(), packed.data()});
    best_runner().run({Op::top_k_sum, {{"k", k}, {"ranks", std::int64_t{1}}}, {bytes_of(top_k_bytes(k)), f32(n)}},
                      {packed.data(), y.data()});
    for (std::int64_t i = 0; i < n; ++i) sent[static_cast<std::size_t>(i)] += static_cast<double>(y.as<float>()[i]);
  }
  for (std::int64_t i = 0; i < n; ++i) {  // at most 30 roundings of sums up to 30 · |g|
    const double whole = static_cast<double>(steps) * static_cast<double>(gradient.as<float>()[i]);
    CHECK(std::abs(sent[static_cast<std::size_t>(i)] + static_cast<double>(residual.as<float>()[i]) - whole) <=
          30 * kEpsF32 * std::abs(whole));
  }
}
