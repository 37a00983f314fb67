// Distributions over the counter-based generator.
#include "engine/core/random.h"

#include <cmath>

namespace trainer {
namespace {

// (0, 1]: never 0, whose logarithm is not finite.
double unit(std::uint32_t word) { return (static_cast<double>(word) + 1.0) * 0x1p-32; }

std::array<float, 4> normals(std::uint64_t key, std::uint64_t stream, std::uint64_t block) {
  const auto words = philox(key, stream, block);
  std::array<float, 4> result{};
  for (int pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2.0 * std::log(unit(words[2 * pair])));
    const double angle = 2.0 * 3.14159265358979323846 * unit(words[2 * pair + 1]);
    result[2 * pair] = static_cast<float>(radius * std::cos(angle));
    result[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return result;
}

}  // namespace

void fill_normal(std::uint64_t key, std::uint64_t stream, std::int64_t first, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t element = first + i;
    const auto block = normals(key, stream, static_cast<std::uint64_t>(element / 4));
    for (std::int64_t word = element % 4; word < 4 && i < count; ++word, ++i) out[i] = block[static_cast<std::size_t>(word)];
  }
}

std::uint64_t random_below(std::uint64_t key, std::uint64_t stream, std::uint64_t index, std::uint64_t bound) {
  const auto words = philox(key, stream, index);
  const std::uint64_t wide = (std::uint64_t{words[0]} << 32) | words[1];
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(wide) * bound) >> 64);
}

}  // namespace trainer
