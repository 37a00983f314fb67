// How each kind of source is opened, and how an adapter's product is added to the base's weights.
#include "engine/export/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/narrow.h"
#include "engine/core/rows_of.h"
#include "engine/export/model_folder.h"
#include "engine/graph/graph.h"
#include "engine/job/peft_config.h"
#include "engine/job/yaml.h"
#include "engine/train/base.h"
#include "engine/train/quantized.h"
#include "engine/transform/transform.h"

namespace trainer::exporting {
namespace {

using checkpoint::Range;
using checkpoint::TensorInfo;

constexpr std::size_t kMostProblems = 20;

/// ‖B A‖ of B [out, rank] and A [rank, in], by the products of their columns and rows.
double norm_of_product(const std::vector<float>& b, const std::vector<float>& a, std::int64_t rank) {
  const auto size = static_cast<std::size_t>(rank), in = a.size() / size, out = b.size() / size;
  double sum = 0;
  for (std::size_t k = 0; k < size; ++k)
    for (std::size_t l = 0; l < size; ++l) {
      double of_a = 0, of_b = 0;
      for (std::size_t i = 0; i < in; ++i) of_a += static_cast<double>(a[k * in + i]) * a[l * in + i];
      for (std::size_t i = 0; i < out; ++i) of_b += static_cast<double>(b[i * size + k]) * b[i * size + l];
      sum += of_a * of_b;
    }
  return std::sqrt(std::max(sum, 0.0));
}

}  // namespace

Source::Source(const Options& options) {
  const std::string& path = options.checkpoint;
  if (!exists(path)) throw DataError(path + ": there is no such file or directory");
  if (!is_directory(path))
    throw DataError(path + ": is a file; a checkpoint's directory or a model folder can be exported");
  if (is_peft_folder(path)) {
    if (!options.merge) throw UsageError(path + " is an adapter; --merge adds it to its base");
    merge(adapter_of_peft_folder(options));
  } else {
    is_model_folder(path) ? open_folder(options) : open_checkpoint(options);
  }
  if (folder_) check_against_graph();
}

void Source::open_folder(const Options& options) {
  if (options.merge) throw UsageError(options.checkpoint + ": --merge is for adapters");
  path_ = files_ = options.checkpoint;
  folder_ = read_whole_folder(path_, options.configs_dir);
  weights_ = open_weights(path_, folder_->names);
  if (!weights_->tensors.foreign().empty())
    throw DataError(path_ + ": has a tensor that cannot be read: " + weights_->tensors.foreign().front());
  tensors_ = weights_->tensors.tensors();
}

void Source::open_checkpoint(const Options& options) {
  weights_ = open_weights(options.checkpoint, DiskNames());
  path_ = weights_->path;
  tensors_ = model_tensors(*weights_->manifest);
  const SavedFacts facts = facts_of(*weights_->manifest, path_);
  if (exists(path_ + "/config.json")) {
    files_ = path_;
    folder_ = read_trained_folder(path_, facts, options.configs_dir);
  }
  if (facts.base) {
    if (!options.merge)
      throw UsageError(path_ + " is a checkpoint of an adapter; --merge adds it to its base, which was " +
                       facts.base->from + ", --format adapter writes it alone");
    WeightSource weights = std::move(*weights_);
    return merge(adapter_of_checkpoint(std::move(weights), facts, options));
  }
  if (options.merge) throw UsageError(path_ + ": --merge is for adapters; this checkpoint is of a whole model");
}

// Tensors of the base, of which some become a sum, and what else the checkpoint has trained in place of the base's.
void Source::merge(Adapter adapter) {
  if (!exists(adapter.base))
    throw DataError(adapter.base + ": the base of the adapter is not there; --base names where it is");
  const bool from_base = !exists(adapter.weights.path + "/config.json");  // a checkpoint carries its own
  folder_ = std::move(adapter.folder);
  base_ = open_weights(adapter.base, folder_ ? folder_->names : DiskNames());
  weights_ = std::move(adapter.weights);
  path_ = weights_->path;
  if (adapter.saved) require_base(*adapter.saved, path_, *base_);
  if (folder_) files_ = from_base ? base_->path : path_;
  scale_ = static_cast<float>(adapter.scale());
  tensors_ = base_->tensors.tensors();
  if (adapter.saved) {
    tensors_ = named(adapter.saved->tensors);
    quantization_ = adapter.saved->quantization;
    quantized_.insert(adapter.saved->quantized.begin(), adapter.saved->quantized.end());
  }
  for (TensorInfo& info : tensors_)
    if (quantized_.contains(info.name)) info.dtype = DType::f32;
  for (const TensorInfo& info : adapter.tensors) {
    if (info.name.ends_with(kLoraA)) {
      take_pair(info.name.substr(0, info.name.size() - kLoraA.size()));
    } else if (const std::optional<RowsOf> rows = named_rows(info.name)) {
      const auto table = std::ranges::find(tensors_, rows->tensor, &TensorInfo::name);
      if (table == tensors_.end() || !(table->shape == Shape{rows->rows, info.shape[-1]}))
        throw DataError(path_ + ": " + info.name + " are no rows of the base " + base_->path);
      table->dtype = DType::f32;
      rows_[table->name].push_back({info.name, rows->first * info.shape[-1], rows->last * info.shape[-1]});
    } else if (!info.name.ends_with(kLoraB) && !info.name.ends_with(kMagnitude)) {
      const auto same = std::ranges::find(tensors_, info.name, &TensorInfo::name);
      if (same == tensors_.end() || !(same->shape == info.shape))
        throw DataError(path_ + ": " + info.name + " is not in the base " + base_->path);
      *same = info;
    }
  }
}

std::vector<TensorInfo> Source::named(const std::vector<std::string>& names) const {
  std::vector<TensorInfo> tensors;
  for (const std::string& name : names) {
    const TensorInfo* info = base_->tensors.find(name);
    if (info == nullptr) throw DataError(base_->path + ": has no tensor " + name);
    tensors.push_back(*info);
  }
  return tensors;
}

void Source::take_pair(const std::string& node) {
  const checkpoint::TensorStore& adapter = weights_->tensors;
  const TensorInfo *a = adapter.find(node + std::string(kLoraA)), *b = adapter.find(node + std::string(kLoraB));
  const auto matrix = std::ranges::find(tensors_, node + ".weight", &TensorInfo::name);
  const bool fits = b != nullptr && matrix != tensors_.end() && a->shape.rank() == 2 && b->shape.rank() == 2 &&
                    matrix->shape == Shape{b->shape[0], a->shape[1]} && a->shape[0] == b->shape[1];
  if (!fits) throw DataError(path_ + ": the adapter of " + node + " does not fit its base " + base_->path);
  Delta& delta = deltas_[matrix->name];
  delta.rank = a->shape[0];
  delta.columns = a->shape[1];
  const auto all = [&](const TensorInfo& info, std::vector<float>& values) {
    read_f32(info, {0, info.shape.elements()}, values);
  };
  all(*a, delta.a);
  all(*b, delta.b);
  delta.norm = std::abs(scale_) * norm_of_product(delta.b, delta.a, delta.rank);
  matrix->dtype = DType::f32;
  if (const TensorInfo* magnitude = adapter.find(node + std::string(kMagnitude)); magnitude != nullptr)
    take_gains(*matrix, *magnitude, delta);
}

// Norms of the rows of W + s B A, and of what the gains change: a pass over the rows.
void Source::take_gains(const TensorInfo& matrix, const TensorInfo& magnitude, Delta& delta) const {
  const std::int64_t rows = matrix.shape[0], columns = matrix.shape[1];
  if (!(magnitude.shape == Shape{rows}))
    throw DataError(path_ + ": " + magnitude.name + " is " + magnitude.shape.str() + ", where one for each row of " +
                    matrix.name + " " + matrix.shape.str() + " is needed");
  std::vector<float> gains, plain(static_cast<std::size_t>(columns)), sum;
  read_f32(magnitude, {0, rows}, gains);
  double changed = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const Range range{row * columns, (row + 1) * columns};
    read_plain(matrix.name, range, plain.data());
    sum = plain;
    add_delta(delta, range, sum.data());
    double squares = 0;
    for (const float value : sum) squares += static_cast<double>(value) * value;
    float& gain = gains[static_cast<std::size_t>(row)];
    gain = static_cast<float>(gain / std::sqrt(squares));
    if (!std::isfinite(gain))
      throw DataError(fmt::format("{}: row {} of {} has the norm 0, which {} cannot scale", path_, row, matrix.name,
                                  magnitude.name));
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const double change = static_cast<double>(gain) * sum[i] - plain[i];
      changed += change * change;
    }
  }
  delta.gains = std::move(gains);
  delta.norm = std::sqrt(changed);
}

std::optional<double> Source::change_of(const std::string& tensor) const {
  const auto found = deltas_.find(tensor);
  return found == deltas_.end() ? std::nullopt : std::optional(found->second.norm);
}

// Names and shapes are those of the graph that config.json says.
void Source::check_against_graph() const {
  BuildOptions options;
  options.seq = std::min<std::int64_t>(8, folder_->longest.value_or(8));
  options.mode = BuildOptions::Mode::evaluate;
  options.any_fields = true;
  const Graph graph = read_graph(yaml::read_file(folder_->graph), folder_->with, options);
  std::vector<std::string> problems;
  std::set<std::string> names;
  const auto expect = [&](const Value& value) {
    names.insert(value.name);
    const auto found = std::ranges::find(tensors_, value.name, &TensorInfo::name);
    if (found == tensors_.end())
      problems.push_back(value.name + " " + value.shape().str() + " is missing");
    else if (!(found->shape == value.shape()))
      problems.push_back(value.name + " is " + found->shape.str() + ", the model has " + value.shape().str());
    else if (!is_floating(found->dtype))
      problems.push_back(value.name + " holds " + std::string(trainer::name_of(found->dtype)) + ", not floats");
  };
  for (const Parameter& parameter : graph.parameters) expect(graph.value(parameter.value));
  for (const GraphState& state : graph.states) expect(graph.value(state.value));
  for (const TensorInfo& info : tensors_)
    if (!names.contains(info.name)) problems.push_back(info.name + " " + info.shape.str() + " is not in the model");
  if (problems.empty()) return;
  if (problems.size() > kMostProblems) problems.resize(kMostProblems);
  throw DataError(fmt::format("{} does not fit its config.json:\n  {}", path_, fmt::join(problems, "\n  ")));
}

Precision Source::precision() const {
  if (!folder_) return Precision::f32;
  std::optional<DType> dtype = folder_->dtype;
  if (!dtype && !weights_->manifest && !tensors_.empty()) dtype = tensors_.front().dtype;
  return dtype == DType::bf16 ? Precision::bf16 : dtype == DType::f16 ? Precision::f16 : Precision::f32;
}

void Source::read(const TensorInfo& tensor, const Range& range, void* out) const {
  const auto delta = deltas_.find(tensor.name);
  const auto rows = rows_.find(tensor.name);
  if (delta == deltas_.end() && rows == rows_.end() && !is_quantized(tensor.name))
    return store_of(tensor.name).read(tensor.name, range, out);
  read_plain(tensor.name, range, static_cast<float*>(out));
  if (delta != deltas_.end()) add_delta(delta->second, range, static_cast<float*>(out));
  if (rows != rows_.end()) put_rows(rows->second, range, static_cast<float*>(out));
}

void Source::put_rows(const std::vector<TrainedRows>& all, const Range& range, float* values) const {
  for (std::int64_t r = 0; r < range.repeat; ++r, values += range.count()) {
    const std::int64_t begin = range.first + r * range.stride, end = begin + range.count();
    for (const TrainedRows& rows : all) {
      const std::int64_t first = std::max(begin, rows.first), last = std::min(end, rows.last);
      if (first < last) weights_->tensors.read(rows.name, first - rows.first, last - first, values + (first - begin));
    }
  }
}

/// The adapter's checkpoint, where that has the tensor.
const checkpoint::TensorStore& Source::store_of(const std::string& tensor) const {
  return weights_->tensors.find(tensor) != nullptr ? weights_->tensors : base_->tensors;
}

/// Of the base, and not trained in its place.
bool Source::is_quantized(const std::string& tensor) const {
  return quantized_.contains(tensor) && weights_->tensors.find(tensor) == nullptr;
}

void Source::read_plain(const std::string& tensor, const Range& range, float* out) const {
  if (is_quantized(tensor)) return read_dequantized(base_->tensors, tensor, quantization_, range, out);
  const checkpoint::TensorStore& store = store_of(tensor);
  const TensorInfo& own = *store.find(tensor);
  std::vector<std::byte> raw(static_cast<std::size_t>(range.size() * size_of(own.dtype)));
  store.read(tensor, range, raw.data());
  to_f32(own.dtype, raw.data(), range.size(), out);
}

void Source::add_delta(const Delta& delta, const Range& range, float* values) const {
  std::vector<float> sum;
  for (std::int64_t r = 0; r < range.repeat; ++r) {
    const Range run{range.first + r * range.stride, range.last + r * range.stride};
    for (std::int64_t at = run.first; at < run.last;) {
      const std::int64_t row = at / delta.columns, column = at % delta.columns;
      const std::int64_t count = std::min(run.last - at, delta.columns - column);
      sum.assign(static_cast<std::size_t>(count), 0.0F);
      for (std::int64_t k = 0; k < delta.rank; ++k) {
        const float b = delta.b[static_cast<std::size_t>(row * delta.rank + k)];
        const float* a = delta.a.data() + k * delta.columns + column;
        for (std::int64_t i = 0; i < count; ++i) sum[static_cast<std::size_t>(i)] += b * a[i];
      }
      const float gain = delta.gains.empty() ? 1.0F : delta.gains[static_cast<std::size_t>(row)];
      for (std::int64_t i = 0; i < count; ++i)
        values[i] = gain * (values[i] + scale_ * sum[static_cast<std::size_t>(i)]);
      values += count;
      at += count;
    }
  }
}

void Source::read_f32(const TensorInfo& tensor, const Range& range, std::vector<float>& out) const {
  out.resize(static_cast<std::size_t>(range.size()));
  if (tensor.dtype == DType::f32) {
    read(tensor, range, out.data());
  } else {
    std::vector<std::byte> raw(static_cast<std::size_t>(range.size() * size_of(tensor.dtype)));
    read(tensor, range, raw.data());
    to_f32(tensor.dtype, raw.data(), range.size(), out.data());
  }
  if (!std::ranges::all_of(out, [](float value) { return std::isfinite(value); }))
    throw DataError(path_ + ": the weight " + tensor.name + " is not finite; take an earlier checkpoint");
}

}  // namespace trainer::exporting
