// Choosing among the copies of a loops file, which differ in their namespace alone (kernels/CMakeLists.txt).
#pragma once

#include "kernels/cpu/runtime/isa.h"

/// The object `symbol`, declared in each of the instruction sets' namespaces, that suits `isa`.
#if defined(__x86_64__)
#define CHOOSE_BY_ISA(isa, symbol)                                \
  ((isa) >= ::trainer::kernels::cpu::Isa::avx512 ? avx512::symbol \
   : (isa) >= ::trainer::kernels::cpu::Isa::avx2 ? avx2::symbol   \
                                                 : portable::symbol)
/// The same for the loops files that are also compiled with the instructions that round to bf16.
#define CHOOSE_BY_ISA_OR_BF16(isa, symbol) \
  ((isa) >= ::trainer::kernels::cpu::Isa::avx512_bf16 ? avx512_bf16::symbol : CHOOSE_BY_ISA(isa, symbol))
#else
#define CHOOSE_BY_ISA(isa, symbol) (static_cast<void>(isa), portable::symbol)
#define CHOOSE_BY_ISA_OR_BF16(isa, symbol) CHOOSE_BY_ISA(isa, symbol)
#endif
