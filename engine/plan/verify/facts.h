// A part of verification (verify.h): what is known of bytes on one rank relative to the others. Along each axis that is
// a Placement, as in the Specs of the planner, with a note where planning has no word for it. Ops of a graph turn facts
// into facts by their own rules (OpDef::shard); what a flat buffer of parameters holds at which element is a layout.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/signature.h"
#include "engine/plan/address_map.h"
#include "engine/plan/plan.h"

namespace trainer {

/// How bytes lie along one axis. They have no shape: a cut of a tensor's last dim is one of `kLast`, whatever its rank,
/// and one of its rows (Placement::kRows) is one of dim 1. A cut of heads, [..., heads, head_dim], is one of `kLast`
/// too: the same bytes are columns of [..., heads · head_dim]. Facts::row tells them apart.
struct Held {
  enum class Note : std::uint8_t {
    none,
    zero,       ///< 0 on every rank: fits anything
    by_layout,  ///< along tensor or expert, a slice of a flat buffer: each element as Facts::layout says
    drifted,    ///< partial: each rank has a version of what is to be one value; replicate: their sum, still to be
                ///< divided
    stacked,    ///< the parts of all ranks lie one behind the other
    unknown,
  };
  static constexpr int kLast = Placement::kRows - 1;

  Placement placement{};
  Note note = Note::unknown;

  Held() = default;
  Held(const Placement& as, Note what = Note::none) : placement(as), note(what) {}  // NOLINT: a placement is known
  /// Of a tensor of so many dims.
  Held(const Placement& as, int rank);
  static Held zero() { return {Placement::replicate(), Note::zero}; }
  static Held same() { return Placement::replicate(); }
  static Held partial() { return Placement::partial(); }
  static Held version() { return {Placement::partial(), Note::drifted}; }
  bool is(Note what) const { return note == what; }
  friend auto operator<=>(const Held&, const Held&) = default;
};

/// Elements of a flat buffer, and how they lie over the tensor axis, and over expert where that cuts parameters.
/// Ascending; together all of it.
struct LayoutEntry {
  std::int64_t first = 0, last = 0;
  Held tensor, expert = Held::same();
  friend auto operator<=>(const LayoutEntry&, const LayoutEntry&) = default;
};
using FlatLayout = std::vector<LayoutEntry>;
FlatLayout layout_of(const Unit& unit);
/// Adds the elements that follow.
void append(FlatLayout& layout, const LayoutEntry& entry);

/// What is known of some bytes.
struct Facts {
  std::array<Held, kNumAxes> held{};
  std::optional<DType> dtype;
  std::int32_t writer = -1;  ///< instruction; -1: an earlier program
  std::int32_t stages =
      -1;  ///< FlowTables::stage_sets: those that have it alike, where it is replicated along pipeline; -1: all
  /// FlowTables::layouts: a part of a flat buffer of such a layout, which is sharded along some axes as dim 0 of one
  /// tensor, and begins at `base`; -1: of none.
  std::int32_t layout = -1;
  std::int64_t base = 0;
  /// What the bytes are of the elements that the rest speaks of: themselves, a code of all of them, or their part of an
  /// update of a unit, by the op of its optimizer that made or changed it last. The last two are one fact with a
  /// layout, in slices or whole. Or they are a slot's that is kept off the device: as the step found it (staged, which
  /// has been moved here), or as the update has left it (updated, here or at home).
  struct Content {
    enum class Kind : std::uint8_t { values, code, update, mixed, staged, updated };
    Kind kind = Kind::values;
    Op made_by{};             ///< of an update
    std::int32_t unit = -1;   ///< of an update, in Role::units
    std::int64_t home = 0;    ///< of what was moved here: by how much its address at home is further
    std::int64_t chunks = 0;  ///< of codes: into how many parts they are cut, each by itself
    friend bool operator==(const Content& a, const Content& b) {
      return a.kind == b.kind && a.made_by == b.made_by && a.unit == b.unit && a.chunks == b.chunks;
    }
  };
  Content content;
  bool is(Content::Kind kind) const { return content.kind == kind; }
  // Where a dim between the first and the last is cut: bytes of one run, a rank's part of that dim with all dims after
  // it, and where runs begin, as an address modulo that; 0: nothing is known.
  std::int64_t run = 0, phase = 0;
  std::int64_t row = 0;  ///< where columns are cut: bytes of a rank's part of a row; 0: nothing is known

  static Facts all(const Held& held, std::optional<DType> dtype) {
    Facts facts;
    facts.held.fill(held);
    facts.dtype = dtype;
    return facts;
  }
  Held& on(Axis axis) { return held[static_cast<std::size_t>(axis)]; }
  const Held& on(Axis axis) const { return held[static_cast<std::size_t>(axis)]; }
  std::string along(Axis axis) const;  ///< in words
};

/// Facts about bytes [first, last) of a region.
struct FactRange {
  std::int64_t first = 0, last = 0;
  Facts facts;
};
using FactRanges = std::vector<FactRange>;

/// Of the sum or the union of both; unknown along axes where they do not go together.
Held merged(const Held& a, const Held& b);
Facts merged(const Facts& a, const Facts& b);
Facts merged(const FactRanges& pieces);
/// Elements of width `from` that become such of width `to`.
FactRanges resized(FactRanges pieces, std::int64_t from, std::int64_t to);

/// Pieces of several flat regions of so many bytes, laid over each other: merge(facts, facts) where they meet.
template <typename Merge>
FactRanges overlaid(std::span<const FactRanges> all, std::int64_t bytes, const Merge& merge) {
  AddressMap<Facts> sum;
  for (const FactRange& piece : all.front()) sum.assign(piece.first, piece.last, piece.facts);
  for (const FactRanges& more : all.subspan(1))
    for (const FactRange& piece : more)
      sum.update(piece.first, piece.last, [&](Facts& facts) { facts = merge(facts, piece.facts); });
  FactRanges result;
  sum.update_pieces(0, bytes, [&](std::int64_t first, std::int64_t last, const Facts& facts) {
    result.push_back({first, last, facts});
  });
  return result;
}

/// What facts speak of by number: the same for all roles.
struct FlowTables {
  std::vector<FlatLayout> layouts;
  std::map<FlatLayout, std::int32_t> layout_indices;
  std::map<std::vector<std::int32_t>, std::int32_t> stage_sets;

  std::int32_t index_of(const FlatLayout& layout);
  const FlatLayout& layout(const Facts& facts) const { return layouts[static_cast<std::size_t>(facts.layout)]; }
  /// Whether `is` may stand where `due` is expected, along one axis.
  bool fits(const Facts& due, const Facts& is, Axis axis) const;
  /// Elements of a flat buffer, of so many bytes each, as one fact; and that again as one for each entry of its layout.
  Facts packed(const FactRanges& pieces, std::int64_t width);
  FactRanges unpacked(const Facts& facts, std::int64_t width) const;
  /// Makes one layout of two which have their zeros in different places.
  void unite(Facts& a, Facts& b);
};

/// What a kernel of a graph's op makes of its inputs along one axis, by the op's sharding rule. Answers are kept: a
/// plan asks the same few questions all the time.
class Rules {
 public:
  explicit Rules(const Role& role) : role_(role) {}
  /// How the outputs of a signature's kernel lie, or nothing where the op cannot work on such inputs. `step`: by how
  /// much its origin grows from one rank of the axis to the next.
  struct Output {
    Held held;
    std::int64_t row = 0;  ///< Facts::row
  };
  using Answer = std::optional<std::vector<Output>>;
  const Answer& apply(std::int32_t signature, std::span<const Facts> inputs, Axis axis, std::size_t num_outputs,
                      std::int64_t step);

 private:
  struct Known {
    std::vector<Placement> inputs;
    std::int64_t step = 0;
    Answer answer;
  };
  static Answer ask(const Signature& signature, std::span<const Placement> inputs, std::size_t num_outputs,
                    std::int64_t step);

  const Role& role_;
  std::vector<std::deque<Known>> known_;  // of each signature; a few
  std::vector<Placement> placements_;     // of the question at hand
};

}  // namespace trainer
