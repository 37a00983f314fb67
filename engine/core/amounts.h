// Amounts as people read them: sizes, counts, FLOPs. JSON has the exact numbers.
#pragma once

#include <cstdint>
#include <string>

namespace trainer {

/// "1.5 GiB", "640 B".
std::string bytes_text(double bytes);
inline std::string bytes_text(std::int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }
/// Of microseconds: "2.50 s", "12.3 ms", "640 µs".
std::string time_text(double us);
/// "124.4 million", "65,280".
std::string count_text(double count);
/// A whole number with its thousands apart.
std::string grouped(std::int64_t number);
/// "1.2 TFLOP".
std::string flops_text(double flops);

}  // namespace trainer
