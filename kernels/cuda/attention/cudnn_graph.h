// Graphs of cuDNN's backend interface (cuDNN 9, "Graph API"): tensors and operations put together, and the plan that
// the library's heuristics choose for them. What each descriptor's attributes mean is in cudnn_graph.h of the Toolkit.
// All errors are GraphError: every caller has another way to compute.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace trainer::kernels::cuda {

/// The library refused; says what and why.
struct GraphError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  Descriptor(Descriptor&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = nullptr; }
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor();

  cudnnBackendDescriptor_t get() const { return descriptor_; }
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count, const void* values);
  void set(cudnnBackendAttributeName_t name, std::int64_t value) { set(name, CUDNN_TYPE_INT64, 1, &value); }
  void set(cudnnBackendAttributeName_t name, cudnnDataType_t value) { set(name, CUDNN_TYPE_DATA_TYPE, 1, &value); }
  void set(cudnnBackendAttributeName_t name, bool value) { set(name, CUDNN_TYPE_BOOLEAN, 1, &value); }
  void set(cudnnBackendAttributeName_t name, const Descriptor& value);
  void finalize();

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// What plans are made for: a device that is there, or one that is described.
Descriptor device_of(cudnnHandle_t handle);
Descriptor device_of(const std::string& json);

using Extents = std::array<std::int64_t, 4>;

/// A tensor of a graph. Values between operations are virtual: they lie nowhere.
struct GraphTensor {
  std::int64_t id = 0;
  Extents shape{}, strides{};
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
};

/// A plan: what the library runs for a graph.
class GraphPlan {
 public:
  explicit GraphPlan(Descriptor plan);
  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  cudnnBackendDescriptor_t get() const { return plan_.get(); }

 private:
  Descriptor plan_;
  std::int64_t workspace_bytes_ = 0;
};

/// Addresses of a run, finalized.
Descriptor variant_pack(std::span<const std::int64_t> ids, std::span<void* const> addresses, void* workspace);

class GraphBuilder {
 public:
  /// A tensor in memory, 16-byte aligned.
  GraphTensor tensor(cudnnDataType_t type, const Extents& shape, const Extents& strides);
  /// A float that lies in the host's memory during a run.
  GraphTensor scalar();

  /// C[b, h, m, n] = A[b, h, m, k] · B[b, h', k, n]; heads of A share those of B.
  GraphTensor matmul(const GraphTensor& a, const GraphTensor& b);
  void matmul(const GraphTensor& a, const GraphTensor& b, const GraphTensor& c);
  /// Element by element, over dims of 1 repeated; of b and the third operand only if the mode has them.
  GraphTensor pointwise(cudnnPointwiseMode_t mode, const GraphTensor& a, const GraphTensor* b = nullptr,
                        const GraphTensor* c = nullptr);
  void pointwise_to(cudnnPointwiseMode_t mode, const GraphTensor& a, const GraphTensor* b, const GraphTensor& y);
  /// The index of each element along `axis`, as i32.
  GraphTensor index(const GraphTensor& like, std::int64_t axis);
  /// a ≥ b, as booleans.
  GraphTensor at_least(const GraphTensor& a, const GraphTensor& b);
  /// Over the last dim, to 1.
  GraphTensor reduce_last(cudnnReduceTensorOp_t operation, const GraphTensor& x);
  void reduce_to(cudnnReduceTensorOp_t operation, const GraphTensor& x, const GraphTensor& y);
  /// A value between operations that is rounded to `type`.
  GraphTensor virtual_tensor(cudnnDataType_t type, const Extents& shape, const Extents& strides);

  /// The first plan of those that heuristics give, best first, that sums in a fixed order and needs at most so many
  /// bytes. GraphError says why none was.
  GraphPlan plan(const Descriptor& device, std::int64_t workspace_limit) const;

 private:
  GraphTensor add(cudnnDataType_t type, const Extents& shape, const Extents& strides, bool is_virtual, bool by_value);
  GraphTensor like(const GraphTensor& x, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  const Descriptor& descriptor(const GraphTensor& tensor) const {
    return tensors_[static_cast<std::size_t>(tensor.id - 1)];
  }
  void pointwise_operation(cudnnPointwiseMode_t mode, cudnnDataType_t compute, const GraphTensor& a,
                           const GraphTensor* b, const GraphTensor* c, const GraphTensor& y, std::int64_t axis);

  std::vector<Descriptor> tensors_, parts_, operations_;
};

}  // namespace trainer::kernels::cuda
