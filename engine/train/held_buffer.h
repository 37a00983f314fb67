// A rank's buffer of a unit's masters or of one of its states, written and read by pieces.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/checkpoint/range.h"
#include "engine/plan/pieces.h"
#include "engine/train/weights.h"

namespace trainer {

/// f32 elements [held.first, held.last) of a unit's flat order, at `region`.
class HeldBuffer {
 public:
  HeldBuffer(Executor& executor, const Region& region, Extent held) : executor_(executor), region_(region), held_(held) {}

  /// `values`: the piece's elements in its order, without gaps. REQUIRES: the rank holds the piece.
  void write(const Piece& piece, const float* values) const {
    each_run(piece, [&](const Region& region, std::int64_t at) { executor_.write(region, values + at); });
  }
  void read(const Piece& piece, float* values) const {
    each_run(piece, [&](const Region& region, std::int64_t at) { executor_.read(region, values + at); });
  }

 private:
  template <typename Visit>
  void each_run(const Piece& piece, Visit&& visit) const {
    const bool joined = piece.repeat == 1 || piece.local_stride == piece.count;
    const std::int64_t count = joined ? piece.elements() : piece.count, runs = joined ? 1 : piece.repeat;
    constexpr std::int64_t kWidth = sizeof(float);
    for (std::int64_t r = 0; r < runs; ++r)
      visit({region_.buffer, region_.offset + (piece.local + r * piece.local_stride - held_.first) * kWidth, count * kWidth,
             region_.step, region_.over},
            r * count);
  }

  Executor& executor_;
  const Region region_;
  const Extent held_;
};

inline HeldBuffer master_of(const LoadedRank& loaded, const Unit& unit) {
  return {loaded.executor, unit.master, held_extent(unit, loaded.plan.mesh.coordinates(loaded.rank))};
}

inline HeldBuffer state_of(const LoadedRank& loaded, const Unit& unit, std::size_t state) {
  return {loaded.executor,
          {unit.states[state], 0, unit.slice() * size_of(DType::f32)},
          held_extent(unit, loaded.plan.mesh.coordinates(loaded.rank))};
}

inline HeldBuffer residual_of(const LoadedRank& loaded, const Unit& unit) {
  return {loaded.executor, {unit.residual, 0, unit.elements * size_of(DType::f32)}, {0, unit.elements}};
}

/// A piece as files know it.
inline checkpoint::Range range_of(const Piece& piece) {
  return {piece.global, piece.global + piece.count, piece.repeat, piece.global_stride};
}

}  // namespace trainer
