// A rank's slot of a unit, written and read by pieces, as f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/checkpoint/range.h"
#include "engine/core/narrow.h"
#include "engine/plan/pieces.h"
#include "engine/run/state_blocks.h"
#include "engine/train/weights.h"

namespace trainer {

/// Elements [held.first, held.last) of a unit's flat order, of `format` at `region`.
class HeldBuffer {
 public:
  /// `has_sign`: of values in blocks, whether some are below 0.
  HeldBuffer(Executor& executor, const Region& region, ElementRange held, Format format, bool has_sign = true)
      : executor_(executor), region_(region), held_(held), format_(format), has_sign_(has_sign) {}

  /// Elements that share a scale; 0: none do.
  std::int64_t block() const { return format_.block; }

  /// `values`: the piece's elements in its order, without gaps. REQUIRES: the rank holds the piece, and no elements
  /// share a scale.
  void write(const Piece& piece, const float* values) const {
    each_run(piece, [&](ElementRange run, std::int64_t at) {
      if (dtype() == DType::f32) return executor_.write(elements(run), values + at);
      std::vector<std::byte> raw(static_cast<std::size_t>(elements(run).bytes));
      from_f32(values + at, run.size(), dtype(), raw.data());
      executor_.write(elements(run), raw.data());
    });
  }
  /// The same of bytes. REQUIRES: that is what the buffer holds.
  void write(const Piece& piece, const unsigned char* bytes) const {
    each_run(piece, [&](ElementRange run, std::int64_t at) { executor_.write(elements(run), bytes + at); });
  }
  void read(const Piece& piece, float* values) const {
    each_run(piece, [&](ElementRange run, std::int64_t at) {
      if (dtype() == DType::f32) return executor_.read(elements(run), values + at);
      std::vector<std::byte> raw(static_cast<std::size_t>(elements(run).bytes));
      executor_.read(elements(run), raw.data());
      if (block() == 0) return to_f32(dtype(), raw.data(), run.size(), values + at);
      std::vector<float> scales(static_cast<std::size_t>(scales_of(run).bytes / size_of(DType::f32)));
      executor_.read(scales_of(run), scales.data());
      decode_blocks(has_sign_, reinterpret_cast<const unsigned char*>(raw.data()), scales.data(), run.first % block(),
                    run.size(), values + at);
    });
  }

  /// The blocks that hold elements of the pieces, at most `limit` elements at a time, as ranges of the unit's order.
  std::vector<ElementRange> windows(const std::vector<Piece>& pieces, std::int64_t limit) const;
  /// Elements of such a range; what is no element of a parameter is 0.
  void write_blocks(ElementRange window, const float* values) const {
    const ElementRange run{window.first - held_.first, window.last - held_.first};
    std::vector<unsigned char> codes(static_cast<std::size_t>(run.size()));
    std::vector<float> scales(static_cast<std::size_t>(scales_of(run).bytes / size_of(DType::f32)));
    encode_blocks(has_sign_, values, run.size(), codes.data(), scales.data());
    executor_.write(elements(run), codes.data());
    executor_.write(scales_of(run), scales.data());
  }

 private:
  DType dtype() const { return format_.element; }
  // Of elements that the rank holds, counted from its first.
  Region elements(ElementRange run) const { return part(run.first * size_of(dtype()), run.size() * size_of(dtype())); }
  Region scales_of(ElementRange run) const {
    const std::int64_t width = size_of(DType::f32), first = run.first / block(),
                       last = (run.last + block() - 1) / block();
    return part(aligned(held_.size() * size_of(dtype())) + first * width, (last - first) * width);
  }
  Region part(std::int64_t offset, std::int64_t bytes) const {
    return {region_.buffer, region_.offset + offset, bytes, region_.step, region_.over};
  }

  template <typename Visit>
  void each_run(const Piece& piece, Visit&& visit) const {
    const bool joined = piece.repeat == 1 || piece.local_stride == piece.count;
    const std::int64_t count = joined ? piece.elements() : piece.count, runs = joined ? 1 : piece.repeat;
    for (std::int64_t r = 0; r < runs; ++r) {
      const std::int64_t first = piece.local + r * piece.local_stride - held_.first;
      visit(ElementRange{first, first + count}, r * count);
    }
  }

  Executor& executor_;
  const Region region_;
  const ElementRange held_;
  const Format format_;
  const bool has_sign_;
};

/// What a rank holds of a unit's slot.
HeldBuffer held_buffer(const LoadedRank& loaded, const Unit& unit, const Slot& slot);

inline HeldBuffer parameters_of(const LoadedRank& loaded, const Unit& unit) {
  return held_buffer(loaded, unit, unit.parameters());
}

/// A piece as files know it.
inline checkpoint::Range range_of(const Piece& piece) {
  return {piece.global, piece.global + piece.count, piece.repeat, piece.global_stride};
}

}  // namespace trainer
