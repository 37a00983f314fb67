// pack_weight: rearranges a weight once per update for the products that read it many times.
//
// pack_weight   weight c [out, in] row-major → the same in the layout of the second operand:
//               `packed` for x·Wᵀ (linear),
//               `packed_transposed` for dy·W (linear_grad_input)
//
// Each device has its own packed layout, and Target::bytes gives its size. On the CPU it is for bf16
// only and the same for all instruction sets (cpu/gemm/packed.h). Target::preferred_layout says where it pays.
#pragma once

namespace trainer::kernels {

struct PackWeightOperands {
  static constexpr int weight = 0, packed = 1;
};

}  // namespace trainer::kernels
