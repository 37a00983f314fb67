// Reading environment switches.
#include "engine/core/environment.h"

#include <cstdlib>

namespace trainer::environment {

std::optional<std::string> value_of(const Switch& which) {
  const char* value = std::getenv(which.name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

}  // namespace trainer::environment
