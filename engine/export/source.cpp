// How each kind of source is opened, and how an adapter's product is added to the base's weights.
#include "engine/export/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/narrow.h"
#include "engine/graph/graph.h"
#include "engine/job/yaml.h"
#include "engine/train/base.h"
#include "engine/transform/transform.h"

namespace trainer::exporting {
namespace {

using checkpoint::Range;
using checkpoint::TensorInfo;

constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight";
constexpr std::size_t kMostProblems = 20;

/// The model's tensors of a checkpoint: those in model files; the others are states of the optimizer.
std::vector<TensorInfo> model_tensors(const checkpoint::Manifest& manifest) {
  std::vector<TensorInfo> tensors;
  for (const checkpoint::StoredTensor& tensor : manifest.tensors) {
    const bool of_model = !tensor.pieces.empty() && manifest.files[tensor.pieces[0].file].name.starts_with("model");
    if (of_model) tensors.push_back(tensor.info);
  }
  return tensors;
}

const std::string* setting(const SavedFacts& facts, std::string_view path) {
  if (!facts.job) return nullptr;
  for (const auto& [key, value] : facts.job->settings)
    if (key == path) return &value;
  return nullptr;
}

/// alpha / rank, or alpha / √rank.
double scale_of(const SavedFacts& facts, const std::string& path) {
  const auto number = [&](const char* key) -> yaml::Node {
    const std::string* text = setting(facts, key);
    if (text == nullptr) throw DataError(path + ": the checkpoint does not say " + key + " of its adapter");
    return yaml::parse(*text, path);
  };
  const double rank = number("adapter.rank").as_number().value_or(0),
               alpha = number("adapter.alpha").as_number().value_or(0);
  if (!(rank > 0)) throw DataError(path + ": the checkpoint does not say the rank of its adapter");
  const bool by_root = number("adapter.scaled_by_root").as_bool().value_or(false);
  return alpha / (by_root ? std::sqrt(rank) : rank);
}

WeightSource open_base(const Options& options, const SavedBase& saved, std::optional<ModelFolder>& folder) {
  const std::string path = options.base.empty() ? saved.from : options.base;
  if (!exists(path)) throw DataError(path + ": the base of the adapter is not there; --base names where it is");
  DiskNames names;
  if (is_model_folder(path)) {
    folder = read_model_folder(path, options.configs_dir);
    names = folder->names;
  }
  return open_weights(path, names);
}

}  // namespace

Source::Source(const Options& options) {
  const std::string& path = options.checkpoint;
  if (!exists(path)) throw DataError(path + ": there is no such file or directory");
  if (!is_directory(path))
    throw DataError(path + ": is a file; a checkpoint's directory or a model folder can be exported");
  is_model_folder(path) ? open_folder(options) : open_checkpoint(options);
  if (folder_) check_against_graph();
}

void Source::open_folder(const Options& options) {
  if (options.merge) throw UsageError(options.checkpoint + ": --merge is for checkpoints of adapters");
  path_ = files_ = options.checkpoint;
  folder_ = read_model_folder(path_, options.configs_dir);
  weights_ = open_weights(path_, folder_->names);
  if (!weights_->tensors.foreign().empty())
    throw DataError(path_ + ": has a tensor that cannot be read: " + weights_->tensors.foreign().front());
  tensors_ = weights_->tensors.tensors();
}

void Source::open_checkpoint(const Options& options) {
  weights_ = open_weights(options.checkpoint, DiskNames());
  path_ = weights_->path;
  tensors_ = model_tensors(*weights_->manifest);
  if (exists(path_ + "/config.json")) {
    files_ = path_;
    folder_ = read_model_folder(path_, options.configs_dir);
  }
  const SavedFacts facts = facts_of(*weights_->manifest, path_);
  if (facts.base) {
    if (!options.merge)
      throw UsageError(path_ + " is a checkpoint of an adapter; --merge adds it to its base, which was " +
                       facts.base->from);
    return merge(options, *facts.base, scale_of(facts, path_));
  }
  if (options.merge) throw UsageError(path_ + ": --merge is for checkpoints of adapters; this one is of a whole model");
}

// Tensors of the base, of which some become a sum, and what else the checkpoint has trained in place of the base's.
void Source::merge(const Options& options, const SavedBase& saved, double scale) {
  std::optional<ModelFolder> base_folder;
  base_ = open_base(options, saved, base_folder);
  require_base(saved, path_, *base_);
  if (!folder_ && base_folder) {
    folder_ = std::move(base_folder);
    files_ = base_->path;
  }
  scale_ = static_cast<float>(scale);
  const std::vector<TensorInfo> trained = std::exchange(tensors_, {});
  for (const std::string& name : saved.tensors) {
    const TensorInfo* info = base_->tensors.find(name);
    if (info == nullptr) throw DataError(base_->path + ": has no tensor " + name);
    tensors_.push_back(*info);
  }
  for (const TensorInfo& info : trained) {
    if (info.name.ends_with(kLoraA)) {
      take_pair(info.name.substr(0, info.name.size() - kLoraA.size()));
    } else if (!info.name.ends_with(kLoraB)) {
      const auto same = std::ranges::find(tensors_, info.name, &TensorInfo::name);
      if (same == tensors_.end() || !(same->shape == info.shape))
        throw DataError(path_ + ": " + info.name + " is not in the base " + base_->path);
      *same = info;
    }
  }
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
  matrix->dtype = DType::f32;
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
  for (const Parameter& parameter : graph.parameters) {
    const auto& value = graph.value(parameter.value);
    names.insert(value.name);
    const auto found = std::ranges::find(tensors_, value.name, &TensorInfo::name);
    if (found == tensors_.end())
      problems.push_back(value.name + " " + value.shape().str() + " is missing");
    else if (!(found->shape == value.shape()))
      problems.push_back(value.name + " is " + found->shape.str() + ", the model has " + value.shape().str());
    else if (!is_floating(found->dtype))
      problems.push_back(value.name + " holds " + std::string(trainer::name_of(found->dtype)) + ", not floats");
  }
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
  const bool trained = weights_->tensors.find(tensor.name) != nullptr;
  const checkpoint::TensorStore& store = trained ? weights_->tensors : base_->tensors;
  const auto delta = deltas_.find(tensor.name);
  if (delta == deltas_.end()) return store.read(tensor.name, range, out);
  const TensorInfo& own = *store.find(tensor.name);
  std::vector<std::byte> raw(static_cast<std::size_t>(range.size() * size_of(own.dtype)));
  store.read(tensor.name, range, raw.data());
  to_f32(own.dtype, raw.data(), range.size(), static_cast<float*>(out));
  add_delta(delta->second, range, static_cast<float*>(out));
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
      for (std::int64_t i = 0; i < count; ++i) values[i] += scale_ * sum[static_cast<std::size_t>(i)];
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
