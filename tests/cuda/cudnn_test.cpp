// The borders between attention and cuDNN's fused kernels, on the emulated GPU with its stand-in for them: pieces of
// the gradient, what rotates before and after, where it is refused.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/fused_attention.h"
#include "kernels/bf16.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/target.h"
#include "tests/cuda/emulated/emulated.h"

#undef CHECK  // the program's; the rest is doctest's
#include <doctest/doctest.h>

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::cuda;

namespace {

/// A device with cuDNN.
Device& device() {
  static const bool has = emulated::settings().cudnn = true;
  static Device one(0);
  (void)has;
  return one;
}

struct Sizes {
  std::int64_t batch, seq, heads, kv_heads, dim;
  double theta = 0;
};

std::vector<TensorDesc> descs(const Sizes& z) {
  const TensorDesc q{DType::bf16, {z.batch, z.seq, z.heads * z.dim}},
      k{DType::bf16, {z.batch, z.seq, z.kv_heads * z.dim}};
  return {q, q, k, k, q, {DType::f32, {z.batch, z.heads, z.seq}}, q, k, k};  // do, q, k, v, o, lse, dq, dk, dv
}

Signature signature(Op op, const Sizes& z) {
  const std::vector<TensorDesc> all = descs(z);
  Signature s{op, {{"heads", z.heads}, {"kv_heads", z.kv_heads}, {"packed", false}, {"rope_theta", z.theta}}, all};
  if (op == Op::attention) s.operands.assign(all.begin() + 1, all.begin() + 6);
  return s;
}

// Samples and heads come again after three: so a case of thousands of heads, which takes several pieces, has the
// results of a small one. Pieces have no multiple of three, so that each begins with other values.
constexpr std::int64_t kPeriod = 3;

float operand_value(std::size_t operand, std::int64_t sample, std::int64_t position, std::int64_t head,
                    std::int64_t element) {
  std::uint32_t x = static_cast<std::uint32_t>(
      (((static_cast<std::int64_t>(operand) * 61 + sample) * 67 + position) * 71 + head) * 73 + element);
  x = (x ^ (x >> 16)) * 0x45D9F3Bu;
  x = (x ^ (x >> 16)) * 0x45D9F3Bu;
  return static_cast<float>((x ^ (x >> 16)) % 2001) / 500 - 2;
}

using Values = std::vector<float>;

/// attention and its gradient: o, lse, dq, dk, dv.
std::vector<Values> results(const Sizes& z, const Context& context) {
  const std::vector<TensorDesc> all = descs(z);
  std::vector<void*> operands;
  for (std::size_t t = 0; t < all.size(); ++t) {
    void* at = nullptr;
    check(cudaMalloc(&at, static_cast<std::size_t>(all[t].bytes())), "cudaMalloc");
    operands.push_back(at);
    if (t >= 4) continue;
    const std::int64_t heads = all[t].shape[2] / z.dim, period = heads / z.kv_heads * kPeriod;
    for (std::int64_t i = 0; i < all[t].elements(); ++i) {
      const std::int64_t row = i / all[t].shape[2], column = i % all[t].shape[2];
      static_cast<Bf16*>(at)[i] =
          to_bf16(operand_value(t, row / z.seq % kPeriod, row % z.seq, column / z.dim % period, column % z.dim));
    }
  }
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  for (const Op op : {Op::attention, Op::attention_grad}) {
    const Signature s = signature(op, z);
    void* workspace = nullptr;
    const std::int64_t bytes = CudaTarget(context.capability, context.units).workspace_bytes(s);
    check(cudaMalloc(&workspace, static_cast<std::size_t>(bytes)), "cudaMalloc");
    const std::unique_ptr<Kernel> kernel = prepare(s, context);
    std::span<void* const> given(operands);
    if (op == Op::attention) given = given.subspan(1, 5);
    kernel->run({.operands = given, .workspace = workspace, .origin = 0, .stream = stream});
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    check(cudaFree(workspace), "cudaFree");
  }
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  std::vector<Values> given;
  for (std::size_t t = 0; t < all.size(); ++t) {
    if (t >= 4) {
      Values& values = given.emplace_back();
      for (std::int64_t i = 0; i < all[t].elements(); ++i)
        values.push_back(all[t].dtype == DType::f32 ? static_cast<const float*>(operands[t])[i]
                                                    : to_f32(static_cast<const Bf16*>(operands[t])[i]));
    }
    check(cudaFree(operands[t]), "cudaFree");
  }
  return given;
}

/// The first place where results of `z` differ from those of `small`, which has kPeriod samples and kv heads at most.
std::string difference(const Sizes& z, const std::vector<Values>& of, const Sizes& small,
                       const std::vector<Values>& expected, float bound) {
  const std::vector<TensorDesc> all = descs(z);
  for (std::size_t t = 0; t < of.size(); ++t)
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(of[t].size()); ++i) {
      const bool is_lse = all[4 + t].dtype == DType::f32;
      const std::int64_t heads = is_lse ? z.heads : all[4 + t].shape[2] / z.dim,
                         small_heads = heads * small.kv_heads / z.kv_heads;
      std::int64_t at = 0;
      if (is_lse) {
        const std::int64_t head = i / z.seq % heads, sample = i / z.seq / heads;
        at = ((sample % small.batch) * small_heads + head % small_heads) * z.seq + i % z.seq;
      } else {
        const std::int64_t head = i / z.dim % heads, row = i / z.dim / heads, sample = row / z.seq;
        at = (((sample % small.batch) * z.seq + row % z.seq) * small_heads + head % small_heads) * z.dim + i % z.dim;
      }
      const float left = of[t][static_cast<std::size_t>(i)], right = expected[t][static_cast<std::size_t>(at)];
      if (!(std::fabs(left - right) <= bound * (1 + std::fabs(right))))
        return "result " + std::to_string(t) + " at " + std::to_string(i) + ": " + std::to_string(left) + " and " +
               std::to_string(right);
    }
  return "";
}

}  // namespace

TEST_CASE("attention by cuDNN gives what the own kernels give, and in several pieces the same as in one") {
  Context own = device().context();
  own.cudnn = nullptr;
  const auto runs = [](const Sizes& z, const Context& context) {
    const std::int64_t before = emulated::cudnn_runs();
    std::vector<Values> given = results(z, context);
    const std::int64_t pieces = cudnn_pieces(signature(Op::attention_grad, z), 90).count;
    CHECK(emulated::cudnn_runs() - before == (context.cudnn == nullptr ? 0 : 1 + pieces));
    return given;
  };
  struct Pair {
    Sizes small, large;
  };
  for (const auto& [small, large] :
       {Pair{{3, 9, 3, 3, 16}, {2048, 9, 32, 32, 16}}, Pair{{1, 9, 6, 3, 16, 1e4}, {1, 9, 65536, 32768, 16, 1e4}}}) {
    const std::vector<Values> fused = runs(small, device().context());
    CHECK(difference(small, fused, small, runs(small, own), 0.02f) == "");
    CHECK(cudnn_pieces(signature(Op::attention_grad, large), 90).count > 1);
    CHECK(difference(large, runs(large, device().context()), small, fused, 0) == "");
  }
  CHECK(device().take_notes().empty());
}

TEST_CASE("pieces of attention's gradient are whole samples, or groups of heads, within their bytes") {
  const auto pieces = [](std::int64_t batch, std::int64_t seq, std::int64_t heads, std::int64_t kv_heads,
                         std::int64_t dim, int capability) {
    return fused_grad_pieces({DType::bf16, batch, heads, kv_heads, seq, seq, dim, dim}, capability);
  };
  const FusedGradPieces gpt = pieces(64, 1024, 12, 12, 64, 90);  // GPT-2 124M
  CHECK(gpt.samples == 16);
  CHECK(gpt.kv_heads == 12);
  CHECK(gpt.count == 4);
  CHECK(gpt.scores_bytes == 16 * 12 * 1024 * 1024 * 2);
  const FusedGradPieces llama = pieces(1, 8192, 32, 8, 128, 90);  // Llama 3 8B
  CHECK(llama.samples == 1);
  CHECK(llama.kv_heads == 1);
  CHECK(llama.count == 8);
  CHECK(pieces(1, 131072, 32, 8, 128, 90).count == 0);   // one head takes more
  CHECK(pieces(1, 131072, 32, 8, 128, 100).count == 8);  // Blackwell keeps no scores, but dk and dv of each head
  CHECK(pieces(7, 2048, 16, 16, 64, 90).samples == 1);   // of seven samples two take 256 MiB, but seven is prime
  CHECK(pieces(1, 4095, 25, 25, 64, 90).count == 0);     // parts of lse would begin at 12 bytes modulo 16
  CHECK(pieces(64, 1024, 12, 12, 64, 80).count == 0);
  CHECK(pieces(64, 1024, 12, 12, 64, 120).count == 0);
  for (const std::int64_t batch : {1, 3, 64, 100})
    for (const std::int64_t seq : {2, 1000, 4096, 16384})
      for (const int capability : {90, 100, 103}) {
        const FusedGradPieces p = pieces(batch, seq, 16, 4, 128, capability);
        if (p.count == 0) continue;
        CHECK(p.bytes <= kFusedGradBytes);
        CHECK(p.count * p.samples * p.kv_heads == batch * 4);
        CHECK((p.samples == 1 || p.kv_heads == 4));
        CHECK((p.count == 1 || p.samples * 4 * p.kv_heads * seq % 4 == 0));
      }
}
