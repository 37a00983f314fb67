// The forms of router_losses that balance experts by a bias (kernels/experts.h).
#pragma once

#include "kernels/cpu/families.h"

namespace trainer::kernels::cpu {

/// With `counts`.
Prepared count_choices(const Signature& signature);
/// With `balance`.
Prepared move_bias(const Signature& signature);

}  // namespace trainer::kernels::cpu
