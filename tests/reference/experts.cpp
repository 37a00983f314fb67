// Mixtures of experts, by the formulas of kernels/experts.h.
#include <cmath>
#include <string>

#include "tests/reference/reference.h"

namespace trainer::reference {
namespace {

std::string score_of(const Call& call) {
  return call.attributes.has("score") ? call.attributes.text("score") : std::string("softmax");
}
double real_of(const Call& call, const char* name, double otherwise) {
  return call.attributes.has(name) ? call.attributes.real(name) : otherwise;
}

double lse_of(const Tensor& logits, std::int64_t token) {
  const std::int64_t n = logits.shape[-1];
  double most = -INFINITY, sum = 0;
  for (std::int64_t e = 0; e < n; ++e) most = std::fmax(most, logits[token * n + e]);
  for (std::int64_t e = 0; e < n; ++e) sum += std::exp(logits[token * n + e] - most);
  return most + std::log(sum);
}

std::vector<double> scores_of(const Call& call, const Tensor& logits, std::int64_t token) {
  const std::int64_t n = logits.shape[-1];
  const double lse = lse_of(logits, token);
  std::vector<double> s;
  for (std::int64_t e = 0; e < n; ++e) {
    const double x = logits[token * n + e];
    s.push_back(score_of(call) == "sigmoid" ? 1 / (1 + std::exp(-x)) : std::exp(x - lse));
  }
  return s;
}

/// d s / d logits, of the score at `e` by the logit at `by`.
double slope(const Call& call, const std::vector<double>& s, std::size_t e, std::size_t by) {
  if (score_of(call) == "sigmoid") return e == by ? s[e] * (1 - s[e]) : 0;
  return s[e] * ((e == by ? 1 : 0) - s[by]);
}

}  // namespace

void route(const Call& call) {
  const Tensor& logits = call.in[0];
  const bool biased = call.flag("biased", false), normalize = call.flag("normalize", true);
  const std::int64_t n = logits.shape[-1], k = call.out[0].shape[-1], groups = call.integer("groups", 1),
                     size = n / groups;
  for (std::int64_t token = 0; token < logits.size() / n; ++token) {
    const std::vector<double> s = scores_of(call, logits, token);
    std::vector<double> by = s;
    for (std::int64_t e = 0; biased && e < n; ++e) by[static_cast<std::size_t>(e)] += call.in[1][e];
    if (groups > 1) {
      std::vector<bool> open(static_cast<std::size_t>(groups), false);
      for (std::int64_t round = 0; round < call.integer("top_groups", 1); ++round) {
        std::int64_t best = -1;
        double most = 0;
        for (std::int64_t g = 0; g < groups; ++g) {
          if (open[static_cast<std::size_t>(g)]) continue;
          double pair = -INFINITY;
          for (std::int64_t a = g * size; a < (g + 1) * size; ++a)
            for (std::int64_t b = a + 1; b < (g + 1) * size; ++b)
              pair = std::fmax(pair, by[static_cast<std::size_t>(a)] + by[static_cast<std::size_t>(b)]);
          if (best < 0 || pair > most) best = g, most = pair;
        }
        open[static_cast<std::size_t>(best)] = true;
      }
      for (std::int64_t e = 0; e < n; ++e)
        if (!open[static_cast<std::size_t>(e / size)]) by[static_cast<std::size_t>(e)] = -INFINITY;
    }
    double sum = 1e-20;
    for (std::int64_t j = 0; j < k; ++j) {
      std::int64_t best = -1;
      for (std::int64_t e = 0; e < n; ++e) {
        bool taken = false;
        for (std::int64_t i = 0; i < j; ++i) taken = taken || call.out[1][token * k + i] == static_cast<double>(e);
        if (!taken && (best < 0 || by[static_cast<std::size_t>(e)] > by[static_cast<std::size_t>(best)])) best = e;
      }
      call.out[1][token * k + j] = static_cast<double>(best);
      sum += s[static_cast<std::size_t>(best)];
    }
    for (std::int64_t j = 0; j < k; ++j)
      call.out[0][token * k + j] =
          real_of(call, "scale", 1) * s[static_cast<std::size_t>(call.out[1][token * k + j])] / (normalize ? sum : 1);
  }
}

void route_grad(const Call& call) {
  const Tensor &dweights = call.in[0], &logits = call.in[1], &choices = call.in[2];
  const bool losses = call.flag("losses", false), normalize = call.flag("normalize", true);
  const std::int64_t n = logits.shape[-1], k = choices.shape[-1], seq = logits.shape[1];
  const double seed = losses ? call.in[3][0] : 0, scale = real_of(call, "scale", 1), aux = real_of(call, "aux", 0),
               z = real_of(call, "z", 0);
  for (std::int64_t token = 0; token < logits.size() / n; ++token) {
    const std::vector<double> s = scores_of(call, logits, token);
    std::vector<double> ds(s.size(), 0.0);
    double sum = 1e-20;
    for (std::int64_t j = 0; j < k; ++j) sum += s[static_cast<std::size_t>(choices[token * k + j])];
    for (std::int64_t j = 0; j < k; ++j) {
      const auto chosen = static_cast<std::size_t>(choices[token * k + j]);
      if (!normalize) ds[chosen] += scale * dweights[token * k + j];
      for (std::int64_t i = 0; normalize && i < k; ++i) {
        const auto other = static_cast<std::size_t>(choices[token * k + i]);
        ds[other] += scale * dweights[token * k + j] * ((i == j ? 1 / sum : 0) - s[chosen] / (sum * sum));
      }
    }
    double all = 0;
    for (const double x : s) all += x;
    std::vector<double> share(s.size(), 0.0);  // f_e
    const std::int64_t first = token / seq * seq * k;
    for (std::int64_t i = first; i < first + seq * k; ++i)
      share[static_cast<std::size_t>(choices[i])] += 1 / static_cast<double>(seq * k);
    for (std::size_t e = 0; losses && e < s.size(); ++e)
      for (std::size_t of = 0; of < s.size(); ++of)
        ds[e] += seed * aux * static_cast<double>(n) * share[of] / static_cast<double>(seq) *
                 ((e == of ? 1 / all : 0) - s[of] / (all * all));
    const double lse = lse_of(logits, token);
    for (std::int64_t by = 0; by < n; ++by) {
      double slopes =
          losses ? seed * z * 2 * lse * std::exp(logits[token * n + by] - lse) / static_cast<double>(seq) : 0;
      for (std::size_t e = 0; e < s.size(); ++e) slopes += ds[e] * slope(call, s, e, static_cast<std::size_t>(by));
      call.out[0][token * n + by] = slopes;
    }
  }
}

void expert_capacity(const Call& call) {
  const Tensor& choices = call.in[0];
  const std::int64_t seq = choices.shape[1], k = choices.shape[2], capacity = call.integer("capacity", 0);
  for (std::int64_t sample = 0; sample < choices.shape[0]; ++sample) {
    std::vector<std::int64_t> count(static_cast<std::size_t>(call.integer("experts", 0)), 0);
    for (std::int64_t j = 0; j < k; ++j)
      for (std::int64_t t = 0; t < seq; ++t) {
        const std::int64_t at = (sample * seq + t) * k + j;
        const bool room = count[static_cast<std::size_t>(choices[at])]++ < capacity;
        call.out[0][at] = room ? choices[at] : -1;
      }
  }
}

namespace {

/// How many choices are each expert, added to the counts that were.
void count_choices(const Call& call) {
  call.out[0].data = call.in[2].data;
  for (const double choice : call.in[1].data)
    if (choice >= 0) call.out[0][static_cast<std::int64_t>(choice)] += 1;
}

/// The bias, moved by counts unless the factor of the scalars is 0.
void move_bias(const Call& call) {
  const Tensor &counts = call.in[0], &bias = call.in[2];
  call.out[0].data = bias.data;
  double mean = 0;
  for (const double count : counts.data) mean += count / static_cast<double>(counts.size());
  for (std::int64_t e = 0; e < counts.size() && call.in[1][0] != 0; ++e)
    if (std::abs(counts[e] - mean) > 1e-6) call.out[0][e] -= std::copysign(real_of(call, "rate", 0), counts[e] - mean);
}

}  // namespace

/// Outputs: the sums, or the bias, afterwards. A graph has none, and changes its own.
void router_losses(const Call& call) {
  if (call.out.empty()) return;
  if (call.flag("counts", false)) return count_choices(call);
  if (call.flag("balance", false)) return move_bias(call);
  const Tensor &logits = call.in[0], &choices = call.in[1];
  const std::int64_t n = logits.shape[-1], k = choices.shape[-1], seq = logits.shape[1];
  call.out[0].data = call.in.back().data;
  for (std::int64_t sample = 0; sample < logits.shape[0]; ++sample) {
    for (std::int64_t e = 0; e < n; ++e) {
      double share = 0, probability = 0;
      for (std::int64_t i = sample * seq * k; i < (sample + 1) * seq * k; ++i)
        share += choices[i] == static_cast<double>(e) ? 1 / static_cast<double>(seq * k) : 0;
      for (std::int64_t t = sample * seq; t < (sample + 1) * seq; ++t) {
        const std::vector<double> s = scores_of(call, logits, t);
        double all = 0;
        for (const double x : s) all += x;
        probability += s[static_cast<std::size_t>(e)] / all / static_cast<double>(seq);
      }
      call.out[0][0] += real_of(call, "aux", 0) * static_cast<double>(n) * share * probability;
    }
    for (std::int64_t t = sample * seq; t < (sample + 1) * seq; ++t)
      call.out[0][0] += real_of(call, "z", 0) * lse_of(logits, t) * lse_of(logits, t) / static_cast<double>(seq);
  }
  for (std::int64_t i = 0; call.flag("capacity", false) && i < choices.size(); ++i)
    call.out[0][1] += call.in[2][i] < 0 ? 1 : 0;
}

namespace {

/// Calls row(choice, row of x, row of y, expert) for each choice that is one. With `parts` > 1, choices [batch, parts,
/// …] are numbers within a part of the experts.
template <typename Fn>
void each_choice(const Call& call, std::int64_t experts, const Tensor& choices, const Tensor& x, const Tensor& y,
                 Fn&& row) {
  const std::int64_t k = choices.shape[-1];
  const bool parted = call.integer("parts", 1) > 1;
  const std::int64_t parts = parted ? choices.shape[1] : 1,
                     of_part = parted ? choices.size() / choices.shape[0] / parts : 1;
  const bool x_by_choice = x.shape.rank() > choices.shape.rank(), y_by_choice = y.shape.rank() > choices.shape.rank();
  for (std::int64_t i = 0; i < choices.size(); ++i)
    if (choices[i] >= 0)
      row((x_by_choice ? i : i / k) * x.shape[-1], (y_by_choice ? i : i / k) * y.shape[-1],
          (static_cast<std::int64_t>(choices[i]) + (parted ? i / of_part % parts * (experts / parts) : 0)) *
              x.shape[-1] * y.shape[-1]);
}

}  // namespace

void expert_linear(const Call& call) {
  const Tensor &x = call.in[0], &weight = call.in[2];
  Tensor& y = call.out[0];
  const std::int64_t in = x.shape[-1], out = y.shape[-1];
  each_choice(call, weight.shape[0], call.in[1], x, y, [&](std::int64_t from, std::int64_t to, std::int64_t matrix) {
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t i = 0; i < in; ++i) y[to + o] += weight[matrix + o * in + i] * x[from + i];
  });
}

void expert_linear_grad_input(const Call& call) {
  const Tensor &dy = call.in[0], &weight = call.in[2];
  Tensor& dx = call.out[0];
  const std::int64_t in = dx.shape[-1], out = dy.shape[-1];
  each_choice(call, weight.shape[0], call.in[1], dx, dy, [&](std::int64_t to, std::int64_t from, std::int64_t matrix) {
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t i = 0; i < in; ++i) dx[to + i] += weight[matrix + o * in + i] * dy[from + o];
  });
}

void expert_linear_grad_weight(const Call& call) {
  const Tensor &x = call.in[0], &dy = call.in[1];
  Tensor& dweight = call.out[0];
  const std::int64_t in = x.shape[-1], out = dy.shape[-1];
  each_choice(call, dweight.shape[0], call.in[2], x, dy,
              [&](std::int64_t of_x, std::int64_t of_y, std::int64_t matrix) {
                for (std::int64_t o = 0; o < out; ++o)
                  for (std::int64_t i = 0; i < in; ++i) dweight[matrix + o * in + i] += dy[of_y + o] * x[of_x + i];
              });
}

/// Of a block of the batch, the rows of each part are taken by all first choices, then the second ones …
void expert_slots(const Call& call) {
  const Tensor& choices = call.in[0];
  Tensor &slots = call.out[0], &sources = call.out[1], &numbers = call.out[2];
  const std::int64_t blocks = sources.shape[0], parts = sources.shape[1], rows = sources.shape[2],
                     k = choices.shape[-1], tokens = choices.size() / k / blocks,
                     of_part = call.integer("experts", 0) / parts;
  for (std::int64_t i = 0; i < sources.size(); ++i) sources[i] = numbers[i] = -1;
  for (std::int64_t block = 0; block < blocks; ++block) {
    std::vector<std::int64_t> taken(static_cast<std::size_t>(parts), 0);
    for (std::int64_t j = 0; j < k; ++j)
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int64_t choice = (block * tokens + t) * k + j;
        const auto expert = static_cast<std::int64_t>(choices[choice]);
        slots[choice] = -1;
        if (expert < 0) continue;
        const std::int64_t part = expert / of_part, row = taken[static_cast<std::size_t>(part)];
        if (row >= rows) continue;
        ++taken[static_cast<std::size_t>(part)];
        slots[choice] = static_cast<double>(part * rows + row);
        sources[(block * parts + part) * rows + row] = static_cast<double>(t * k + j);
        numbers[(block * parts + part) * rows + row] = static_cast<double>(expert % of_part);
      }
  }
}

void dispatch(const Call& call) {
  const Tensor &x = call.in[0], &slots = call.in[1], &sources = call.in[2];
  const std::int64_t n = x.shape[-1], blocks = sources.shape[0], of_block = sources.size() / blocks,
                     rows = x.size() / n / blocks, together = slots.size() / (x.size() / n);
  for (std::int64_t i = 0; i < sources.size(); ++i)
    for (std::int64_t column = 0; column < n; ++column) {
      const std::int64_t row = i / of_block * rows + static_cast<std::int64_t>(sources[i]) / together;
      call.out[0][i * n + column] = sources[i] < 0 ? 0 : x[row * n + column];
    }
}

void combine(const Call& call) {
  const Tensor &rows = call.in[0], &slots = call.in[1];
  Tensor& y = call.out[0];
  const std::int64_t n = y.shape[-1], blocks = call.in[2].shape[0], together = slots.size() / (y.size() / n),
                     of_block = slots.size() / blocks;
  for (std::int64_t i = 0; i < slots.size(); ++i)
    for (std::int64_t column = 0; slots[i] >= 0 && column < n; ++column)
      y[i / together * n + column] +=
          rows[(i / of_block * (rows.size() / n / blocks) + static_cast<std::int64_t>(slots[i])) * n + column];
}

void weigh(const Call& call) {
  const std::int64_t n = call.in[0].shape[-1];
  for (std::int64_t i = 0; i < call.in[0].size(); ++i) call.out[0][i] = call.in[0][i] * call.in[1][i / n];
}

void row_dots(const Call& call) {
  const std::int64_t n = call.in[0].shape[-1];
  for (std::int64_t i = 0; i < call.in[0].size(); ++i) call.out[0][i / n] += call.in[0][i] * call.in[1][i];
}

}  // namespace trainer::reference
