// A folder that transformers' from_pretrained opens: weights under the family's names, in files of at most a given
// size, and config, tokenizer and the rest as they came.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/copy.h"
#include "engine/checkpoint/folder_files.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/glob.h"
#include "engine/core/narrow.h"
#include "engine/export/config_text.h"
#include "engine/export/formats.h"
#include "engine/export/rounding.h"
#include "engine/job/yaml.h"
#include "engine/transform/experts.h"

namespace trainer::exporting {
namespace {

namespace fs = std::filesystem;
using checkpoint::Range;
using checkpoint::TensorInfo;
using OrderedJson = nlohmann::ordered_json;

constexpr std::int64_t kMostConfigBytes = std::int64_t{1} << 20;

DType dtype_of(Precision precision) {
  return precision == Precision::bf16 ? DType::bf16 : precision == Precision::f16 ? DType::f16 : DType::f32;
}

std::string_view torch_name(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
}

/// A tensor of the model and how it lies in the folder's files.
struct Placed {
  const TensorInfo* info = nullptr;
  std::string name;
  bool transposed = false;
  Shape shape;
  std::int64_t first = 0;  ///< of its elements in the tensor
  Precision precision = Precision::f32;

  DType dtype() const { return dtype_of(precision); }
  std::int64_t bytes() const { return shape.elements() * size_of(dtype()); }
};

/// The model's tensor as the tensors of the files that hold it: itself, or each index of its first dim.
std::vector<Placed> in_files(Placed one, const DiskNames& names) {
  for (const auto& [here, pattern] : names.in_files) {
    if (!one.name.ends_with(here)) continue;
    const std::string before = one.name.substr(0, one.name.size() - here.size());
    const std::size_t number = pattern.find("{}");
    if (number == std::string::npos) {
      one.name = before + pattern;
      return {std::move(one)};
    }
    const Shape whole = one.shape;
    std::vector<std::int64_t> sizes(whole.sizes().begin() + 1, whole.sizes().end());
    std::vector<Placed> all;
    for (std::int64_t i = 0; i < whole[0]; ++i) {
      one.name = before + pattern.substr(0, number) + std::to_string(i) + pattern.substr(number + 2);
      one.shape = Shape(sizes);
      one.first = i * one.shape.elements();
      all.push_back(one);
    }
    return all;
  }
  return {std::move(one)};
}

bool matches_any(const std::vector<std::string>& globs, const std::string& name) {
  return std::ranges::any_of(globs, [&](const std::string& glob) { return name_matches(glob, name); });
}

std::vector<Placed> place_all(const Source& source, Precision precision) {
  // A section of a larger model becomes a folder of its own, whose names have no prefix.
  const bool plain = !source.folder() || !source.folder()->part.empty();
  const DiskNames names = source.folder() ? source.folder()->names : DiskNames();
  std::vector<Placed> placed;
  for (const TensorInfo& info : source.tensors()) {
    Placed one{&info, info.name,
               false, info.shape,
               0,     is_router_bias(info.name) ? Precision::f32 : precision};  // as transformers holds it
    if (!plain) one.name = with_prefix(names, info.name);
    one.transposed = info.shape.rank() == 2 && matches_any(names.transposed, info.name);
    if (one.transposed) one.shape = Shape{info.shape[1], info.shape[0]};
    const std::size_t whole = placed.size();
    for (Placed& each : in_files(std::move(one), names)) placed.push_back(std::move(each));
    for (const auto& [name, original] : names.copies)
      if (original == info.name) {
        Placed copy = placed[whole];
        copy.name = name;
        placed.push_back(std::move(copy));
      }
  }
  return placed;
}

/// Files, each filled with tensors in their order until the next would make it too large.
std::vector<std::vector<Placed>> shards_of(std::vector<Placed> placed, std::int64_t most) {
  std::vector<std::vector<Placed>> shards(1);
  std::int64_t bytes = 0;
  for (Placed& one : placed) {
    const std::int64_t own = one.bytes();
    if (!shards.back().empty() && bytes + own > most) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += own;
    shards.back().push_back(std::move(one));
  }
  return shards;
}

class Writer {
 public:
  Writer(const Source& source, Progress& progress, Rounding& rounding)
      : source_(source), progress_(progress), rounding_(rounding) {}

  checkpoint::SafetensorsWriter::Written write(const std::string& path, const std::vector<Placed>& shard) {
    std::vector<checkpoint::TensorSpec> specs;
    for (const Placed& one : shard) specs.push_back({one.name, one.dtype(), one.shape});
    checkpoint::SafetensorsWriter writer(path, specs, {{"format", "pt"}});
    for (const Placed& one : shard) one.transposed ? write_transposed(writer, one) : write_flat(writer, one);
    return writer.finish();
  }

 private:
  void write_flat(checkpoint::SafetensorsWriter& writer, const Placed& one) {
    const std::int64_t elements = one.shape.elements();
    for (std::int64_t first = 0; first < elements; first += kWindow) {
      source_.read_f32(*one.info, {one.first + first, one.first + std::min(first + kWindow, elements)}, values_);
      put(writer, one, values_);
    }
  }

  /// Rows of the file are columns of the tensor: some of them at a time.
  void write_transposed(checkpoint::SafetensorsWriter& writer, const Placed& one) {
    const std::int64_t rows = one.info->shape[0], columns = one.info->shape[1];
    const std::int64_t at_once = std::max<std::int64_t>(1, kWindow / std::max<std::int64_t>(1, rows));
    std::vector<float> turned;
    for (std::int64_t first = 0; first < columns; first += at_once) {
      const std::int64_t count = std::min(at_once, columns - first);
      const Range range = count == columns ? Range{0, rows * columns} : Range{first, first + count, rows, columns};
      source_.read_f32(*one.info, range, values_);
      turned.resize(values_.size());
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t i = 0; i < count; ++i)
          turned[static_cast<std::size_t>(i * rows + row)] = values_[static_cast<std::size_t>(row * count + i)];
      put(writer, one, turned);
    }
  }

  void put(checkpoint::SafetensorsWriter& writer, const Placed& one, const std::vector<float>& values) {
    narrow(values, one.dtype(), one.name, bytes_);
    writer.write(one.name, bytes_.data(), static_cast<std::int64_t>(bytes_.size()));
    rounding_.add(one.info->name, values, one.precision, bytes_);
    progress_.add(static_cast<std::int64_t>(bytes_.size()));
  }

  const Source& source_;
  Progress& progress_;
  Rounding& rounding_;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
};

/// The architecture of a section's model, as its own family has it.
std::string architecture_of(const std::string& model_type, const std::string& configs_dir) {
  const std::string path = (fs::path(configs_dir) / "families" / (model_type + ".yaml")).string();
  if (model_type.empty() || !exists(path)) return "";
  const yaml::Node family = yaml::read_file(path);
  const yaml::Node* names = family.find("architectures");
  return names != nullptr && !names->items.empty() ? names->items[0].text : "";
}

std::string config_of(const Source& source, DType dtype, const Options& options, Report& report) {
  const std::string& part = source.folder()->part;
  std::string text = read_text(source.files() + "/config.json", kMostConfigBytes);
  if (!part.empty()) {
    const std::string architecture = architecture_of(model_type_in(text, part), options.configs_dir);
    if (architecture.empty())
      throw DataError(source.files() + "/config.json: its " + part + " does not say which model it is");
    text = section_of(text, part, architecture);
    report.notes.push_back("the text model only, as a " + architecture + ": what else the folder has was not trained");
  }
  return with_dtype(text, torch_name(dtype));
}

void write_small_files(const Source& source, const std::string& path, DType dtype, const Options& options,
                       Report& report) {
  if (source.files().empty()) {
    report.notes.push_back(
        "weights only: the model is a graph of its own, not a model folder, so there is no config.json");
    return;
  }
  if (const std::string other = source.path() + "/data_tokenizer.json"; exists(other))
    report.notes.push_back("the tokenizer is the model folder's; the text of the training had another one: " + other);
  for (const std::string& from : checkpoint::files_beside_weights(source.files())) {
    const std::string name = fs::path(from).filename().string(), to = path + "/" + name;
    if (name == "config.json")
      write_text(to, config_of(source, dtype, options, report));
    else
      checkpoint::copy_durably(from, to);
    report.files.emplace_back(name, static_cast<std::int64_t>(fs::file_size(to)));
  }
}

}  // namespace

std::string with_prefix(const DiskNames& names, const std::string& name) {
  const bool stays = std::ranges::find(names.renamed, std::pair(name, name)) != names.renamed.end();
  return stays || names.prefixes.empty() ? name : names.prefixes.front() + name;
}

void write_text(const std::string& path, const std::string& text) {
  const Descriptor file = create_file(path);
  write_all(file, text.data(), text.size(), path);
  sync_file(file, path);
}

void narrow(const std::vector<float>& values, DType dtype, const std::string& tensor, std::vector<std::byte>& out) {
  const auto count = static_cast<std::int64_t>(values.size());
  out.resize(values.size() * static_cast<std::size_t>(size_of(dtype)));
  from_f32(values.data(), count, dtype, out.data());
  if (dtype == DType::f32) return;
  const auto too_large = [&](float value) {  // what rounds to infinity
    return dtype == DType::f16 ? std::abs(value) >= 65520.0F : std::abs(value) >= 3.3961775e38F;
  };
  const auto found = std::ranges::find_if(values, too_large);
  if (found != values.end())
    throw DataError(fmt::format("{}: the weight {} is too large for {}; --dtype {} holds it", tensor, *found,
                                trainer::name_of(dtype), dtype == DType::f16 ? "bf16" : "f32"));
}

void write_hf_folder(const Source& source, const std::string& path, const Options& options, Report& report) {
  const DType dtype = dtype_of(report.precision);
  std::error_code error;
  fs::create_directory(path, error);
  if (error) throw IoError(path + ": creating the folder: " + error.message());
  write_small_files(source, path, dtype, options, report);
  std::vector<Placed> placed = place_all(source, report.precision);
  std::int64_t total = 0;
  for (const Placed& one : placed) total += one.bytes();
  const std::vector<std::vector<Placed>> shards = shards_of(std::move(placed), options.shard_bytes);
  Progress progress(options, total);
  Rounding rounding(source);
  Writer writer(source, progress, rounding);
  const int num_shards = static_cast<int>(shards.size());
  OrderedJson map = OrderedJson::object();
  for (int i = 0; i < num_shards; ++i) {
    const std::string name = checkpoint::file_name("model", i + 1, num_shards);
    const std::vector<Placed>& shard = shards[static_cast<std::size_t>(i)];
    report.files.emplace_back(name, writer.write(path + "/" + name, shard).bytes);
    for (const Placed& one : shard) map[one.name] = name;
  }
  rounding.tell(report);
  if (num_shards > 1) {
    const std::string name = "model.safetensors.index.json";
    const std::string text =
        OrderedJson{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}}.dump(2) + "\n";
    write_text(path + "/" + name, text);
    report.files.emplace_back(name, static_cast<std::int64_t>(text.size()));
  }
  sync_directory(path);
}

}  // namespace trainer::exporting
