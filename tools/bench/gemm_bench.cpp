// Matrix products of the linear ops beside oneDNN's, in one run: each repetition times both, one after the other, so
// that a noisy machine treats them alike. Random operands (zeros flatter every processor). Weights are row-major, as in
// a step; oneDNN gets them in a layout of its own (`any`), made before.
//
//   gemm_bench [--benchmark_filter=bf16] ; TRAINER_ISA lowers the instruction set, TRAINER_BENCH_THREADS sets the
//   threads (2)
//
// Counters: GFLOP/s at the best repetition of ours and of oneDNN's, and ours over oneDNN's. Where oneDNN has no such
// product (bf16 without AVX-512), the row says so and has only ours.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <dnnl.hpp>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cpu/runtime/parallel.h"
#include "kernels/cpu/table.h"
#include "tools/bench/memory.h"

namespace {

using namespace trainer;
using namespace trainer::bench;
using namespace trainer::kernels;
using dnnl::memory;

int num_threads() {
  const char* text = std::getenv("TRAINER_BENCH_THREADS");
  return text ? std::max(1, std::atoi(text)) : 2;
}

Memory random_operand(DType dtype, std::int64_t elements) {
  Memory m = allocate(elements * size_of(dtype));
  std::minstd_rand generator(static_cast<unsigned>(elements));
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (std::int64_t i = 0; i < elements; ++i) {
    if (dtype == DType::f32)
      static_cast<float*>(m.get())[i] = uniform(generator);
    else
      static_cast<Bf16*>(m.get())[i] = to_bf16(uniform(generator));
  }
  return m;
}

/// One op of ours, ready, with its operands; and the product that oneDNN must make.
struct Case {
  Op op;
  DType dtype;
  std::int64_t rows, in, out;

  TensorDesc x() const { return {dtype, {rows, in}}; }
  TensorDesc y() const { return {dtype, {rows, out}}; }
  TensorDesc weight(DType d) const { return {d, {out, in}}; }
  Signature signature() const {
    const Attributes none{{"bias", false}};
    if (op == Op::linear) return {op, none, {x(), weight(dtype), y()}};
    if (op == Op::linear_grad_input) return {op, {}, {y(), weight(dtype), x()}};
    return {op, none, {x(), y(), weight(DType::f32)}};
  }
  double flops() const { return 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out); }
};

class Ours {
 public:
  explicit Ours(const Case& c) {
    const cpu::Context context{cpu::detect_isa(), num_threads()};
    const cpu::CpuTarget target(context);
    Signature s = c.signature();
    for (const TensorDesc& operand : s.operands) memory_.push_back(random_operand(operand.dtype, operand.elements()));
    workspace_ = allocate(target.workspace_bytes(s));
    kernel_ = cpu::prepare(s, context);
    for (const Memory& m : memory_) operands_.push_back(m.get());
  }
  void run() { kernel_->run({.operands = operands_, .workspace = workspace_.get()}); }

 private:
  std::vector<Memory> memory_;
  std::vector<void*> operands_;
  Memory workspace_;
  std::unique_ptr<Kernel> kernel_;
};

/// oneDNN's matmul of the same shapes: A [m, k] and C [m, n] as the op has them, the weight in the layout oneDNN likes.
class OneDnn {
 public:
  /// Null where the library has no such product for this processor.
  static std::unique_ptr<OneDnn> make(const Case& c) {
    auto made = std::unique_ptr<OneDnn>(new OneDnn(c));
    return made->matmul_ ? std::move(made) : nullptr;
  }
  void run() {
    const cpu::TeamOf team(num_threads());
    matmul_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  explicit OneDnn(const Case& c) : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    const cpu::TeamOf team(num_threads());
    const auto kind = c.dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    using Tag = memory::format_tag;
    memory::desc a, b, b_plain, result;
    if (c.op == Op::linear) {
      a = {{c.rows, c.in}, kind, Tag::ab}, b = {{c.in, c.out}, kind, Tag::any},
      b_plain = {{c.in, c.out}, kind, Tag::ba};
      result = {{c.rows, c.out}, kind, Tag::ab};
    } else if (c.op == Op::linear_grad_input) {
      a = {{c.rows, c.out}, kind, Tag::ab}, b = {{c.out, c.in}, kind, Tag::any},
      b_plain = {{c.out, c.in}, kind, Tag::ab};
      result = {{c.rows, c.in}, kind, Tag::ab};
    } else {
      a = {{c.out, c.rows}, kind, Tag::ba}, b = b_plain = {{c.rows, c.in}, kind, Tag::ab};
      result = {{c.out, c.in}, memory::data_type::f32, Tag::ab};
    }
    const dnnl::matmul::primitive_desc p(engine_, a, b, result, dnnl::primitive_attr(), /*allow_empty=*/true);
    if (!p) return;
    matmul_ = dnnl::matmul(p);
    a_ = random_operand(c.dtype, c.op == Op::linear ? c.rows * c.in : c.rows * c.out);
    const Memory plain = random_operand(c.dtype, c.op == Op::linear_grad_weight ? c.rows * c.in : c.in * c.out);
    b_ = allocate(static_cast<std::int64_t>(p.weights_desc().get_size()));
    result_ = allocate(static_cast<std::int64_t>(result.get_size()));
    memory from(b_plain, engine_, plain.get()), to(p.weights_desc(), engine_, b_.get());
    dnnl::reorder(from, to).execute(stream_, from, to);
    arguments_ = {{DNNL_ARG_SRC, memory(a, engine_, a_.get())},
                  {DNNL_ARG_WEIGHTS, to},
                  {DNNL_ARG_DST, memory(result, engine_, result_.get())}};
    stream_.wait();
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  Memory a_, b_, result_;
  std::unordered_map<int, memory> arguments_;
};

/// One thread's time is its processor's, which a busy machine does not lengthen; a team's is the clock's.
double now() {
  timespec t{};
  clock_gettime(num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

template <typename Product>
double seconds(Product& product) {
  const double start = now();
  product.run();
  return now() - start;
}

void measure(benchmark::State& state, const Case& c) {
  Ours ours(c);
  const std::unique_ptr<OneDnn> theirs = OneDnn::make(c);
  ours.run();
  if (theirs) theirs->run();
  double best = 1e9, best_theirs = 1e9;
  for (auto _ : state) {
    const double t = seconds(ours);
    if (theirs) best_theirs = std::min(best_theirs, seconds(*theirs));
    best = std::min(best, t);
    state.SetIterationTime(t);
  }
  state.counters["gflops"] = c.flops() / best * 1e-9;
  if (!theirs) return state.SetLabel("oneDNN has no " + std::string(name_of(c.dtype)) + " product for this processor");
  state.counters["onednn"] = c.flops() / best_theirs * 1e-9;
  state.counters["ratio"] = best_theirs / best;
}

struct Shape2 {
  std::int64_t rows, in, out;
};
constexpr Shape2 kShapes[] = {{256, 768, 2304},   {256, 768, 3072},   {256, 3072, 768},   {1024, 768, 3072},
                              {1024, 3072, 768},  {16384, 384, 1536}, {16384, 1536, 384}, {256, 768, 50304},
                              {2048, 2048, 2048}, {768, 128, 384},    {768, 128, 512},    {768, 512, 128},
                              {512, 576, 1536},   {1024, 1024, 1024}, {4096, 768, 8},     {4096, 8, 768},
                              {4096, 768, 16},    {4096, 16, 768}};  // the last four: A and B of LoRA

void register_all() {
  for (DType dtype : {DType::bf16, DType::f32})
    for (Op op : {Op::linear, Op::linear_grad_input, Op::linear_grad_weight})
      for (const Shape2& z : kShapes) {
        const Case c{op, dtype, z.rows, z.in, z.out};
        const std::string name = std::string(name_of(dtype)) + "/" + std::string(name_of(op)) + "/" +
                                 std::to_string(z.rows) + "x" + std::to_string(z.in) + "x" + std::to_string(z.out);
        benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) { measure(state, c); })
            ->UseManualTime()
            ->Iterations(c.flops() > 1e10 ? 5 : 20)
            ->Unit(benchmark::kMillisecond);
      }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  register_all();
  benchmark::RunSpecifiedBenchmarks();
}
