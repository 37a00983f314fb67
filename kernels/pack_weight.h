// pack_weight: rearranges a weight once per update for the products that read it many times.
//
// pack_weight   weight c [out, in] row-major → the same in the layout of the second operand: `packed` for x·Wᵀ
// (linear),
//               `packed_transposed` for dy·W (linear_grad_input)
//
// What a packed weight looks like is each device's own affair, and Target::bytes gives its size; on the CPU it is bf16
// only and the same for all instruction sets (cpu/gemm/packed.h). Target::preferred_layout says where it pays.
#pragma once

namespace trainer::kernels {

struct PackWeightOperands {
  static constexpr int weight = 0, packed = 1;
};

}  // namespace trainer::kernels
