// Local shapes and origins, by applying the cuts one after the other.
#include "engine/core/spec.h"

#include <fmt/format.h>

#include "engine/core/check.h"

namespace trainer {

std::string Placement::str() const {
  if (is_replicate()) return "Replicate";
  if (is_partial()) return "Partial";
  std::string pieces = parts > 1 ? ", parts " + std::to_string(parts) : "";
  if (is_zigzag()) pieces += ", zigzag";
  if (turn != 0) pieces += ", turned " + std::to_string(turn);
  if (terms != Terms{}) pieces += fmt::format(", steps [{}, {})", terms.first, terms.last);
  return "Shard(" + (dim == kRows ? "rows" : std::to_string(dim)) + pieces + ")";
}

Placement Spec::on(Axis axis) const {
  if (partial.has(axis)) return Placement::partial();
  for (const Cut& cut : cuts())
    if (cut.axis == axis) return cut.as;
  return {};
}

void Spec::place(Axis axis, const Placement& placement) {
  partial = partial - Axes::of(axis);
  std::uint8_t kept = 0;
  for (std::uint8_t i = 0; i < count_; ++i)
    if (cuts_[i].axis != axis) cuts_[kept++] = cuts_[i];
  for (std::uint8_t i = kept; i < count_; ++i) cuts_[i] = {};
  count_ = kept;
  if (placement.is_partial()) partial = partial | axis;
  if (placement.is_shard()) cuts_[count_++] = {axis, placement};
}

Shape local_shape(const Spec& spec, const Mesh& mesh) {
  Shape shape = spec.whole;
  for (const Cut& cut : spec.cuts()) {
    const std::int64_t n = mesh.size(cut.axis);
    if (n == 1) continue;
    if (cut.as.dim == Placement::kRows) {
      const std::int64_t last = shape[-1], rows = shape.elements() / last;
      CHECK(rows % n == 0, "rows are cut evenly");
      shape = Shape{rows / n, last};
    } else {
      std::int64_t& size = shape[cut.as.dim];
      size = (size + n - 1) / n;
    }
  }
  return shape;
}

Affine origin(const Spec& spec, int dim, const Mesh& mesh) {
  Affine first;
  std::int64_t size = spec.whole[dim];
  for (const Cut& cut : spec.cuts()) {
    if (!cut.as.is_shard(dim)) continue;
    CHECK(cut.as.parts == 1, "pieces of a concatenation have no one origin");
    const std::int64_t n = mesh.size(cut.axis);
    size = (size + n - 1) / n;
    if (n > 1) first.along(cut.axis) = cut.as.is_zigzag() ? size / 2 : size;
  }
  return first;
}

}  // namespace trainer
