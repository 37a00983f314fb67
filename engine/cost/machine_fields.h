// The table of fields of hardware files. Every figure is a number, or a mapping with its spread and the short name of
// its source; a file that names a `base` says only what differs from it.
#pragma once

#include <vector>

#include "engine/job/fields.h"

namespace trainer::cost {

/// The fields of a hardware file, from the top.
const std::vector<FieldDef>& machine_fields();

/// Whether a value with these forms is a figure: what a shipped file gives a source for.
bool is_figure(const std::vector<Form>& forms);

}  // namespace trainer::cost
