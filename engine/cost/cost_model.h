// CostModel: how long an instruction takes on a machine. Kernels by their own FLOPs and bytes (roofline, with what
// shapes and sizes cost, or what was measured), collectives by the algorithm that would run over the links that the
// group's ranks share. Pure: the same answers on every machine, no device needed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/core/mesh.h"
#include "engine/core/signature.h"
#include "engine/cost/estimate.h"
#include "engine/cost/machine_model.h"
#include "engine/plan/plan.h"

namespace trainer::cost {

/// Where the ranks of a mesh are: rank r lives on node r / ranks_per_node.
struct Cluster {
  const MachineModel* machine = nullptr;
  Mesh mesh;
  int ranks_per_node = 1;
  int threads = 0;  ///< of one rank, where the device is a CPU, which its node's ranks share
  std::int64_t working_bytes =
      0;  ///< that a node's ranks walk over in a step: what a CPU's caches hold of it; 0: all of it
};

/// Keeps what it was asked before, also where it is const: one thread's at a time.
class CostModel {
 public:
  /// Holds a copy of what `cluster` says; `machine` must outlive it.
  explicit CostModel(const Cluster& cluster);
  ~CostModel();
  CostModel(const CostModel&) = delete;
  CostModel& operator=(const CostModel&) = delete;

  /// A kernel alone on the device (on a CPU: while the node's other ranks run as much); bound by computing, on the
  /// slowest of the mesh's devices, for which all wait. Equal signatures are worked out once.
  Estimate kernel(const Signature& signature) const;
  /// What kernels take of the time that kernel() says, where a rank computes for the share `busy` of a step: kernel()
  /// has all ranks of a node run at once, and those of a CPU that have more threads than it has cores take turns. Where
  /// some wait, as in the bubbles of a pipeline, the others have the cores.
  double taking_turns(double busy) const;
  /// A collective over the ranks that differ along `axes` (of the pipeline's stages over `stages`; empty: all), by the
  /// slowest group there is. `bytes` are of the larger side. One rank: 0.
  Estimate collective(CollectiveKind kind, DType dtype, Axes axes, const std::vector<std::int32_t>& stages,
                      std::int64_t bytes) const;
  /// A message to the rank `peer` further along `axis`, by the slowest such pair.
  Estimate send(Axis axis, int peer, std::int64_t bytes) const;
  /// Bytes between host and device.
  Estimate copy(std::int64_t bytes) const;
  /// Bytes between the device and another of its spaces, while the node's other ranks move as many.
  Estimate move(Space elsewhere, bool comes, std::int64_t bytes) const;
  /// A kernel on the processor of a GPU's host, while those of the node's other ranks run; bound by its memory.
  Estimate on_host(const Signature& signature) const;
  Estimate on_host(std::int64_t bytes) const;  ///< that reads and writes so many
  /// By how much kernels take longer while communication runs.
  double overlap_slowdown() const;
  /// The same beside a collective of this group: on a GPU one that leaves the node by few cards holds few
  /// multiprocessors.
  double overlap_slowdown(Axes axes, const std::vector<std::int32_t>& stages) const;
  const Cluster& cluster() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainer::cost
