// A multilayer perceptron trained serially in f64 by AdamW, which shares no code with the engine: what tests of
// strategies that differ from one rank simulate them with. Its layers are those of mlp.yaml of TinyJobs.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tests/train/tiny_jobs.h"

namespace trainer::tests {

using Values = std::vector<double>;
using Model = std::map<std::string, Values>;

/// The units, in their order.
inline const std::vector<std::string> kLayers{"stem", "layers.0.fc", "layers.1.fc", "head"};

struct Row {
  Values features;
  std::size_t target = 0;
};
std::vector<Row> rows_of(const std::string& path);

/// Of the mean cross-entropy over the rows.
Model gradient_of(const Model& model, std::span<const Row> rows);

struct Rank {
  Model weights, m, v;
};
void adamw(Rank& rank, const Model& gradient, double lr, int step);

/// Initial weights of the job mlp.
Model model_of(const TinyJobs& jobs, const Overrides& more = {});

/// The largest between values of the model and of the checkpoint's tensors "<name><suffix>"; infinite where one is
/// missing.
double difference(const Model& model, const Tensors& saved, const std::string& suffix = "");

}  // namespace trainer::tests
