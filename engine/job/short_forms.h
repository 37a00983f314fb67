// Short forms: a scalar in place of a section, where only one key of it can be meant (`precision: bf16` is `precision: {compute: bf16}`).
// Which sections have one is said by the table of fields (Form::shorthand).
#pragma once

#include <vector>

#include "engine/job/fields.h"
#include "engine/job/yaml.h"

namespace trainer {

/// Writes the short forms of `root` out, so that all that reads the tree afterwards sees sections. The key that comes to stand has the
/// place of the scalar.
void expand_short_forms(yaml::Node& root, const std::vector<FieldDef>& fields);

/// What a scalar in place of `section` may be. REQUIRES: it has a shorthand.
const std::vector<Form>& short_forms(const Form& section);

}  // namespace trainer
