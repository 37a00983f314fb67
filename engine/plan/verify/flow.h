// A part of verification (verify.h): what every byte is, on one representative rank of a role, relative to the other
// ranks: the same, cut, a sum still to be made (facts.h). Instructions are interpreted one by one; a communication must
// find its operands such that it does what its kind says, and what a program leaves behind must be what the plan says
// its parameters and states are.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/ops/op_def.h"
#include "engine/plan/address_map.h"
#include "engine/plan/plan.h"
#include "engine/plan/verify/facts.h"

namespace trainer {

/// Of one program on the rank of a role at `point`. REQUIRES: accesses lie inside their buffers, operands fit their
/// signatures.
class Flow {
 public:
  using Report = std::function<void(std::size_t instruction, const std::string& what)>;
  Flow(const Plan& plan, std::size_t stage, const MeshPoint& point, std::size_t program, FlowTables& tables,
       Report report);

  /// Interprets everything before instruction `end` that does not communicate.
  void run_until(std::size_t end);
  FactRanges read(const Region& region);
  /// What a collective finds here, and what it leaves if it finds `pieces` on all ranks.
  FactRanges bring(std::size_t i, const Collective& collective);
  void collective(std::size_t i, const Collective& collective, FactRanges pieces);
  void receive(std::size_t i, const Region& region, const FactRanges& sent);
  /// After the last instruction.
  void finish();
  /// Whether facts say the same, whoever wrote the bytes.
  static bool same(const Facts& a, const Facts& b);

 private:
  struct UnitRecord {
    std::int32_t master = -1, slice = -1, working = -1;  // instructions that wrote these last
    int updates = 0;                                     // of the whole master
    std::int64_t next = 0;                               // element of the slice that the next update begins with
    std::int64_t gradient = -1;                          // address at home of what the first part was updated with
    std::size_t states = 0;                              // so many of state_operands (update_operands.h) were updated
    friend bool operator==(const UnitRecord&, const UnitRecord&) = default;
  };

  enum Writer : std::uint8_t { kHere, kElsewhere, kNowhere, kTwice };
  static Writer writer_of(const Role& role, const Unit& unit, const Program& program);

  bool active(Axis axis) const { return plan_.mesh.size(axis) > 1; }
  /// Whether ranks along the axis may differ about parameters.
  bool drifting(Axis axis) const { return plan_.drifts && kBatchAxes.has(axis); }
  /// Whether the program must renew every copy of the unit's master.
  bool renews(std::size_t unit) const { return renews_ && writers_[unit] != kElsewhere; }
  /// Whether the program finds masters and states that have drifted apart.
  bool restores() const { return plan_.drifts && renews_ && program_.kind != ProgramKind::refresh; }
  std::int64_t address(const Region& region) const { return role_.address(region, point_); }
  /// FlowTables::stage_sets of these stages; empty: all.
  std::int32_t stage_set(std::vector<std::int32_t> stages);
  /// How the unit's flat buffers lie, or a rank's slice of them, of so many elements.
  FactRanges lies(std::size_t unit, std::int64_t elements, DType dtype);
  /// The same of some elements of the rank's slice.
  FactRanges lies(std::size_t unit, const ElementRange& elements, DType dtype);
  /// The same as one fact with the unit's layout.
  Facts flat(std::size_t unit, std::int64_t elements, DType dtype);

  template <typename Visit>
  void for_each_launch(Op op, const Visit& visit) const;  // of all programs
  void declare();
  void declare_unit(std::size_t unit);
  void declare_anchor(std::size_t unit, const Region& region);
  void declare(const Region& region, const FactRanges& pieces);

  Facts uniform(const Region& region);
  template <typename Visit>
  void for_each_piece(const Region& region, const Visit& visit);
  static void put(AddressMap<Facts>& into, std::int64_t begin, const FactRange& piece);
  void write(std::size_t i, const Region& region, Facts facts);
  void write(std::size_t i, const Region& region, FactRanges pieces);
  void note_write(std::size_t i, const Region& region);
  /// The address at home of what a region holds: its own, unless all of it was moved here from one place; -1: neither.
  std::int64_t home_of(const Region& region);
  bool all_updated(const Region& region);
  /// Whether the step or the program that makes working copies has to bring back all of a unit's slot.
  bool returns(const Unit& unit, const Slot& slot) const;
  /// Where the working copy belongs that is made of part of a master; -1: there is none off the device.
  std::int64_t home_of_copy(std::size_t i, const Region& master);
  /// Of what was brought back it is the values that count.
  static Facts at_home(const Facts& facts);
  void move(std::size_t i, const Move& move);
  bool was_left_by_pass(std::size_t i, std::int32_t writer) const;
  void need_same(std::size_t i, const Region& region, const std::string& what);
  void mix(std::size_t i, Axis axis, const std::string& what) {
    report_(i, what + " along " + std::string(name_of(axis)));
  }

  void meet_loops();
  void leave_loop();
  void launch(std::size_t i, const Launch& launch);
  void graph_op(std::size_t i, const Launch& launch, const Signature& signature);
  void copy(std::size_t i, const Launch& launch, const Signature& signature);
  bool cuts_whole(const Region& region);
  FactRanges cut(std::size_t i, const Region& region, std::int64_t width);
  void add(std::size_t i, const Launch& launch, const Signature& signature);
  Facts added(std::size_t i, Facts a, Facts b);
  void sum_squares(std::size_t i, const Launch& launch, const Signature& signature);
  void count_once(std::size_t i, const Facts& facts, double scale);
  void seed(std::size_t i, const Launch& launch);
  void update_scalars(std::size_t i, const Launch& launch);
  /// An op of an optimizer (OpDef::update), and what it demands of its operands: the unit's gradient, reduced, or the
  /// update that an op before it has made, in slices or whole.
  void update(std::size_t i, const Launch& launch, const Signature& signature);
  void update_operand(std::size_t i, std::size_t unit, UpdateDef::Operand of, const Launch& launch, std::size_t operand,
                      const ElementRange& elements);
  /// The elements of the rank's slice that an op updates.
  ElementRange updated_elements(std::size_t i, std::size_t unit, const Launch& launch, const Signature& signature);
  void update_master(std::size_t i, std::size_t unit, const Launch& launch, const Region& region,
                     const ElementRange& elements);
  bool on_device(const Region& region, const Region& home) const;
  /// Updates what is kept off the device of a slot, there or where it was moved; `pieces` are now its facts.
  void update_slot(std::size_t i, const Region& region, const Region& home, FactRanges pieces);
  void take_gradient(std::size_t i, std::size_t unit, const Region& gradient, DType dtype,
                     const ElementRange& elements);
  Facts take_update(std::size_t i, std::size_t unit, const Region& region, const UpdateDef& def);
  Facts change_matrices(std::size_t i, std::size_t unit, const Launch& launch, const TensorDesc& tensor, Facts is);
  void scale(std::size_t i, const Launch& launch, const Signature& signature);
  void averaged(std::size_t i, const Launch& launch, const Signature& signature);
  void outer_gradient(std::size_t i, const Launch& launch);
  void outer_step(std::size_t i, const Launch& launch, const Signature& signature);
  FactRanges mean(std::size_t i, FactRanges sums, const Signature& signature);
  void compress(std::size_t i, const Launch& launch, const Signature& signature);
  void decompress(std::size_t i, const Launch& launch, const Signature& signature, bool sums);
  void copy_in(std::size_t i, const CopyIn& copy);
  void copy_out(std::size_t i, const CopyOut& copy);

  bool own_place(const Collective& collective) const;
  Axes cut_axes(const Collective& collective, const Facts& facts) const;
  bool in_order(const Collective& collective, const Facts& facts) const;
  bool all_slices(const Collective& collective, const Facts& facts) const;
  bool turns_slices(const Collective& collective, const Facts& facts) const;

  void finish_persistent();
  void finish_units();
  bool all_written(const Region& region);
  void finish_anchor(std::size_t last, const Unit& unit);

  const Plan& plan_;
  const std::size_t stage_;
  const Role& role_;
  const MeshPoint point_;
  const Program& program_;
  const Report report_;
  FlowTables& tables_;
  Rules rules_;
  AddressMap<Facts> memory_, declared_;
  std::size_t at_ = 0;
  std::vector<char> read_;                  // of each instruction: whether anything reads what it wrote
  std::vector<std::int32_t> unit_layouts_;  // of each unit
  std::vector<UnitRecord> units_;
  std::map<BufferId, std::vector<std::size_t>> unit_buffers_;  // units whose master or working copy lies there
  std::set<BufferId> slots_;                                   // buffers of slots that stay from step to step
  std::set<BufferId> kept_;                                    // those of them that are kept off the device
  std::set<BufferId> kept_weights_;                            // those of them that passes read
  std::set<BufferId> sums_;  // persistent copies that a later program takes for sums of what drifted apart
  int scalar_updates_ = 0;
  std::vector<Facts> inputs_, outputs_;  // of the launch at hand
  // What the loop at hand found.
  struct Found {
    const Loop* loop = nullptr;
    AddressMap<Facts> memory;
    std::vector<UnitRecord> units;
    int scalar_updates = 0;
  };
  Found found_;
  std::size_t loops_met_ = 0;
  bool renews_ = false;  // the program must renew every copy of the masters; one of several `average`, of its units
  // Of each unit: whether this is the one program that brings it together. Of several `average` each has its units.
  std::vector<Writer> writers_;
};

}  // namespace trainer
