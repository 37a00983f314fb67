// Products of matrices, lookups, and convolutions.
#include <cmath>
#include <cstring>

#include "tests/reference/nf4.h"
#include "tests/reference/reference.h"

namespace trainer::reference {

namespace {

/// Adds the rows of `from` [rows, n] to `to` [n].
void add_rows(const Tensor& from, Tensor& to) {
  for (std::int64_t i = 0; i < from.size(); ++i) to[i % to.size()] += from[i];
}

/// Calls body(output index, input index, weight index) for every product of a convolution of sequences x by w giving y.
template <class Body>
void each_tap_of_sequences(const Shape& x, const Shape& w, const Shape& y, const Attributes& attributes,
                           const Body& body) {
  for (std::int64_t i = 0; i < y.elements(); ++i)
    for (std::int64_t in = 0; in < x[1]; ++in)
      for (std::int64_t k = 0; k < w[2]; ++k) {
        const std::int64_t out = i / y[2] % y[1], n = i / y[2] / y[1];
        const std::int64_t place = i % y[2] * attributes.integer("stride") - attributes.integer("padding") + k;
        if (place >= 0 && place < x[2]) body(i, (n * x[1] + in) * x[2] + place, (out * w[1] + in) * w[2] + k);
      }
}

/// The same of images.
template <class Body>
void each_tap(const Shape& x, const Shape& w, const Shape& y, const Attributes& attributes, const Body& body) {
  if (x.rank() == 3) return each_tap_of_sequences(x, w, y, attributes, body);
  const std::int64_t stride = attributes.integer("stride"), padding = attributes.integer("padding");
  for (std::int64_t i = 0; i < y.elements(); ++i) {
    const std::int64_t ox = i % y[3], oy = i / y[3] % y[2], out = i / (y[3] * y[2]) % y[1],
                       n = i / (y[3] * y[2] * y[1]);
    for (std::int64_t j = 0; j < w[1] * w[2] * w[3]; ++j) {
      const std::int64_t kx = j % w[3], ky = j / w[3] % w[2], in = j / (w[3] * w[2]);
      const std::int64_t ix = ox * stride - padding + kx, iy = oy * stride - padding + ky;
      if (ix < 0 || ix >= x[3] || iy < 0 || iy >= x[2]) continue;
      body(i, ((n * x[1] + in) * x[2] + iy) * x[3] + ix, out * w[1] * w[2] * w[3] + j);
    }
  }
}

std::int64_t channel_of(const Shape& y, std::int64_t i) { return i / (y.elements() / y[0] / y[1]) % y[1]; }

}  // namespace

namespace {

// The activation as a product's epilogue: op `gelu` on what the product gave.
void gelu_of(const Tensor& pre, Tensor& y) {
  y.data = run(Op::gelu, {{"approximate", std::string("tanh")}}, {pre}, {pre.shape})[0].data;
}

}  // namespace

void linear(const Call& c) {
  const Tensor &x = c.in[0], &w = c.in[1];
  const std::int64_t out = w.shape[0], in = w.shape[1];
  for (std::int64_t r = 0; r < x.size() / in; ++r) {
    for (std::int64_t o = 0; o < out; ++o) {
      double sum = c.has("bias") && !(c.has("partial") && c.origin != 0) ? c.in[2][o] : 0;
      for (std::int64_t i = 0; i < in; ++i) sum += x[r * in + i] * w[o * in + i];
      c.out[0][r * out + o] = sum;
    }
  }
  if (c.has("pre")) c.out[1].data = c.out[0].data;
  if (c.has("gelu")) gelu_of(Tensor(c.out[0]), c.out[0]);
}

namespace {

/// The signed dynamic code: a sign, zeros, a one, and the bits of a fraction. 0 is 0, and minus 0 means 1.
double dynamic_value(int byte) {
  if (byte == 0 || byte == 0x80) return byte == 0 ? 0 : 1;
  int zeros = 0, magnitude = byte % 128;
  while ((magnitude << zeros & 64) == 0) ++zeros;
  const int steps = 64 >> zeros;
  const double value = std::pow(10.0, -zeros) * (0.1 + 0.9 * (magnitude - steps + 0.5) / steps);
  return byte < 128 ? value : -value;
}

double f32_at(const Tensor& bytes, std::int64_t i) {
  std::uint32_t word = 0;
  for (int k = 3; k >= 0; --k) word = word << 8 | static_cast<std::uint32_t>(bytes[4 * i + k]);
  float value;
  std::memcpy(&value, &word, sizeof value);
  return static_cast<double>(value);
}

/// W [out, in] of the parts of a quantized linear.
Tensor dequantized(const Call& c, std::int64_t out, std::int64_t in) {
  const Tensor &codes = c.in[1], &scales = c.in[2];
  const std::int64_t blocks = (in + 63) / 64;
  Tensor w(Shape{out, in});
  for (std::int64_t o = 0; o < out; ++o)
    for (std::int64_t i = 0; i < in; ++i) {
      if (!c.has("nf4")) {
        const double code = codes[o * 64 * blocks + i];
        w[o * in + i] = (code < 128 ? code : code - 256) * f32_at(scales, o);
        continue;
      }
      const std::int64_t block = i / 64, inside = i % 64, group = o / 256 * blocks + block;
      const int byte = static_cast<int>(codes[(o * blocks + block) * 32 + inside % 32]);
      const double scale = f32_at(c.in[3], 2 * group + 1) +
                           dynamic_value(static_cast<int>(scales[o * blocks + block])) * f32_at(c.in[3], 2 * group);
      w[o * in + i] = kNf4[inside < 32 ? byte % 16 : byte / 16] * scale;
    }
  return w;
}

}  // namespace

void quantized_linear(const Call& c) {
  const std::int64_t in = c.in[0].shape[-1], out = c.out[0].shape[-1];
  Attributes attributes = c.attributes;
  attributes.set("bias", c.flag("bias", true));
  std::vector<Tensor> operands{c.in[0], dequantized(c, out, in)};
  if (c.flag("bias", true)) operands.push_back(c.in.back());
  linear({attributes, operands, c.out, c.origin});
}

void quantized_linear_grad_input(const Call& c) {
  const std::int64_t in = c.out[0].shape[-1], out = c.in[0].shape[-1];
  const std::vector<Tensor> operands{c.in[0], dequantized(c, out, in)};
  linear_grad_input({c.attributes, operands, c.out, c.origin});
}

void linear_grad_input(const Call& c) {
  const Tensor &dy = c.in[0], &w = c.in[1];
  const std::int64_t out = w.shape[0], in = w.shape[1];
  for (std::int64_t r = 0; r < dy.size() / out; ++r) {
    for (std::int64_t o = 0; o < out; ++o) {
      for (std::int64_t i = 0; i < in; ++i) c.out[0][r * in + i] += dy[r * out + o] * w[o * in + i];
    }
  }
  if (c.has("gelu"))
    c.out[0].data =
        run(Op::gelu_grad, {{"approximate", std::string("tanh")}}, {c.out[0], c.in[2]}, {c.out[0].shape})[0].data;
}

void linear_grad_weight(const Call& c) {
  const Tensor &x = c.in[0], &dy = c.in[1];
  const std::int64_t in = x.shape[-1], out = dy.shape[-1];
  for (std::int64_t r = 0; r < dy.size() / out; ++r) {
    for (std::int64_t o = 0; o < out; ++o) {
      for (std::int64_t i = 0; i < in; ++i) c.out[0][o * in + i] += dy[r * out + o] * x[r * in + i];
    }
  }
  if (c.has("bias")) add_rows(dy, c.out[1]);
}

void bias_grad(const Call& c) {
  const Shape& dy = c.in[0].shape;
  const auto given = static_cast<int>(c.attributes.integer("dim"));
  const int dim = given < 0 ? given + dy.rank() : given;
  std::int64_t inner = 1;
  for (int i = dim + 1; i < dy.rank(); ++i) inner *= dy[i];
  for (std::int64_t i = 0; i < c.in[0].size(); ++i) c.out[0][i / inner % dy[dim]] += c.in[0][i];
}

namespace {

/// Calls body(element of [..., dim], element of the table) where the row of an id is among the `rows` that are here.
template <class Body>
void each_looked_up(const Call& c, const Shape& table, const Body& body) {
  const std::int64_t rows = table[0], dim = table[1];
  for (std::int64_t i = 0; i < c.in[0].size() * dim; ++i) {
    const std::int64_t row = static_cast<std::int64_t>(c.in[0][i / dim]) - (c.has("cut") ? c.origin : 0);
    if (row >= 0 && row < rows) body(i, row * dim + i % dim);
  }
}

}  // namespace

void embedding(const Call& c) {
  each_looked_up(c, c.in[1].shape, [&](std::int64_t i, std::int64_t at) { c.out[0][i] = c.in[1][at]; });
}

void embedding_grad(const Call& c) {
  each_looked_up(c, c.out[0].shape, [&](std::int64_t i, std::int64_t at) { c.out[0][at] += c.in[1][i]; });
}

namespace {

/// Row of the table of row `i` of `seq` here.
std::int64_t row_of_position(const Call& c, std::int64_t rows, std::int64_t seq, std::int64_t i) {
  const std::int64_t offset = c.integer("offset", 0), place = c.origin % rows, all = c.integer("zigzag", 0);
  return offset + (all > 0 && i >= seq / 2 ? all - place - seq + i : place + i);
}

}  // namespace

void positions(const Call& c) {
  const std::int64_t rows = c.in[0].shape[0], dim = c.in[0].shape[1], seq = c.out[0].shape[0];
  if (c.has("partial") && c.origin >= rows) return;
  for (std::int64_t i = 0; i < c.out[0].size(); ++i)
    c.out[0][i] = c.in[0][row_of_position(c, rows, seq, i / dim) * dim + i % dim];
}

void positions_grad(const Call& c) {
  const std::int64_t rows = c.out[0].shape[0], dim = c.out[0].shape[1], seq = c.in[0].shape[0];
  for (std::int64_t i = 0; i < c.in[0].size(); ++i)
    c.out[0][row_of_position(c, rows, seq, i / dim) * dim + i % dim] = c.in[0][i];
}

void conv2d(const Call& c) {
  const Shape& y = c.out[0].shape;
  if (c.has("bias")) {
    for (std::int64_t i = 0; i < y.elements(); ++i) c.out[0][i] = c.in[2][channel_of(y, i)];
  }
  each_tap(c.in[0].shape, c.in[1].shape, y, c.attributes,
           [&](std::int64_t o, std::int64_t i, std::int64_t w) { c.out[0][o] += c.in[0][i] * c.in[1][w]; });
}

void conv2d_grad_input(const Call& c) {
  each_tap(c.out[0].shape, c.in[1].shape, c.in[0].shape, c.attributes,
           [&](std::int64_t o, std::int64_t i, std::int64_t w) { c.out[0][i] += c.in[0][o] * c.in[1][w]; });
}

void conv2d_grad_weight(const Call& c) {
  const Shape& y = c.in[1].shape;
  each_tap(c.in[0].shape, c.out[0].shape, y, c.attributes,
           [&](std::int64_t o, std::int64_t i, std::int64_t w) { c.out[0][w] += c.in[1][o] * c.in[0][i]; });
  if (c.has("bias")) {
    for (std::int64_t i = 0; i < y.elements(); ++i) c.out[1][channel_of(y, i)] += c.in[1][i];
  }
}

namespace {

/// Calls body(output index, input index) for every element of every pooling window; padding has none.
template <class Body>
void each_window(const Shape& x, const Shape& y, const Attributes& attributes, const Body& body) {
  const std::int64_t kernel = attributes.integer("kernel"), stride = attributes.integer("stride"),
                     padding = attributes.integer("padding");
  for (std::int64_t o = 0; o < y.elements(); ++o) {
    const std::int64_t plane = o / (y[2] * y[3]), left = o % y[3] * stride - padding,
                       top = o / y[3] % y[2] * stride - padding;
    for (std::int64_t k = 0; k < kernel * kernel; ++k) {
      const std::int64_t iy = top + k / kernel, ix = left + k % kernel;
      if (iy >= 0 && iy < x[2] && ix >= 0 && ix < x[3]) body(o, (plane * x[2] + iy) * x[3] + ix);
    }
  }
}

}  // namespace

void max_pool2d(const Call& c) {
  const Tensor& x = c.in[0];
  const std::int64_t plane = x.shape[2] * x.shape[3];
  for (double& index : c.out[1].data) index = -1;
  each_window(x.shape, c.out[0].shape, c.attributes, [&](std::int64_t o, std::int64_t i) {
    if (c.out[1][o] >= 0 && (x[i] <= c.out[0][o] || std::isnan(c.out[0][o]))) return;  // the first of equals, or NaN
    c.out[0][o] = x[i];
    c.out[1][o] = static_cast<double>(i % plane);
  });
}

void max_pool2d_grad(const Call& c) {
  const Shape &y = c.in[0].shape, &x = c.out[0].shape;
  for (std::int64_t o = 0; o < y.elements(); ++o) {
    c.out[0][o / (y[2] * y[3]) * x[2] * x[3] + static_cast<std::int64_t>(c.in[1][o])] += c.in[0][o];
  }
}

void avg_pool2d(const Call& c) {
  const double area = static_cast<double>(c.attributes.integer("kernel") * c.attributes.integer("kernel"));
  each_window(c.in[0].shape, c.out[0].shape, c.attributes,
              [&](std::int64_t o, std::int64_t i) { c.out[0][o] += c.in[0][i] / area; });
}

void avg_pool2d_grad(const Call& c) {
  const double area = static_cast<double>(c.attributes.integer("kernel") * c.attributes.integer("kernel"));
  each_window(c.out[0].shape, c.in[0].shape, c.attributes,
              [&](std::int64_t o, std::int64_t i) { c.out[0][i] += c.in[0][o] / area; });
}

}  // namespace trainer::reference
