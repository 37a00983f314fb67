// Rows sorted by the expert that each is for.
#pragma once

#include <cstdint>

#include "kernels/experts.h"

namespace trainer::kernels::cpu {

/// In a workspace: choices of expert e, as numbers of token and choice t · k + j, ascending, are `order` from begin[e]
/// on.
struct Groups {
  std::int32_t* begin;  ///< [experts + 1]
  std::int32_t* order;  ///< [choices]
  std::int32_t* place;  ///< [choices]: where in `order` a choice is, or -1

  static std::int64_t bytes(const ExpertSizes& sizes);
  Groups(const ExpertSizes& sizes, void* memory);
  void sort(const ExpertSizes& sizes, const std::int32_t* choices) const;
  std::int64_t count(std::int64_t expert) const { return begin[expert + 1] - begin[expert]; }
};

}  // namespace trainer::kernels::cpu
