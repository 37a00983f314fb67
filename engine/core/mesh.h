// Mesh: the ranks of a job on named axes. Ranks are numbered with the last axis innermost.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainer {

/// The axes of a mesh, outermost first in the numbering of ranks.
enum class Axis : std::uint8_t { pipeline, replicate, shard, expert, context, tensor };
inline constexpr int kNumAxes = 6;
inline constexpr std::array<Axis, kNumAxes> kAxes{Axis::pipeline, Axis::replicate, Axis::shard,
                                                  Axis::expert,   Axis::context,   Axis::tensor};

std::string_view name_of(Axis axis);

/// A set of axes. The ranks that differ from me along these axes only form my group.
struct Axes {
  std::uint8_t mask = 0;
  static constexpr Axes of(Axis axis) { return {static_cast<std::uint8_t>(1U << static_cast<int>(axis))}; }
  constexpr bool has(Axis axis) const { return (mask >> static_cast<int>(axis) & 1U) != 0; }
  constexpr bool empty() const { return mask == 0; }
  constexpr bool within(Axes all) const { return (mask & ~all.mask) == 0; }
  /// `for (Axis axis : axes)`: outermost first.
  class Iterator {
   public:
    constexpr explicit Iterator(std::uint8_t rest) : rest_(rest) {}
    constexpr Axis operator*() const { return static_cast<Axis>(std::countr_zero(rest_)); }
    constexpr Iterator& operator++() {
      rest_ = static_cast<std::uint8_t>(rest_ & (rest_ - 1));
      return *this;
    }
    friend constexpr bool operator==(const Iterator&, const Iterator&) = default;

   private:
    std::uint8_t rest_;
  };
  constexpr Iterator begin() const { return Iterator(mask); }
  constexpr Iterator end() const { return Iterator(0); }
  friend constexpr Axes operator|(Axes a, Axes b) { return {static_cast<std::uint8_t>(a.mask | b.mask)}; }
  friend constexpr Axes operator&(Axes a, Axes b) { return {static_cast<std::uint8_t>(a.mask & b.mask)}; }
  friend constexpr Axes operator-(Axes a, Axes b) { return {static_cast<std::uint8_t>(a.mask & ~b.mask)}; }
  friend constexpr bool operator==(const Axes&, const Axes&) = default;
};
constexpr Axes operator|(Axis a, Axis b) { return Axes::of(a) | Axes::of(b); }
constexpr Axes operator|(Axes a, Axis b) { return a | Axes::of(b); }

/// The axes that cut the samples of a batch: each rank has samples of its own.
inline constexpr Axes kBatchAxes = Axis::replicate | Axis::shard | Axis::expert;
/// The axes along which ranks have targets of their own: losses and counts are summed over them.
inline constexpr Axes kTokenAxes = kBatchAxes | Axis::context;
/// The axes that cut the sequence of each sample: those of the tokens' that do not cut samples.
inline constexpr Axes kSequenceAxes = kTokenAxes - kBatchAxes;
/// The axes along which a strategy may slice the states of a unit of parameters, but for those that cut the parameters
/// themselves (Unit::slice_axes).
inline constexpr Axes kSliceAxes = Axis::shard | Axis::expert | Axis::context;
/// The same; with the replicas where each of these has only a secondary copy of the working weights, and the slices are
/// those of all of them together.
constexpr Axes slice_axes(bool across_replicas) { return across_replicas ? kSliceAxes | Axis::replicate : kSliceAxes; }

/// Indices of a rank along every axis.
using Coordinates = std::array<int, kNumAxes>;

class Mesh {
 public:
  Mesh() { sizes_.fill(1); }
  /// Axes that are not listed have size 1.
  Mesh(std::initializer_list<std::pair<Axis, int>> axes) : Mesh() {
    for (const auto& [axis, size] : axes) set(axis, size);
  }

  int size(Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  void set(Axis axis, int size) { sizes_[static_cast<std::size_t>(axis)] = size; }
  int world_size() const;
  /// Ranks of one group over `axes`.
  int group_size(Axes axes) const;
  /// The same for groups of these pipeline stages only; empty: all stages.
  int group_size(Axes axes, const std::vector<std::int32_t>& stages) const;
  /// The axes of `axes` along which there is more than one rank.
  Axes active(Axes axes) const;

  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& coordinates) const;
  /// Index of a rank in its group over `axes`, in rank order.
  int index(const Coordinates& coordinates, Axes axes) const;
  int index(int rank, Axes axes) const { return index(coordinates(rank), axes); }
  /// Coordinates of member `index` of the group over `axes`; 0 along every other axis.
  Coordinates member(int index, Axes axes) const;
  /// The members of `rank`'s group over `axes`, ascending; of the pipeline's stages only `stages`, unless that is
  /// empty.
  std::vector<int> group(int rank, Axes axes, const std::vector<std::int32_t>& stages = {}) const;

  friend auto operator<=>(const Mesh&, const Mesh&) = default;

 private:
  std::array<int, kNumAxes> sizes_;
};

/// One rank of a mesh.
struct MeshPoint {
  Mesh mesh;
  Coordinates at{};
  int operator[](Axis axis) const { return at[static_cast<std::size_t>(axis)]; }
  int index(Axes axes) const { return mesh.index(at, axes); }
};

/// base + Σ per[axis] · coordinate[axis]: what differs between the ranks of a role.
struct Affine {
  std::int64_t base = 0;
  std::array<std::int64_t, kNumAxes> per{};

  std::int64_t& along(Axis axis) { return per[static_cast<std::size_t>(axis)]; }
  std::int64_t along(Axis axis) const { return per[static_cast<std::size_t>(axis)]; }
  std::int64_t at(const Coordinates& coordinates) const;
  friend bool operator==(const Affine&, const Affine&) = default;
};

/// "shard+tensor": the axes of more than one rank.
std::string axes_text(const Mesh& mesh, Axes axes);

}  // namespace trainer
