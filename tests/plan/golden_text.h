// The text that golden plans are compared by: everything a plan executes and everything a checkpoint sees. It is
// written for this test alone, so that neither the format of print(plan) nor the types of plan.h can change a golden:
// where a type changes, golden_text is adapted to write the same text. Never change the text and the goldens together.
#pragma once

#include <string>

#include "engine/plan/plan.h"

namespace trainer::tests {

std::string golden_text(const Plan& plan);

/// 16 hexadecimal digits over it.
std::string golden_hash(const std::string& text);

}  // namespace trainer::tests
