// Placement: how a value lies over the ranks along one axis of the mesh.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "engine/core/mesh.h"

namespace trainer {

/// Replicate: every rank has the whole value. Shard: a rank has a slice of `dim`, which is a concatenation of `parts`
/// pieces each cut separately (packed q, k, v has three), the first of them `lead` times as long as the others (grouped heads). Partial: the value is the sum over the ranks.
struct Placement {
  enum class Kind : std::uint8_t { replicate, shard, partial };
  Kind kind = Kind::replicate;
  std::int8_t dim = 0;
  std::int32_t parts = 1;
  std::int32_t lead = 1;

  static Placement replicate() { return {}; }
  static Placement shard(int dim, int parts = 1, int lead = 1) { return {Kind::shard, static_cast<std::int8_t>(dim), parts, lead}; }
  static Placement partial() { return {Kind::partial}; }
  bool is_replicate() const { return kind == Kind::replicate; }
  bool is_shard() const { return kind == Kind::shard; }
  bool is_shard(int of_dim) const { return kind == Kind::shard && dim == of_dim; }
  bool is_partial() const { return kind == Kind::partial; }
  std::string str() const;
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// One placement per axis, indexed by Axis.
using Placements = std::array<Placement, kNumAxes>;

}  // namespace trainer
