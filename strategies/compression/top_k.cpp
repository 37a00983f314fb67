// The k largest elements of a unit's gradient on the context, with error feedback. Sources: Lin et al., "Deep Gradient
// Compression", ICLR 2018, section 3 (without momentum correction, which belongs to the optimizer); Stich et al.,
// "Sparsified SGD with Memory", NeurIPS 2018. Sent per rank: (n − 1) · k · 8 bytes (indices and values). Memory: one
// f32 residual. Beside a tensor axis a unit is either cut by it or whole on all of its ranks, so that these choose the
// same of what they have alike (AssembleOptions::cut_apart).
#include <algorithm>
#include <cmath>

#include "engine/core/compression.h"
#include "strategies/strategies.h"

namespace trainer::strategies {
namespace {

class TopK final : public GradientCompression {
 public:
  explicit TopK(double fraction) : fraction_(fraction) {}

  void reduce(const Unit& unit, ReductionContext& context) const override {
    const std::int64_t k = std::max<std::int64_t>(1, std::llround(fraction_ * static_cast<double>(unit.elements))),
                       ranks = context.ranks();
    const TensorDesc gradient{context.reduce(), Shape{unit.elements}}, residual{DType::f32, Shape{unit.elements}};
    const TensorDesc one{DType::u8, Shape{top_k_bytes(k)}}, all{DType::u8, Shape{ranks * top_k_bytes(k)}};
    const Region mine = context.packet(one.bytes()), gathered = context.packet(all.bytes());
    context.run(Op::top_k_compress, {{"k", k}},
                {{gradient, Read{context.gradient()}}, {residual, Update{context.residual()}}, {one, Write{mine}}});
    context.collective(CollectiveKind::all_gather, DType::u8, mine, gathered);
    context.later([=, &context] {
      context.run(Op::top_k_sum, {{"k", k}, {"ranks", ranks}},
                  {{all, Read{gathered}}, {gradient, Write{context.gradient()}}});
    });
  }

 private:
  const double fraction_;
};

}  // namespace

std::unique_ptr<GradientCompression> make_top_k(const Compression& job) { return std::make_unique<TopK>(job.fraction); }

}  // namespace trainer::strategies
