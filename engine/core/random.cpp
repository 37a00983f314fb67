// Distributions over the counter-based generator. Normals come in batches of plain loops without branches, which the
// compiler turns into vectors: 124 million of them are a part of start-up.
#include "engine/core/random.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace trainer {
namespace {

constexpr int kBatch = 128;  // blocks of four words drawn at a time

struct Words {
  std::uint32_t word[4][kBatch];
};

// philox() of kBatch consecutive blocks, round by round over all of them.
void draw(std::uint64_t key, std::uint64_t stream, std::uint64_t first_block, Words& out) {
  for (int i = 0; i < kBatch; ++i) {
    const std::uint64_t block = first_block + static_cast<std::uint64_t>(i);
    out.word[0][i] = static_cast<std::uint32_t>(block);
    out.word[1][i] = static_cast<std::uint32_t>(block >> 32);
    out.word[2][i] = static_cast<std::uint32_t>(stream);
    out.word[3][i] = static_cast<std::uint32_t>(stream >> 32);
  }
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kBatch; ++i) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * out.word[0][i],
                          p1 = std::uint64_t{0xCD9E8D57u} * out.word[2][i];
      const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ out.word[1][i] ^ k0;
      const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ out.word[3][i] ^ k1;
      out.word[1][i] = static_cast<std::uint32_t>(p1);
      out.word[3][i] = static_cast<std::uint32_t>(p0);
      out.word[0][i] = n0;
      out.word[2][i] = n2;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// ln x for x in (0, 1], to some 2e-7 relative: x = m 2^e with m in [√½, √2), ln m = 2 artanh((m − 1)/(m + 1)).
inline float fast_log(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) - 0x3F3504F3u;  // √½
  const auto exponent = static_cast<float>(static_cast<std::int32_t>(bits) >> 23);
  const float m = std::bit_cast<float>((bits & 0x007FFFFFu) + 0x3F3504F3u);
  const float s = (m - 1.0F) / (m + 1.0F), z = s * s;
  const float series = 1.0F + z * (1.0F / 3 + z * (1.0F / 5 + z * (1.0F / 7 + z * (1.0F / 9))));
  return exponent * 0.69314718F + 2.0F * s * series;
}

// sin and cos of 2πx for x in [0, 1): the nearest quarter turn, and Taylor series within an eighth of a turn of it.
inline void sine_cosine(float x, float& sine, float& cosine) {
  const float quarters = x * 4.0F;
  const auto quarter = static_cast<std::int32_t>(quarters + 0.5F);
  const float a = (quarters - static_cast<float>(quarter)) * 1.57079633F, z = a * a;
  const float s = a * (1.0F + z * (-1.0F / 6 + z * (1.0F / 120 + z * (-1.0F / 5040 + z * (1.0F / 362880)))));
  const float c = 1.0F + z * (-1.0F / 2 + z * (1.0F / 24 + z * (-1.0F / 720 + z * (1.0F / 40320))));
  const bool odd = (quarter & 1) != 0;
  const float first = odd ? c : s, second = odd ? s : c;
  sine = (quarter & 2) != 0 ? -first : first;
  cosine = ((quarter + 1) & 2) != 0 ? -second : second;
}

// 24 bits of a word as a float in (0, 1], and in [0, 1).
inline float open_unit(std::uint32_t word) {
  return static_cast<float>(static_cast<std::int32_t>(word >> 8) + 1) * 0x1p-24F;
}
inline float half_open_unit(std::uint32_t word) {
  return static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 0x1p-24F;
}

// Box and Muller, 1958, over the word pairs (0, 1) and (2, 3) of each block.
void normals(const Words& words, float* out) {
  float z[4][kBatch];
  for (int pair = 0; pair < 4; pair += 2)
    for (int i = 0; i < kBatch; ++i) {
      const float radius = std::sqrt(-2.0F * fast_log(open_unit(words.word[pair][i])));
      float sine = 0, cosine = 0;
      sine_cosine(half_open_unit(words.word[pair + 1][i]), sine, cosine);
      z[pair][i] = radius * cosine;
      z[pair + 1][i] = radius * sine;
    }
  for (int i = 0; i < kBatch; ++i)
    for (int w = 0; w < 4; ++w) out[4 * i + w] = z[w][i];
}

void uniforms(const Words& words, float* out) {
  for (int i = 0; i < kBatch; ++i)
    for (int w = 0; w < 4; ++w)
      out[4 * i + w] = static_cast<float>(2 * static_cast<std::int32_t>(words.word[w][i] >> 8) + 1) * 0x1p-24F - 1.0F;
}

// Elements [first, first + count) of the stream that `distribute` makes of words.
template <typename Distribute>
void fill(std::uint64_t key, std::uint64_t stream, std::int64_t first, std::int64_t count, float* out,
          Distribute distribute) {
  Words words;
  float values[4 * kBatch];
  constexpr std::int64_t kElements = 4 * kBatch;
  for (std::int64_t at = first / kElements * kElements; at < first + count; at += kElements) {
    draw(key, stream, static_cast<std::uint64_t>(at / 4), words);
    distribute(words, values);
    const std::int64_t begin = std::max(at, first), end = std::min(at + kElements, first + count);
    std::copy(values + (begin - at), values + (end - at), out + (begin - first));
  }
}

}  // namespace

void fill_normal(std::uint64_t key, std::uint64_t stream, std::int64_t first, std::int64_t count, float* out) {
  fill(key, stream, first, count, out, normals);
}

void fill_uniform(std::uint64_t key, std::uint64_t stream, std::int64_t first, std::int64_t count, float* out) {
  fill(key, stream, first, count, out, uniforms);
}

std::uint64_t random_below(std::uint64_t key, std::uint64_t stream, std::uint64_t index, std::uint64_t bound) {
  const auto words = philox(key, stream, index);
  const std::uint64_t wide = (std::uint64_t{words[0]} << 32) | words[1];
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(wide) * bound) >> 64);
}

}  // namespace trainer
