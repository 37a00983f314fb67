// Embeddings, positions and their gradients: against the f64 reference.
#include <doctest/doctest.h>

#include "engine/core/error.h"
#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

TEST_CASE("embedding and its gradient, with repeated ids") {
  for (DType c : compute_dtypes())
    for (const auto& [ids, rows, dim] : std::vector<std::tuple<Shape, std::int64_t, std::int64_t>>{
             {{1}, 1, 1}, {{2, 3}, 5, 7}, {{4, 64}, 11, 65}, {{3, 100}, 1000, 130}, {{64}, 3, 768}}) {
      const Input id{DType::i32, integer_tensor(ids, 8, 0, rows)};
      const Input weight{c, normal_tensor({rows, dim}, 9)};
      Shape y = ids.rank() == 1 ? Shape{ids[0], dim} : Shape{ids[0], ids[1], dim};
      hold(Op::embedding, {}, {id, weight}, {{c, y}});
      for (DType r : reduce_dtypes())
        for (bool accumulate : {false, true})
          hold(Op::embedding_grad, {{"accumulate", accumulate}}, {id, {c, normal_tensor(y, 10)}},
               {{r, Shape{rows, dim}, bound(r, 8), 64 * kEpsF32, -1, true, true}});
    }
}

TEST_CASE("a slice of a table gives zeros for ids of other rows, and gets the gradient of its own") {
  const std::int64_t table_rows = 37, dim = 70;
  const Attributes attributes = {{"cut", true}, {"table_rows", table_rows}};
  for (DType c : compute_dtypes())
    for (const auto& [rows, origin] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{10, 0}, {10, 20}, {10, 30}, {1, 36}, {10, 40}}) {
      const Input id{DType::i32, integer_tensor({3, 40}, 8, 0, table_rows)};
      const Shape y{3, 40, dim};
      hold(Op::embedding, attributes, {id, {c, normal_tensor({rows, dim}, 9)}}, {{c, y}}, {.origin = origin});
      for (DType r : reduce_dtypes())
        for (bool accumulate : {false, true}) {
          Attributes more = attributes;
          more.set("accumulate", accumulate);
          hold(Op::embedding_grad, more, {id, {c, normal_tensor(y, 10)}},
               {{r, Shape{rows, dim}, bound(r, 8), 64 * kEpsF32, -1, true, true}}, {.origin = origin});
        }
    }
}

TEST_CASE(
    "the gradient of common and of rare ids: more of one than a warp sums, all the same, tables of one to three digits "
    "of a sort") {
  for (DType c : compute_dtypes())
    for (const auto& [count, named, rows, dim] :
         std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>>{{5000, 2, 300, 8},
                                                                                         {700, 1, 3, 33},
                                                                                         {33, 1, 256, 264},
                                                                                         {32, 1, 255, 4},
                                                                                         {2049, 70001, 70001, 1},
                                                                                         {4100, 400, 50257, 4}}) {
      const Input id{DType::i32, integer_tensor({count}, 8, rows - named, rows)};
      const double terms = std::sqrt(static_cast<double>(count));
      for (DType r : reduce_dtypes())
        hold(Op::embedding_grad, {{"accumulate", r == DType::bf16}}, {id, {c, normal_tensor({count, dim}, 10)}},
             {{r, Shape{rows, dim}, bound(r, 8), 8 * terms * kEpsF32, -1, true, true}});
    }
}

TEST_CASE("a slice of a table far beyond its first rows takes the ids that are its own") {
  const std::int64_t table_rows = 50257, rows = 6283, dim = 8;
  const Attributes attributes = {{"cut", true}, {"table_rows", table_rows}};
  const Input id{DType::i32, integer_tensor({3, 700}, 8, 0, table_rows)},
      dy{DType::f32, normal_tensor({3, 700, dim}, 10)};
  for (std::int64_t origin : {std::int64_t{0}, 3 * rows, 7 * rows}) {
    hold(Op::embedding, attributes, {id, {DType::f32, normal_tensor({rows, dim}, 9)}},
         {{DType::f32, Shape{3, 700, dim}}}, {.origin = origin});
    hold(Op::embedding_grad, attributes, {id, dy}, {{DType::f32, Shape{rows, dim}, kEpsF32, 8 * kEpsF32}},
         {.origin = origin});
  }
}

TEST_CASE("rows of padding get no gradient, not even one that was there") {
  const Buffer ids = buffer_of(DType::i32, integer_tensor({64}, 8, 0, 5)), dy = normals(DType::f32, 64 * 3, 9);
  Buffer dweight(3 * 3 * 4);  // rows 3 to 5 of 5: the last is padding
  const Signature signature{Op::embedding_grad,
                            {{"cut", true}, {"table_rows", std::int64_t{5}}},
                            {{DType::i32, {64}}, {DType::f32, {64, 3}}, {DType::f32, {3, 3}}}};
  best_runner().run(signature, {ids.data(), dy.data(), dweight.data()}, 3);
  for (std::int64_t i = 0; i < 9; ++i) CHECK((dweight.as<float>()[i] == 0) == (i >= 6));
}

TEST_CASE("an id outside of the table is named, and its row is not a number") {
  const Buffer ids = buffer_of(DType::i32, values({6, 7, 0}));
  Buffer weight = buffer_of(DType::f32, Tensor(Shape{7, 2}, 1)), y(3 * 2 * 4);
  const Signature signature{Op::embedding, {}, {{DType::i32, {3}}, {DType::f32, {7, 2}}, {DType::f32, {3, 2}}}};
  CHECK_THROWS_WITH_AS(best_runner().run(signature, {ids.data(), weight.data(), y.data()}),
                       doctest::Contains("id 7 at place 1"), DataError);
  CHECK(std::isnan(y.as<float>()[2]));
  CHECK(std::isnan(y.as<float>()[3]));
  Signature slice = signature;
  slice.attributes = {{"cut", true}, {"table_rows", std::int64_t{7}}};
  CHECK_THROWS_WITH_AS(best_runner().run(slice, {ids.data(), weight.data(), y.data()}),
                       doctest::Contains("id 7 at place 1"), DataError);
  CHECK(std::isnan(y.as<float>()[2]));
}

TEST_CASE("of many wrong ids one is named with its own place, and the next run is not blamed for it") {
  Tensor wrong(Shape{300});
  for (std::int64_t i = 0; i < wrong.size(); ++i) wrong[i] = static_cast<double>(1000 + i);
  const Buffer ids = buffer_of(DType::i32, wrong), right = buffer_of(DType::i32, Tensor(Shape{300}, 6)),
               weight = normals(DType::f32, 14, 1);
  Buffer y(300 * 2 * 4);
  const Signature signature{Op::embedding, {}, {{DType::i32, {300}}, {DType::f32, {7, 2}}, {DType::f32, {300, 2}}}};
  for (const auto& runner : runners()) {
    std::string said;
    try {
      runner->run(signature, {ids.data(), weight.data(), y.data()});
    } catch (const DataError& error) {
      said = error.what();
    }
    int named = 0;
    for (std::int64_t i = 0; i < wrong.size(); ++i)
      named +=
          said.find("id " + std::to_string(1000 + i) + " at place " + std::to_string(i) + " ") != std::string::npos;
    INFO(runner->name(), ": ", said);
    CHECK(named == 1);
    CHECK_NOTHROW(runner->run(signature, {right.data(), weight.data(), y.data()}));
    CHECK(y.as<float>()[599] == weight.as<float>()[13]);
  }
}

TEST_CASE("positions of a part of the sequence are rows of the table from the origin on, and so is their gradient") {
  for (DType c : compute_dtypes())
    for (const auto& [rows, seq, dim] : std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>{
             {9, 4, 5}, {300, 70, 130}, {64, 16, 48}, {40, 1, 8}})
      for (std::int64_t first : {std::int64_t{0}, std::int64_t{1}, rows / 2 - 1, rows - seq})
        for (std::int64_t rank : {0, 1, 3}) {
          const Options at{.origin = rank * rows + first};
          hold(Op::positions, {}, {{c, normal_tensor({rows, dim}, 11)}}, {{c, Shape{seq, dim}}}, at);
          hold(Op::positions, {{"partial", true}}, {{c, normal_tensor({rows, dim}, 11)}}, {{c, Shape{seq, dim}}}, at);
          for (DType r : reduce_dtypes())
            for (bool accumulate : {false, true})
              hold(Op::positions_grad, {{"accumulate", accumulate}}, {{c, normal_tensor({seq, dim}, 12)}},
                   {{r, Shape{rows, dim}, bound(r, 1), 0, -1, true, true}}, at);
        }
}

TEST_CASE("positions may begin further down in the table") {
  const std::int64_t rows = 9, dim = 6, seq = 3;
  const Attributes offset{{"offset", std::int64_t{2}}};
  for (DType c : compute_dtypes())
    for (std::int64_t origin : {0, 3}) {
      hold(Op::positions, offset, {{c, normal_tensor({rows, dim}, 11)}}, {{c, Shape{seq, dim}}}, {.origin = origin});
      hold(Op::positions_grad, offset, {{c, normal_tensor({seq, dim}, 12)}},
           {{DType::f32, Shape{rows, dim}, bound(DType::f32), 0, -1, true, true}}, {.origin = origin});
    }
}

TEST_CASE("places in documents: from 0 in each, of a part of the sequence too; padding has the place 0") {
  // Rows of 150: documents that end on any boundary, one document, padding alone.
  std::vector<double> numbers;
  for (const std::vector<int>& lengths : {std::vector{1, 63, 2, 70}, {150}, {}}) {
    std::vector<double> row;
    for (std::size_t i = 0; i < lengths.size(); ++i)
      row.insert(row.end(), static_cast<std::size_t>(lengths[i]), static_cast<double>(3 * i));
    row.resize(150, -1);
    numbers.insert(numbers.end(), row.begin(), row.end());
  }
  reference::Tensor documents({3, 150});
  documents.data = numbers;
  const Attributes none, offset{{"offset", std::int64_t{2}}};
  for (const Attributes& attributes : {none, offset})
    for (const auto& [seq, origin] : {std::pair{150, 0}, {50, 0}, {50, 50}, {70, 80}})
      hold(Op::document_positions, attributes, {{DType::i32, documents}}, {{DType::i32, Shape{3, seq}}},
           {.origin = origin});
}

TEST_CASE("positions that the table has not are refused") {
  const Buffer weight = normals(DType::f32, 9 * 2, 11);
  Buffer y(4 * 2 * 4);
  const Signature signature{Op::positions, {}, {{DType::f32, {9, 2}}, {DType::f32, {4, 2}}}};
  CHECK_NOTHROW(best_runner().run(signature, {weight.data(), y.data()}, 9 + 5));
  CHECK_THROWS_WITH_AS(best_runner().run(signature, {weight.data(), y.data()}, 6),
                       doctest::Contains("rows [6, 10) of a table of 9"), Bug);
}

TEST_CASE("positions are the first rows, and so is their gradient") {
  for (DType c : compute_dtypes())
    for (const auto& [rows, seq, dim] : std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>{
             {1, 1, 1}, {9, 4, 5}, {300, 200, 130}, {64, 64, 48}}) {
      hold(Op::positions, {}, {{c, normal_tensor({rows, dim}, 11)}}, {{c, Shape{seq, dim}}});
      for (std::int64_t origin : {std::int64_t{0}, rows})
        hold(Op::positions, {{"partial", true}}, {{c, normal_tensor({rows, dim}, 11)}}, {{c, Shape{seq, dim}}},
             {.origin = origin});
      for (DType r : reduce_dtypes())
        for (bool accumulate : {false, true})
          hold(Op::positions_grad, {{"accumulate", accumulate}}, {{c, normal_tensor({seq, dim}, 12)}},
               {{r, Shape{rows, dim}, bound(r, 1), 0, -1, true, true}});
    }
}
