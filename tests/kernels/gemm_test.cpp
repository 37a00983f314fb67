// The products on AMX tiles and by vdpbf16ps, emulated and, where the processor has them, as they are,
// against the one by f32 multiply-adds, which linear_test.cpp holds to sums in f64.
//
// Tolerance: both round at f32 in different orders: eight times 2^-24 · √k · the size of a sum of k products of
// normals, √k; in bf16 outputs the next number, 2^-7 of the value at most.
#include "kernels/cpu/gemm/gemm.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cpu/gemm/packed.h"
#include "kernels/cpu/runtime/choose.h"
#include "tests/kernels/kernel_runner.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using namespace trainer::kernels::cpu;
using namespace trainer::kernels::cpu::gemm;

namespace {

struct Case {
  std::int64_t m, n, k;
};
const Case kCases[] = {{1, 1, 1},     {1, 65, 7},    {7, 7, 1},      {65, 1, 7},    {33, 33, 33},   {32, 32, 32},
                       {31, 64, 256}, {64, 31, 257}, {100, 70, 320}, {600, 40, 70}, {260, 33, 1700}};

/// Methods that make bf16 products of several steps at a time.
std::vector<Method> bf16_methods() {
  std::vector<Method> methods{Method::emulated_tiles, Method::emulated_pairs};
  const std::vector<Isa> all = isas();
  if (std::ranges::find(all, Isa::avx512_bf16) != all.end()) methods.push_back(Method::pairs);
  if (std::ranges::find(all, Isa::amx) != all.end()) methods.push_back(Method::tiles);
  return methods;
}

/// The product, and what p.addend adds: from where it is, or `in_place` from C.
Buffer product(Problem p, Method method, int threads, std::int64_t elements, DType c, bool in_place) {
  Buffer out(elements * size_of(c));
  if (p.addend && in_place) std::memcpy(out.data(), p.addend, out.bytes()), p.addend = out.data();
  p.c = out.data();
  const Buffer workspace(workspace_bytes(p, method, Isa::portable, threads));
  run(p, method, Isa::portable, threads, workspace.data());
  return out;
}

}  // namespace

TEST_CASE("tiles and pairs give the product of f32 multiply-adds") {
  for (const Case& z : kCases)
    for (Order a_order : {Order::rows, Order::columns})
      for (Order b_order : {Order::rows, Order::columns})
        for (bool c_is_f32 : {true, false})
          for (bool adds : {false, true}) {
            const DType c = c_is_f32 ? DType::f32 : DType::bf16;
            const Buffer a = normals(DType::bf16, z.m * z.k, 1), b = normals(DType::bf16, z.k * z.n, 2),
                         bias = normals(DType::bf16, z.n, 3);
            const Buffer before = normals(c, z.m * z.n, 4);
            Problem p{.m = z.m,
                      .n = z.n,
                      .k = z.k,
                      .a = a.data(),
                      .lda = a_order == Order::rows ? z.k : z.m,
                      .a_order = a_order};
            p.b = b.data(), p.ldb = b_order == Order::rows ? z.n : z.k, p.b_order = b_order;
            p.ldc = z.n, p.c_is_f32 = c_is_f32, p.bias = adds ? nullptr : bias.data(),
            p.addend = adds ? before.data() : nullptr;
            const Buffer expected = product(p, Method::widen, 1, z.m * z.n, c, false);
            for (const Method method : bf16_methods())
              for (int threads : {1, 3}) {
                const Buffer actual = product(p, method, threads, z.m * z.n, c, threads > 1);
                int misses = 0;
                for (std::int64_t i = 0; i < z.m * z.n; ++i) {
                  const double e = read(expected, c, i), tolerance = 8 * 0x1p-24 * static_cast<double>(z.k + 1) +
                                                                     (c_is_f32 ? 0 : 0x1p-7 * std::abs(e));
                  misses += !(std::abs(read(actual, c, i) - e) <= tolerance);
                }
                CAPTURE(z.m);
                CAPTURE(z.n);
                CAPTURE(z.k);
                CAPTURE(int(a_order));
                CAPTURE(int(b_order));
                CAPTURE(int(method));
                CAPTURE(threads);
                CAPTURE(adds);
                CHECK(misses == 0);
              }
          }
}

TEST_CASE(
    "a matrix by rows and the same by columns pack to the same bits, zeros around them, on every instruction set") {
  for (const Case& z : kCases) {
    const Buffer by_columns = normals(DType::bf16, z.k * z.n, 1), by_rows(z.k * z.n * 2);
    for (std::int64_t p = 0; p < z.k; ++p)
      for (std::int64_t j = 0; j < z.n; ++j) by_rows.as<Bf16>()[p * z.n + j] = by_columns.as<Bf16>()[j * z.k + p];
    for (Isa isa : isas()) {
      const Buffer one(packed_bytes(z.k, z.n)), other(packed_bytes(z.k, z.n));
      const auto pack = CHOOSE_BY_ISA(isa, pack_strips);
      const std::int64_t strips = packed_strips(z.n), half = strips / 2;
      pack({z.k, z.n, by_columns.data(), z.k, Order::columns, one.data()}, 0, half);
      pack({z.k, z.n, by_columns.data(), z.k, Order::columns, one.data()}, half, strips);
      pack({z.k, z.n, by_rows.data(), z.n, Order::rows, other.data()}, 0, strips);
      CHECK(one.same_bits(other));
      int wrong = 0;
      for (std::int64_t j = 0; j < packed_strips(z.n) * kStrip; ++j)
        for (std::int64_t p = 0; p < packed_steps(z.k); ++p) {
          const std::int64_t at = (j / kStrip * packed_strip_words(z.k) + p / 2 * kStrip + j % kStrip) * 2 + p % 2;
          const unsigned expected = j < z.n && p < z.k ? by_columns.as<Bf16>()[j * z.k + p].bits : 0u;
          wrong += one.as<Bf16>()[at].bits != expected;
        }
      CHECK(wrong == 0);
    }
  }
}

// A thread's chunk of rows (280, 282 or 256 to 512) prepares B as it goes, more rows take a B that is prepared first:
// here the same rows in products of 200 and in one. Of the last case B is over 16 MiB where it is widened, so that is
// done in groups of columns.
TEST_CASE("B that is prepared once gives the bits of B that is prepared for every chunk of rows") {
  for (const Case& z : {Case{600, 40, 70}, Case{300, 33, 300}, Case{283, 4300, 1100}, Case{1100, 270, 40}})
    for (const bool f32 : {true, false})
      for (Order b_order : {Order::rows, Order::columns}) {
        std::vector<std::pair<Method, Isa>> ways;
        for (Isa isa : z.n > 1000 ? std::vector<Isa>{isas().back()} : isas()) ways.emplace_back(Method::widen, isa);
        if (!f32 && z.n <= 1000)
          for (Method method : bf16_methods()) ways.emplace_back(method, isas().back());
        for (const auto& [method, isa] : ways) {
          const DType dtype = f32 ? DType::f32 : DType::bf16;
          const Buffer a = normals(dtype, z.m * z.k, 1), b = normals(dtype, z.k * z.n, 2),
                       bias = normals(dtype, z.n, 3), addend = normals(dtype, z.m * z.n, 4);
          Problem p{.m = z.m, .n = z.n, .k = z.k, .inputs_are_f32 = f32, .a = a.data(), .lda = z.k};
          p.b = b.data(), p.ldb = b_order == Order::rows ? z.n : z.k, p.b_order = b_order;
          p.ldc = z.n, p.c_is_f32 = f32, p.bias = bias.data(), p.addend = addend.data();
          const auto into = [&, method = method, isa = isa](Buffer& c, std::int64_t row, std::int64_t rows,
                                                            int threads) {
            Problem part = p;
            const std::int64_t size = size_of(dtype);
            part.m = rows;
            part.a = static_cast<const std::byte*>(p.a) + row * z.k * size;
            part.addend = static_cast<const std::byte*>(p.addend) + row * z.n * size;
            part.c = static_cast<std::byte*>(c.data()) + row * z.n * size;
            const Buffer workspace(workspace_bytes(part, method, isa, threads));
            run(part, method, isa, threads, workspace.data());
          };
          Buffer expected(z.m * z.n * size_of(dtype));
          for (std::int64_t row = 0; row < z.m; row += 200)
            into(expected, row, std::min<std::int64_t>(200, z.m - row), 1);
          for (int threads : {1, 3}) {
            Buffer actual(z.m * z.n * size_of(dtype));
            into(actual, 0, z.m, threads);
            CAPTURE(z.m);
            CAPTURE(z.n);
            CAPTURE(f32);
            CAPTURE(int(b_order));
            CAPTURE(int(method));
            CAPTURE(int(isa));
            CAPTURE(threads);
            CHECK(actual.same_bits(expected));
          }
        }
      }
}

TEST_CASE("products of operands as they lie give the bits of those whose operands are copied") {
  const Case cases[] = {{1, 1, 1},    {5, 7, 1},    {6, 8, 31},    {7, 9, 64},     {13, 16, 100}, {100, 17, 385},
                        {99, 33, 33}, {70, 4, 390}, {4, 70, 1000}, {300, 70, 800}, {28, 32, 3000}};
  for (const Case& z : cases)
    for (Order a_order : {Order::rows, Order::columns})
      for (Order b_order : {Order::rows, Order::columns})
        for (Isa isa : isas())
          for (bool adds : {false, true}) {
            if (a_order == Order::columns && b_order == Order::columns) continue;  // no gradient is such a product
            const DType f32 = DType::f32;
            const Buffer a = normals(f32, z.m * z.k, 1), b = normals(f32, z.k * z.n, 2), bias = normals(f32, z.n, 3),
                         addend = normals(f32, z.m * z.n, 4);
            Problem p{.m = z.m, .n = z.n, .k = z.k, .inputs_are_f32 = true, .a = a.data(), .a_order = a_order};
            p.lda = a_order == Order::rows ? z.k : z.m;
            p.b = b.data(), p.ldb = b_order == Order::rows ? z.n : z.k, p.b_order = b_order;
            p.ldc = z.n, p.c_is_f32 = true, p.bias = bias.data(), p.addend = adds ? addend.data() : nullptr;
            const auto with = [&](Method method, int threads, bool in_place) {
              Buffer c(z.m * z.n * 4);
              Problem mine = p;
              if (adds && in_place) std::memcpy(c.data(), addend.data(), c.bytes()), mine.addend = c.data();
              mine.c = c.data();
              const Buffer workspace(workspace_bytes(mine, method, isa, threads));
              run(mine, method, isa, threads, workspace.data());
              return c;
            };
            const Buffer expected = with(Method::widen, 1, false);
            for (int threads : {1, 3}) {
              CAPTURE(z.m);
              CAPTURE(z.n);
              CAPTURE(z.k);
              CAPTURE(int(a_order));
              CAPTURE(int(b_order));
              CAPTURE(int(isa));
              CAPTURE(threads);
              CAPTURE(adds);
              CHECK(with(Method::direct, threads, false).same_bits(expected));
              CHECK(with(Method::direct, threads, true).same_bits(expected));
            }
          }
}

TEST_CASE("the product of a single row is that of f64, with any number of threads the same bits") {
  for (const auto& [n, k] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {31, 7}, {32, 64}, {33, 257}, {100, 96}, {70, 1700}})
    for (DType dtype : {DType::f32, DType::bf16})
      for (Isa isa : isas()) {
        const Buffer a = normals(dtype, k, 1), b = normals(dtype, k * n, 2), bias = normals(dtype, n, 3);
        Problem p{.m = 1, .n = n, .k = k, .inputs_are_f32 = dtype == DType::f32, .a = a.data(), .lda = k};
        p.b = b.data(), p.ldb = k, p.b_order = Order::columns, p.ldc = n, p.c_is_f32 = true, p.bias = bias.data();
        REQUIRE(method_for(p, isa) == Method::row);
        std::vector<float> first;
        for (int threads : {1, 3}) {
          std::vector<float> c(static_cast<std::size_t>(n));
          p.c = c.data();
          const Buffer workspace(workspace_bytes(p, Method::row, isa, threads));
          run(p, Method::row, isa, threads, workspace.data());
          if (first.empty()) first = c;
          CHECK(first == c);
          int misses = 0;
          for (std::int64_t j = 0; j < n; ++j) {
            double sum = read(bias, dtype, j), size = std::abs(sum);
            for (std::int64_t i = 0; i < k; ++i) {
              const double term = read(a, dtype, i) * read(b, dtype, j * k + i);
              sum += term, size += std::abs(term);
            }
            misses += !(std::abs(static_cast<double>(c[static_cast<std::size_t>(j)]) - sum) <=
                        0x1p-24 * (8 + std::sqrt(static_cast<double>(k))) * size);
          }
          CAPTURE(n);
          CAPTURE(k);
          CAPTURE(int(isa));
          CHECK(misses == 0);
        }
      }
}
