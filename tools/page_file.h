// Writing a page of `plan --html`.
#pragma once

#include <string>

namespace trainer::tools {

/// Writes a page whole or not at all, through a file beside it; makes missing folders. A file that is there is replaced
/// only if it is such a page. Throws IoError, UsageError.
void write_page(const std::string& path, const std::string& page);

}  // namespace trainer::tools
