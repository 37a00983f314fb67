// A plan as one page of HTML: no network, no other files; the same bytes for the same plan.
#pragma once

#include <string>

#include "tools/command.h"
#include "tools/prediction.h"

namespace trainer::tools {

/// The size is bounded: of long steps several instructions are one block (tools/plan_timeline.h).
std::string plan_page(const LoadedJob& loaded, const CompiledJob& compiled, const PredictedStep& predicted);

/// Writes a page whole or not at all, through a file beside it; makes missing folders. A file that is there is replaced only if it is such a page. Throws IoError, UsageError.
void write_page(const std::string& path, const std::string& page);

}  // namespace trainer::tools
