// The CPU's kernels in place of the GPU's, as work on the streams of the emulated GPU: so what runs programs on GPUs
// can be held to the CPU bit for bit, whatever kernels there are.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kernels/cpu/table.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/cuda/emulated/emulated.h"

namespace trainer::kernels::cuda {
namespace {

const cpu::Context& one_thread() {
  static const cpu::Context context{cpu::detect_isa(), 1};
  return context;
}

// Its workspace is its own: the plan's has the size that a GPU's kernel wants.
class OnStream final : public Kernel {
 public:
  explicit OnStream(const Signature& signature)
      : name_(name_of(signature.op)),
        kernel_(cpu::prepare(signature, one_thread())),
        workspace_(static_cast<std::size_t>(cpu::CpuTarget(one_thread()).workspace_bytes(signature)) / kUnit + 1) {}

  void run(const Call& call) override {
    const std::vector<void*> operands(call.operands.begin(), call.operands.end());
    const std::int64_t origin = call.origin;
    check(emulated::enqueue(
              stream_of(call),
              [this, operands, origin] {
                kernel_->run({operands, workspace_.data(), origin});
                return true;
              },
              name_),
          "enqueue");
  }

 private:
  static constexpr std::size_t kUnit = 64;
  struct alignas(kUnit) Unit {
    std::byte bytes[kUnit];
  };
  std::string name_;
  std::unique_ptr<Kernel> kernel_;
  std::vector<Unit> workspace_;
};

}  // namespace

std::unique_ptr<Kernel> prepare(const Signature& signature, const Context&) {
  return std::make_unique<OnStream>(signature);
}

}  // namespace trainer::kernels::cuda
