// Samples are read one by one from the files, and converted as they are read.
#include "engine/data/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>

#include "engine/checkpoint/safetensors.h"
#include "engine/core/error.h"
#include "engine/core/narrow.h"
#include "engine/data/data_file.h"
#include "engine/data/recognise.h"

namespace trainer::data {
namespace {

using checkpoint::TensorEntry;

/// Element types that fields can be made of, beside those that DType has for floats.
struct Integers {
  std::string_view name;
  std::int64_t bytes;
  bool is_signed;
};
constexpr Integers kIntegers[] = {{"I64", 8, true}, {"I32", 4, true},  {"I16", 2, true},  {"I8", 1, true},
                                  {"U8", 1, false}, {"U16", 2, false}, {"U32", 4, false}, {"BOOL", 1, false}};

const Integers* integers_of(const TensorEntry& entry) {
  const auto found = std::ranges::find(kIntegers, entry.dtype_name, &Integers::name);
  return found == std::end(kIntegers) ? nullptr : &*found;
}

bool is_float(const TensorEntry& entry) { return entry.dtype && is_floating(*entry.dtype); }

std::string text_of(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// Little-endian, sign extended.
std::int64_t integer_at(const std::byte* at, const Integers& type) {
  std::uint64_t value = 0;
  std::memcpy(&value, at, static_cast<std::size_t>(type.bytes));
  const auto unused = static_cast<unsigned>(64 - 8 * type.bytes);
  return type.is_signed ? static_cast<std::int64_t>(value << unused) >> unused : static_cast<std::int64_t>(value);
}

class TensorSamples final : public Dataset {
 public:
  TensorSamples(const std::vector<std::string>& paths, const std::vector<SampleField>& fields,
                const std::map<std::string, std::string>& names)
      : fields_(fields), names_(names) {
    for (const std::string& path : paths) add(path, paths.size() <= kMostOpen);
  }

  std::int64_t num_samples() const override { return num_samples_; }
  const std::vector<SampleField>& fields() const override { return fields_; }

  void read(std::int64_t sample, std::span<std::byte* const> out) const override {
    const auto next = std::ranges::upper_bound(files_, sample, {}, &File::first);
    const File& file = *std::prev(next);
    for (std::size_t i = 0; i < fields_.size(); ++i) read_field(file, i, sample - file.first, out[i]);
  }

 private:
  static constexpr std::size_t kMostOpen = 256;

  struct File {
    DataFile data;
    std::int64_t first = 0;              // of its samples, in all
    std::vector<TensorEntry> tensors{};  // by field
  };

  const std::string& tensor_of(const SampleField& field) const {
    const auto named = names_.find(field.name);
    return named == names_.end() ? field.name : named->second;
  }

  void add(const std::string& path, bool keep) {
    File file{DataFile(path, keep ? DataFile::Keep::open : DataFile::Keep::closed), num_samples_};
    refuse_foreign(file.data, DataFormat::tensors);
    const checkpoint::SafetensorsHeader header = checkpoint::read_safetensors_header(open_for_reading(path), path);
    for (const SampleField& field : fields_) {
      const auto found = std::ranges::find(header.tensors, tensor_of(field), &TensorEntry::name);
      if (found == header.tensors.end()) throw DataError(path + missing(field, header));
      check(path, field, *found);
      file.tensors.push_back(*found);
    }
    if (names_.empty()) refuse_others(path, header);
    const std::int64_t count = file.tensors.empty() ? 0 : file.tensors.front().shape[0];
    for (const TensorEntry& entry : file.tensors)
      if (entry.shape[0] != count)
        throw DataError(fmt::format("{}: {} has {} samples, {} has {}", path, file.tensors.front().name, count,
                                    entry.name, entry.shape[0]));
    num_samples_ += count;
    if (count > 0) files_.push_back(std::move(file));
  }

  std::string missing(const SampleField& field, const checkpoint::SafetensorsHeader& header) const {
    std::vector<std::string_view> there;
    for (const TensorEntry& entry : header.tensors) there.push_back(entry.name);
    return fmt::format(": has no tensor {}, the graph's input {}; it has {}", tensor_of(field), field.name,
                       there.empty() ? "none" : fmt::format("{}", fmt::join(there, ", ")));
  }

  static void check(const std::string& path, const SampleField& field, const TensorEntry& entry) {
    const std::span<const std::int64_t> sizes = field.shape.sizes();
    const bool fits =
        entry.shape.size() == sizes.size() + 1 && std::ranges::equal(sizes, std::span(entry.shape).subspan(1));
    if (!fits)
      throw DataError(fmt::format("{}: {} is {}, where samples of {} are needed", path, entry.name,
                                  text_of(entry.shape), field.shape.str()));
    const bool right = field.dtype == DType::i32 ? integers_of(entry) != nullptr : is_float(entry);
    if (!right)
      throw DataError(fmt::format("{}: {} holds {}, where {} are needed", path, entry.name, entry.dtype_name,
                                  field.dtype == DType::i32 ? "integers" : "floats"));
  }

  void refuse_others(const std::string& path, const checkpoint::SafetensorsHeader& header) const {
    for (const TensorEntry& entry : header.tensors)
      if (std::ranges::find(fields_, entry.name, &SampleField::name) == fields_.end())
        throw DataError(
            fmt::format("{}: has a tensor {}, which is no input that the graph needs; `data.fields` names "
                        "the tensors to read",
                        path, entry.name));
  }

  void read_field(const File& file, std::size_t index, std::int64_t sample, std::byte* out) const {
    const TensorEntry& entry = file.tensors[index];
    const std::int64_t elements = fields_[index].shape.elements();
    const std::int64_t bytes = (entry.last - entry.first) / entry.shape[0];
    std::vector<std::byte> raw(static_cast<std::size_t>(bytes));
    const std::int64_t at = entry.first + sample * bytes;
    file.data.read(at, raw.data(), raw.size());
    const Integers* type = integers_of(entry);
    if (type == nullptr) return to_f32(*entry.dtype, raw.data(), elements, reinterpret_cast<float*>(out));
    using Limits = std::numeric_limits<std::int32_t>;
    for (std::int64_t i = 0; i < elements; ++i) {
      const std::int64_t value = integer_at(raw.data() + i * type->bytes, *type);
      if (value < Limits::min() || value > Limits::max())
        file.data.fail(at + i * type->bytes, fmt::format("{} holds {}, which is no 32-bit integer", entry.name, value));
      const auto narrow = static_cast<std::int32_t>(value);
      std::memcpy(out + i * std::int64_t{sizeof narrow}, &narrow, sizeof narrow);
    }
  }

  const std::vector<SampleField> fields_;
  const std::map<std::string, std::string> names_;
  std::vector<File> files_;
  std::int64_t num_samples_ = 0;
};

}  // namespace

std::shared_ptr<const Dataset> tensor_samples(const std::vector<std::string>& paths,
                                              const std::vector<SampleField>& fields,
                                              const std::map<std::string, std::string>& names) {
  return std::make_shared<TensorSamples>(paths, fields, names);
}

}  // namespace trainer::data
