// cuDNN's fused attention in host memory, in place of kernels/cuda/attention/cudnn_attention.cpp: what its plans
// compute, by the formulas of kernels/attention.h, for the strides that they are made for.
//
// Harder than the real one, so that mistakes show: a plan is refused where its bytes exceed the limit, operands that
// are not aligned to 16 bytes and workspaces that are not to 256 are errors, and the workspace is filled with garbage
// to its last byte.
#include "kernels/cuda/attention/cudnn_attention.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/fused_attention.h"
#include "kernels/bf16.h"
#include "kernels/cuda/runtime/libraries.h"
#include "tests/cuda/emulated/emulated.h"
#include "tests/kernels/f16.h"

struct cudnnContext {
  int opened = 1;
};

namespace trainer::kernels::cuda {
namespace {

double value_of(DType dtype, const void* data, std::int64_t index) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, static_cast<const char*>(data) + 2 * index, 2);
  if (dtype == DType::f16) return test::f16_value(bits);
  return to_f32(Bf16{bits});
}
void set_value(DType dtype, void* data, std::int64_t index, double value) {
  const std::uint16_t bits = dtype == DType::f16 ? test::f16_bits(value) : to_bf16(static_cast<float>(value)).bits;
  std::memcpy(static_cast<char*>(data) + 2 * index, &bits, 2);
}

/// One head of one sample.
struct Head {
  DType dtype;
  const AttentionArguments& a;
  std::int64_t sample, head, kv_head;

  std::int64_t at(const HeadRows& rows, std::int64_t of_head, std::int64_t position, std::int64_t element) const {
    return (sample * a.keys + position) * rows.stride + of_head * a.head_dim + element;
  }
  double get(const HeadRows& rows, std::int64_t of_head, std::int64_t position, std::int64_t element) const {
    return value_of(dtype, rows.data, at(rows, of_head, position, element));
  }
  double dot(const HeadRows& x, std::int64_t x_head, std::int64_t i, const HeadRows& y, std::int64_t y_head,
             std::int64_t j) const {
    double sum = 0;
    for (std::int64_t e = 0; e < a.head_dim; ++e) sum += get(x, x_head, i, e) * get(y, y_head, j, e);
    return sum;
  }
  double score(std::int64_t i, std::int64_t j) const { return a.scale * dot(a.q, head, i, a.k, kv_head, j); }
  std::int64_t seen(std::int64_t i) const { return a.causal ? i + 1 : a.keys; }
  float& lse(std::int64_t i) const { return a.lse[(sample * a.heads + head) * a.keys + i]; }

  void forward() const {
    const auto dim = static_cast<std::size_t>(a.head_dim);
    for (std::int64_t i = 0; i < a.keys; ++i) {
      double largest = -HUGE_VAL, sum = 0;
      for (std::int64_t j = 0; j < seen(i); ++j) largest = std::max(largest, score(i, j));
      std::vector<double> o(dim);
      for (std::int64_t j = 0; j < seen(i); ++j) {
        const double p = std::exp(score(i, j) - largest);
        sum += p;
        for (std::size_t e = 0; e < dim; ++e) o[e] += p * get(a.v, kv_head, j, static_cast<std::int64_t>(e));
      }
      for (std::size_t e = 0; e < dim; ++e)
        set_value(dtype, a.o.data, at(a.o, head, i, static_cast<std::int64_t>(e)), o[e] / sum);
      lse(i) = static_cast<float>(largest + std::log(sum));
    }
  }

  /// Writes dq, and adds to [keys][head_dim] of dk and dv.
  void backward(std::vector<double>& dk, std::vector<double>& dv) const {
    const auto dim = static_cast<std::size_t>(a.head_dim);
    for (std::int64_t i = 0; i < a.keys; ++i) {
      const double delta = dot(a.d_o, head, i, a.o, head, i);
      std::vector<double> dq(dim);
      for (std::int64_t j = 0; j < seen(i); ++j) {
        const double p = std::exp(score(i, j) - static_cast<double>(lse(i))),
                     ds = p * (dot(a.d_o, head, i, a.v, kv_head, j) - delta) * a.scale;
        for (std::size_t e = 0; e < dim; ++e) {
          const auto element = static_cast<std::int64_t>(e);
          const std::size_t of_key = static_cast<std::size_t>(j) * dim + e;
          dq[e] += ds * get(a.k, kv_head, j, element);
          dk[of_key] += ds * get(a.q, head, i, element);
          dv[of_key] += p * get(a.d_o, head, i, element);
        }
      }
      for (std::size_t e = 0; e < dim; ++e)
        set_value(dtype, a.dq.data, at(a.dq, head, i, static_cast<std::int64_t>(e)), dq[e]);
    }
  }
};

void compute(DType dtype, const AttentionArguments& a) {
  const bool backward = a.d_o.data != nullptr;
  const std::int64_t sharing = a.heads / a.kv_heads;
  for (std::int64_t sample = 0; sample < a.batch; ++sample)
    for (std::int64_t kv_head = 0; kv_head < a.kv_heads; ++kv_head) {
      std::vector<double> dk(static_cast<std::size_t>(a.keys) * static_cast<std::size_t>(a.head_dim)), dv(dk.size());
      for (std::int64_t head = kv_head * sharing; head < (kv_head + 1) * sharing; ++head) {
        const Head one{dtype, a, sample, head, kv_head};
        backward ? one.backward(dk, dv) : one.forward();
      }
      if (!backward) continue;
      const Head one{dtype, a, sample, 0, kv_head};
      for (std::int64_t j = 0; j < a.keys; ++j)
        for (std::int64_t e = 0; e < a.head_dim; ++e) {
          const auto from = static_cast<std::size_t>(j * a.head_dim + e);
          set_value(dtype, a.dk.data, one.at(a.dk, kv_head, j, e), dk[from]);
          set_value(dtype, a.dv.data, one.at(a.dv, kv_head, j, e), dv[from]);
        }
    }
}

std::atomic<std::int64_t> runs = 0;

bool aligned_to(const void* at, std::uintptr_t to) { return reinterpret_cast<std::uintptr_t>(at) % to == 0; }

class EmulatedAttention final : public FusedAttention {
 public:
  EmulatedAttention(DType dtype, const AttentionArguments& sizes, std::int64_t bytes)
      : dtype_(dtype), sizes_(sizes), bytes_(bytes) {}

  std::int64_t workspace_bytes() const override { return bytes_; }

  void run(const Call& call, const AttentionArguments& at, void* workspace) override {
    const auto as_planned = [](const HeadRows& rows, const HeadRows& planned) {
      return rows.stride == planned.stride && aligned_to(rows.data, 16);
    };
    const bool right = at.batch == sizes_.batch && at.heads == sizes_.heads && at.kv_heads == sizes_.kv_heads &&
                       at.keys == sizes_.keys && as_planned(at.q, sizes_.q) && as_planned(at.k, sizes_.k) &&
                       as_planned(at.v, sizes_.v) && as_planned(at.o, sizes_.o) && as_planned(at.d_o, sizes_.d_o) &&
                       as_planned(at.dq, sizes_.dq) && as_planned(at.dk, sizes_.dk) && as_planned(at.dv, sizes_.dv) &&
                       aligned_to(at.lse, 16) && (bytes_ == 0 || aligned_to(workspace, 256));
    ++runs;
    if (!right) throw IoError("cuDNN: attention: the operands are not those that the plan was made for");
    emulated::enqueue(
        stream_of(call),
        [dtype = dtype_, at, workspace, bytes = bytes_] {
          std::memset(workspace, 0xFF, static_cast<std::size_t>(bytes));
          compute(dtype, at);
          return true;
        },
        "attention by cuDNN");
  }

 private:
  DType dtype_;
  AttentionArguments sizes_;
  std::int64_t bytes_;
};

std::unique_ptr<FusedAttention> made(DType dtype, const AttentionArguments& sizes, std::int64_t bytes,
                                     std::int64_t limit, std::string& refused) {
  if (bytes <= limit) return std::make_unique<EmulatedAttention>(dtype, sizes, bytes);
  refused = "its plan needs " + std::to_string(bytes) + " bytes of workspace";
  return nullptr;
}

}  // namespace

cudnnContext* open_cudnn() { return emulated::settings().cudnn ? new cudnnContext : nullptr; }
void close_cudnn(cudnnContext* handle) { delete handle; }

std::unique_ptr<FusedAttention> fused_attention(const FusedDevice&, DType dtype, const AttentionArguments& sizes,
                                                std::int64_t workspace_limit, std::string& refused) {
  return made(dtype, sizes, 256, workspace_limit, refused);
}

std::unique_ptr<FusedAttention> fused_attention_grad(const FusedDevice&, DType dtype, const AttentionArguments& sizes,
                                                     std::int64_t workspace_limit, std::string& refused) {
  const auto padded = [&](std::int64_t to) { return (sizes.keys + to - 1) / to * to; };
  const std::int64_t heads = std::int64_t{sizes.batch} * sizes.heads;
  return made(dtype, sizes, heads * (padded(64) * padded(128) * 2 + sizes.keys * 4) + 256, workspace_limit, refused);
}

}  // namespace trainer::kernels::cuda

std::int64_t trainer::emulated::cudnn_runs() { return kernels::cuda::runs; }
