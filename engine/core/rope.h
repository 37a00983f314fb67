// Rope: rotary positions as data. A graph file gives a base, how elements are paired, which part of a head turns, and
// how the frequencies are scaled for sequences longer than those of the first training. Reading a file gives a Rope; an
// attention node keeps what follows from it for its heads and its sequence, as attributes (set_rope); kernels ask these
// for the frequencies (rope_frequencies). All in f64.
//
// Pair j of the first `dims` elements of a head, at position p, becomes (x cos − y sin, y cos + x sin) · factor of the
// angle p · f_j. Without scaling f_j = theta^(−2j/dims) and factor = 1. Scaled, with s the key `factor` and L the key
// `original_max_position_embeddings`:
//
//   linear    f_j / s
//   dynamic   a sequence of n > m = max_position_embeddings: its theta is theta · (s n/m − (s − 1))^(dims/(dims−2))
//   llama3    wavelengths λ = 2π/f_j above L/low_freq_factor: f_j / s; below L/high_freq_factor: f_j; between:
//             f_j · ((1−r)/s + r), r = (L/λ − low_freq_factor) / (high_freq_factor − low_freq_factor)
//   yarn      f_j · (r/s + 1−r), r rising from 0 to 1 over pairs j from c(beta_fast), rounded down, to c(beta_slow),
//             rounded up (not rounded unless `truncate`); c(β) = dims ln(L/(2πβ)) / (2 ln theta), between 0 and dims−1.
//             factor = attention_factor, or m(mscale) / m(mscale_all_dim) if both are given, or m(1);
//             m(a) = 0.1 a ln s + 1 where s > 1, else 1
//   longrope  f_j / short_factor[j], or long_factor[j] in sequences longer than L.
//             factor = attention_factor, or √(1 + ln s / ln L) where s > 1, else 1; s = max_position_embeddings / L if
//             not given
//
// Sources: Su et al., "RoFormer", 2021; Peng et al., "YaRN", 2023, section 3; Ding et al., "LongRoPE", 2024; the names
// of the keys and the cases they leave open are those of Hugging Face's transformers 5.23.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/attributes.h"

namespace trainer {

struct Rope {
  double theta = 0;          ///< 0: no rotary positions
  bool interleaved = false;  ///< pairs are elements 2j and 2j + 1, not j and j + dims/2
  double partial = 1;        ///< share of a head that turns, from its first element on
  std::string scaling{};     ///< a name of rope_scalings(), or empty
  std::map<std::string, std::vector<double>, std::less<>> numbers{};  ///< the scaling's keys; one number, or a list
};

/// A key of a scaling: a positive number, or a list of them, one a pair, or a flag (as 0 or 1).
struct RopeKey {
  enum class Type : std::uint8_t { number, list, flag };
  std::string_view name;
  std::string_view help;
  bool required = true;
  Type type = Type::number;
};
struct RopeScaling {
  std::string_view name;
  std::vector<RopeKey> keys;
};
std::span<const RopeScaling> rope_scalings();

/// "theta=1e6;style=interleaved;partial=0.5;scaling=linear;factor=8", and back. Empty: no rotary positions.
std::string print(const Rope& rope);
Rope parse_rope(std::string_view text);

/// What is wrong with `rope` for heads of `head_dim` elements; empty: nothing.
std::string rope_mistake(const Rope& rope, std::int64_t head_dim);

/// Sets the attributes of attention over sequences of `seq` tokens: `rope_theta`, and where they are not as usual
/// `rope_interleaved`, `rope_dims` and `rope_scaling`, a name and its numbers: "llama3;factor=8;…". What depends on the
/// sequence is decided here. REQUIRES: no rope_mistake.
void set_rope(Attributes& attributes, const Rope& rope, std::int64_t head_dim, std::int64_t seq);

/// What kernels turn heads by.
struct RopeFrequencies {
  std::vector<double> angles;  ///< of each pair, in radians a position; empty: no rotation
  double factor = 1;           ///< on cosines and sines
  bool interleaved = false;

  std::int64_t dims() const { return 2 * static_cast<std::int64_t>(angles.size()); }
};
/// Of the attributes of an attention, or attention_grad, whose heads have `head_dim` elements. Raises Bug where they
/// are not as set_rope makes them.
RopeFrequencies rope_frequencies(const Attributes& attributes, std::int64_t head_dim);

}  // namespace trainer
