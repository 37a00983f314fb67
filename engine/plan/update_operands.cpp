// How operands follow from slots, and how matrices are shared out: the largest first, each to the rank with least work.
#include "engine/plan/update_operands.h"

#include <algorithm>
#include <functional>

#include "engine/core/check.h"
#include "engine/ops/op_def.h"

namespace trainer {

Region part_of(const Region& region, const ElementRange& elements, std::int64_t width) {
  Region part = region;
  part.offset += elements.first * width;
  part.bytes = elements.size() * width;
  return part;
}

std::vector<std::pair<TensorDesc, Region>> state_operands(const Unit& unit, std::string_view name,
                                                          std::optional<ElementRange> elements) {
  const ElementRange of = elements.value_or(ElementRange{0, unit.slice()});
  std::vector<std::pair<TensorDesc, Region>> operands;
  for (const Slot& slot : unit.slots) {
    if (slot.kind != Slot::Kind::state || (!name.empty() && slot.name != name)) continue;
    const std::int64_t width = size_of(slot.spec.dtype()), block = slot.spec.format.block;
    operands.push_back({{slot.spec.dtype(), Shape{of.size()}}, part_of(slot.region, of, width)});
    if (block == 0) continue;
    Region scales = slot.region;
    scales.offset += aligned(unit.slice() * width);
    const ElementRange blocks{of.first / block, (of.last + block - 1) / block};
    operands.push_back({{DType::f32, Shape{blocks.size()}}, part_of(scales, blocks, size_of(DType::f32))});
  }
  return operands;
}

Axes matrix_axes(const Unit& unit, const Mesh& mesh) {
  const auto is_cut = [](const UnitTensor& tensor) { return tensor.spec.is_cut(Axis::tensor); };
  Axes axes = unit.sharded() ? unit.slice_axes() : Axes{};
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
