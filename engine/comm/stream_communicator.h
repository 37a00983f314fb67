// StreamCommunicator: collectives between ranks on the memory of their devices, for programs on GPUs. They are put on a
// stream and return at once; what they read must be there, and what they write is there, in the stream's order. So a
// step with its communication can be captured as a graph.
//
// Sums are in the order of the library's rings and trees, the same on every rank and, for one number of ranks and one
// machine, in every run; not the order of ranks that the communicators on host memory keep.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/comm/communicator.h"
#include "engine/core/dtype.h"
#include "engine/launch/control_links.h"

namespace trainer {

class StreamCommunicator : public Communicator {
 public:
  explicit StreamCommunicator(int device_ordinal) : device_ordinal_(device_ordinal) {}

  /// Ranks that take part in collectives on streams. A group has its own order: its collectives are issued in one order
  /// on all its members, on one stream at a time. Groups on several streams go on beside each other. Dies before its
  /// communicator.
  class StreamGroup {
   public:
    virtual ~StreamGroup() = default;
    virtual int size() const = 0;
    virtual int index() const = 0;  ///< of this rank among the members
  };

  /// Splits the world: ranks that give one color become a group, ordered by key, then by rank. Collective over the
  /// world, outside captures: every rank calls it the same number of times in the same order. color < 0: this rank is
  /// in no group of this split, and gets null.
  virtual std::unique_ptr<StreamGroup> split(int color, int key) = 0;

  // On device memory. `stream` is a cudaStream_t of this communicator's device. They return once the work is on the
  // stream, and throw IoError or AbortedError where it cannot be.

  /// data[i] = Σ over members of data[i]. dtype f32, bf16, f16 or f64; i32 and u8 are integers.
  virtual void all_reduce(StreamGroup& group, DType dtype, void* data, std::int64_t elements, void* stream) = 0;
  /// Member i of n gets the sum of everyone's slice i. `elements` counts the whole input, a multiple of n. The output
  /// may be this member's slice of the input.
  virtual void reduce_scatter(StreamGroup& group, DType dtype, const void* input, void* output, std::int64_t elements,
                              void* stream) = 0;
  /// Slice i of the output is member i's input of `bytes` bytes. The input may be this member's slice of the output.
  virtual void all_gather(StreamGroup& group, const void* input, void* output, std::int64_t bytes, void* stream) = 0;
  /// Slice i of a member's input, `bytes` bytes, becomes slice j of member i's output, where j is the member it comes
  /// from. No overlap.
  virtual void all_to_all(StreamGroup& group, const void* input, void* output, std::int64_t bytes, void* stream) = 0;
  /// A member's input becomes the output of the next member, the last one's that of the first. No overlap.
  virtual void shift(StreamGroup& group, const void* input, void* output, std::int64_t bytes, void* stream) = 0;
  /// Everyone gets what the first member has.
  virtual void broadcast(StreamGroup& group, void* data, std::int64_t bytes, void* stream) = 0;
  /// Sends and receives at once over the world, issued as one; parts between the same two ranks match in order. Peers
  /// are ranks of the world.
  virtual void exchange(std::span<const Part> sends, std::span<const Part> receives, void* stream) = 0;

  /// Memory of the device that the network and the switch may read directly, aligned to 4096 bytes; `bytes` are rounded
  /// up to what the device maps at once. Throws IoError where there is not so much. `release` frees it, after every
  /// group is gone or the device is idle.
  virtual void* allocate(std::int64_t bytes) = 0;
  virtual void release(void* base) = 0;

  /// Lets collectives in [base, base + bytes) skip the library's own buffers, on the world's communicator and on every
  /// group's so far. Collective over the world: every rank registers as many, in the same order. Once a block of
  /// memory; it ends with the communicator, or by `unregister_memory` before the memory is freed. Memory of `allocate`
  /// gets all that the version offers (symmetric windows); other memory of the device what is right for it. What the
  /// library refuses goes through its buffers as before: slower, never wrong. A registration that it accepts and that
  /// fails later leaves the communicator unusable, and is an IoError. Ranks with equal `bytes` and `layout` have the
  /// operands of each collective at the same offsets, which windows require.
  virtual void register_memory(void* base, std::int64_t bytes, std::int64_t layout) = 0;
  virtual void unregister_memory(void* base) = 0;

  /// Throws AbortedError where another rank is lost or gave up, IoError where the library found an error by itself.
  /// Whoever waits for the device polls it: a kernel that waits for a lost rank would wait for ever, until the abort
  /// ends it.
  virtual void check() = 0;

  int device_ordinal() const { return device_ordinal_; }

 protected:
  const int device_ordinal_;
};

/// Where a rank of GPUs stands.
struct NcclPlace {
  int rank = 0;
  int world_size = 1;
  int device_ordinal = 0;  ///< as CUDA numbers them for this process, after CUDA_VISIBLE_DEVICES
  std::string id;          ///< 128 bytes of nccl_unique_id, the same on every rank
};

/// Whether this build has NCCL.
bool has_nccl();
/// Of the library that is there, "2.28.3"; empty in a build without NCCL.
std::string nccl_version();

/// An id for one world of ranks, made on one of them, for the others to get over the rendezvous
/// (engine/launch/rendezvous.h). 128 bytes.
std::string nccl_unique_id();

/// This process, or this thread of it, as one rank of GPUs; collective over the world. `connections`: those that the
/// rendezvous left open. Waits for the others no longer than TRAINER_RENDEZVOUS_S; then, and where NCCL fails, throws
/// IoError with the rank and what it waited in. UsageError in a build without NCCL.
std::unique_ptr<StreamCommunicator> nccl_communicator(const NcclPlace& place, Connections connections, OnLoss on_loss);

}  // namespace trainer
