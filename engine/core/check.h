// CHECK: promises of the program to itself. For sources only: tests have a CHECK of their own from doctest.
#pragma once

#include <string>

namespace trainer {

[[noreturn]] void fail_check(const char* condition, const char* file, int line, const std::string& why);

}  // namespace trainer

/// Raises Bug unless `condition` holds. Always compiled in; keep it out of inner loops.
#define CHECK(condition, why)                                                     \
  do {                                                                            \
    if (!(condition)) ::trainer::fail_check(#condition, __FILE__, __LINE__, why); \
  } while (false)

/// Raises Bug: control never comes here, as `why` says. In place of a value after a switch over an enum, and of cases
/// that a caller excludes.
#define UNREACHABLE(why) ::trainer::fail_check("unreachable", __FILE__, __LINE__, why)
