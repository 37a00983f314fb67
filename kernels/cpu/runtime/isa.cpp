// What the processor and the operating system offer. CPUID says what the processor can do, XGETBV which registers
// the system saves on a task switch: both must hold. Source: Intel SDM volume 1, chapters 13, 14.3, 15.2 and 18.3;
// Linux, Documentation/arch/x86/xstate.rst, for the permission that tiles need.
#include "kernels/cpu/runtime/isa.h"

#include <string>

#include "engine/core/environment.h"
#include "engine/core/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace trainer::kernels::cpu {
namespace {

#if defined(__x86_64__)

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);  // leaves all 0 for a leaf that is not there
  return r;
}

std::uint64_t saved_states() {
  std::uint32_t low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

constexpr bool has_all(std::uint64_t word, std::uint64_t bits) { return (word & bits) == bits; }
constexpr std::uint64_t bit(int index) { return std::uint64_t{1} << index; }

bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Isa best_isa() {
  const Registers one = cpuid(1, 0), seven = cpuid(7, 0), seven_one = cpuid(7, 1);
  const bool osxsave = has_all(one.ecx, bit(27));
  const std::uint64_t states = osxsave ? saved_states() : 0;
  const bool avx2 = has_all(states, 0x6) && has_all(one.ecx, bit(12) | bit(28) | bit(29)) &&
                    has_all(seven.ebx, bit(5));  // fma, avx, f16c
  if (!avx2) return Isa::portable;
  const bool avx512 =
      has_all(states, 0xE6) && has_all(seven.ebx, bit(16) | bit(17) | bit(30) | bit(31));  // f, dq, bw, vl
  if (!avx512) return Isa::avx2;
  if (!has_all(seven_one.eax, bit(5))) return Isa::avx512;
  const bool amx = has_all(states, bit(17) | bit(18)) && has_all(seven.edx, bit(22) | bit(24));  // amx_bf16, amx_tile
  return amx && may_use_tiles() ? Isa::amx : Isa::avx512_bf16;
}

#else

Isa best_isa() { return Isa::portable; }

#endif

}  // namespace

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return "portable";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512_bf16:
      return "avx512_bf16";
    case Isa::amx:
      return "amx";
  }
  return "?";
}

std::optional<Isa> isa_named(std::string_view name) {
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx})
    if (name == name_of(isa)) return isa;
  return std::nullopt;
}

Isa detect_isa() {
  const Isa best = best_isa();
  const auto wish = environment::value_of(environment::kIsa);
  if (!wish) return best;
  const auto isa = isa_named(*wish);
  const std::string where = std::string(environment::kIsa.name) + "=" + *wish + ": ";
  if (!isa) throw UsageError(where + "unknown instruction set; allowed: portable, avx2, avx512, avx512_bf16, amx");
  if (*isa > best) throw UsageError(where + "this machine offers " + std::string(name_of(best)) + " at most");
  return *isa;
}

}  // namespace trainer::kernels::cpu
