// Norms, activations, sums and dropout.
#include <cmath>
#include <numbers>

#include "engine/core/op_record.h"
#include "engine/core/random.h"
#include "tests/reference/reference.h"

namespace trainer::reference {

namespace {

/// Mean over a row of f(index in the tensor).
template <class F>
double row_mean(std::int64_t row, std::int64_t dim, const F& f) {
  double sum = 0;
  for (std::int64_t i = row * dim; i < (row + 1) * dim; ++i) sum += f(i);
  return sum / static_cast<double>(dim);
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

/// tanh's argument in the approximate GELU and its slope (Hendrycks and Gimpel, 2016).
double inner(double x) { return std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x); }
double inner_slope(double x) { return std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x); }

}  // namespace

void layer_norm(const Call& c) {
  const Tensor& x = c.in[0];
  const std::int64_t dim = x.shape[-1];
  for (std::int64_t r = 0; r < x.size() / dim; ++r) {
    const double mean = row_mean(r, dim, [&](std::int64_t i) { return x[i]; });
    const double variance = row_mean(r, dim, [&](std::int64_t i) { return (x[i] - mean) * (x[i] - mean); });
    const double rstd = 1 / std::sqrt(variance + c.attributes.real("eps"));
    c.out[1][r] = mean;
    c.out[2][r] = rstd;
    for (std::int64_t i = 0; i < dim; ++i) {
      c.out[0][r * dim + i] = (x[r * dim + i] - mean) * rstd * c.in[1][i] + (c.has("bias") ? c.in[2][i] : 0);
    }
  }
}

void layer_norm_grad(const Call& c) {
  const Tensor &dy = c.in[0], &x = c.in[1], &w = c.in[2], &mean = c.in[3], &rstd = c.in[4];
  const std::int64_t dim = x.shape[-1];
  for (std::int64_t r = 0; r < x.size() / dim; ++r) {
    const auto normal = [&](std::int64_t i) { return (x[i] - mean[r]) * rstd[r]; };
    const double along_one = row_mean(r, dim, [&](std::int64_t i) { return dy[i] * w[i % dim]; });
    const double along_x = row_mean(r, dim, [&](std::int64_t i) { return dy[i] * w[i % dim] * normal(i); });
    for (std::int64_t i = r * dim; i < (r + 1) * dim; ++i) {
      c.out[0][i] = rstd[r] * (dy[i] * w[i % dim] - along_one - normal(i) * along_x);
      if (c.flag("weight", true)) c.out[1][i % dim] += dy[i] * normal(i);
      if (c.has("bias")) c.out[2][i % dim] += dy[i];
    }
  }
}

namespace {

/// Channel of element `i` of [n, ch, ...].
std::int64_t channel_at(const Shape& shape, std::int64_t i) {
  return i / (shape.elements() / (shape[0] * shape[1])) % shape[1];
}

struct Channel {
  double mean, variance;
};
Channel channel_of(const Call& c, const Tensor& sums, std::int64_t channel) {
  const auto count = static_cast<double>(c.attributes.integer("count"));
  const double mean = sums[channel] / count;
  return {mean, sums[sums.shape[1] + channel] / count - mean * mean};
}
double rstd_of(const Call& c, double variance) {
  return 1 / std::sqrt(variance + (c.attributes.has("eps") ? c.attributes.real("eps") : 1e-5));
}

}  // namespace

void batch_norm(const Call& c) {
  for (std::int64_t i = 0; i < c.in[0].size(); ++i) {
    const std::int64_t ch = channel_at(c.in[0].shape, i);
    c.out[0][i] = (c.in[0][i] - c.in[3][ch]) * rstd_of(c, c.in[4][ch]) * c.in[1][ch] + c.in[2][ch];
  }
}

void batch_norm_sums(const Call& c) {
  const Shape& shape = c.in[0].shape;
  for (std::int64_t i = 0; i < shape.elements(); ++i) {
    c.out[0][channel_at(shape, i)] += c.in[0][i];
    c.out[0][shape[1] + channel_at(shape, i)] += c.in[0][i] * c.in[0][i];
  }
}

void batch_norm_apply(const Call& c) {
  for (std::int64_t i = 0; i < c.in[0].size(); ++i) {
    const std::int64_t ch = channel_at(c.in[0].shape, i);
    const Channel of = channel_of(c, c.in[1], ch);
    c.out[0][i] = (c.in[0][i] - of.mean) * rstd_of(c, of.variance) * c.in[2][ch] + c.in[3][ch];
  }
}

/// Outputs: the states afterwards. A graph has none, and changes its own.
void batch_norm_update(const Call& c) {
  const double momentum = c.attributes.real("momentum"), count = static_cast<double>(c.attributes.integer("count"));
  for (std::int64_t ch = 0; !c.out.empty() && ch < c.in[1].size(); ++ch) {
    const Channel of = channel_of(c, c.in[0], ch);
    c.out[0][ch] = (1 - momentum) * c.in[1][ch] + momentum * of.mean;
    c.out[1][ch] = (1 - momentum) * c.in[2][ch] + momentum * of.variance * count / (count - 1);
  }
}

void batch_norm_grad_sums(const Call& c) {
  const Shape& shape = c.in[0].shape;
  for (std::int64_t i = 0; i < shape.elements(); ++i) {
    const std::int64_t ch = channel_at(shape, i);
    const Channel of = channel_of(c, c.in[2], ch);
    c.out[0][ch] += c.in[0][i];
    c.out[0][shape[1] + ch] += c.in[0][i] * (c.in[1][i] - of.mean) * rstd_of(c, of.variance);
  }
  std::size_t next = 1;
  for (std::int64_t ch = 0; c.flag("weight", true) && ch < shape[1]; ++ch) c.out[next][ch] = c.out[0][shape[1] + ch];
  next += c.flag("weight", true) ? 1 : 0;
  for (std::int64_t ch = 0; c.flag("bias", true) && ch < shape[1]; ++ch) c.out[next][ch] = c.out[0][ch];
}

void batch_norm_grad(const Call& c) {
  const Shape& shape = c.in[0].shape;
  const auto count = static_cast<double>(c.attributes.integer("count"));
  for (std::int64_t i = 0; i < shape.elements(); ++i) {
    const std::int64_t ch = channel_at(shape, i);
    const Channel of = channel_of(c, c.in[3], ch);
    const double rstd = rstd_of(c, of.variance), normal = (c.in[1][i] - of.mean) * rstd;
    c.out[0][i] = c.in[2][ch] * rstd * (c.in[0][i] - c.in[4][ch] / count - normal * c.in[4][shape[1] + ch] / count);
  }
}

void rms_norm(const Call& c) {
  const Tensor& x = c.in[0];
  const double offset = static_cast<double>(integer_of(Op::rms_norm, c.attributes, "offset"));
  const std::int64_t dim = x.shape[-1];
  for (std::int64_t r = 0; r < x.size() / dim; ++r) {
    const double rstd =
        1 / std::sqrt(row_mean(r, dim, [&](std::int64_t i) { return x[i] * x[i]; }) + c.attributes.real("eps"));
    c.out[1][r] = rstd;
    for (std::int64_t i = r * dim; i < (r + 1) * dim; ++i) c.out[0][i] = x[i] * rstd * (c.in[1][i % dim] + offset);
  }
}

void rms_norm_grad(const Call& c) {
  const Tensor &dy = c.in[0], &x = c.in[1], &rstd = c.in[3];
  Tensor w = c.in[2];
  for (double& weight : w.data) weight += static_cast<double>(integer_of(Op::rms_norm_grad, c.attributes, "offset"));
  const std::int64_t dim = x.shape[-1];
  for (std::int64_t r = 0; r < x.size() / dim; ++r) {
    const double along_x = row_mean(r, dim, [&](std::int64_t i) { return dy[i] * w[i % dim] * x[i] * rstd[r]; });
    for (std::int64_t i = r * dim; i < (r + 1) * dim; ++i) {
      c.out[0][i] = rstd[r] * (dy[i] * w[i % dim] - x[i] * rstd[r] * along_x);
      if (c.flag("weight", true)) c.out[1][i % dim] += dy[i] * x[i] * rstd[r];
    }
  }
}

void activation(const Call& c, const std::function<double(double)>& f) {
  for (std::int64_t i = 0; i < c.in[0].size(); ++i) c.out[0][i] = f(c.in[0][i]);
}

void activation_grad(const Call& c, const std::function<double(double, double)>& f) {
  for (std::int64_t i = 0; i < c.in[0].size(); ++i) c.out[0][i] = f(c.in[0][i], c.in[1][i]);
}

namespace {

using Function = std::function<double(double)>;
struct WithSlope {
  Function value, slope;
};

WithSlope gelu_of(const Call& c) {
  if (c.attributes.has("approximate") && c.attributes.text("approximate") == "none")
    return {[](double x) { return x * normal_cdf(x); },
            [](double x) { return normal_cdf(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }};
  return {[](double x) { return 0.5 * x * (1 + std::tanh(inner(x))); },
          [](double x) {
            const double t = std::tanh(inner(x));
            return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner_slope(x);
          }};
}

WithSlope gate_of(const Call& c) {
  if (c.attributes.has("activation") && c.attributes.text("activation") == "gelu") return gelu_of(c);
  const Function sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  return {[=](double x) { return x * sigmoid(x); }, [=](double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }};
}

}  // namespace

void gelu(const Call& c) { activation(c, gelu_of(c).value); }

void gelu_grad(const Call& c) {
  activation_grad(c, [slope = gelu_of(c).slope](double dy, double x) { return dy * slope(x); });
}

void glu(const Call& c) {
  binary(c, [value = gate_of(c).value](double gate, double up) { return value(gate) * up; });
}

void glu_grad(const Call& c) {
  const auto [value, slope] = gate_of(c);
  const Tensor &dy = c.in[0], &gate = c.in[1], &up = c.in[2];
  for (std::int64_t i = 0; i < dy.size(); ++i) {
    c.out[0][i] = dy[i] * up[i] * slope(gate[i]);
    c.out[1][i] = dy[i] * value(gate[i]);
  }
}

void binary(const Call& c, const std::function<double(double, double)>& f) {
  for (std::int64_t i = 0; i < c.in[0].size(); ++i) c.out[0][i] = f(c.in[0][i], c.in[1][i % c.in[1].size()]);
}

void sum_leading(const Call& c) {
  for (std::int64_t i = 0; i < c.in[0].size(); ++i) c.out[0][i % c.out[0].size()] += c.in[0][i];
}

void dropout(const Call& c) {
  const Tensor& x = c.in[0];
  const std::int64_t columns = c.integer("row", x.shape[-1]);
  const std::int64_t size = c.integer("sample", x.size() / x.shape[0]), stride = c.integer("stride", columns);
  const auto key = static_cast<std::uint64_t>(c.attributes.integer("key"));
  const auto step = static_cast<std::uint64_t>(c.in[1][0]);
  const double p = c.attributes.real("p");
  const bool zigzag = flag_of(Op::dropout, c.attributes, "zigzag");
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const std::int64_t row = i / columns, first = c.origin + (zigzag ? row / 2 : row) * stride;
    const std::int64_t start = zigzag && row % 2 == 1 ? first / size * size + size - first % size - columns : first;
    const std::int64_t place = start + i % columns;
    const auto sample = static_cast<std::uint64_t>(place / size), e = static_cast<std::uint64_t>(place % size);
    const double word = philox(key, sample, (step << 40) + e / 4)[e % 4];
    c.out[0][i] = word >= p * 4294967296.0 ? x[i] / (1 - p) : 0;
  }
}

}  // namespace trainer::reference
