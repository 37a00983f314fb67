// TensorStore: tensors by global name, wherever their bytes lie: one safetensors file, or the pieces in any number
// of files of a checkpoint. A reader asks for flat ranges, so it need not know how the writer had cut them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/safetensors.h"

namespace trainer::checkpoint {

class TensorStore {
 public:
  /// All tensors of one file, under the names they have there.
  static TensorStore from_safetensors(const std::string& path);
  /// All tensors of a checkpoint's directory. Raises DataError if a file disagrees with the manifest in size, names,
  /// dtypes or shapes; checksums are the matter of verify().
  static TensorStore from_manifest(const std::string& directory, const Manifest& manifest);

  /// In the order of the file or the manifest.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// Null if there is none of that name.
  const TensorInfo* find(std::string_view name) const;
  /// Tensors that the engine cannot hold (an unknown dtype, too many dims), as `name: dtype [shape]`.
  const std::vector<std::string>& foreign() const { return foreign_; }

  /// Copies elements [first, first + count) of the flat tensor to `out`, in its dtype. Any number of threads.
  /// Raises DataError if there is no such tensor. REQUIRES: the range lies in the tensor.
  void read(std::string_view name, std::int64_t first, std::int64_t count, void* out) const;

 private:
  struct Part {
    Range range;
    std::size_t file;
    std::int64_t offset;  // of the part's first byte in the file
  };

  void add(TensorInfo info, std::vector<Part> parts);

  std::string path_;
  // Read, not mapped: what is loaded once must not stay in memory twice, and an error is an errno.
  struct File {
    std::string path;
    Descriptor descriptor;
  };
  static SafetensorsHeader open(TensorStore& store, const std::string& path);

  std::vector<File> files_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::vector<Part>> parts_;  // of each tensor, by range
  std::unordered_map<std::string, std::size_t> index_;
  std::vector<std::string> foreign_;
};

}  // namespace trainer::checkpoint
