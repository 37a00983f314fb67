// A rank's slot of a unit, written and read by pieces, as f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/checkpoint/range.h"
#include "engine/core/narrow.h"
#include "engine/plan/pieces.h"
#include "engine/train/weights.h"

namespace trainer {

/// Elements [held.first, held.last) of a unit's flat order, of `dtype` at `region`.
class HeldBuffer {
 public:
  HeldBuffer(Executor& executor, const Region& region, ElementRange held, DType dtype) : executor_(executor), region_(region), held_(held), dtype_(dtype) {}

  /// `values`: the piece's elements in its order, without gaps. REQUIRES: the rank holds the piece.
  void write(const Piece& piece, const float* values) const {
    each_run(piece, [&](const Region& region, std::int64_t at) {
      if (dtype_ == DType::f32) return executor_.write(region, values + at);
      std::vector<std::byte> raw(static_cast<std::size_t>(region.bytes));
      from_f32(values + at, region.bytes / size_of(dtype_), dtype_, raw.data());
      executor_.write(region, raw.data());
    });
  }
  void read(const Piece& piece, float* values) const {
    each_run(piece, [&](const Region& region, std::int64_t at) {
      if (dtype_ == DType::f32) return executor_.read(region, values + at);
      std::vector<std::byte> raw(static_cast<std::size_t>(region.bytes));
      executor_.read(region, raw.data());
      to_f32(dtype_, raw.data(), region.bytes / size_of(dtype_), values + at);
    });
  }

 private:
  template <typename Visit>
  void each_run(const Piece& piece, Visit&& visit) const {
    const bool joined = piece.repeat == 1 || piece.local_stride == piece.count;
    const std::int64_t count = joined ? piece.elements() : piece.count, runs = joined ? 1 : piece.repeat, width = size_of(dtype_);
    for (std::int64_t r = 0; r < runs; ++r)
      visit({region_.buffer, region_.offset + (piece.local + r * piece.local_stride - held_.first) * width, count * width, region_.step, region_.over}, r * count);
  }

  Executor& executor_;
  const Region region_;
  const ElementRange held_;
  const DType dtype_;
};

/// What a rank holds of a unit's slot.
HeldBuffer held_buffer(const LoadedRank& loaded, const Unit& unit, const Slot& slot);

inline HeldBuffer parameters_of(const LoadedRank& loaded, const Unit& unit) { return held_buffer(loaded, unit, unit.parameters()); }

/// A piece as files know it.
inline checkpoint::Range range_of(const Piece& piece) {
  return {piece.global, piece.global + piece.count, piece.repeat, piece.global_stride};
}

}  // namespace trainer
