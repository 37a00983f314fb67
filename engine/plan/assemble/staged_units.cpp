// Chunks are cut first; their buffers are made when they are fetched.
#include "engine/plan/assemble/staged_units.h"

#include <algorithm>

#include "engine/core/check.h"
#include "engine/plan/assemble/units.h"
#include "engine/plan/update_operands.h"

namespace trainer {
namespace {

constexpr std::int64_t kStep = 256;         // chunks begin at multiples of it: operands are aligned, blocks whole
constexpr std::int64_t kMostChunks = 1024;  // of a rank's slices; more than that and chunks are larger

// What of some elements is kept off the device.
std::vector<StagedUnits::Chunk::Part> homes(const Role& role, const Unit& unit, const ElementRange& elements,
                                            StagedUnits::For use) {
  const bool update = use == StagedUnits::For::update;
  const Region master = unit.parameters().region, working = unit.updated_working();
  std::vector<StagedUnits::Chunk::Part> parts;
  if (!update && working == master) return parts;  // nothing is made of it
  const auto add = [&](const std::string& name, const Region& home, bool comes, bool returns) {
    if (role.space_of(home) != Space::device) parts.push_back({unit.name + "." + name, home, comes, returns});
  };
  add("master", part_of(master, elements, size_of(DType::f32)), true, update);
  if (!(working == master)) add("working", part_of(working, elements, size_of(unit.compute)), update, true);
  for (const Slot& slot : unit.slots) {
    if (!update || slot.kind != Slot::Kind::state) continue;
    CHECK(slot.spec.format.block == 0 || kStep % slot.spec.format.block == 0, "a chunk is of whole blocks");
    for (const auto& [tensor, home] : state_operands(unit, slot.name, elements)) add(slot.name, home, true, true);
  }
  return parts;
}

}  // namespace

Region StagedUnits::Chunk::here(const Region& home) const {
  const auto part = std::ranges::find(parts, home, &Part::home);
  return part == parts.end() ? home : part->here;
}

StagedUnits::StagedUnits(Emitter& emit, const Role& role, const AssembleOptions& options, For use)
    : emit_(emit), role_(role), gradients_(use == For::update && options.offload.gradients != Space::device) {
  if (!options.offload.any()) return;
  std::int64_t elements = 0;
  for (const Unit& unit : role.units) elements += unit.trained() ? unit.slice() : 0;
  const std::int64_t most = std::max(options.offload.chunk, round_up(elements / kMostChunks, kStep));
  for (const Unit& unit : role.units)
    if (unit.trained()) add(unit, most, use);
}

// Chunks of about the same size.
void StagedUnits::add(const Unit& unit, std::int64_t most, For use) {
  const std::int64_t slice = unit.slice(), count = (slice + most - 1) / most,
                     each = round_up((slice + count - 1) / count, kStep);
  for (std::int64_t first = 0; first < slice; first += each) {
    Chunk chunk{&unit, {first, std::min(first + each, slice)}};
    chunk.parts = homes(role_, unit, chunk.elements, use);
    if (!chunk.parts.empty() || gradients_) chunks_.push_back(std::move(chunk));
  }
}

bool StagedUnits::has(const Unit& unit) const {
  return std::ranges::find(chunks_, &unit, &Chunk::unit) != chunks_.end();
}

void StagedUnits::add_gradient(const Unit& unit, const Region& home, std::int64_t width) {
  for (Chunk& chunk : chunks_)
    if (chunk.unit == &unit)
      chunk.parts.push_back({unit.name + ".gradient", part_of(home, chunk.elements, width), true, false});
}

void StagedUnits::begin() { fetch_until(next_ + 1); }

void StagedUnits::for_each_chunk(const Unit& unit, const std::function<void(const Chunk&)>& work) {
  CHECK(next_ < chunks_.size() && chunks_[next_].unit == &unit, "units are staged in order");
  for (; next_ < chunks_.size() && chunks_[next_].unit == &unit; ++next_) {
    fetch_until(next_ + 2);
    work(chunks_[next_]);
    move(chunks_[next_], false);
  }
}

void StagedUnits::fetch_until(std::size_t end) {
  for (; fetched_ < std::min(end, chunks_.size()); ++fetched_) {
    Chunk& chunk = chunks_[fetched_];
    for (Chunk::Part& part : chunk.parts)
      part.here = emit_.whole(emit_.buffer(part.name + ".staged", Category::optimizer, part.home.bytes));
    move(chunk, true);
  }
}

void StagedUnits::move(const Chunk& chunk, bool here) {
  const auto why = emit_.because(Provenance::Phase::update, *chunk.unit);
  for (const Chunk::Part& part : chunk.parts) {
    if (!(here ? part.comes : part.returns)) continue;
    const Region &from = here ? part.home : part.here, &to = here ? part.here : part.home;
    emit_.issue(here ? Stream::fetch : Stream::store, Move{emit_.name(part.name), {from}, {to}});
  }
}

}  // namespace trainer
