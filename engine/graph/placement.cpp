// Names of axes and placements.
#include "engine/graph/placement.h"

namespace trainer {

std::string_view name_of(Axis axis) {
  switch (axis) {
    case Axis::pipeline:
      return "pipeline";
    case Axis::replicate:
      return "replicate";
    case Axis::shard:
      return "shard";
    case Axis::tensor:
      return "tensor";
  }
  return "?";
}

std::string Placement::str() const {
  if (is_replicate()) return "Replicate";
  if (is_partial()) return "Partial";
  const std::string pieces = parts > 1 ? ", parts " + std::to_string(parts) : "";
  return "Shard(" + std::to_string(dim) + pieces + ")";
}

}  // namespace trainer
