// Gradients in bf16 on the wire, with error feedback. Source: Seide et al., "1-Bit Stochastic Gradient Descent and its Application to
// Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014, section 3.3 (the feedback; here of 16 bits).
// Sent per rank: 2 (n − 1)/n · 2 bytes an element, half of it where each rank needs but its slice. Memory: one f32 residual. The sum itself is rounded to bf16 and that error is not fed back.
#include "strategies/strategies.h"

namespace trainer::strategies {
namespace {

class Bf16 final : public GradientCompression {
 public:
  std::string name() const override { return "bf16"; }
  void reduce(const Unit& unit, Wire& wire) const override {
    const TensorDesc gradient{wire.reduce(), Shape{unit.elements}}, residual{DType::f32, Shape{unit.elements}}, sent{DType::bf16, Shape{unit.elements}};
    const Region packet = wire.packet(sent.bytes());
    wire.run(Op::compress_bf16, {}, {{gradient, Read{wire.gradient()}}, {residual, Update{wire.residual()}}, {sent, Write{packet}}});
    if (wire.sliced()) return reduce_slice(unit, packet, wire);
    wire.collective(CollectiveKind::all_reduce, DType::bf16, packet, packet);
    wire.later([=, &wire] { wire.run(Op::cast, {}, {{sent, Read{packet}}, {gradient, Write{wire.gradient()}}}); });
  }

 private:
  static void reduce_slice(const Unit& unit, const Region& packet, Wire& wire) {
    const Region sum = wire.own_slice(packet);
    wire.collective(CollectiveKind::reduce_scatter, DType::bf16, packet, sum);
    wire.later([=, &wire, elements = unit.elements / wire.ranks()] {
      wire.run(Op::cast, {}, {{{DType::bf16, Shape{elements}}, Read{sum}}, {{wire.reduce(), Shape{elements}}, Write{wire.own_slice(wire.gradient())}}});
    });
  }
};

}  // namespace

std::unique_ptr<GradientCompression> make_bf16() { return std::make_unique<Bf16>(); }

}  // namespace trainer::strategies
