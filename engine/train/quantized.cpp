// Both read whole groups of rows and quantize them again.
#include "engine/train/quantized.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/index.h"
#include "engine/core/narrow.h"
#include "engine/run/quantized_weights.h"

namespace trainer {
namespace {

/// Elements [first, last) of a matrix as f32.
std::vector<float> read_f32(const checkpoint::TensorStore& tensors, const std::string& matrix, std::int64_t first,
                            std::int64_t last) {
  const DType dtype = tensors.find(matrix)->dtype;
  std::vector<std::byte> raw(size((last - first) * size_of(dtype)));
  std::vector<float> values(size(last - first));
  tensors.read(matrix, first, last - first, raw.data());
  to_f32(dtype, raw.data(), last - first, values.data());
  return values;
}

/// Elements of a part that are made of rows [first, first + count) of its matrix, which begin with a group.
ElementRange made_of_rows(const HeldPart& part, std::int64_t first, std::int64_t count) {
  const bool groups = part.part.kind == QuantizedPart::Kind::groups;
  const std::int64_t begin = groups ? first / kQuantizedGroup : first, rows = groups ? 1 : count;
  return {begin * part.shape[1], (begin + rows) * part.shape[1]};
}

std::vector<Piece> pieces_within(const HeldPart& part, ElementRange range) {
  std::vector<Piece> result;
  for (const Piece& piece : part.pieces)
    for (const Piece& inside : clip_global(piece, range)) result.push_back(inside);
  return result;
}

/// `all`: the elements of `range`.
void write(const HeldPart& part, ElementRange range, const Piece& piece, const std::vector<unsigned char>& all) {
  std::vector<unsigned char> bytes(size(piece.elements()));
  for (std::int64_t r = 0; r < piece.repeat; ++r)
    std::copy_n(all.data() + (piece.global - range.first + r * piece.global_stride), piece.count,
                bytes.data() + r * piece.count);
  part.buffer.write(piece, bytes.data());
}

}  // namespace

void load_quantized(const checkpoint::TensorStore& tensors, const std::string& source,
                    const std::vector<HeldPart>& parts) {
  const QuantizedPart& matrix = parts.front().part;
  const std::int64_t out = matrix.shape[0], in = matrix.shape[1];
  for (std::int64_t first = 0; first < out; first += kQuantizedGroup) {
    const std::int64_t count = std::min(kQuantizedGroup, out - first);
    std::vector<std::pair<const HeldPart*, std::vector<Piece>>> held;
    for (const HeldPart& part : parts) held.emplace_back(&part, pieces_within(part, made_of_rows(part, first, count)));
    if (std::ranges::all_of(held, [](const auto& one) { return one.second.empty(); })) continue;
    const std::vector<float> rows = read_f32(tensors, matrix.matrix, first * in, (first + count) * in);
    const auto bad = std::ranges::find_if(rows, [](float value) { return !std::isfinite(value); });
    if (bad != rows.end())
      throw DataError(fmt::format("{}: {} (element {}) is {}, which cannot be quantized", source, matrix.matrix,
                                  first * in + (bad - rows.begin()), *bad));
    const QuantizedRows quantized = quantize_rows(matrix.as, rows.data(), count, in);
    for (const auto& [part, pieces] : held)
      for (const Piece& piece : pieces)
        write(*part, made_of_rows(*part, first, count), piece, quantized.of(part->part.kind));
  }
}

void read_dequantized(const checkpoint::TensorStore& tensors, const std::string& matrix, Quantization as,
                      const checkpoint::Range& range, float* out) {
  const Shape& shape = tensors.find(matrix)->shape;
  const std::int64_t columns = shape[1], group = kQuantizedGroup * columns;
  for (std::int64_t r = 0; r < range.repeat; ++r)
    for (std::int64_t at = range.first + r * range.stride, end = range.last + r * range.stride; at < end;) {
      const std::int64_t begin = at / group * group, last = std::min(begin + group, shape.elements()),
                         count = std::min(end, last) - at, rows = (last - begin) / columns;
      const std::vector<float> plain = read_f32(tensors, matrix, begin, last);
      const std::vector<float> values =
          dequantize_rows(as, quantize_rows(as, plain.data(), rows, columns), rows, columns);
      out = std::copy_n(values.data() + (at - begin), count, out);
      at += count;
    }
}

}  // namespace trainer
