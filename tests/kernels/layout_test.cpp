// Ops that move values, and averages over a dim: against the f64 reference. What is moved is moved to the bit.
#include <doctest/doctest.h>

#include "engine/core/error.h"
#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;

namespace {

Shape with(Shape shape, int dim, std::int64_t size) {
  shape[dim] = size;
  return shape;
}

}  // namespace

TEST_CASE("a slice is a run of places of one dim, and what it leaves out gets no gradient") {
  struct Cut {
    Shape whole;
    std::int64_t dim, start, size;
  };
  for (DType c : compute_dtypes())
    for (const auto& [whole, dim, start, size] : std::vector<Cut>{{{3, 7}, -1, 2, 3},
                                                                  {{3, 7}, -2, 2, 1},
                                                                  {{2, 5, 16}, -2, 0, 1},
                                                                  {{2, 5, 16}, -2, 4, 1},
                                                                  {{2, 5, 16}, -3, 0, 2},
                                                                  {{300, 24}, -1, 8, 8},
                                                                  {{4, 129, 33}, -2, 1, 128}}) {
      const Attributes attributes{{"dim", dim}, {"start", start}};
      const Shape piece = with(whole, static_cast<int>(dim), size);
      hold(Op::slice, attributes, {{c, normal_tensor(whole, 3)}}, {{c, piece}});
      hold(Op::slice_grad, attributes, {{c, normal_tensor(piece, 4)}}, {{c, whole}});
    }
}

TEST_CASE("a slice beyond the whole is refused") {
  Buffer x(6 * 4), y(6 * 4);
  const auto run = [&](std::int64_t start, const Shape& piece) {
    best_runner().run({Op::slice, {{"start", start}}, {{DType::f32, {2, 3}}, {DType::f32, piece}}},
                      {x.data(), y.data()});
  };
  CHECK_NOTHROW(run(1, {2, 2}));
  CHECK_THROWS_WITH_AS(run(2, {2, 2}), doctest::Contains("beyond the whole"), Bug);
  CHECK_THROWS_WITH_AS(run(0, {1, 2}), doctest::Contains("in one dim"), Bug);
}

TEST_CASE("a tensor is copied for each sample of another, which is not read") {
  for (DType c : compute_dtypes())
    for (const auto& [x, samples] : std::vector<std::pair<Shape, std::int64_t>>{
             {{1, 768}, 5}, {{3}, 2}, {{5, 7}, 1}, {{2, 3, 4}, 67}, {{40000}, 3}}) {
      std::vector<std::int64_t> sizes{samples};
      sizes.insert(sizes.end(), x.sizes().begin(), x.sizes().end());
      hold(Op::expand, {}, {{c, normal_tensor(x, 5)}, {DType::i32, integer_tensor({samples, 2}, 6, 0, 9)}},
           {{c, Shape(sizes)}});
    }
}

TEST_CASE("a tensor is copied for each place in any dim of another") {
  struct Copies {
    Shape x, y;
    std::int64_t dim;
  };
  for (DType c : compute_dtypes())
    for (const Copies& of : std::vector<Copies>{{{2, 3, 8}, {2, 3, 5, 8}, 2},
                                                {{2, 3, 4}, {2, 7, 3, 4}, 1},
                                                {{3, 5}, {3, 5, 4}, 2},
                                                {{1, 1, 3}, {1, 1, 130, 3}, 2},
                                                {{5, 33}, {5, 1, 33}, 1}})
      hold(Op::expand, {{"dim", of.dim}}, {{c, normal_tensor(of.x, 5)}, {DType::f32, normal_tensor(of.y, 6)}},
           {{c, of.y}});
}

TEST_CASE("dims in any order") {
  struct Order {
    Shape x;
    std::vector<int> dims;
  };
  for (DType c : compute_dtypes())
    for (const auto& [x, dims] : std::vector<Order>{{{5, 7}, {1, 0}},
                                                    {{1, 1}, {1, 0}},
                                                    {{64, 96}, {1, 0}},
                                                    {{70, 33}, {1, 0}},
                                                    {{2, 3, 50}, {0, 2, 1}},
                                                    {{3, 64, 49}, {0, 2, 1}},
                                                    {{2, 5, 3, 8}, {0, 2, 1, 3}},
                                                    {{2, 3, 4, 5}, {3, 2, 1, 0}},
                                                    {{2, 3, 4, 5}, {1, 3, 0, 2}},
                                                    {{2, 3, 4, 5}, {0, 1, 2, 3}},
                                                    {{4, 1, 6, 1}, {3, 2, 1, 0}},
                                                    {{2, 3, 2, 3, 2, 3}, {5, 1, 3, 0, 2, 4}},
                                                    {{2, 3, 4, 5, 6}, {0, 3, 4, 1, 2}}}) {
      Shape y = x;
      std::string text;
      for (std::size_t i = 0; i < dims.size(); ++i) {
        y[static_cast<int>(i)] = x[dims[i]];
        text += (i == 0 ? "" : ",") + std::to_string(dims[i]);
      }
      hold(Op::transpose, {{"dims", text}}, {{c, normal_tensor(x, 7)}}, {{c, y}});
    }
}

TEST_CASE("dims that are not those of the tensor are refused") {
  Buffer x(6 * 4), y(6 * 4);
  for (const char* dims : {"0", "0,0", "0,2", "1,0,2", "1,x", "0,1"})
    CHECK_THROWS_WITH_AS(
        best_runner().run({Op::transpose, {{"dims", std::string(dims)}}, {{DType::f32, {2, 3}}, {DType::f32, {3, 2}}}},
                          {x.data(), y.data()}),
        doctest::Contains("each once"), Bug);
}

TEST_CASE("averages over any dim, and their gradients") {
  for (DType c : compute_dtypes())
    for (const auto& [x, dim] : std::vector<std::pair<Shape, std::int64_t>>{{{2, 5, 7}, -2},
                                                                            {{3, 49}, -1},
                                                                            {{2, 3, 64}, -1},
                                                                            {{2, 197, 65}, -2},
                                                                            {{4, 3}, -2},
                                                                            {{1, 1}, -1},
                                                                            {{9, 2, 130}, -3},
                                                                            {{2, 3, 5, 4}, -3}}) {
      std::vector<std::int64_t> sizes(x.sizes().begin(), x.sizes().end());
      sizes.erase(sizes.end() + dim);
      const Shape y(sizes);
      const auto count = static_cast<double>(x[static_cast<int>(dim)]);
      hold(Op::mean, {{"dim", dim}}, {{c, normal_tensor(x, 8)}}, {{c, y, bound(c, 2), 2 * std::sqrt(count) * kEpsF32}});
      hold(Op::mean_grad, {{"dim", dim}}, {{c, normal_tensor(y, 9)}}, {{c, x, bound(c, 1)}});
    }
}

TEST_CASE("a parameter's gradient is what reached it, in the dtype of reductions") {
  for (DType c : compute_dtypes())
    for (DType r : reduce_dtypes())
      for (bool accumulate : {false, true})
        for (const Shape& shape : {Shape{1, 1, 6}, Shape{197, 33}, Shape{1}})
          hold(Op::parameter_grad, {{"accumulate", accumulate}}, {{c, normal_tensor(shape, 2)}},
               {{r, shape, bound(r), bound(r), -1, true, true}});
}
