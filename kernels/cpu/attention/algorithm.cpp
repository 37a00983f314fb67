// Which loops attention runs on, and the scratch memory that they carve (*_loops.cpp).
#include "kernels/cpu/attention/algorithm.h"

#include "kernels/cpu/runtime/choose.h"

namespace trainer::kernels::cpu {

#define DECLARE(isa, loops)                                                                                          \
  namespace isa {                                                                                                    \
  void loops(const AttentionSizes&, const AttentionOperands&, std::int64_t begin, std::int64_t end, float* scratch); \
  }
DECLARE(portable, attention_forward)
DECLARE(portable, attention_backward)
DECLARE(avx2, attention_forward)
DECLARE(avx2, attention_backward)
DECLARE(avx512, attention_forward)
DECLARE(avx512, attention_backward)
DECLARE(amx, attention_tiles_forward)
DECLARE(amx, attention_tiles_backward)
DECLARE(emulated_amx, attention_tiles_forward)
DECLARE(emulated_amx, attention_tiles_backward)
DECLARE(emulated_amx_avx512, attention_tiles_forward)
DECLARE(emulated_amx_avx512, attention_tiles_backward)
#undef DECLARE

namespace {

constexpr std::int64_t kSquare = kAttentionBlock * kAttentionBlock;

std::int64_t forward_scratch(const AttentionSizes& s) {
  return 2 * s.padded_keys() * s.padded_dim()    // k, v
         + 2 * kAttentionBlock * s.padded_dim()  // q transposed, o
         + kSquare                               // p
         + 3 * kAttentionBlock;                  // largest score, sum, correction
}
std::int64_t backward_scratch(const AttentionSizes& s) {
  return 4 * s.padded_keys() * s.padded_dim()    // k, v, dk, dv
         + 5 * kAttentionBlock * s.padded_dim()  // q, do, both transposed, dq
         + 2 * kSquare                           // p, ds
         + 2 * kAttentionBlock;                  // lse, delta
}
std::int64_t tiles_forward_scratch(const AttentionSizes& s) {
  return s.padded_keys() * s.tile_dim()        // k, v in bf16
         + 2 * kAttentionBlock * s.tile_dim()  // rows on their way and q in bf16, o
         + 2 * kSquare + kSquare / 2           // scores of two blocks, p in bf16
         + 2 * kAttentionBlock;                // largest score, sum
}
std::int64_t tiles_backward_scratch(const AttentionSizes& s) {
  return 3 * s.padded_keys() * s.tile_dim() / 2  // k in two forms and v, in bf16
         + 2 * s.padded_keys() * s.tile_dim()    // dk, dv
         + 3 * kAttentionBlock * s.tile_dim()    // q and do in two forms each, in bf16; dq
         + 3 * kSquare + kSquare / 2             // scores, dp; p, ds in two forms, in bf16
         + 2 * kAttentionBlock;                  // lse, delta
}

}  // namespace

AttentionAlgorithm attention_algorithm(Isa isa, bool bf16) {
#if defined(__x86_64__)
  if (isa == Isa::amx && bf16)
    return {amx::attention_tiles_forward, amx::attention_tiles_backward, tiles_forward_scratch, tiles_backward_scratch};
#endif
  static_cast<void>(bf16);
  return {CHOOSE_BY_ISA(isa, attention_forward), CHOOSE_BY_ISA(isa, attention_backward), forward_scratch,
          backward_scratch};
}

AttentionAlgorithm emulated_attention_algorithm(Isa vectors) {
#if defined(__x86_64__)
  if (vectors >= Isa::avx512_bf16)
    return {emulated_amx_avx512::attention_tiles_forward, emulated_amx_avx512::attention_tiles_backward,
            tiles_forward_scratch, tiles_backward_scratch};
#endif
  static_cast<void>(vectors);
  return {emulated_amx::attention_tiles_forward, emulated_amx::attention_tiles_backward, tiles_forward_scratch,
          tiles_backward_scratch};
}

}  // namespace trainer::kernels::cpu
