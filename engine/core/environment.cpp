// Reading environment switches.
#include "engine/core/environment.h"

#include <charconv>
#include <cstdlib>
#include <sstream>

#include "engine/core/error.h"

namespace trainer::environment {

std::optional<std::string> value_of(const Switch& which) {
  const char* value = std::getenv(which.name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::string cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::optional<std::string> given = value_of(kCache)) return *given == "off" ? "" : *given;
  const std::string user = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (user.starts_with('/')) return user + "/trainer";  // a relative one is to be ignored: the XDG specification
  return home.starts_with('/') ? home + "/.cache/trainer" : "";
}

namespace {

template <typename Number>
Number parsed(const char* variable, const std::string& text, Number least, Number most, const char* kind) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc{} && end == text.data() + text.size() && number >= least && number <= most) return number;
  std::ostringstream why;
  why << variable << "=" << text << ": must be a " << kind << " from " << least << " to " << most;
  throw UsageError(why.str());
}

}  // namespace

std::int64_t whole_number(const char* variable, const std::string& text, std::int64_t least, std::int64_t most) {
  return parsed(variable, text, least, most, "whole number");
}

double number(const char* variable, const std::string& text, double least, double most) {
  return parsed(variable, text, least, most, "number");
}

}  // namespace trainer::environment
