// Formatting of numbers.
#include "engine/core/amounts.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <string_view>

namespace trainer {
namespace {

std::string digits_of(double value, int decimals) {
  std::array<char, 400> text{};
  const int length = std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return {text.data(), static_cast<std::size_t>(length)};
}

std::string scaled(double value, double step, const std::array<std::string_view, 6>& units) {
  std::size_t unit = 0;
  while (std::abs(value) >= step && unit + 1 < units.size()) {
    value /= step;
    ++unit;
  }
  return digits_of(value, unit == 0 ? 0 : 1) + " " + std::string(units[unit]);
}

}  // namespace

std::string bytes_text(double bytes) { return scaled(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB", "PiB"}); }
std::string time_text(double us) {
  if (us >= 1e6) return digits_of(us / 1e6, 2) + " s";
  return us >= 1e3 ? digits_of(us / 1e3, 1) + " ms" : digits_of(us, 0) + " µs";
}
std::string flops_text(double flops) {
  return scaled(flops, 1000, {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"});
}

std::string count_text(double count) {
  if (count < 1e6) return grouped(std::llround(count));
  return count < 1e9 ? digits_of(count / 1e6, 1) + " million" : digits_of(count / 1e9, 2) + " billion";
}

std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

}  // namespace trainer
