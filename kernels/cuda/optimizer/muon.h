// How muon's workspace lies on a GPU, for the planner that sizes it (target.cpp) and the kernel (muon.cu). In bytes;
// every part begins at a multiple of kBufferAlignment.
#pragma once

#include "kernels/muon.h"

namespace trainer::kernels::cuda {

struct MuonWorkspace {
  static constexpr int kSums =
      256;  ///< partial sums of the norm, whatever the device: a matrix cut or whole has the same bits

  std::int64_t x;         ///< bf16: X as products take it
  std::int64_t y;         ///< f32: X
  std::int64_t gram;      ///< bf16: A, then the polynomial of A
  std::int64_t square;    ///< f32: A²
  std::int64_t sums;      ///< f64 [kSums], and behind them f32: 1 / max(‖G‖, eps)
  std::int64_t products;  ///< cuBLASLt's
  std::int64_t end;

  MuonWorkspace(const MuonMatrices& all, std::int64_t product_bytes) {
    const std::int64_t small = all.most_small * all.most_small;
    x = 0;
    y = x + aligned(2 * all.most_elements);
    gram = y + aligned(4 * all.most_elements);
    square = gram + aligned(2 * small);
    sums = square + aligned(4 * small);
    products = sums + aligned(8 * (kSums + 1));
    end = products + product_bytes;
  }
};

}  // namespace trainer::kernels::cuda
