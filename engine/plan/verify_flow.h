// A part of verification (verify.h): what every byte is, on one representative rank of a role, relative to the other ranks: the same, cut,
// a sum still to be made (verify_ways.h). Instructions are interpreted one by one; a communication must find its operands such
// that it does what its kind says, and what a program leaves behind must be what the plan says its parameters and states are.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/plan/address_map.h"
#include "engine/plan/plan.h"
#include "engine/plan/verify_ways.h"

namespace trainer {

/// Facts about bytes [first, last) of a region.
struct FactRange {
  std::int64_t first = 0, last = 0;
  Facts facts;
};
using FactRanges = std::vector<FactRange>;

/// What flows of several roles speak of by number.
struct FlowTables {
  std::vector<FlatLayout> layouts;
  std::map<FlatLayout, std::int32_t> layout_indices;
  std::map<std::vector<std::int32_t>, std::int32_t> stage_sets;
  std::int32_t index_of(const FlatLayout& layout);
};

/// Of one program on the rank of a role at `point`. REQUIRES: accesses lie inside their buffers, operands fit their
/// signatures.
class Flow {
 public:
  using Report = std::function<void(std::size_t instruction, const std::string& what)>;
  Flow(const Plan& plan, std::size_t stage, const MeshPoint& point, std::size_t program, FlowTables& tables, Report report);

  /// Interprets everything before instruction `end` that does not communicate.
  void run_until(std::size_t end);
  /// A collective among the ranks of this role.
  void collective(std::size_t i, const Collective& collective);
  /// An all-reduce that joins stages: what it finds here, and, once all stages have said so, what it leaves.
  FactRanges read(std::size_t i, const Region& region);
  void reduce_over_stages(std::size_t i, const Collective& collective, const FactRanges& found);
  void receive(std::size_t i, const Region& region, const FactRanges& sent);
  /// After the last instruction.
  void finish();

 private:
  struct UnitRecord {
    std::int32_t master = -1, slice = -1, working = -1;  // instructions that wrote these last
    int updates = 0;
  };

  bool active(Axis axis) const { return plan_.mesh.size(axis) > 1; }
  /// Whether ranks along the axis may differ about parameters.
  bool drifting(Axis axis) const { return plan_.drifts && kBatchAxes.has(axis); }
  std::int64_t address(const Region& region) const { return role_.address(region, point_); }
  /// The axes of more than one rank that slice units.
  Axes slice_axes() const { return plan_.mesh.active(kSliceAxes); }
  /// Makes of facts those of a slice whose elements lie as a layout says.
  void make_slice(Facts& facts, std::int32_t layout, std::int64_t base = 0) const;
  Way stages_way(const std::vector<std::int32_t>& stages);

  void declare();
  void declare_unit(const Unit& unit);
  void declare(std::int64_t first, std::int64_t bytes, const Facts& facts);
  void declare_flat(const Unit& unit, const Slot& slot, bool slice);

  Facts uniform(std::size_t i, const Region& region);
  template <typename Visit>
  void for_each_piece(const Region& region, const Visit& visit);
  void put(std::size_t i, std::int64_t begin, const FactRange& piece);
  void write(std::size_t i, const Region& region, const Facts& facts);
  void write(std::size_t i, const Region& region, const FactRanges& pieces);
  void note_write(std::size_t i, const Region& region);
  bool need_same(std::size_t i, const Region& region, const std::string& what);
  void mix(std::size_t i, Axis axis, const std::string& what) { report_(i, what + " along " + std::string(name_of(axis))); }

  void launch(std::size_t i, const Launch& launch);
  void graph_op(std::size_t i, const Launch& launch, const Signature& signature);
  void copy(std::size_t i, const Launch& launch, const Signature& signature);
  void unite(Facts& a, Facts& b);
  void add(std::size_t i, const Launch& launch, const Signature& signature);
  void sum_squares(std::size_t i, const Launch& launch, const Signature& signature);
  void seed(std::size_t i, const Launch& launch);
  void update_scalars(std::size_t i, const Launch& launch);
  /// The unit whose master weights `master` is.
  std::optional<std::size_t> unit_of_master(const Region& master) const;
  void optimizer(std::size_t i, const Launch& launch, const Signature& signature);
  void scale(std::size_t i, const Launch& launch, const Signature& signature);
  void averaged(std::size_t i, const Launch& launch, const Signature& signature);
  void compress(std::size_t i, const Launch& launch, const Signature& signature);
  void decompress(std::size_t i, const Launch& launch, const Signature& signature);
  void copy_in(std::size_t i, const CopyIn& copy);
  void copy_out(std::size_t i, const CopyOut& copy);

  void all_reduce(std::size_t i, const Collective& collective);
  void reduce_scatter(std::size_t i, const Collective& collective);
  void all_gather(std::size_t i, const Collective& collective);
  bool own_place(const Collective& collective, const Region& slice, const Region& whole) const;

  void finish_persistent();
  void finish_units();

  const Plan& plan_;
  const std::size_t stage_;
  const Role& role_;
  const MeshPoint point_;
  const Program& program_;
  const Report report_;
  FlowTables& tables_;
  WayRules rules_;
  AddressMap<Facts> memory_, declared_;
  std::size_t at_ = 0;
  std::vector<char> read_;                  // of each instruction: whether anything reads what it wrote
  std::vector<std::int32_t> unit_layouts_;  // of each unit
  std::vector<UnitRecord> units_;
  std::map<std::pair<BufferId, std::int64_t>, std::size_t> masters_;  // by where they begin
  std::map<BufferId, std::vector<std::size_t>> unit_buffers_;        // units whose master or working copy lies there
  std::map<BufferId, std::pair<std::size_t, std::int32_t>> packed_;  // persistent packed weight: its unit, and when it was packed last
  std::set<BufferId> sums_;  // persistent copies that a later program takes for sums of what drifted apart
  int scalar_updates_ = 0;
  std::vector<Facts> inputs_, outputs_;  // of the launch at hand
  std::vector<Way> ways_;
  bool renews_ = false;  // the program must renew every copy of the masters
};

}  // namespace trainer
