// Packs whole strips of a bf16 matrix (packed.h).
#include "kernels/cpu/gemm/pack_lines.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {

void pack_strips(const gemm::Packing& p, std::int64_t strip, std::int64_t strip_end) {
  for (; strip < strip_end; ++strip)
    pack_lines(strip_view(p.from, p.ld, p.order, p.k, p.n, strip), 0, gemm::packed_steps(p.k) / 2,
               static_cast<std::uint32_t*>(p.to) + strip * gemm::packed_strip_words(p.k));
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
