// CudaIssue: puts a program's instructions on a GPU's streams, and the waits between them. Nothing here waits for the
// device, so what is issued may as well be captured.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
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

/// A kernel that runs on the host's processor when its stream reaches it. A captured graph keeps the address of this
/// object, so it must not move.
struct HostCall {
  kernels::Kernel* kernel = nullptr;
  kernels::Call call;
};

struct CudaProgram {
  PreparedProgram prepared;
  StreamSchedule schedule;
  std::vector<StreamCommunicator::StreamGroup*> groups;  ///< of each instruction; null: none, or this rank alone
  std::map<std::int32_t, HostCall> host_calls;           ///< by instruction
  PinnedFields::Parts fields;
  std::array<ExecutableGraph, PinnedFields::kSets> graphs;  ///< by the fields that it uses; null: not captured yet
  std::int64_t runs = 0;
  std::chrono::nanoseconds took{0};       ///< by its last run, from its start to its end
  std::int64_t bytes_sent = 0;            ///< by one run of the graph
  std::vector<EventHandle> begins, ends;  ///< by the number of the place; made when times are recorded
  std::vector<Span> times;                ///< the same

  const Program& program() const { return *prepared.program; }
  std::string name() const { return std::string(name_of(program().kind)); }
  bool empty() const { return prepared.instructions.empty(); }
  Stream stream_of(std::int32_t instruction) const {
    return program().instructions[static_cast<std::size_t>(instruction)].stream;
  }
};

class CudaIssue {
 public:
  /// All of it outlives this object. `communicator`: null where the plan has one rank.
  /// `on_host`: what the plan keeps in the host's memory, pinned.
  CudaIssue(const Role& role, int rank, const CudaStreams& streams, const PinnedFields& fields, std::byte* on_host,
            StreamCommunicator* communicator)
      : role_(role), rank_(rank), streams_(streams), fields_(fields), on_host_(on_host), communicator_(communicator) {}

  /// All of a program, from the fork to the join, with set `set` of the fields; with `timed`, its events of times
  /// around each instruction. Throws IoError that names the instruction.
  void issue(CudaProgram& program, int set, bool timed);
  /// What a place runs, with set 0, without what it waits for.
  void issue_alone(CudaProgram& program, const Place& place);
  /// All of it as a graph, in which a loop is as many nodes as its passes issue. Runs nothing.
  ExecutableGraph capture(CudaProgram& program, int set);

  /// The number of the place that is being issued; -1: none. Any thread may ask.
  std::int32_t now() const { return now_.load(std::memory_order_relaxed); }

 private:
  void put(CudaProgram& program, const Place& place);
  void put(const CudaProgram& program, const Place& place, const Launch& launch);
  void put(const CudaProgram& program, const Place& place, const Collective& collective);
  void put(const CudaProgram& program, const Place& place, const Exchange& exchange);
  void put(const CudaProgram& program, const Place& place, const CopyIn& copy);
  void put(const CudaProgram& program, const Place& place, const CopyOut& copy);
  void put(const CudaProgram& program, const Place& place, const Move& move);

  const Role& role_;
  const int rank_;
  const CudaStreams& streams_;
  const PinnedFields& fields_;
  std::byte* const on_host_;
  StreamCommunicator* const communicator_;
  int set_ = 0;  // of the fields, while something is issued
  std::atomic<std::int32_t> now_{-1};
};

}  // namespace trainer
