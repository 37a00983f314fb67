// Files that came with the program.
#pragma once

#include <string>
#include <vector>

namespace trainer {

bool is_file(const std::string& path);

/// Names of the files of a kind, without their extension, sorted; none if there is no such folder.
std::vector<std::string> installed(const std::string& folder, const char* extension);

}  // namespace trainer
