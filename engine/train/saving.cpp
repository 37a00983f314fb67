// Saving. Both formats save the same shares (saved_pieces): sharded in files of the ranks that hold them, full in one
// file of rank 0, to which they are sent. When the elements reach the disk is SavedFiles' affair.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <vector>

#include "engine/train/held_buffer.h"
#include "engine/train/staging.h"
#include "engine/train/stored.h"
#include "engine/train/weights.h"

namespace trainer {
namespace {

// One element of the step's own state, of 4 bytes.
struct StepScalar {
  checkpoint::TensorInfo info;
  std::array<std::byte, 4> value{};
};

std::vector<StepScalar> step_scalars(const Executor& executor) {
  const Role& role = executor.role();
  std::vector<StepScalar> result;
  const auto add = [&](const char* name, DType dtype, const Region& region) {
    result.push_back({{name, dtype, Shape{1}}, {}});
    executor.read(region, result.back().value.data());
  };
  add(kApplied, DType::i32, {role.applied, 0, size_of(DType::i32)});
  if (role.good_steps >= 0 || loss_scale_of(executor) != 1.0F)
    add(kLossScale, DType::f32, {role.scalars, size_of(DType::f32), size_of(DType::f32)});
  if (role.good_steps >= 0) add(kGoodSteps, DType::i32, {role.good_steps, 0, size_of(DType::i32)});
  return result;
}

void save_scalar(SavedFiles& files, const SavedFiles::Entry& entry, const StepScalar& scalar) {
  std::memcpy(files.room(1), scalar.value.data(), scalar.value.size());
  files.filled(entry, 1);
}

// ---- Sharded ----

struct Share {
  HeldBuffer buffer;
  Piece piece;
};

// One file of a rank: entries, and where the elements of each lie.
class ShareFile {
 public:
  void add(const Stored& stored, const HeldBuffer& buffer, const Piece& piece) {
    entries_.push_back({{stored.name, DType::f32, stored.shape}, range_of(pieces_in(stored, {piece}).front())});
    shares_.emplace(checkpoint::piece_key(entries_.back().tensor, entries_.back().range), Share{buffer, piece});
  }
  void add(const StepScalar& scalar) {
    entries_.push_back({scalar.info, {0, 1}});
    scalars_.emplace(scalar.info.name, scalar);
  }

  void save(SavedFiles& files, const std::string& name) {
    if (entries_.empty()) return;
    files.begin(name, std::move(entries_));
    for (const SavedFiles::Entry& entry : files.order()) {
      if (const auto scalar = scalars_.find(entry.tensor.name); scalar != scalars_.end()) {
        save_scalar(files, entry, scalar->second);
        continue;
      }
      const Share& share = shares_.at(checkpoint::piece_key(entry.tensor, entry.range));
      for (const Piece& chunk : chunks_of(share.piece, kStagedElements)) {
        share.buffer.read(chunk, files.room(chunk.elements()));
        files.filled(entry, chunk.elements());
      }
    }
    files.end();
  }

 private:
  std::vector<SavedFiles::Entry> entries_;
  std::map<std::string, Share> shares_;
  std::map<std::string, StepScalar> scalars_;
};

// ---- Full ----

// A tensor of the checkpoint as all ranks know it. What stages share is that of the first of them, which saves it; what
// holders keep for themselves is that of the ranks that are one holder.
struct WholeTensor {
  std::size_t role, unit, tensor, slot;
  int holder = -1;  // -1: all hold it alike
};

class FullSave {
 public:
  FullSave(const LoadedRank& loaded, ControlChannel& channel, Saved saved)
      : loaded_(loaded), saved_(saved), channel_(channel), mesh_(loaded.plan.mesh), world_(mesh_.world_size()) {
    for (const Role& role : loaded.plan.roles) units_.push_back(model_units(role));
  }

  void run(SavedFiles* files) {
    save("model", parameters(), false, files);
    save("optimizer", states(), true, files);
  }

 private:
  const Unit& unit_of(const WholeTensor& at) const { return units_[at.role][at.unit]; }
  const UnitTensor& tensor_of(const WholeTensor& at) const { return unit_of(at).tensors[at.tensor]; }

  const Slot& slot_of(const WholeTensor& at) const { return unit_of(at).slots[at.slot]; }

  std::vector<WholeTensor> parameters() const {
    std::vector<WholeTensor> result;
    for_each_unit([&](std::size_t role, std::size_t index, const Unit& unit, bool saves) {
      const auto slot = static_cast<std::size_t>(&unit.parameters() - unit.slots.data());
      for (std::size_t tensor = 0; saves && tensor < unit.tensors.size(); ++tensor)
        result.push_back({role, index, tensor, slot});
    });
    return with_rows_together(std::move(result));
  }

  // Parts of a table one after another, from its first row on, where the first of them stood.
  std::vector<WholeTensor> with_rows_together(std::vector<WholeTensor> all) const {
    std::map<std::string, std::size_t> places;
    using Key = std::pair<std::size_t, std::int64_t>;
    std::vector<std::pair<Key, WholeTensor>> keyed;
    for (const WholeTensor& at : all) {
      const Stored stored = stored_of(at);
      keyed.push_back({{places.emplace(stored.name, places.size()).first->second, stored.first}, at});
    }
    std::ranges::stable_sort(keyed, {}, &std::pair<Key, WholeTensor>::first);
    std::ranges::transform(keyed, all.begin(), &std::pair<Key, WholeTensor>::second);
    return all;
  }

  std::vector<WholeTensor> states() const {
    std::vector<WholeTensor> result;
    for_each_unit([&](std::size_t role, std::size_t index, const Unit& unit, bool saves) {
      Coordinates at{};
      at[static_cast<std::size_t>(Axis::pipeline)] = static_cast<int>(role);
      const int first = state_owner_of(unit, mesh_, at).index;
      for (std::size_t tensor = 0; tensor < unit.tensors.size(); ++tensor)
        for (std::size_t slot = 0; slot < unit.slots.size(); ++slot) {
          const Slot& one = unit.slots[slot];
          if (!one.saved || &one == &unit.parameters()) continue;
          for (int holder = first; one.own() && holder < first + mesh_.group_size(kTokenAxes); ++holder)
            result.push_back({role, index, tensor, slot, holder});
          if (!one.own() && saves) result.push_back({role, index, tensor, slot});
        }
    });
    return result;
  }

  template <typename Visit>
  void for_each_unit(Visit&& visit) const {
    for (std::size_t role = 0; role < units_.size(); ++role)
      for (std::size_t index = 0; index < units_[role].size(); ++index) {
        const Unit& unit = units_[role][index];
        if (is_saved(unit, saved_))
          visit(role, index, unit, unit.stages.empty() || unit.stages.front() == static_cast<std::int32_t>(role));
      }
  }

  Stored stored_of(const WholeTensor& at) const {
    const UnitTensor& tensor = tensor_of(at);
    const bool parameters = &slot_of(at) == &unit_of(at).parameters();
    if (parameters && saved_ == Saved::all) return in_model(tensor);
    Stored stored{tensor.name, tensor.spec.whole};
    if (!parameters)
      stored.name =
          at.holder < 0 ? state_name(tensor, slot_of(at).name) : own_name(tensor, slot_of(at).name, at.holder);
    return stored;
  }

  void save(const std::string& stem, const std::vector<WholeTensor>& all, bool with_scalars, SavedFiles* files) {
    std::vector<SavedFiles::Entry> entries;  // what is stored as parts of one tensor follows one another in `all`
    std::vector<std::size_t> entry_of;
    const bool writes = loaded_.rank == 0;
    const std::vector<StepScalar> scalars =
        with_scalars && writes ? step_scalars(loaded_.executor) : std::vector<StepScalar>{};
    if (writes) {
      for (const WholeTensor& at : all) {
        const Stored stored = stored_of(at);
        if (entries.empty() || entries.back().tensor.name != stored.name)
          entries.push_back({{stored.name, DType::f32, stored.shape}, {0, stored.shape.elements()}});
        entry_of.push_back(entries.size() - 1);
      }
      for (const StepScalar& scalar : scalars) entries.push_back({scalar.info, {0, 1}});
      files->begin(checkpoint::file_name(stem, 0, 1), entries);
    }
    // All entries have elements of 4 bytes, so the file's order is that of the list, on which all ranks agree.
    for (std::size_t i = 0; i < all.size(); ++i) gather(all[i], files, writes ? &entries[entry_of[i]] : nullptr);
    if (!writes) return;
    const std::size_t tensors = entries.size() - scalars.size();
    for (std::size_t i = 0; i < scalars.size(); ++i) save_scalar(*files, entries[tensors + i], scalars[i]);
    files->end();
  }

  // What each rank saves of a tensor.
  std::vector<std::vector<Piece>> shares_of(const WholeTensor& at) const {
    std::vector<std::vector<Piece>> shares(static_cast<std::size_t>(world_));
    for (int rank = 0; rank < world_; ++rank) {
      const Coordinates place = mesh_.coordinates(rank);
      if (place[static_cast<std::size_t>(Axis::pipeline)] != static_cast<int>(at.role)) continue;
      if (at.holder >= 0 && state_owner_of(unit_of(at), mesh_, place).index != at.holder) continue;
      shares[static_cast<std::size_t>(rank)] =
          (at.holder >= 0 ? saved_own : saved_pieces)(unit_of(at), tensor_of(at), mesh_, place);
    }
    return shares;
  }

  // `entry`: rank 0's.
  void gather(const WholeTensor& at, SavedFiles* files, const SavedFiles::Entry* entry) {
    const std::vector<std::vector<Piece>> shares = shares_of(at);
    const std::vector<Piece>& own = shares[static_cast<std::size_t>(loaded_.rank)];
    const std::int64_t elements = tensor_of(at).spec.whole.elements();
    for (std::int64_t first = 0; first < elements; first += kStagedElements) {
      const ElementRange window{first, std::min(first + kStagedElements, elements)};
      const std::vector<Piece> mine = inside(own, window);
      if (entry == nullptr && mine.empty()) continue;
      std::vector<float> values = read(at, mine);
      if (entry == nullptr) {
        channel_.give_first(values.data(), bytes_of(values));
        continue;
      }
      float* whole = files->room(window.size());
      place(mine, values, window, whole);
      receive(shares, window, whole);
      files->filled(*entry, window.size());
    }
  }

  void receive(const std::vector<std::vector<Piece>>& shares, ElementRange window, float* whole) {
    std::vector<std::vector<Piece>> pieces;
    std::vector<std::vector<float>> values;
    std::vector<ControlChannel::Part> parts;
    for (int rank = 1; rank < world_; ++rank) {
      std::vector<Piece> theirs = inside(shares[static_cast<std::size_t>(rank)], window);
      if (theirs.empty()) continue;
      values.emplace_back(elements_of(theirs));
      pieces.push_back(std::move(theirs));
      parts.push_back({rank, values.back().data(), bytes_of(values.back())});
    }
    channel_.fetch(parts);
    for (std::size_t i = 0; i < pieces.size(); ++i) place(pieces[i], values[i], window, whole);
  }

  std::vector<float> read(const WholeTensor& at, const std::vector<Piece>& pieces) const {
    std::vector<float> values(elements_of(pieces));
    if (pieces.empty()) return values;
    const HeldBuffer buffer = held_buffer(loaded_, unit_of(at), slot_of(at));
    float* next = values.data();
    for (const Piece& piece : pieces) {
      buffer.read(piece, next);
      next += piece.elements();
    }
    return values;
  }

  static std::vector<Piece> inside(const std::vector<Piece>& pieces, ElementRange window) {
    std::vector<Piece> result;
    for (const Piece& piece : pieces)
      for (const Piece& part : clip_global(piece, window)) result.push_back(part);
    return result;
  }

  static std::size_t elements_of(const std::vector<Piece>& pieces) {
    std::int64_t elements = 0;
    for (const Piece& piece : pieces) elements += piece.elements();
    return static_cast<std::size_t>(elements);
  }

  static std::int64_t bytes_of(const std::vector<float>& values) {
    return static_cast<std::int64_t>(values.size() * sizeof(float));
  }

  static void place(const std::vector<Piece>& pieces, const std::vector<float>& values, ElementRange window,
                    float* whole) {
    const float* next = values.data();
    for (const Piece& piece : pieces)
      for (std::int64_t r = 0; r < piece.repeat; ++r, next += piece.count)
        std::copy_n(next, piece.count, whole + (piece.global + r * piece.global_stride - window.first));
  }

  const LoadedRank& loaded_;
  const Saved saved_;
  ControlChannel& channel_;
  const Mesh& mesh_;
  const int world_;
  std::vector<std::vector<Unit>> units_;  // by role
};

}  // namespace

void save_sharded(const LoadedRank& loaded, SavedFiles& files, Saved saved) {
  const Mesh& mesh = loaded.plan.mesh;
  const Coordinates at = mesh.coordinates(loaded.rank);
  ShareFile model, optimizer;
  for (const Unit& unit : model_units(loaded.executor.role()))
    for (const UnitTensor& tensor : unit.tensors) {
      if (!is_saved(unit, saved)) continue;
      const std::vector<Piece> shares = saved_pieces(unit, tensor, mesh, at), own = saved_own(unit, tensor, mesh, at);
      const int holder = state_owner_of(unit, mesh, at).index;
      for (const Slot& slot : unit.slots) {
        if (!slot.saved) continue;
        const bool parameters = &slot == &unit.parameters();
        Stored stored{tensor.name, tensor.spec.whole};
        if (parameters && saved == Saved::all) stored = in_model(tensor);
        if (!parameters) stored.name = slot.own() ? own_name(tensor, slot.name, holder) : state_name(tensor, slot.name);
        for (const Piece& piece : slot.own() ? own : shares)
          (parameters ? model : optimizer).add(stored, held_buffer(loaded, unit, slot), piece);
      }
    }
  if (loaded.rank == 0)
    for (const StepScalar& scalar : step_scalars(loaded.executor)) optimizer.add(scalar);
  model.save(files, checkpoint::file_name("model", loaded.rank, mesh.world_size()));
  optimizer.save(files, checkpoint::file_name("optimizer", loaded.rank, mesh.world_size()));
}

void save_full(const LoadedRank& loaded, ControlChannel& channel, SavedFiles* files, Saved saved) {
  FullSave(loaded, channel, saved).run(files);
}

}  // namespace trainer
