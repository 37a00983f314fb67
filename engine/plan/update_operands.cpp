// How operands follow from slots, and how matrices are shared out: the largest first, each to the rank with least work.
#include "engine/plan/update_operands.h"

#include <algorithm>
#include <functional>

#include "engine/core/check.h"
#include "engine/ops/op_def.h"

namespace trainer {

std::vector<std::pair<TensorDesc, Region>> state_operands(const Unit& unit, std::string_view name) {
  std::vector<std::pair<TensorDesc, Region>> operands;
  for (const Slot& slot : unit.slots) {
    if (slot.kind != Slot::Kind::state || (!name.empty() && slot.name != name)) continue;
    const auto [buffer, offset] = std::pair(slot.region.buffer, slot.region.offset);
    const TensorDesc values{slot.spec.dtype(), Shape{unit.slice()}};
    operands.push_back({values, {buffer, offset, values.bytes()}});
    if (slot.spec.format.block == 0) continue;
    const TensorDesc scales{DType::f32, Shape{(unit.slice() + slot.spec.format.block - 1) / slot.spec.format.block}};
    operands.push_back({scales, {buffer, offset + aligned(values.bytes()), scales.bytes()}});
  }
  return operands;
}

Axes matrix_axes(const Unit& unit, const Mesh& mesh) {
  const auto is_cut = [](const UnitTensor& tensor) { return tensor.spec.is_cut(Axis::tensor); };
  Axes axes = unit.sharded() ? kSliceAxes : Axes{};
  if (std::any_of(unit.tensors.begin(), unit.tensors.end(), is_cut)) axes = axes | Axis::tensor;
  return mesh.active(axes);
}

std::vector<OwnedMatrix> matrices_of(const Unit& unit, const Mesh& mesh) {
  std::vector<OwnedMatrix> matrices;
  for (const UnitTensor& tensor : unit.tensors) {
    const Shape shape = local_shape(tensor.spec, mesh);
    CHECK(shape.rank() == 2, "an op of whole matrices works on " + tensor.name + ", which is none");
    const Placement cut = tensor.spec.on(Axis::tensor);
    matrices.push_back({.offset = tensor.offset, .rows = shape[0], .cols = shape[1]});
    if (cut.is_shard()) matrices.back().cut = cut.is_shard(0) ? OwnedMatrix::Cut::rows : OwnedMatrix::Cut::columns;
  }
  return matrices;
}

void share_out(const Unit& unit, const Mesh& mesh, Signature& op, std::vector<double>& work) {
  work.resize(static_cast<std::size_t>(mesh.group_size(matrix_axes(unit, mesh))));
  std::vector<OwnedMatrix> matrices = matrices_of(unit, mesh);
  std::vector<std::pair<double, OwnedMatrix*>> largest_first;
  for (OwnedMatrix& matrix : matrices) {
    op.attributes.set("matrices", matrix_list_text({&matrix, 1}));
    largest_first.emplace_back(cost_of(op).flops, &matrix);
  }
  std::ranges::stable_sort(largest_first, std::greater{}, &std::pair<double, OwnedMatrix*>::first);
  for (const auto& [flops, matrix] : largest_first) {
    const auto least = std::ranges::min_element(work);
    matrix->owner = least - work.begin();
    *least += flops;
  }
  op.attributes.set("matrices", matrix_list_text(matrices));
}

}  // namespace trainer
