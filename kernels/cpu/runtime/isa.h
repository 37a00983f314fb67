// Isa: the instruction sets that CPU kernels are built for, from least to most able; each includes the ones
// before it. Found once from the processor; TRAINER_ISA (engine/core/environment.h) lowers it.
#pragma once

#include <optional>
#include <string_view>

namespace trainer::kernels::cpu {

enum class Isa { portable, avx2, avx512, avx512_bf16, amx };

std::string_view name_of(Isa isa);
std::optional<Isa> isa_named(std::string_view name);

/// The best this processor and system offer, or what TRAINER_ISA lowers it to. For amx it also asks Linux for the
/// permission to use the tiles. Throws UsageError where TRAINER_ISA is no instruction set or one the machine lacks.
Isa detect_isa();

}  // namespace trainer::kernels::cpu
