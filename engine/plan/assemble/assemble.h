// Assembly: a graph, the actions of a schedule and the hooks of a data strategy become the programs of a plan.
#pragma once

#include <functional>
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

/// An optimizer as kernels know it.
struct OptimizerSpec {
  Op op = Op::adamw;                     ///< that updates the weights
  Attributes attributes;                 ///< without decay_elements and working; of muon those of all three ops, without matrices
  std::vector<StateSpec> states;         ///< operands after the gradient
  bool decay_all = false;                ///< decay parameters of fewer than two dims too
};

struct AssembleOptions {
  Mesh mesh;
  const Graph* train = nullptr;     ///< differentiated, of one micro-batch of one rank; null: no step program
  const Graph* evaluate = nullptr;  ///< forward alone; null: no evaluate program
  const Graph* sample = nullptr;    ///< forward to `logits` alone; null: no sample program
  std::vector<std::vector<std::string>> groups;  ///< names of the parameters that are to form units, all parameters once
  std::int64_t slice_alignment = 64;             ///< elements: a unit's slices are multiples of it
  DType reduce = DType::f32;
  DType compute = DType::f32;
  std::int64_t micro_batch = 1;  ///< samples of one micro-batch of one rank
  int micro_batches = 1;         ///< per step and rank
  std::vector<OptimizerSpec> optimizers{1};
  std::function<std::int32_t(const std::string& parameter)> optimizer_of{};  ///< index in `optimizers`; empty: the first
  double clip_norm = 0;  ///< 0: none
  Attributes loss_scaling;  ///< of update_scalars, for a dynamic loss scale; empty: the scale stays what the scalars hold
  const DataStrategy* data = nullptr;
  const GradientCompression* compression = nullptr;  ///< null: none
  Schedule schedule;  ///< of the step; its chunks are those of the graphs' nodes
  const Target* target = nullptr;
  bool proved = true;  ///< false: for a plan that may never run; who takes it calls verify
};

/// The whole plan: memory planned, order derived, and proved.
///
/// Fields of the step: those of the batch (all micro-batches of the rank, in order), "lr" f32, one for each of `optimizers`, and "step" i32 in, "metrics" f32
/// {factor, loss_scale, grad_norm, loss} out. Of evaluate: the fields of the batch in, "evaluation" f64 {loss sum, count,
/// right answers} out. Of sample: the graph's inputs in, "logits" out in the compute dtype. `refresh` makes working
/// copies and packed weights from the master weights; it runs after they were set from outside.
Plan assemble(const AssembleOptions& options);

}  // namespace trainer
