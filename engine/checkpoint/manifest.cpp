// The manifest's text form: JSON with one line per file and per tensor.
#include "engine/checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "engine/checkpoint/checksum.h"
#include "engine/core/check.h"
#include "engine/core/error.h"

namespace trainer::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "trainer-checkpoint";
constexpr int kVersion = 1;
constexpr std::string_view kBeforeChecksum = ",\n  \"checksum\": \"";
constexpr std::string_view kAfterChecksum = "\"\n}\n";
constexpr std::size_t kChecksumDigits = 32;

[[noreturn]] void fail(const std::string& path, const std::string& what) { throw DataError(path + ": " + what); }

Json json_of(const FileInfo& file) { return {{"name", file.name}, {"bytes", file.bytes}, {"checksum", file.checksum}}; }

Json json_of(const StoredTensor& tensor) {
  const auto sizes = tensor.info.shape.sizes();
  Json pieces = Json::array();
  for (const Piece& piece : tensor.pieces) pieces.push_back({piece.range.first, piece.range.last, piece.file});
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

FileInfo file_from(const Json& json) {
  return {json.at("name").get<std::string>(), json.at("bytes").get<std::int64_t>(), json.at("checksum").get<std::string>()};
}

StoredTensor tensor_from(const Json& json, const std::string& path) {
  StoredTensor tensor;
  tensor.info.name = json.at("name").get<std::string>();
  const auto dtype = dtype_named(json.at("dtype").get<std::string>());
  if (!dtype) fail(path, "tensor " + tensor.info.name + ": unknown dtype");
  tensor.info.dtype = *dtype;
  const auto sizes = json.at("shape").get<std::vector<std::int64_t>>();
  if (sizes.size() > Shape::kMaxDims) fail(path, "tensor " + tensor.info.name + ": too many dims");
  tensor.info.shape = Shape(sizes);
  for (const Json& piece : json.at("pieces")) {
    tensor.pieces.push_back({{piece.at(0).get<std::int64_t>(), piece.at(1).get<std::int64_t>()}, piece.at(2).get<std::size_t>()});
  }
  return tensor;
}

// The JSON before the checksum, closed again; raises unless the checksum is that of these bytes.
std::string checked_body(std::string_view text, const std::string& path) {
  const std::size_t tail = kBeforeChecksum.size() + kChecksumDigits + kAfterChecksum.size();
  const std::size_t body = text.size() < tail ? 0 : text.size() - tail;
  if (body == 0 || !text.ends_with(kAfterChecksum) || text.substr(body, kBeforeChecksum.size()) != kBeforeChecksum) {
    fail(path, "offset " + std::to_string(text.size()) + ": does not end with its checksum: cut off or changed");
  }
  const std::string_view stored = text.substr(body + kBeforeChecksum.size(), kChecksumDigits);
  const std::string computed = checksum_of(text.substr(0, body));
  if (computed != stored) fail(path, "its checksum is " + computed + ", where it says " + std::string(stored) + ": damaged");
  return std::string(text.substr(0, body)) + "\n}";
}

void check_pieces(StoredTensor& tensor, std::size_t num_files, const std::string& path) {
  const std::string name = path + ": tensor " + tensor.info.name;
  std::sort(tensor.pieces.begin(), tensor.pieces.end(),
            [](const Piece& a, const Piece& b) { return std::pair(a.range.first, a.range.last) < std::pair(b.range.first, b.range.last); });
  std::int64_t at = 0;
  for (const Piece& piece : tensor.pieces) {
    if (piece.file >= num_files) throw DataError(name + ": a piece in a file that is not listed");
    if (piece.range.size() < 0 || piece.range.first != at) {
      throw DataError(name + ": elements from " + std::to_string(std::min(at, piece.range.first)) +
                      (piece.range.first > at ? " on are in no piece" : " on are in two pieces"));
    }
    at = piece.range.last;
  }
  const std::int64_t elements = tensor.info.shape.elements();
  if (at != elements) throw DataError(name + ": pieces end at element " + std::to_string(at) + " of " + std::to_string(elements));
}

}  // namespace

std::string piece_key(const TensorInfo& tensor, Range range) {
  if (range == Range{0, tensor.shape.elements()}) return tensor.name;
  return tensor.name + "[" + std::to_string(range.first) + ":" + std::to_string(range.last) + "]";
}

void check_complete(Manifest& manifest, const std::string& path) {
  std::unordered_set<std::string_view> files, tensors;
  for (const FileInfo& file : manifest.files) {
    if (file.name.empty() || file.name.front() == '.' || file.name.find('/') != std::string::npos) fail(path, "bad file name " + file.name);
    if (!files.insert(file.name).second) fail(path, "file " + file.name + " is listed twice");
  }
  for (StoredTensor& tensor : manifest.tensors) {
    if (!tensors.insert(tensor.info.name).second) fail(path, "tensor " + tensor.info.name + " is listed twice");
    check_pieces(tensor, manifest.files.size(), path);
  }
}

std::string print_manifest(const Manifest& manifest) {
  const Json metadata = Json::parse(manifest.metadata, nullptr, /*allow_exceptions=*/false);
  CHECK(!metadata.is_discarded(), "the metadata of a checkpoint is not JSON: " + manifest.metadata);
  std::string text = "{\n  \"format\": " + Json(kFormat).dump() + ",\n  \"version\": " + std::to_string(kVersion);
  text += ",\n  \"step\": " + std::to_string(manifest.step);
  text += ",\n  \"plan_hash\": " + Json(manifest.plan_hash).dump();
  text += ",\n  \"metadata\": " + metadata.dump();
  text += ",\n  \"files\": " + lines_of(manifest.files);
  text += ",\n  \"tensors\": " + lines_of(manifest.tensors);
  const std::string checksum = checksum_of(text);
  return text + std::string(kBeforeChecksum) + checksum + std::string(kAfterChecksum);
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  const std::string body = checked_body(text, path);
  Manifest manifest;
  try {
    const Json json = Json::parse(body);
    if (json.at("format") != kFormat) fail(path, "is not a checkpoint's manifest");
    if (json.at("version") != kVersion) fail(path, "has version " + json.at("version").dump() + ", where 1 is known");
    manifest.step = json.at("step").get<std::int64_t>();
    manifest.plan_hash = json.at("plan_hash").get<std::string>();
    manifest.metadata = json.at("metadata").dump();
    for (const Json& file : json.at("files")) manifest.files.push_back(file_from(file));
    for (const Json& tensor : json.at("tensors")) manifest.tensors.push_back(tensor_from(tensor, path));
  } catch (const Json::exception& error) {
    fail(path, std::string("malformed: ") + error.what());
  }
  return manifest;
}

}  // namespace trainer::checkpoint
