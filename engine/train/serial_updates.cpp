// Element by element; Newton-Schulz steps with plain loops.
#include "engine/train/serial_updates.h"

#include <algorithm>
#include <cmath>

#include "engine/core/check.h"
#include "engine/core/muon.h"

namespace trainer {
namespace {

// Rows one after the other.
struct Matrix {
  std::size_t rows = 0, cols = 0;
  std::vector<double> values = std::vector<double>(rows * cols);
  double& at(std::size_t row, std::size_t col) { return values[row * cols + col]; }
  double at(std::size_t row, std::size_t col) const { return values[row * cols + col]; }
};

Matrix transposed(const Matrix& of) {
  Matrix result{of.cols, of.rows};
  for (std::size_t row = 0; row < of.rows; ++row)
    for (std::size_t col = 0; col < of.cols; ++col) result.at(col, row) = of.at(row, col);
  return result;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix result{a.rows, b.cols};
  for (std::size_t row = 0; row < a.rows; ++row)
    for (std::size_t k = 0; k < a.cols; ++k)
      for (std::size_t col = 0; col < b.cols; ++col) result.at(row, col) += a.at(row, k) * b.at(k, col);
  return result;
}

// X = a X + (b A + c A²) X with A = X·Xᵀ, of a matrix that is not taller than wide.
Matrix newton_schulz(Matrix x, std::int64_t steps) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  for (std::int64_t step = 0; step < steps; ++step) {
    const Matrix gram = product(x, transposed(x)), square = product(gram, gram);
    Matrix polynomial{gram.rows, gram.cols};
    for (std::size_t i = 0; i < gram.values.size(); ++i)
      polynomial.values[i] = kB * gram.values[i] + kC * square.values[i];
    for (std::size_t i = 0; i < gram.rows; ++i) polynomial.at(i, i) += kA;
    x = product(polynomial, x);
  }
  return x;
}

}  // namespace

void update_serially(SerialWeights& of, const OptimizerJob& optimizer, double lr, std::int64_t steps,
                     const std::vector<double>& gradient, std::int64_t decay_elements) {
  CHECK(gradient.size() == of.master.size(), "a gradient of all weights");
  const double beta1 = optimizer.betas[0], beta2 = optimizer.betas[1];
  const auto t = static_cast<double>(steps + 1);
  const double correction1 = 1 - std::pow(beta1, t), correction2 = 1 - std::pow(beta2, t);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i];
    double &w = of.master[i], &m = of.states[0][i], &v = of.states[1][i];
    if (static_cast<std::int64_t>(i) < decay_elements) w -= lr * optimizer.weight_decay * w;
    switch (optimizer.name) {
      case OptimizerName::sgd:
        m = optimizer.momentum * m + g;
        w -= lr * (optimizer.nesterov ? g + optimizer.momentum * m : m);
        break;
      case OptimizerName::adam:
      case OptimizerName::adamw:
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        w -= lr / correction1 * m / (std::sqrt(v) / std::sqrt(correction2) + optimizer.eps);
        break;
      case OptimizerName::lion: {
        const double c = beta1 * m + (1 - beta1) * g;
        m = beta2 * m + (1 - beta2) * g;
        w -= lr * static_cast<double>((c > 0) - (c < 0));
        break;
      }
      case OptimizerName::muon:
        w -= lr * g;
        break;
    }
  }
}

std::vector<double> muon_direction(std::vector<double>& momentum, const OptimizerJob& optimizer,
                                   const std::vector<double>& gradient) {
  std::vector<double> direction(gradient.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i];
    double& b = momentum[i];
    b += (1 - optimizer.momentum) * (g - b);
    direction[i] = optimizer.nesterov ? g + optimizer.momentum * (b - g) : b;
  }
  return direction;
}

void orthogonalize_serially(std::vector<double>& values, const Shape& shape, const OptimizerJob& optimizer) {
  CHECK(shape.rank() >= 2 && std::ssize(values) == shape.elements(), "Muon updates matrices");
  const std::int64_t rows = shape[shape.rank() - 2], cols = shape[shape.rank() - 1];
  const double adjustment = muon_adjustment(rows, cols, optimizer.adjust == MuonAdjust::match_rms_adamw);
  for (auto first = values.begin(); first != values.end(); first += rows * cols) {
    Matrix x{static_cast<std::size_t>(rows), static_cast<std::size_t>(cols), {first, first + rows * cols}};
    double squares = 0;
    for (const double value : x.values) squares += value * value;
    for (double& value : x.values) value /= std::max(std::sqrt(squares), optimizer.eps);
    const Matrix result = rows > cols ? transposed(newton_schulz(transposed(x), optimizer.ns_steps))
                                      : newton_schulz(std::move(x), optimizer.ns_steps);
    std::ranges::transform(result.values, first, [&](double value) { return adjustment * value; });
  }
}

}  // namespace trainer
