// What is of the CPU's attention alone: tiles, the processor's or emulated ones, and bits that do not depend on the
// number of threads. And the reference of all devices is held to itself.
#include <doctest/doctest.h>

#include "engine/core/error.h"
#include "kernels/cpu/attention/algorithm.h"
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
  void run(const Signature& s, std::span<void* const> operands, std::int64_t origin) override {
    if (context_.isa == Isa::amx) {
      const Buffer workspace(cpu::CpuTarget(context_).workspace_bytes(s));
      cpu::prepare(s, context_)->run({.operands = operands, .workspace = workspace.data(), .origin = origin});
      return;
    }
    const cpu::AttentionAlgorithm& algorithm = cpu::emulated_attention_algorithm(context_.isa);
    const bool forward = s.op == Op::attention;
    const Buffer workspace(forward ? attention_workspace(s, context_.threads, algorithm)
                                   : attention_grad_workspace(s, context_.threads, algorithm));
    (forward ? prepare_attention(s, context_.threads, algorithm)
             : prepare_attention_grad(s, context_.threads, algorithm))
        ->run({.operands = operands, .workspace = workspace.data(), .origin = origin});
  }
  int family() const override { return static_cast<int>(context_.isa); }
  bool rounds_factors() const override { return true; }

 private:
  cpu::Context context_;
};

std::vector<std::unique_ptr<Tiles>> tiles() {
  std::vector<std::unique_ptr<Tiles>> all;
  for (Isa isa : {Isa::portable, Isa::avx512_bf16, Isa::amx})
    for (int threads = 1; threads <= 2 && isa <= cpu::detect_isa(); ++threads)
      all.push_back(std::make_unique<Tiles>(isa, threads));
  return all;
}

/// One instruction set with 1 to 3 threads: all must give the same bits.
class Threads final : public Runner {
 public:
  Threads(Isa isa, int threads) : context_{isa, threads} {}
  std::string name() const override {
    return std::string(cpu::name_of(context_.isa)) + ", threads " + std::to_string(context_.threads);
  }
  void run(const Signature& s, std::span<void* const> operands, std::int64_t origin) override {
    const Buffer workspace(cpu::CpuTarget(context_).workspace_bytes(s));
    cpu::prepare(s, context_)->run({.operands = operands, .workspace = workspace.data(), .origin = origin});
  }
  int family() const override { return static_cast<int>(context_.isa); }

 private:
  cpu::Context context_;
};

}  // namespace

TEST_CASE("the reference's gradient is the slope of the reference") {
  for (const Case& c :
       {Case{2, 5, 4, 2, 6, true, true, 100.0, DType::f32}, Case{1, 4, 3, 1, 3, false, false, 0.0, DType::f32},
        Case{2, 3, 4, 2, 6, true, false, 100.0, DType::f32, 8, 4}}) {
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
        CHECK(std::abs((up - down) / (2 * h) - slope[i]) <
              1e-8);  // h² of the third derivative, and 2^-52 / h of rounding
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
  for (std::int64_t dim : {1, 7, 8, 32, 33, 48, 64, 80, 100, 128})
    check_case({1, 70, 2, 2, dim, true, true, 0, DType::bf16}, tiles());
  check_case({1, 200, 3, 1, 256, false, true, 0, DType::bf16}, tiles());
  check_case({1, 1000, 1, 1, 10, true, false, 500.0, DType::bf16}, tiles());
  for (bool packed : {true, false})
    for (double theta : {0.0, 10000.0})
      for (const auto& [heads, kv_heads] : {std::pair{4, 4}, std::pair{4, 2}, std::pair{6, 1}})
        check_case({2, 67, heads, kv_heads, 20, packed, packed, theta, DType::bf16}, tiles());
}

TEST_CASE("tiles take RoPE of neighbours, of a part of a head, and with scaled frequencies") {
  for (const Case& c : rope_cases(DType::bf16)) check_case(c, tiles());
}

TEST_CASE("tiles take scores with a scale of their own, a softcap, and keys within a window") {
  for (const Case& c : score_cases(DType::bf16)) check_case(c, tiles());
}

TEST_CASE("tiles take keys and values of another sequence than the queries") {
  for (const Case& c : cross_cases(DType::bf16)) check_case(c, tiles());
}

TEST_CASE("tiles take heads of values of another size than those of keys") {
  for (const Case& c : value_cases(DType::bf16)) check_case(c, tiles());
}

TEST_CASE("documents of a row") {
  for (const Case& c : document_cases(DType::bf16)) check_case(c, tiles());
}

TEST_CASE("tiles take queries of a part of the sequence") {
  for (const auto& [seq, keys, origin] : kParts)
    for (bool causal : {true, false})
      check_case({2, seq, 4, 2, 20, causal, false, causal ? 10000.0 : 0.0, DType::bf16, keys, origin}, tiles());
}

namespace {

std::vector<std::unique_ptr<Runner>> every_cpu_path(DType dtype) {
  std::vector<std::unique_ptr<Runner>> all;
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16})
    if (isa <= cpu::detect_isa()) all.push_back(std::make_unique<Threads>(isa, 2));
  if (dtype == DType::bf16)
    for (auto& one : tiles()) all.push_back(std::move(one));
  return all;
}

/// Tokens [first, first + count) of each of `batch` samples of `rows` tokens of `width` elements.
Doubles rows_of(const Doubles& x, std::int64_t batch, std::int64_t rows, std::int64_t width, std::int64_t first,
                std::int64_t count) {
  Doubles part;
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto from = x.begin() + (b * rows + first) * width;
    part.insert(part.end(), from, from + count * width);
  }
  return part;
}

}  // namespace

// Blocks of queries are cut by position, so that a part's rows go through the same sums as in the whole, wherever the
// part begins.
TEST_CASE(
    "parts of a sequence give, side by side, the bits of the whole, and in sum the gradients of its keys and values") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (bool causal : {true, false}) {
      const Case whole{2, 200, 4, 2, 24, causal, false, 10000.0, dtype};
      const std::int64_t width = whole.heads * whole.dim;
      const Inputs in = inputs_of(whole);
      const Outputs given = rounded(whole, reference(whole, in));
      for (const auto& runner : every_cpu_path(dtype)) {
        CAPTURE(runner->name());
        Run forward = run_forward(whole, in, *runner), backward = run_backward(whole, in, given, *runner);
        const Outputs out = outputs_of(whole, forward);
        const Gradients all = gradients_of(whole, backward);
        for (const std::vector<std::int64_t>& cuts :
             {std::vector<std::int64_t>{0, 64, 128, 200}, std::vector<std::int64_t>{0, 1, 50, 129, 200}}) {
          Gradients sum{{}, Doubles(all.dk.size()), Doubles(all.dv.size())};
          for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
            Case part = whole;
            part.keys = whole.seq, part.origin = cuts[i], part.seq = cuts[i + 1] - cuts[i];
            CAPTURE(part.str());
            const auto mine = [&](const Doubles& x) {
              return rows_of(x, whole.batch, whole.seq, width, part.origin, part.seq);
            };
            const auto mine_lse = [&](const Doubles& x) {
              return rows_of(x, whole.batch * whole.heads, whole.seq, 1, part.origin, part.seq);
            };
            const Inputs part_in{mine(in.q), in.k, in.v, mine(in.d_o)};
            Run part_forward = run_forward(part, part_in, *runner);
            const Outputs part_out = outputs_of(part, part_forward);
            CHECK(part_out.o == mine(out.o));
            CHECK(part_out.lse == mine_lse(out.lse));
            Run part_backward = run_backward(part, part_in, {mine(given.o), mine_lse(given.lse)}, *runner);
            const Gradients part_all = gradients_of(part, part_backward);
            CHECK(part_all.dq == mine(all.dq));
            for (std::size_t j = 0; j < sum.dk.size(); ++j) sum.dk[j] += part_all.dk[j], sum.dv[j] += part_all.dv[j];
            // Keys after the last query have no gradient, and that is 0.
            for (std::int64_t key = part.origin + part.seq; causal && key < whole.seq; ++key)
              for (std::int64_t d = 0; d < whole.kv_heads * whole.dim; ++d)
                CHECK(part_all.dk[static_cast<std::size_t>(key * whole.kv_heads * whole.dim + d)] == 0);
          }
          Bounds bounds = bounds_of(whole, *runner);
          bounds.terms += 5 * bounds.rounding;  // of the summands and of the whole
          CHECK(worst(whole, sum.dk, all.dk, bounds.rounding, bounds.terms) <= 1);
          CHECK(worst(whole, sum.dv, all.dv, bounds.rounding, bounds.terms) <= 1);
        }
      }
    }
}

TEST_CASE("a run has the same bits with any number of threads") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Case c{3, 150, 6, 3, 40, true, true, 10000.0, dtype};
    std::vector<std::unique_ptr<Threads>> all;
    for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16})
      for (int threads = 1; threads <= 3 && isa <= cpu::detect_isa(); ++threads)
        all.push_back(std::make_unique<Threads>(isa, threads));
    check_case(c, all);
  }
  check_case({3, 150, 6, 3, 40, true, true, 10000.0, DType::bf16}, tiles());
}

TEST_CASE("with any number of threads, a part of a sequence too") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Case c{3, 100, 6, 3, 40, true, false, 10000.0, dtype, 250, 110};
    std::vector<std::unique_ptr<Threads>> all;
    for (Isa isa : {Isa::portable, Isa::avx512})
      for (int threads = 1; threads <= 4 && isa <= cpu::detect_isa(); ++threads)
        all.push_back(std::make_unique<Threads>(isa, threads));
    check_case(c, all);
  }
}

TEST_CASE("the CPU's attention does not take f16") {
  Signature s = signature_of(Case{}, Op::attention);
  s.operands[0].dtype = DType::f16;
  CHECK_THROWS_AS(cpu::prepare(s, cpu::Context{Isa::portable, 1}), Bug);
}
