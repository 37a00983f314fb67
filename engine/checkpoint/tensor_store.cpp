// How a flat range of a tensor is read from the pieces that hold it.
#include "engine/checkpoint/tensor_store.h"

#include <algorithm>
#include <cstring>

#include "engine/core/check.h"
#include "engine/core/error.h"

namespace trainer::checkpoint {
namespace {

constexpr std::size_t kKeptOpen = 16;  // files of a checkpoint; any number of ranks may have written it
constexpr std::int64_t kNear = 4;      // rows whose bytes are at least every fourth are read together

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (std::int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

std::unordered_map<std::string_view, const TensorEntry*> by_name(const SafetensorsHeader& header) {
  std::unordered_map<std::string_view, const TensorEntry*> index;
  for (const TensorEntry& entry : header.tensors) index.emplace(entry.name, &entry);
  return index;
}

// The entry of a piece, which must have the dtype and shape that the manifest says.
const TensorEntry& entry_of(const TensorInfo& info, const Range& range,
                            const std::unordered_map<std::string_view, const TensorEntry*>& entries,
                            const std::string& path) {
  const std::string key = piece_key(info, range);
  const auto found = entries.find(key);
  if (found == entries.end()) throw DataError(path + ": has no tensor " + key + ", which the manifest lists");
  const TensorEntry& entry = *found->second;
  const Shape stored = piece_shape(info, range);
  const std::vector<std::int64_t> shape(stored.sizes().begin(), stored.sizes().end());
  if (entry.dtype != info.dtype || entry.shape != shape) {
    throw DataError(path + ": tensor " + key + " is " + entry.dtype_name + " " + text_of(entry.shape) +
                    ", where the manifest says " + std::string(name_of(info.dtype)) + " " + text_of(shape));
  }
  return entry;
}

}  // namespace

TensorStore TensorStore::from_safetensors(const std::string& path) {
  TensorStore store;
  store.path_ = path;
  const SafetensorsHeader header = open(store, path);
  for (const TensorEntry& entry : header.tensors) {
    if (!entry.dtype || entry.shape.size() > Shape::kMaxDims) {
      store.foreign_.push_back(entry.name + ": " + entry.dtype_name + " " + text_of(entry.shape));
      continue;
    }
    store.add({entry.name, *entry.dtype, Shape(entry.shape)}, {{{{0, entry.elements()}, 0, entry.first}}});
  }
  return store;
}

TensorStore TensorStore::from_manifest(const std::string& directory, const Manifest& manifest) {
  TensorStore store;
  store.path_ = directory;
  std::vector<SafetensorsHeader> headers;
  std::vector<std::unordered_map<std::string_view, const TensorEntry*>> entries;
  headers.reserve(manifest.files.size());
  for (const FileInfo& info : manifest.files) {
    const std::string path = directory + "/" + info.name;
    if (holds_tensors(info)) {
      headers.push_back(open(store, path));
    } else {
      store.files_.push_back({path, open_for_reading(path)});
      headers.emplace_back();
    }
    entries.push_back(by_name(headers.back()));
    const std::int64_t bytes = file_size(store.files_.back().descriptor, path);
    if (store.files_.size() > kKeptOpen) store.files_.back().descriptor.close();
    if (bytes != info.bytes) {
      throw DataError(path + ": " + std::to_string(bytes) + " bytes, where the manifest says " +
                      std::to_string(info.bytes));
    }
  }
  for (const StoredTensor& tensor : manifest.tensors) {
    Parts parts;
    for (const Piece& piece : tensor.pieces) {
      const TensorEntry& entry = entry_of(tensor.info, piece.range, entries[piece.file], store.files_[piece.file].path);
      parts.parts.push_back({piece.range, piece.file, entry.first});
      if (piece.range.repeat > 1) parts.length = piece.range.stride;
    }
    for (Part& part : parts.parts)
      if (parts.length > 0) part.blocks = blocks_of(part.range, parts.length);
    store.add(tensor.info, std::move(parts));
  }
  return store;
}

const TensorInfo* TensorStore::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

void TensorStore::read(std::string_view name, const Range& range, void* out) const {
  const auto found = index_.find(std::string(name));
  if (found == index_.end()) throw DataError(path_ + ": has no tensor " + std::string(name));
  const TensorInfo& info = tensors_[found->second];
  CHECK(is_sound(range, info.shape.elements()), "tensor " + info.name + " has no elements " + str(range));
  if (range.count() == 0) return;
  const Parts& parts = parts_[found->second];
  const std::int64_t width = size_of(info.dtype);
  auto* bytes = static_cast<std::byte*>(out);
  if (parts.fp8()) return read_fp8(parts, info.shape, range, static_cast<float*>(out));
  if (parts.transposed) return read_transposed(parts.parts[0], info.shape, width, range, bytes);
  if (range.repeat > 1 && parts.length > 0 && parts.length != range.stride) {
    for (std::int64_t r = 0; r < range.repeat; ++r)
      read(name, {range.first + r * range.stride, range.last + r * range.stride}, bytes + r * range.count() * width);
    return;
  }
  const std::int64_t length = parts.length > 0 ? parts.length : range.repeat > 1 ? range.stride : info.shape.elements();
  for (const Block& wanted : blocks_of(range, length))
    for (const Part& part : parts.parts)
      for (const Block& block : parts.length > 0 ? part.blocks : blocks_of(part.range, length)) {
        const Block both = intersection(wanted, block);
        if (both.first_row < both.last_row && both.first < both.last)
          read_rows(part, range, both, length, width, bytes);
      }
}

// Rows that follow one another both in the file and in `out` are one read; those that lie near each other in the file
// are read together with what lies between.
void TensorStore::read_rows(const Part& part, const Range& range, const Block& block, std::int64_t length,
                            std::int64_t width, std::byte* out) const {
  const std::int64_t start = block.first_row * length + block.first, rows = block.last_row - block.first_row;
  const std::int64_t row_bytes = (block.last - block.first) * width;
  const std::int64_t file_step =
      rows == 1 ? row_bytes : (part.range.position(start + length) - part.range.position(start)) * width;
  const std::int64_t out_step =
      rows == 1 ? row_bytes : (range.position(start + length) - range.position(start)) * width;
  const std::int64_t from = part.offset + part.range.position(start) * width;
  std::byte* const to = out + range.position(start) * width;
  const File& file = files_[part.file];
  const Descriptor opened = file.descriptor ? Descriptor() : open_for_reading(file.path);
  const Descriptor& descriptor = file.descriptor ? file.descriptor : opened;
  const auto read_to = [&](std::int64_t at, std::byte* data, std::int64_t bytes) {
    read_at(descriptor, at, data, static_cast<std::size_t>(bytes), file.path);
  };
  if (file_step == row_bytes && out_step == row_bytes) return read_to(from, to, rows * row_bytes);
  const std::int64_t at_once =
      file_step <= kNear * row_bytes ? std::max<std::int64_t>(1, kRowsTogetherBytes / file_step) : 1;
  if (at_once == 1) {
    for (std::int64_t row = 0; row < rows; ++row) read_to(from + row * file_step, to + row * out_step, row_bytes);
    return;
  }
  std::vector<std::byte> together(static_cast<std::size_t>(std::min(at_once, rows) * file_step));
  for (std::int64_t row = 0; row < rows; row += at_once) {
    const std::int64_t num = std::min(at_once, rows - row);
    read_to(from + row * file_step, together.data(), (num - 1) * file_step + row_bytes);
    for (std::int64_t i = 0; i < num; ++i)
      std::memcpy(to + (row + i) * out_step, together.data() + i * file_step, static_cast<std::size_t>(row_bytes));
  }
}

SafetensorsHeader TensorStore::open(TensorStore& store, const std::string& path) {
  store.files_.push_back({path, open_for_reading(path)});
  return read_safetensors_header(store.files_.back().descriptor, path);
}

void TensorStore::add(TensorInfo info, Parts parts) {
  index_.emplace(info.name, tensors_.size());
  tensors_.push_back(std::move(info));
  parts_.push_back(std::move(parts));
}

}  // namespace trainer::checkpoint
