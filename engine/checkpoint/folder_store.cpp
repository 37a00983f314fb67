// TensorStore of a model folder: its files, its names, matrices that lie transposed or in FP8.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "engine/checkpoint/tensor_store.h"
#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/glob.h"

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::string_view kScale = "_scale_inv";  // behind the name of the tensor that it belongs to
constexpr std::int64_t kFp8Block = 128;
constexpr std::int64_t kMaxIndexBytes = std::int64_t{64} << 20;

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// Files of the folder, and by name the file in which the index has each tensor.
struct Listed {
  std::vector<std::string> files;
  std::map<std::string, std::string> file_of;
};

Listed read_index(const std::string& folder, const std::string& path) {
  const MappedFile file(path);
  if (static_cast<std::int64_t>(file.bytes().size()) > kMaxIndexBytes) throw DataError(path + ": larger than 64 MiB");
  const auto* text = reinterpret_cast<const char*>(file.bytes().data());
  const Json index = Json::parse(text, text + file.bytes().size(), nullptr, false);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object())
    throw DataError(path + R"(: no JSON object with a "weight_map" from names of tensors to names of files)");
  Listed listed;
  for (const auto& [name, value] : map->items()) {
    if (!value.is_string()) throw DataError(path + ": weight_map." + name + " names no file");
    const auto file_name = value.get<std::string>();
    if (file_name.empty() || file_name.find('/') != std::string::npos)
      throw DataError(path + ": weight_map." + name + ": \"" + file_name + "\" is no file of this folder");
    listed.file_of[name] = file_name;
    if (std::find(listed.files.begin(), listed.files.end(), file_name) == listed.files.end())
      listed.files.push_back(file_name);
  }
  std::sort(listed.files.begin(), listed.files.end());
  for (const std::string& name : listed.files)
    if (!is_file(fs::path(folder) / name))
      throw DataError(path + ": lists " + name + ", which is not in the folder: the download is not complete");
  return listed;
}

Listed list_files(const std::string& folder) {
  const fs::path at(folder);
  if (is_file(at / kIndex)) return read_index(folder, (at / kIndex).string());
  if (is_file(at / kWeights)) return {{kWeights}, {}};
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(at, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".safetensors" && name.find("-of-") != std::string::npos)
      throw DataError(folder + ": has " + name + " and no " + kIndex + ", which says what the files hold");
    if (name == "pytorch_model.bin" || name == "pytorch_model.bin.index.json")
      throw DataError(folder +
                      ": its weights are pickled (pytorch_model.bin), which is code and is not read; "
                      "save_pretrained(…, safe_serialization=True) writes .safetensors");
  }
  throw DataError(folder + ": has no " + kWeights + " and no " + kIndex);
}

/// e4m3fn: 4 bits of exponent, 3 of mantissa, no infinity; 0x7f and 0xff are NaN.
const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all{};
    for (int code = 0; code < 256; ++code) {
      const int exponent = (code >> 3) & 15, mantissa = code & 7;
      float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                  : std::ldexp(1.0F + static_cast<float>(mantissa) / 8, exponent - 7);
      if ((code & 0x7F) == 0x7F) value = std::numeric_limits<float>::quiet_NaN();
      all[static_cast<std::size_t>(code)] = (code & 0x80) != 0 ? -value : value;
    }
    return all;
  }();
  return values;
}

constexpr std::string_view kNumber = "{}";

/// What the graph calls a tensor of a file, and which index of its first dim that holds, where it is one of several.
struct OwnName {
  std::string name;
  std::optional<std::int64_t> index{};
};

/// `name` without what `pattern` says of its end: "layers.0" and 3 of "layers.0.experts.3.w1" and ".experts.{}.w1".
std::optional<OwnName> without_end(const std::string& name, const std::string& pattern) {
  const std::size_t at = pattern.find(kNumber);
  if (at == std::string::npos)
    return name.ends_with(pattern) ? std::optional(OwnName{name.substr(0, name.size() - pattern.size())})
                                   : std::nullopt;
  const std::string head = pattern.substr(0, at), tail = pattern.substr(at + kNumber.size());
  if (!name.ends_with(tail)) return {};
  const std::size_t end = name.size() - tail.size();
  std::size_t begin = end;
  while (begin > 0 && end - begin < 9 && name[begin - 1] >= '0' && name[begin - 1] <= '9') --begin;
  const std::string before = name.substr(0, begin);
  if (begin == end || !before.ends_with(head)) return {};
  return OwnName{before.substr(0, before.size() - head.size()), std::stoll(name.substr(begin, end - begin))};
}

OwnName own_name(std::string name, const DiskNames& names) {
  for (const std::string& prefix : names.prefixes)
    if (name.starts_with(prefix)) {
      name.erase(0, prefix.size());
      break;
    }
  for (const auto& [here, pattern] : names.in_files)
    if (std::optional<OwnName> own = without_end(name, pattern)) {
      own->name += here;
      return *own;
    }
  for (const auto& [from, to] : names.renamed)
    if (name.ends_with(from)) return {name.replace(name.size() - from.size(), from.size(), to)};
  return {name};
}

bool any_matches(const std::vector<std::string>& globs, const std::string& name) {
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) { return name_matches(glob, name); });
}

bool is_fp8(const TensorEntry& entry) { return entry.dtype_name == "F8_E4M3" && entry.shape.size() == 2; }

std::int64_t blocks_in(std::int64_t size) { return (size + kFp8Block - 1) / kFp8Block; }

}  // namespace

TensorStore TensorStore::from_safetensors(const std::string& path, const DiskNames& names) {
  TensorStore store;
  store.path_ = path;
  const SafetensorsHeader header = open(store, path);
  Stacks stacks;
  for (const TensorEntry& entry : header.tensors) store.add_file_tensor(entry, names, stacks);
  store.add_stacks(stacks);
  return store;
}

TensorStore TensorStore::from_folder(const std::string& folder, const DiskNames& names) {
  const Listed listed = list_files(folder);
  TensorStore store;
  store.path_ = folder;
  std::vector<TensorEntry> scales;  // `first` is the file's index, `last` where the tensor begins in it
  std::set<std::string> seen;
  Stacks stacks;
  for (const std::string& name : listed.files) {
    const std::string path = (fs::path(folder) / name).string();
    const SafetensorsHeader header = open(store, path);
    for (const TensorEntry& entry : header.tensors) {
      const auto expected = listed.file_of.find(entry.name);
      if (!listed.file_of.empty() && (expected == listed.file_of.end() || expected->second != name))
        throw DataError(path + ": holds " + entry.name + ", which " + kIndex +
                        (expected == listed.file_of.end() ? " does not list" : " has in " + expected->second));
      if (!seen.insert(entry.name).second) throw DataError(path + ": " + entry.name + " is in another file as well");
      if (any_matches(names.ignored, entry.name)) continue;
      if (entry.name.ends_with(kScale)) {
        scales.push_back(entry);
        scales.back().last = entry.first;
        scales.back().first = static_cast<std::int64_t>(store.files_.size()) - 1;
        continue;
      }
      store.add_file_tensor(entry, names, stacks);
    }
  }
  for (const auto& [name, file] : listed.file_of)
    if (!seen.contains(name))
      throw DataError((fs::path(folder) / kIndex).string() + ": lists " + name + ", which is not in " + file);
  store.add_stacks(stacks);
  for (const TensorEntry& scale : scales) store.add_scales(scale, names);
  for (std::size_t i = 0; i < store.tensors_.size(); ++i)
    if (std::ranges::any_of(store.parts_[i].scales, &std::vector<float>::empty))
      throw DataError(folder + ": " + store.tensors_[i].name + " is in FP8 and has no " + store.tensors_[i].name +
                      std::string(kScale));
  return store;
}

void TensorStore::add_file_tensor(const TensorEntry& entry, const DiskNames& names, Stacks& stacks) {
  const OwnName own = own_name(entry.name, names);
  if (own.index)
    stacks[own.name].push_back({*own.index, entry, files_.size() - 1});
  else
    add_folder_tensor(entry, own.name, names);
}

// Those of one tensor, in their order, are its parts.
void TensorStore::add_stacks(Stacks& stacks) {
  for (auto& [name, layers] : stacks) {
    std::ranges::sort(layers, {}, &Layer::index);
    const TensorEntry& first = layers.front().entry;
    const bool fp8 = is_fp8(first);
    if ((!first.dtype && !fp8) || first.shape.size() + 1 > Shape::kMaxDims) {
      foreign_.push_back(first.name + ": " + first.dtype_name);
      continue;
    }
    const std::int64_t elements = first.elements();
    Parts parts;
    for (const Layer& layer : layers) {
      const auto number = static_cast<std::int64_t>(parts.parts.size());
      if (layer.index != number)
        throw DataError(path_ + ": has " + layer.entry.name + " and none of number " + std::to_string(number));
      if (layer.entry.dtype_name != first.dtype_name || layer.entry.shape != first.shape)
        throw DataError(path_ + ": " + layer.entry.name + " has another dtype or shape than " + first.name);
      parts.parts.push_back({{number * elements, (number + 1) * elements}, layer.file, layer.entry.first});
    }
    std::vector<std::int64_t> shape{static_cast<std::int64_t>(layers.size())};
    shape.insert(shape.end(), first.shape.begin(), first.shape.end());
    if (find(name) != nullptr) throw DataError(path_ + ": two tensors are the model's " + name);
    if (fp8) parts.scales.resize(layers.size());
    add({name, fp8 ? DType::f32 : *first.dtype, Shape(shape)}, std::move(parts));
  }
}

void TensorStore::add_folder_tensor(const TensorEntry& entry, const std::string& name, const DiskNames& names) {
  const bool fp8 = is_fp8(entry);
  if ((!entry.dtype && !fp8) || entry.shape.size() > Shape::kMaxDims) {
    foreign_.push_back(entry.name + ": " + entry.dtype_name);
    return;
  }
  std::vector<std::int64_t> shape = entry.shape;
  Parts parts;
  parts.parts.push_back({{0, entry.elements()}, files_.size() - 1, entry.first});
  if (fp8) parts.scales.resize(1);
  if (any_matches(names.transposed, name) && shape.size() == 2) {
    parts.transposed = true;
    std::swap(shape[0], shape[1]);
  }
  if (find(name) != nullptr) throw DataError(path_ + ": two tensors are the model's " + name);
  add({name, fp8 ? DType::f32 : *entry.dtype, Shape(shape)}, std::move(parts));
}

void TensorStore::add_scales(const TensorEntry& scale, const DiskNames& names) {
  const OwnName own = own_name(scale.name.substr(0, scale.name.size() - kScale.size()), names);
  const auto found = index_.find(own.name);
  const auto matrix = static_cast<std::size_t>(own.index.value_or(0));
  if (found == index_.end() || matrix >= parts_[found->second].scales.size())
    throw DataError(path_ + ": " + scale.name + " belongs to no tensor in FP8");
  const Shape& shape = tensors_[found->second].shape;
  std::vector<float>& scales = parts_[found->second].scales[matrix];
  const std::vector<std::int64_t> expected{blocks_in(shape[-2]), blocks_in(shape[-1])};
  if (scale.shape != expected || scale.dtype != DType::f32)
    throw DataError(path_ + ": " + scale.name + " is " + scale.dtype_name + ", where an F32 [" +
                    std::to_string(expected[0]) + ", " + std::to_string(expected[1]) +
                    "] is needed: a scale for each block of 128 × 128");
  scales.resize(static_cast<std::size_t>(expected[0] * expected[1]));
  Part part{{}, static_cast<std::size_t>(scale.first), scale.last};
  read_bytes(part, 0, reinterpret_cast<std::byte*>(scales.data()),
             static_cast<std::int64_t>(scales.size() * sizeof(float)));
}

void TensorStore::read_bytes(const Part& part, std::int64_t at, std::byte* out, std::int64_t bytes) const {
  const File& file = files_[part.file];
  const Descriptor opened = file.descriptor ? Descriptor() : open_for_reading(file.path);
  read_at(file.descriptor ? file.descriptor : opened, part.offset + at, out, static_cast<std::size_t>(bytes),
          file.path);
}

// Columns of the file are rows of the tensor. Some rows of the file are read at once, whole where much of them is
// wanted.
void TensorStore::read_transposed(const Part& part, const Shape& shape, std::int64_t width, const Range& range,
                                  std::byte* out) const {
  const std::int64_t rows = shape[0], columns = shape[1];
  for (std::int64_t r = 0; r < range.repeat; ++r) {
    const std::int64_t first = range.first + r * range.stride, last = range.last + r * range.stride;
    for (const Block& block : blocks_of({first, last}, columns)) {
      const std::int64_t wanted = block.last_row - block.first_row;
      const bool whole = 4 * wanted >= rows;
      const std::int64_t run = whole ? rows : wanted, from = whole ? 0 : block.first_row;
      const std::int64_t at_once = whole ? std::max<std::int64_t>(1, kRowsTogetherBytes / (rows * width)) : 1;
      std::vector<std::byte> lines(static_cast<std::size_t>(std::min(at_once, block.last - block.first) * run * width));
      for (std::int64_t column = block.first; column < block.last; column += at_once) {
        const std::int64_t count = std::min(at_once, block.last - column);
        read_bytes(part, (column * rows + from) * width, lines.data(), count * run * width);
        for (std::int64_t row = block.first_row; row < block.last_row; ++row)
          for (std::int64_t i = 0; i < count; ++i)
            std::copy_n(lines.data() + (i * run + row - from) * width, width,
                        out + (row * columns + column + i - first) * width);
      }
    }
    out += (last - first) * width;
  }
}

// Matrix by matrix: a stack has one in each part.
void TensorStore::read_fp8(const Parts& parts, const Shape& shape, const Range& range, float* out) const {
  const std::array<float, 256>& values = e4m3_values();
  const std::int64_t columns = shape[-1], elements = shape[-2] * columns, blocks_in_row = blocks_in(columns);
  std::vector<std::byte> codes;
  for (std::int64_t r = 0; r < range.repeat; ++r) {
    std::int64_t first = range.first + r * range.stride;
    const std::int64_t last = first + range.count();
    while (first < last) {
      const std::int64_t matrix = first / elements, from = first % elements,
                         count = std::min(last - first, elements - from);
      const Part& part = parts.parts[static_cast<std::size_t>(matrix)];
      const std::vector<float>& scales = parts.scales[static_cast<std::size_t>(matrix)];
      codes.resize(static_cast<std::size_t>(count));
      if (parts.transposed)
        read_transposed(part, shape, 1, {from, from + count}, codes.data());
      else
        read_bytes(part, from, codes.data(), count);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t row = (from + i) / columns, column = (from + i) % columns;
        const float scale = scales[static_cast<std::size_t>(row / kFp8Block * blocks_in_row + column / kFp8Block)];
        *out++ = values[static_cast<std::size_t>(codes[static_cast<std::size_t>(i)])] * scale;
      }
      first += count;
    }
  }
}

}  // namespace trainer::checkpoint
