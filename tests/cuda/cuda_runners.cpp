// CUDA kernels on device 0: a GPU, or the emulated one, on which every case runs in four orders of threads, blocks and
// streams, and in one more with cuDNN. A GPU has cuDNN where the build has it and TRAINER_CUDNN is not 0.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>

#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/target.h"
#include "tests/cuda/orders.h"
#include "tests/kernels/runner.h"

namespace trainer::kernels::test {
namespace {

cuda::Device& device() {
  static const bool chosen = (choose_device(), true);
  static cuda::Device one(0);
  (void)chosen;
  return one;
}

constexpr std::int64_t kScratch = std::int64_t{64} << 20;

/// Device memory of exactly so many bytes, all ones at first: NaN in every float type. It begins `alignment` bytes into
/// an allocation, which is aligned to 256 or more, so that it is aligned no better than that.
class DeviceBytes {
 public:
  DeviceBytes(std::int64_t bytes, std::int64_t alignment) : bytes_(static_cast<std::size_t>(bytes)) {
    cuda::check(cudaMalloc(&allocation_, static_cast<std::size_t>(bytes + alignment)), "cudaMalloc");
    data_ = static_cast<char*>(allocation_) + alignment;
    cuda::check(cudaMemset(data_, 0xFF, bytes_), "cudaMemset");
  }
  ~DeviceBytes() { cudaFree(allocation_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  void* data() const { return data_; }
  void fill(const void* host) { cuda::check(cudaMemcpy(data_, host, bytes_, cudaMemcpyHostToDevice), "cudaMemcpy"); }
  void copy_to(void* host) const { cuda::check(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy"); }

 private:
  std::size_t bytes_;
  void *allocation_ = nullptr, *data_ = nullptr;
};

/// Memory for a workspace: large, asked for again and again, and so kept while its size is the same. Both ends, where
/// kernels have what is not a library's, are all ones again.
void* workspace_of(std::int64_t bytes) {
  constexpr std::size_t kEnd = std::size_t{1} << 20;
  static std::int64_t kept_bytes = -1;
  static DeviceBytes* kept = nullptr;  // not freed at the end, when the device may be gone
  if (bytes != kept_bytes) {
    delete kept;
    kept = new DeviceBytes(bytes, kBufferAlignment);
    kept_bytes = bytes;
  }
  const std::size_t size = static_cast<std::size_t>(bytes), end = std::min(kEnd, size);
  char* const at = static_cast<char*>(kept->data());
  cuda::check(cudaMemset(at, 0xFF, end), "cudaMemset");
  cuda::check(cudaMemset(at + size - end, 0xFF, end), "cudaMemset");
  return at;
}

class CudaRunner final : public Runner {
 public:
  CudaRunner(std::uint64_t order, bool cudnn) : order_(order), cudnn_(cudnn) {}
  std::string name() const override {
    return device().name() + order_name(order_) + (cudnn_ && device().context().cudnn != nullptr ? ", with cuDNN" : "");
  }
  int family() const override { return cudnn_ ? 1 : 0; }
  bool rounds_factors() const override { return true; }

  void run(const Signature& signature, std::span<void* const> operands, std::int64_t origin) override {
    set_order(order_);
    cuda::Context context = device().context();
    if (!cudnn_) context.cudnn = nullptr;
    std::map<void*, std::unique_ptr<DeviceBytes>> memory;
    std::vector<void*> pointers;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      std::unique_ptr<DeviceBytes>& slot = memory[operands[i]];
      if (!slot) {
        slot = std::make_unique<DeviceBytes>(signature.operands[i].bytes(), kOperandAlignment);
        slot->fill(operands[i]);
      }
      pointers.push_back(slot->data());
    }
    void* const workspace =
        workspace_of(cuda::CudaTarget(context.capability, context.units).workspace_bytes(signature));
    cudaStream_t stream = nullptr;
    cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    const std::unique_ptr<Kernel> kernel = cuda::prepare(signature, context);
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    kernel->run({.operands = pointers, .workspace = workspace, .origin = origin, .stream = stream});
    cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    cuda::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
    for (const auto& [host, bytes] : memory) bytes->copy_to(host);
    device().throw_fault();
  }

 private:
  std::uint64_t order_;
  bool cudnn_;
};

}  // namespace

const std::vector<std::unique_ptr<Runner>>& runners() {
  static const std::vector<std::unique_ptr<Runner>> all = [] {
    std::vector<std::unique_ptr<Runner>> found;
    if (num_orders() == 1) {
      found.push_back(std::make_unique<CudaRunner>(0, true));
      return found;
    }
    for (std::uint64_t order = 0; order < num_orders(); ++order)
      found.push_back(std::make_unique<CudaRunner>(order, false));
    found.push_back(std::make_unique<CudaRunner>(0, true));
    return found;
  }();
  return all;
}

// The first order of an emulated GPU, its last, and cuDNN take turns: each of the cases that ask runs in one of them.
std::vector<Runner*> few_runners() {
  static std::size_t turn = 0;
  const std::array<std::size_t, 3> choices{0, num_orders() - 1, runners().size() - 1};
  return {runners()[choices[turn++ % choices.size()]].get()};
}

Runner& best_runner() { return *runners().front(); }

// So too where a tool looks at every access (tools/gpu/check.sh).
bool runs_are_slow() { return num_orders() > 1 || std::getenv("TRAINER_TEST_SMALL") != nullptr; }  // the emulated GPU

std::span<const DType> compute_dtypes() {
  static constexpr std::array kAll{DType::f32, DType::bf16, DType::f16};
  return kAll;
}

void begin_choices() {
  static const DeviceBytes* const scratch = new DeviceBytes(kScratch, 0);  // as the workspace: not freed at the end
  device().begin_choices(static_cast<std::byte*>(scratch->data()), kScratch);
}

std::string end_choices() {
  device().end_choices();
  std::string all;
  for (const std::string& note : device().take_notes()) all += note + "\n";
  return all;
}

}  // namespace trainer::kernels::test
