// Attention alone, forward and backward, on the shapes of the models in configs/: causal, packed qkv; and of queries
// that are a part of a long sequence, beside the whole of it: causal, separate q, k and v; and of rows of several
// documents, equal or of lengths that halve, whose time falls with the sum of the squared lengths (the counter pairs).
// FLOP/s count the products of the pairs that causality and documents leave: 2 of them forward, 5 backward. Data is
// random: zeros flatter a processor.
//
//   attention_bench [--benchmark_filter=forward/bf16]      isa from TRAINER_ISA, threads from OMP_NUM_THREADS (2)
//   peer/pytorch_attention.py                              the same shapes in PyTorch
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cpu/table.h"
#include "tools/bench/memory.h"

namespace {

using namespace trainer;
using namespace trainer::bench;
using namespace trainer::kernels;

struct Shape4 {
  std::int64_t batch, heads, seq, dim;
  std::int64_t keys = 0, origin = 0;  ///< 0 keys: as many as queries, packed
  std::int64_t documents = 0;         ///< of a row, of equal length; 0: a row is one
  bool halving = false;               ///< of which each is half as long as the one before, and the last two are equal

  std::string str() const {
    const std::string part = keys == 0 ? "" : "_of" + std::to_string(keys) + "_at" + std::to_string(origin);
    return "B" + std::to_string(batch) + "_H" + std::to_string(heads) + "_T" + std::to_string(seq) + part + "_D" +
           std::to_string(dim) +
           (documents == 0 ? "" : std::string(halving ? "_halving" : "_documents") + std::to_string(documents));
  }
  /// Lengths of a row's documents.
  std::vector<std::int64_t> lengths() const {
    if (documents == 0) return {seq};
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(documents), seq / documents);
    for (std::size_t i = 0; halving && i < lengths.size(); ++i)
      lengths[i] = seq >> (i + 1 < lengths.size() ? i + 1 : i);
    return lengths;
  }
  /// Pairs of a query and a key that it sees, of a head.
  double pairs() const {
    if (keys != 0) return static_cast<double>(seq * origin + seq * (seq + 1) / 2);
    double sum = 0;
    for (const std::int64_t length : lengths()) sum += static_cast<double>(length * (length + 1) / 2);
    return sum;
  }
};
constexpr Shape4 kShapes[] = {{64, 6, 256, 64},
                              {4, 12, 256, 64},
                              {4, 12, 64, 64},
                              {12, 4, 64, 32},
                              {4, 12, 1024, 64},
                              {1, 4, 4096, 64, 4096},
                              {1, 4, 1024, 64, 4096, 0},
                              {1, 4, 1024, 64, 4096, 1024},
                              {1, 4, 1024, 64, 4096, 3072},
                              {1, 4, 4096, 64, 0, 0, 1},
                              {1, 4, 4096, 64, 0, 0, 4},
                              {1, 4, 4096, 64, 0, 0, 16},
                              {1, 4, 4096, 64, 0, 0, 64},
                              {1, 4, 4096, 64, 0, 0, 8, true}};

Memory random_memory(DType dtype, std::int64_t bytes) {
  Memory memory = allocate(bytes);
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < bytes / size_of(dtype); ++i) {
    const float value = normal(generator);
    if (dtype == DType::bf16)
      static_cast<Bf16*>(memory.get())[i] = to_bf16(value);
    else
      static_cast<float*>(memory.get())[i] = value;
  }
  return memory;
}

Signature signature_of(const Shape4& s, DType dtype, bool backward) {
  const bool packed = s.keys == 0;
  const TensorDesc o{dtype, Shape{s.batch, s.seq, s.heads * s.dim}}, kv{dtype, Shape{s.batch, s.keys, s.heads * s.dim}};
  const TensorDesc lse{DType::f32, Shape{s.batch, s.heads, s.seq}};
  const std::vector<TensorDesc> in = packed
                                         ? std::vector<TensorDesc>{{dtype, Shape{s.batch, s.seq, 3 * s.heads * s.dim}}}
                                         : std::vector<TensorDesc>{o, kv, kv};
  Signature signature{
      backward ? Op::attention_grad : Op::attention,
      {{"heads", s.heads}, {"kv_heads", s.heads}, {"causal", true}, {"packed", packed}, {"rope_theta", 0.0}},
      in};
  if (s.documents > 0) {
    signature.attributes.set("by_document", true);
    signature.operands.push_back({DType::i32, Shape{s.batch, s.seq}});
  }
  if (backward) signature.operands.insert(signature.operands.begin(), o);
  signature.operands.insert(signature.operands.end(), {o, lse});
  if (backward) signature.operands.insert(signature.operands.end(), in.begin(), in.end());
  return signature;
}

void number_documents(const Shape4& s, std::int32_t* documents) {
  for (std::int64_t b = 0; b < s.batch; ++b) {
    std::int32_t number = 0;
    for (const std::int64_t length : s.lengths()) documents = std::fill_n(documents, length, number++);
  }
}

cpu::Context context() {
  const char* threads = std::getenv("OMP_NUM_THREADS");
  return {cpu::detect_isa(), threads ? std::atoi(threads) : 2};
}

void attention(benchmark::State& state, Shape4 s, DType dtype, bool backward) {
  const Signature signature = signature_of(s, dtype, backward);
  std::vector<Memory> memory;
  std::vector<void*> operands;
  for (const TensorDesc& operand : signature.operands) {
    memory.push_back(random_memory(operand.dtype, operand.bytes()));
    operands.push_back(memory.back().get());
    if (operand.dtype == DType::i32) number_documents(s, static_cast<std::int32_t*>(memory.back().get()));
  }
  if (backward) {  // lse and o must belong to qkv
    const Signature first = signature_of(s, dtype, false);
    const std::vector<void*> forward(operands.begin() + 1,
                                     operands.begin() + 1 + static_cast<std::ptrdiff_t>(first.operands.size()));
    const Memory workspace = allocate(cpu::CpuTarget(context()).workspace_bytes(first));
    cpu::prepare(first, context())->run({.operands = forward, .workspace = workspace.get(), .origin = s.origin});
  }
  const Memory workspace = allocate(cpu::CpuTarget(context()).workspace_bytes(signature));
  const auto kernel = cpu::prepare(signature, context());
  for (auto _ : state) kernel->run({.operands = operands, .workspace = workspace.get(), .origin = s.origin});
  const double pairs = static_cast<double>(s.batch * s.heads) * s.pairs();
  state.counters["pairs"] = benchmark::Counter(pairs);
  state.counters["FLOP/s"] =
      benchmark::Counter((backward ? 5 : 2) * 2.0 * pairs * static_cast<double>(s.dim),
                         benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

}  // namespace

int main(int argc, char** argv) {
  for (bool backward : {false, true})
    for (DType dtype : {DType::f32, DType::bf16})
      for (const Shape4& s : kShapes) {
        const std::string name =
            std::string(backward ? "backward/" : "forward/") + std::string(name_of(dtype)) + "/" + s.str();
        benchmark::RegisterBenchmark(name.c_str(),
                                     [=](benchmark::State& state) { attention(state, s, dtype, backward); })
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond)
            ->MinTime(0.2);
      }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 64;
  benchmark::RunSpecifiedBenchmarks();
}
