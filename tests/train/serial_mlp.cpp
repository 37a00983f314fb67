// Forward, backward and AdamW written out, layer by layer.
#include "tests/train/serial_mlp.h"

#include <cmath>
#include <sstream>

namespace trainer::tests {
namespace {

// y = W x + b, and back.
Values forward(const Model& model, const std::string& name, const Values& x) {
  Values y = model.at(name + ".bias");
  const Values& w = model.at(name + ".weight");
  for (std::size_t i = 0; i < y.size(); ++i)
    for (std::size_t j = 0; j < x.size(); ++j) y[i] += w[i * x.size() + j] * x[j];
  return y;
}

Values backward(const Model& model, const std::string& name, const Values& x, const Values& dy, Model& gradient) {
  const Values& w = model.at(name + ".weight");
  Values &dw = gradient[name + ".weight"], &db = gradient[name + ".bias"], dx(x.size());
  dw.resize(w.size()), db.resize(dy.size());
  for (std::size_t i = 0; i < dy.size(); ++i) {
    db[i] += dy[i];
    for (std::size_t j = 0; j < x.size(); ++j) {
      dw[i * x.size() + j] += dy[i] * x[j];
      dx[j] += dy[i] * w[i * x.size() + j];
    }
  }
  return dx;
}

}  // namespace

std::vector<Row> rows_of(const std::string& path) {
  std::vector<Row> rows;
  std::istringstream file(contents_of(path));
  for (std::string line; std::getline(file, line);) {
    Row& row = rows.emplace_back();
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) row.features.push_back(std::stof(cell));
    row.target = static_cast<std::size_t>(row.features.back());
    row.features.pop_back();
  }
  return rows;
}

Model gradient_of(const Model& model, std::span<const Row> rows) {
  Model gradient;
  for (const Row& row : rows) {
    std::vector<Values> x{row.features};  // of each layer
    for (std::size_t layer = 0; layer + 1 < kLayers.size(); ++layer) {
      x.push_back(forward(model, kLayers[layer], x.back()));
      for (double& value : x.back()) value = std::fmax(value, 0.0);
    }
    Values dy = forward(model, kLayers.back(), x.back());
    double sum = 0;
    for (double& logit : dy) sum += logit = std::exp(logit);
    for (double& each : dy) each /= sum * static_cast<double>(rows.size());
    dy[row.target] -= 1.0 / static_cast<double>(rows.size());
    for (std::size_t layer = kLayers.size(); layer-- > 0;) {
      dy = backward(model, kLayers[layer], x[layer], dy, gradient);
      for (std::size_t i = 0; i < dy.size(); ++i)
        if (x[layer][i] == 0) dy[i] = 0;
    }
  }
  return gradient;
}

// Loshchilov and Hutter, "Decoupled Weight Decay Regularization", algorithm 2; biases do not decay.
void adamw(Rank& rank, const Model& gradient, double lr, int step) {
  for (const auto& [name, g] : gradient) {
    Values &w = rank.weights.at(name), &m = rank.m[name], &v = rank.v[name];
    m.resize(g.size()), v.resize(g.size());
    const double decay = name.ends_with(".weight") ? 0.1 : 0;
    for (std::size_t i = 0; i < g.size(); ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i];
      v[i] = 0.95 * v[i] + 0.05 * g[i] * g[i];
      const double mean = m[i] / (1 - std::pow(0.9, step)), square = v[i] / (1 - std::pow(0.95, step));
      w[i] -= lr * (decay * w[i] + mean / (std::sqrt(square) + 1e-3));
    }
  }
}

Model model_of(const TinyJobs& jobs, const Overrides& more) {
  const auto report = run(jobs.load("mlp", "initial", both({"train.steps=0", "data.normalize=none"}, more))).report;
  Model model;
  for (const auto& [name, values] : weights_of(report.checkpoint)) model[name] = Values(values.begin(), values.end());
  return model;
}

double difference(const Model& model, const Tensors& saved, const std::string& suffix) {
  double largest = 0;
  for (const auto& [name, values] : model) {
    const auto found = saved.find(name + suffix);
    if (found == saved.end() || found->second.size() != values.size()) return INFINITY;
    for (std::size_t i = 0; i < values.size(); ++i)
      largest = std::fmax(largest, std::fabs(values[i] - static_cast<double>(found->second[i])));
  }
  return largest;
}

}  // namespace trainer::tests
