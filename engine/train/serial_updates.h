// Updates of weights on the host, in f64, for the simulation of ranks that send codes (serial_steps.h), by the formulas
// of kernels/optimizer.h and kernels/muon.h. States are kept in f64, whatever the job has them in: what rounding them
// changes is within the bounds of `trainer verify`.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/job/job.h"

namespace trainer {

/// Some weights and their states, in one flat order.
struct SerialWeights {
  std::vector<double> master;
  std::vector<double> states[2]{};
};

/// One update. `gradient` is clipped; of muon it is the orthogonalized direction. `steps` were taken before. The first
/// `decay_elements` weights decay. Throws Bug where sizes differ.
void update_serially(SerialWeights& of, const OptimizerJob& optimizer, double lr, std::int64_t steps,
                     const std::vector<double>& gradient, std::int64_t decay_elements);

/// Muon's momentum takes in a clipped gradient; returns what is orthogonalized.
std::vector<double> muon_direction(std::vector<double>& momentum, const OptimizerJob& optimizer,
                                   const std::vector<double>& gradient);

/// Orthogonalizes the matrices of a parameter, which are its last two dims, each by itself.
void orthogonalize_serially(std::vector<double>& values, const Shape& shape, const OptimizerJob& optimizer);

}  // namespace trainer
