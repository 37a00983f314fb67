// The preparation functions that cpu/table.cpp chooses from, one for each op or family. The operands of each are in
// kernels/<family>.h. Only kernels/cpu/ includes this.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cpu/table.h"

namespace trainer::kernels::cpu {

using Prepared = std::unique_ptr<Kernel>;

// kernels/fill.h: zero, cast.
Prepared prepare_zero(const Signature& signature, const Context& context);

}  // namespace trainer::kernels::cpu
