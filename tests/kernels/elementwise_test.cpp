// Sums and products, dropout, splits, casts: against the f64 reference.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>

#include "engine/core/error.h"
#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

const Shape kShapes[] = {{1}, {7}, {3, 5, 11}, {2, 64}, {1, 1}, {129, 257}};  // the last is large enough for a team

}  // namespace

TEST_CASE("add and mul repeat the second operand over leading dims") {
  for (DType c : compute_dtypes())
    for (Op op : {Op::add, Op::mul})
      for (int in_place : {-1, 0}) {
        const auto check = [&](const Shape& a, const Shape& b) {
          hold(op, {}, {{c, normal_tensor(a, 3)}, {c, normal_tensor(b, 4)}}, {{c, a, bound(c), 0, in_place}});
        };
        for (const Shape& shape : kShapes) check(shape, shape);
        check({4, 33, 65}, {33, 65});
        check({4, 33, 65}, {65});
        check({300, 1}, {1});
        check({6, 2, 3}, {3});
      }
}

TEST_CASE("scale multiplies by its factor") {
  for (DType c : compute_dtypes())
    for (double factor : {1.0 / 3, -2.0, 0.0})
      for (int in_place : {-1, 0}) {
        for (const Shape& shape : kShapes)
          hold(Op::scale, {{"factor", factor}}, {{c, normal_tensor(shape, 80)}},
               {{c, shape, bound(c, 1), 0, in_place}});
        hold(Op::scale, {{"factor", factor}}, {{c, normal_tensor({40003}, 81)}},
             {{c, {40003}, bound(c, 1), 0, in_place}});
      }
}

TEST_CASE("bias_grad sums over every dim but the bias's, overwriting and accumulating") {
  const std::vector<std::pair<Shape, std::int64_t>> cases = {
      {{4, 33, 65}, -1}, {{1, 7}, 1},       {{1000, 3}, 1},       {{9, 1}, 1},         {{2, 2500}, 1},
      {{3, 5, 2, 2}, 1}, {{7, 1, 3, 3}, 1}, {{2, 33, 13, 11}, 1}, {{1, 4, 40, 40}, 1}, {{6, 5}, 0}};
  for (DType c : compute_dtypes())
    for (DType r : reduce_dtypes())
      for (bool accumulate : {false, true})
        for (const auto& [dy, dim] : cases) {
          const Shape out{dy[static_cast<int>(dim)]};
          const double sum = 4 * std::sqrt(static_cast<double>(dy.elements() / out.elements()));
          hold(Op::bias_grad, {{"dim", dim}, {"accumulate", accumulate}}, {{c, normal_tensor(dy, 5)}},
               {{r, out, bound(r, sum), 16 * sum * kEpsF32, -1, true, true}});
        }
}

TEST_CASE("sum_leading sums the repetitions") {
  for (DType c : compute_dtypes())
    for (const auto& [x, y] : std::vector<std::pair<Shape, Shape>>{{{4, 33, 65}, {33, 65}},
                                                                   {{1, 7}, {7}},
                                                                   {{1000, 3}, {3}},
                                                                   {{300, 5, 1}, {5, 1}},
                                                                   {{2, 2500}, {2500}},
                                                                   {{9, 1}, {1}}})
      hold(Op::sum_leading, {}, {{c, normal_tensor(x, 5)}}, {{c, y, bound(c, 4), 64 * kEpsF32}});
}

TEST_CASE("squares of rows of a matrix and a product of low rank, and what is divided by their roots") {
  for (DType c : compute_dtypes())
    for (const auto& [rows, columns, rank] :
         {std::array<std::int64_t, 3>{1, 1, 1}, {5, 7, 2}, {33, 65, 4}, {3, 2500, 8}, {129, 257, 16}}) {
      // Sums of `columns` squares, each of rank + 1 terms of which rounding of one is of the size of the largest.
      const double terms = static_cast<double>(rank + 2);
      hold(Op::row_squares, {{"factor", -0.75}},
           {{c, normal_tensor({rows, columns}, 6)},
            {c, normal_tensor({rank, columns}, 7)},
            {c, normal_tensor({rows, rank}, 8)}},
           {{DType::f32, {rows}, 8 * terms * kEpsF32, 64 * terms * kEpsF32}});
      Tensor squares = normal_tensor({rows}, 9);
      for (double& value : squares.data) value = value * value;
      squares[0] = 0;
      hold(Op::over_root, {}, {{c, normal_tensor({rows}, 10)}, {DType::f32, squares}}, {{c, {rows}, bound(c, 3)}});
    }
}

TEST_CASE("dropout follows the counter-based mask") {
  for (DType c : compute_dtypes())
    for (const Shape& shape :
         {Shape{1, 1}, Shape{3, 5}, Shape{2, 7, 19}, Shape{5, 1000}, Shape{3, 4097}, Shape{4, 64, 64}})
      for (double p : {0.0, 0.1, 0.9}) {
        const Attributes attributes = {{"p", p}, {"key", std::int64_t{-0x123456789ABCDEF}}};
        Tensor step(Shape{1}, 12345);
        for (int in_place : {-1, 0})
          hold(Op::dropout, attributes, {{c, normal_tensor(shape, 6)}, {DType::i32, step}},
               {{c, shape, bound(c, 4), 0, in_place}}, {.origin = 4096});
      }
}

namespace {

/// Dropout of ones on a piece of the batch.
Buffer dropped(DType c, Attributes attributes, const Shape& shape, std::int64_t origin, Runner& runner) {
  const Buffer x = buffer_of(c, Tensor(shape, 1)), step = buffer_of(DType::i32, Tensor(Shape{1}, 3));
  Buffer y(shape.elements() * size_of(c));
  attributes.set("p", 0.3);
  attributes.set("key", std::int64_t{99});
  runner.run({Op::dropout, attributes, {{c, shape}, {DType::i32, {1}}, {c, shape}}}, {x.data(), step.data(), y.data()},
             origin);
  return y;
}

}  // namespace

TEST_CASE("a dropout mask does not depend on how the batch is cut: by samples, by rows, by columns, on any threads") {
  for (DType c : compute_dtypes())
    for (const Shape& whole_shape : {Shape{8, 77}, Shape{4, 6, 20}, Shape{4, 6, 21}, Shape{2, 3, 1100}, Shape{9}}) {
      const std::int64_t samples = whole_shape[0], sample = whole_shape.elements() / samples, dim = whole_shape[-1],
                         rows = whole_shape.elements() / dim;
      const std::int64_t first_sample = 10, width = size_of(c);
      const Buffer whole = dropped(c, {}, whole_shape, first_sample * sample, best_runner());
      const auto same = [&](const Buffer& piece, std::int64_t place, std::int64_t at, std::int64_t count) {
        return std::memcmp(whole.as<char>() + place * width, piece.as<char>() + at * width,
                           static_cast<std::size_t>(count * width)) == 0;
      };
      for (const auto& runner : runners()) {
        INFO(name_of(c), whole_shape.str(), " on ", runner->name());
        for (std::int64_t n : {std::int64_t{3}, samples}) {  // the last n samples
          if (n > samples) continue;
          std::vector<std::int64_t> sizes(whole_shape.sizes().begin(), whole_shape.sizes().end());
          sizes[0] = n;
          const std::int64_t place = (samples - n) * sample;
          CHECK(same(dropped(c, {}, Shape(sizes), first_sample * sample + place, *runner), place, 0, n * sample));
        }
        if (whole_shape.rank() == 1) continue;
        for (const auto& [begin, end] :
             std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1}, {whole_shape[1] / 2, whole_shape[1]}, {1, 3}}) {
          if (end > whole_shape[1]) continue;  // a part of dim 1, the sequence, of every sample
          const std::int64_t inner = sample / whole_shape[1], n = (end - begin) * inner;
          std::vector<std::int64_t> sizes(whole_shape.sizes().begin(), whole_shape.sizes().end());
          sizes[1] = end - begin;
          const Attributes attributes{{"sample", sample}, {"row", n}, {"stride", sample}};
          const Buffer piece = dropped(c, attributes, Shape(sizes), first_sample * sample + begin * inner, *runner);
          bool all = true;
          for (std::int64_t one = 0; one < samples; ++one)
            all = all && same(piece, one * sample + begin * inner, one * n, n);
          CHECK(all);
        }
        for (std::int64_t n : {std::int64_t{1}, rows / 2, rows - 1}) {  // the last n of all rows
          const std::int64_t place = (rows - n) * dim;
          const Buffer piece = dropped(c, {{"sample", sample}}, {n, dim}, first_sample * sample + place, *runner);
          CHECK(same(piece, place, 0, n * dim));
        }
        for (const auto& [begin, end] : std::vector<std::pair<std::int64_t, std::int64_t>>{
                 {0, dim / 2}, {dim / 2, dim}, {dim - 1, dim}, {4, 16}, {3, 18}}) {
          const std::int64_t n = end - begin;
          const Buffer piece =
              dropped(c, {{"sample", sample}, {"stride", dim}}, {rows, n}, first_sample * sample + begin, *runner);
          bool all = true;
          for (std::int64_t row = 0; row < rows; ++row) all = all && same(piece, row * dim + begin, row * n, n);
          CHECK(all);
        }
      }
    }
}

TEST_CASE("dropout of a part of the sequence of each sample follows the reference") {
  const Attributes attributes = {{"p", 0.4},
                                 {"key", std::int64_t{7}},
                                 {"sample", std::int64_t{12 * 33}},
                                 {"row", std::int64_t{3 * 33}},
                                 {"stride", std::int64_t{12 * 33}}};
  for (DType c : compute_dtypes())
    for (std::int64_t part : {0, 2, 3})
      for (int in_place : {-1, 0})
        hold(Op::dropout, attributes, {{c, normal_tensor({5, 3, 33}, 6)}, {DType::i32, Tensor(Shape{1}, 12345)}},
             {{c, Shape{5, 3, 33}, bound(c, 4), 0, in_place}}, {.origin = 7 * 12 * 33 + part * 3 * 33});
}

TEST_CASE("dropout of a piece follows the reference") {
  const Attributes attributes = {
      {"p", 0.4}, {"key", std::int64_t{7}}, {"sample", std::int64_t{5 * 96}}, {"stride", std::int64_t{96}}};
  for (DType c : compute_dtypes())
    for (std::int64_t origin : {0, 32, 64, 5 * 96 * 7 + 50})
      for (int in_place : {-1, 0})
        hold(Op::dropout, attributes, {{c, normal_tensor({12, 32}, 6)}, {DType::i32, Tensor(Shape{1}, 12345)}},
             {{c, Shape{12, 32}, bound(c, 4), 0, in_place}}, {.origin = origin});
}

TEST_CASE("split and concat copy bytes: pieces of whole vectors, of odd elements, and a single one") {
  for (DType c : {DType::f32, DType::bf16, DType::f16, DType::i32})
    for (const auto& [rows, sizes] : std::vector<std::pair<Shape, std::vector<std::int64_t>>>{{{3, 2}, {8, 8, 8}},
                                                                                              {{7}, {64, 16, 16}},
                                                                                              {{5}, {1, 3, 2}},
                                                                                              {{2, 3}, {24}},
                                                                                              {{300}, {1, 1}},
                                                                                              {{4}, {700, 1300}},
                                                                                              {{2}, {4098, 6}},
                                                                                              {{1}, {2, 2, 6, 4, 8}}}) {
      std::int64_t whole = 0;
      std::vector<std::int64_t> dims(rows.sizes().begin(), rows.sizes().end());
      dims.push_back(0);
      std::vector<Input> in;
      std::vector<Output> out;
      for (std::int64_t size : sizes) {
        dims.back() = size, whole += size;
        in.push_back({c, c == DType::i32 ? integer_tensor(Shape(dims), 3, -9, 9) : normal_tensor(Shape(dims), 3)});
        out.push_back({c, Shape(dims)});
      }
      dims.back() = whole;
      hold(Op::split, {},
           {{c, c == DType::i32 ? integer_tensor(Shape(dims), 4, -9, 9) : normal_tensor(Shape(dims), 4)}}, out);
      hold(Op::concat, {}, in, {{c, Shape(dims)}});
    }
}

TEST_CASE("pieces of a dim in the middle are rows that are longer") {
  for (DType c : compute_dtypes())
    for (const auto& [dim, sizes] : std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>>{
             {-2, {1, 4}}, {-2, {64, 3, 1}}, {-3, {2, 5}}}) {
      std::int64_t whole = 0;
      Shape shape{3, 2, 8, 5};
      std::vector<Input> in;
      std::vector<Output> out;
      for (std::int64_t size : sizes) {
        whole += size;
        shape[static_cast<int>(dim)] = size;
        in.push_back({c, normal_tensor(shape, static_cast<std::uint64_t>(size))});
        out.push_back({c, shape});
      }
      shape[static_cast<int>(dim)] = whole;
      hold(Op::split, {{"dim", dim}}, {{c, normal_tensor(shape, 4)}}, out);
      hold(Op::concat, {{"dim", dim}}, in, {{c, shape}});
    }
}

TEST_CASE("pieces that do not make up the whole are refused") {
  Buffer x(6 * 4), a(4 * 4), b(4 * 4);
  const auto run = [&](const Shape& first, const Shape& second) {
    best_runner().run({Op::split, {}, {{DType::f32, {2, 3}}, {DType::f32, first}, {DType::f32, second}}},
                      {x.data(), a.data(), b.data()});
  };
  CHECK_NOTHROW(run({2, 1}, {2, 2}));
  CHECK_THROWS_WITH_AS(run({2, 2}, {2, 2}), doctest::Contains("make up the whole"), Bug);
  CHECK_THROWS_WITH_AS(run({1, 1}, {2, 2}), doctest::Contains("in one dim"), Bug);
}

TEST_CASE("casts between any two floating dtypes round to nearest even") {
  const DType floats[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  for (DType from : floats)
    for (DType to : floats)
      for (const Shape& shape : kShapes)
        hold(Op::cast, {}, {{from, normal_tensor(shape, 7)}}, {{to, shape, bound(to)}});
}

TEST_CASE("every bf16 value casts to f32, and what lies half-way between neighbours to the even one") {
  for (Runner* runner : few_runners()) {
    constexpr int kCount = 65536;
    Buffer wide(kCount * 4), half(kCount * 2);
    for (std::uint32_t i = 0; i < kCount; ++i) wide.as<std::uint32_t>()[i] = i << 16 | 0x8000u;
    runner->run({Op::cast, {}, {{DType::f32, {kCount}}, {DType::bf16, {kCount}}}}, {wide.data(), half.data()});
    int wrong = 0;
    for (std::uint32_t i = 0; i < kCount; ++i) {
      const std::uint32_t bits = wide.as<std::uint32_t>()[i], got = half.as<std::uint16_t>()[i];
      const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
      wrong += nan ? (got & 0x7FFF) <= 0x7F80 : got != i + (i & 1);
    }
    CHECK(wrong == 0);
    for (std::uint32_t i = 0; i < kCount; ++i) half.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(i);
    runner->run({Op::cast, {}, {{DType::bf16, {kCount}}, {DType::f32, {kCount}}}}, {half.data(), wide.data()});
    for (std::uint32_t i = 0; i < kCount; ++i) {
      const bool nan = (i & 0x7FFF) > 0x7F80;
      wrong += nan ? !std::isnan(wide.as<float>()[i]) : wide.as<std::uint32_t>()[i] != i << 16;
    }
    CHECK(wrong == 0);
  }
}

namespace {

/// Casts on the runner that jobs get.
Buffer cast(DType from, DType to, const Buffer& x) {
  const std::int64_t count = static_cast<std::int64_t>(x.bytes()) / size_of(from);
  Buffer y(count * size_of(to));
  best_runner().run({Op::cast, {}, {{from, {count}}, {to, {count}}}}, {x.data(), y.data()});
  return y;
}

}  // namespace

TEST_CASE("f16 casts meet subnormals, ties and the ends of the range") {
  const std::vector<std::pair<double, int>> known = {{1, 0x3C00},           {-2, 0xC000},
                                                     {65504, 0x7BFF},       {65519.99, 0x7BFF},
                                                     {65520, 0x7C00},       {0x1p-24, 0x0001},
                                                     {0x1p-25, 0x0000},     {0x1.8p-24, 0x0002},
                                                     {1 + 0x1p-11, 0x3C00}, {1 + 0x1p-11 + 0x1p-40, 0x3C01}};
  Tensor x(Shape{static_cast<std::int64_t>(known.size())});
  for (std::size_t i = 0; i < known.size(); ++i) x[static_cast<std::int64_t>(i)] = known[i].first;
  const Buffer got = cast(DType::f64, DType::f16, buffer_of(DType::f64, x));
  for (std::size_t i = 0; i < known.size(); ++i) {
    CAPTURE(known[i].first);
    CHECK(got.as<std::uint16_t>()[i] == known[i].second);
  }
  const Buffer nan = cast(DType::f64, DType::f16, buffer_of(DType::f64, Tensor(Shape{1}, std::nan(""))));
  CHECK((*nan.as<std::uint16_t>() & 0x7FFF) > 0x7C00);

  Buffer every(0x7C00 * 2);
  for (std::uint16_t bits = 0; bits < 0x7C00; ++bits) every.as<std::uint16_t>()[bits] = bits;
  for (DType wide : {DType::f64, DType::f32})
    CHECK(cast(wide, DType::f16, cast(DType::f16, wide, every)).same_bits(every));
}

TEST_CASE("f64 is rounded once to bf16: just above a tie, nearer to it than f32 can tell") {
  CHECK(*cast(DType::f64, DType::bf16, buffer_of(DType::f64, Tensor(Shape{1}, 1 + 0x1p-8 + 0x1p-40)))
             .as<std::uint16_t>() == 0x3F81);
}

TEST_CASE("a cast to the same dtype is a copy of the bytes, denormals and all") {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::u8})
    for (std::int64_t n : {1, 77, 100003}) {
      std::mt19937_64 generator(61);
      Buffer x(n * size_of(dtype)), y(n * size_of(dtype));
      for (std::size_t i = 0; i < x.bytes(); ++i) x.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(generator());
      best_runner().run({Op::cast, {}, {{dtype, {n}}, {dtype, {n}}}}, {x.data(), y.data()});
      CHECK(x.same_bits(y));
      best_runner().run({Op::cast, {}, {{dtype, {n}}, {dtype, {n}}}}, {x.data(), x.data()});
      CHECK(x.same_bits(y));
    }
}
