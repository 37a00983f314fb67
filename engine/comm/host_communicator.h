// HostCommunicator: collectives between ranks on host memory, for programs on CPUs. They block the calling thread;
// one thread of a rank at a time calls them, in one order. Sums are in rank order, so the same bits come out on every
// rank and every run.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/core/dtype.h"

namespace trainer {

class HostCommunicator : public Communicator {
 public:
  /// The ranks that take part in a collective, prepared once.
  class Group {
   public:
    virtual ~Group() = default;
    /// Whether no computation of the rank goes on beside the next collectives of the group: who calls them may then
    /// wait for the other members without sleeping. Otherwise its core is left to computation.
    void wait_awake(bool awake) { awake_ = awake; }

   protected:
    bool awake_ = false;
  };

  /// Members ascending, this rank among them. Every member asks for the group.
  virtual std::unique_ptr<Group> group(const std::vector<int>& members) = 0;

  /// data[i] = Σ over members of data[i]. dtype f32, bf16 (summed in f32) or f64.
  virtual void all_reduce(Group& group, DType dtype, void* data, std::int64_t elements) = 0;
  /// Member i of n gets the sum of everyone's slice i. `elements` counts the whole input, a multiple of n.
  virtual void reduce_scatter(Group& group, DType dtype, const void* input, void* output, std::int64_t elements) = 0;
  /// Slice i of the output is member i's input of `bytes` bytes. The input may be this member's slice of the output.
  virtual void all_gather(Group& group, const void* input, void* output, std::int64_t bytes) = 0;
  /// Slice i of a member's input, `bytes` bytes, becomes slice j of member i's output, where j is the member it comes
  /// from.
  virtual void all_to_all(Group& group, const void* input, void* output, std::int64_t bytes) = 0;
  /// A member's input becomes the output of the next member, the last one's that of the first. No overlap.
  virtual void shift(Group& group, const void* input, void* output, std::int64_t bytes) = 0;
  /// Everyone gets what the first member has.
  virtual void broadcast(Group& group, void* data, std::int64_t bytes) = 0;
  /// Sends and receives at once; parts between the same two ranks match in order.
  virtual void exchange(std::span<const Part> sends, std::span<const Part> receives) = 0;
};

/// The communicators of `world_size` ranks that are threads of this process. They share nothing but each other's
/// memory.
std::vector<std::unique_ptr<HostCommunicator>> thread_communicators(int world_size);

/// Whether this build has MPI.
bool has_mpi();

/// This process as one rank of those that mpirun or srun started (alone: the only one). Once a process; MPI ends with
/// the object. One thread at a time calls collectives. MPI carries the collectives; what else the ranks tell each
/// other, and that they live, goes over connections of their own (process_channel.h). Throws UsageError in a build
/// without MPI, IoError where the ranks cannot connect.
std::unique_ptr<HostCommunicator> mpi_communicator(OnLoss on_loss);

}  // namespace trainer
