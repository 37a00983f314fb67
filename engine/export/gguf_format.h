// The GGUF format, version 3, little-endian: header, metadata (typed keys), infos of the tensors, then their bytes,
// each at a multiple of 32 from the start of the data. Dims stand fastest first. Source: github.com/ggml-org/ggml,
// docs/gguf.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/core/file.h"
#include "engine/core/shape.h"
#include "engine/export/export.h"

namespace trainer::exporting {

using GgufValue = std::variant<std::uint32_t, float, bool, std::string, std::vector<std::int32_t>, std::vector<bool>,
                               std::vector<float>, std::vector<std::string>>;

struct GgufKey {
  std::string name;
  GgufValue value;
};

struct GgufTensor {
  std::string name;
  Precision precision = Precision::f32;
  Shape shape;  ///< as PyTorch has it: the last dim is the fastest

  std::int64_t bytes() const;
};

inline constexpr std::int64_t kGgufBlock = 32;     ///< weights that share a scale in q8_0; also the alignment of data
inline constexpr std::int64_t kMostGgufName = 63;  ///< characters of a tensor's name that readers take

/// Bytes of `count` weights. REQUIRES: whole blocks.
std::int64_t gguf_bytes(Precision precision, std::int64_t count);

/// q8_0: for each 32 weights the scale d = max|x| / 127 as f16, then x / d as i8, halves rounded away from zero.
/// REQUIRES: whole blocks. As ggml's reference does it, to the bit.
void quantize_q8_0(std::span<const float> values, std::vector<std::byte>& out);

/// The weights that such blocks stand for.
void dequantize_q8_0(std::span<const std::byte> blocks, std::span<float> out);

/// Writes a file front to back: everything but the data when made, then the tensors in their order.
class GgufWriter {
 public:
  GgufWriter(std::string path, const std::vector<GgufKey>& keys, const std::vector<GgufTensor>& tensors);

  /// Appends bytes to the tensor whose turn it is.
  void write(std::span<const std::byte> bytes);
  /// Ends the tensor: what follows is aligned.
  void end_tensor();
  /// Waits until the file is on the disk; returns its size.
  std::int64_t finish();

 private:
  void put(const void* data, std::size_t bytes);
  void align();

  std::string path_;
  Descriptor file_;
  std::int64_t total_ = 0;
};

}  // namespace trainer::exporting
