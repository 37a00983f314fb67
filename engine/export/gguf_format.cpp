// How a GGUF file is written: the header is laid out first, then tensors stream through in order.
#include "engine/export/gguf_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "engine/core/check.h"
#include "engine/core/narrow.h"

namespace trainer::exporting {
namespace {

static_assert(std::endian::native == std::endian::little);

// Types of values, and of tensors, by their numbers in the format.
enum : std::uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9 };
constexpr std::uint32_t kVersion = 3;
constexpr std::int64_t kQ8Bytes = 2 + kGgufBlock;

std::uint32_t type_of(Precision precision) {
  switch (precision) {
    case Precision::f32:
      return 0;
    case Precision::f16:
      return 1;
    case Precision::q8_0:
      return 8;
    case Precision::bf16:
      return 30;
  }
  return 0;
}

/// The header as bytes.
class Bytes {
 public:
  template <typename T>
  void number(T value) {
    const auto* bytes = reinterpret_cast<const char*>(&value);
    text_.append(bytes, sizeof value);
  }
  void string(std::string_view text) {
    number(static_cast<std::uint64_t>(text.size()));
    text_.append(text);
  }
  void value(const GgufValue& value) {
    std::visit([this](const auto& one) { put(one); }, value);
  }
  std::string take() { return std::move(text_); }

 private:
  void put(std::uint32_t value) { number(std::uint32_t{kU32}), number(value); }
  void put(float value) { number(std::uint32_t{kF32}), number(value); }
  void put(bool value) { number(std::uint32_t{kBool}), number(static_cast<std::uint8_t>(value)); }
  void put(const std::string& value) { number(std::uint32_t{kString}), string(value); }
  void put(const std::vector<std::int32_t>& list) {
    begin(kI32, list.size());
    for (const std::int32_t one : list) number(one);
  }
  void put(const std::vector<bool>& list) {
    begin(kBool, list.size());
    for (const bool one : list) number(static_cast<std::uint8_t>(one));
  }
  void put(const std::vector<float>& list) {
    begin(kF32, list.size());
    for (const float one : list) number(one);
  }
  void put(const std::vector<std::string>& list) {
    begin(kString, list.size());
    for (const std::string& one : list) string(one);
  }
  void begin(std::uint32_t type, std::size_t size) {
    number(std::uint32_t{kArray});
    number(type);
    number(static_cast<std::uint64_t>(size));
  }

  std::string text_;
};

std::int64_t aligned(std::int64_t bytes) { return (bytes + kGgufBlock - 1) / kGgufBlock * kGgufBlock; }

std::string header_of(const std::vector<GgufKey>& keys, const std::vector<GgufTensor>& tensors) {
  Bytes bytes;
  for (const char c : {'G', 'G', 'U', 'F'}) bytes.number(c);
  bytes.number(kVersion);
  bytes.number(static_cast<std::uint64_t>(tensors.size()));
  bytes.number(static_cast<std::uint64_t>(keys.size()));
  for (const GgufKey& key : keys) {
    bytes.string(key.name);
    bytes.value(key.value);
  }
  std::int64_t at = 0;
  for (const GgufTensor& tensor : tensors) {
    CHECK(static_cast<std::int64_t>(tensor.name.size()) <= kMostGgufName, tensor.name + " is too long a name");
    bytes.string(tensor.name);
    const auto sizes = tensor.shape.sizes();
    bytes.number(static_cast<std::uint32_t>(sizes.size()));
    for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) bytes.number(static_cast<std::uint64_t>(*size));
    bytes.number(type_of(tensor.precision));
    bytes.number(static_cast<std::uint64_t>(at));
    at += aligned(tensor.bytes());
  }
  return bytes.take();
}

}  // namespace

std::int64_t gguf_bytes(Precision precision, std::int64_t count) {
  if (precision != Precision::q8_0) return count * (precision == Precision::f32 ? 4 : 2);
  CHECK(count % kGgufBlock == 0, "q8_0 has blocks of 32");
  return count / kGgufBlock * kQ8Bytes;
}

std::int64_t GgufTensor::bytes() const { return gguf_bytes(precision, shape.elements()); }

void quantize_q8_0(std::span<const float> values, std::vector<std::byte>& out) {
  out.resize(static_cast<std::size_t>(gguf_bytes(Precision::q8_0, static_cast<std::int64_t>(values.size()))));
  std::byte* next = out.data();
  for (std::size_t first = 0; first < values.size(); first += static_cast<std::size_t>(kGgufBlock)) {
    const std::span<const float> block = values.subspan(first, static_cast<std::size_t>(kGgufBlock));
    float largest = 0;
    for (const float value : block) largest = std::max(largest, std::abs(value));
    const float scale = largest / 127.0F, inverse = scale != 0 ? 1.0F / scale : 0.0F;
    from_f32(&scale, 1, DType::f16, next);
    next += size_of(DType::f16);
    for (const float value : block)
      *next++ = static_cast<std::byte>(static_cast<std::int8_t>(std::round(value * inverse)));
  }
}

void dequantize_q8_0(std::span<const std::byte> blocks, std::span<float> out) {
  const std::byte* next = blocks.data();
  for (std::size_t first = 0; first < out.size(); first += static_cast<std::size_t>(kGgufBlock)) {
    float scale = 0;
    to_f32(DType::f16, next, 1, &scale);
    next += size_of(DType::f16);
    for (float& value : out.subspan(first, static_cast<std::size_t>(kGgufBlock)))
      value = scale * static_cast<float>(static_cast<std::int8_t>(*next++));
  }
}

GgufWriter::GgufWriter(std::string path, const std::vector<GgufKey>& keys, const std::vector<GgufTensor>& tensors)
    : path_(std::move(path)), file_(create_file(path_)) {
  const std::string header = header_of(keys, tensors);
  put(header.data(), header.size());
  align();
}

void GgufWriter::write(std::span<const std::byte> bytes) { put(bytes.data(), bytes.size()); }

void GgufWriter::end_tensor() { align(); }

std::int64_t GgufWriter::finish() {
  sync_file(file_, path_);
  file_.close();
  return total_;
}

void GgufWriter::put(const void* data, std::size_t bytes) {
  write_all(file_, data, bytes, path_);
  total_ += static_cast<std::int64_t>(bytes);
}

void GgufWriter::align() {
  const std::string zeros(static_cast<std::size_t>(aligned(total_) - total_), '\0');
  put(zeros.data(), zeros.size());
}

}  // namespace trainer::exporting
