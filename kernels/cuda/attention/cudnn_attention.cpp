// The graphs of fused attention, by cudnn-frontend's SDPA operations, and the plans that the library's heuristics
// choose for them.
#include "kernels/cuda/attention/cudnn_attention.h"

#include <cudnn_frontend.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "engine/core/error.h"
#include "kernels/cuda/runtime/libraries.h"

namespace trainer::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using TensorPtr = std::shared_ptr<Tensor_attributes>;

/// The library refused; says why. Every caller has another way to compute.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void check(fe::error_t error) {
  if (error.is_bad()) throw Refused(error.get_message());
}
void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) throw IoError(std::string("cuDNN: ") + call + ": " + cudnnGetErrorString(status));
}

/// Tensors of a graph, and their names in a run's table of addresses.
enum Id : std::int64_t { kQ = 1, kK, kV, kO, kLse, kDo, kDq, kDk, kDv };

// Queries and keys are the same sequence here (uses_cudnn).

/// [batch, heads, seq, head_dim] of vectors of heads.
Tensor_attributes heads_of(Id id, const AttentionArguments& a, int heads, const HeadRows& rows) {
  return Tensor_attributes()
      .set_uid(id)
      .set_dim({a.batch, heads, a.keys, a.head_dim})
      .set_stride({a.keys * rows.stride, a.head_dim, rows.stride, 1});
}
void leaves(const TensorPtr& tensor, const Tensor_attributes& as) {
  tensor->set_output(true).set_uid(as.get_uid()).set_dim(as.get_dim()).set_stride(as.get_stride());
}
/// The natural logarithms of the rows' sums of exponentials.
Tensor_attributes lse_of(const AttentionArguments& a) {
  const std::int64_t seq = a.keys;
  return Tensor_attributes()
      .set_uid(kLse)
      .set_dim({a.batch, a.heads, seq, 1})
      .set_stride({a.heads * seq, seq, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

template <typename Options>
Options options_of(const AttentionArguments& a) {
  Options options;
  options.set_attn_scale(a.scale);
  if (a.causal) options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  return options;
}

void add_forward(fe::graph::Graph& graph, const AttentionArguments& a) {
  const TensorPtr q = graph.tensor(heads_of(kQ, a, a.heads, a.q)), k = graph.tensor(heads_of(kK, a, a.kv_heads, a.k)),
                  v = graph.tensor(heads_of(kV, a, a.kv_heads, a.v));
  auto options = options_of<fe::graph::SDPA_attributes>(a);
  const auto [o, lse] = graph.sdpa(q, k, v, options.set_name("attention").set_generate_stats(true));
  leaves(o, heads_of(kO, a, a.heads, a.o));
  leaves(lse, lse_of(a));
  lse->set_data_type(fe::DataType_t::FLOAT);
}

void add_backward(fe::graph::Graph& graph, const AttentionArguments& a) {
  const TensorPtr q = graph.tensor(heads_of(kQ, a, a.heads, a.q)), k = graph.tensor(heads_of(kK, a, a.kv_heads, a.k)),
                  v = graph.tensor(heads_of(kV, a, a.kv_heads, a.v)), o = graph.tensor(heads_of(kO, a, a.heads, a.o)),
                  d_o = graph.tensor(heads_of(kDo, a, a.heads, a.d_o)), lse = graph.tensor(lse_of(a));
  auto options = options_of<fe::graph::SDPA_backward_attributes>(a);
  const auto [dq, dk, dv] =
      graph.sdpa_backward(q, k, v, o, d_o, lse, options.set_name("attention_grad").set_deterministic_algorithm(true));
  leaves(dq, heads_of(kDq, a, a.heads, a.dq));
  leaves(dk, heads_of(kDk, a, a.kv_heads, a.dk));
  leaves(dv, heads_of(kDv, a, a.kv_heads, a.dv));
}

/// A graph with its plan.
class CudnnAttention final : public FusedAttention {
 public:
  using Add = void (*)(fe::graph::Graph&, const AttentionArguments&);

  CudnnAttention(const FusedDevice& device, DType dtype, const AttentionArguments& sizes, Add add,
                 std::int64_t workspace_limit)
      : handle_(device.handle) {
    graph_.set_io_data_type(dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT)
        .set_sm_version(device.capability)
        .set_sm_count(device.units);
    if (handle_ == nullptr) {
      const auto properties = std::make_shared<fe::DeviceProperties>();
      check(properties->deserialize({device.description.begin(), device.description.end()}));
      graph_.set_device_properties(properties);
    }
    add(graph_, sizes);
    check(graph_.validate());
    check(handle_ == nullptr ? graph_.build_operation_graph() : graph_.build_operation_graph(handle_));
    check(graph_.create_execution_plans({fe::HeurMode_t::A}));
    graph_.deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
    graph_.deselect_workspace_greater_than(workspace_limit);
    check(graph_.check_support());
    check(graph_.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE));
    check(graph_.get_workspace_size(workspace_bytes_));
    if (workspace_bytes_ > workspace_limit)
      throw Refused("its plan needs " + std::to_string(workspace_bytes_) + " bytes of workspace of " +
                    std::to_string(workspace_limit));
  }

  std::int64_t workspace_bytes() const override { return workspace_bytes_; }

  void run(const Call& call, const AttentionArguments& at, void* workspace) override {
    check(cudnnSetStream(handle_, stream_of(call)), "cudnnSetStream");
    std::unordered_map<std::int64_t, void*> addresses{
        {kQ, at.q.data}, {kK, at.k.data}, {kV, at.v.data}, {kO, at.o.data}, {kLse, at.lse}};
    if (at.d_o.data != nullptr)
      addresses.insert({{kDo, at.d_o.data}, {kDq, at.dq.data}, {kDk, at.dk.data}, {kDv, at.dv.data}});
    fe::error_t error = graph_.execute(handle_, addresses, workspace);
    if (error.is_bad()) throw IoError("cuDNN: attention: " + error.get_message());
  }

 private:
  cudnnHandle_t handle_;
  fe::graph::Graph graph_;
  std::int64_t workspace_bytes_ = 0;
};

std::unique_ptr<FusedAttention> made(const FusedDevice& device, DType dtype, const AttentionArguments& sizes,
                                     CudnnAttention::Add add, std::int64_t workspace_limit, std::string& refused) {
  // The frontend masks the last keys for older libraries, by lengths that it copies to the device before every run.
  if (sizes.keys % 128 != 0 && cudnnGetVersion() < 91600) {
    refused = "sequences that are no multiple of 128 tokens need cuDNN 9.16 or newer";
    return nullptr;
  }
  try {
    return std::make_unique<CudnnAttention>(device, dtype, sizes, add, workspace_limit);
  } catch (const std::runtime_error& error) {  // Refused, and what the frontend throws itself
    const std::string why = error.what();
    refused = why.substr(0, why.find('\n'));
    return nullptr;
  }
}

}  // namespace

cudnnContext* open_cudnn() {
  cudnnHandle_t handle = nullptr;
  check(cudnnCreate(&handle), "cudnnCreate");
  return handle;
}

void close_cudnn(cudnnContext* handle) {
  if (handle != nullptr) cudnnDestroy(handle);
}

std::unique_ptr<FusedAttention> fused_attention(const FusedDevice& device, DType dtype, const AttentionArguments& sizes,
                                                std::int64_t workspace_limit, std::string& refused) {
  return made(device, dtype, sizes, add_forward, workspace_limit, refused);
}

std::unique_ptr<FusedAttention> fused_attention_grad(const FusedDevice& device, DType dtype,
                                                     const AttentionArguments& sizes, std::int64_t workspace_limit,
                                                     std::string& refused) {
  return made(device, dtype, sizes, add_backward, workspace_limit, refused);
}

}  // namespace trainer::kernels::cuda
