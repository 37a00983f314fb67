// The safetensors format, for reader and writer: 8 bytes little-endian length N of a JSON header, the header,
// then the tensors' bytes without holes. The header maps a name to {"dtype", "shape", "data_offsets": [first, last)}
// counted from the header's end, and "__metadata__" to a map of strings. Source: github.com/huggingface/safetensors.
//
// The reader trusts nothing: every length is checked against the file before it is used, names are unique, tensors
// lie end to end and fill the file. What it refuses is a DataError that names the file, the offset and the tensor.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/checkpoint/checksum.h"
#include "engine/core/dtype.h"
#include "engine/core/file.h"
#include "engine/core/shape.h"

namespace trainer::checkpoint {

/// Longest header, in bytes, that is read; that of the reference implementation.
inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// One tensor of a file, as it stands there: files of others hold dtypes and ranks that the engine has not.
struct TensorEntry {
  std::string name;
  std::string dtype_name;      ///< as "F32"
  std::optional<DType> dtype;  ///< nothing if the engine has no such dtype
  std::vector<std::int64_t> shape;
  std::int64_t first = 0, last = 0;  ///< bytes [first, last) from the start of the file

  std::int64_t elements() const;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in the order of their bytes
  Metadata metadata;
};

/// Checks and reads the header of a file whose bytes are `file`; `path` is for messages.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& path);
/// The same of an open file, of which only the header is read.
SafetensorsHeader read_safetensors_header(const Descriptor& file, const std::string& path);

/// A mapped file. Views live as long as the object; any number of threads may read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorEntry>& tensors() const { return header_.tensors; }
  const Metadata& metadata() const { return header_.metadata; }
  /// The tensor of that name, or null.
  const TensorEntry* find(std::string_view name) const;
  std::span<const std::byte> bytes(const TensorEntry& entry) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string_view, const TensorEntry*> by_name_;
};

struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;

  std::int64_t bytes() const { return shape.elements() * size_of(dtype); }
};

/// Writes a file front to back, hashing as it goes: the header when made, then the tensors in the order of
/// `order()`: by falling element size, so that each is aligned to its own, else as given. One thread.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::string path, std::vector<TensorSpec> tensors, const Metadata& metadata);

  const std::vector<TensorSpec>& order() const { return order_; }
  /// Appends `bytes` bytes to tensor `name`, which may come in any number of parts. REQUIRES: the tensors before
  /// it in `order()` are complete.
  void write(std::string_view name, const void* data, std::int64_t bytes);

  struct Written {
    std::int64_t bytes = 0;
    std::string checksum;
  };
  /// Waits until the file is on the disk. REQUIRES: every tensor is complete.
  Written finish();

 private:
  void put(const void* data, std::int64_t bytes);
  void skip_complete();

  std::string path_;
  std::vector<TensorSpec> order_;
  Descriptor file_;
  Checksum checksum_;
  std::size_t current_ = 0;   // the tensor that is being written
  std::int64_t written_ = 0;  // bytes of it
  std::int64_t total_ = 0;    // bytes of the file
};

}  // namespace trainer::checkpoint
