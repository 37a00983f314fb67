// Writing safetensors in one pass.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/safetensors.h"
#include "engine/core/check.h"

namespace trainer::checkpoint {
namespace {

constexpr std::size_t kAlignment = 8;                  // of the first tensor
constexpr std::int64_t kPart = std::int64_t{1} << 20;  // hashed, then written while it is in the cache

std::string_view safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::f64:
      return "F64";
    case DType::i32:
      return "I32";
    case DType::u8:
      return "U8";
  }
  return "?";
}

std::string header_of(const std::vector<TensorSpec>& tensors, const Metadata& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [key, value] : metadata) json["__metadata__"][key] = value;
  std::int64_t at = 0;
  for (const TensorSpec& tensor : tensors) {
    CHECK(tensor.name != "__metadata__" && !json.contains(tensor.name), "tensor name " + tensor.name + " is taken");
    const auto sizes = tensor.shape.sizes();
    json[tensor.name] = {{"dtype", safetensors_name(tensor.dtype)},
                         {"shape", std::vector<std::int64_t>(sizes.begin(), sizes.end())},
                         {"data_offsets", {at, at + tensor.bytes()}}};
    at += tensor.bytes();
  }
  std::string text = json.dump();
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xFF);
  return length + text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<TensorSpec> tensors, const Metadata& metadata)
    : path_(std::move(path)), order_(std::move(tensors)), file_(create_file(path_)) {
  std::stable_sort(order_.begin(), order_.end(),
                   [](const TensorSpec& a, const TensorSpec& b) { return size_of(a.dtype) > size_of(b.dtype); });
  const std::string header = header_of(order_, metadata);
  CHECK(static_cast<std::int64_t>(header.size()) - 8 <= kMaxHeaderBytes, path_ + ": too many tensors for one file");
  put(header.data(), static_cast<std::int64_t>(header.size()));
  skip_complete();
}

void SafetensorsWriter::write(std::string_view name, const void* data, std::int64_t bytes) {
  if (bytes == 0) return;
  CHECK(current_ < order_.size() && order_[current_].name == name,
        path_ + ": " + std::string(name) + " is written out of order");
  CHECK(written_ + bytes <= order_[current_].bytes(), path_ + ": " + std::string(name) + " is longer than declared");
  put(data, bytes);
  written_ += bytes;
  skip_complete();
}

SafetensorsWriter::Written SafetensorsWriter::finish() {
  CHECK(current_ == order_.size(),
        path_ + ": " + (current_ < order_.size() ? order_[current_].name : "") + " is not complete");
  sync_file(file_, path_);
  file_.close();
  return {total_, checksum_.hex()};
}

void SafetensorsWriter::put(const void* data, std::int64_t bytes) {
  const char* next = static_cast<const char*>(data);
  for (std::int64_t done = 0; done < bytes; done += kPart) {
    const std::size_t part = static_cast<std::size_t>(std::min(kPart, bytes - done));
    checksum_.add(next + done, part);
    write_all(file_, next + done, part, path_);
  }
  total_ += bytes;
}

void SafetensorsWriter::skip_complete() {
  while (current_ < order_.size() && written_ == order_[current_].bytes()) {
    ++current_;
    written_ = 0;
  }
}

}  // namespace trainer::checkpoint
