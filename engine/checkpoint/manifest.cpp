// Writing a manifest, as JSON with one line per file and per tensor, and whether its pieces are complete.
#include "engine/checkpoint/manifest.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "engine/checkpoint/checksum.h"
#include "engine/core/check.h"
#include "engine/core/error.h"

namespace trainer::checkpoint {
namespace {

using OrderedJson = nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& path, const std::string& what) { throw DataError(path + ": " + what); }

OrderedJson json_of(const FileInfo& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"checksum", file.checksum}};
}

OrderedJson json_of(const StoredTensor& tensor) {
  const auto sizes = tensor.info.shape.sizes();
  OrderedJson pieces = OrderedJson::array();
  for (const auto& [range, file] : tensor.pieces) {
    pieces.push_back({range.first, range.last, file});
    if (range.repeat > 1) pieces.back().insert(pieces.back().end(), {range.repeat, range.stride});
  }
  return {{"name", tensor.info.name},
          {"dtype", name_of(tensor.info.dtype)},
          {"shape", std::vector<std::int64_t>(sizes.begin(), sizes.end())},
          {"pieces", std::move(pieces)}};
}

template <typename Items>
std::string lines_of(const Items& items) {
  std::string text = "[";
  for (const auto& item : items) text += (text.size() == 1 ? "\n    " : ",\n    ") + json_of(item).dump();
  return text + "\n  ]";
}

// The blocks of a tensor's pieces, seen row by row: at every row where one begins or ends the others must go on without
// hole or overlap. So the work depends on the number of pieces, not on that of rows.
class Coverage {
 public:
  Coverage(const StoredTensor& tensor, std::string name)
      : name_(std::move(name)), elements_(tensor.info.shape.elements()), length_(row_length(tensor)) {
    for (const Piece& piece : tensor.pieces)
      for (const Block& block : blocks_of(piece.range, length_)) {
        begins_.push_back(block);
        ends_.push_back(block);
      }
    std::sort(begins_.begin(), begins_.end(), [](const Block& a, const Block& b) {
      return std::pair(a.first_row, a.first) < std::pair(b.first_row, b.first);
    });
    std::sort(ends_.begin(), ends_.end(), [](const Block& a, const Block& b) { return a.last_row < b.last_row; });
  }

  void check() {
    std::size_t ended = 0, begun = 0;
    std::int64_t row = 0;
    const std::int64_t rows = elements_ == 0 ? 0 : elements_ / length_;
    while (row < rows) {
      for (; ended < ends_.size() && ends_[ended].last_row <= row; ++ended) end(ends_[ended]);
      for (; begun < begins_.size() && begins_[begun].first_row <= row; ++begun) begin(begins_[begun]);
      if (width_ != length_) missing(row);
      row = ended < ends_.size() ? ends_[ended].last_row : rows;
      if (begun < begins_.size()) row = std::min(row, begins_[begun].first_row);
    }
  }

 private:
  void begin(const Block& block) {
    const auto after = active_.lower_bound(block.first);
    std::int64_t twice = -1;
    if (after != active_.end() && after->first < block.last) twice = after->first;
    if (after != active_.begin() && std::prev(after)->second > block.first) twice = block.first;
    if (twice >= 0)
      throw DataError(name_ + ": elements from " + std::to_string(block.first_row * length_ + twice) +
                      " on are in two pieces");
    active_.emplace_hint(after, block.first, block.last);
    width_ += block.last - block.first;
  }

  void end(const Block& block) {
    active_.erase(block.first);
    width_ -= block.last - block.first;
  }

  [[noreturn]] void missing(std::int64_t row) const {
    std::int64_t at = 0;
    for (const auto& [first, last] : active_)
      if (first == at) at = last;
    throw DataError(name_ + ": elements from " + std::to_string(row * length_ + at) + " on are in no piece");
  }

  const std::string name_;
  const std::int64_t elements_, length_;
  std::vector<Block> begins_, ends_;
  std::map<std::int64_t, std::int64_t> active_;  // columns of the row
  std::int64_t width_ = 0;                       // of the active ones together
};

void check_pieces(StoredTensor& tensor, std::size_t num_files, const std::string& path) {
  const std::string name = path + ": tensor " + tensor.info.name;
  std::sort(tensor.pieces.begin(), tensor.pieces.end(), [](const Piece& a, const Piece& b) {
    return std::pair(a.range.first, a.range.last) < std::pair(b.range.first, b.range.last);
  });
  std::int64_t stride = 0;
  for (const auto& [range, file] : tensor.pieces) {
    if (file >= num_files) throw DataError(name + ": a piece in a file that is not listed");
    if (!is_sound(range, tensor.info.shape.elements())) throw DataError(name + " has no elements " + str(range));
    if (range.repeat > 1 && stride != 0 && range.stride != stride)
      throw DataError(name + ": pieces of different strides");
    if (range.repeat > 1) stride = range.stride;
  }
  if (stride != 0 && tensor.info.shape.elements() % stride != 0)
    throw DataError(name + ": pieces whose stride does not divide it");
  Coverage(tensor, name).check();
}

// Within the checkpoint's directory, and what open() gets is all of it.
bool is_file_name(std::string_view name) {
  return !name.empty() && name.front() != '.' &&
         std::none_of(name.begin(), name.end(), [](char c) { return c == '/' || (c >= 0 && c < ' '); });
}

}  // namespace

bool holds_tensors(const FileInfo& file) { return file.name.ends_with(".safetensors"); }

std::string piece_key(const TensorInfo& tensor, const Range& range) {
  return range == Range{0, tensor.shape.elements()} ? tensor.name : tensor.name + str(range);
}

Shape piece_shape(const TensorInfo& tensor, const Range& range) {
  if (range == Range{0, tensor.shape.elements()}) return tensor.shape;
  return range.repeat == 1 ? Shape{range.count()} : Shape{range.repeat, range.count()};
}

std::int64_t row_length(const StoredTensor& tensor) {
  for (const Piece& piece : tensor.pieces)
    if (piece.range.repeat > 1) return piece.range.stride;
  return tensor.info.shape.elements();
}

void check_complete(Manifest& manifest, const std::string& path) {
  std::unordered_set<std::string_view> files, tensors;
  for (const FileInfo& file : manifest.files) {
    if (!is_file_name(file.name)) fail(path, "bad file name " + OrderedJson(file.name).dump());
    if (!files.insert(file.name).second) fail(path, "file " + file.name + " is listed twice");
  }
  for (StoredTensor& tensor : manifest.tensors) {
    if (!tensors.insert(tensor.info.name).second) fail(path, "tensor " + tensor.info.name + " is listed twice");
    check_pieces(tensor, manifest.files.size(), path);
  }
}

std::string print_manifest(const Manifest& manifest) {
  CHECK(manifest.metadata.starts_with('{') && OrderedJson::accept(manifest.metadata),
        "the metadata of a checkpoint is no JSON object: " + manifest.metadata);
  std::string text =
      "{\n  \"format\": " + OrderedJson(kFormatName).dump() + ",\n  \"version\": " + std::to_string(kFormatVersion);
  text += ",\n  \"step\": " + std::to_string(manifest.step);
  text += ",\n  \"plan_hash\": " + OrderedJson(manifest.plan_hash).dump();
  text += ",\n  \"metadata\": " + manifest.metadata;
  text += ",\n  \"files\": " + lines_of(manifest.files);
  text += ",\n  \"tensors\": " + lines_of(manifest.tensors);
  const std::string checksum = checksum_of(text);
  return text + std::string(kBeforeChecksum) + checksum + std::string(kAfterChecksum);
}

}  // namespace trainer::checkpoint
