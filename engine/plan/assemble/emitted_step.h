// EmittedStep: the verbs of data strategies as instructions.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/assemble/emitter.h"

namespace trainer {

class UnitWire;

class EmittedStep final : public Step {
 public:
  EmittedStep(Emitter& emit, Role& role, const AssembleOptions& options);
  ~EmittedStep() override;

  void all_gather_working(const Unit& unit) override;
  void release_working(const Unit& unit) override;
  void all_reduce_gradient(const Unit& unit, Axes axes) override;
  void reduce_scatter_gradient(const Unit& unit, bool once) override;
  void optimizer(const Unit& unit) override;
  void average(const Unit& unit, Axes axes) override;
  void outer_step(const Unit& unit, Axes axes, const OuterSettings& outer) override;
  void copy_master(const Unit& unit, const std::string& name) override;
  void sum_copies(const Unit& unit, Axes axes, const std::string& from, const std::string& to) override;
  void apply_delayed(const Unit& unit, Axes axes, const std::string& sum, const std::string& mine) override;

  // ---- The parts of a step that are no strategy's ----

  /// Issues what still waits for collectives of gradients.
  void finish_gradients();
  /// Sums the gradients of units that several stages share.
  void sum_over_stages();
  /// f64 [1]: the sum of squares of all gradients, each element counted once on any mesh.
  BufferId sum_of_squares(int stage);
  /// The working copy (this rank's slice of it) from the master, where it is another buffer.
  void renew_working(const Unit& unit);

  BufferId lr = -1;

 private:
  std::size_t index(const Unit& unit) const { return static_cast<std::size_t>(&unit - role_.units.data()); }
  /// The unit's gradients as far as they are reduced: whole, or this rank's slice.
  Region gradient(const Unit& unit);
  void sum_partial(const Unit& unit);
  void put_off(std::function<void()> rest);
  void catch_up();
  const OptimizerSpec& spec_of(const Unit& unit) const;  ///< of a unit that is trained
  std::vector<std::pair<TensorDesc, Operand>> states_of(const Unit& unit) const;
  void update(const Unit& unit, const OptimizerSpec& spec, const Region& by, DType dtype, const std::vector<std::pair<TensorDesc, Operand>>& states);
  struct MuonUnit;
  Region muon(const Unit& unit);
  void gather_momentum(MuonUnit& one);
  void orthogonalize(MuonUnit& one);
  void average(const Unit& unit, const std::string& what, Axes axes, const Region& region);

  Emitter& emit_;
  Role& role_;
  const AssembleOptions& options_;
  // Of each unit: the slice that its gradients were reduced to, and whether sums over the tensor axis are done.
  struct Reduced {
    Region slice;
    bool partial_summed = false;
  };
  std::vector<Reduced> reduced_;
  std::vector<std::function<void()>> later_;  // what the next unit's reduction issues first
  // The units that Muon updates, in order, and how far each is.
  struct MuonUnit {
    const Unit* unit;
    Region mine, all;  // momentum or update: the rank's slice, and what is gathered of it
    std::vector<std::pair<Axes, Region>> gathers;  // over which axes, of what
  };
  std::vector<MuonUnit> muon_units_;
  std::ptrdiff_t muon_gathered_ = 0, muon_orthogonalized_ = 0;  // so many of them
  std::map<std::uint8_t, std::vector<double>> muon_flops_;  // of the ranks that share Muon's work over those axes
  std::vector<std::unique_ptr<Wire>> wires_;  // of the compressed reductions, which later_ may still use

  friend class UnitWire;
};

}  // namespace trainer
