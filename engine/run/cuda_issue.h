// CudaIssue: puts a program's instructions on a GPU's streams, and the waits between them. Nothing here waits for the
// device, so what is issued may as well be captured.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/stream_communicator.h"
#include "engine/run/cuda_streams.h"
#include "engine/run/executor.h"
#include "engine/run/group_splits.h"
#include "engine/run/pinned_fields.h"
#include "engine/run/prepared_program.h"

namespace trainer {

/// The groups of a plan, split off the world in the order that is the same on all ranks.
class CudaGroups {
 public:
  /// `communicator`: null where the plan has one rank.
  CudaGroups(const Plan& plan, StreamCommunicator* communicator);
  /// The group of a collective on that stream; null: this rank alone.
  StreamCommunicator::StreamGroup* of(const Collective& collective, Stream stream) const;

 private:
  const Mesh& mesh_;
  std::vector<GroupSplit> splits_;
  std::vector<std::unique_ptr<StreamCommunicator::StreamGroup>> groups_;  // of each split; null: this rank is in none
};

struct CudaProgram {
  PreparedProgram prepared;
  StreamSchedule schedule;
  std::vector<StreamCommunicator::StreamGroup*> groups;  ///< of each instruction; null: none, or this rank alone
  PinnedFields::Parts fields;
  ExecutableGraph graph;  ///< null: not captured yet
  std::int64_t runs = 0;
  std::int64_t bytes_sent = 0;            ///< by one run of the graph
  std::vector<EventHandle> begins, ends;  ///< of each instruction; made when times are recorded
  std::vector<Span> times;

  std::string name() const { return std::string(name_of(prepared.program->kind)); }
  std::int32_t size() const { return static_cast<std::int32_t>(prepared.instructions.size()); }
  Stream stream_of(std::int32_t index) const {
    return prepared.program->instructions[static_cast<std::size_t>(index)].stream;
  }
};

class CudaIssue {
 public:
  /// All of it outlives this object. `communicator`: null where the plan has one rank.
  CudaIssue(const Role& role, int rank, const CudaStreams& streams, const PinnedFields& fields,
            StreamCommunicator* communicator)
      : role_(role), rank_(rank), streams_(streams), fields_(fields), communicator_(communicator) {}

  /// All of a program, from the fork to the join; with `timed`, its events of times around each instruction. Throws
  /// IoError that names the instruction.
  void issue(const CudaProgram& program, bool timed);
  /// One instruction, without what it waits for.
  void issue_alone(const CudaProgram& program, std::int32_t index);
  /// The same as a graph. Runs nothing.
  ExecutableGraph capture(const CudaProgram& program);

  /// The instruction that is being issued; -1: none. Any thread may ask.
  std::int32_t now() const { return now_.load(std::memory_order_relaxed); }

 private:
  void put(const CudaProgram& program, std::int32_t index);
  void put(const CudaProgram& program, std::int32_t index, const Launch& launch);
  void put(const CudaProgram& program, std::int32_t index, const Collective& collective);
  void put(const CudaProgram& program, std::int32_t index, const Exchange& exchange);
  void put(const CudaProgram& program, std::int32_t index, const CopyIn& copy);
  void put(const CudaProgram& program, std::int32_t index, const CopyOut& copy);

  const Role& role_;
  const int rank_;
  const CudaStreams& streams_;
  const PinnedFields& fields_;
  StreamCommunicator* const communicator_;
  std::atomic<std::int32_t> now_{-1};
};

}  // namespace trainer
