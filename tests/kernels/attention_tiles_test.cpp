// What is of the CPU's attention alone: tiles, the processor's or emulated ones, and bits that do not depend on the number of threads. And
// the reference of all devices is held to itself.
#include <doctest/doctest.h>

#include "engine/core/error.h"
#include "kernels/cpu/attention_way.h"
#include "kernels/cpu/table.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/buffer.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using namespace trainer::kernels::test::attention;
using cpu::Isa;

namespace {

/// bf16 on tiles emulated in memory, or on the processor's.
class Tiles final : public Runner {
 public:
  Tiles(Isa isa, int threads) : context_{isa, threads} {}
  std::string name() const override {
    return "tiles among " + std::string(cpu::name_of(context_.isa)) + ", threads " + std::to_string(context_.threads);
  }
  void run(const Signature& s, std::span<void* const> operands, std::int64_t) override {
    if (context_.isa == Isa::amx) {
      const Buffer workspace(cpu::CpuTarget(context_).workspace_bytes(s));
      cpu::prepare(s, context_)->run({operands, workspace.data()});
      return;
    }
    const cpu::AttentionWay& way = cpu::emulated_attention_way(context_.isa);
    const bool forward = s.op == Op::attention;
    const Buffer workspace(forward ? attention_workspace(s, context_.threads, way) : attention_grad_workspace(s, context_.threads, way));
    (forward ? prepare_attention(s, context_.threads, way) : prepare_attention_grad(s, context_.threads, way))
        ->run({operands, workspace.data()});
  }
  int family() const override { return static_cast<int>(context_.isa); }
  bool rounds_factors() const override { return true; }

 private:
  cpu::Context context_;
};

std::vector<std::unique_ptr<Tiles>> tiles() {
  std::vector<std::unique_ptr<Tiles>> all;
  for (Isa isa : {Isa::portable, Isa::avx512_bf16, Isa::amx})
    for (int threads = 1; threads <= 2 && isa <= cpu::detect_isa(); ++threads) all.push_back(std::make_unique<Tiles>(isa, threads));
  return all;
}

/// One instruction set with 1 to 3 threads: all must give the same bits.
class Threads final : public Runner {
 public:
  Threads(Isa isa, int threads) : context_{isa, threads} {}
  std::string name() const override { return std::string(cpu::name_of(context_.isa)) + ", threads " + std::to_string(context_.threads); }
  void run(const Signature& s, std::span<void* const> operands, std::int64_t) override {
    const Buffer workspace(cpu::CpuTarget(context_).workspace_bytes(s));
    cpu::prepare(s, context_)->run({operands, workspace.data()});
  }
  int family() const override { return static_cast<int>(context_.isa); }

 private:
  cpu::Context context_;
};

}  // namespace

TEST_CASE("the reference's gradient is the slope of the reference") {
  for (const Case& c : {Case{2, 5, 4, 2, 6, true, true, 100.0, DType::f32}, Case{1, 4, 3, 1, 3, false, false, 0.0, DType::f32}}) {
    Inputs in = inputs_of(c);
    const Gradients g = reference_grad(c, in, reference(c, in));
    const auto loss = [&] {
      const Outputs out = reference(c, in);
      double sum = 0;
      for (std::size_t i = 0; i < out.o.size(); ++i) sum += out.o[i] * in.d_o[i];
      return sum;
    };
    const auto check = [&](Doubles& x, const Doubles& slope) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double h = 1e-5, before = x[i];
        x[i] = before + h;
        const double up = loss();
        x[i] = before - h;
        const double down = loss();
        x[i] = before;
        CHECK(std::abs((up - down) / (2 * h) - slope[i]) < 1e-8);  // h² of the third derivative, and 2^-52 / h of rounding
      }
    };
    check(in.q, g.dq);
    check(in.k, g.dk);
    check(in.v, g.dv);
  }
}

TEST_CASE("attention on tiles equals the naive sums, whatever the sizes") {
  for (std::int64_t seq : {1, 2, 17, 64, 65, 130})
    for (bool causal : {true, false}) check_case({2, seq, 2, 1, 16, causal, true, 0, DType::bf16}, tiles());
  for (std::int64_t dim : {1, 7, 8, 32, 33, 48, 64, 80, 100, 128}) check_case({1, 70, 2, 2, dim, true, true, 0, DType::bf16}, tiles());
  check_case({1, 200, 3, 1, 256, false, true, 0, DType::bf16}, tiles());
  check_case({1, 1000, 1, 1, 10, true, false, 500.0, DType::bf16}, tiles());
  for (bool packed : {true, false})
    for (double theta : {0.0, 10000.0})
      for (const auto& [heads, kv_heads] : {std::pair{4, 4}, std::pair{4, 2}, std::pair{6, 1}})
        check_case({2, 67, heads, kv_heads, 20, packed, packed, theta, DType::bf16}, tiles());
}

TEST_CASE("a run has the same bits with any number of threads") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Case c{3, 150, 6, 3, 40, true, true, 10000.0, dtype};
    std::vector<std::unique_ptr<Threads>> all;
    for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16})
      for (int threads = 1; threads <= 3 && isa <= cpu::detect_isa(); ++threads) all.push_back(std::make_unique<Threads>(isa, threads));
    check_case(c, all);
  }
  check_case({3, 150, 6, 3, 40, true, true, 10000.0, DType::bf16}, tiles());
}

TEST_CASE("the CPU's attention does not take f16") {
  Signature s = signature_of(Case{}, Op::attention);
  s.operands[0].dtype = DType::f16;
  CHECK_THROWS_AS(cpu::prepare(s, cpu::Context{Isa::portable, 1}), Bug);
}
