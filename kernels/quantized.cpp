// The same checks for every device.
#include "engine/core/quantized.h"
#include "engine/core/check.h"
#include "engine/core/op_record.h"
#include "kernels/prepare.h"
#include "kernels/quantized_sizes.h"

namespace trainer::kernels {

QuantizedSizes quantized_sizes(const Signature& s) {
  using Kind = QuantizedPart::Kind;
  const bool forward = s.op == Op::quantized_linear;
  const TensorDesc &from = s.operands.front(), &to = s.operands.back();
  CHECK(from.dtype == to.dtype && from.shape.rows() == to.shape.rows(), describe(s) + ": rows of one dtype");
  QuantizedSizes z{.nf4 = flag(s, "nf4"), .compute = from.dtype, .rows = from.shape.rows()};
  z.in = forward ? from.shape[-1] : to.shape[-1];
  z.out = forward ? to.shape[-1] : from.shape[-1];
  z.blocks = quantized_blocks(z.in);
  const Quantization as = z.nf4 ? Quantization::nf4 : Quantization::int8;
  int at = 1;
  for (const Kind kind : {Kind::codes, Kind::scales, Kind::groups})
    if (z.nf4 || kind != Kind::groups) expect_operand(s, at++, DType::u8, shape_of(kind, as, z.out, z.in).elements());
  if (forward && flag(s, "bias")) expect_operand(s, at, z.compute, z.out);
  return z;
}

}  // namespace trainer::kernels
