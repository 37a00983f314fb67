// A part of verification (verify.h): how bytes lie over the ranks along each axis, as a small lattice, and what kernels make of it. For the
// ops of a graph the rules are the ops' own (OpDef::shard); the ops of a step have theirs in verify_flow.cpp.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/signature.h"
#include "engine/plan/plan.h"

namespace trainer {

/// Along one axis, of some bytes.
struct Way {
  enum class Kind : std::uint8_t {
    zero,       ///< nought on every rank: fits anything
    same,       ///< equal on all ranks
    cut,        ///< each rank a part of `dim`, a concatenation of `parts` pieces cut alike
    piece,      ///< each rank its own; of interest only together with those of the others
    slice,      ///< rank i has slice i of a unit whose layout is `index`; along tensor: as that layout says
    partial,    ///< the value is the sum over the ranks
    shared,     ///< along pipeline: summed over, or equal on, the stages of set `index`
    drift,      ///< one value which ranks have come to differ about, until they average
    drift_sum,  ///< the sum of those
    unknown,
  };
  Kind kind = Kind::unknown;
  std::int8_t dim = 0;     ///< of a cut: 0, kLast or a dim between, which a tensor of rows has in its rows
  std::int32_t parts = 1;  ///< of a cut
  std::int32_t lead = 1;   ///< of a cut: by how much its first part is longer
  std::int32_t index = 0;  ///< of a layout or a set of stages
  std::int64_t base = 0;   ///< of a slice along shard: the address where it begins

  static constexpr std::int8_t kLast = -1;
  static Way zero() { return {Kind::zero}; }
  static Way same() { return {Kind::same}; }
  static Way cut(int dim, int parts = 1, int lead = 1) { return {Kind::cut, static_cast<std::int8_t>(dim), parts, lead}; }
  static Way piece() { return {Kind::piece}; }
  static Way partial() { return {Kind::partial}; }
  bool is(Kind of) const { return kind == of; }
  friend auto operator<=>(const Way&, const Way&) = default;
};

/// What a placement says of an axis, in a tensor of so many dims.
Way way_of(const Placement& placement, int rank);
/// Of the sum or the union of both; unknown where they do not go together.
Way merged(const Way& a, const Way& b);
/// Whether `actual` may stand where `expected` is due.
bool fits(const Way& expected, const Way& actual);
std::string describe(const Way& way);

/// What is known of some bytes.
struct Facts {
  std::array<Way, kNumAxes> ways{};
  std::optional<DType> dtype;
  std::int32_t writer = -1;  ///< instruction; -1: an earlier program
  // Where a dim between the first and the last is cut: bytes of one run, a rank's part of that dim with all dims after it, and where runs
  // begin, as an address modulo that; 0: nothing is known.
  std::int64_t run = 0, phase = 0;
  Way& on(Axis axis) { return ways[static_cast<std::size_t>(axis)]; }
  const Way& on(Axis axis) const { return ways[static_cast<std::size_t>(axis)]; }
  static Facts all(const Way& way, std::optional<DType> dtype) {
    Facts facts;
    facts.ways.fill(way);
    facts.dtype = dtype;
    return facts;
  }
};
Facts merged(const Facts& a, const Facts& b);

/// Elements of a flat buffer, and how they lie over the tensor axis. Ascending; together all of it.
struct LayoutEntry {
  std::int64_t first = 0, last = 0;
  Way tensor;
  friend auto operator<=>(const LayoutEntry&, const LayoutEntry&) = default;
};
using FlatLayout = std::vector<LayoutEntry>;
FlatLayout layout_of(const Unit& unit);
/// Adds the elements that follow.
void append(FlatLayout& layout, const LayoutEntry& entry);
/// Of the sum of two; nothing where they do not go together.
std::optional<FlatLayout> merged(const FlatLayout& a, const FlatLayout& b);
/// Whether each element of `actual` fits what `expected` says of it.
bool fits(const FlatLayout& expected, const FlatLayout& actual);

/// What a kernel of a graph's op makes of its inputs along one axis, by the op's sharding rule. Answers are kept: a plan asks the
/// same few questions all the time.
class WayRules {
 public:
  explicit WayRules(const Role& role) : role_(role) {}
  /// Ways of the outputs of a signature's kernel, or nothing where the op cannot work on such inputs. `step`: by how much
  /// its origin grows from one rank of the axis to the next.
  using Answer = std::optional<std::vector<Way>>;
  const Answer& apply(std::int32_t signature, const std::vector<Way>& inputs, std::size_t num_outputs, std::int64_t step);

 private:
  struct Known {
    std::vector<Way> inputs;
    std::int64_t step = 0;
    Answer answer;
  };
  Answer ask(const Signature& signature, const std::vector<Way>& inputs, std::size_t num_outputs, std::int64_t step) const;

  const Role& role_;
  std::vector<std::deque<Known>> known_;  // of each signature; a few
};

}  // namespace trainer
