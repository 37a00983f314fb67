// Estimate: what an instruction takes.
#pragma once

#include <cstdint>
#include <string_view>

namespace trainer::cost {

/// What a time is bound by.
enum class Bound : std::uint8_t { compute, memory, latency, network };
std::string_view name_of(Bound bound);

/// What a communication takes, while it runs alone, of what a rank's links inside its node and between nodes can move:
/// shares, 0 to 1.
struct LinkShare {
  float inside = 0, between = 0;
};

/// Microseconds, and the half width of their interval as a share of them.
struct Estimate {
  double us = 0;
  double spread = 0;
  Bound bound = Bound::latency;
  LinkShare links{};
};

}  // namespace trainer::cost
