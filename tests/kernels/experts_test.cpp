// Routers, capacities and products by expert, against the f64 reference: what the goldens do not have (losses,
// capacities, choices that are none, expert without tokens, sizes beyond a tile). Logits are spread, so that f32 and
// f64 choose alike.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

/// Rows of distinct numbers, exact in bf16 and f16.
Tensor distinct_rows(const Shape& shape, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Tensor x(shape);
  const std::int64_t columns = shape[-1];
  std::vector<double> row(static_cast<std::size_t>(columns));
  for (std::int64_t i = 0; i < x.size(); i += columns) {
    for (std::int64_t e = 0; e < columns; ++e)
      row[static_cast<std::size_t>(e)] = static_cast<double>(e - columns / 2) / (columns > 64 ? 16 : 8);
    std::ranges::shuffle(row, random);
    std::ranges::copy(row, x.data.begin() + i);
  }
  return x;
}

/// `k` different choices of each of so many tokens; of every `none`th one none.
Tensor choices_of(const Shape& shape, std::int64_t experts, std::uint64_t seed, int none = 0) {
  std::mt19937_64 random(seed);
  Tensor x(shape);
  std::vector<double> all(static_cast<std::size_t>(experts));
  for (std::int64_t i = 0; i < x.size(); i += shape[-1]) {
    for (std::int64_t e = 0; e < experts; ++e) all[static_cast<std::size_t>(e)] = static_cast<double>(e);
    std::ranges::shuffle(all, random);
    for (std::int64_t j = 0; j < shape[-1]; ++j)
      x[i + j] = none > 0 && (i + j) % none == 0 ? -1 : all[static_cast<std::size_t>(j)];
  }
  return x;
}

struct Sizes {
  Shape tokens;  // [batch, seq]
  std::int64_t experts, k;
};
const std::vector<Sizes> kRouters{{{1, 1}, 2, 1}, {{2, 5}, 4, 2}, {{3, 37}, 8, 3}, {{1, 70}, 130, 8}};

Attributes with(Attributes attributes, const char* name, const Attribute& value) {
  attributes.set(name, value);
  return attributes;
}

}  // namespace

TEST_CASE("a router's choices and weights are the formula's, and so is its gradient with losses and without") {
  for (DType c : compute_dtypes())
    for (const Sizes& s : kRouters)
      for (const char* score : {"softmax", "sigmoid"})
        for (const bool normalize : {true, false}) {
          const Shape of_logits{s.tokens[0], s.tokens[1], s.experts}, chosen{s.tokens[0], s.tokens[1], s.k};
          const Tensor logits = distinct_rows(of_logits, 7), dweights = normal_tensor(chosen, 8);
          const Attributes attributes{{"score", std::string(score)}, {"normalize", normalize}, {"scale", 1.5}};
          hold(Op::route, attributes, {{c, logits}},
               {{DType::f32, chosen, 16 * kEpsF32, kEpsF32}, {DType::i32, chosen}});
          const Tensor choices = reference::run(Op::route, attributes, {logits}, {chosen, chosen})[1];
          hold(Op::route_grad, attributes, {{DType::f32, dweights}, {c, logits}, {DType::i32, choices}},
               {{c, of_logits, bound(c, 8), 64 * kEpsF32}});
          const Attributes losses = with(with(with(attributes, "losses", true), "aux", 0.5), "z", 0.25);
          hold(Op::route_grad, losses,
               {{DType::f32, dweights}, {c, logits}, {DType::i32, choices}, {DType::f32, Tensor({1}, 0.75)}},
               {{c, of_logits, bound(c, 8), 64 * kEpsF32}});
        }
}

TEST_CASE("with groups and a bias a router chooses by both and weighs by neither") {
  const Shape of_logits{2, 9, 16}, chosen{2, 9, 3};
  for (DType c : compute_dtypes()) {
    Tensor bias = distinct_rows({16}, 3);
    for (double& x : bias.data) x /= 64;
    const Attributes attributes{{"score", std::string("sigmoid")},
                                {"groups", std::int64_t{4}},
                                {"top_groups", std::int64_t{2}},
                                {"biased", true}};
    hold(Op::route, attributes, {{c, distinct_rows(of_logits, 5)}, {DType::f32, bias}},
         {{DType::f32, chosen, 16 * kEpsF32, kEpsF32}, {DType::i32, chosen}});
  }
}

TEST_CASE("a bias changes which experts are chosen, and neither the weights nor the slopes of those that are") {
  const Shape of_logits{2, 9, 8}, chosen{2, 9, 2};
  const Attributes plain{{"score", std::string("sigmoid")}, {"normalize", false}, {"scale", 1.5}},
      biased = with(plain, "biased", true);
  const Tensor logits = distinct_rows(of_logits, 5), dweights = normal_tensor(chosen, 8);
  Tensor bias({8}, -4);
  bias[2] = bias[5] = 4;  // beyond any difference of scores: the two that everybody goes to
  // What scores alone give for these two, whoever chose them.
  Tensor weights(chosen), choices(chosen);
  for (std::int64_t token = 0; token < 18; ++token) {
    const bool five = logits[token * 8 + 5] > logits[token * 8 + 2];
    for (std::int64_t j = 0; j < 2; ++j) {
      const std::int64_t expert = (j == 0) == five ? 5 : 2;
      choices[token * 2 + j] = static_cast<double>(expert);
      weights[token * 2 + j] = 1.5 / (1 + std::exp(-logits[token * 8 + expert]));
    }
  }
  const std::vector<Tensor> got = reference::run(Op::route, biased, {logits, bias}, {chosen, chosen});
  CHECK(got[1].data == choices.data);
  for (std::int64_t i = 0; i < weights.size(); ++i) CHECK(got[0][i] == doctest::Approx(weights[i]).epsilon(1e-12));
  hold(Op::route, biased, {{DType::f32, logits}, {DType::f32, bias}},
       {{DType::f32, chosen, 16 * kEpsF32, kEpsF32}, {DType::i32, chosen}});
  // The gradient is that of the weights, by differences of their formula: the bias is not in it.
  const Tensor slopes = reference::run(Op::route_grad, plain, {dweights, logits, choices}, {of_logits})[0];
  for (std::int64_t i = 0; i < logits.size(); ++i) {
    const auto objective = [&](double step) {
      Tensor moved = logits;
      moved[i] += step;
      const Tensor of = reference::run(Op::route, biased, {moved, bias}, {chosen, chosen})[0];
      const Tensor by = reference::run(Op::route, biased, {moved, bias}, {chosen, chosen})[1];
      double sum = 0;
      for (std::int64_t token = 0; token < 18; ++token)
        for (std::int64_t j = 0; j < 2; ++j)
          for (std::int64_t k = 0; k < 2; ++k)
            if (by[token * 2 + j] == choices[token * 2 + k]) sum += of[token * 2 + j] * dweights[token * 2 + k];
      return sum;
    };
    const double numeric = (objective(1e-5) - objective(-1e-5)) / 2e-5;
    CHECK(numeric == doctest::Approx(slopes[i]).epsilon(1e-6).scale(1));
  }
}

TEST_CASE("an expert keeps its capacity of first choices by position, then of second ones") {
  for (const std::int64_t capacity : {1, 3, 100})
    for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 17, 2}, Shape{2, 40, 4}}) {
      const Attributes attributes{{"experts", std::int64_t{5}}, {"capacity", capacity}};
      hold(Op::expert_capacity, attributes, {{DType::i32, choices_of(shape, 5, 9)}}, {{DType::i32, shape}});
    }
}

TEST_CASE("the losses of a router and what was left out are added to what is there") {
  for (DType c : compute_dtypes())
    for (const Sizes& s : kRouters)
      for (const char* score : {"softmax", "sigmoid"})
        for (const bool capacity : {true, false}) {
          const Shape chosen{s.tokens[0], s.tokens[1], s.k};
          const Tensor logits = distinct_rows({s.tokens[0], s.tokens[1], s.experts}, 11),
                       choices = choices_of(chosen, s.experts, 12);
          std::vector<Input> inputs{{c, logits}, {DType::i32, choices}};
          if (capacity) inputs.push_back({DType::i32, choices_of(chosen, s.experts, 12, 3)});
          Tensor sums({2}, 3);
          inputs.push_back({DType::f64, sums});
          const int at = static_cast<int>(inputs.size()) - 1;
          const Attributes attributes{{"score", std::string(score)}, {"aux", 0.5}, {"z", 0.25}, {"capacity", capacity}};
          hold(Op::router_losses, attributes, inputs, {{DType::f64, {2}, 256 * kEpsF32, 0, at, false}});
        }
}

TEST_CASE("choices are counted by expert, and none is no expert") {
  for (const Sizes& s : kRouters)
    for (const int none : {0, 3}) {
      const Tensor choices = choices_of({s.tokens[0], s.tokens[1], s.k}, s.experts, 14, none);
      Tensor counts({s.experts});
      for (std::int64_t e = 0; e < s.experts; ++e) counts[e] = static_cast<double>(e % 5);
      const Tensor logits = distinct_rows({s.tokens[0], s.tokens[1], s.experts}, 11);
      hold(Op::router_losses, {{"counts", true}, {"rate", 0.5}},
           {{DType::f32, logits}, {DType::i32, choices}, {DType::f64, counts}},
           {{DType::f64, {s.experts}, 0, 0, 2, false}});
    }
}

TEST_CASE(
    "a bias falls for experts with more choices than the mean, rises for those with fewer, and rests in a step "
    "that is left out") {
  const std::vector<std::vector<double>> all{{4, 4, 4, 4}, {9, 1, 4, 2}, {5, 3, 4, 4}, {0, 0, 0, 1}, {7, 0, 1}, {3}};
  for (const std::vector<double>& of : all)
    for (const double factor : {0.25, 0.0}) {
      const auto experts = static_cast<std::int64_t>(of.size());
      Tensor counts({experts}), bias({experts}, 0.5), scalars({4}, 1);
      counts.data = of;
      scalars[0] = factor;
      hold(Op::router_losses, {{"balance", true}, {"rate", 0.125}},
           {{DType::f64, counts}, {DType::f32, scalars}, {DType::f32, bias}},
           {{DType::f32, {experts}, 0, 0, 2, false}});
    }
}

TEST_CASE("products by expert are those of each expert's rows, whatever their number") {
  struct Product {
    Shape tokens;
    std::int64_t k, experts, in, out;
  };
  for (DType c : compute_dtypes())
    for (const Product& p : std::vector<Product>{{{1, 1}, 1, 3, 5, 7},
                                                 {{2, 9}, 2, 4, 33, 17},
                                                 {{3, 50}, 2, 2, 70, 66},
                                                 {{1, 4}, 2, 60, 8, 6},
                                                 {{2, 45}, 3, 3, 19, 130}})
      for (const bool x_by_choice : {false, true})
        for (const bool y_by_choice : {false, true}) {
          if (runs_are_slow() && p.in * p.out > 3000) continue;
          const Shape chosen{p.tokens[0], p.tokens[1], p.k};
          const auto rows = [&](bool by_choice, std::int64_t columns) {
            return by_choice ? Shape{p.tokens[0], p.tokens[1], p.k, columns} : Shape{p.tokens[0], p.tokens[1], columns};
          };
          const Shape x = rows(x_by_choice, p.in), y = rows(y_by_choice, p.out), weight{p.experts, p.out, p.in};
          const Input choices{DType::i32, choices_of(chosen, p.experts, 4, 5)}, w{c, normal_tensor(weight, 5, 0.5)};
          const Input of_x{c, normal_tensor(x, 6)}, of_y{c, normal_tensor(y, 7)};
          hold(Op::expert_linear, {}, {of_x, choices, w}, {{c, y, bound(c), 32 * kEpsF32}});
          hold(Op::expert_linear_grad_input, {}, {of_y, choices, w}, {{c, x, bound(c), 32 * kEpsF32}});
          for (const auto& [r, accumulate] :
               std::vector<std::pair<DType, bool>>{{DType::f32, false}, {DType::bf16, true}})
            hold(Op::expert_linear_grad_weight, {{"accumulate", accumulate}}, {of_x, of_y, choices},
                 {{r, weight, bound(r, 8), 64 * kEpsF32, -1, true, accumulate}});
        }
}

TEST_CASE("rows times their weights and products of rows") {
  for (DType c : compute_dtypes())
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 5, 2, 33}, Shape{4, 7, 1024}}) {
      const std::vector<std::int64_t> sizes(shape.sizes().begin(), shape.sizes().end() - 1);
      const Shape rows(sizes);
      const Tensor a = normal_tensor(shape, 1), b = normal_tensor(shape, 2), weights = normal_tensor(rows, 3);
      hold(Op::weigh, {}, {{c, a}, {DType::f32, weights}}, {{c, shape, bound(c, 1)}});
      hold(Op::weigh, {}, {{c, a}, {DType::f32, weights}}, {{c, shape, bound(c, 1), 0, 0}});
      hold(Op::row_dots, {}, {{c, a}, {c, b}}, {{DType::f32, rows, 2 * kEpsF32, 64 * kEpsF32}});
    }
}

TEST_CASE("choices take rows of their experts' parts in order, and rows go there and back") {
  struct Travel {
    Shape tokens;
    std::int64_t k, experts, blocks, parts, rows, columns;
  };
  for (const Travel& t : std::vector<Travel>{{{1, 1}, 1, 2, 1, 2, 1, 3},
                                             {{2, 9}, 2, 6, 2, 3, 4, 33},
                                             {{3, 50}, 2, 4, 1, 2, 300, 5},
                                             {{2, 67}, 3, 8, 1, 8, 60, 130},
                                             {{4, 5}, 4, 4, 2, 4, 9, 64}})
    for (const auto& [none, of_rows] : {std::pair(0, false), {3, false}, {3, true}}) {
      const std::int64_t tokens = t.tokens[0] * t.tokens[1];
      const Shape chosen = of_rows ? Shape{tokens, t.k} : Shape{t.tokens[0], t.tokens[1], t.k},
                  buffers{t.blocks, t.parts, t.rows}, rows{t.blocks, t.parts, t.rows, t.columns};
      const Tensor choices = choices_of(chosen, t.experts, 21, none);
      const Attributes attributes{{"experts", t.experts}};
      hold(Op::expert_slots, attributes, {{DType::i32, choices}},
           {{DType::i32, chosen}, {DType::i32, buffers}, {DType::i32, buffers}});
      const std::vector<Tensor> made =
          reference::run(Op::expert_slots, attributes, {choices}, {chosen, buffers, buffers});
      const Input slots{DType::i32, made[0]}, sources{DType::i32, made[1]};
      for (DType c : compute_dtypes())
        for (const Shape& x : of_rows ? std::vector<Shape>{{tokens, t.columns}, {tokens * t.k, t.columns}}
                                      : std::vector<Shape>{{t.tokens[0], t.tokens[1], t.columns},
                                                           {t.tokens[0], t.tokens[1], t.k, t.columns}}) {
          hold(Op::dispatch, {}, {{c, normal_tensor(x, 22)}, slots, sources}, {{c, rows}});
          hold(Op::combine, {}, {{c, normal_tensor(rows, 23)}, slots, sources}, {{c, x, bound(c, 1), 8 * kEpsF32}});
        }
    }
}
