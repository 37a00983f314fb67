// Counter-based random numbers: a value is a pure function of (key, index), never of who asks or in which
// order. So initial weights and dropout masks do not depend on world size, threads or recomputation.
// Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011: Philox-4x32-10.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace trainer {

/// Four random words for block `block` of stream `stream` under `key`.
constexpr std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t stream, std::uint64_t block) {
  std::uint32_t c0 = static_cast<std::uint32_t>(block), c1 = static_cast<std::uint32_t>(block >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(stream), c3 = static_cast<std::uint32_t>(stream >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

/// The key of a name under a seed (FNV-1a over the name, mixed with the seed).
constexpr std::uint64_t random_key(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325u ^ (seed * 0x9E3779B97F4A7C15u);
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  hash ^= hash >> 32;
  return hash * 0xD6E8FEB86659FD93u;
}

/// Fills `out[0 .. count)` with N(0, 1) of the elements first .. first + count of stream `stream`; element i
/// is word i mod 4 of block i / 4, by Box-Muller over the word pairs (0, 1) and (2, 3).
void fill_normal(std::uint64_t key, std::uint64_t stream, std::int64_t first, std::int64_t count, float* out);

/// The same of U(−1, 1), without its ends: 24 bits of the element's word, in the middle of their interval.
void fill_uniform(std::uint64_t key, std::uint64_t stream, std::int64_t first, std::int64_t count, float* out);

/// Uniform integer in [0, bound) for index `index`; unbiased to 2^-32. REQUIRES: 0 < bound.
std::uint64_t random_below(std::uint64_t key, std::uint64_t stream, std::uint64_t index, std::uint64_t bound);

}  // namespace trainer
