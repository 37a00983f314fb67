// How much each kind of staging takes, by the largest chunk of a tensor that passes through it.
#include "engine/train/staging.h"

#include <algorithm>

#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/tensor_store.h"
#include "engine/plan/pieces.h"

namespace trainer {
namespace {

constexpr std::int64_t kWidth = size_of(DType::f32);
constexpr std::int64_t kScalars = 3;  // of the step's own state, at most (engine/train/weights.h)

// Slots that every holder saves for itself, and others.
struct SavedSlots {
  std::int64_t own = 0, shared = 0;
};
SavedSlots saved_slots(const Unit& unit, Saved saved) {
  SavedSlots slots;
  if (!is_saved(unit, saved)) return slots;
  for (const Slot& slot : unit.slots) (slot.own() ? slots.own : slots.shared) += slot.saved ? 1 : 0;
  return slots;
}

// Elements of a slot that one of the ranks which hold `held` elements saves: those are shared out evenly among the
// ranks that have them alike (engine/plan/pieces.h), to within an element of each run.
std::int64_t share_of(const Unit& unit, const Mesh& mesh, std::int64_t held, Axes apart) {
  std::int64_t share = 0;
  for (const UnitRun& run : runs_of(unit, mesh)) {
    const std::int64_t ranks = mesh.group_size((run.alike | unit.sum_axes()) - apart);
    share += (std::min(run.elements.size(), held) + ranks - 1) / ranks;
  }
  return std::min(share, held);
}

std::int64_t saved_by_rank(const Plan& plan, Saved saved) {
  std::int64_t most = 0;
  for (const Role& role : plan.roles) {
    std::int64_t elements = kScalars;
    for (const Unit& unit : model_units(role)) {
      const SavedSlots slots = saved_slots(unit, saved);
      if (slots.shared > 0)
        elements += slots.shared * share_of(unit, plan.mesh, unit.slice(), unit.sharded() ? unit.slice_axes() : Axes{});
      if (slots.own > 0) elements += slots.own * share_of(unit, plan.mesh, unit.elements, kTokenAxes);
    }
    most = std::max(most, elements);
  }
  return most * kWidth;
}

// Calls visit(unit, slots) for the units of a checkpoint: stages that share one save it once, and each what it keeps
// for itself.
template <typename Visit>
void for_each_saved(const Plan& plan, Saved saved, Visit&& visit) {
  for (std::size_t role = 0; role < plan.roles.size(); ++role)
    for (const Unit& unit : model_units(plan.roles[role])) {
      SavedSlots slots = saved_slots(unit, saved);
      if (!unit.stages.empty() && unit.stages.front() != static_cast<std::int32_t>(role)) slots.shared = 0;
      slots.own *= plan.mesh.group_size(kTokenAxes);
      visit(unit, slots.shared + slots.own);
    }
}

}  // namespace

std::int64_t checkpoint_bytes(const Plan& plan, Saved saved) {
  std::int64_t elements = kScalars;
  for_each_saved(plan, saved, [&](const Unit& unit, std::int64_t slots) {
    for (const UnitTensor& tensor : unit.tensors) elements += slots * tensor.spec.whole.elements();
  });
  return elements * kWidth;
}

std::int64_t checkpoint_tensors(const Plan& plan, Saved saved) {
  std::int64_t tensors = kScalars;
  for_each_saved(plan, saved, [&](const Unit& unit, std::int64_t slots) {
    tensors += slots * static_cast<std::int64_t>(unit.tensors.size());
  });
  return tensors;
}

Staging staging_of(const Plan& plan, int threads, Saved saved) {
  std::int64_t own = 0, whole = 0;
  std::int64_t block = 0;
  bool cut = false;  // a tensor of which a rank has columns
  for (const Role& role : plan.roles)
    for (const Unit& unit : model_units(role))
      for (const UnitTensor& tensor : unit.tensors) {
        const std::int64_t most = unit.find(Slot::Kind::residual) != nullptr ? unit.elements : unit.slice(),
                           elements = tensor.spec.whole.elements();
        own = std::max(own, std::min({kStagedElements, tensor.elements, most}));
        whole = std::max(whole, std::min(kStagedElements, elements));
        for (const Slot& slot : unit.slots) block = std::max<std::int64_t>(block, slot.spec.format.block);
        cut = cut || (!tensor.spec.cuts().empty() && tensor.elements != elements);
      }
  // Where states have blocks: the codes and scales of a chunk, and while it is loaded the whole blocks that it is put
  // into.
  const std::int64_t codes = block == 0 ? 0 : own + block + (own / block + 2) * kWidth,
                     blocks = block == 0 ? 0 : codes + (own + block) * kWidth;
  Staging staging;
  staging.draw = threads * own * kWidth;
  // A file is verified before it is read.
  staging.load = std::max(checkpoint::kHashedBytes,
                          own * kWidth + blocks + (cut ? checkpoint::kRowsTogetherBytes : std::int64_t{0}));
  staging.sharded = {own * kWidth + codes, codes, saved_by_rank(plan, saved)};
  staging.full = {2 * whole * kWidth + codes, whole * kWidth + codes, checkpoint_bytes(plan, saved)};
  return staging;
}

}  // namespace trainer
