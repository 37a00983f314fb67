// Losses, counts, and the ops of a step: norm, scalars and optimizers.
#include <algorithm>
#include <cmath>

#include "tests/reference/reference.h"

namespace trainer::reference {

namespace {

/// Rows of logits whose target counts.
template <class Body>
void each_counted(const Call& c, const Tensor& targets, const Body& body) {
  for (std::int64_t r = 0; r < targets.size(); ++r) {
    const auto target = static_cast<std::int64_t>(targets[r]);
    if (target != c.attributes.integer("ignore_index")) body(r, target);
  }
}

double log_sum_exp(const Tensor& x, std::int64_t row, std::int64_t classes) {
  double largest = x[row * classes], sum = 0;
  for (std::int64_t i = 0; i < classes; ++i) largest = std::fmax(largest, x[row * classes + i]);
  for (std::int64_t i = 0; i < classes; ++i) sum += std::exp(x[row * classes + i] - largest);
  return largest + std::log(sum);
}

/// The share of class `i` in the smoothed target distribution.
double share(double smoothing, std::int64_t i, std::int64_t target, std::int64_t classes) {
  return smoothing / static_cast<double>(classes) + (i == target ? 1 - smoothing : 0);
}

/// Operands that every optimizer has after its states.
struct Control {
  double lr, factor, t;
  Control(const Call& c, std::size_t at) : lr(c.in[at][0]), factor(c.in[at + 1][0]), t(c.in[at + 2][0]) {}
};

/// Copies master and states to the outputs, so that a factor of 0 changes nothing; then decays by w −= lr·decay·w.
void start_update(const Call& c, std::size_t num_states, const Control& control) {
  const std::size_t from[] = {0, 2, 3};
  for (std::size_t i = 0; i <= num_states; ++i) c.out[i].data = c.in[from[i]].data;
  if (control.factor == 0) return;
  for (std::int64_t i = 0; i < c.out[0].size(); ++i) {
    if (c.origin + i < c.attributes.integer("decay_elements"))
      c.out[0][i] -= control.lr * c.attributes.real("weight_decay") * c.out[0][i];
  }
}

void finish_update(const Call& c, std::size_t num_states) {
  if (c.has("working")) c.out[num_states + 1].data = c.out[0].data;
}

}  // namespace

void cross_entropy(const Call& c) {
  const Tensor& x = c.in[0];
  const std::int64_t classes = x.shape[-1];
  const double smoothing = c.attributes.real("label_smoothing");
  for (std::int64_t r = 0; r < c.out[1].size(); ++r) c.out[1][r] = log_sum_exp(x, r, classes);
  each_counted(c, c.in[1], [&](std::int64_t r, std::int64_t target) {
    for (std::int64_t i = 0; i < classes; ++i)
      c.out[0][0] += share(smoothing, i, target, classes) * (c.out[1][r] - x[r * classes + i]);
  });
}

void cross_entropy_grad(const Call& c) {
  const Tensor &x = c.in[0], &lse = c.in[2];
  const std::int64_t columns = x.shape[-1], classes = c.integer("classes", columns);
  const std::int64_t first = c.attributes.has("classes") ? c.origin : 0;
  const double smoothing = c.attributes.has("label_smoothing") ? c.attributes.real("label_smoothing") : 0;
  each_counted(c, c.in[1], [&](std::int64_t r, std::int64_t target) {
    const double seed = c.in[3][r / (c.in[1].size() / c.in[3].size())];
    for (std::int64_t i = 0; i < columns && first + i < classes; ++i) {
      c.out[0][r * columns + i] =
          seed * (std::exp(x[r * columns + i] - lse[r]) - share(smoothing, first + i, target, classes));
    }
  });
}

void cross_entropy_and_grad(const Call& c) {
  const Tensor& x = c.in[0];
  const std::int64_t classes = x.shape[-1];
  const double smoothing = c.attributes.real("label_smoothing"), seed = c.in[2][0];
  each_counted(c, c.in[1], [&](std::int64_t r, std::int64_t target) {
    const double lse = log_sum_exp(x, r, classes);
    for (std::int64_t i = 0; i < classes; ++i) {
      const double logit = x[r * classes + i], wanted = share(smoothing, i, target, classes);
      c.out[0][0] += wanted * (lse - logit);
      c.out[1][r * classes + i] = seed * (std::exp(logit - lse) - wanted);
    }
  });
}

void cross_entropy_stats(const Call& c) {
  const Tensor& x = c.in[0];
  const std::int64_t columns = x.shape[-1],
                     present = std::clamp<std::int64_t>(c.attributes.integer("classes") - c.origin, 0, columns);
  for (std::int64_t r = 0; r < c.out[0].size() / 5; ++r) {
    double largest = -INFINITY, best = -1, sum = 0, exponentials = 0;
    for (std::int64_t i = 0; i < present; ++i) {
      const double z = x[r * columns + i];
      if (best < 0 || z > largest) largest = z, best = static_cast<double>(c.origin + i);
      sum += z;
    }
    for (std::int64_t i = 0; i < present; ++i) exponentials += std::exp(x[r * columns + i] - largest);
    const double stats[] = {largest, exponentials, 0, sum, best};
    for (std::int64_t k = 0; k < 5; ++k) c.out[0][r * 5 + k] = stats[k];
  }
  each_counted(c, c.in[1], [&](std::int64_t r, std::int64_t target) {
    if (target >= c.origin && target < c.origin + present) c.out[0][r * 5 + 2] = x[r * columns + target - c.origin];
  });
}

void cross_entropy_gathered(const Call& c) {
  const Tensor &stats = c.in[1], &targets = c.in[2];
  const std::int64_t parts = stats.shape[0], rows = stats.shape[1];
  const double smoothing = c.attributes.real("label_smoothing");
  const auto sum = [&](std::int64_t r, const auto& term) {
    double total = 0;
    for (std::int64_t p = 0; p < parts; ++p) total += term(stats.data.data() + (p * rows + r) * 5);
    return total;
  };
  for (std::int64_t r = 0; r < rows; ++r)
    c.out[1][r] = std::log(sum(r, [](const double* s) { return s[1] * std::exp(s[0]); }));
  each_counted(c, targets, [&](std::int64_t r, std::int64_t) {
    const double at_target = sum(r, [](const double*s) { return s[2]; }),
                 mean =
                     sum(r, [](const double*s) { return s[3]; }) / static_cast<double>(c.attributes.integer("classes"));
    c.out[0][0] += c.out[1][r] - (1 - smoothing) * at_target - smoothing * mean;
  });
}

void correct_count_gathered(const Call& c) {
  const Tensor& stats = c.in[0];
  const std::int64_t rows = stats.shape[1];
  each_counted(c, c.in[1], [&](std::int64_t r, std::int64_t target) {
    std::int64_t best = r;
    for (std::int64_t row = r; row < stats.shape[0] * rows; row += rows)
      best = stats[row * 5] > stats[best * 5] ? row : best;
    c.out[0][0] += stats[best * 5 + 4] == static_cast<double>(target);
  });
}

void cross_entropy_count(const Call& c) {
  each_counted(c, c.in[0], [&](std::int64_t, std::int64_t) { c.out[0][0] += 1; });
}

void correct_count(const Call& c) {
  const Tensor& x = c.in[0];
  const std::int64_t classes = x.shape[-1];
  each_counted(c, c.in[1], [&](std::int64_t r, std::int64_t target) {
    std::int64_t best = 0;
    for (std::int64_t i = 1; i < classes; ++i) best = x[r * classes + i] > x[r * classes + best] ? i : best;
    c.out[0][0] += best == target;
  });
}

void mse(const Call& c) {
  for (std::int64_t i = 0; i < c.in[0].size(); ++i)
    c.out[0][0] += (c.in[0][i] - c.in[1][i]) * (c.in[0][i] - c.in[1][i]);
}

void mse_grad(const Call& c) {
  for (std::int64_t i = 0; i < c.in[0].size(); ++i) c.out[0][i] = 2 * (c.in[0][i] - c.in[1][i]) * c.in[2][0];
}

void loss_seed(const Call& c) {
  const bool given = c.attributes.has("samples");
  c.out[0][0] = c.in[1][1] / (given ? static_cast<double>(c.attributes.integer("samples")) : std::fmax(c.in[0][0], 1));
}

void sum_squares(const Call& c) {
  const std::int64_t first = c.integer("first", 0), last = c.integer("last", INT64_MAX);
  for (std::int64_t i = 0; i < c.in[0].size(); ++i)
    if (first <= c.origin + i && c.origin + i < last) c.out[0][0] += c.in[0][i] * c.in[0][i];
  if (c.attributes.has("scale")) c.out[0][0] *= c.attributes.real("scale");
}

void update_scalars(const Call& c) {
  if (c.in[3][0] == 0 && std::signbit(c.in[3][0])) {  // a step before was not finite, and nobody has looked yet
    c.out[0].data = c.in[3].data;
    c.out[1][0] = c.in[4][0];
    if (c.has("dynamic")) c.out[2][0] = c.in[5][0];
    return;
  }
  const double squares = c.in[0][0], loss = c.in[1][0] / std::fmax(c.in[2][0], 1), scale = c.in[3][1],
               clip = c.attributes.real("clip_norm");
  const double norm = std::sqrt(squares) / scale;
  const bool finite = std::isfinite(static_cast<float>(norm)) && std::isfinite(static_cast<float>(loss));
  const double factor = finite ? (clip > 0 ? std::fmin(1, clip / (norm + 1e-6)) : 1) / scale : 0;
  double next = scale;
  if (c.has("dynamic")) {
    const double good = finite ? c.in[5][0] + 1 : 0;
    const bool grows = finite && good == static_cast<double>(c.attributes.integer("growth_interval"));
    if (!finite) next = std::fmax(c.attributes.real("smallest_scale"), scale * c.attributes.real("backoff_factor"));
    if (grows) next = std::fmin(c.attributes.real("largest_scale"), scale * c.attributes.real("growth_factor"));
    c.out[2][0] = grows ? 0 : good;
  }
  c.out[0].data = {factor, next, static_cast<double>(static_cast<float>(norm)),
                   static_cast<double>(static_cast<float>(loss))};
  c.out[1][0] = c.in[4][0] + (factor > 0 ? 1 : 0);
}

void sgd(const Call& c) {
  const bool has_momentum = c.has("has_momentum");
  const std::size_t states = has_momentum ? 1 : 0;
  const Control control(c, 2 + states);
  start_update(c, states, control);
  const double momentum = c.attributes.real("momentum");
  for (std::int64_t i = 0; control.factor != 0 && i < c.out[0].size(); ++i) {
    double g = c.in[1][i] * control.factor;
    if (has_momentum) {
      c.out[1][i] = momentum * c.out[1][i] + g;
      g = c.has("nesterov") ? g + momentum * c.out[1][i] : c.out[1][i];
    }
    c.out[0][i] -= control.lr * g;
  }
  finish_update(c, states);
}

void adam(const Call& c) {
  const Control control(c, 4);
  start_update(c, 2, control);
  const double b1 = c.attributes.real("beta1"), b2 = c.attributes.real("beta2"), eps = c.attributes.real("eps");
  for (std::int64_t i = 0; control.factor != 0 && i < c.out[0].size(); ++i) {
    const double g = c.in[1][i] * control.factor;
    double &m = c.out[1][i], &v = c.out[2][i];
    m = b1 * m + (1 - b1) * g;
    v = b2 * v + (1 - b2) * g * g;
    c.out[0][i] -=
        control.lr * (m / (1 - std::pow(b1, control.t))) / (std::sqrt(v / (1 - std::pow(b2, control.t))) + eps);
  }
  finish_update(c, 2);
}

void lion(const Call& c) {
  const Control control(c, 3);
  start_update(c, 1, control);
  const double b1 = c.attributes.real("beta1"), b2 = c.attributes.real("beta2");
  for (std::int64_t i = 0; control.factor != 0 && i < c.out[0].size(); ++i) {
    const double g = c.in[1][i] * control.factor, direction = b1 * c.out[1][i] + (1 - b1) * g;
    c.out[0][i] -= control.lr * static_cast<double>((direction > 0) - (direction < 0));
    c.out[1][i] = b2 * c.out[1][i] + (1 - b2) * g;
  }
  finish_update(c, 1);
}

}  // namespace trainer::reference
