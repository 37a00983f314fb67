// Spec: what a tensor is and how it lies over a mesh. It is the type of graph values and of the slots of a unit of
// parameters; what a rank allocates, sends, saves, loads, draws and prints of a tensor is a function of it. A local
// shape or an origin is never stored beside it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "engine/core/dtype.h"
#include "engine/core/mesh.h"
#include "engine/core/shape.h"

namespace trainer {

/// How elements are stored. A format with a block has one f32 scale for `block` consecutive elements, behind all
/// elements.
struct Format {
  DType element = DType::f32;
  std::int32_t block = 0;

  Format() = default;
  Format(DType dtype) : element(dtype) {}  // NOLINT: a dtype is a format
  Format(DType dtype, std::int32_t elements) : element(dtype), block(elements) {}
  friend bool operator==(const Format&, const Format&) = default;
};

/// What a Spec says of one axis. Replicate: every rank has the whole. Shard: a rank has a slice of `dim`, which is a
/// concatenation of `parts` pieces each cut separately (packed q, k, v has three), the first of them `lead` times as
/// long as the others (grouped heads). Partial: the whole is the sum over the ranks.
struct Placement {
  enum class Kind : std::uint8_t { replicate, shard, partial };
  /// Which elements a rank's slice has: one run, or (zigzag) of 2n equal chunks those at its place from the front and
  /// from the back, so that every rank has as much work under a causal mask.
  enum class Order : std::uint8_t { contiguous, zigzag };
  /// Steps of a ring whose results are summed so far, [first, last); both 0: the value is complete.
  struct Terms {
    std::int16_t first = 0, last = 0;
    friend auto operator<=>(const Terms&, const Terms&) = default;
  };
  /// As `dim`: all dims but the last, flattened to rows. A rank's part is one run of memory, of shape [rows / n, last].
  static constexpr int kRows = -1;

  Kind kind = Kind::replicate;
  std::int8_t dim = 0;
  std::int32_t parts = 1;
  std::int32_t lead = 1;
  Order order = Order::contiguous;
  std::int16_t turn = 0;  ///< a slice that travels round the ranks: it is that of the rank so many places before
  Terms terms{};

  static Placement replicate() { return {}; }
  static Placement shard(int dim, int parts = 1, int lead = 1) {
    return {Kind::shard, static_cast<std::int8_t>(dim), parts, lead};
  }
  static Placement zigzag(int dim) {
    Placement placement = shard(dim);
    placement.order = Order::zigzag;
    return placement;
  }
  static Placement partial() { return {Kind::partial}; }
  bool is_replicate() const { return kind == Kind::replicate; }
  bool is_shard() const { return kind == Kind::shard; }
  bool is_shard(int of_dim) const { return kind == Kind::shard && dim == of_dim; }
  bool is_partial() const { return kind == Kind::partial; }
  bool is_zigzag() const { return order == Order::zigzag; }
  /// Whether it is a value on its way round a ring: another rank's slice, or a sum of some steps.
  bool travels() const { return turn != 0 || terms != Terms{}; }
  /// The same slices of another dim.
  Placement moved_to(int other) const {
    Placement placement = *this;
    placement.dim = static_cast<std::int8_t>(other);
    return placement;
  }
  /// The slice of the rank so many places before.
  Placement turned(int places, int ranks) const {
    Placement placement = *this;
    placement.turn = static_cast<std::int16_t>(places % ranks);
    return placement;
  }
  /// What each rank sent on to the next of `ranks`. A sum of all steps is complete.
  Placement shifted(int ranks) const { return turned(turn + 1, ranks).summed(terms.first, terms.last, ranks); }
  /// The sum of steps [first, last) of `ranks`.
  Placement summed(int first, int last, int ranks) const {
    Placement placement = *this;
    placement.terms = {};
    if (last - first < ranks) placement.terms = {static_cast<std::int16_t>(first), static_cast<std::int16_t>(last)};
    return placement;
  }
  std::string str() const;
  friend auto operator<=>(const Placement&, const Placement&) = default;
};

struct Cut {
  Axis axis = Axis::tensor;
  Placement as;  ///< a Shard
  friend bool operator==(const Cut&, const Cut&) = default;
};

/// A tensor of the model. At most one cut per axis; their order is the order of slicing.
class Spec {
 public:
  Format format;
  Shape whole;   ///< of all ranks together
  Axes partial;  ///< the tensor is the sum over the ranks of these axes

  Spec() = default;
  Spec(Format of, const Shape& shape) : format(of), whole(shape) {}

  DType dtype() const { return format.element; }
  std::span<const Cut> cuts() const { return {cuts_.data(), count_}; }
  Placement on(Axis axis) const;
  /// Replaces what is said of the axis; a new cut is the last one.
  void place(Axis axis, const Placement& placement);
  bool is_cut(Axis axis) const { return on(axis).is_shard(); }
  friend bool operator==(const Spec&, const Spec&) = default;

 private:
  std::array<Cut, kNumAxes> cuts_{};
  std::uint8_t count_ = 0;
};

/// The axes that cut a tensor.
inline Axes axes_of(const Spec& spec) {
  Axes axes;
  for (const Cut& cut : spec.cuts()) axes = axes | cut.axis;
  return axes;
}

/// The shape of one rank's part. Parts are equal; the last ones of a dim that does not divide are padded.
Shape local_shape(const Spec& spec, const Mesh& mesh);

/// Where a rank's part of `dim` begins, in elements of the dim; of a zigzag cut, where its first half does, and its
/// second half ends as far from the end. REQUIRES: cuts of `dim` have one part.
Affine origin(const Spec& spec, int dim, const Mesh& mesh);

}  // namespace trainer
