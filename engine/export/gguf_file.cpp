// A GGUF file that llama.cpp opens: metadata, tokenizer and weights of a model folder.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/export/formats.h"
#include "engine/export/gguf_format.h"
#include "engine/export/gguf_mapping.h"
#include "engine/export/gguf_tokenizer.h"
#include "engine/export/rounding.h"

namespace trainer::exporting {
namespace {

namespace fs = std::filesystem;
using checkpoint::Range;
using checkpoint::TensorInfo;

/// general.file_type: what most weights are in.
std::uint32_t file_type(Precision precision) {
  switch (precision) {
    case Precision::f32:
      return 0;
    case Precision::f16:
      return 1;
    case Precision::q8_0:
      return 7;
    case Precision::bf16:
      return 32;
  }
  return 0;
}

/// A tensor of the file: a parameter, or one that the mapping says.
struct Part {
  GgufTensor tensor;
  const TensorInfo* info = nullptr;
  GgufPlace place{};
  const std::vector<float>* values = nullptr;
};

/// Norms, biases and whatever has one dim stay f32; so do matrices whose rows are no whole blocks of q8_0, as f16.
Precision precision_of(const TensorInfo& info, const GgufPlace& place, Precision asked) {
  if (info.shape.rank() < 2 || place.f32) return Precision::f32;
  return asked == Precision::q8_0 && info.shape[-1] % kGgufBlock != 0 ? Precision::f16 : asked;
}

std::vector<Part> parts_of(const Source& source, const GgufMapping& mapping, Report& report) {
  std::vector<Part> parts;
  std::set<std::string> names;
  std::int64_t not_blocks = 0;
  for (const auto& [name, values] : mapping.tensors()) {
    const Shape shape{static_cast<std::int64_t>(values.size())};
    parts.push_back({{name, Precision::f32, shape}, nullptr, {}, &values});
  }
  for (const TensorInfo& info : source.tensors()) {
    GgufPlace place = mapping.place(info.name);
    const Precision precision = precision_of(info, place, report.precision);
    not_blocks += report.precision == Precision::q8_0 && precision == Precision::f16 ? 1 : 0;
    parts.push_back({{place.name, precision, info.shape}, &info, std::move(place), nullptr});
  }
  for (const Part& part : parts)
    CHECK(names.insert(part.tensor.name).second, "two tensors are called " + part.tensor.name);
  if (not_blocks > 0)
    report.notes.push_back(
        fmt::format("{} matrices are in f16: their rows are no multiples of 32, which q8_0 needs", not_blocks));
  return parts;
}

std::vector<GgufKey> keys_of(const Source& source, const GgufMapping& mapping, Report& report) {
  std::string name = fs::path(source.folder()->path).lexically_normal().filename().string();
  if (name.empty()) name = fs::path(source.folder()->path).lexically_normal().parent_path().filename().string();
  std::vector<GgufKey> keys{{"general.architecture", mapping.architecture()},
                            {"general.type", std::string("model")},
                            {"general.name", name},
                            {"general.file_type", file_type(report.precision)}};
  if (report.precision == Precision::q8_0) keys.push_back({"general.quantization_version", std::uint32_t{2}});
  keys.insert(keys.end(), mapping.keys().begin(), mapping.keys().end());
  const auto vocab = source.folder()->with.find("vocab");
  CHECK(vocab != source.folder()->with.end() && vocab->second.number() != nullptr, "a decoder has a vocabulary");
  for (GgufKey& key : tokenizer_keys(source.files(), static_cast<std::int64_t>(*vocab->second.number()), report.notes))
    keys.push_back(std::move(key));
  return keys;
}

class Writer {
 public:
  Writer(const Source& source, GgufWriter& writer, Progress& progress, Rounding& rounding)
      : source_(source), writer_(writer), progress_(progress), rounding_(rounding) {}

  void write(const Part& part) {
    if (part.values != nullptr) {
      put(part, *part.values);
    } else if (part.place.pair_heads > 0) {
      write_pairs(part);
    } else {
      const std::int64_t elements = part.tensor.shape.elements();
      for (std::int64_t first = 0; first < elements; first += kWindow) {
        source_.read_f32(*part.info, {first, std::min(first + kWindow, elements)}, values_);
        for (float& value : values_) value += part.place.add;
        put(part, values_);
      }
    }
    writer_.end_tensor();
  }

 private:
  /// Of each head, row j and row j + half become rows 2j and 2j + 1.
  void write_pairs(const Part& part) {
    const Shape& shape = part.tensor.shape;
    const std::int64_t columns = shape.rank() == 2 ? shape[1] : 1, heads = part.place.pair_heads;
    const std::int64_t rows = shape[0] / heads, half = rows / 2;
    if (shape[0] % heads != 0 || rows % 2 != 0)
      throw DataError(fmt::format("{} {} is not made of {} heads", part.info->name, shape.str(), heads));
    std::vector<float> paired;
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t first = head * rows * columns;
      source_.read_f32(*part.info, {first, first + rows * columns}, values_);
      paired.resize(values_.size());
      for (std::int64_t row = 0; row < rows; ++row)
        std::copy_n(values_.begin() + row * columns, columns, paired.begin() + (row % half * 2 + row / half) * columns);
      put(part, paired);
    }
  }

  void put(const Part& part, const std::vector<float>& values) {
    const Precision precision = part.tensor.precision;
    if (precision == Precision::q8_0) {
      quantize_q8_0(values, bytes_);
    } else {
      const DType dtype = precision == Precision::f16    ? DType::f16
                          : precision == Precision::bf16 ? DType::bf16
                                                         : DType::f32;
      narrow(values, dtype, part.tensor.name, bytes_);
    }
    writer_.write(bytes_);
    if (part.info != nullptr) rounding_.add(part.info->name, values, precision, bytes_);
    progress_.add(static_cast<std::int64_t>(bytes_.size()));
  }

  const Source& source_;
  GgufWriter& writer_;
  Progress& progress_;
  Rounding& rounding_;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
};

}  // namespace

void write_gguf_file(const Source& source, const std::string& path, const Options& options, Report& report) {
  if (!source.folder())
    throw DataError(source.path() +
                    ": the model is a graph of its own; GGUF is of models that came from a model folder");
  const GgufMapping mapping(*source.folder(), options.configs_dir);
  report.notes.insert(report.notes.end(), mapping.warnings().begin(), mapping.warnings().end());
  const std::vector<Part> parts = parts_of(source, mapping, report);
  std::vector<GgufTensor> tensors;
  std::int64_t total = 0;
  for (const Part& part : parts) {
    tensors.push_back(part.tensor);
    total += part.tensor.bytes();
  }
  Progress progress(options, total);
  GgufWriter file(path, keys_of(source, mapping, report), tensors);
  Rounding rounding(source);
  Writer writer(source, file, progress, rounding);
  for (const Part& part : parts) writer.write(part);
  rounding.tell(report);
  report.files.emplace_back(fs::path(options.out).filename().string(), file.finish());
}

}  // namespace trainer::exporting
