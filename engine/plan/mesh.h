// Mesh: the ranks of a job on named axes. Ranks are numbered with tensor innermost, then shard, replicate, pipeline.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/graph/placement.h"

namespace trainer {

/// Indices of a rank along every axis.
using Coordinates = std::array<int, kNumAxes>;

/// A set of axes: the ranks that differ from me along these alone form my group.
struct Axes {
  std::uint8_t mask = 0;
  static Axes of(Axis axis) { return {static_cast<std::uint8_t>(1U << static_cast<int>(axis))}; }
  bool has(Axis axis) const { return (mask >> static_cast<int>(axis) & 1U) != 0; }
  friend Axes operator|(Axes a, Axes b) { return {static_cast<std::uint8_t>(a.mask | b.mask)}; }
  friend bool operator==(const Axes&, const Axes&) = default;
};

/// The axes over which the batch is cut.
inline Axes data_axes() { return Axes::of(Axis::replicate) | Axes::of(Axis::shard); }

struct Mesh {
  std::array<int, kNumAxes> sizes{1, 1, 1, 1};

  int size(Axis axis) const { return sizes[static_cast<std::size_t>(axis)]; }
  int world_size() const;
  /// Ranks of one group over `axes`.
  int group_size(Axes axes) const;
  /// The same of groups that take but those stages of the pipeline; empty: all.
  int group_size(Axes axes, const std::vector<std::int32_t>& stages) const;
  /// Ranks over which the batch is cut.
  int data_size() const { return group_size(data_axes()); }
  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& coordinates) const;
  /// Index of a rank among the data ranks, in rank order: which slice of the batch is its own.
  int data_rank(int rank) const;
  /// The members of `rank`'s group over `axes`, ascending; of the pipeline's stages only `stages`, unless that is empty.
  std::vector<int> group(int rank, Axes axes, const std::vector<std::int32_t>& stages = {}) const;
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

/// base + Σ per[axis] · coordinate[axis]: what differs between the ranks of a role.
struct Affine {
  std::int64_t base = 0;
  std::array<std::int64_t, kNumAxes> per{};

  std::int64_t at(const Coordinates& coordinates) const;
  friend bool operator==(const Affine&, const Affine&) = default;
};

}  // namespace trainer
