// TensorStore: tensors by global name, wherever their bytes lie: one safetensors file, the pieces in any number of
// files of a checkpoint, or the files of a model folder, where a matrix may lie transposed or in FP8 with scales of its
// blocks. A reader asks for flat ranges of the tensor as the graph has it, so it need not know any of that.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/core/disk_names.h"

namespace trainer::checkpoint {

/// Rows of a tensor that lie near each other in a file are read together, so many bytes at a time.
inline constexpr std::int64_t kRowsTogetherBytes = std::int64_t{1} << 20;

class TensorStore {
 public:
  /// All tensors of one file, under the names they have there.
  static TensorStore from_safetensors(const std::string& path);
  /// The same under the names that `names` makes of those.
  static TensorStore from_safetensors(const std::string& path, const DiskNames& names);
  /// All tensors of a checkpoint's directory. Raises DataError if a file disagrees with the manifest in size, names,
  /// dtypes or shapes; checksums are the matter of verify().
  static TensorStore from_manifest(const std::string& directory, const Manifest& manifest);

  /// All tensors of a model folder (Hugging Face's layout): of the files that model.safetensors.index.json lists, or of
  /// model.safetensors, under the names that the graph has for them. Those in FP8 are f32 here, scales multiplied in.
  static TensorStore from_folder(const std::string& folder, const DiskNames& names);

  /// In the order of the file or the manifest.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// Null if there is none of that name.
  const TensorInfo* find(std::string_view name) const;
  /// Tensors that the engine cannot hold (an unknown dtype, too many dims), as `name: dtype [shape]`.
  const std::vector<std::string>& foreign() const { return foreign_; }

  /// Copies the elements of a range of the flat tensor to `out`, in its dtype. Any number of threads. Raises DataError
  /// if there is no such tensor. REQUIRES: the range is_sound in the tensor.
  void read(std::string_view name, const Range& range, void* out) const;
  void read(std::string_view name, std::int64_t first, std::int64_t count, void* out) const {
    read(name, {first, first + count}, out);
  }

 private:
  struct Part {
    Range range;
    std::size_t file = 0;
    std::int64_t offset = 0;      // of the part's first byte in the file
    std::vector<Block> blocks{};  // in the tensor's rows
  };
  // A tensor's parts, in rows of one length; 0 if they are rows of any length.
  struct Parts {
    std::vector<Part> parts;
    std::int64_t length = 0;
    bool transposed = false;                   // of a matrix [out, in]: the file has [in, out]
    std::vector<std::vector<float>> scales{};  // the file has e4m3: for each matrix, a factor for each block
    bool fp8() const { return !scales.empty(); }
  };

  void add(TensorInfo info, Parts parts);
  void read_transposed(const Part& part, const Shape& shape, std::int64_t width, const Range& range,
                       std::byte* out) const;
  void read_fp8(const Parts& parts, const Shape& shape, const Range& range, float* out) const;
  void read_bytes(const Part& part, std::int64_t at, std::byte* out, std::int64_t bytes) const;
  // A tensor of a file that is one index of the first dim of a tensor here; by name of that.
  struct Layer {
    std::int64_t index;
    TensorEntry entry;
    std::size_t file;
  };
  using Stacks = std::map<std::string, std::vector<Layer>>;
  void add_file_tensor(const TensorEntry& entry, const DiskNames& names, Stacks& stacks);
  void add_stacks(Stacks& stacks);
  void add_folder_tensor(const TensorEntry& entry, const std::string& name, const DiskNames& names);
  void add_scales(const TensorEntry& scale, const DiskNames& names);
  void read_rows(const Part& part, const Range& range, const Block& block, std::int64_t length, std::int64_t width,
                 std::byte* out) const;

  std::string path_;
  // Read, not mapped: what is loaded once must not stay in memory twice, and an error is an errno.
  struct File {
    std::string path;
    Descriptor descriptor;  // of the first few; the others are opened for each read
  };
  static SafetensorsHeader open(TensorStore& store, const std::string& path);

  std::vector<File> files_;
  std::vector<TensorInfo> tensors_;
  std::vector<Parts> parts_;  // of each tensor
  std::unordered_map<std::string, std::size_t> index_;
  std::vector<std::string> foreign_;
};

}  // namespace trainer::checkpoint
