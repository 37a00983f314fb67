// CudaStreams: the streams of a GPU that a role's programs use, and the events between them. Says what a StreamSchedule
// says in CUDA's calls, the same whether work is issued or captured.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/run/stream_schedule.h"
#include "kernels/cuda/runtime/runtime.h"

namespace trainer {

using StreamHandle = kernels::cuda::Handle<cudaStream_t, cudaStreamDestroy>;
using EventHandle = kernels::cuda::Handle<cudaEvent_t, cudaEventDestroy>;
using GraphHandle = kernels::cuda::Handle<cudaGraph_t, cudaGraphDestroy>;
using ExecutableGraph = kernels::cuda::Handle<cudaGraphExec_t, cudaGraphExecDestroy>;

/// A stream that waits for no other; `urgent`: its work goes before that of streams which are not.
StreamHandle make_stream(bool urgent);
EventHandle make_event(bool timing);

/// What `put` puts on the stream and on those that wait for it, as a graph, ready to be launched. Its nodes keep the
/// priorities of the streams they came from.
ExecutableGraph capture(cudaStream_t stream, const std::function<void()>& put);

class CudaStreams {
 public:
  /// Makes what any of the schedules uses, on the current device. Communication goes before computation: others wait
  /// for it.
  explicit CudaStreams(std::span<const StreamSchedule> schedules);

  cudaStream_t operator[](Stream stream) const { return streams_[static_cast<std::size_t>(stream)].get(); }

  /// Before the first instruction of a program, and after its last.
  void fork(const StreamSchedule& schedule) const;
  void join(const StreamSchedule& schedule) const;
  /// Around one instruction.
  void wait(Stream stream, std::int32_t event) const;
  void record(Stream stream, std::int32_t event) const;
  /// Whether event `event`, as issued last, has passed.
  bool passed(std::int32_t event) const;

  /// Puts mark `mark`, 0 or 1, at the end of a stream's work. ended() says whether the device has reached it. They
  /// throw IoError if the device failed.
  void mark_end(int mark, Stream stream) const;
  bool ended(int mark) const;

 private:
  std::array<StreamHandle, kNumStreams> streams_;
  std::vector<EventHandle> events_;
  EventHandle fork_;
  std::array<EventHandle, 2> ends_;
};

}  // namespace trainer
