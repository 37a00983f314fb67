// Chunks are cut first; their buffers are made when they are fetched.
#include "engine/plan/assemble/staged_units.h"

#include <algorithm>

#include "engine/core/check.h"
#include "engine/plan/assemble/units.h"
#include "engine/plan/update_operands.h"

namespace trainer {
namespace {

constexpr std::int64_t kStep = 256;        // chunks begin at multiples of it: operands are aligned, blocks whole
constexpr std::int64_t kMostChunks = 384;  // of a rank's slices; more than that and chunks are larger
constexpr std::size_t kTurns = 3;          // chunks that are there at a time

Space space_of_work(const AssembleOptions& options, StagedUnits::For use) {
  return use == StagedUnits::For::update && options.offload.update_on_host ? Space::host : Space::device;
}

}  // namespace

Region StagedUnits::Chunk::here(const Region& home) const {
  const auto part = std::ranges::find(parts, home, &Part::home);
  return part == parts.end() ? home : part->here;
}

StagedUnits::StagedUnits(Emitter& emit, const Role& role, const AssembleOptions& options, For use)
    : emit_(emit),
      role_(role),
      space_(space_of_work(options, use)),
      gradients_(use == For::update && (options.offload.gradients != Space::device || space_ == Space::host)) {
  if (!options.offload.any()) return;
  std::int64_t elements = 0;
  for (const Unit& unit : role.units) elements += unit.trained() ? unit.slice() : 0;
  most_ = std::max(options.offload.chunk, round_up(elements / kMostChunks, kStep));
  for (const Unit& unit : role.units)
    if (unit.trained()) add(unit, use);
}

// Chunks of about the same size.
void StagedUnits::add(const Unit& unit, For use) {
  const std::int64_t slice = unit.slice(), count = (slice + most_ - 1) / most_,
                     each = round_up((slice + count - 1) / count, kStep);
  for (std::int64_t first = 0; first < slice; first += each) {
    Chunk chunk{&unit, {first, std::min(first + each, slice)}};
    chunk.parts = homes(unit, chunk.elements, use);
    if (!chunk.parts.empty() || gradients_) chunks_.push_back(std::move(chunk));
  }
}

// What of some elements is kept in another space than the work is done in.
std::vector<StagedUnits::Chunk::Part> StagedUnits::homes(const Unit& unit, const ElementRange& elements,
                                                         For use) const {
  const bool update = use == For::update;
  const Region master = unit.parameters().region, working = unit.updated_working();
  std::vector<Chunk::Part> parts;
  if (!update && working == master) return parts;  // nothing is made of it
  const auto add = [&](const std::string& kind, const Region& home, bool comes, bool returns) {
    if (role_.space_of(home) != space_) parts.push_back({kind, home, comes, returns});
  };
  add("master", part_of(master, elements, size_of(DType::f32)), true, update);
  if (!(working == master)) add("working", part_of(working, elements, size_of(unit.compute)), false, true);
  for (const Slot& slot : unit.slots) {
    if (!update || slot.kind != Slot::Kind::state) continue;
    CHECK(slot.spec.format.block == 0 || kStep % slot.spec.format.block == 0, "a chunk is of whole blocks");
    for (const auto& [tensor, home] : state_operands(unit, slot.name, elements)) add(slot.name, home, true, true);
  }
  return parts;
}

bool StagedUnits::has(const Unit& unit) const {
  return std::ranges::find(chunks_, &unit, &Chunk::unit) != chunks_.end();
}

void StagedUnits::add_gradient(const Unit& unit, const Region& home, std::int64_t width) {
  if (role_.space_of(home) == space_) return;
  for (Chunk& chunk : chunks_)
    if (chunk.unit == &unit) chunk.parts.push_back({"gradient", part_of(home, chunk.elements, width), true, false});
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
    for (Chunk::Part& part : chunk.parts) part.here = buffer(chunk, part);
    move(chunk, true);
  }
}

// Where the work is done, for a part of the chunk that is fetched.
Region StagedUnits::buffer(const Chunk& chunk, const Chunk::Part& part) {
  if (space_ == Space::device)
    return emit_.whole(
        emit_.buffer(chunk.unit->name + "." + part.kind + ".staged", Category::optimizer, part.home.bytes));
  const std::string text = part.kind + ".staged." + std::to_string(fetched_ % kTurns);
  const auto [at, added] = turns_.try_emplace(text, -1);
  if (added) {
    const Category category = part.kind == "gradient" ? Category::gradients : Category::parameters;
    const std::int64_t width = part.home.bytes / chunk.elements.size();
    at->second = emit_.persistent(text, category, round_up(most_, kStep) * width, space_);
  }
  return {at->second, 0, part.home.bytes};
}

void StagedUnits::move(const Chunk& chunk, bool here) {
  const auto why = emit_.because(Provenance::Phase::update, *chunk.unit);
  for (const Chunk::Part& part : chunk.parts) {
    if (!(here ? part.comes : part.returns)) continue;
    const Region &from = here ? part.home : part.here, &to = here ? part.here : part.home;
    const bool to_device = role_.space_of(to) == Space::device;
    emit_.issue(to_device ? Stream::fetch : Stream::store,
                Move{emit_.name(chunk.unit->name + "." + part.kind), {from}, {to}});
  }
}

}  // namespace trainer
