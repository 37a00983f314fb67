// The graph of fused attention: product, scale, causal mask, softmax with its logarithms, product ("Graph API", fused
// flash attention, in cuDNN's documentation; the library recognises this order of operations).
#include "kernels/cuda/attention/cudnn_attention.h"

#include <cudnn.h>

#include <map>

#include "engine/core/error.h"
#include "kernels/cuda/attention/cudnn_graph.h"
#include "kernels/cuda/runtime/libraries.h"

namespace trainer::kernels::cuda {
namespace {

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) throw IoError(std::string("cuDNN: ") + call + ": " + cudnnGetErrorString(status));
}

// Queries and keys are the same sequence here (uses_cudnn).

/// A head's rows as [batch, heads, seq, head_dim].
GraphTensor heads_of(GraphBuilder& graph, cudnnDataType_t type, const AttentionArguments& a, int heads,
                     const HeadRows& rows) {
  return graph.tensor(type, {a.batch, heads, a.keys, a.head_dim}, {a.keys * rows.stride, a.head_dim, rows.stride, 1});
}
/// The same as [batch, heads, head_dim, seq].
GraphTensor columns_of(GraphBuilder& graph, cudnnDataType_t type, const AttentionArguments& a, int heads,
                       const HeadRows& rows) {
  return graph.tensor(type, {a.batch, heads, a.head_dim, a.keys}, {a.keys * rows.stride, a.head_dim, 1, rows.stride});
}

/// The scores, of a key after its query `hidden`.
GraphTensor masked(GraphBuilder& graph, const GraphTensor& scores, const GraphTensor& hidden) {
  const GraphTensor row = graph.index(scores, 2), column = graph.index(scores, 3), counts = graph.at_least(row, column);
  return graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, &hidden, &counts);
}

struct ForwardGraph {
  GraphBuilder graph;
  GraphTensor q, k, v, o, lse, scale, hidden;
};

ForwardGraph forward_graph(cudnnDataType_t type, const AttentionArguments& a) {
  ForwardGraph f;
  GraphBuilder& g = f.graph;
  f.q = heads_of(g, type, a, a.heads, a.q);
  f.k = columns_of(g, type, a, a.kv_heads, a.k);
  f.v = heads_of(g, type, a, a.kv_heads, a.v);
  f.o = heads_of(g, type, a, a.heads, a.o);
  const std::int64_t seq = a.keys;
  f.lse = g.tensor(CUDNN_DATA_FLOAT, {a.batch, a.heads, seq, 1}, {a.heads * seq, seq, 1, 1});
  f.scale = g.scalar();
  GraphTensor scores = g.matmul(f.q, f.k);
  scores = g.pointwise(CUDNN_POINTWISE_MUL, scores, &f.scale);
  if (a.causal) {
    f.hidden = g.scalar();
    scores = masked(g, scores, f.hidden);
  }
  const GraphTensor largest = g.reduce_last(CUDNN_REDUCE_TENSOR_MAX, scores);
  const GraphTensor shifted = g.pointwise(CUDNN_POINTWISE_SUB, scores, &largest),
                    powers = g.pointwise(CUDNN_POINTWISE_EXP, shifted);
  const GraphTensor sum = g.reduce_last(CUDNN_REDUCE_TENSOR_ADD, powers),
                    logarithm = g.pointwise(CUDNN_POINTWISE_LOG, sum);
  g.pointwise_to(CUDNN_POINTWISE_ADD, largest, &logarithm, f.lse);
  const GraphTensor p = g.virtual_tensor(type, powers.shape, powers.strides);
  g.pointwise_to(CUDNN_POINTWISE_DIV, powers, &sum, p);
  g.matmul(p, f.v, f.o);
  return f;
}

class CudnnForward final : public FusedAttention {
 public:
  CudnnForward(cudnnHandle_t handle, const ForwardGraph& graph, GraphPlan plan, const AttentionArguments& sizes)
      : handle_(handle), plan_(std::move(plan)), causal_(sizes.causal), scale_(sizes.scale) {
    ids_ = {graph.q.id, graph.k.id, graph.v.id, graph.o.id, graph.lse.id, graph.scale.id, graph.hidden.id};
  }

  void run(const Call& call, const AttentionArguments& at, void* workspace) override {
    check(cudnnSetStream(handle_, stream_of(call)), "cudnnSetStream");
    check(cudnnBackendExecute(handle_, plan_.get(), pack_for(at, workspace).get()), "cudnnBackendExecute of attention");
  }

 private:
  using Addresses = std::array<void*, 7>;

  /// A pack is made when its addresses come first, and kept: layers that share a kernel come back with the same in
  /// every step.
  const Descriptor& pack_for(const AttentionArguments& at, void* workspace) {
    const Addresses addresses{at.q.data, at.k.data, at.v.data, at.o.data, at.lse, &scale_, &hidden_};
    const std::size_t count = causal_ ? addresses.size() : addresses.size() - 1;
    const std::pair<Addresses, void*> key{addresses, workspace};
    const auto found = packs_.find(key);
    if (found != packs_.end()) return found->second;
    return packs_.emplace(key, variant_pack(std::span(ids_).first(count), std::span(addresses).first(count), workspace))
        .first->second;
  }

  cudnnHandle_t handle_;
  GraphPlan plan_;
  bool causal_;
  float scale_, hidden_ = masked_score(cudnnGetVersion());
  std::array<std::int64_t, 7> ids_{};
  std::map<std::pair<Addresses, void*>, Descriptor> packs_;
};

}  // namespace

cudnnContext* open_cudnn() {
  cudnnHandle_t handle = nullptr;
  check(cudnnCreate(&handle), "cudnnCreate");
  return handle;
}

void close_cudnn(cudnnContext* handle) {
  if (handle != nullptr) cudnnDestroy(handle);
}

std::unique_ptr<FusedAttention> fused_attention(cudnnContext* handle, DType dtype, const AttentionArguments& sizes,
                                                std::int64_t workspace_bytes, std::string& refused) {
  try {
    const ForwardGraph graph = forward_graph(dtype == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF, sizes);
    return std::make_unique<CudnnForward>(handle, graph, graph.graph.plan(device_of(handle), workspace_bytes), sizes);
  } catch (const GraphError& error) {
    refused = error.what();
    return nullptr;
  }
}

}  // namespace trainer::kernels::cuda
