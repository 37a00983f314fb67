// The CPU's kernels on every instruction set that this machine offers, with 1 to 3 threads.
#include <array>

#include "kernels/cpu/table.h"
#include "tests/kernels/buffer.h"
#include "tests/kernels/runner.h"

namespace trainer::kernels::test {
namespace {

class CpuRunner final : public Runner {
 public:
  CpuRunner(cpu::Isa isa, int threads) : context_{isa, threads} {}
  std::string name() const override {
    return std::string(cpu::name_of(context_.isa)) + " with " + std::to_string(context_.threads) + " threads";
  }
  void run(const Signature& signature, std::span<void* const> operands, std::int64_t origin) override {
    const Buffer workspace(cpu::CpuTarget(context_).workspace_bytes(signature));
    cpu::prepare(signature, context_)->run({.operands = operands, .workspace = workspace.data(), .origin = origin});
  }
  int family() const override { return static_cast<int>(context_.isa) * 100 + context_.threads; }
  bool single() const { return context_.threads == 2; }

 private:
  cpu::Context context_;
};

}  // namespace

const std::vector<std::unique_ptr<Runner>>& runners() {
  static const std::vector<std::unique_ptr<Runner>> all = [] {
    std::vector<std::unique_ptr<Runner>> found;
    for (cpu::Isa isa : {cpu::Isa::portable, cpu::Isa::avx2, cpu::Isa::avx512, cpu::Isa::avx512_bf16})
      for (int threads = 1; threads <= 3 && isa <= cpu::detect_isa(); ++threads)
        found.push_back(std::make_unique<CpuRunner>(isa, threads));
    return found;
  }();
  return all;
}

std::vector<Runner*> few_runners() {
  std::vector<Runner*> few;
  for (const auto& runner : runners())
    if (static_cast<const CpuRunner&>(*runner).single()) few.push_back(runner.get());
  return few;
}

Runner& best_runner() { return *few_runners().back(); }

bool runs_are_slow() { return false; }

std::span<const DType> compute_dtypes() {
  static constexpr std::array kAll{DType::f32, DType::bf16};
  return kAll;
}

}  // namespace trainer::kernels::test
