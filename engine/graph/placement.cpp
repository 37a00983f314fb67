// Placements as text.
#include "engine/graph/placement.h"

namespace trainer {

std::string Placement::str() const {
  if (is_replicate()) return "Replicate";
  if (is_partial()) return "Partial";
  const std::string pieces = parts > 1 ? ", parts " + std::to_string(parts) : "";
  return "Shard(" + std::to_string(dim) + pieces + ")";
}

}  // namespace trainer
