// Muon against the f64 reference and torch.optim.Muon: single matrices, matrices cut over ranks, slices of a unit.
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

constexpr double kLr = 0.0625, kDecay = 0.5;

/// One rank's operands of muon, in slices [first, first + n) of a unit.
struct Slice {
  Attributes attributes;
  std::int64_t elements, first, n, parts = 1, index = 0;
  DType copy = DType::f32;  ///< f32: no working copy
  double factor = 1;
  Buffer master{0}, u{0}, working{0};

  Slice(std::int64_t all, std::int64_t begin, std::int64_t count, const std::string& matrices,
        const std::string& adjust = "original")
      : attributes{{"steps", std::int64_t{5}}, {"adjust", adjust},    {"weight_decay", kDecay}, {"eps", 1e-7},
                   {"elements", all},          {"matrices", matrices}},
        elements(all),
        first(begin),
        n(count) {}

  void run(Runner& runner) {
    const Buffer lr = buffer_of(DType::f32, values({kLr})), scalars = buffer_of(DType::f32, values({factor, 1, 0, 0})),
                 applied = buffer_of(DType::i32, values({1}));
    Signature signature{
        Op::muon,
        attributes,
        {{DType::f32, {n}}, {DType::f32, {parts, n}}, {DType::f32, {1}}, {DType::f32, {4}}, {DType::i32, {1}}}};
    std::vector<void*> operands = {master.data(), u.data(), lr.data(), scalars.data(), applied.data()};
    signature.attributes.set("working", copy != DType::f32);
    if (copy != DType::f32) {
      working = Buffer(n * size_of(copy));
      signature.operands.push_back({copy, {n}});
      operands.push_back(working.data());
    }
    runner.run(signature, operands, index * elements + first);
  }
  Tensor truth() const {
    Tensor w(Shape{n}), all(Shape{parts, n});
    for (std::int64_t i = 0; i < n; ++i) w[i] = read(master, DType::f32, i);
    for (std::int64_t i = 0; i < parts * n; ++i) all[i] = read(u, DType::f32, i);
    return reference::run(Op::muon, attributes, {w, all, values({kLr}), values({factor, 1, 0, 0}), values({1})},
                          {Shape{n}}, index * elements + first)[0];
  }
};

Values values_of(const Buffer& buffer, std::int64_t first, std::int64_t count) {
  Values found;
  for (std::int64_t i = 0; i < count; ++i) found.push_back(read(buffer, DType::f32, first + i));
  return found;
}

Buffer copy_of(const Buffer& from, std::int64_t first, std::int64_t count) {
  Buffer to(4 * count);
  std::memcpy(to.data(), from.as<float>() + first, to.bytes());
  return to;
}

std::string one_matrix(std::int64_t rows, std::int64_t cols) {
  return "0:" + std::to_string(rows) + ":" + std::to_string(cols) + ":-";
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

TEST_CASE("a matrix of any shape is updated as the reference says, and its working copy with it") {
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {1, 9}, {9, 1}, {16, 16}, {12, 40}, {40, 12}, {33, 65}, {70, 31}})
    for (const std::string adjust : {"original", "match_rms_adamw"})
      for (DType copy : compute_dtypes())
        for (const auto& runner : runners()) {
          if (copy != DType::f32 && runner.get() != &best_runner()) continue;
          Slice slice(rows * cols, 0, rows * cols, one_matrix(rows, cols), adjust);
          slice.copy = copy;
          slice.master = normals(DType::f32, slice.n, 20);
          slice.u = normals(DType::f32, slice.n, 21);
          const Tensor truth = slice.truth();
          slice.run(*runner);
          INFO(rows, " x ", cols, " ", adjust, " on ", runner->name());
          const Values got = values_of(slice.master, 0, slice.n);
          const double size = kLr * adjustment(adjust, rows, cols);
          if (runner->rounds_factors()) {
            CHECK(distance(got, truth.data) <= size * 3 * explained(values_of(slice.u, 0, slice.n), rows, cols) +
                                                   4 * kEpsF32 * distance(got, Values(got.size())));
          } else {
            double worst = 0;
            for (std::size_t i = 0; i < got.size(); ++i)
              worst = std::fmax(worst, std::fabs(got[i] - truth.data[i]) - 4 * kEpsF32 * std::fabs(truth.data[i]));
            CHECK(worst <= 500 * kEpsF32 * size);
          }
          for (std::int64_t i = 0; copy != DType::f32 && i < slice.n; ++i)
            CHECK(std::fabs(read(slice.working, copy, i) - got[static_cast<std::size_t>(i)]) <=
                  bound(copy) * std::fabs(got[static_cast<std::size_t>(i)]) + subnormals(copy));
        }
}

TEST_CASE("a matrix of zeros decays alone, padding stays, and so does everything where no step is applied") {
  const std::string matrices = "2:8:8:-,70:3:20:-";  // of 140: padding before, between and behind
  for (Runner* runner : few_runners()) {
    Slice slice(140, 0, 140, matrices);
    slice.master = normals(DType::f32, 140, 30);
    slice.u = normals(DType::f32, 140, 31);
    for (std::int64_t i = 2; i < 66; ++i) slice.u.as<float>()[i] = 0;
    const Buffer before = normals(DType::f32, 140, 30);
    slice.factor = 0;
    slice.run(*runner);
    CHECK(slice.master.same_bits(before));
    slice.factor = 1;
    slice.run(*runner);
    const auto keep = static_cast<float>(1 - kLr * kDecay);
    for (std::int64_t i = 0; i < 140; ++i) {
      const float was = before.as<float>()[i], now = slice.master.as<float>()[i];
      if (i >= 2 && i < 66)
        CHECK(now == was * keep);
      else if (i >= 70 && i < 130)
        CHECK(now != was);
      else
        CHECK(now == was);
    }
  }
}

TEST_CASE("ranks that hold pieces of a matrix make the bits of the rank that holds it whole") {
  struct Cut {
    char how;
    std::int64_t rows, cols, parts;
  };
  for (const Cut& cut :
       {Cut{'0', 6, 20, 2}, Cut{'0', 14, 10, 3}, Cut{'1', 20, 9, 2}, Cut{'1', 7, 12, 3}, Cut{'-', 11, 13, 2}})
    for (Runner* runner : few_runners()) {
      const std::int64_t rows = cut.how == '0' ? cut.rows * cut.parts : cut.rows,
                         cols = cut.how == '1' ? cut.cols * cut.parts : cut.cols;
      Slice whole(rows * cols, 0, rows * cols, one_matrix(rows, cols));
      whole.master = normals(DType::f32, rows * cols, 40);
      whole.u = normals(DType::f32, rows * cols, 41);
      const Buffer master = normals(DType::f32, rows * cols, 40);
      // Element i of the whole is element `second` of part `first`'s slice; 3 elements of padding come before the
      // piece.
      const std::int64_t n = 3 + cut.rows * cut.cols + 5;
      const auto place = [&](std::int64_t i, std::int64_t part) -> std::pair<std::int64_t, std::int64_t> {
        const std::int64_t row = i / cols, col = i % cols;
        const std::int64_t owner = cut.how == '0' ? row / cut.rows : cut.how == '1' ? col / cut.cols : part;
        return {owner, 3 + row % cut.rows * cut.cols + col % cut.cols};
      };
      Buffer u(4 * n * cut.parts);
      for (std::int64_t part = 0; part < cut.parts; ++part)
        for (std::int64_t i = 0; i < rows * cols; ++i)
          u.as<float>()[place(i, part).first * n + place(i, part).second] = whole.u.as<float>()[i];
      whole.run(*runner);
      for (std::int64_t index = 0; index < cut.parts; ++index) {
        Slice piece(4 * n, 2 * n, n,
                    std::to_string(2 * n + 3) + ":" + std::to_string(cut.rows) + ":" + std::to_string(cut.cols) + ":" +
                        cut.how);
        piece.parts = cut.parts;
        piece.index = index;
        piece.master = normals(DType::f32, n, 42);
        piece.u = copy_of(u, 0, n * cut.parts);
        for (std::int64_t i = 0; i < rows * cols; ++i)
          if (place(i, index).first == index) piece.master.as<float>()[place(i, index).second] = master.as<float>()[i];
        piece.run(*runner);
        INFO("cut ", cut.how, " of ", cut.parts, " on ", runner->name());
        std::int64_t wrong = -1;
        for (std::int64_t i = 0; i < rows * cols && wrong < 0; ++i)
          if (place(i, index).first == index &&
              piece.master.as<float>()[place(i, index).second] != whole.master.as<float>()[i])
            wrong = i;
        CHECK(wrong == -1);
      }
    }
}

TEST_CASE("slices that end where matrices end cover the unit, and a matrix across a border is a bug") {
  const std::int64_t n = 600;  // three slices: of two matrices, of one, and of none
  const std::string matrices = "0:10:20:-,256:16:16:-,700:12:40:-";
  for (Runner* runner : few_runners()) {
    Slice whole(3 * n, 0, 3 * n, matrices);
    whole.master = normals(DType::f32, 3 * n, 50);
    whole.u = normals(DType::f32, 3 * n, 51);
    const Buffer master = normals(DType::f32, 3 * n, 50);
    whole.run(*runner);
    for (std::int64_t slice = 0; slice < 3; ++slice) {
      Slice part(3 * n, slice * n, n, matrices);
      part.master = copy_of(master, slice * n, n);
      part.u = copy_of(whole.u, slice * n, n);
      part.run(*runner);
      CHECK(part.master.same_bits(copy_of(whole.master, slice * n, n)));
    }
    Slice across(3 * n, 100, n, matrices);
    across.master = copy_of(master, 100, n);
    across.u = copy_of(whole.u, 100, n);
    CHECK_THROWS_AS(across.run(*runner), Bug);
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
      best_runner().run(
          {Op::muon,
           {{"steps", std::int64_t{5}},
            {"adjust", std::string(adjust)},
            {"weight_decay", decay / 1000.0},
            {"eps", 1e-7},
            {"elements", n},
            {"matrices", one_matrix(rows, cols)}},
           {{DType::f32, {n}}, {DType::f32, {1, n}}, {DType::f32, {1}}, {DType::f32, {4}}, {DType::i32, {1}}}},
          {master.data(), u.data(), lr_now.data(), scalars.data(), applied.data()});
      const double of_torch = 3 * explained(values_of(u, 0, n), rows, cols);
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
