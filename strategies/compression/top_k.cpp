// The k largest elements of a unit's gradient on the wire, with error feedback. Sources: Lin et al., "Deep Gradient Compression", ICLR 2018,
// section 3 (without momentum correction, which belongs to the optimizer); Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.
// Sent per rank: (n − 1) · k · 8 bytes (indices and values). Memory: one f32 residual.
#include <algorithm>
#include <cmath>

#include "engine/core/compression.h"
#include "strategies/strategies.h"

namespace trainer::strategies {
namespace {

class TopK final : public GradientCompression {
 public:
  explicit TopK(double fraction) : fraction_(fraction) {}
  std::string name() const override { return "top_k"; }

  void reduce(const Unit& unit, Wire& wire) const override {
    const std::int64_t k = std::max<std::int64_t>(1, std::llround(fraction_ * static_cast<double>(unit.elements))), ranks = wire.ranks();
    const TensorDesc gradient{wire.reduce(), Shape{unit.elements}}, residual{DType::f32, Shape{unit.elements}};
    const TensorDesc one{DType::u8, Shape{top_k_bytes(k)}}, all{DType::u8, Shape{ranks * top_k_bytes(k)}};
    const Region mine = wire.packet(one.bytes()), gathered = wire.packet(all.bytes());
    wire.run(Op::top_k_compress, {{"k", k}}, {{gradient, Read{wire.gradient()}}, {residual, Update{wire.residual()}}, {one, Write{mine}}});
    wire.collective(CollectiveKind::all_gather, DType::u8, mine, gathered);
    wire.later([=, &wire] { wire.run(Op::top_k_sum, {{"k", k}, {"ranks", ranks}}, {{all, Read{gathered}}, {gradient, Write{wire.gradient()}}}); });
  }

 private:
  const double fraction_;
};

}  // namespace

std::unique_ptr<GradientCompression> make_top_k(double fraction) { return std::make_unique<TopK>(fraction); }

}  // namespace trainer::strategies
