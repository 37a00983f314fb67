// Muon against the f64 reference and torch.optim.Muon: single matrices, matrices cut over ranks, work shared by owners.
//
// Bounds. A Newton–Schulz step is a polynomial of the singular values whose slope is at most its first
// coefficient, 3.4445, where they are below 1.2: an error of X grows by that at most, 485 times in five steps. Where
// kernels compute in f32 an element is therefore held to 500 roundings of f32. Where they take bf16 into products, and
// for PyTorch, which does everywhere, the truth is bracketed by a model: the same steps in f64 with X, A and the
// polynomial rounded to bf16. Its distance D from the exact result, by the Frobenius norm, is what bf16 explains; other
// roundings of the same kind are held to 3 D.
#include "engine/core/muon.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "kernels/optimizer.h"
#include "tests/goldens/golden.h"
#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

double narrow(double x) { return static_cast<double>(to_f32(to_bf16(static_cast<float>(x)))); }

/// rows × cols, by rows.
using Values = std::vector<double>;

/// X of the matrix g, with all factors of products rounded to bf16 if `rounds`. A tall matrix is turned.
Values orthogonalised(Values g, std::int64_t rows, std::int64_t cols, std::int64_t steps, bool rounds) {
  const auto round = [&](double x) { return rounds ? narrow(x) : x; };
  const std::int64_t s = std::min(rows, cols), l = std::max(rows, cols);
  const auto at = [](Values& m, std::int64_t i, std::int64_t j, std::int64_t width) -> double& {
    return m[static_cast<std::size_t>(i * width + j)];
  };
  Values x(g.size());
  double squares = 0;
  for (double& v : g) {
    v = round(v);
    squares += v * v;
  }
  for (std::int64_t i = 0; i < s; ++i)
    for (std::int64_t j = 0; j < l; ++j)
      at(x, i, j, l) = round((rows > cols ? at(g, j, i, s) : at(g, i, j, l)) / std::fmax(std::sqrt(squares), 1e-7));
  for (std::int64_t step = 0; step < steps; ++step) {
    Values a(static_cast<std::size_t>(s * s)), p(a.size()), next(x.size());
    for (std::int64_t i = 0; i < s; ++i)
      for (std::int64_t j = 0; j < s; ++j) {
        for (std::int64_t k = 0; k < l; ++k) at(a, i, j, s) += at(x, i, k, l) * at(x, j, k, l);
        at(a, i, j, s) = round(at(a, i, j, s));
      }
    for (std::int64_t i = 0; i < s; ++i)
      for (std::int64_t j = 0; j < s; ++j) {
        double square = 0;
        for (std::int64_t k = 0; k < s; ++k) square += at(a, i, k, s) * at(a, k, j, s);
        at(p, i, j, s) = round(-4.7750 * at(a, i, j, s) + 2.0315 * square);
      }
    for (std::int64_t i = 0; i < s; ++i)
      for (std::int64_t j = 0; j < l; ++j) {
        double sum = 3.4445 * at(x, i, j, l);
        for (std::int64_t k = 0; k < s; ++k) sum += at(p, i, k, s) * at(x, k, j, l);
        at(next, i, j, l) = round(sum);
      }
    x = next;
  }
  if (rows <= cols) return x;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) at(g, i, j, s) = at(x, j, i, l);
  return g;
}

double distance(const Values& a, const Values& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

/// What bf16 explains of an X: D above.
double explained(const Values& g, std::int64_t rows, std::int64_t cols, std::int64_t steps = 5) {
  return distance(orthogonalised(g, rows, cols, steps, true), orthogonalised(g, rows, cols, steps, false));
}

double adjustment(const std::string& adjust, std::int64_t rows, std::int64_t cols) {
  return adjust == "original" ? std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(cols)))
                              : 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
}

/// x of muon_orthogonalize, and what it makes of it.
struct Unit {
  std::int64_t n, parts;
  Attributes attributes;
  Buffer x;

  Unit(std::int64_t elements, const std::string& matrices, const std::string& adjust = "original",
       std::int64_t num_parts = 1)
      : n(elements),
        parts(num_parts),
        attributes{{"steps", std::int64_t{5}}, {"adjust", adjust}, {"eps", 1e-7}, {"matrices", matrices}},
        x(normals(DType::f32, parts * n, 21)) {}

  void run(Runner& runner, std::int64_t owner = 0, double factor = 1) {
    const Buffer scalars = buffer_of(DType::f32, values({factor, 1, 0, 0}));
    runner.run({Op::muon_orthogonalize, attributes, {{DType::f32, {parts, n}}, {DType::f32, {4}}}},
               {x.data(), scalars.data()}, owner);
  }
  Tensor truth(std::int64_t owner = 0) const {
    Tensor all(Shape{parts, n});
    for (std::int64_t i = 0; i < parts * n; ++i) all[i] = read(x, DType::f32, i);
    return reference::run(Op::muon_orthogonalize, attributes, {all, values({1, 1, 0, 0})}, {Shape{parts, n}}, owner)[0];
  }
};

Values values_of(const Buffer& buffer, std::int64_t first, std::int64_t count) {
  Values found;
  for (std::int64_t i = 0; i < count; ++i) found.push_back(read(buffer, DType::f32, first + i));
  return found;
}

std::string one_matrix(std::int64_t rows, std::int64_t cols) {
  return "0:" + std::to_string(rows) + ":" + std::to_string(cols) + ":-:0";
}

}  // namespace

TEST_CASE("the momentum and what Muon takes of it follow their formula, and u is 0 where no step is applied") {
  for (DType r : reduce_dtypes())
    for (std::int64_t n : {1, 7, 40003})
      for (bool nesterov : {false, true})
        for (double factor : {0.25, 0.0})
          hold(Op::muon_momentum, {{"momentum", 0.95}, {"nesterov", nesterov}},
               {{r, normal_tensor({n}, 10)},
                {DType::f32, normal_tensor({n}, 11)},
                {DType::f32, values({factor, 1, 0, 0})},
                {DType::i32, values({1})}},
               {{DType::f32, Shape{n}, 4 * kEpsF32, 4 * kEpsF32, 1, false},
                {DType::f32, Shape{n}, 8 * kEpsF32, 4 * kEpsF32}});
}

TEST_CASE("a momentum in bf16 is that of f32, rounded") {
  const std::int64_t n = 3001;
  for (Runner* runner : few_runners()) {
    const Buffer gradient = normals(DType::f32, n, 12), momentum = normals(DType::bf16, n, 13),
                 before = normals(DType::bf16, n, 13);
    const Buffer scalars = buffer_of(DType::f32, values({1, 1, 0, 0})), applied = buffer_of(DType::i32, values({4}));
    Buffer u(4 * n);
    runner->run({Op::muon_momentum,
                 {{"momentum", 0.95}, {"nesterov", false}},
                 {{DType::f32, {n}}, {DType::bf16, {n}}, {DType::f32, {4}}, {DType::i32, {1}}, {DType::f32, {n}}}},
                {gradient.data(), momentum.data(), scalars.data(), applied.data(), u.data()});
    std::int64_t wrong = -1, up = 0;
    for (std::int64_t i = 0; i < n && wrong < 0; ++i) {
      const double want = 0.95 * read(before, DType::bf16, i) + 0.05 * read(gradient, DType::f32, i),
                   exact = read(u, DType::f32, i), kept = read(momentum, DType::bf16, i);
      if (!(std::fabs(exact - want) <= 4 * kEpsF32 * 2) || !(std::fabs(kept - exact) < 0x1p-7 * std::fabs(exact)))
        wrong = i;
      up += std::fabs(kept) > std::fabs(exact);
    }
    CHECK(wrong == -1);
    CHECK(std::fabs(static_cast<double>(up) - 0.5 * n) <
          5 * 0.5 * std::sqrt(static_cast<double>(n)));  // as often up as down
  }
}

TEST_CASE("a matrix of any shape is made orthogonal as the reference says") {
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {1, 9}, {9, 1}, {16, 16}, {12, 40}, {40, 12}, {33, 65}, {70, 31}})
    for (const std::string adjust : {"original", "match_rms_adamw"})
      for (const auto& runner : runners()) {
        Unit unit(rows * cols, one_matrix(rows, cols), adjust);
        const Tensor truth = unit.truth();
        const double explains =
            adjustment(adjust, rows, cols) * 3 * explained(values_of(unit.x, 0, unit.n), rows, cols);
        unit.run(*runner);
        INFO(rows, " x ", cols, " ", adjust, " on ", runner->name());
        const Values got = values_of(unit.x, 0, unit.n);
        double worst = 0;
        for (std::size_t i = 0; i < got.size(); ++i) worst = std::fmax(worst, std::fabs(got[i] - truth.data[i]));
        if (runner->rounds_factors())
          CHECK(distance(got, truth.data) <= explains + 4 * kEpsF32 * distance(got, Values(got.size())));
        else
          CHECK(worst <= 500 * kEpsF32 * adjustment(adjust, rows, cols));
      }
}

TEST_CASE("a matrix of zeros stays, what is no matrix becomes 0, and nothing is done where no step is applied") {
  for (Runner* runner : few_runners()) {
    Unit unit(140, "2:8:8:-:0,70:3:20:-:0");  // padding before, between and behind
    for (std::int64_t i = 2; i < 66; ++i) unit.x.as<float>()[i] = 0;
    unit.run(*runner);
    for (std::int64_t i = 0; i < 140; ++i) CHECK((unit.x.as<float>()[i] != 0) == (i >= 70 && i < 130));
    Unit none(140, "2:8:8:-:0,70:3:20:-:0");
    std::fill_n(none.x.as<float>(), 140, 0.0f);  // as muon_momentum leaves it
    none.run(*runner, 0, 0);
    for (std::int64_t i = 0; i < 140; ++i) CHECK(none.x.as<float>()[i] == 0);
  }
}

TEST_CASE("pieces of a matrix become those of the matrix that one rank holds whole, to the bit") {
  struct Cut {
    char how;
    std::int64_t rows, cols, parts;
  };
  for (const Cut& cut :
       {Cut{'0', 6, 20, 2}, Cut{'0', 14, 10, 3}, Cut{'1', 20, 9, 2}, Cut{'1', 7, 12, 3}, Cut{'-', 11, 13, 2}})
    for (Runner* runner : few_runners()) {
      const std::int64_t rows = cut.how == '0' ? cut.rows * cut.parts : cut.rows,
                         cols = cut.how == '1' ? cut.cols * cut.parts : cut.cols;
      Unit whole(rows * cols, one_matrix(rows, cols));
      // 3 elements of padding come before each piece.
      const std::int64_t n = 3 + cut.rows * cut.cols + 5;
      Unit pieces(n, "3:" + std::to_string(cut.rows) + ":" + std::to_string(cut.cols) + ":" + cut.how + ":0",
                  "original", cut.parts);
      const auto of_whole = [&](std::int64_t part, std::int64_t i) {
        const std::int64_t row = i / cut.cols + (cut.how == '0' ? part * cut.rows : 0),
                           col = i % cut.cols + (cut.how == '1' ? part * cut.cols : 0);
        return row * cols + col;
      };
      for (std::int64_t part = 0; part < cut.parts; ++part)
        for (std::int64_t i = 0; i < cut.rows * cut.cols; ++i)
          pieces.x.as<float>()[part * n + 3 + i] = whole.x.as<float>()[of_whole(part, i)];
      whole.run(*runner);
      pieces.run(*runner);
      INFO("cut ", cut.how, " of ", cut.parts, " on ", runner->name());
      std::int64_t wrong = 0;
      for (std::int64_t part = 0; part < cut.parts; ++part)
        for (std::int64_t i = 0; i < cut.rows * cut.cols; ++i)
          wrong += pieces.x.as<float>()[part * n + 3 + i] != whole.x.as<float>()[of_whole(part, i)];
      CHECK(wrong == 0);
    }
}

TEST_CASE("the sum over the owners is what one rank makes of all matrices, to the bit") {
  const std::int64_t n = 1200;
  const auto matrices = [](int first, int second, int third) {
    return "0:10:20:-:" + std::to_string(first) + ",256:16:16:-:" + std::to_string(second) +
           ",700:12:40:-:" + std::to_string(third);
  };
  for (Runner* runner : few_runners()) {
    Unit whole(n, matrices(0, 0, 0));
    const Tensor truth = whole.truth();
    whole.run(*runner);
    Values sum(static_cast<std::size_t>(n));
    for (std::int64_t owner = 0; owner < 3; ++owner) {  // of the last one there is nothing
      Unit part(n, matrices(1, 0, 1));
      part.run(*runner, owner);
      for (std::int64_t i = 0; i < n; ++i) sum[static_cast<std::size_t>(i)] += read(part.x, DType::f32, i);
    }
    CHECK(sum == values_of(whole.x, 0, n));
    CHECK(distance(sum, truth.data) <= (runner->rounds_factors() ? 0.05 : 1e-3) * distance(sum, Values(sum.size())));
  }
}

TEST_CASE("the update takes what was made orthogonal as it is, decays, and rounds the working copy") {
  for (std::int64_t n : {1, 7, 40003})
    for (double factor : {0.25, 0.0})
      for (DType copy : compute_dtypes()) {
        const bool working = copy != DType::f32;
        std::vector<Output> outputs{{DType::f32, Shape{n}, 4 * kEpsF32, 4 * kEpsF32, 0, false}};
        if (working) outputs.push_back({copy, Shape{n}, bound(copy), 4 * kEpsF32 + subnormals(copy)});
        hold(Op::muon, {{"weight_decay", 0.5}, {"decay_elements", n / 2}, {"working", working}},
             {{DType::f32, normal_tensor({n}, 20)},
              {DType::f32, normal_tensor({n}, 21)},
              {DType::f32, values({0.0625})},
              {DType::f32, values({factor, 1, 0, 0})},
              {DType::i32, values({1})}},
             outputs);
      }
}

TEST_CASE("three steps are those of torch.optim.Muon, as far as its bf16 goes") {
  const auto goldens = goldens::load_tensors(goldens::folder() + "/muon.safetensors");
  const double lr = 0.03125, momentum_share = 0.9375;
  int cases = 0;
  for (const auto& [name, want] : goldens) {
    char shape[16], adjust[32];
    int nesterov = 0, decay = 0;
    if (std::sscanf(name.c_str(), "%15[a-z].%31[a-z_].%d.%d.w", shape, adjust, &nesterov, &decay) != 4 ||
        name.back() != 'w')
      continue;
    ++cases;
    INFO(name);
    const Tensor& before = goldens.at(std::string(shape) + ".w");
    const Tensor& gradients = goldens.at(std::string(shape) + ".g");
    const Tensor& torch_momentum = goldens.at(name.substr(0, name.size() - 1) + "momentum");
    const std::int64_t rows = before.shape[0], cols = before.shape[1], n = rows * cols;
    const Buffer momentum = buffer_of(DType::f32, Tensor(Shape{n})), lr_now = buffer_of(DType::f32, values({lr})),
                 scalars = buffer_of(DType::f32, values({1, 1, 0, 0}));
    const Buffer master = buffer_of(DType::f32, before);
    Buffer u(4 * n);
    double allowed = 0;
    for (std::int64_t step = 0; step < 3; ++step) {
      const Buffer applied = buffer_of(DType::i32, values({static_cast<double>(step + 1)}));
      Buffer gradient(4 * n);
      for (std::int64_t i = 0; i < n; ++i) write(gradient, DType::f32, i, gradients[step * n + i]);
      best_runner().run(
          {Op::muon_momentum,
           {{"momentum", momentum_share}, {"nesterov", nesterov == 1}},
           {{DType::f32, {n}}, {DType::f32, {n}}, {DType::f32, {4}}, {DType::i32, {1}}, {DType::f32, {n}}}},
          {gradient.data(), momentum.data(), scalars.data(), applied.data(), u.data()});
      const double of_torch = 3 * explained(values_of(u, 0, n), rows, cols);
      best_runner().run({Op::muon_orthogonalize,
                         {{"steps", std::int64_t{5}},
                          {"adjust", std::string(adjust)},
                          {"eps", 1e-7},
                          {"matrices", one_matrix(rows, cols)}},
                         {{DType::f32, {1, n}}, {DType::f32, {4}}}},
                        {u.data(), scalars.data()});
      best_runner().run(
          {Op::muon,
           {{"weight_decay", decay / 1000.0}, {"decay_elements", n}},
           {{DType::f32, {n}}, {DType::f32, {n}}, {DType::f32, {1}}, {DType::f32, {4}}, {DType::i32, {1}}}},
          {master.data(), u.data(), lr_now.data(), scalars.data(), applied.data()});
      allowed += lr * adjustment(adjust, rows, cols) * of_torch * (best_runner().rounds_factors() ? 2 : 1);
    }
    for (std::int64_t i = 0; i < n; ++i)
      CHECK(std::fabs(read(momentum, DType::f32, i) - torch_momentum[i]) <= 16 * kEpsF32);
    const double off = distance(values_of(master, 0, n), want.data), moved = distance(before.data, want.data);
    CHECK(off <= allowed);
    CHECK(allowed <= 0.2 * moved);  // so a wrong coefficient or adjustment would show
  }
  CHECK(cases == 9);
}
