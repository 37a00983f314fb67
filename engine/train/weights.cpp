// Between the flat buffers of units and tensors by name.
#include "engine/train/weights.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/core/random.h"

namespace trainer {
namespace {

constexpr std::int64_t kChunk = std::int64_t{1} << 18;  // elements moved at a time
constexpr const char* kApplied = "applied_updates";

Region part(BufferId buffer, const UnitTensor& tensor, std::int64_t first, std::int64_t count) {
  return {buffer, (tensor.offset + first) * size_of(DType::f32), count * size_of(DType::f32)};
}

std::string state_name(const UnitTensor& tensor, const std::string& state) { return tensor.name + "." + state; }

// Runs job(i) for i in [0, count) on `threads` threads.
template <typename Work>
void spread(std::size_t count, int threads, Work&& work) {
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> helpers;
  for (int thread = 1; thread < threads; ++thread) helpers.emplace_back(run);
  run();
  for (std::thread& helper : helpers) helper.join();
}

struct Stretch {
  BufferId buffer;
  const UnitTensor* tensor;
  std::int64_t first, count;
};

std::vector<Stretch> stretches(const Role& role) {
  std::vector<Stretch> result;
  for (const Unit& unit : role.units)
    for (const UnitTensor& tensor : unit.tensors)
      for (std::int64_t first = 0; first < tensor.shape.elements(); first += kChunk)
        result.push_back({unit.master.buffer, &tensor, first, std::min(kChunk, tensor.shape.elements() - first)});
  return result;
}

void to_f32(DType dtype, const std::vector<std::byte>& raw, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    switch (dtype) {
      case DType::f64: out[i] = static_cast<float>(reinterpret_cast<const double*>(raw.data())[i]); break;
      case DType::bf16: out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(reinterpret_cast<const std::uint16_t*>(raw.data())[i]) << 16); break;
      case DType::f16: out[i] = static_cast<float>(reinterpret_cast<const _Float16*>(raw.data())[i]); break;
      default: CHECK(false, "not a float"); break;
    }
  }
}

// Every tensor under `name_of`, checked first and then read into buffer_of(unit).
class Loading {
 public:
  Loading(Executor& executor, const checkpoint::TensorStore& tensors, std::string source) : executor_(executor), tensors_(tensors), source_(std::move(source)) {}

  void expect(const std::string& name, const Shape& shape) {
    const checkpoint::TensorInfo* info = tensors_.find(name);
    if (info == nullptr)
      problems_ += "\n  " + name + " " + shape.str() + " is missing";
    else if (!(info->shape == shape))
      problems_ += "\n  " + name + " is " + info->shape.str() + ", the model has " + shape.str();
    else if (!is_floating(info->dtype))
      problems_ += "\n  " + name + " holds " + std::string(name_of(info->dtype)) + ", not floats";
  }

  void unexpected(const checkpoint::TensorInfo& info) { problems_ += "\n  " + info.name + " " + info.shape.str() + " is not in the model"; }

  void check() const {
    if (!problems_.empty()) throw DataError(source_ + " does not fit the model:" + problems_);
  }

  void read(const std::string& name, BufferId buffer, const UnitTensor& tensor) {
    const DType dtype = tensors_.find(name)->dtype;
    std::vector<float> values(static_cast<std::size_t>(std::min(kChunk, tensor.shape.elements())));
    std::vector<std::byte> raw;
    for (std::int64_t first = 0; first < tensor.shape.elements(); first += kChunk) {
      const std::int64_t count = std::min(kChunk, tensor.shape.elements() - first);
      if (dtype == DType::f32) {
        tensors_.read(name, first, count, values.data());
      } else {
        raw.resize(static_cast<std::size_t>(count * size_of(dtype)));
        tensors_.read(name, first, count, raw.data());
        to_f32(dtype, raw, count, values.data());
      }
      executor_.write(part(buffer, tensor, first, count), values.data());
    }
  }

 private:
  Executor& executor_;
  const checkpoint::TensorStore& tensors_;
  std::string source_, problems_;
};

checkpoint::Checkpoint open_from(const std::string& path) {
  if (std::filesystem::exists(path + "/" + checkpoint::kManifestName)) {
    const std::vector<std::string> damaged = checkpoint::verify(path);
    if (!damaged.empty()) throw DataError("checkpoint is damaged: " + damaged.front());
    return checkpoint::open_checkpoint(path);
  }
  checkpoint::NewestWhole newest = checkpoint::newest_whole(path);
  if (newest.checkpoint) return std::move(*newest.checkpoint);
  throw DataError(newest.damaged.empty() ? path + ": no checkpoint here" : "checkpoint is damaged: " + newest.damaged.front());
}

// One file of a rank: entries and where each one's elements lie.
class File {
 public:
  File(const Executor& executor, const std::string& dir, std::int64_t step, const std::string& name) : executor_(executor), dir_(dir), step_(step), name_(name) {}

  void add(const std::string& name, DType dtype, const Shape& shape, const Region& region) {
    entries_.push_back({{name, dtype, shape}, {0, shape.elements()}});
    regions_.emplace(name, region);
  }

  void write() {
    if (entries_.empty()) return;
    checkpoint::FileWriter writer(dir_, step_, name_, std::move(entries_));
    std::vector<std::byte> chunk;
    for (const auto& entry : writer.order()) {
      const std::int64_t width = size_of(entry.tensor.dtype);
      const Region& region = regions_.at(entry.tensor.name);
      for (std::int64_t first = 0; first < entry.range.size(); first += kChunk) {
        const std::int64_t count = std::min(kChunk, entry.range.size() - first);
        chunk.resize(static_cast<std::size_t>(count * width));
        executor_.read({region.buffer, region.offset + first * width, count * width}, chunk.data());
        writer.write(entry, chunk.data(), count);
      }
    }
    writer.finish();
  }

 private:
  const Executor& executor_;
  const std::string dir_;
  const std::int64_t step_;
  const std::string name_;
  std::vector<checkpoint::FileWriter::Entry> entries_;
  std::map<std::string, Region> regions_;
};

}  // namespace

void draw_weights(Executor& executor, std::uint64_t seed, int threads) {
  const std::vector<Stretch> all = stretches(executor.role());
  spread(all.size(), threads, [&](std::size_t i) {
    const Stretch& stretch = all[i];
    const Init& init = stretch.tensor->init;
    std::vector<float> values(static_cast<std::size_t>(stretch.count), static_cast<float>(init.constant));
    if (init.stddev != 0) {
      fill_normal(random_key(seed, stretch.tensor->name), 0, stretch.first, stretch.count, values.data());
      for (float& value : values) value = static_cast<float>(init.constant) + static_cast<float>(init.stddev) * value;
    }
    executor.write(part(stretch.buffer, *stretch.tensor, stretch.first, stretch.count), values.data());
  });
}

void load_weights(Executor& executor, const checkpoint::TensorStore& tensors, const std::string& source, bool exact) {
  Loading loading(executor, tensors, source);
  std::set<std::string, std::less<>> known;
  for (const Unit& unit : executor.role().units)
    for (const UnitTensor& tensor : unit.tensors) {
      loading.expect(tensor.name, tensor.shape);
      known.insert(tensor.name);
    }
  for (const checkpoint::TensorInfo& info : tensors.tensors())
    if (exact && !known.contains(info.name)) loading.unexpected(info);
  loading.check();
  for (const Unit& unit : executor.role().units)
    for (const UnitTensor& tensor : unit.tensors) loading.read(tensor.name, unit.master.buffer, tensor);
}

std::optional<checkpoint::Manifest> load_weights_from(Executor& executor, const std::string& path) {
  if (!std::filesystem::exists(path)) throw DataError(path + ": there is no such file or directory");
  if (!std::filesystem::is_directory(path)) {
    load_weights(executor, checkpoint::TensorStore::from_safetensors(path), path, true);
    return std::nullopt;
  }
  checkpoint::Checkpoint found = open_from(path);
  load_weights(executor, found.tensors, found.path, false);
  return found.manifest;
}

void load_states(Executor& executor, const checkpoint::TensorStore& tensors, const std::string& source) {
  Loading loading(executor, tensors, source);
  const checkpoint::TensorInfo* applied = tensors.find(kApplied);
  if (applied == nullptr || applied->dtype != DType::i32 || !(applied->shape == Shape{1})) throw DataError(source + " has no " + kApplied);
  for (const Unit& unit : executor.role().units)
    for (const UnitTensor& tensor : unit.tensors)
      for (const std::string& state : unit.state_names) loading.expect(state_name(tensor, state), tensor.shape);
  loading.check();
  for (const Unit& unit : executor.role().units)
    for (const UnitTensor& tensor : unit.tensors)
      for (std::size_t i = 0; i < unit.states.size(); ++i) loading.read(state_name(tensor, unit.state_names[i]), unit.states[i], tensor);
  std::int32_t count = 0;
  tensors.read(kApplied, 0, 1, &count);
  executor.write({executor.role().applied, 0, size_of(DType::i32)}, &count);
}

void set_scalars(Executor& executor, float loss_scale) {
  const float scalars[4] = {1.0F, loss_scale, 0.0F, 0.0F};
  executor.write({executor.role().scalars, 0, sizeof scalars}, scalars);
}

void write_weights(const Executor& executor, const std::string& dir, std::int64_t step, const Ownership& ownership) {
  if (ownership.owner < 0) return;
  const Role& role = executor.role();
  File model(executor, dir, step, checkpoint::file_name("model", ownership.owner, ownership.num_owners));
  File optimizer(executor, dir, step, checkpoint::file_name("optimizer", ownership.owner, ownership.num_owners));
  for (std::size_t index = 0; index < role.units.size(); ++index) {
    if (!ownership.owns(index)) continue;
    const Unit& unit = role.units[index];
    for (const UnitTensor& tensor : unit.tensors) {
      model.add(tensor.name, DType::f32, tensor.shape, part(unit.master.buffer, tensor, 0, tensor.shape.elements()));
      for (std::size_t i = 0; i < unit.states.size(); ++i)
        optimizer.add(state_name(tensor, unit.state_names[i]), DType::f32, tensor.shape, part(unit.states[i], tensor, 0, tensor.shape.elements()));
    }
  }
  if (ownership.owner == 0) optimizer.add(kApplied, DType::i32, Shape{1}, {role.applied, 0, size_of(DType::i32)});
  model.write();
  optimizer.write();
}

}  // namespace trainer
