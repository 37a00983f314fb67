// Reading safetensors: the header as a stream of JSON events through a small state machine, so that depth,
// duplicates and types are checked where they occur, and memory stays within a few times the header.
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "engine/checkpoint/counting_iterator.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/core/error.h"

namespace trainer::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;

struct DTypeName {
  std::string_view name;
  std::int64_t bytes;
  std::optional<DType> dtype;
};

constexpr DTypeName kDTypeNames[] = {
    {"F32", 4, DType::f32},       {"BF16", 2, DType::bf16}, {"F16", 2, DType::f16},       {"F64", 8, DType::f64},
    {"I32", 4, DType::i32},       {"U8", 1, DType::u8},     {"BOOL", 1, std::nullopt},    {"I8", 1, std::nullopt},
    {"I16", 2, std::nullopt},     {"U16", 2, std::nullopt}, {"U32", 4, std::nullopt},     {"I64", 8, std::nullopt},
    {"U64", 8, std::nullopt},     {"C64", 8, std::nullopt}, {"F8_E4M3", 1, std::nullopt}, {"F8_E5M2", 1, std::nullopt},
    {"F8_E8M0", 1, std::nullopt},
};

class HeaderEvents {
 public:
  HeaderEvents(const std::string& path, std::int64_t data_start, std::int64_t file_bytes)
      : path_(path), data_start_(data_start), data_bytes_(file_bytes - data_start) {}

  std::int64_t* count() { return &count_; }
  SafetensorsHeader take() { return std::move(header_); }

  [[noreturn]] void fail(const std::string& what) const { fail_at(kLengthBytes + count_, what); }
  [[noreturn]] void fail_at(std::int64_t offset, const std::string& what) const {
    std::string text = path_ + ": offset " + std::to_string(offset) + ": ";
    if (in_entry()) text += "tensor " + Json(entry_.name).dump(-1, ' ', true, Json::error_handler_t::replace) + ": ";
    throw DataError(text + what);
  }

  bool start_object(std::size_t) {
    if (where_ == Where::start) return go(Where::top);
    if (where_ != Where::top) fail("an object where none belongs");
    if (key_ == "__metadata__") return go(Where::metadata);
    entry_ = {};
    entry_.name = key_;
    fields_ = 0;
    return go(Where::entry);
  }

  bool key(std::string& name) {
    key_ = name;
    if (where_ == Where::top && !names_.insert(name).second) fail("a second entry named " + Json(name).dump());
    if (where_ == Where::metadata && !metadata_keys_.insert(name).second)
      fail("a second metadata key " + Json(name).dump());
    if (where_ == Where::entry) field_ = start_field(name);
    return true;
  }

  bool string(std::string& value) {
    if (where_ == Where::metadata) {
      header_.metadata.emplace_back(key_, value);
    } else if (where_ == Where::entry && field_ == kDtype) {
      entry_.dtype_name = value;
    } else {
      fail("a string where none belongs");
    }
    return true;
  }

  bool start_array(std::size_t) {
    if (where_ != Where::entry || field_ == kDtype) fail("a list where none belongs");
    return go(field_ == kShape ? Where::shape : Where::offsets);
  }

  bool number_unsigned(std::uint64_t value) {
    if (where_ != Where::shape && where_ != Where::offsets) fail("a number where none belongs");
    if (value > static_cast<std::uint64_t>(INT64_MAX)) fail(std::to_string(value) + " is too large");
    (where_ == Where::shape ? entry_.shape : offsets_).push_back(static_cast<std::int64_t>(value));
    if (offsets_.size() > 2) fail("data_offsets has more than two numbers");
    return true;
  }

  bool end_array() { return go(Where::entry); }

  bool end_object() {
    if (where_ == Where::entry) finish_entry();
    return go(where_ == Where::top ? Where::end : Where::top);
  }

  bool null() { fail("null where none belongs"); }
  bool boolean(bool) { fail("a boolean where none belongs"); }
  bool number_integer(std::int64_t value) { fail("a negative number, " + std::to_string(value)); }
  bool number_float(double, const std::string& text) { fail("not a whole number: " + text); }
  bool binary(Json::binary_t&) { fail("binary data where none belongs"); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) {
    fail_at(kLengthBytes + static_cast<std::int64_t>(position), "the header is not valid JSON");
  }

 private:
  enum class Where { start, top, metadata, entry, shape, offsets, end };
  enum Field : unsigned { kDtype = 1, kShape = 2, kOffsets = 4, kAll = 7 };

  bool in_entry() const { return where_ == Where::entry || where_ == Where::shape || where_ == Where::offsets; }

  bool go(Where where) {
    where_ = where;
    return true;
  }

  Field start_field(const std::string& name) {
    const Field field = name == "dtype"          ? kDtype
                        : name == "shape"        ? kShape
                        : name == "data_offsets" ? kOffsets
                                                 : Field{};
    if (field == Field{}) fail("unknown key " + Json(name).dump());
    if (fields_ & field) fail("a second " + name);
    fields_ |= field;
    if (field == kOffsets) offsets_.clear();
    return field;
  }

  void finish_entry() {
    if (fields_ != kAll) fail("dtype, shape or data_offsets is missing");
    const auto* known = std::find_if(std::begin(kDTypeNames), std::end(kDTypeNames),
                                     [&](const DTypeName& each) { return each.name == entry_.dtype_name; });
    if (known == std::end(kDTypeNames)) fail("unknown dtype " + Json(entry_.dtype_name).dump());
    if (offsets_.size() != 2) fail("data_offsets has not two numbers");
    std::int64_t bytes = known->bytes;
    for (std::int64_t size : entry_.shape) {
      if (__builtin_mul_overflow(bytes, size, &bytes)) fail("the shape has more elements than fit any file");
    }
    if (offsets_[0] > offsets_[1]) fail("data_offsets run backwards");
    if (offsets_[1] > data_bytes_) {
      fail("ends at byte " + std::to_string(offsets_[1]) + " of data, of which the file has " +
           std::to_string(data_bytes_));
    }
    if (offsets_[1] - offsets_[0] != bytes) {
      fail("its shape and dtype take " + std::to_string(bytes) + " bytes, its data_offsets " +
           std::to_string(offsets_[1] - offsets_[0]));
    }
    entry_.dtype = known->dtype;
    entry_.first = data_start_ + offsets_[0];
    entry_.last = data_start_ + offsets_[1];
    header_.tensors.push_back(std::move(entry_));
  }

  const std::string& path_;
  std::int64_t data_start_, data_bytes_;
  std::int64_t count_ = 0;
  Where where_ = Where::start;
  Field field_ = kDtype;
  unsigned fields_ = 0;
  std::string key_;
  TensorEntry entry_;
  std::vector<std::int64_t> offsets_;
  std::unordered_set<std::string> names_, metadata_keys_;
  SafetensorsHeader header_;
};

// Tensors lie end to end from the header's end to the file's.
void check_cover(const std::vector<TensorEntry>& tensors, std::int64_t start, std::int64_t end,
                 const std::string& path) {
  std::int64_t at = start;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.first != at) {
      throw DataError(path + ": offset " + std::to_string(std::min(at, tensor.first)) + ": tensor " +
                      Json(tensor.name).dump() +
                      (tensor.first < at ? " overlaps the one before it" : " leaves a hole before it"));
    }
    at = tensor.last;
  }
  if (at != end)
    throw DataError(path + ": offset " + std::to_string(at) + ": " + std::to_string(end - at) +
                    " bytes belong to no tensor");
}

[[noreturn]] void fail_early(std::int64_t file_bytes, const std::string& path) {
  throw DataError(path + ": offset " + std::to_string(file_bytes) + ": ends before the header");
}

// `start`: the file's first bytes, which say how long the header is.
std::int64_t header_length(const std::byte* start, std::int64_t file_bytes, const std::string& path) {
  std::uint64_t length = 0;
  for (int i = 0; i < kLengthBytes; ++i) length |= std::to_integer<std::uint64_t>(start[i]) << (8 * i);
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes)) {
    throw DataError(path + ": offset 0: a header of " + std::to_string(length) + " bytes is too long");
  }
  if (kLengthBytes + static_cast<std::int64_t>(length) > file_bytes) {
    throw DataError(path + ": offset " + std::to_string(file_bytes) + ": ends inside the header, which has " +
                    std::to_string(length) + " bytes");
  }
  return static_cast<std::int64_t>(length);
}

SafetensorsHeader parse_header(std::string_view text, std::int64_t file_bytes, const std::string& path) {
  const std::int64_t data_start = kLengthBytes + static_cast<std::int64_t>(text.size());
  HeaderEvents events(path, data_start, file_bytes);
  if (text.empty() || text.front() != '{') events.fail("the header does not begin with {");
  Json::sax_parse(CountingIterator(text.data(), events.count()),
                  CountingIterator(text.data() + text.size(), events.count()), &events);
  SafetensorsHeader header = events.take();
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.first, a.last) < std::pair(b.first, b.last);
  });
  check_cover(header.tensors, data_start, file_bytes, path);
  return header;
}

}  // namespace

std::int64_t TensorEntry::elements() const {
  std::int64_t product = 1;
  for (std::int64_t size : shape) product *= size;
  return product;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& path) {
  const auto file_bytes = static_cast<std::int64_t>(file.size());
  if (file_bytes < kLengthBytes) fail_early(file_bytes, path);
  const std::int64_t length = header_length(file.data(), file_bytes, path);
  return parse_header({reinterpret_cast<const char*>(file.data()) + kLengthBytes, static_cast<std::size_t>(length)},
                      file_bytes, path);
}

SafetensorsHeader read_safetensors_header(const Descriptor& file, const std::string& path) {
  const std::int64_t file_bytes = file_size(file, path);
  if (file_bytes < kLengthBytes) fail_early(file_bytes, path);
  std::byte start[kLengthBytes];
  read_at(file, 0, start, sizeof start, path);
  std::string header(static_cast<std::size_t>(header_length(start, file_bytes, path)), '\0');
  read_at(file, kLengthBytes, header.data(), header.size(), path);
  return parse_header(header, file_bytes, path);
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path), header_(parse_safetensors(file_.bytes(), path)) {
  for (const TensorEntry& entry : header_.tensors) by_name_.emplace(entry.name, &entry);
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  return file_.bytes().subspan(static_cast<std::size_t>(entry.first),
                               static_cast<std::size_t>(entry.last - entry.first));
}

}  // namespace trainer::checkpoint
