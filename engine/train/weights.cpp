// Drawing and loading: every rank its own pieces.
#include "engine/train/weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/core/error.h"
#include "engine/core/narrow.h"
#include "engine/core/parallel.h"
#include "engine/core/random.h"
#include "engine/job/peft_config.h"
#include "engine/train/held_buffer.h"
#include "engine/train/quantized.h"
#include "engine/train/staging.h"
#include "engine/train/stored.h"

namespace trainer {
namespace {

std::int64_t largest_chunk(const std::vector<Piece>& pieces) {
  std::int64_t largest = 0;
  for (const Piece& piece : pieces) largest = std::max(largest, std::min(kStagedElements, piece.elements()));
  return largest;
}

// Calls visit(unit, tensor, pieces) for what the rank holds of `units`.
template <typename Visit>
void for_each_held(const LoadedRank& loaded, const std::vector<Unit>& units, Visit&& visit) {
  const Mesh& mesh = loaded.plan.mesh;
  for (const Unit& unit : units)
    for (const UnitTensor& tensor : unit.tensors)
      visit(unit, tensor, held_pieces(unit, tensor, mesh, mesh.coordinates(loaded.rank)));
}

// Every tensor is expected, then all are checked, then they are read.
class Loading {
 public:
  Loading(const checkpoint::TensorStore& tensors, std::string source) : tensors_(tensors), source_(std::move(source)) {}

  void expect(const std::string& name, const Shape& shape) {
    const checkpoint::TensorInfo* info = tensors_.find(name);
    if (info == nullptr)
      problems_ += "\n  " + name + " " + shape.str() + " is missing";
    else if (!(info->shape == shape))
      problems_ += "\n  " + name + " is " + info->shape.str() + ", the model has " + shape.str();
    else if (!is_floating(info->dtype))
      problems_ += "\n  " + name + " holds " + std::string(name_of(info->dtype)) + ", not floats";
  }

  void unexpected(const checkpoint::TensorInfo& info) {
    problems_ += "\n  " + info.name + " " + info.shape.str() + " is not in the model";
  }

  // A state that another optimizer does not have lacks for many parameters: the first is named.
  void lacks_state(const std::string& parameter, const std::string& state) {
    if (!lacking_.insert(state).second) return;
    problems_ += "\n  " + parameter + " has no " + state +
                 ": it was not trained by this optimizer in that run; model.init_from takes the parameters only";
  }

  void check() const {
    if (!problems_.empty()) throw DataError(source_ + " does not fit the model:" + problems_);
  }

  void read(const std::string& name, const HeldBuffer& buffer, const std::vector<Piece>& pieces) const {
    read_sum({name}, 1.0F, buffer, pieces);
  }

  // factor times the sum of tensors of one shape, in their order.
  void read_sum(const std::vector<std::string>& names, float factor, const HeldBuffer& buffer,
                const std::vector<Piece>& pieces) const {
    if (buffer.block() != 0) return read_blocks(names, factor, buffer, pieces);
    std::vector<float> values, more;
    values.reserve(static_cast<std::size_t>(largest_chunk(pieces)));
    for (const Piece& piece : pieces)
      for (const Piece& chunk : chunks_of(piece, kStagedElements)) {
        read_sum_of_chunk(names, factor, chunk, values, more);
        buffer.write(chunk, values.data());
      }
  }

 private:
  // A scale is that of all elements of its block, so whole blocks are put together before they are written. A block
  // holds elements of one tensor (engine/plan/assemble/units.cpp).
  void read_blocks(const std::vector<std::string>& names, float factor, const HeldBuffer& buffer,
                   const std::vector<Piece>& pieces) const {
    std::vector<float> values, more, window;
    for (const ElementRange& range : buffer.windows(pieces, kStagedElements)) {
      window.assign(static_cast<std::size_t>(range.size()), 0.0F);
      for (const Piece& piece : pieces)
        for (const Piece& part : clip_local(piece, range)) {
          read_sum_of_chunk(names, factor, part, values, more);
          for (std::size_t i = 0; i < values.size(); ++i)
            if (!std::isfinite(values[i]))
              throw DataError(source_ + ": " + names.front() +
                              " holds a number that is not finite, which states in int8 cannot: "
                              "train.optimizer.states=f32 takes it");
          for (std::int64_t r = 0; r < part.repeat; ++r)
            std::copy_n(values.data() + r * part.count, part.count,
                        window.data() + (part.local + r * part.local_stride - range.first));
        }
      buffer.write_blocks(range, window.data());
    }
  }

  void read_sum_of_chunk(const std::vector<std::string>& names, float factor, const Piece& chunk,
                         std::vector<float>& values, std::vector<float>& more) const {
    read_chunk(names.front(), chunk, values);
    for (std::size_t i = 1; i < names.size(); ++i) {
      read_chunk(names[i], chunk, more);
      for (std::size_t j = 0; j < values.size(); ++j) values[j] += more[j];
    }
    if (factor != 1.0F)
      for (float& value : values) value *= factor;
  }

  void read_chunk(const std::string& name, const Piece& chunk, std::vector<float>& values) const {
    const DType dtype = tensors_.find(name)->dtype;
    values.resize(static_cast<std::size_t>(chunk.elements()));
    if (dtype == DType::f32) return tensors_.read(name, range_of(chunk), values.data());
    std::vector<std::byte> raw(static_cast<std::size_t>(chunk.elements() * size_of(dtype)));
    tensors_.read(name, range_of(chunk), raw.data());
    to_f32(dtype, raw.data(), chunk.elements(), values.data());
  }

  const checkpoint::TensorStore& tensors_;
  std::string source_, problems_;
  std::set<std::string> lacking_;  // states
};

// What holders kept for themselves of a tensor, by holder.
std::vector<std::string> own_names(const checkpoint::TensorStore& tensors, const UnitTensor& tensor,
                                   const std::string& what) {
  std::vector<std::string> names;
  for (int holder = 0; tensors.find(own_name(tensor, what, holder)) != nullptr; ++holder)
    names.push_back(own_name(tensor, what, holder));
  return names;
}

// Every state is expected, except the strategy's: another strategy has others.
void expect_states(Loading& loading, const checkpoint::TensorStore& tensors, const Unit& unit) {
  for (const UnitTensor& tensor : unit.tensors)
    for (const Slot& slot : unit.slots) {
      if (!slot.saved || &slot == &unit.parameters()) continue;
      const std::vector<std::string> own = own_names(tensors, tensor, slot.name);
      for (const std::string& each : own) loading.expect(each, tensor.spec.whole);
      const std::string name = state_name(tensor, slot.name);
      if (slot.kind != Slot::Kind::residual && tensors.find(name) != nullptr)
        loading.expect(name, tensor.spec.whole);
      else if (own.empty() && slot.kind == Slot::Kind::state)
        loading.lacks_state(tensor.name, slot.name);
    }
}

// One rank's states of one tensor.
class LoadingStates {
 public:
  /// `rescale`: the loss scale of now over that of the checkpoint.
  LoadingStates(const LoadedRank& loaded, const Loading& loading, const checkpoint::TensorStore& tensors, float rescale,
                const Unit& unit, const UnitTensor& tensor)
      : loaded_(loaded),
        loading_(loading),
        tensors_(tensors),
        rescale_(rescale),
        unit_(unit),
        tensor_(tensor),
        holder_(state_owner_of(unit, loaded.plan.mesh, loaded.plan.mesh.coordinates(loaded.rank))) {}

  void state(const Slot& slot, const std::vector<Piece>& pieces) const {
    const std::string name = state_name(tensor_, slot.name);
    const HeldBuffer buffer = held_buffer(loaded_, unit_, slot);
    const std::vector<std::string> own = own_names(tensors_, tensor_, slot.name);
    if (slot.own() && static_cast<int>(own.size()) == holder_.count)
      loading_.read(own[static_cast<std::size_t>(holder_.index)], buffer, pieces);
    else if (tensors_.find(name) != nullptr)
      loading_.read(name, buffer, pieces);
    else if (!own.empty())
      loading_.read_sum(own, 1.0F / static_cast<float>(own.size()), buffer, pieces);
  }

  void residual(const Slot& slot) const {
    const Mesh& mesh = loaded_.plan.mesh;
    const std::vector<std::string> own = own_names(tensors_, tensor_, slot.name);
    const std::vector<Piece> pieces = pieces_of(tensor_, mesh, mesh.coordinates(loaded_.rank));
    const HeldBuffer buffer = held_buffer(loaded_, unit_, slot);
    if (static_cast<int>(own.size()) == holder_.count)
      loading_.read_sum({own[static_cast<std::size_t>(holder_.index)]}, rescale_, buffer, pieces);
    else if (!own.empty() && holder_.index == 0)
      loading_.read_sum(own, rescale_, buffer, pieces);
  }

 private:
  const LoadedRank& loaded_;
  const Loading& loading_;
  const checkpoint::TensorStore& tensors_;
  const float rescale_;
  const Unit& unit_;
  const UnitTensor& tensor_;
  const StateOwner holder_;
};

// One element that rank 0 saved, if it did.
template <typename T>
std::optional<T> saved_scalar(const checkpoint::TensorStore& tensors, const char* name, DType dtype) {
  const checkpoint::TensorInfo* info = tensors.find(name);
  if (info == nullptr || info->dtype != dtype || !(info->shape == Shape{1})) return std::nullopt;
  T value{};
  tensors.read(name, 0, 1, &value);
  return value;
}

bool is_wanted(const Wanted& wanted, const Unit& unit, const UnitTensor& tensor) {
  return !wanted || wanted(unit, tensor);
}

// PyTorch counts the updates of running statistics, which matters to no momentum that is given.
bool counts_batches(std::string_view name, const std::set<std::string, std::less<>>& known) {
  constexpr std::string_view kCount = ".num_batches_tracked";
  if (!name.ends_with(kCount)) return false;
  name.remove_suffix(kCount.size());
  return known.contains(std::string(name) + ".running_mean");
}

// Where `tensors` has a parameter. A copy of which it knows nothing is where the original is.
Stored stored_in(const checkpoint::TensorStore& tensors, const UnitTensor& tensor, Copies copies) {
  const std::string& original = tensor.init.copy_of;
  const bool own = original.empty() || (copies == Copies::saved && tensors.find(tensor.name) != nullptr);
  return own ? in_store(tensor, tensors) : Stored{original, tensor.spec.whole, 0};
}

// Raises DataError for every name and shape of the model that does not fit.
void expect_weights(Loading& loading, const Plan& plan, const checkpoint::TensorStore& tensors, bool exact,
                    const Wanted& wanted, Copies copies) {
  std::set<std::string, std::less<>> known, expected;
  for (const Role& role : plan.roles)  // not one rank's alone: all ranks find the same mistakes
    for (const Unit& unit : model_units(role))
      for (const UnitTensor& tensor : unit.tensors) {
        const Stored stored = stored_in(tensors, tensor, copies);
        known.insert(stored.name);
        if (is_wanted(wanted, unit, tensor) && expected.insert(stored.name).second)
          loading.expect(stored.name, stored.shape);
      }
  for (const checkpoint::TensorInfo& info : tensors.tensors())
    if (exact && !known.contains(info.name) && !counts_batches(info.name, known)) loading.unexpected(info);
  loading.check();
}

// The whole checkpoint that `path` stands for.
std::string choose_checkpoint(const std::string& path, const Tell& tell) {
  if (exists(path + "/" + checkpoint::kManifestName)) {
    const std::vector<std::string> damaged = checkpoint::verify(path);
    if (!damaged.empty()) throw DataError("checkpoint is damaged: " + damaged.front());
    return path;
  }
  const checkpoint::NewestWhole newest = checkpoint::newest_whole(path);
  if (!newest.checkpoint)
    throw DataError(newest.damaged.empty() ? path + ": no checkpoint here"
                                           : "checkpoint is damaged: " + newest.damaged.front());
  tell_passed_over(newest, tell);
  return newest.checkpoint->path;
}

// Nothing, on all ranks, where a rank did not find it any more.
std::optional<checkpoint::Checkpoint> open_everywhere(const std::string& path, ControlChannel& channel) {
  std::optional<checkpoint::Checkpoint> opened;
  std::string error;
  try {
    opened = checkpoint::open_checkpoint(path);
  } catch (const DataError& missing) {
    error = missing.what();
  }
  if (channel.any(!opened && !exists(path))) return std::nullopt;
  if (!opened) throw DataError(error);
  return opened;
}

WeightSource open_peft_folder(const std::string& path, const DiskNames& names) {
  const std::string file = path + "/" + kPeftWeights;
  if (!exists(file) && exists(path + "/adapter_model.bin"))
    throw DataError(path +
                    ": its weights are pickled (adapter_model.bin), which is code and is not read; "
                    "save_pretrained(…, safe_serialization=True) writes .safetensors");
  if (!exists(file)) throw DataError(path + ": has no " + kPeftWeights);
  DiskNames own;
  own.prefixes = peft_prefixes(names.prefixes);
  return {path, checkpoint::TensorStore::from_safetensors(file, own), std::nullopt};
}

// `open` opens the checkpoint that a directory stands for.
template <typename Open>
WeightSource open_source(const std::string& path, const DiskNames& names, Open&& open) {
  if (!exists(path)) throw DataError(path + ": there is no such file or directory");
  if (!is_directory(path)) return {path, checkpoint::TensorStore::from_safetensors(path), std::nullopt};
  if (is_peft_folder(path)) return open_peft_folder(path, names);
  if (exists(path + "/config.json") && !exists(path + "/manifest.json"))
    return {path, checkpoint::TensorStore::from_folder(path, names), std::nullopt};
  checkpoint::Checkpoint found = open();
  return {found.path, std::move(found.tensors), std::move(found.manifest)};
}

}  // namespace

HeldBuffer held_buffer(const LoadedRank& loaded, const Unit& unit, const Slot& slot) {
  const Mesh& mesh = loaded.plan.mesh;
  const ElementRange held =
      slot.own() ? ElementRange{0, unit.elements} : held_range(unit, mesh, mesh.coordinates(loaded.rank));
  return {loaded.executor, slot.region, held, slot.spec.format,
          unit.find(Slot::Kind::state) == &slot};  // the second moment has no sign
}

std::vector<ElementRange> HeldBuffer::windows(const std::vector<Piece>& pieces, std::int64_t limit) const {
  std::int64_t first = held_.last, last = held_.first;
  for (const Piece& piece : pieces) {
    first = std::min(first, piece.local);
    last = std::max(last, piece.local + (piece.repeat - 1) * piece.local_stride + piece.count);
  }
  first -= (first - held_.first) % block();
  last = std::min(held_.last, held_.first + (last - held_.first + block() - 1) / block() * block());
  std::vector<ElementRange> windows;
  for (; first < last; first += limit / block() * block())
    windows.push_back({first, std::min(last, first + limit / block() * block())});
  return windows;
}

namespace {

/// A piece of the positions of Vaswani et al., "Attention Is All You Need", 2017, section 3.5, as Whisper lays them
/// out: sines of all frequencies, and behind them cosines.
void fill_sinusoids(std::int64_t columns, const Piece& piece, float* out) {
  const std::int64_t half = columns / 2;
  const double step = std::log(10000.0) / static_cast<double>(std::max<std::int64_t>(half - 1, 1));
  for (std::int64_t r = 0; r < piece.repeat; ++r)
    for (std::int64_t i = 0; i < piece.count; ++i) {
      const std::int64_t at = piece.global + r * piece.global_stride + i, column = at % columns;
      const double angle = static_cast<double>(at / columns) * std::exp(-step * static_cast<double>(column % half));
      *out++ = static_cast<float>(column < half ? std::sin(angle) : std::cos(angle));
    }
}

}  // namespace

void draw_weights(const LoadedRank& loaded, std::uint64_t seed, int threads, const Wanted& wanted) {
  const std::vector<Unit> units = model_units(loaded.executor.role());
  struct Draw {
    const Unit* unit;
    const UnitTensor* tensor;
    Piece piece;
  };
  std::vector<Draw> draws;
  for_each_held(loaded, units, [&](const Unit& unit, const UnitTensor& tensor, const std::vector<Piece>& pieces) {
    if (!is_wanted(wanted, unit, tensor)) return;
    for (const Piece& piece : pieces)
      for (const Piece& chunk : chunks_of(piece, kStagedElements)) draws.push_back({&unit, &tensor, chunk});
  });
  const auto draw = [&](std::size_t i) {
    const auto& [unit, tensor, piece] = draws[i];
    const Init& init = tensor->init;
    const Stored whole = init.copy_of.empty() ? in_model(*tensor) : Stored{init.copy_of, tensor->spec.whole, 0};
    const Piece of_whole = pieces_in(whole, {piece}).front();
    std::vector<float> values(static_cast<std::size_t>(piece.elements()), static_cast<float>(init.constant));
    if (init.sinusoids) fill_sinusoids(tensor->spec.whole[1], of_whole, values.data());
    const auto fill = init.uniform > 0 ? fill_uniform : fill_normal;
    const double spread = init.uniform > 0 ? init.uniform : init.stddev;
    if (spread != 0) {
      for (std::int64_t r = 0; r < piece.repeat; ++r)
        fill(random_key(seed, whole.name), 0, of_whole.global + r * piece.global_stride, piece.count,
             values.data() + r * piece.count);
      for (float& value : values) value = static_cast<float>(init.constant) + static_cast<float>(spread) * value;
    }
    parameters_of(loaded, *unit).write(piece, values.data());
  };
  for_each_index(draws.size(), draw, static_cast<std::size_t>(threads));
}

namespace {

/// Norms of rows [first, first + count) of a matrix, as a weight of `dtype` holds it.
std::vector<float> norms_of_rows(const checkpoint::TensorStore& tensors, const std::string& matrix, DType dtype,
                                 std::int64_t first, std::int64_t count) {
  const checkpoint::TensorInfo& info = *tensors.find(matrix);
  const std::int64_t columns = info.shape[1];
  std::vector<std::byte> raw(static_cast<std::size_t>(columns * size_of(info.dtype)));
  std::vector<std::byte> held(static_cast<std::size_t>(columns * size_of(dtype)));
  std::vector<float> row(static_cast<std::size_t>(columns)), norms;
  for (std::int64_t i = first; i < first + count; ++i) {
    tensors.read(matrix, i * columns, columns, raw.data());
    to_f32(info.dtype, raw.data(), columns, row.data());
    from_f32(row.data(), columns, dtype, held.data());
    to_f32(dtype, held.data(), columns, row.data());
    double squares = 0;
    for (const float value : row) squares += static_cast<double>(value) * value;
    norms.push_back(static_cast<float>(std::sqrt(squares)));
  }
  return norms;
}

}  // namespace

void take_norms(const LoadedRank& loaded, const checkpoint::TensorStore& tensors) {
  const std::vector<Unit>& units = loaded.executor.role().units;
  for_each_held(loaded, units, [&](const Unit& unit, const UnitTensor& tensor, const std::vector<Piece>& pieces) {
    if (tensor.init.norms_of.empty()) return;
    for (const Piece& piece : pieces) {
      std::vector<float> norms;
      for (std::int64_t r = 0; r < piece.repeat; ++r) {
        const std::vector<float> run = norms_of_rows(tensors, tensor.init.norms_of, tensor.spec.dtype(),
                                                     piece.global + r * piece.global_stride, piece.count);
        norms.insert(norms.end(), run.begin(), run.end());
      }
      parameters_of(loaded, unit).write(piece, norms.data());
    }
  });
}

void load_weights(const LoadedRank& loaded, const checkpoint::TensorStore& tensors, const std::string& source,
                  bool exact, const Wanted& wanted, Copies copies) {
  Loading loading(tensors, source);
  expect_weights(loading, loaded.plan, tensors, exact, wanted, copies);
  const std::vector<Unit> units = model_units(loaded.executor.role());
  std::map<std::string, std::vector<HeldPart>> matrices;
  for_each_held(loaded, units, [&](const Unit& unit, const UnitTensor& tensor, const std::vector<Piece>& pieces) {
    if (!is_wanted(wanted, unit, tensor)) return;
    if (tensor.init.quantized) {
      matrices[tensor.init.quantized.matrix].push_back(
          {tensor.init.quantized, parameters_of(loaded, unit), tensor.spec.whole, pieces});
      return;
    }
    const Stored stored = stored_in(tensors, tensor, copies);
    loading.read(stored.name, parameters_of(loaded, unit), pieces_in(stored, pieces));
  });
  for (const auto& [name, parts] : matrices) load_quantized(tensors, source, parts);
}

void tell_passed_over(const checkpoint::NewestWhole& newest, const Tell& tell) {
  for (const std::string& damage : newest.damaged) tell("passed over a damaged checkpoint: " + damage);
}

void check_weights(const Plan& plan, const WeightSource& source, const Wanted& wanted) {
  Loading loading(source.tensors, source.path);
  expect_weights(loading, plan, source.tensors, source.exact(), wanted, Copies::of_start);
}

WeightSource open_weights(const std::string& path, const DiskNames& names, int rank, ControlChannel& channel,
                          const Tell& tell) {
  const auto everywhere = [&] {
    return open_everywhere(channel.from_first(rank == 0 ? choose_checkpoint(path, tell) : ""), channel);
  };
  return open_source(path, names, [&] { return checkpoint::while_replaced(path, everywhere); });
}

WeightSource open_weights(const std::string& path, const DiskNames& names) {
  const auto silent = [](const std::string&) {};
  return open_source(path, names, [&] { return checkpoint::open_checkpoint(choose_checkpoint(path, silent)); });
}

void load_states(const LoadedRank& loaded, const checkpoint::TensorStore& tensors, const std::string& source) {
  Loading loading(tensors, source);
  const auto applied = saved_scalar<std::int32_t>(tensors, kApplied, DType::i32),
             good_steps = saved_scalar<std::int32_t>(tensors, kGoodSteps, DType::i32);
  if (!applied) throw DataError(source + " has no " + kApplied);
  const std::optional<float> scale = saved_scalar<float>(tensors, kLossScale, DType::f32);
  if (scale && !(*scale > 0 && std::isfinite(*scale)))
    throw DataError(source + ": " + kLossScale + " is no positive number");
  for (const Role& role : loaded.plan.roles)
    for (const Unit& unit : role.units) expect_states(loading, tensors, unit);
  loading.check();
  const std::vector<Unit>& units = loaded.executor.role().units;
  // Outer gradients are in no loss scale.
  const float rescale = loaded.plan.drifts ? 1.0F : loss_scale_of(loaded.executor) / scale.value_or(1.0F);
  for_each_held(loaded, units, [&](const Unit& unit, const UnitTensor& tensor, const std::vector<Piece>& pieces) {
    const LoadingStates states(loaded, loading, tensors, rescale, unit, tensor);
    for (const Slot& slot : unit.slots) {
      if (slot.kind == Slot::Kind::state || slot.kind == Slot::Kind::strategy_state) states.state(slot, pieces);
      if (slot.kind == Slot::Kind::residual) states.residual(slot);
    }
  });
  const Role& role = loaded.executor.role();
  loaded.executor.write({role.applied, 0, size_of(DType::i32)}, &*applied);
  if (role.good_steps < 0 || !scale || !good_steps) return;
  set_scalars(loaded.executor, *scale);
  loaded.executor.write({role.good_steps, 0, size_of(DType::i32)}, &*good_steps);
}

bool load_apart(const LoadedRank& loaded, const checkpoint::TensorStore& tensors, const std::string& source) {
  const Loading loading(tensors, source);
  const std::vector<Unit>& units = loaded.executor.role().units;
  bool any = false;
  for_each_held(loaded, units, [&](const Unit& unit, const UnitTensor& tensor, const std::vector<Piece>& pieces) {
    const Slot* const anchor = unit.find(Slot::Kind::anchor);
    if (anchor == nullptr || !anchor->saved) return;
    const Mesh& mesh = loaded.plan.mesh;
    const StateOwner holder = state_owner_of(unit, mesh, mesh.coordinates(loaded.rank));
    const std::vector<std::string> own = own_names(tensors, tensor, anchor->name);
    if (static_cast<int>(own.size()) != holder.count) return;
    loading.read(own[static_cast<std::size_t>(holder.index)], held_buffer(loaded, unit, *anchor), pieces);
    any = true;
  });
  return any;
}

void set_scalars(Executor& executor, float loss_scale) {
  const float scalars[4] = {1.0F, loss_scale, 0.0F, 0.0F};
  executor.write({executor.role().scalars, 0, sizeof scalars}, scalars);
}

float loss_scale_of(const Executor& executor) {
  float scalars[4];
  executor.read({executor.role().scalars, 0, sizeof scalars}, scalars);
  return scalars[1];
}

std::string state_name(const UnitTensor& tensor, const std::string& state) { return tensor.name + "." + state; }
std::string own_name(const UnitTensor& tensor, const std::string& what, int holder) {
  return state_name(tensor, what) + "." + std::to_string(holder);
}

}  // namespace trainer
