// Products with a frozen weight in int8 and nf4 beside the same products with a plain one (packed before where its
// kernel wants that), in one run: each repetition times all of them, one after the other. Counters: milliseconds of the
// plain product at its best, and of each quantized one over it.
//
//   quantized_bench [--benchmark_filter=bf16] ; TRAINER_ISA lowers the instruction set, TRAINER_BENCH_THREADS sets the
//   threads (1)
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/core/quantized.h"
#include "kernels/bf16.h"
#include "kernels/cpu/table.h"
#include "tools/bench/memory.h"

namespace {

using namespace trainer;
using namespace trainer::bench;
using namespace trainer::kernels;

int num_threads() {
  const char* text = std::getenv("TRAINER_BENCH_THREADS");
  return text ? std::max(1, std::atoi(text)) : 1;
}

/// Random numbers; as bytes they are any codes, and scales of some 0.1.
Memory random_operand(const TensorDesc& tensor) {
  Memory m = allocate(tensor.bytes());
  std::minstd_rand generator(static_cast<unsigned>(tensor.elements()));
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    if (tensor.dtype == DType::f32)
      static_cast<float*>(m.get())[i] = uniform(generator);
    else if (tensor.dtype == DType::bf16)
      static_cast<Bf16*>(m.get())[i] = to_bf16(uniform(generator));
    else
      static_cast<unsigned char*>(m.get())[i] = static_cast<unsigned char>(generator() % 60);
  }
  return m;
}

struct Case {
  Op op;
  DType dtype;
  std::int64_t rows, in, out;

  bool forward() const { return op == Op::linear; }
  Signature plain() const {
    const TensorDesc x{dtype, {rows, in}}, y{dtype, {rows, out}}, weight{dtype, {out, in}};
    return forward() ? Signature{op, {{"bias", false}}, {x, weight, y}} : Signature{op, {}, {y, weight, x}};
  }
  Signature quantized(Quantization as) const {
    using Kind = QuantizedPart::Kind;
    const bool nf4 = as == Quantization::nf4;
    Signature s{forward() ? Op::quantized_linear : Op::quantized_linear_grad_input, {{"nf4", nf4}}, {}};
    if (forward()) s.attributes.set("bias", false);
    s.operands.push_back(plain().operands.front());
    for (const Kind kind : {Kind::codes, Kind::scales, Kind::groups})
      if (nf4 || kind != Kind::groups) s.operands.push_back({DType::u8, shape_of(kind, as, out, in)});
    s.operands.push_back(plain().operands.back());
    return s;
  }
};

class Product {
 public:
  explicit Product(Signature s) {
    const cpu::Context context{cpu::detect_isa(), num_threads()};
    const cpu::CpuTarget target(context);
    for (const TensorDesc& operand : s.operands) memory_.push_back(random_operand(operand));
    workspace_ = allocate(target.workspace_bytes(s));
    kernel_ = cpu::prepare(s, context);
    for (const Memory& m : memory_) operands_.push_back(m.get());
  }
  /// One thread's time is its processor's, which a busy machine does not lengthen; a team's is the clock's.
  double seconds() {
    const double start = now();
    kernel_->run({.operands = operands_, .workspace = workspace_.get()});
    return now() - start;
  }

 private:
  static double now() {
    timespec t{};
    clock_gettime(num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  }

  std::vector<Memory> memory_;
  std::vector<void*> operands_;
  Memory workspace_;
  std::unique_ptr<Kernel> kernel_;
};

void measure(benchmark::State& state, const Case& c) {
  Product plain(c.plain()), int8(c.quantized(Quantization::int8)), nf4(c.quantized(Quantization::nf4));
  double best = 1e9, best_int8 = 1e9, best_nf4 = 1e9;
  for (auto _ : state) {
    const double t = plain.seconds();
    best = std::min(best, t);
    best_int8 = std::min(best_int8, int8.seconds());
    best_nf4 = std::min(best_nf4, nf4.seconds());
    state.SetIterationTime(t);
  }
  state.counters["plain_ms"] = best * 1e3;
  state.counters["int8"] = best_int8 / best;
  state.counters["nf4"] = best_nf4 / best;
}

struct Sizes {
  std::int64_t rows, in, out;
};
// Of SmolLM2-135M and Qwen2.5-0.5B: a step's micro-batch, few rows, and one token.
constexpr Sizes kSizes[] = {{1024, 576, 1536}, {1024, 1536, 576}, {1024, 896, 4864}, {1024, 4864, 896},
                            {64, 896, 4864},   {8, 896, 4864},    {1, 896, 4864}};

void register_all() {
  for (DType dtype : {DType::bf16, DType::f32})
    for (Op op : {Op::linear, Op::linear_grad_input})
      for (const Sizes& z : kSizes) {
        const Case c{op, dtype, z.rows, z.in, z.out};
        const std::string name = std::string(name_of(dtype)) + "/" + std::string(name_of(op)) + "/" +
                                 std::to_string(z.rows) + "x" + std::to_string(z.in) + "x" + std::to_string(z.out);
        benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) { measure(state, c); })
            ->UseManualTime()
            ->Iterations(10)
            ->Unit(benchmark::kMillisecond);
      }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  register_all();
  benchmark::RunSpecifiedBenchmarks();
}
