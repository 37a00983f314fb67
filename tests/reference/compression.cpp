// Compression of gradients, as bytes; and the averaging of local SGD. Sums and scales are rounded to f32 where the
// contract stores f32, so that codes and choices are the kernels' own but for what lies within a rounding of a tie.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "tests/reference/reference.h"

namespace trainer::reference {

namespace {

std::int64_t padded(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

double rounded(double x) { return static_cast<double>(static_cast<float>(x)); }

void put(Tensor& bytes, std::int64_t at, std::uint32_t word) {
  for (int i = 0; i < 4; ++i) bytes[at + i] = word >> (8 * i) & 255;
}
std::uint32_t word_at(const Tensor& bytes, std::int64_t at) {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= static_cast<std::uint32_t>(bytes[at + i]) << (8 * i);
  return word;
}
void put_f32(Tensor& bytes, std::int64_t at, double x) {
  put(bytes, at, std::bit_cast<std::uint32_t>(static_cast<float>(x)));
}
double f32_at(const Tensor& bytes, std::int64_t at) {
  return static_cast<double>(std::bit_cast<float>(word_at(bytes, at)));
}

struct Chunk {
  std::int64_t elements, scales, bytes;  ///< where the scales begin; of the whole
  explicit Chunk(std::int64_t n) : elements(n), scales(padded(n)), bytes(scales + padded(4 * ((n + 255) / 256))) {}
};

/// The value of element i of chunk `index`.
double int8_value(const Tensor& bytes, const Chunk& chunk, std::int64_t index, std::int64_t i) {
  const double byte = bytes[index * chunk.bytes + i];
  return (byte < 128 ? byte : byte - 256) * f32_at(bytes, index * chunk.bytes + chunk.scales + i / 256 * 4);
}

/// Gradient plus residual, if there is one, as an f32.
double summed(const Call& c, std::int64_t i) {
  return c.in.size() == 1 ? c.in[0][i] : rounded(c.in[0][i] + c.in[1][i]);
}

void quantize_block(const Call& c, const Chunk& chunk, std::int64_t index, std::int64_t first) {
  Tensor& codes = c.out[c.in.size() - 1];
  const std::int64_t last = std::min(chunk.elements, first + 256), from = index * chunk.elements;
  double largest = 0;
  bool finite = true;
  for (std::int64_t i = first; i < last; ++i) {
    finite = finite && std::isfinite(summed(c, from + i));
    largest = std::fmax(largest, std::abs(summed(c, from + i)));
  }
  const double scale = !finite ? std::nan("") : largest / 127 < 0x1p-126 ? 0 : rounded(largest / 127);
  const double inverse = scale > 0 ? rounded(127 / largest) : 0;
  for (std::int64_t i = first; i < last && finite; ++i) {
    const double a = summed(c, from + i), code = std::nearbyint(a * inverse);
    codes[index * chunk.bytes + i] = code < 0 ? code + 256 : code;
    if (c.in.size() == 2) c.out[0][from + i] = a - code * scale;
  }
  put_f32(codes, index * chunk.bytes + chunk.scales + first / 256 * 4, scale);
}

}  // namespace

void compress_bf16(const Call& c) {
  for (std::int64_t i = 0; i < c.in[0].size(); ++i) {
    const double a = summed(c, i);
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(static_cast<float>(a));
    const float up = std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u);
    c.out[1][i] = std::isnan(a) ? a : static_cast<double>(up);
    c.out[0][i] = std::isfinite(c.out[1][i]) ? a - c.out[1][i] : c.in[1][i];
  }
}

void quantize_int8(const Call& c) {
  const std::int64_t slices = c.integer("slices", 1);
  const Chunk chunk(c.in[0].size() / slices);
  if (c.in.size() == 2) c.out[0].data = c.in[1].data;
  for (std::int64_t index = 0; index < slices; ++index)
    for (std::int64_t first = 0; first < chunk.elements; first += 256) quantize_block(c, chunk, index, first);
}

void dequantize_int8(const Call& c) {
  const Chunk chunk(c.out[0].size() / c.integer("slices", 1));
  for (std::int64_t i = 0; i < c.out[0].size(); ++i)
    c.out[0][i] = int8_value(c.in[0], chunk, i / chunk.elements, i % chunk.elements);
}

void dequantize_sum_int8(const Call& c) {
  const Chunk chunk(c.out[0].size());
  for (std::int64_t index = 0; index < c.integer("slices", 1); ++index)
    for (std::int64_t i = 0; i < chunk.elements; ++i) c.out[0][i] += int8_value(c.in[0], chunk, index, i);
}

void top_k_compress(const Call& c) {
  const std::int64_t n = c.in[0].size(), k = c.attributes.integer("k");
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const auto size = [&](std::int64_t i) { return std::isnan(summed(c, i)) ? HUGE_VAL : std::abs(summed(c, i)); };
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    if (std::isnan(summed(c, a)) != std::isnan(summed(c, b))) return std::isnan(summed(c, a));
    return size(a) > size(b);
  });
  order.resize(static_cast<std::size_t>(k));
  std::sort(order.begin(), order.end());
  for (std::int64_t i = 0; i < n; ++i) c.out[0][i] = std::isfinite(summed(c, i)) ? summed(c, i) : 0;
  for (std::int64_t j = 0; j < k; ++j) {
    const std::int64_t i = order[static_cast<std::size_t>(j)];
    put(c.out[1], 4 * j, static_cast<std::uint32_t>(i));
    put_f32(c.out[1], padded(4 * k) + 4 * j, summed(c, i));
    c.out[0][i] = 0;
  }
}

void top_k_sum(const Call& c) {
  const std::int64_t k = c.attributes.integer("k");
  for (std::int64_t rank = 0; rank < c.attributes.integer("ranks"); ++rank)
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int64_t at = rank * 2 * padded(4 * k) + 4 * j;
      c.out[0][word_at(c.in[0], at)] += f32_at(c.in[0], at + padded(4 * k));
    }
}

void outer_gradient(const Call& c) {
  for (std::int64_t i = 0; i < c.in[0].size(); ++i) c.out[0][i] = c.in[0][i] - c.in[1][i];
}

void outer_step(const Call& c) {
  const double factor = c.attributes.real("factor"), lr = c.attributes.real("lr"), mu = c.attributes.real("momentum");
  for (std::int64_t i = 0; i < c.in[0].size(); ++i) {
    const double delta = factor * c.in[2][i], momentum = mu * c.in[1][i] + delta;
    c.out[1][i] = momentum;
    c.out[0][i] = c.out[2][i] = c.in[0][i] - lr * (c.has("nesterov") ? delta + mu * momentum : momentum);
  }
}

void apply_delayed(const Call& c) {
  for (std::int64_t i = 0; i < c.in[0].size(); ++i)
    c.out[0][i] = c.in[0][i] + c.attributes.real("factor") * c.in[2][i] - c.in[1][i];
}

}  // namespace trainer::reference
