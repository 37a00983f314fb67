// linear and its gradients against sums in f64, for dtypes, instruction sets, threads and odd shapes.
//
// Tolerance: an f32 sum of k random products is off by some 2^-24 · √k · √(Σ product²) (a random walk of roundings over
// partial sums of that size); eight times that, and the rounding of the output.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "kernels/linear.h"
#include "tests/kernels/kernel_runner.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using cpu::Context;
using cpu::CpuTarget;

namespace {

double rounding(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : 0x1p-24; }

/// Σ over p of a(p)·b(p), and how far an f32 sum of it may be off.
struct Expected {
  double sum = 0, tolerance = 0;
};
template <typename A, typename B>
Expected sum_of(std::int64_t k, double start, A a, B b) {
  double sum = start, squares = start * start;
  for (std::int64_t p = 0; p < k; ++p) {
    const double product = a(p) * b(p);
    sum += product, squares += product * product;
  }
  return {sum, 8 * 0x1p-24 * std::sqrt(static_cast<double>(k) + 1) * std::sqrt(squares) + 1e-30};
}

struct Sizes {
  std::int64_t rows, in, out;
  std::string str() const {
    return std::to_string(rows) + " rows, " + std::to_string(in) + " in, " + std::to_string(out) + " out";
  }
};
const Sizes kSizes[] = {{1, 1, 1},     {1, 7, 65},      {7, 1, 7},      {65, 7, 1},    {7, 65, 33},
                        {65, 65, 65},  {31, 33, 32},    {2, 256, 64},   {29, 257, 31}, {14, 300, 96},
                        {600, 70, 40}, {150, 1100, 37}, {1400, 33, 65}, {5, 5025, 3},  {3, 5, 5025}};

/// Every expected element of a product, worked out once.
using Table = std::vector<Expected>;

/// How many elements are off, or NaN.
int misses(const Table& table, const Buffer& actual, DType dtype) {
  int count = 0;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const double off = std::abs(read(actual, dtype, static_cast<std::int64_t>(i)) - table[i].sum);
    count += !(off <= table[i].tolerance + rounding(dtype) * std::abs(table[i].sum));
  }
  return count;
}

template <typename Check>
void for_each_context(Check check) {
  for (cpu::Isa isa : isas())
    for (int threads : {1, 2, 3}) {
      CAPTURE(std::string(cpu::name_of(isa)));
      CAPTURE(threads);
      check(Context{isa, threads});
    }
}

}  // namespace

TEST_CASE("linear is the sum of products and the bias") {
  for (DType c : {DType::f32, DType::bf16})
    for (const Sizes& z : kSizes) {
      const Buffer x = normals(c, z.rows * z.in, 1), w = normals(c, z.out * z.in, 2), bias = normals(c, z.out, 3);
      for (bool has_bias : {true, false}) {
        Table table;
        for (std::int64_t i = 0; i < z.rows; ++i)
          for (std::int64_t j = 0; j < z.out; ++j)
            table.push_back(sum_of(
                z.in, has_bias ? read(bias, c, j) : 0.0, [&](auto p) { return read(x, c, i * z.in + p); },
                [&](auto p) { return read(w, c, j * z.in + p); }));
        CAPTURE(z.str());
        CAPTURE(std::string(name_of(c)));
        for_each_context([&](const Context& context) {
          Signature s{Op::linear, {{"bias", has_bias}}, {{c, {z.rows, z.in}}, {c, {z.out, z.in}}}};
          if (has_bias) s.operands.push_back({c, {z.out}});
          s.operands.push_back({c, {z.rows, z.out}});
          Buffer y(z.rows * z.out * size_of(c));
          std::vector<void*> operands{x.data(), w.data()};
          if (has_bias) operands.push_back(bias.data());
          operands.push_back(y.data());
          run(s, context, operands);
          CHECK(misses(table, y, c) == 0);
        });
      }
    }
}

TEST_CASE("the gradient of linear's input is dy W") {
  for (DType c : {DType::f32, DType::bf16})
    for (const Sizes& z : kSizes) {
      const Buffer dy = normals(c, z.rows * z.out, 1), w = normals(c, z.out * z.in, 2);
      Table table;
      for (std::int64_t i = 0; i < z.rows; ++i)
        for (std::int64_t j = 0; j < z.in; ++j)
          table.push_back(sum_of(
              z.out, 0, [&](auto p) { return read(dy, c, i * z.out + p); },
              [&](auto p) { return read(w, c, p * z.in + j); }));
      CAPTURE(z.str());
      CAPTURE(std::string(name_of(c)));
      for_each_context([&](const Context& context) {
        const Signature s{Op::linear_grad_input, {}, {{c, {z.rows, z.out}}, {c, {z.out, z.in}}, {c, {z.rows, z.in}}}};
        Buffer dx(z.rows * z.in * size_of(c));
        run(s, context, {dy.data(), w.data(), dx.data()});
        CHECK(misses(table, dx, c) == 0);
      });
    }
}

TEST_CASE("a residual is added before the sum is rounded: in f32 the bits of a sum afterwards") {
  for (DType c : {DType::f32, DType::bf16})
    for (const Sizes& z : kSizes)
      for (const bool forward : {true, false}) {
        const std::int64_t from = forward ? z.in : z.out, to = forward ? z.out : z.in;
        const Buffer x = normals(c, z.rows * from, 1), w = normals(c, z.out * z.in, 2),
                     residual = normals(c, z.rows * to, 3);
        Table table;
        for (std::int64_t i = 0; i < z.rows; ++i)
          for (std::int64_t j = 0; j < to; ++j)
            table.push_back(sum_of(
                from, read(residual, c, i * to + j), [&](auto p) { return read(x, c, i * from + p); },
                [&](auto p) { return read(w, c, forward ? j * z.in + p : p * z.in + j); }));
        CAPTURE(z.str());
        CAPTURE(std::string(name_of(c)));
        CAPTURE(forward);
        for_each_context([&](const Context& context) {
          const TensorDesc given{c, {z.rows, from}}, weight{c, {z.out, z.in}}, made{c, {z.rows, to}};
          const Attributes plain = forward ? Attributes{{"bias", false}} : Attributes{};
          Attributes with = plain;
          with.set("residual", true);
          const Op op = forward ? Op::linear : Op::linear_grad_input;
          Buffer y(z.rows * to * size_of(c)), product(z.rows * to * size_of(c));
          run({op, with, {given, weight, made, made}}, context, {x.data(), w.data(), residual.data(), y.data()});
          CHECK(misses(table, y, c) == 0);
          if (c != DType::f32) return;
          run({op, plain, {given, weight, made}}, context, {x.data(), w.data(), product.data()});
          for (std::int64_t i = 0; i < z.rows * to; ++i) product.as<float>()[i] += residual.as<float>()[i];
          CHECK(product.same_bits(y));
        });
      }
}

TEST_CASE("the gradients of linear's weight and bias overwrite or accumulate") {
  for (DType c : {DType::f32, DType::bf16})
    for (DType r : {DType::f32, DType::bf16})
      for (const Sizes& z : kSizes) {
        const Buffer x = normals(c, z.rows * z.in, 1), dy = normals(c, z.rows * z.out, 2);
        const Buffer before_w = normals(r, z.out * z.in, 3), before_b = normals(r, z.out, 4);
        for (bool accumulate : {false, true}) {
          Table table_w, table_b;
          for (std::int64_t j = 0; j < z.out; ++j) {
            for (std::int64_t q = 0; q < z.in; ++q)
              table_w.push_back(sum_of(
                  z.rows, accumulate ? read(before_w, r, j * z.in + q) : 0.0,
                  [&](auto p) { return read(dy, c, p * z.out + j); },
                  [&](auto p) { return read(x, c, p * z.in + q); }));
            table_b.push_back(sum_of(
                z.rows, accumulate ? read(before_b, r, j) : 0.0, [&](auto p) { return read(dy, c, p * z.out + j); },
                [](auto) { return 1.0; }));
          }
          CAPTURE(z.str());
          CAPTURE(std::string(name_of(c)));
          CAPTURE(std::string(name_of(r)));
          CAPTURE(accumulate);
          for_each_context([&](const Context& context) {
            const Signature s{Op::linear_grad_weight,
                              {{"bias", true}, {"accumulate", accumulate}},
                              {{c, {z.rows, z.in}}, {c, {z.rows, z.out}}, {r, {z.out, z.in}}, {r, {z.out}}}};
            Buffer dw(z.out * z.in * size_of(r)), db(z.out * size_of(r));
            if (accumulate)
              std::memcpy(dw.data(), before_w.data(), dw.bytes()), std::memcpy(db.data(), before_b.data(), db.bytes());
            run(s, context, {x.data(), dy.data(), dw.data(), db.data()});
            CHECK(misses(table_w, dw, r) == 0);
            CHECK(misses(table_b, db, r) == 0);
          });
        }
      }
}

TEST_CASE("a partial linear has its bias where its origin is 0, and nowhere else") {
  const Sizes z{30, 70, 40};
  for (DType c : {DType::f32, DType::bf16}) {
    const Buffer x = normals(c, z.rows * z.in, 1), w = normals(c, z.out * z.in, 2), bias = normals(c, z.out, 3);
    const auto y_of = [&](const Context& context, bool has_bias, bool partial, std::int64_t origin) {
      Signature s{Op::linear,
                  {{"bias", has_bias}, {"partial", partial}},
                  {{c, {z.rows, z.in}}, {c, {z.out, z.in}}, {c, {z.rows, z.out}}}};
      Buffer y(z.rows * z.out * size_of(c));
      std::vector<void*> operands{x.data(), w.data(), y.data()};
      if (has_bias)
        s.operands.insert(s.operands.begin() + 2, {c, {z.out}}), operands.insert(operands.begin() + 2, bias.data());
      const Buffer workspace(CpuTarget(context).workspace_bytes(s));
      cpu::prepare(s, context)->run({operands, workspace.data(), origin});
      return y;
    };
    for_each_context([&](const Context& context) {
      CHECK(y_of(context, true, true, 0).same_bits(y_of(context, true, false, 0)));
      CHECK(y_of(context, true, true, 1).same_bits(y_of(context, false, false, 0)));
      CHECK(y_of(context, true, false, 1).same_bits(y_of(context, true, false, 0)));
    });
  }
}

TEST_CASE("linear gives the same bits again, on any number of threads") {
  const Sizes z{130, 700, 200};
  for (DType c : {DType::f32, DType::bf16}) {
    const Buffer x = normals(c, z.rows * z.in, 1), w = normals(c, z.out * z.in, 2);
    const Signature s{Op::linear, {{"bias", false}}, {{c, {z.rows, z.in}}, {c, {z.out, z.in}}, {c, {z.rows, z.out}}}};
    for (cpu::Isa isa : isas()) {
      const Context one{isa, 1};
      Buffer first(z.rows * z.out * size_of(c));
      run(s, one, {x.data(), w.data(), first.data()});
      for (int threads : {1, 2, 3, 2}) {
        Buffer again(z.rows * z.out * size_of(c));
        run(s, {isa, threads}, {x.data(), w.data(), again.data()});
        CHECK(again.same_bits(first));
      }
    }
  }
}

TEST_CASE("leading dims are rows, and NaN and infinity pass through") {
  for (DType c : {DType::f32, DType::bf16}) {
    Buffer x = normals(c, 6 * 4, 1);
    const Buffer w = normals(c, 5 * 4, 2);
    const auto put = [&](std::int64_t i, float v) {
      c == DType::f32 ? void(x.as<float>()[i] = v) : void(x.as<Bf16>()[i] = to_bf16(v));
    };
    put(0, std::nanf(""));
    put(4, INFINITY);
    for (cpu::Isa isa : isas()) {
      const Signature s{Op::linear, {{"bias", false}}, {{c, {2, 3, 4}}, {c, {5, 4}}, {c, {2, 3, 5}}}};
      Buffer y(6 * 5 * size_of(c));
      run(s, {isa, 1}, {x.data(), w.data(), y.data()});
      for (std::int64_t j = 0; j < 5; ++j) {
        CHECK(std::isnan(read(y, c, j)));
        CHECK(std::isinf(read(y, c, 5 + j)));
        CHECK(std::isfinite(read(y, c, 10 + j)));
      }
    }
  }
}

TEST_CASE("an output too large for the caches is the same as in parts") {
  const Sizes z{2048, 3, 2112};
  for (DType c : {DType::f32, DType::bf16}) {
    const Buffer x = normals(c, z.rows * z.in, 1), w = normals(c, z.out * z.in, 2);
    const auto linear = [&](std::int64_t rows) {
      return Signature{Op::linear, {{"bias", false}}, {{c, {rows, z.in}}, {c, {z.out, z.in}}, {c, {rows, z.out}}}};
    };
    for (cpu::Isa isa : isas()) {
      Buffer whole(z.rows * z.out * size_of(c)), part(64 * z.out * size_of(c));
      run(linear(z.rows), {isa, 2}, {x.data(), w.data(), whole.data()});
      run(linear(64), {isa, 1}, {x.as<char>() + (z.rows - 64) * z.in * size_of(c), w.data(), part.data()});
      CHECK(std::memcmp(part.data(), whole.as<char>() + (z.rows - 64) * z.out * size_of(c), part.bytes()) == 0);
    }
  }
}
