// Communicator: a rank's way to the others. Collectives block the calling thread, which is the rank's communication
// thread; a rank issues them in one order. Sums are in rank order, so the same bits come out on every rank and every
// run.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/core/dtype.h"

namespace trainer {

/// Another rank failed, and this one was released from waiting for it.
struct AbortedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Rank 0's text, on every rank. `broadcast` gives everyone rank 0's bytes; every rank calls.
std::string broadcast_text(const std::string& mine,
                           const std::function<void(void* data, std::int64_t bytes)>& broadcast);

class Communicator {
 public:
  /// The ranks that take part in a collective, prepared once.
  class Group {
   public:
    virtual ~Group() = default;
  };
  struct Part {
    int peer = 0;  ///< rank
    void* data = nullptr;
    std::int64_t bytes = 0;
  };

  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
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
  /// Everyone gets what the first member has.
  virtual void broadcast(Group& group, void* data, std::int64_t bytes) = 0;
  /// Sends and receives at once; parts between the same two ranks match in order.
  virtual void exchange(std::span<const Part> sends, std::span<const Part> receives) = 0;
  /// Returns when every rank of the world has called it. For the training loop, outside a program.
  virtual void barrier() = 0;
  /// Releases every rank that waits, now and later, by AbortedError with this reason.
  virtual void abort(const std::string& reason) = 0;

  /// Says what this rank does now ("waits in all_reduce …"), for messages about ranks that were lost; empty outside a
  /// program. Called from any thread, until another function or none takes its place.
  void describe_by(std::function<std::string()> describe);
  /// What this rank does at the moment, by that function.
  std::string doing() const;

  /// Bytes this rank has sent so far, as a bandwidth-optimal ring would send them.
  std::int64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  /// Adds what is sent without a call: by a captured program that runs again.
  void add_bytes_sent(std::int64_t bytes) { bytes_sent_.fetch_add(bytes, std::memory_order_relaxed); }

 protected:
  std::atomic<std::int64_t> bytes_sent_{0};

 private:
  mutable std::mutex describe_mutex_;
  std::function<std::string()> describe_;
};

/// The communicators of `world_size` ranks that are threads of this process. They share nothing but each other's
/// memory.
std::vector<std::unique_ptr<Communicator>> thread_communicators(int world_size);

/// What a process does when another rank is lost: its process has ended, or has been silent for too long. Both are
/// called on a thread of the communicator's.
struct OnLoss {
  /// At once, with a sentence that names the lost rank and what this one waits in. After it every collective throws
  /// AbortedError.
  std::function<void(const std::string& message)> tell;
  /// Some seconds later, if the communicator still lives, since a kernel or a library holds this rank: end the process.
  std::function<void()> end;
};

/// Whether this build has MPI.
bool has_mpi();

/// This process as one rank of those that mpirun or srun started (alone: the only one). Once a process; MPI ends with
/// the object. One thread at a time calls collectives. Ranks hear each other's heartbeats (engine/launch/heartbeat.h).
/// Throws UsageError in a build without MPI.
std::unique_ptr<Communicator> mpi_communicator(OnLoss on_loss);

}  // namespace trainer
