// cuDNN's backend descriptors, set attribute by attribute.
#include "kernels/cuda/attention/cudnn_graph.h"

#include <algorithm>

namespace trainer::kernels::cuda {
namespace {

void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char reason[1024] = "";
  cudnnGetLastErrorString(reason, sizeof reason);
  throw GraphError(std::string(what) + ": " + cudnnGetErrorString(status) +
                   (reason[0] != '\0' ? std::string(" (") + reason + ")" : ""));
}

Extents dense(const Extents& shape) { return {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1}; }

Extents broadcast(const Extents& a, const Extents& b) {
  Extents result{};
  for (std::size_t i = 0; i < 4; ++i) result[i] = std::max(a[i], b[i]);
  return result;
}

bool has_note(cudnnBackendDescriptor_t config, cudnnBackendNumericalNote_t wanted) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
        "the engine of a configuration");
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  check(cudnnBackendGetAttribute(raw, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                 CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes.data()),
        "an engine's numerical notes");
  const auto end = notes.begin() + std::min<std::int64_t>(count, CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  return std::find(notes.begin(), end, wanted) != end;
}

/// Configurations that the library proposes, best first.
std::vector<Descriptor> proposals(const Descriptor& graph, const Descriptor& device) {
  Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  heuristic.finalize();
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0,
                                 &count, nullptr),
        "the number of proposals");
  std::vector<Descriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < count; ++i)
    raw.push_back(configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  std::int64_t got = 0;
  check(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
                                 &got, raw.data()),
        "proposals");
  while (static_cast<std::int64_t>(configs.size()) > got) configs.pop_back();
  return configs;
}

}  // namespace

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  check(cudnnBackendCreateDescriptor(type, &descriptor_), "cudnnBackendCreateDescriptor");
}
Descriptor::~Descriptor() {
  if (descriptor_ != nullptr) cudnnBackendDestroyDescriptor(descriptor_);
}
void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
                     const void* values) {
  check(cudnnBackendSetAttribute(descriptor_, name, type, count, values),
        ("cudnnBackendSetAttribute of " + std::to_string(name)).c_str());
}
void Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& value) {
  const cudnnBackendDescriptor_t raw = value.get();
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
}
void Descriptor::finalize() { check(cudnnBackendFinalize(descriptor_), "cudnnBackendFinalize"); }

Descriptor device_of(cudnnHandle_t handle) {
  Descriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  device.finalize();
  return device;
}

Descriptor device_of(const std::string& json) {
  Descriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<std::int64_t>(json.size()),
             json.data());
  device.finalize();
  return device;
}

GraphPlan::GraphPlan(Descriptor plan) : plan_(std::move(plan)) {
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                 &workspace_bytes_),
        "a plan's workspace");
}

Descriptor variant_pack(std::span<const std::int64_t> ids, std::span<void* const> addresses, void* workspace) {
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, static_cast<std::int64_t>(ids.size()), ids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, static_cast<std::int64_t>(addresses.size()),
           addresses.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finalize();
  return pack;
}

GraphTensor GraphBuilder::add(cudnnDataType_t type, const Extents& shape, const Extents& strides, bool is_virtual,
                              bool by_value) {
  const GraphTensor tensor{static_cast<std::int64_t>(tensors_.size()) + 1, shape, strides, type};
  Descriptor& d = tensors_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape.data());
  d.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, tensor.id);
  d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::int64_t{16});
  if (is_virtual) d.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
  if (by_value) d.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true);
  d.finalize();
  return tensor;
}

GraphTensor GraphBuilder::tensor(cudnnDataType_t type, const Extents& shape, const Extents& strides) {
  return add(type, shape, strides, false, false);
}
GraphTensor GraphBuilder::virtual_tensor(cudnnDataType_t type, const Extents& shape, const Extents& strides) {
  return add(type, shape, strides, true, false);
}
GraphTensor GraphBuilder::scalar() { return add(CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true); }
GraphTensor GraphBuilder::like(const GraphTensor& x, cudnnDataType_t type) {
  return add(type, x.shape, x.strides, true, false);
}

GraphTensor GraphBuilder::matmul(const GraphTensor& a, const GraphTensor& b) {
  const Extents shape{a.shape[0], a.shape[1], a.shape[2], b.shape[3]};
  const GraphTensor c = add(CUDNN_DATA_FLOAT, shape, dense(shape), true, false);
  matmul(a, b, c);
  return c;
}

void GraphBuilder::matmul(const GraphTensor& a, const GraphTensor& b, const GraphTensor& c) {
  Descriptor& product = parts_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  product.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  product.finalize();
  Descriptor& operation = operations_.emplace_back(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, descriptor(a));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, descriptor(b));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, descriptor(c));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, product);
  operation.finalize();
}

void GraphBuilder::pointwise_operation(cudnnPointwiseMode_t mode, cudnnDataType_t compute, const GraphTensor& a,
                                       const GraphTensor* b, const GraphTensor* c, const GraphTensor& y,
                                       std::int64_t axis) {
  Descriptor& what = parts_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  what.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  what.set(CUDNN_ATTR_POINTWISE_MATH_PREC, compute);
  if (mode == CUDNN_POINTWISE_GEN_INDEX) what.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
  what.finalize();
  Descriptor& operation = operations_.emplace_back(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, descriptor(a));
  if (b != nullptr) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, descriptor(*b));
  if (c != nullptr) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, descriptor(*c));
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, descriptor(y));
  operation.finalize();
}

GraphTensor GraphBuilder::pointwise(cudnnPointwiseMode_t mode, const GraphTensor& a, const GraphTensor* b,
                                    const GraphTensor* c) {
  const Extents shape = b != nullptr ? broadcast(a.shape, b->shape) : a.shape;
  const GraphTensor y = add(CUDNN_DATA_FLOAT, shape, shape == a.shape ? a.strides : dense(shape), true, false);
  pointwise_operation(mode, CUDNN_DATA_FLOAT, a, b, c, y, 0);
  return y;
}

void GraphBuilder::pointwise_to(cudnnPointwiseMode_t mode, const GraphTensor& a, const GraphTensor* b,
                                const GraphTensor& y) {
  pointwise_operation(mode, CUDNN_DATA_FLOAT, a, b, nullptr, y, 0);
}

GraphTensor GraphBuilder::index(const GraphTensor& like_x, std::int64_t axis) {
  const GraphTensor y = like(like_x, CUDNN_DATA_INT32);
  pointwise_operation(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, like_x, nullptr, nullptr, y, axis);
  return y;
}

GraphTensor GraphBuilder::at_least(const GraphTensor& a, const GraphTensor& b) {
  const GraphTensor y = like(a, CUDNN_DATA_BOOLEAN);
  pointwise_operation(CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, a, &b, nullptr, y, 0);
  return y;
}

GraphTensor GraphBuilder::reduce_last(cudnnReduceTensorOp_t operation, const GraphTensor& x) {
  const Extents shape{x.shape[0], x.shape[1], x.shape[2], 1};
  const GraphTensor y = add(CUDNN_DATA_FLOAT, shape, dense(shape), true, false);
  reduce_to(operation, x, y);
  return y;
}

void GraphBuilder::reduce_to(cudnnReduceTensorOp_t operator_, const GraphTensor& x, const GraphTensor& y) {
  Descriptor& what = parts_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  what.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  what.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operator_);
  what.finalize();
  Descriptor& operation = operations_.emplace_back(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, what);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, descriptor(x));
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, descriptor(y));
  operation.finalize();
}

GraphPlan GraphBuilder::plan(const Descriptor& device, std::int64_t workspace_limit) const {
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Descriptor& operation : operations_) raw.push_back(operation.get());
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<std::int64_t>(raw.size()),
            raw.data());
  graph.finalize();
  std::string why = "the library proposes nothing";
  for (const Descriptor& config : proposals(graph, device)) {
    if (has_note(config.get(), CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) {
      why = "what the library proposes sums in no fixed order";
      continue;
    }
    try {
      Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
      plan.finalize();
      GraphPlan made(std::move(plan));
      if (made.workspace_bytes() <= workspace_limit) return made;
      why = "a plan needs " + std::to_string(made.workspace_bytes()) + " bytes of workspace of " +
            std::to_string(workspace_limit);
    } catch (const GraphError& error) {
      why = error.what();
    }
  }
  throw GraphError(why);
}

}  // namespace trainer::kernels::cuda
