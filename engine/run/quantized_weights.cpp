// Blocks are coded one after the other; loops over the elements of a block are plain enough for the compiler's vectors.
#include "engine/run/quantized_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "engine/core/check.h"
#include "engine/core/index.h"
#include "engine/run/state_blocks.h"
#include "kernels/quantized.h"

namespace trainer {
namespace {

using kernels::kNf4Values;

constexpr auto kBlock = static_cast<std::size_t>(kQuantizedBlock);
using Block = std::array<float, kBlock>;

std::size_t bytes_of(QuantizedPart::Kind kind, Quantization as, std::int64_t rows, std::int64_t in) {
  return size(shape_of(kind, as, rows, in).elements());
}

/// Block `b` of a row, with zeros behind its last column.
Block block_of(const float* row, std::int64_t in, std::int64_t b) {
  Block block{};
  std::copy_n(row + b * kQuantizedBlock, std::min(kQuantizedBlock, in - b * kQuantizedBlock), block.data());
  return block;
}

float largest(const float* values, std::size_t count) {
  float most = 0;
  for (std::size_t i = 0; i < count; ++i) most = std::max(most, std::fabs(values[i]));
  return most;
}

/// Halfway between the values of neighbouring codes.
constexpr std::array<float, 15> make_bounds() {
  std::array<float, 15> bounds{};
  for (std::size_t i = 0; i < bounds.size(); ++i) bounds[i] = (kNf4Values[i] + kNf4Values[i + 1]) / 2;
  return bounds;
}
constexpr std::array<float, 15> kBounds = make_bounds();

/// A block of nf4 as 32 bytes.
void code_block(const Block& block, float scale, unsigned char* codes) {
  std::array<std::int32_t, kBlock> code{};
  Block x;
  for (std::size_t i = 0; i < kBlock; ++i) x[i] = block[i] / scale;
  for (const float bound : kBounds)
    for (std::size_t i = 0; i < kBlock; ++i) code[i] += x[i] > bound;
  if (scale == 0) code.fill(kernels::kNf4Zero);
  for (std::size_t i = 0; i < kBlock / 2; ++i)
    codes[i] = static_cast<unsigned char>(code[i] | code[i + kBlock / 2] << 4);
}

/// Scales of one column of blocks: a group. `scales` are `stride` bytes apart.
void code_group(const std::vector<float>& most, unsigned char* scales, std::int64_t stride, float* group) {
  double sum = 0;
  for (const float value : most) sum += value;
  const auto mean = static_cast<float>(sum / static_cast<double>(most.size()));
  std::vector<float> apart;
  for (const float value : most) apart.push_back(value - mean);
  std::vector<unsigned char> codes(most.size());
  encode_blocks(true, apart.data(), static_cast<std::int64_t>(apart.size()), codes.data(), group);
  group[1] = mean;
  for (std::size_t i = 0; i < codes.size(); ++i) scales[static_cast<std::int64_t>(i) * stride] = codes[i];
}

float scale_of(const float* group, unsigned char code) { return group[1] + kernels::kScaleValues.of[code] * group[0]; }

QuantizedRows empty_parts(Quantization as, std::int64_t rows, std::int64_t in) {
  using Kind = QuantizedPart::Kind;
  QuantizedRows parts;
  parts.codes.resize(bytes_of(Kind::codes, as, rows, in));
  parts.scales.resize(bytes_of(Kind::scales, as, rows, in));
  if (as == Quantization::nf4) parts.groups.resize(bytes_of(Kind::groups, as, rows, in));
  return parts;
}

void quantize_int8(const float* w, std::int64_t rows, std::int64_t in, QuantizedRows& parts) {
  const std::int64_t width = quantized_blocks(in) * kQuantizedBlock;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float scale = largest(w + r * in, size(in)) / 127;
    std::memcpy(parts.scales.data() + r * 4, &scale, 4);
    if (scale == 0) continue;
    for (std::int64_t i = 0; i < in; ++i) {
      const float code = std::clamp(std::nearbyint(w[r * in + i] / scale), -127.0F, 127.0F);
      parts.codes[size(r * width + i)] = static_cast<unsigned char>(static_cast<std::int8_t>(code));
    }
  }
}

/// Rows of one group.
void quantize_nf4(const float* w, std::int64_t rows, std::int64_t in, unsigned char* codes, unsigned char* scales,
                  unsigned char* groups) {
  const std::int64_t blocks = quantized_blocks(in);
  std::vector<float> most(size(rows));
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (std::int64_t r = 0; r < rows; ++r) most[size(r)] = largest(block_of(w + r * in, in, b).data(), kBlock);
    float group[2];
    code_group(most, scales + b, blocks, group);
    std::memcpy(groups + b * 8, group, 8);
    for (std::int64_t r = 0; r < rows; ++r)
      code_block(block_of(w + r * in, in, b), scale_of(group, scales[r * blocks + b]),
                 codes + (r * blocks + b) * kQuantizedBlock / 2);
  }
}

}  // namespace

QuantizedRows quantize_rows(Quantization as, const float* w, std::int64_t rows, std::int64_t in) {
  CHECK(as != Quantization::none, "rows are quantized");
  QuantizedRows parts = empty_parts(as, rows, in);
  if (as == Quantization::int8) {
    quantize_int8(w, rows, in, parts);
    return parts;
  }
  const std::int64_t blocks = quantized_blocks(in);
  for (std::int64_t r = 0; r < rows; r += kQuantizedGroup)
    quantize_nf4(w + r * in, std::min(kQuantizedGroup, rows - r), in,
                 parts.codes.data() + r * blocks * kQuantizedBlock / 2, parts.scales.data() + r * blocks,
                 parts.groups.data() + r / kQuantizedGroup * blocks * 8);
  return parts;
}

std::vector<float> dequantize_rows(Quantization as, const QuantizedRows& parts, std::int64_t rows, std::int64_t in) {
  const std::int64_t blocks = quantized_blocks(in);
  std::vector<float> w(size(rows * in));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < in; ++i) {
      const std::int64_t b = i / kQuantizedBlock, inside = i % kQuantizedBlock;
      float scale = 0;
      if (as == Quantization::int8) {
        std::memcpy(&scale, parts.scales.data() + r * 4, 4);
        const auto code = static_cast<std::int8_t>(parts.codes[size(r * blocks * kQuantizedBlock + i)]);
        w[size(r * in + i)] = static_cast<float>(code) * scale;
        continue;
      }
      float group[2];
      std::memcpy(group, parts.groups.data() + (r / kQuantizedGroup * blocks + b) * 8, 8);
      scale = scale_of(group, parts.scales[size(r * blocks + b)]);
      const unsigned char byte = parts.codes[size((r * blocks + b) * kQuantizedBlock / 2 + inside % 32)];
      w[size(r * in + i)] = kNf4Values[inside < 32 ? byte & 15 : byte >> 4] * scale;
    }
  return w;
}

}  // namespace trainer
