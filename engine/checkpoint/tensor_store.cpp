// Tensors put together from pieces.
#include "engine/checkpoint/tensor_store.h"

#include <algorithm>
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
  const SafetensorsHeader header = open(store, path);
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
    const std::string path = directory + "/" + info.name;
    entries.push_back(by_name(headers.emplace_back(open(store, path))));
    const std::int64_t bytes = file_size(store.files_.back().descriptor, path);
    if (bytes != info.bytes) {
      throw DataError(path + ": " + std::to_string(bytes) + " bytes, where the manifest says " + std::to_string(info.bytes));
    }
  }
  for (const StoredTensor& tensor : manifest.tensors) {
    std::vector<Part> parts;
    for (const Piece& piece : tensor.pieces) {
      const TensorEntry& entry = entry_of(tensor.info, piece.range, entries[piece.file], store.files_[piece.file].path);
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
    const File& file = files_[part->file];
    read_at(file.descriptor, part->offset + (first - part->range.first) * size, next, static_cast<std::size_t>(bytes), file.path);
    next += bytes;
    first = end;
  }
}

SafetensorsHeader TensorStore::open(TensorStore& store, const std::string& path) {
  store.files_.push_back({path, open_for_reading(path)});
  return parse_safetensors(MappedFile(path).bytes(), path);
}

void TensorStore::add(TensorInfo info, std::vector<Part> parts) {
  index_.emplace(info.name, tensors_.size());
  tensors_.push_back(std::move(info));
  parts_.push_back(std::move(parts));
}

}  // namespace trainer::checkpoint
