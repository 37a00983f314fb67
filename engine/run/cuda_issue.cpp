// One visit per kind of instruction: a launch, a copy, a collective or an exchange, each on its instruction's stream.
#include "engine/run/cuda_issue.h"

#include <algorithm>

#include "engine/core/check.h"
#include "engine/core/error.h"

namespace trainer {
namespace {

using kernels::cuda::check;

// A collective over one rank.
void copy_to_itself(void* output, const void* input, std::int64_t bytes, cudaStream_t stream) {
  if (input != output)
    check(cudaMemcpyAsync(output, input, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream),
          "cudaMemcpyAsync");
}

// CUDA calls it on a thread of its own. It makes no call of CUDA's, and throws nothing.
void run_on_host(void* data) noexcept {
  const HostCall& one = *static_cast<const HostCall*>(data);
  one.kernel->run(one.call);
}

const PreparedInstruction& prepared_at(const CudaProgram& program, const Place& place) {
  return program.prepared.instructions[static_cast<std::size_t>(place.instruction)];
}

}  // namespace

CudaGroups::CudaGroups(const Plan& plan, StreamCommunicator* communicator)
    : mesh_(plan.mesh), splits_(group_splits(plan)) {
  CHECK(communicator != nullptr || splits_.empty(), "ranks of GPUs have a communicator of GPUs");
  for (const GroupSplit& split : splits_) {
    const SplitPart part = part_of(mesh_, split, communicator->rank());
    groups_.push_back(communicator->split(part.color, part.key));
  }
}

StreamCommunicator::StreamGroup* CudaGroups::of(const Collective& collective, Stream stream) const {
  const std::optional<GroupSplit> split = split_of(mesh_, collective, stream);
  if (!split) return nullptr;
  const auto at = std::find(splits_.begin(), splits_.end(), *split);
  CHECK(at != splits_.end(), "every group of the plan was split off");
  return groups_[static_cast<std::size_t>(at - splits_.begin())].get();
}

void CudaIssue::issue(CudaProgram& program, int set, bool timed) {
  set_ = set;
  const StreamSchedule& schedule = program.schedule;
  streams_.fork(schedule);
  const auto record_time = [&](const std::vector<EventHandle>& events, const Place& place, Stream stream) {
    if (!timed) return;
    const auto number = static_cast<std::size_t>(number_of(program.program(), place));
    check(cudaEventRecord(events[number].get(), streams_[stream]), "cudaEventRecord");
  };
  for_each_in_run(passes_of(program.program()), [&](std::int32_t instruction, std::int32_t pass) {
    const Place place{instruction, pass};
    const Stream stream = program.stream_of(instruction);
    for (const StreamSchedule::Wait& wait : schedule.waits(place))
      streams_.wait(stream, StreamSchedule::event_of(wait, pass));
    record_time(program.begins, place, stream);
    put(program, place);
    record_time(program.ends, place, stream);
    if (const std::int32_t event = schedule.record(place); event >= 0) streams_.record(stream, event);
    return true;
  });
  streams_.join(schedule);
}

void CudaIssue::issue_alone(CudaProgram& program, const Place& place) {
  set_ = 0;
  put(program, place);
}

ExecutableGraph CudaIssue::capture(CudaProgram& program, int set) {
  return trainer::capture(streams_[program.schedule.origin], [&] { issue(program, set, false); });
}

void CudaIssue::put(CudaProgram& program, const Place& place) {
  const std::int32_t number = number_of(program.program(), place);
  now_.store(number, std::memory_order_relaxed);
  const PreparedInstruction& one = prepared_at(program, place);
  try {
    program.prepared.enter(one, place.pass);
    std::visit([&](const auto& instruction) { put(program, place, instruction); }, *one.instruction);
  } catch (const IoError& error) {
    throw IoError("rank " + std::to_string(rank_) + ": " + error.what() + ", in " +
                  text_of_place(role_, program.program(), number));
  }
  now_.store(-1, std::memory_order_relaxed);
}

void CudaIssue::put(const CudaProgram& program, const Place& place, const Launch&) {
  if (program.stream_of(place.instruction) == Stream::host) {
    const HostCall& one = program.host_calls.at(place.instruction);
    return check(cudaLaunchHostFunc(streams_[Stream::host], run_on_host, const_cast<HostCall*>(&one)),
                 "cudaLaunchHostFunc");
  }
  const PreparedInstruction& one = prepared_at(program, place);
  kernels::Call call = program.prepared.call(one, place.pass);
  call.stream = streams_[program.stream_of(place.instruction)];
  one.kernel->run(call);
}

void CudaIssue::put(const CudaProgram& program, const Place& place, const Collective& collective) {
  const PreparedInstruction& one = prepared_at(program, place);
  void *const input = program.prepared.input(one), *const output = program.prepared.output(one);
  const cudaStream_t stream = streams_[program.stream_of(place.instruction)];
  StreamCommunicator::StreamGroup* const group = program.groups[static_cast<std::size_t>(place.instruction)];
  const std::int64_t bytes = collective.input.region.bytes, elements = bytes / size_of(collective.dtype);
  if (group == nullptr) return copy_to_itself(output, input, bytes, stream);
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
      return communicator_->all_reduce(*group, collective.dtype, output, elements, stream);
    case CollectiveKind::reduce_scatter:
      return communicator_->reduce_scatter(*group, collective.dtype, input, output, elements, stream);
    case CollectiveKind::all_gather:
      return communicator_->all_gather(*group, input, output, bytes, stream);
    case CollectiveKind::all_to_all:
      return communicator_->all_to_all(*group, input, output, one.slice_bytes, stream);
    case CollectiveKind::shift:
      return communicator_->shift(*group, input, output, bytes, stream);
  }
}

void CudaIssue::put(const CudaProgram& program, const Place& place, const Exchange&) {
  const PreparedInstruction& one = prepared_at(program, place);
  CHECK(communicator_ != nullptr, "ranks of GPUs have a communicator of GPUs");
  communicator_->exchange(program.prepared.sends(one), program.prepared.receives(one),
                          streams_[program.stream_of(place.instruction)]);
}

void CudaIssue::put(const CudaProgram& program, const Place& place, const CopyIn& copy) {
  check(cudaMemcpyAsync(program.prepared.output(prepared_at(program, place)),
                        fields_.at(set_, copy.field) + copy.field_offset,
                        static_cast<std::size_t>(copy.region.region.bytes), cudaMemcpyHostToDevice,
                        streams_[program.stream_of(place.instruction)]),
        "cudaMemcpyAsync");
}

void CudaIssue::put(const CudaProgram& program, const Place& place, const Move& move) {
  const PreparedInstruction& one = prepared_at(program, place);
  void *const here = program.prepared.output(one), *const there = on_host_ + one.away;
  check(cudaMemcpyAsync(one.comes ? here : there, one.comes ? there : here,
                        static_cast<std::size_t>(move.to.region.bytes),
                        one.comes ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                        streams_[program.stream_of(place.instruction)]),
        "cudaMemcpyAsync");
}

void CudaIssue::put(const CudaProgram& program, const Place& place, const CopyOut& copy) {
  check(cudaMemcpyAsync(fields_.at(set_, copy.field) + copy.field_offset,
                        program.prepared.input(prepared_at(program, place)),
                        static_cast<std::size_t>(copy.region.region.bytes), cudaMemcpyDeviceToHost,
                        streams_[program.stream_of(place.instruction)]),
        "cudaMemcpyAsync");
}

}  // namespace trainer
