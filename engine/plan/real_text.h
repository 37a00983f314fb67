// How plans write a real number: in one way only, so that equal plans have equal texts.
#pragma once

#include <fmt/format.h>

#include <string>

namespace trainer {

/// The fewest digits that give `number` back, with a point or an exponent.
inline std::string real_text(double number) {
  const std::string text = fmt::format("{}", number);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

}  // namespace trainer
