// What `trainer --version` says.
#pragma once

#include <string>

namespace trainer::tools {

/// "trainer 0.1.0 (2a1f0aa)"; the commit is that of the sources when the build was configured, and missing outside of a
/// repository.
std::string version_text();

}  // namespace trainer::tools
