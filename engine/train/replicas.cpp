// A rank reads each slot once and hashes what it holds of every tensor; equal places have to have equal hashes.
#include "engine/train/replicas.h"

#include <span>

#include "engine/plan/pieces.h"

namespace trainer {
namespace {

// FNV-1a of 64 bits (Fowler, Noll and Vo; RFC 9923).
std::uint64_t hash_on(std::uint64_t hash, std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;
  return hash;
}
constexpr std::uint64_t kHashOfNothing = 0xcbf29ce484222325;

bool is_compared(const Slot& slot) {
  return slot.persistent && !slot.own() &&
         (slot.kind == Slot::Kind::master || slot.kind == Slot::Kind::state || slot.kind == Slot::Kind::strategy_state);
}

}  // namespace

// Of states with scales their codes, which lie in front.
void Replicas::add(int rank, const Executor& executor) {
  if (plan_.drifts || plan_.mesh.world_size() == 1) return;
  const Coordinates at = plan_.mesh.coordinates(rank);
  std::vector<std::byte> bytes;
  for (const Unit& unit : executor.role().units) {
    if (!unit.trained()) continue;
    const std::int64_t first = held_range(unit, plan_.mesh, at).first;
    for (const Slot& slot : unit.slots) {
      if (!is_compared(slot)) continue;
      const auto width = static_cast<std::int64_t>(size_of(slot.spec.dtype()));
      bytes.resize(static_cast<std::size_t>(slot.region.bytes));
      executor.read(slot.region, bytes.data());
      for (const UnitTensor& tensor : unit.tensors) {
        Held held{tensor.name + (slot.kind == Slot::Kind::master ? "" : "." + slot.name), {}};
        std::uint64_t hash = kHashOfNothing;
        for (const Piece& piece : held_pieces(unit, tensor, plan_.mesh, at)) {
          held.second.push_back({piece.global, piece.count, piece.repeat, piece.global_stride});
          for (std::int64_t r = 0; r < piece.repeat; ++r)
            hash = hash_on(hash, std::span(bytes).subspan(
                                     static_cast<std::size_t>((piece.local + r * piece.local_stride - first) * width),
                                     static_cast<std::size_t>(piece.count * width)));
        }
        const std::lock_guard lock(mutex_);
        const auto [found, added] = seen_.try_emplace(std::move(held), Seen{hash});
        if (!added && found->second.hash != hash) found->second.differs = true;
      }
    }
  }
}

std::vector<std::string> Replicas::different() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [held, seen] : seen_)
    if (seen.differs && (names.empty() || names.back() != held.first)) names.push_back(held.first);
  return names;
}

}  // namespace trainer
