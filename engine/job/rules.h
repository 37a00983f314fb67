// Rules that compare two values of a job, which neither the table of fields nor JSON Schema can say.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/job/check.h"

namespace trainer {

/// The mistakes among values that are each right. A rule whose values are missing or wrong is passed over. Lengths of
/// parts of the schedule may exceed `train.steps` where that comes from the command line: a run cut short is no mistake
/// of the file.
std::vector<Diagnostic> check_rules(const Checked& checked, const yaml::Node& tree);

/// Puts what a profile of the network fills in in place of the defaults, where it has an effect. Twice is as once.
void fill_in_profile(Checked& checked);

/// A mistake at `path` in `tree`: at the value, or at the key of the nearest section around it.
Diagnostic mistake_at(const yaml::Node& tree, std::string_view path, std::string message, std::string allowed = "");

}  // namespace trainer
