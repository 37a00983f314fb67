// Kernels bound by memory, at the shapes of GPT-2 and of a character model. Each is timed in turn with a triad (a = b +
// s·c in f32) that moves as many bytes through as much memory on the same threads; `of_triad` is the ratio of their
// best times, which a busy machine disturbs little. Bytes are every operand read or written once.
//
//   kernels_bench [--benchmark_filter=gelu]      isa from TRAINER_ISA, threads from OMP_NUM_THREADS (2)
#include <benchmark/benchmark.h>

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/core/compression.h"
#include "kernels/bf16.h"
#include "kernels/cpu/runtime/parallel.h"
#include "kernels/cpu/table.h"
#include "tools/bench/memory.h"

namespace {

using namespace trainer;
using namespace trainer::bench;
using namespace trainer::kernels;

Memory random_memory(const TensorDesc& tensor, std::int64_t classes) {
  Memory memory = allocate(tensor.bytes());
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  float pool[1021];
  for (float& x : pool) x = normal(generator);
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const float value = pool[i % 1021];
    switch (tensor.dtype) {
      case DType::f32:
        static_cast<float*>(memory.get())[i] = value;
        break;
      case DType::bf16:
        static_cast<Bf16*>(memory.get())[i] = to_bf16(value);
        break;
      case DType::u8:
        static_cast<std::uint8_t*>(memory.get())[i] = 0;
        break;
      case DType::i32:
        static_cast<std::int32_t*>(memory.get())[i] = static_cast<std::int32_t>(i * 7919 % classes);
        break;
      default:
        static_cast<double*>(memory.get())[i] = 0;
    }
  }
  return memory;
}

cpu::Context context() {
  const char* threads = std::getenv("OMP_NUM_THREADS");
  return {cpu::detect_isa(), threads ? std::atoi(threads) : 2};
}

class Triad {
 public:
  explicit Triad(std::int64_t bytes) : count_(bytes / 12), memory_(allocate(count_ * 12)) {
    std::fill(data(), data() + 3 * count_, 1.0f);
  }
  void run() {
    float *a = data(), *b = a + count_, *c = b + count_;
    cpu::parallel_ranges(count_, 16, cpu::threads_for(12 * count_, context().threads),
                         [&](std::int64_t begin, std::int64_t end) {
                           for (std::int64_t i = begin; i < end; ++i) a[i] = b[i] + 0.5f * c[i];
                         });
  }

 private:
  float* data() { return static_cast<float*>(memory_.get()); }
  std::int64_t count_;
  Memory memory_;
};

/// Wall time; with one thread the processor's, which leaves out what other programs took.
double now_s() {
  timespec now{};
  clock_gettime(context().threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Fn>
double seconds(Fn fn) {
  const double start = now_s();
  fn();
  return now_s() - start;
}

/// `in_place`: pairs (operand, the earlier operand whose memory it is). `moved`: bytes read and written.
struct Case {
  std::string name;
  Signature signature;
  std::int64_t moved;
  std::vector<std::pair<int, int>> in_place = {};
};

void measure(benchmark::State& state, const Case& c) {
  std::vector<Memory> memory;
  std::vector<void*> operands;
  const std::int64_t classes = c.signature.operands[0].shape[-1];
  for (const TensorDesc& operand : c.signature.operands) {
    memory.push_back(
        random_memory(operand, c.signature.op == Op::embedding_grad ? c.signature.operands[2].shape[0] : classes));
    operands.push_back(memory.back().get());
  }
  for (const auto& [later, earlier] : c.in_place)
    operands[static_cast<std::size_t>(later)] = operands[static_cast<std::size_t>(earlier)];
  const Memory workspace = allocate(cpu::CpuTarget(context()).workspace_bytes(c.signature));
  const auto kernel = cpu::prepare(c.signature, context());
  Triad triad(c.moved);
  double best = std::numeric_limits<double>::infinity(), best_triad = best;
  for (auto _ : state) {
    const double time = seconds([&] { kernel->run({operands, workspace.get()}); });
    best_triad = std::min(best_triad, seconds([&] { triad.run(); }));
    best = std::min(best, time);
    state.SetIterationTime(time);
  }
  state.counters["best_us"] = best * 1e6;
  state.counters["GB/s"] = static_cast<double>(c.moved) / best * 1e-9;
  state.counters["of_triad"] = best_triad / best;
}

std::string shaped(const char* op, DType dtype, std::int64_t rows, std::int64_t dim) {
  return std::string(op) + "/" + std::string(name_of(dtype)) + "/" + std::to_string(rows) + "x" + std::to_string(dim);
}

void add_elementwise(std::vector<Case>& cases, DType c, std::int64_t rows, std::int64_t dim) {
  const TensorDesc x{c, {rows, dim}};
  for (const char* form : {"tanh", "none"}) {
    const Attributes a = {{"approximate", std::string(form)}};
    cases.push_back({shaped(form[0] == 't' ? "gelu" : "gelu_erf", c, rows, dim), {Op::gelu, a, {x, x}}, 2 * x.bytes()});
    cases.push_back({shaped(form[0] == 't' ? "gelu_grad" : "gelu_erf_grad", c, rows, dim),
                     {Op::gelu_grad, a, {x, x, x}},
                     3 * x.bytes()});
  }
  cases.push_back({shaped("silu", c, rows, dim), {Op::silu, {}, {x, x}}, 2 * x.bytes()});
  cases.push_back({shaped("silu_grad", c, rows, dim), {Op::silu_grad, {}, {x, x, x}}, 3 * x.bytes()});
}

void add_rows(std::vector<Case>& cases, DType c, std::int64_t rows, std::int64_t dim) {
  const TensorDesc x{c, {rows, dim}}, w{c, {dim}}, stat{DType::f32, {rows}}, dw{DType::f32, {dim}},
      step{DType::i32, {1}};
  cases.push_back({shaped("add", c, rows, dim), {Op::add, {}, {x, x, x}}, 3 * x.bytes()});
  cases.push_back({shaped("layer_norm", c, rows, dim),
                   {Op::layer_norm, {{"eps", 1e-5}, {"bias", true}}, {x, w, w, x, stat, stat}},
                   2 * x.bytes()});
  cases.push_back({shaped("layer_norm_grad", c, rows, dim),
                   {Op::layer_norm_grad, {{"bias", true}}, {x, x, w, stat, stat, x, dw, dw}},
                   3 * x.bytes()});
  cases.push_back({shaped("rms_norm", c, rows, dim), {Op::rms_norm, {{"eps", 1e-5}}, {x, w, x, stat}}, 2 * x.bytes()});
  cases.push_back(
      {shaped("rms_norm_grad", c, rows, dim), {Op::rms_norm_grad, {}, {x, x, w, stat, x, dw}}, 3 * x.bytes()});
  cases.push_back({shaped("dropout", c, rows, dim),
                   {Op::dropout, {{"p", 0.1}, {"key", std::int64_t{1}}}, {x, step, x}},
                   2 * x.bytes()});
  const Attributes half = {{"p", 0.1}, {"key", std::int64_t{1}}, {"sample", 2 * dim}, {"stride", 2 * dim}};
  cases.push_back({shaped("dropout_columns", c, rows, dim), {Op::dropout, half, {x, step, x}}, 2 * x.bytes()});
  const TensorDesc qkv{c, {rows, 3 * dim}};
  cases.push_back({shaped("split", c, rows, 3 * dim), {Op::split, {}, {qkv, x, x, x}}, 2 * qkv.bytes()});
  cases.push_back({shaped("concat", c, rows, 3 * dim), {Op::concat, {}, {x, x, x, qkv}}, 2 * qkv.bytes()});
}

void add_losses(std::vector<Case>& cases, DType c, std::int64_t rows, std::int64_t classes) {
  const TensorDesc x{c, {rows, classes}}, targets{DType::i32, {rows}}, lse{DType::f32, {rows}}, loss{DType::f64, {1}},
      seed{DType::f32, {1}};
  const Attributes a = {{"ignore_index", std::int64_t{-100}}, {"label_smoothing", 0.0}};
  cases.push_back(
      {shaped("cross_entropy", c, rows, classes), {Op::cross_entropy, a, {x, targets, loss, lse}}, x.bytes()});
  cases.push_back({shaped("cross_entropy_grad", c, rows, classes),
                   {Op::cross_entropy_grad, a, {x, targets, lse, seed, x}},
                   2 * x.bytes()});
  cases.push_back({shaped("cross_entropy_and_grad", c, rows, classes),
                   {Op::cross_entropy_and_grad, a, {x, targets, seed, loss, x}},
                   2 * x.bytes()});
  // As a rank of two has them.
  Attributes half = a;
  half.set("classes", 2 * classes);
  const TensorDesc stats{DType::f32, {rows, 5}}, gathered{DType::f32, {2, rows, 5}};
  const Attributes of_stats = {{"classes", 2 * classes}, {"ignore_index", std::int64_t{-100}}};
  cases.push_back({shaped("cross_entropy_stats", c, rows, classes),
                   {Op::cross_entropy_stats, of_stats, {x, targets, stats}},
                   x.bytes()});
  cases.push_back({shaped("cross_entropy_gathered", c, rows, classes),
                   {Op::cross_entropy_gathered, half, {x, gathered, targets, loss, lse}},
                   gathered.bytes()});
}

void add_optimizer(std::vector<Case>& cases, std::int64_t n, bool working) {
  const TensorDesc flat{DType::f32, {n}}, one{DType::f32, {1}}, scalars{DType::f32, {4}}, applied{DType::i32, {1}},
      copy{DType::bf16, {n}};
  const Attributes a = {{"beta1", 0.9},        {"beta2", 0.99},       {"eps", 1e-8},
                        {"weight_decay", 0.1}, {"decay_elements", n}, {"working", working}};
  Signature adamw{Op::adamw, a, {flat, flat, flat, flat, one, scalars, applied}};
  if (working) adamw.operands.push_back(copy);
  cases.push_back(
      {std::string(working ? "adamw_working/" : "adamw/") + std::to_string(n), adamw, n * (working ? 30 : 28)});
  const TensorDesc bf16{DType::bf16, {n}}, codes{DType::u8, {n}}, scales{DType::f32, {int8_blocks(n)}};
  Signature with_bf16{Op::adamw, a, {flat, flat, bf16, bf16, one, scalars, applied}},
      with_int8{Op::adamw, a, {flat, flat, codes, scales, codes, scales, one, scalars, applied}};
  for (Signature* signature : {&with_bf16, &with_int8})
    if (working) signature->operands.push_back(copy);
  cases.push_back({std::string(working ? "adamw_bf16_working/" : "adamw_bf16/") + std::to_string(n), with_bf16,
                   n * (working ? 22 : 20)});
  cases.push_back({std::string(working ? "adamw_int8_working/" : "adamw_int8/") + std::to_string(n), with_int8,
                   n * (working ? 18 : 16) + 16 * int8_blocks(n)});
  if (!working)
    cases.push_back({"sum_squares/" + std::to_string(n), {Op::sum_squares, {}, {flat, {DType::f64, {1}}}}, n * 4});
}

/// n elements: 25 MB of f32 are a bucket's usual size.
void add_compression(std::vector<Case>& cases, DType r, std::int64_t n) {
  const std::int64_t slices = 4, k = n / 100, width = size_of(r), int8 = slices * int8_bytes(n / slices),
                     pairs = top_k_bytes(k);
  const TensorDesc gradient{r, {n}}, residual{DType::f32, {n}}, codes{DType::u8, {int8}}, chosen{DType::u8, {pairs}};
  const auto name = [&](const char* op) {
    return std::string(op) + "/" + std::string(name_of(r)) + "/" + std::to_string(n);
  };
  const Attributes four = {{"slices", slices}};
  cases.push_back(
      {name("compress_bf16"), {Op::compress_bf16, {}, {gradient, residual, {DType::bf16, {n}}}}, n * (width + 10)});
  cases.push_back({name("quantize_int8"), {Op::quantize_int8, four, {gradient, residual, codes}}, n * (width + 9)});
  cases.push_back({name("dequantize_int8"), {Op::dequantize_int8, four, {codes, gradient}}, n * (width + 1)});
  cases.push_back({name("dequantize_sum_int8"),
                   {Op::dequantize_sum_int8, four, {codes, {r, {n / slices}}}},
                   int8 + n / slices * width});
  cases.push_back(
      {name("top_k_compress"), {Op::top_k_compress, {{"k", k}}, {gradient, residual, chosen}}, n * (width + 8)});
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (DType c : {DType::f32, DType::bf16}) {
    for (const auto& [rows, dim] : {std::pair{256, 768}, {1024, 768}, {16384, 384}}) {
      add_rows(cases, c, rows, dim);
      add_elementwise(cases, c, rows, 4 * dim);
    }
    add_losses(cases, c, 256, 50257);
    add_losses(cases, c, 16384, 65);
    const TensorDesc dy{c, {1024, 768}}, ids{DType::i32, {1024}}, table{DType::f32, {50257, 768}};
    cases.push_back({shaped("embedding_grad", c, 1024, 768),
                     {Op::embedding_grad, {{"accumulate", true}}, {ids, dy, table}},
                     dy.bytes() + 2 * 1024 * 768 * 4});
  }
  for (DType r : {DType::f32, DType::bf16}) add_compression(cases, r, 6'553'600);
  for (std::int64_t n : {10'000'000, 124'000'000})
    for (bool working : {false, true}) add_optimizer(cases, n, working);
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  for (const Case& c : all_cases())
    benchmark::RegisterBenchmark(c.name.c_str(), [c](benchmark::State& state) { measure(state, c); })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->MinTime(0.1);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 64;
  benchmark::RunSpecifiedBenchmarks();
}
