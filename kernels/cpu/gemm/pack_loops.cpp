// Packs whole strips of a bf16 matrix (packed.h).
#include "kernels/cpu/gemm/pack_lines.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {

// Line by line of several strips where B lies by rows, so that what is read lies together.
void pack_strips(const gemm::Packing& p, std::int64_t strip, std::int64_t strip_end) {
  constexpr std::int64_t kTogether = 8;
  const std::int64_t lines = gemm::packed_steps(p.k) / 2, words = gemm::packed_strip_words(p.k);
  auto* const to = static_cast<std::uint32_t*>(p.to);
  const std::int64_t lines_at_once = p.order == gemm::Order::rows ? kLanes : lines;
  for (; strip < strip_end; strip += kTogether) {
    const std::int64_t end = gemm::least(strip + kTogether, strip_end);
    for (std::int64_t line = 0; line < lines; line += lines_at_once)
      for (std::int64_t s = strip; s < end; ++s)
        pack_lines(strip_view(p.from, p.ld, p.order, p.k, p.n, s), line, gemm::least(line + lines_at_once, lines),
                   to + s * words + line * gemm::kStrip);
  }
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
