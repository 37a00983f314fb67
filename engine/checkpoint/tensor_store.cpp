// Tensors put together from pieces.
#include "engine/checkpoint/tensor_store.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "engine/core/check.h"
#include "engine/core/error.h"

namespace trainer::checkpoint {
namespace {

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
const TensorEntry& entry_of(const TensorInfo& info, Range range, const std::unordered_map<std::string_view, const TensorEntry*>& entries,
                            const std::string& path) {
  const std::string key = piece_key(info, range);
  const auto found = entries.find(key);
  if (found == entries.end()) throw DataError(path + ": has no tensor " + key + ", which the manifest lists");
  const TensorEntry& entry = *found->second;
  const bool whole = key == info.name;
  const auto sizes = info.shape.sizes();
  const std::vector<std::int64_t> shape =
      whole ? std::vector<std::int64_t>(sizes.begin(), sizes.end()) : std::vector<std::int64_t>{range.size()};
  if (entry.dtype != info.dtype || entry.shape != shape) {
    throw DataError(path + ": tensor " + key + " is " + entry.dtype_name + " " + text_of(entry.shape) + ", where the manifest says " +
                    std::string(name_of(info.dtype)) + " " + text_of(shape));
  }
  return entry;
}

}  // namespace

TensorStore TensorStore::from_safetensors(const std::string& path) {
  TensorStore store;
  store.path_ = path;
  store.files_.emplace_back(path);
  const SafetensorsHeader header = parse_safetensors(store.files_[0].bytes(), path);
  for (const TensorEntry& entry : header.tensors) {
    if (!entry.dtype || entry.shape.size() > Shape::kMaxDims) {
      store.foreign_.push_back(entry.name + ": " + entry.dtype_name + " " + text_of(entry.shape));
      continue;
    }
    store.add({entry.name, *entry.dtype, Shape(entry.shape)}, {{{0, entry.elements()}, 0, entry.first}});
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
    const MappedFile& file = store.files_.emplace_back(directory + "/" + info.name);
    if (static_cast<std::int64_t>(file.bytes().size()) != info.bytes) {
      throw DataError(file.path() + ": " + std::to_string(file.bytes().size()) + " bytes, where the manifest says " +
                      std::to_string(info.bytes));
    }
    entries.push_back(by_name(headers.emplace_back(parse_safetensors(file.bytes(), file.path()))));
  }
  for (const StoredTensor& tensor : manifest.tensors) {
    std::vector<Part> parts;
    for (const Piece& piece : tensor.pieces) {
      const TensorEntry& entry = entry_of(tensor.info, piece.range, entries[piece.file], store.files_[piece.file].path());
      parts.push_back({piece.range, piece.file, entry.first});
    }
    store.add(tensor.info, std::move(parts));
  }
  return store;
}

const TensorInfo* TensorStore::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

void TensorStore::read(std::string_view name, std::int64_t first, std::int64_t count, void* out) const {
  const auto found = index_.find(std::string(name));
  if (found == index_.end()) throw DataError(path_ + ": has no tensor " + std::string(name));
  const TensorInfo& info = tensors_[found->second];
  CHECK(first >= 0 && count >= 0 && first + count <= info.shape.elements(), "a range outside of tensor " + info.name);
  const std::vector<Part>& parts = parts_[found->second];
  const std::int64_t size = size_of(info.dtype), last = first + count;
  auto part = std::upper_bound(parts.begin(), parts.end(), first, [](std::int64_t at, const Part& each) { return at < each.range.last; });
  for (auto* next = static_cast<std::byte*>(out); first < last; ++part) {
    const std::int64_t end = std::min(last, part->range.last);
    const std::int64_t bytes = (end - first) * size;
    std::memcpy(next, files_[part->file].bytes().data() + part->offset + (first - part->range.first) * size,
                static_cast<std::size_t>(bytes));
    next += bytes;
    first = end;
  }
}

void TensorStore::add(TensorInfo info, std::vector<Part> parts) {
  index_.emplace(info.name, tensors_.size());
  tensors_.push_back(std::move(info));
  parts_.push_back(std::move(parts));
}

}  // namespace trainer::checkpoint
