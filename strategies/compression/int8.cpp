// Gradients in 8 bits on the wire, by blocks with a scale of their own, with error feedback.
// Sources: Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016 (blocks); Tang et al., "1-bit Adam", ICML 2021, section
// 4.1 (two compressed stages, each with its feedback): every rank sends slice i of its gradient to rank i, which sums the slices and sends the
// sum, compressed again, to all.
// Sent per rank: 2 (n − 1)/n · 1.02 bytes an element, half of it where each rank needs but its slice. Memory: one f32 residual; what the second stage leaves out is added to this rank's
// residual of its own slice, whose first-stage rest is sent with the sum at once.
#include "engine/core/compression.h"
#include "strategies/strategies.h"

namespace trainer::strategies {
namespace {

class Int8 final : public GradientCompression {
 public:
  std::string name() const override { return "int8"; }

  void reduce(const Unit& unit, Wire& wire) const override {
    const std::int64_t ranks = wire.ranks(), elements = unit.elements, slice = elements / ranks;
    const TensorDesc gradient{wire.reduce(), Shape{elements}}, residual{DType::f32, Shape{elements}};
    const TensorDesc all{DType::u8, Shape{ranks * int8_bytes(slice)}}, one{DType::u8, Shape{int8_bytes(slice)}}, sum{wire.reduce(), Shape{slice}};
    const Attributes slices{{"slices", ranks}};
    const Region mine = wire.packet(all.bytes()), theirs = wire.packet(all.bytes());
    wire.run(Op::quantize_int8, slices, {{gradient, Read{wire.gradient()}}, {residual, Update{wire.residual()}}, {all, Write{mine}}});
    wire.collective(CollectiveKind::all_to_all, DType::u8, mine, theirs);
    wire.later([=, &wire] {
      if (wire.sliced()) return wire.run(Op::dequantize_sum_int8, slices, {{all, Read{theirs}}, {sum, Write{wire.own_slice(wire.gradient())}}});
      const Region summed = wire.packet(sum.bytes()), packet = wire.packet(one.bytes()), gathered = wire.packet(all.bytes());
      const TensorDesc rest{DType::f32, Shape{slice}};
      const Region own = wire.own_slice(wire.residual());
      wire.run(Op::dequantize_sum_int8, slices, {{all, Read{theirs}}, {sum, Write{summed}}});
      wire.run(Op::quantize_int8, {{"slices", std::int64_t{1}}}, {{sum, Read{summed}}, {rest, Update{own}}, {one, Write{packet}}});
      wire.collective(CollectiveKind::all_gather, DType::u8, packet, gathered);
      wire.later([=, &wire] { wire.run(Op::dequantize_int8, slices, {{all, Read{gathered}}, {gradient, Write{wire.gradient()}}}); });
    });
  }
};

}  // namespace

std::unique_ptr<GradientCompression> make_int8() { return std::make_unique<Int8>(); }

}  // namespace trainer::strategies
