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
