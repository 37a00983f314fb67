// EmittedStep: the verbs of data strategies as instructions.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/assemble/staged_units.h"

namespace trainer {

class UnitReduction;

class EmittedStep final : public Step {
 public:
  EmittedStep(Emitter& emit, Role& role, const AssembleOptions& options);
  ~EmittedStep() override;

  void all_gather_working(const Unit& unit, bool int8) override;
  void keep_secondary(const Unit& unit) override;
  void release_working(const Unit& unit) override;
  void all_reduce_gradient(const Unit& unit, Axes axes) override;
  void reduce_scatter_gradient(const Unit& unit, bool once, bool int8) override;
  void optimizer(const Unit& unit) override;
  void average(const Unit& unit, Axes axes) override;
  void set_anchor(const Unit& unit) override;
  void outer_step(const Unit& unit, Axes axes, const OuterSettings& outer) override;
  void swap_anchor(const Unit& unit) override;
  void copy_master(const Unit& unit, const std::string& name) override;
  void sum_copies(const Unit& unit, Axes axes, const std::string& from, const std::string& to) override;
  void apply_delayed(const Unit& unit, Axes axes, const std::string& sum, const std::string& mine) override;

  // ---- The parts of a step that are no strategy's ----

  /// The unit's working copy is about to be read: decodes it, if what was gathered are codes.
  void decode_working(const Unit& unit);
  /// Issues what still waits for collectives of gradients.
  void finish_gradients();
  /// Sums the gradients of units that several stages share.
  void sum_over_stages();
  /// f64 [1]: the sum of squares of all gradients, each element counted once on any mesh.
  BufferId sum_of_squares(int stage);
  /// The working copy (this rank's slice of it) from the master, where it is another buffer.
  void renew_working(const Unit& unit);
  /// The unit's gradient is complete: its part of the norm is summed, and it is kept off the device until the update.
  void keep_gradient(const Unit& unit);
  /// Asks for the first of what the update needs and is kept off the device, if it runs there.
  void fetch_ahead() {
    if (staged_.space() == Space::device) staged_.begin();
  }

  BufferId lr = -1;

 private:
  std::size_t index(const Unit& unit) const { return static_cast<std::size_t>(&unit - role_.units.data()); }
  /// The unit's gradients as far as they are reduced: whole, or this rank's slice.
  Region gradient(const Unit& unit);
  /// Quantizes `slices` slices of a region of `dtype`: the codes.
  Region encode(const Unit& unit, DType dtype, const Region& region, int slices);
  Region packets(const Unit& unit, std::int64_t elements, int slices);
  void gather(const Unit& unit, DType dtype, const Region& from, const Region& to);
  Region fetch_working(const Unit& unit);
  void gather_codes(const Unit& unit, const Region& from, BufferId gathered);
  void scatter_codes(const Unit& unit, const Region& all, const Region& slice);
  void sum_partial(const Unit& unit);
  void compress(const Unit& unit, Axes axes, bool sliced, DType reduce, const Region& gradient);
  void put_off(std::function<void()> rest);
  void catch_up();
  struct UnitUpdate;
  void next_op(UnitUpdate& one);
  void add_squares(const Unit& unit);
  void update_in_chunks(const Unit& unit);
  Region for_update(const Region& scalars);
  void launch(UnitUpdate& one, const UpdateOp& op, const StagedUnits::Chunk& chunk);
  std::vector<std::pair<TensorDesc, Operand>> operands_of(UnitUpdate& one, const UpdateOp& op,
                                                          const StagedUnits::Chunk& chunk);
  void gather(UnitUpdate& one);
  void scatter(UnitUpdate& one);
  Region update_buffer(const Unit& unit, std::int64_t elements);
  void average(const Unit& unit, const std::string& what, Axes axes, const Region& region);

  Emitter& emit_;
  Role& role_;
  const AssembleOptions& options_;
  // Of each unit: the slice that its gradients were reduced to, or where they are kept, and whether sums over the
  // tensor axis are done and those of squares.
  struct Reduced {
    Region slice;
    bool partial_summed = false, squared = false;
  };
  std::vector<Reduced> reduced_;
  std::map<const Unit*, std::function<void()>> encoded_;  // units that are gathered, and are still to be decoded
  std::map<const Unit*, Region> codes_, secondary_;       // of units: all their codes; their part of a secondary copy
  std::vector<std::function<void()>> later_;              // what the next unit's reduction issues first
  // The update of a unit, and how far it is.
  struct UnitUpdate {
    const Unit* unit;
    std::span<const UpdateOp> rest;                  // ops of its optimizer that are still to be launched
    Region update{};                                 // what an op has made: the rank's slice, or gathered
    std::vector<std::pair<Axes, Region>> gathers{};  // over which axes, of what
  };
  std::vector<UnitUpdate> updates_;                   // in the order of units, those that run ahead first
  BufferId squares_ = -1;                             // -1: nothing is summed yet
  StagedUnits staged_, masters_;                      // of the update; of copies from masters
  bool gradients_leave_ = false;                      // staged_ knows of those that leave for the update
  std::map<BufferId, BufferId> scalars_on_host_;      // of scalars that are made on the device
  std::map<std::uint8_t, std::vector<double>> work_;  // of the owners of whole matrices over those axes, in FLOPs
  std::vector<std::unique_ptr<ReductionContext>>
      reductions_;  // of the compressed reductions, which later_ may still use

  friend class UnitReduction;
};

}  // namespace trainer
