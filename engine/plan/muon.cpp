#include "engine/plan/muon.h"

#include <algorithm>

#include "engine/core/check.h"

namespace trainer {

Axes muon_axes(const Unit& unit, const Mesh& mesh) {
  const auto is_cut = [](const UnitTensor& tensor) { return tensor.spec.is_cut(Axis::tensor); };
  Axes axes = unit.sharded() ? kSliceAxes : Axes{};
  if (std::any_of(unit.tensors.begin(), unit.tensors.end(), is_cut)) axes = axes | Axis::tensor;
  return mesh.active(axes);
}

std::vector<MuonMatrix> matrices_of(const Unit& unit, const Mesh& mesh) {
  std::vector<MuonMatrix> matrices;
  for (const UnitTensor& tensor : unit.tensors) {
    const Shape shape = local_shape(tensor.spec, mesh);
    CHECK(shape.rank() == 2, "Muon updates matrices, and " + tensor.name + " is none");
    const Placement cut = tensor.spec.on(Axis::tensor);
    matrices.push_back({.offset = tensor.offset, .rows = shape[0], .cols = shape[1]});
    if (cut.is_shard()) matrices.back().cut = cut.is_shard(0) ? MuonMatrix::Cut::rows : MuonMatrix::Cut::columns;
  }
  return matrices;
}

void share_out(std::vector<MuonMatrix>& matrices, std::int64_t parts, std::int64_t steps, std::vector<double>& flops) {
  const auto work = [&](const MuonMatrix& matrix) { return newton_schulz_flops(matrix.whole_rows(parts), matrix.whole_cols(parts), steps); };
  std::vector<MuonMatrix*> largest_first;
  for (MuonMatrix& matrix : matrices) largest_first.push_back(&matrix);
  std::stable_sort(largest_first.begin(), largest_first.end(), [&](const MuonMatrix* a, const MuonMatrix* b) { return work(*a) > work(*b); });
  for (MuonMatrix* matrix : largest_first) {
    const auto least = std::min_element(flops.begin(), flops.end());
    matrix->owner = least - flops.begin();
    *least += work(*matrix);
  }
}

}  // namespace trainer
