// Streams, events and waits by CUDA's calls, and queries that do not leave an error behind.
#include "engine/run/cuda_streams.h"

#include <algorithm>

namespace trainer {
namespace {

using kernels::cuda::check;

// A query that is early is no error of the next call.
bool passed_event(cudaEvent_t event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status != cudaErrorNotReady)
    check(status, "cudaEventQuery");
  else
    cudaGetLastError();
  return status == cudaSuccess;
}

}  // namespace

StreamHandle make_stream(bool urgent) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least),
        "cudaStreamCreateWithPriority");
  return StreamHandle(stream);
}

EventHandle make_event(bool timing) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
  return EventHandle(event);
}

ExecutableGraph capture(cudaStream_t stream, const std::function<void()>& put) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  try {
    put();
  } catch (...) {  // the capture ends too
    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  const GraphHandle captured(graph);
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagUseNodePriority), "cudaGraphInstantiate");
  ExecutableGraph result(executable);
  check(cudaGraphUpload(executable, stream), "cudaGraphUpload");
  return result;
}

CudaStreams::CudaStreams(std::span<const StreamSchedule> schedules)
    : fork_(make_event(false)), ends_{make_event(false), make_event(false)} {
  std::int32_t events = 0;
  for (const StreamSchedule& schedule : schedules) {
    events = std::max(events, schedule.num_events);
    for (std::size_t s = 0; s < kNumStreams; ++s)
      if (schedule.used[s] && !streams_[s]) streams_[s] = make_stream(static_cast<Stream>(s) != Stream::compute);
  }
  for (std::int32_t i = 0; i < events; ++i) events_.push_back(make_event(false));
}

void CudaStreams::fork(const StreamSchedule& schedule) const {
  if (!schedule.forks()) return;
  check(cudaEventRecord(fork_.get(), (*this)[schedule.origin]), "cudaEventRecord");
  for (std::size_t s = 0; s < kNumStreams; ++s)
    if (schedule.forked[s]) check(cudaStreamWaitEvent(streams_[s].get(), fork_.get(), 0), "cudaStreamWaitEvent");
}

void CudaStreams::join(const StreamSchedule& schedule) const {
  for (std::int32_t event : schedule.joined) wait(schedule.origin, event);
}

void CudaStreams::wait(Stream stream, std::int32_t event) const {
  check(cudaStreamWaitEvent((*this)[stream], events_[static_cast<std::size_t>(event)].get(), 0), "cudaStreamWaitEvent");
}

void CudaStreams::record(Stream stream, std::int32_t event) const {
  check(cudaEventRecord(events_[static_cast<std::size_t>(event)].get(), (*this)[stream]), "cudaEventRecord");
}

bool CudaStreams::passed(std::int32_t event) const {
  return passed_event(events_[static_cast<std::size_t>(event)].get());
}

void CudaStreams::mark_end(int mark, Stream stream) const {
  check(cudaEventRecord(ends_[static_cast<std::size_t>(mark)].get(), (*this)[stream]), "cudaEventRecord");
}

bool CudaStreams::ended(int mark) const { return passed_event(ends_[static_cast<std::size_t>(mark)].get()); }

}  // namespace trainer
