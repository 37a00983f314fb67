// Cross-entropy of classes cut over ranks: each piece's kernels against the reference, and all of them together against
// cross-entropy of the whole. Padding holds NaN, so that nothing can have read it.
#include <doctest/doctest.h>

#include <limits>

#include "engine/core/error.h"
#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A whole cut into `parts` of `columns` classes each, the last ones padded.
struct Cut {
  std::int64_t rows, classes, parts;
  std::int64_t columns() const { return (classes + parts - 1) / parts; }
  Attributes attributes(double smoothing) const {
    return {{"classes", classes}, {"ignore_index", std::int64_t{-100}}, {"label_smoothing", smoothing}};
  }
};
std::vector<Cut> cuts() {
  std::vector<Cut> all = {{1, 1, 2}, {5, 7, 2}, {3, 10, 4}, {9, 65, 2}, {4, 1009, 3}, {3, 257, 8}, {2, 50257, 2}};
  if (!runs_are_slow()) all.insert(all.end(), {{70, 257, 8}, {40, 64, 2}});
  return all;
}

/// As the dtype holds them.
Tensor rounded(DType c, Tensor x) {
  const Buffer buffer = buffer_of(c, x);
  for (std::int64_t i = 0; i < x.size(); ++i) x[i] = read(buffer, c, i);
  return x;
}

Tensor piece_of(const Tensor& whole, const Cut& cut, std::int64_t part) {
  Tensor piece(Shape{cut.rows, cut.columns()}, kNaN);
  for (std::int64_t i = 0; i < piece.size(); ++i) {
    const std::int64_t column = part * cut.columns() + i % cut.columns();
    if (column < cut.classes) piece[i] = whole[i / cut.columns() * cut.classes + column];
  }
  return piece;
}

Tensor targets_of(const Cut& cut) {
  Tensor targets = integer_tensor(Shape{cut.rows}, 21, 0, cut.classes);
  for (std::int64_t i = 1; i < targets.size(); i += 4) targets[i] = -100;
  return targets;
}

/// What the kernels of all ranks make of the pieces.
struct Results {
  double loss = 0, correct = 0;
  Tensor lse, dlogits;
  double padding = 0;  ///< largest gradient of an absent column
};

Results run_cut(DType c, const Tensor& logits, const Tensor& targets, const Cut& cut, double smoothing,
                Runner& runner) {
  const std::int64_t columns = cut.columns();
  const TensorDesc piece{c, {cut.rows, columns}}, ids{DType::i32, {cut.rows}}, stats{DType::f32, {cut.rows, 5}},
      all_stats{DType::f32, {cut.parts, cut.rows, 5}};
  const TensorDesc sum{DType::f64, {1}}, row{DType::f32, {cut.rows}}, seed{DType::f32, {1}};
  const Attributes attributes = cut.attributes(smoothing);
  const Buffer target = buffer_of(DType::i32, targets), one = buffer_of(DType::f32, Tensor(Shape{1}, 0.37));
  Buffer unread(piece.bytes()), gathered(all_stats.bytes()), loss(8), lse(row.bytes()), correct(8);
  std::vector<Buffer> pieces;
  for (std::int64_t p = 0; p < cut.parts; ++p) {
    pieces.push_back(buffer_of(c, piece_of(logits, cut, p)));
    Buffer mine(stats.bytes());
    runner.run({Op::cross_entropy_stats, those_of(Op::cross_entropy_stats, attributes), {piece, ids, stats}},
               {pieces.back().data(), target.data(), mine.data()}, p * columns);
    std::memcpy(gathered.as<char>() + p * stats.bytes(), mine.data(), mine.bytes());
  }
  runner.run(
      {Op::cross_entropy_gathered, those_of(Op::cross_entropy_gathered, attributes), {piece, all_stats, ids, sum, row}},
      {unread.data(), gathered.data(), target.data(), loss.data(), lse.data()}, 17);
  runner.run({Op::correct_count_gathered, those_of(Op::correct_count_gathered, attributes), {all_stats, ids, sum}},
             {gathered.data(), target.data(), correct.data()}, 17);
  Results results{*loss.as<double>(), *correct.as<double>(), Tensor(Shape{cut.rows}),
                  Tensor(Shape{cut.rows, cut.classes}), 0};
  for (std::int64_t r = 0; r < cut.rows; ++r) results.lse[r] = read(lse, DType::f32, r);
  for (std::int64_t p = 0; p < cut.parts; ++p) {
    void* in_place = pieces[static_cast<std::size_t>(p)].data();
    runner.run({Op::cross_entropy_grad, attributes, {piece, ids, row, seed, piece}},
               {in_place, target.data(), lse.data(), one.data(), in_place}, p * columns);
    for (std::int64_t i = 0; i < piece.elements(); ++i) {
      const double got = read(pieces[static_cast<std::size_t>(p)], c, i);
      const std::int64_t column = p * columns + i % columns;
      if (column < cut.classes)
        results.dlogits[i / columns * cut.classes + column] = got;
      else if (!(std::abs(got) <= results.padding))
        results.padding = got;
    }
  }
  return results;
}

}  // namespace

TEST_CASE("statistics of a piece of the logits follow the reference, whatever the padding holds") {
  for (DType c : compute_dtypes())
    for (const Cut& cut : cuts())
      for (std::int64_t part = 0; part < cut.parts; ++part) {
        const Tensor logits = piece_of(normal_tensor(Shape{cut.rows, cut.classes}, 20, 4), cut, part),
                     targets = targets_of(cut);
        const std::int64_t origin = part * cut.columns();
        const Tensor x = rounded(c, logits);
        const Tensor truth =
            reference::run(Op::cross_entropy_stats, cut.attributes(0), {x, targets}, {Shape{cut.rows, 5}}, origin)[0];
        for (const auto& runner : runners()) {
          const Buffer in = buffer_of(c, logits), target = buffer_of(DType::i32, targets);
          Buffer out(cut.rows * 5 * 4);
          runner->run({Op::cross_entropy_stats,
                       those_of(Op::cross_entropy_stats, cut.attributes(0)),
                       {{c, x.shape}, {DType::i32, {cut.rows}}, {DType::f32, {cut.rows, 5}}}},
                      {in.data(), target.data(), out.data()}, origin);
          for (std::int64_t r = 0; r < cut.rows; ++r) {
            double size = 0;  // of the terms of Σ x
            for (std::int64_t i = 0; i < cut.columns(); ++i)
              if (origin + i < cut.classes) size += std::abs(x[r * cut.columns() + i]);
            const auto got = [&](int k) { return static_cast<double>(out.as<float>()[r * 5 + k]); };
            const auto want = [&](int k) { return truth[r * 5 + k]; };
            INFO(name_of(c), " ", cut.classes, " classes in ", cut.parts, ", part ", part, " row ", r, " on ",
                 runner->name());
            CHECK(got(0) == want(0));
            // The roundings of a long sum go either way.
            const double chain = 16 + std::sqrt(static_cast<double>(cut.columns()));
            CHECK(std::abs(got(1) - want(1)) <= (chain * kEpsF32 + (c == DType::bf16 ? 0x1p-18 : 0)) * want(1));
            CHECK(got(2) == want(2));
            CHECK(std::abs(got(3) - want(3)) <= 8 * kEpsF32 * size);
            CHECK(got(4) == want(4));
          }
        }
      }
}

TEST_CASE("the loss of gathered statistics, its gradient and right answers are those of the whole") {
  for (DType c : compute_dtypes())
    for (const Cut& cut : cuts())
      for (double smoothing : {0.0, 0.1}) {
        const Tensor x = rounded(c, normal_tensor(Shape{cut.rows, cut.classes}, 20, 4)), targets = targets_of(cut);
        const Attributes whole = {{"ignore_index", std::int64_t{-100}}, {"label_smoothing", smoothing}};
        const std::vector<Tensor> truth =
            reference::run(Op::cross_entropy, whole, {x, targets}, {Shape{1}, Shape{cut.rows}});
        const Tensor gradient =
            reference::run(Op::cross_entropy_grad, whole, {x, targets, truth[1], Tensor(Shape{1}, 0.37)}, {x.shape})[0];
        const double correct = reference::run(Op::correct_count, whole, {x, targets}, {Shape{1}})[0][0];
        // The bounds of cross_entropy's own tests, with the roundings of joining the parts.
        const double sum = 32 * kEpsF32 + (c == DType::bf16 ? 0x1p-18 : 0);
        const double slope = (cut.classes == 1 ? 1000 : 16) * kEpsF32 + (c == DType::bf16 ? 0x1p-12 : 0) +
                             (c == DType::f32 ? 0 : bound(c)) + subnormals(c);
        for (const auto& runner : runners()) {
          const Results got = run_cut(c, x, targets, cut, smoothing, *runner);
          INFO(name_of(c), " ", cut.classes, " classes in ", cut.parts, " smoothing ", smoothing, " on ",
               runner->name());
          double largest = 1e-3;
          for (double lse : truth[1].data) largest = std::fmax(largest, std::abs(lse));
          CHECK(std::abs(got.loss - truth[0][0]) <= sum * largest * static_cast<double>(cut.rows));
          CHECK(got.correct == correct);
          CHECK(got.padding == 0);
          double off = 0, off_lse = 0;
          for (std::int64_t r = 0; r < cut.rows; ++r) off_lse = std::fmax(off_lse, std::abs(got.lse[r] - truth[1][r]));
          for (std::int64_t i = 0; i < gradient.size(); ++i)
            off = std::fmax(off, std::abs(got.dlogits[i] - gradient[i]));
          CHECK(off_lse <= sum * largest);
          CHECK(off <= slope);
        }
      }
}

TEST_CASE("gathered statistics add to a loss and to a count that are there") {
  const Tensor stats = [] {
    Tensor t(Shape{2, 2, 5});
    t.data = {1, 2, 0, 1, 0, 3, 1, 3, 3, 1, /* part 1 */ 2, 1, 2, 2, 2, 3, 1, 0, 3, 3};
    return t;
  }();
  Tensor targets(Shape{2});
  targets.data = {2, 1};
  const Attributes attributes = {{"classes", std::int64_t{4}},
                                 {"ignore_index", std::int64_t{-100}},
                                 {"label_smoothing", 0.2},
                                 {"accumulate", true}};
  const Output sum{DType::f64, Shape{1}, 32 * kEpsF32, 32 * kEpsF32, -1, true, true},
      lse{DType::f32, Shape{2}, 32 * kEpsF32};
  hold(Op::cross_entropy_gathered, those_of(Op::cross_entropy_gathered, attributes),
       {{DType::f32, Tensor(Shape{2, 2}, kNaN)}, {DType::f32, stats}, {DType::i32, targets}}, {sum, lse});
  hold(Op::correct_count_gathered, those_of(Op::correct_count_gathered, attributes),
       {{DType::f32, stats}, {DType::i32, targets}}, {sum});
}

TEST_CASE("of equal logits in two pieces the first is the prediction, and a NaN in any piece leaves none") {
  const Cut cut{1, 6, 2};
  const auto correct = [&](std::vector<double> row, double target) {
    Tensor logits(Shape{1, 6});
    logits.data = std::move(row);
    return run_cut(DType::f32, logits, Tensor(Shape{1}, target), cut, 0, best_runner()).correct;
  };
  CHECK(correct({1, 3, 2, 3, 0, 0}, 1) == 1);
  CHECK(correct({1, 3, 2, 3, 0, 0}, 3) == 0);
  CHECK(correct({1, 3, 2, 4, 4, 0}, 3) == 1);
  CHECK(correct({1, 3, 2, 4, 4, 0}, 4) == 0);
  CHECK(correct({1, 3, 2, 0, 0, kNaN}, 1) == 0);
  CHECK(correct({kNaN, 3, 2, 0, 5, 0}, 4) == 0);
  CHECK(correct({1, 3, 2, 0, 0, 0}, -100) == 0);
}

TEST_CASE("the loss of far apart logits is exact to rounding, and a NaN in any piece makes it NaN") {
  const Cut cut{1, 4, 2};
  const auto loss = [&](std::vector<double> row) {
    Tensor logits(Shape{1, 4});
    logits.data = std::move(row);
    return run_cut(DType::f32, logits, Tensor(Shape{1}, 1), cut, 0, best_runner()).loss;
  };
  CHECK(loss({0, -1e4, 1e4, 0}) == doctest::Approx(2e4).epsilon(8 * kEpsF32));
  CHECK(loss({-1e4, 1e4, 0, 0}) == 0);
  CHECK(std::isnan(loss({1, 2, kNaN, 0})));
  CHECK(std::isnan(loss({kNaN, 2, 1, 0})));
}

TEST_CASE("a target that is no class of the whole is named by every piece") {
  const Buffer targets = buffer_of(DType::i32, values({3, 7})), logits = buffer_of(DType::f32, Tensor(Shape{2, 4}));
  Buffer stats(2 * 5 * 4);
  const Signature signature{Op::cross_entropy_stats,
                            {{"classes", std::int64_t{7}}, {"ignore_index", std::int64_t{-100}}},
                            {{DType::f32, {2, 4}}, {DType::i32, {2}}, {DType::f32, {2, 5}}}};
  CHECK_THROWS_WITH_AS(best_runner().run(signature, {logits.data(), targets.data(), stats.data()}),
                       doctest::Contains("target 7 at place 1"), DataError);
}
