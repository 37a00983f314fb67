// Muon: whole matrices in f64, by the textbook: the transposed of a tall one, all ranks' pieces put together.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <string>

#include "tests/reference/reference.h"

namespace trainer::reference {
namespace {

struct Matrix {
  std::int64_t rows, cols;
  std::vector<double> data;
  Matrix(std::int64_t r, std::int64_t c) : rows(r), cols(c), data(static_cast<std::size_t>(r * c)) {}
  double& operator()(std::int64_t i, std::int64_t j) { return data[static_cast<std::size_t>(i * cols + j)]; }
  double operator()(std::int64_t i, std::int64_t j) const { return data[static_cast<std::size_t>(i * cols + j)]; }
};

Matrix transposed(const Matrix& m) {
  Matrix t(m.cols, m.rows);
  for (std::int64_t i = 0; i < m.rows; ++i)
    for (std::int64_t j = 0; j < m.cols; ++j) t(j, i) = m(i, j);
  return t;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.cols);
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t k = 0; k < a.cols; ++k)
      for (std::int64_t j = 0; j < b.cols; ++j) c(i, j) += a(i, k) * b(k, j);
  return c;
}

Matrix orthogonalised(Matrix g, std::int64_t steps, double eps) {
  if (g.rows > g.cols) return transposed(orthogonalised(transposed(g), steps, eps));
  double squares = 0;
  for (double x : g.data) squares += x * x;
  for (double& x : g.data) x /= std::fmax(std::sqrt(squares), eps);
  for (std::int64_t step = 0; step < steps; ++step) {
    const Matrix a = product(g, transposed(g));
    Matrix b = product(a, a);
    for (std::size_t i = 0; i < b.data.size(); ++i) b.data[i] = -4.7750 * a.data[i] + 2.0315 * b.data[i];
    const Matrix moved = product(b, g);
    for (std::size_t i = 0; i < g.data.size(); ++i) g.data[i] = 3.4445 * g.data[i] + moved.data[i];
  }
  return g;
}

}  // namespace

void muon_momentum(const Call& c) {
  const double factor = c.in[2][0], momentum = c.attributes.real("momentum");
  c.out[0].data = c.in[1].data;
  for (std::int64_t i = 0; factor != 0 && i < c.out[0].size(); ++i) {
    const double g = c.in[0][i] * factor;
    double& b = c.out[0][i];
    b = momentum * b + (1 - momentum) * g;
    c.out[1][i] = c.has("nesterov") ? momentum * b + (1 - momentum) * g : b;
  }
}

void muon_orthogonalize(const Call& c) {
  const Tensor& u = c.in[0];
  const std::int64_t parts = u.shape[0], n = u.shape[1];
  std::fill(c.out[0].data.begin(), c.out[0].data.end(), 0.0);
  std::istringstream list(c.attributes.text("matrices"));
  for (std::string item; std::getline(list, item, ',');) {
    long offset = 0, rows = 0, cols = 0, owner = 0;
    char cut = 0;
    std::sscanf(item.c_str(), "%ld:%ld:%ld:%c:%ld", &offset, &rows, &cols, &cut, &owner);
    if (owner != c.origin) continue;
    Matrix whole(cut == '0' ? rows * parts : rows, cut == '1' ? cols * parts : cols);
    const auto for_each = [&](auto fn) {  // (element of a part, of the whole)
      for (std::int64_t part = 0; part < parts; ++part)
        for (std::int64_t i = 0; i < rows; ++i)
          for (std::int64_t j = 0; j < cols; ++j)
            fn(part * n + offset + i * cols + j, (cut == '0' ? part * rows : 0) + i,
               (cut == '1' ? part * cols : 0) + j);
    };
    for_each([&](std::int64_t at, std::int64_t i, std::int64_t j) { whole(i, j) = u[at]; });
    const double tall = static_cast<double>(whole.rows) / static_cast<double>(whole.cols);
    const double adjusted = c.attributes.text("adjust") == "original"
                                ? std::sqrt(std::fmax(1, tall))
                                : 0.2 * std::sqrt(static_cast<double>(std::max(whole.rows, whole.cols)));
    const Matrix x = orthogonalised(whole, c.attributes.integer("steps"), c.attributes.real("eps"));
    for_each([&](std::int64_t at, std::int64_t i, std::int64_t j) { c.out[0][at] = adjusted * x(i, j); });
  }
}

void muon(const Call& c) {
  c.out[0].data = c.in[0].data;
  const double lr = c.in[2][0], decay = 1 - lr * c.attributes.real("weight_decay");
  for (std::int64_t i = 0; c.in[3][0] != 0 && i < c.out[0].size(); ++i)
    c.out[0][i] = c.in[0][i] * (i + c.origin < c.attributes.integer("decay_elements") ? decay : 1) - lr * c.in[1][i];
  if (c.has("working")) c.out[1].data = c.out[0].data;
}

}  // namespace trainer::reference
