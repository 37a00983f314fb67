// IEEE half precision by its definition, with no care for speed.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace trainer::kernels::test {

inline double f16_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

/// Rounded to nearest, ties to even; from 65520 on it is infinite.
inline std::uint16_t f16_bits(double x) {
  const std::uint16_t sign = std::signbit(x) ? 0x8000u : 0;
  const double size = std::fabs(x);
  if (std::isnan(x)) return 0x7E00u;
  if (size >= 65520) return static_cast<std::uint16_t>(sign | 0x7C00u);
  int exponent = 0;
  std::frexp(size, &exponent);
  const int unit = size < 0x1p-14 ? -24 : exponent - 11;  // of the last place
  const double steps = std::nearbyint(std::ldexp(size, -unit));
  const int rounded = size < 0x1p-14 ? static_cast<int>(steps) : static_cast<int>(steps) + ((unit + 24) << 10);
  return static_cast<std::uint16_t>(sign | static_cast<unsigned>(rounded));
}

}  // namespace trainer::kernels::test
