// A step of one role with something wrong in it, and what the proof says of it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/plan/verify/verify.h"

namespace trainer::tests {

inline std::vector<Issued>& step_of(Plan& plan) {
  Role& role = plan.roles[0];
  return role.programs[static_cast<std::size_t>(role.program_index(ProgramKind::step))].instructions;
}

/// What the proof says of the plan once `spoil` has changed it, in lines; `order`: in the order that the change gives.
inline std::string refusal(const Plan& right, const std::function<void(Plan&)>& spoil, bool order = true) {
  Plan plan = right;
  spoil(plan);
  if (order) derive_order(plan.roles[0], plan.mesh);
  std::string text;
  for (const std::string& one : violations(plan)) text += one + "\n";
  return text;
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace trainer::tests
