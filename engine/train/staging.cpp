// How much each kind of staging takes, by the largest chunk of a tensor that passes through it.
#include "engine/train/staging.h"

#include <algorithm>

#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/tensor_store.h"
#include "engine/plan/pieces.h"

namespace trainer {

Staging staging_of(const Plan& plan, int threads) {
  constexpr std::int64_t kWidth = size_of(DType::f32);
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
  staging.save_sharded = own * kWidth + codes;
  staging.save_full = 2 * whole * kWidth + codes;
  return staging;
}

}  // namespace trainer
