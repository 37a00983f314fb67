// How a kernel is timed on a GPU: operands at several places, a batch of runs as a graph, events around its launches.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "engine/run/cuda_memory.h"
#include "engine/run/cuda_streams.h"
#include "engine/run/gpu_bench.h"
#include "engine/run/pinned_fields.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/target.h"

namespace trainer {
namespace {

using kernels::cuda::check;
using DeviceBytes = kernels::cuda::Handle<void*, cudaFree>;

constexpr std::int64_t kMostPlaces = 64, kMostRuns = 64, kLeftFree = std::int64_t{256} << 20;
constexpr int kLeastBatches = 5, kMostBatches = 20;

class CudaBench final : public GpuBench {
 public:
  explicit CudaBench(int ordinal)
      : device_(ordinal), stream_(make_stream(true)), begin_(make_event(true)), end_(make_event(true)) {}

  std::vector<double> kernel_us(const Case& one) override {
    make_current();
    const Signature& signature = one.signature;
    std::int64_t place = 0;
    std::vector<std::int64_t> offsets;
    for (const TensorDesc& operand : signature.operands) {
      offsets.push_back(place);
      place += aligned(operand.bytes());
    }
    const kernels::cuda::CudaTarget target(device_.context().capability, device_.context().units);
    const std::int64_t workspace = aligned(target.workspace_bytes(signature));
    const std::int64_t room = memory_bytes_ + free_device_bytes() - kLeftFree - workspace;
    if (place == 0 || room < place) return {};
    const std::int64_t places =
        std::min(std::clamp<std::int64_t>(one.rotation_bytes / place + 1, 2, kMostPlaces), room / place);
    std::byte* const base = memory(places * place + workspace);
    device_.begin_choices(base, places * place + workspace);
    const std::unique_ptr<kernels::Kernel> kernel = kernels::cuda::prepare(signature, device_.context());
    device_.end_choices();

    for (std::size_t k = 0; k < offsets.size(); ++k)
      fill(base + offsets[k], signature.operands[k].bytes(), one.contents.at(k));
    std::vector<std::vector<void*>> operands(static_cast<std::size_t>(places));
    for (std::int64_t i = 0; i < places; ++i) {
      std::byte* const here = base + i * place;
      if (i > 0) copy_on_device(here, base, place);
      for (std::size_t k = 0; k < offsets.size(); ++k)
        operands[static_cast<std::size_t>(i)].push_back((static_cast<int>(k) == one.fresh ? base : here) + offsets[k]);
    }
    std::size_t turn = 0;
    const auto run = [&] {
      kernel->run({operands[turn++ % operands.size()], base + places * place, 0, stream_.get()});
    };
    run();  // which lets libraries set themselves up
    const double first_us = timed(run);
    device_.throw_fault();

    const auto runs = static_cast<std::int64_t>(
        std::clamp(one.budget_ms * 1000 / kLeastBatches / std::max(1.0, first_us), 1.0, double{kMostRuns}));
    const ExecutableGraph graph = capture(stream_.get(), [&] {
      for (std::int64_t i = 0; i < runs; ++i) run();
    });
    const auto launch = [&] { check(cudaGraphLaunch(graph.get(), stream_.get()), "cudaGraphLaunch"); };
    const double batch_us = timed(launch);
    const double batches =
        std::clamp(one.budget_ms * 1000 / std::max(1.0, batch_us), double{kLeastBatches}, double{kMostBatches});
    std::vector<double> times;
    for (int i = 0; i < static_cast<int>(batches); ++i) times.push_back(timed(launch) / static_cast<double>(runs));
    device_.throw_fault();
    return times;
  }

  std::vector<double> copy_us(std::int64_t bytes, bool to_device) override {
    make_current();
    const PinnedMemory pinned(bytes);
    std::memset(pinned.data(), 0, static_cast<std::size_t>(bytes));
    std::byte *const there = memory(bytes), *const here = pinned.data();
    const auto copy = [&] {
      check(cudaMemcpyAsync(to_device ? there : here, to_device ? here : there, static_cast<std::size_t>(bytes),
                            to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream_.get()),
            "cudaMemcpyAsync");
    };
    timed(copy);
    std::vector<double> times;
    for (int i = 0; i < kLeastBatches; ++i) times.push_back(timed(copy));
    return times;
  }

 private:
  void make_current() const { check(cudaSetDevice(device_.context().device), "cudaSetDevice"); }

  // Grows by a new allocation.
  std::byte* memory(std::int64_t bytes) {
    if (bytes > memory_bytes_) {
      memory_.reset();
      memory_bytes_ = 0;
      void* at = nullptr;
      check(cudaMalloc(&at, static_cast<std::size_t>(bytes)), "cudaMalloc");
      memory_.reset(at);
      memory_bytes_ = bytes;
    }
    return static_cast<std::byte*>(memory_.get());
  }

  void copy_on_device(std::byte* to, const std::byte* from, std::int64_t bytes) {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream_.get()),
          "cudaMemcpyAsync");
  }

  // From the host once, by pinned memory; what is there is doubled until it is enough.
  void fill(std::byte* to, std::int64_t bytes, std::span<const std::byte> contents) {
    if (contents.empty())
      return check(cudaMemsetAsync(to, 0, static_cast<std::size_t>(bytes), stream_.get()), "cudaMemsetAsync");
    const std::int64_t given = std::min(bytes, static_cast<std::int64_t>(contents.size()));
    std::int64_t done = 0;
    for (std::int64_t part = 0; done < given; done += part) {
      part = std::min(given - done, staged_.bytes());
      std::memcpy(staged_.data(), contents.data() + done, static_cast<std::size_t>(part));
      check(cudaMemcpyAsync(to + done, staged_.data(), static_cast<std::size_t>(part), cudaMemcpyHostToDevice,
                            stream_.get()),
            "cudaMemcpyAsync");
      check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    }
    for (std::int64_t part = 0; done < bytes; done += part) {
      part = std::min(done, bytes - done);
      copy_on_device(to + done, to, part);
    }
  }

  template <typename Put>
  double timed(const Put& put) {
    check(cudaEventRecord(begin_.get(), stream_.get()), "cudaEventRecord");
    put();
    check(cudaEventRecord(end_.get(), stream_.get()), "cudaEventRecord");
    check(cudaEventSynchronize(end_.get()), "cudaEventSynchronize");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_.get(), end_.get()), "cudaEventElapsedTime");
    return 1e3 * static_cast<double>(ms);
  }

  kernels::cuda::Device device_;
  StreamHandle stream_;
  EventHandle begin_, end_;
  PinnedMemory staged_{std::int64_t{1} << 20};
  DeviceBytes memory_;
  std::int64_t memory_bytes_ = 0;
};

}  // namespace

std::unique_ptr<GpuBench> gpu_bench(int ordinal) { return std::make_unique<CudaBench>(ordinal); }

}  // namespace trainer
