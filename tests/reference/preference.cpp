// The ops on pairs of sequences (kernels/preference.h), straight from Rafailov et al. 2023, equations 5 and 7.
#include <cmath>

#include "tests/reference/reference.h"

namespace trainer::reference {
namespace {

/// Calls visit(pair) for the pairs of targets [2·pairs, ...] of which one counts.
template <typename Visit>
void each_pair(const Call& c, const Tensor& targets, Visit&& visit) {
  const std::int64_t length = targets.size() / targets.shape[0];
  const auto ignored = static_cast<double>(c.integer("ignore_index", -100));
  for (std::int64_t pair = 0; pair < targets.shape[0] / 2; ++pair) {
    bool counts = false;
    for (std::int64_t i = 2 * pair * length; i < 2 * (pair + 1) * length; ++i) counts |= targets[i] != ignored;
    if (counts) visit(pair);
  }
}

/// beta · ln(π(y | x) / π_ref(y | x)) of a sequence, both given as −ln π.
double reward(const Call& c, std::int64_t sequence) {
  return c.attributes.real("beta") * (c.in[1][sequence] - c.in[0][sequence]);
}

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

void sequence_nll(const Call& c) {
  const Tensor &stats = c.in[1], &targets = c.in[2];
  const std::int64_t parts = stats.shape[0], rows = stats.shape[1], length = rows / targets.shape[0];
  const auto ignored = static_cast<double>(c.integer("ignore_index", -100));
  for (std::int64_t row = 0; row < rows; ++row) {
    double total = 0, at_target = 0;
    for (std::int64_t p = 0; p < parts; ++p) {
      const double* const s = stats.data.data() + (p * rows + row) * 5;
      total += s[1] * std::exp(s[0]);
      at_target += s[2];
    }
    c.out[1][row] = std::log(total);
    if (targets[row] != ignored) c.out[0][row / length] += std::log(total) - at_target;
  }
}

void dpo_loss(const Call& c) {
  each_pair(c, c.in[2], [&](std::int64_t pair) {
    const double chosen = reward(c, 2 * pair), rejected = reward(c, 2 * pair + 1);
    c.out[0][0] += -std::log(logistic(chosen - rejected));
    c.out[1][0] += chosen;
    c.out[1][1] += rejected;
    c.out[1][2] += chosen > rejected;
    c.out[1][3] += 1;
  });
}

void dpo_loss_grad(const Call& c) {
  each_pair(c, c.in[2], [&](std::int64_t pair) {
    const double slope =
        c.in[3][0] * c.attributes.real("beta") * logistic(reward(c, 2 * pair + 1) - reward(c, 2 * pair));
    c.out[0][2 * pair] = slope;
    c.out[0][2 * pair + 1] = -slope;
  });
}

void dpo_count(const Call& c) {
  each_pair(c, c.in[0], [&](std::int64_t) { c.out[0][0] += 1; });
}

}  // namespace trainer::reference
