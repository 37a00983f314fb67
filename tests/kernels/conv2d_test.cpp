// conv2d and its gradients against sums in f64.
//
// Tolerance: as in linear_test.cpp, a random walk of f32 roundings over a sum of k products, times eight; and the
// rounding of the output.
#include "kernels/conv2d.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;

namespace {

struct Case {
  std::int64_t n, in, h, w, out, kh, kw, stride, padding;
  std::int64_t oh() const { return (h + 2 * padding - kh) / stride + 1; }
  std::int64_t ow() const { return (w + 2 * padding - kw) / stride + 1; }
  Shape x() const { return {n, in, h, w}; }
  Shape weight() const { return {out, in, kh, kw}; }
  Shape y() const { return {n, out, oh(), ow()}; }
};
// Among them: places enough that the weight gradient is cut (20 x 21); whole blocks of channels, in places that are no
// whole cache lines; images of one place; a window of 64 places; small planes of more filters than places;
// windows of one place over large planes.
const Case kCases[] = {{1, 1, 1, 1, 1, 1, 1, 1, 0},   {2, 3, 7, 5, 4, 3, 3, 1, 1},    {3, 16, 8, 8, 32, 3, 3, 2, 1},
                       {1, 1, 28, 28, 6, 5, 5, 1, 2}, {2, 5, 9, 10, 7, 4, 2, 3, 0},   {2, 32, 6, 6, 17, 1, 1, 1, 0},
                       {1, 2, 6, 7, 3, 3, 3, 2, 0},   {5, 3, 20, 21, 7, 3, 3, 1, 1},  {2, 32, 5, 7, 48, 3, 3, 1, 1},
                       {2, 64, 6, 6, 32, 1, 1, 1, 0}, {3, 48, 1, 1, 16, 3, 3, 1, 1},  {2, 16, 9, 8, 16, 8, 8, 1, 3},
                       {1, 96, 8, 8, 80, 1, 1, 1, 0}, {9, 40, 2, 2, 70, 3, 3, 1, 1},  {4, 24, 4, 4, 33, 3, 3, 2, 1},
                       {2, 33, 4, 4, 18, 3, 3, 1, 1}, {2, 40, 23, 24, 33, 1, 1, 1, 0}};

/// Sums and, for the tolerance, the sums of squares of the same products.
struct Sums {
  std::vector<double> sum, squares;
  std::vector<int> terms;
  explicit Sums(std::int64_t elements)
      : sum(static_cast<std::size_t>(elements)), squares(sum.size()), terms(sum.size()) {}
  void add(std::int64_t at, double product) {
    const auto i = static_cast<std::size_t>(at);
    sum[i] += product, squares[i] += product * product, ++terms[i];
  }
  int misses(const Buffer& actual, DType dtype) const {
    int count = 0;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const double tolerance = 8 * 0x1p-24 * std::sqrt((terms[i] + 1) * squares[i]) + bound(dtype) * std::abs(sum[i]) +
                               (dtype == DType::f16 ? 0x1p-25 : 0);
      count += !(std::abs(read(actual, dtype, static_cast<std::int64_t>(i)) - sum[i]) <= tolerance);
    }
    return count;
  }
};

/// visit(x index, weight index, y index) for every product of the convolution.
template <typename Visit>
void for_each_product(const Case& z, Visit visit) {
  for (std::int64_t n = 0; n < z.n; ++n)
    for (std::int64_t o = 0; o < z.out; ++o)
      for (std::int64_t i = 0; i < z.oh(); ++i)
        for (std::int64_t j = 0; j < z.ow(); ++j)
          for (std::int64_t c = 0; c < z.in; ++c)
            for (std::int64_t a = 0; a < z.kh; ++a)
              for (std::int64_t b = 0; b < z.kw; ++b) {
                const std::int64_t row = i * z.stride + a - z.padding, column = j * z.stride + b - z.padding;
                if (row < 0 || row >= z.h || column < 0 || column >= z.w) continue;
                visit(((n * z.in + c) * z.h + row) * z.w + column, ((o * z.in + c) * z.kh + a) * z.kw + b,
                      ((n * z.out + o) * z.oh() + i) * z.ow() + j);
              }
}

}  // namespace

TEST_CASE("conv1d and its gradients are those of images of one row") {
  for (DType c : compute_dtypes())
    for (const Case& z :
         {Case{2, 3, 1, 9, 4, 1, 3, 1, 1}, Case{2, 8, 1, 21, 5, 1, 3, 2, 1}, Case{1, 2, 1, 6, 3, 1, 5, 3, 4}}) {
      const Shape x{z.n, z.in, z.w}, weight{z.out, z.in, z.kw},
          y{z.n, z.out, (z.w + 2 * z.padding - z.kw) / z.stride + 1};
      const Attributes attributes{{"stride", z.stride}, {"padding", z.padding}};
      Attributes with_bias = attributes, added = attributes;
      with_bias.set("bias", true);
      added.set("bias", true), added.set("accumulate", true);
      const double filter = std::sqrt(static_cast<double>(z.in * z.kw)),
                   places = std::sqrt(static_cast<double>(z.n * y[2])),
                   filters = std::sqrt(static_cast<double>(z.out * z.kw));
      const Input images{c, normal_tensor(x, 1)}, weights{c, normal_tensor(weight, 2)},
          bias{c, normal_tensor({z.out}, 3)}, dy{c, normal_tensor(y, 4)};
      hold(Op::conv1d, with_bias, {images, weights, bias}, {{c, y, bound(c), 8 * filter * kEpsF32}});
      hold(Op::conv1d_grad_input, attributes, {dy, weights}, {{c, x, bound(c), 8 * filters * kEpsF32}});
      hold(Op::conv1d_grad_weight, added, {images, dy},
           {{DType::f32, weight, bound(DType::f32), 8 * places * kEpsF32, -1, true, true},
            {DType::f32, {z.out}, bound(DType::f32), 8 * places * kEpsF32, -1, true, true}});
    }
}

TEST_CASE("conv2d and its gradients are the sums of products") {
  for (DType c : compute_dtypes())
    for (const Case& z : kCases) {
      const std::int64_t plane = z.oh() * z.ow();
      const Buffer x = normals(c, z.x().elements(), 1), weight = normals(c, z.weight().elements(), 2),
                   bias = normals(c, z.out, 3);
      const Buffer dy = normals(c, z.y().elements(), 4);
      Sums y(z.y().elements()), plain_y(z.y().elements()), dx(z.x().elements()), dweight(z.weight().elements()),
          dbias(z.out);
      for (std::int64_t i = 0; i < z.y().elements(); ++i) {
        y.add(i, read(bias, c, i / plane % z.out));
        dbias.add(i / plane % z.out, read(dy, c, i));
      }
      for_each_product(z, [&](auto at_x, auto at_w, auto at_y) {
        y.add(at_y, read(x, c, at_x) * read(weight, c, at_w));
        plain_y.add(at_y, read(x, c, at_x) * read(weight, c, at_w));
        dx.add(at_x, read(dy, c, at_y) * read(weight, c, at_w));
        dweight.add(at_w, read(dy, c, at_y) * read(x, c, at_x));
      });
      for (Runner* runner : few_runners()) {
        CAPTURE(runner->name());
        const auto run = [&](const Signature& s, std::initializer_list<void*> operands) { runner->run(s, operands); };
        CAPTURE(z.x().str());
        CAPTURE(z.weight().str());
        CAPTURE(std::string(name_of(c)));
        const Attributes attributes{{"stride", z.stride}, {"padding", z.padding}};
        const auto with = [&](std::initializer_list<std::pair<std::string, Attribute>> more) {
          Attributes all = attributes;
          for (const auto& [name, value] : more) all.set(name, value);
          return all;
        };
        const Buffer out(z.y().elements() * size_of(c)), plain_out(z.y().elements() * size_of(c)),
            out_x(z.x().elements() * size_of(c));
        run({Op::conv2d, with({{"bias", true}}), {{c, z.x()}, {c, z.weight()}, {c, {z.out}}, {c, z.y()}}},
            {x.data(), weight.data(), bias.data(), out.data()});
        CHECK(y.misses(out, c) == 0);
        run({Op::conv2d, with({{"bias", false}}), {{c, z.x()}, {c, z.weight()}, {c, z.y()}}},
            {x.data(), weight.data(), plain_out.data()});
        CHECK(plain_y.misses(plain_out, c) == 0);
        run({Op::conv2d_grad_input, attributes, {{c, z.y()}, {c, z.weight()}, {c, z.x()}}},
            {dy.data(), weight.data(), out_x.data()});
        CHECK(dx.misses(out_x, c) == 0);

        for (DType r : {DType::f32, DType::bf16}) {
          const Buffer out_w(z.weight().elements() * size_of(r)), out_b(z.out * size_of(r)),
              again_w(z.weight().elements() * size_of(r));
          const auto grad_weight = [&](bool bias_too, bool accumulate) {
            Signature s{Op::conv2d_grad_weight,
                        with({{"bias", bias_too}, {"accumulate", accumulate}}),
                        {{c, z.x()}, {c, z.y()}, {r, z.weight()}}};
            if (bias_too) s.operands.push_back({r, {z.out}});
            return s;
          };
          run(grad_weight(true, false), {x.data(), dy.data(), out_w.data(), out_b.data()});
          CHECK(dweight.misses(out_w, r) == 0);
          CHECK(dbias.misses(out_b, r) == 0);

          // Added to itself: exactly twice, but for the rounding of a fresh sum, which comes before the addition.
          const auto wrong = [&](const Buffer& twice) {
            int count = 0;
            const double rounding = r == DType::bf16 ? 0x1p-7 : 0;
            for (std::int64_t i = 0; i < z.weight().elements(); ++i) {
              const double once = read(again_w, r, i);
              count += !(std::abs(read(twice, r, i) - 2 * once) <= rounding * std::abs(2 * once));
            }
            return count;
          };
          run(grad_weight(true, false), {x.data(), dy.data(), again_w.data(), out_b.data()});
          CHECK(again_w.same_bits(out_w));
          run(grad_weight(true, true), {x.data(), dy.data(), out_w.data(), out_b.data()});
          CHECK(wrong(out_w) == 0);

          run(grad_weight(false, false), {x.data(), dy.data(), again_w.data()});
          CHECK(dweight.misses(again_w, r) == 0);
          run(grad_weight(false, false), {x.data(), dy.data(), out_w.data()});
          CHECK(again_w.same_bits(out_w));
          run(grad_weight(false, true), {x.data(), dy.data(), out_w.data()});
          CHECK(wrong(out_w) == 0);
        }
      }
    }
}
