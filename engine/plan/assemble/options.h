// AssembleOptions: all that a plan is assembled from.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/plan/strategy.h"

namespace trainer {

/// A state of an optimizer: as many elements as the master.
struct StateSpec {
  std::string name;
  Format format{};
};

/// One op of an optimizer's update of a unit. Its declaration (OpDef::update) says what its operands are, and whether
/// it works on slices or on whole matrices.
struct UpdateOp {
  Op op = Op::adamw;
  Attributes attributes{};          ///< without decay_elements, working and matrices, which are the unit's
  std::vector<StateSpec> states{};  ///< that it keeps
};

/// An optimizer: the ops of its update, in order. The last one updates the weights.
struct OptimizerSpec {
  std::vector<UpdateOp> ops;
  bool decay_all = false;  ///< decay parameters of fewer than two dims too

  std::vector<StateSpec> states() const {
    std::vector<StateSpec> all;
    for (const UpdateOp& op : ops) all.insert(all.end(), op.states.begin(), op.states.end());
    return all;
  }
};

/// What is kept off the device, and comes there for its use.
struct OffloadOptions {
  Space optimizer = Space::device;    ///< masters that are no working copies, and the states of optimizers
  Space gradients = Space::device;    ///< from a unit's last gradient to its update; then micro_batches is 1
  Space parameters = Space::device;   ///< working copies that are sliced; those in f32 are the masters
  Space activations = Space::device;  ///< of a step without a pipeline: what its backward passes need of forward ones
  bool update_on_host = false;        ///< the update runs on the processor of the device's host
  std::int64_t chunk = std::int64_t{4} << 20;  ///< elements that come at a time

  /// Whether units keep anything there.
  bool any() const { return optimizer != Space::device || gradients != Space::device || parameters != Space::device; }
};

struct AssembleOptions {
  Mesh mesh;
  const Graph* train = nullptr;     ///< differentiated, of one micro-batch of one rank; null: no step program
  const Graph* evaluate = nullptr;  ///< forward alone; null: no evaluate program
  const Graph* sample = nullptr;    ///< forward to `logits` alone; null: no sample program
  const Graph* prompt = nullptr;    ///< the same of several tokens, with the states of `sample`; null: no such program
  std::vector<std::vector<std::string>>
      groups;                         ///< names of the parameters that are to form units, all parameters once
  std::int64_t slice_alignment = 64;  ///< elements: a unit's slices are multiples of it
  std::int64_t tensor_alignment = 1;  ///< elements: its tensors begin at multiples of it
  bool cut_apart = false;  ///< what the tensor axis cuts and what its ranks have alike are units of their own
  DType reduce = DType::f32;
  DType compute = DType::f32;
  std::int64_t micro_batch = 1;  ///< rows of one micro-batch of one rank
  int micro_batches = 1;         ///< per step and rank
  std::vector<OptimizerSpec> optimizers{1};
  std::function<std::int32_t(const std::string& parameter)>
      optimizer_of{};    ///< index in `optimizers`; empty: the first
  double clip_norm = 0;  ///< 0: none
  Attributes
      loss_scaling;  ///< of update_scalars, for a dynamic loss scale; empty: the scale stays what the scalars hold
  const DataStrategy* data = nullptr;
  const GradientCompression* compression = nullptr;  ///< null: none
  OffloadOptions offload{};
  /// Micro-batches that every action takes at once: between two collectives of the graph one after the other computes,
  /// so that what the one sends travels while the next computes.
  int together = 1;
  Schedule schedule;  ///< of the step, for micro_batches / together; its chunks are those of the graphs' nodes
  const Target* target = nullptr;
  std::int64_t limit_bytes = std::numeric_limits<std::int64_t>::max();  ///< of a rank: memory is planned to stay within
  bool loops = true;  ///< a step of many micro-batches has loops, unless only a list fits
  /// For a draft: called in place of making a list, where only that may fit or where loops take much more memory, with
  /// the least bytes that a list needs. Empty: it is made.
  std::function<void(std::int64_t)> instead_of_list{};
  std::function<void(int)> on_list{};  ///< called with the micro-batches that are about to be listed; may throw
  bool proved = true;                  ///< false: for a plan that may never run; who takes it calls verify
};

}  // namespace trainer
