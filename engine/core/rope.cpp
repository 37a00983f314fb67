// Rotary positions: keys of the scalings, their text, the frequencies.
#include "engine/core/rope.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numbers>

#include "engine/core/check.h"

namespace trainer {
namespace {

using Numbers = std::map<std::string, std::vector<double>, std::less<>>;

constexpr RopeKey kFactor{"factor", "How many times longer sequences become."};
constexpr RopeKey kOriginal{"original_max_position_embeddings", "Longest sequence of the first training."};
constexpr RopeKey kAttentionFactor{"attention_factor", "Factor on cosines and sines.", false};

// ---- Text ---------------------------------------------------------------------------------------------------------

std::string text_of(double value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  CHECK(error == std::errc(), "a number fits");
  return {text.data(), end};
}

std::string text_of(const Numbers& numbers) {
  std::string text;
  for (const auto& [name, list] : numbers) {
    text += ";" + name;
    for (std::size_t i = 0; i < list.size(); ++i) text += (i == 0 ? "=" : ",") + text_of(list[i]);
  }
  return text;
}

double number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  CHECK(error == std::errc() && end == text.data() + text.size(), "not a number: " + std::string(text));
  return value;
}

/// The part of `text` before `end`, which both leave it.
std::string_view take(std::string_view& text, char end) {
  const std::string_view first = text.substr(0, text.find(end));
  text.remove_prefix(std::min(text.size(), first.size() + 1));
  return first;
}

std::vector<double> list_of(std::string_view text) {
  std::vector<double> list;
  while (!text.empty()) list.push_back(number_of(take(text, ',')));
  return list;
}

Numbers numbers_of(std::string_view text) {
  Numbers numbers;
  while (!text.empty()) {
    std::string_view item = take(text, ';');
    const std::string_view name = take(item, '=');
    numbers.emplace(name, list_of(item));
  }
  return numbers;
}

// ---- Numbers ------------------------------------------------------------------------------------------------------

double number(const Numbers& numbers, std::string_view name, double otherwise) {
  const auto found = numbers.find(name);
  return found == numbers.end() ? otherwise : found->second.at(0);
}
double number(const Numbers& numbers, std::string_view name) {
  const auto found = numbers.find(name);
  CHECK(found != numbers.end(), "a scaling of rotary positions lacks " + std::string(name));
  return found->second.at(0);
}

std::int64_t turned_dims(const Rope& rope, std::int64_t head_dim) {
  constexpr double kRounding = 1e-9;  // a share such as 64 / 192 is not exact
  return static_cast<std::int64_t>(static_cast<double>(head_dim) * rope.partial + kRounding);
}

double dynamic_theta(const Rope& rope, double dims, double seq) {
  const double longest = number(rope.numbers, "max_position_embeddings"), factor = number(rope.numbers, "factor");
  const double stretched = factor * std::max(seq, longest) / longest - (factor - 1);
  return rope.theta * std::pow(stretched, dims / (dims - 2));
}

double longrope_factor(const Numbers& numbers) {
  const double original = number(numbers, "original_max_position_embeddings");
  const double factor = number(numbers, "factor", number(numbers, "max_position_embeddings", original) / original);
  return number(numbers, "attention_factor", factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original)));
}

double yarn_factor(const Numbers& numbers) {
  const double factor = number(numbers, "factor");
  const auto magnitude = [factor](double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; };
  const double scale = number(numbers, "mscale", 0), all = number(numbers, "mscale_all_dim", 0);
  return number(numbers, "attention_factor", scale != 0 && all != 0 ? magnitude(scale) / magnitude(all) : magnitude(1));
}

double llama3_scaled(double frequency, const Numbers& numbers) {
  const double factor = number(numbers, "factor"), low = number(numbers, "low_freq_factor"),
               high = number(numbers, "high_freq_factor"),
               turns = number(numbers, "original_max_position_embeddings") * frequency / (2 * std::numbers::pi);
  if (turns < low) return frequency / factor;
  if (turns > high) return frequency;
  const double ramp = (turns - low) / (high - low);
  return frequency * ((1 - ramp) / factor + ramp);
}

void scale_yarn(std::vector<double>& frequencies, double theta, const Numbers& numbers) {
  const double dims = 2 * static_cast<double>(frequencies.size()), factor = number(numbers, "factor"),
               original = number(numbers, "original_max_position_embeddings");
  const auto pair_that_turns = [&](double turns) {
    return dims * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = pair_that_turns(number(numbers, "beta_fast", 32)),
         high = pair_that_turns(number(numbers, "beta_slow", 1));
  if (number(numbers, "truncate", 1) != 0) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  for (std::size_t j = 0; j < frequencies.size(); ++j) {
    const double ramp = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    frequencies[j] *= ramp / factor + (1 - ramp);
  }
}

/// Scales frequencies as `text`, a node's `rope_scaling`, says.
void scale(RopeFrequencies& to, double theta, std::string_view text) {
  const std::string_view name = take(text, ';');
  const Numbers numbers = numbers_of(text);
  if (name == "linear") {
    for (double& frequency : to.angles) frequency /= number(numbers, "factor");
  } else if (name == "llama3") {
    for (double& frequency : to.angles) frequency = llama3_scaled(frequency, numbers);
  } else if (name == "yarn") {
    scale_yarn(to.angles, theta, numbers);
    to.factor = yarn_factor(numbers);
  } else {
    CHECK(name == "longrope", "rotary positions are not scaled as " + std::string(name));
    const std::vector<double>& factors = numbers.at("factors");
    CHECK(factors.size() == to.angles.size(), "longrope has a factor for each pair");
    for (std::size_t j = 0; j < factors.size(); ++j) to.angles[j] /= factors[j];
    to.factor = number(numbers, "attention_factor");
  }
}

}  // namespace

std::span<const RopeScaling> rope_scalings() {
  static const std::vector<RopeScaling> scalings{
      {"linear", {kFactor}},
      {"dynamic", {kFactor, {"max_position_embeddings", "Longest sequence that keeps the base."}}},
      {"llama3",
       {kFactor,
        {"low_freq_factor", "Fewer turns over the first training's longest sequence: divided by `factor`."},
        {"high_freq_factor", "More turns over it: as they are."},
        kOriginal}},
      {"yarn",
       {kFactor,
        kOriginal,
        {"beta_fast", "More turns: as they are. Default 32.", false},
        {"beta_slow", "Fewer turns: divided by `factor`. Default 1.", false},
        {"mscale", "With mscale_all_dim: the factor on cosines and sines.", false},
        {"mscale_all_dim", "With mscale.", false},
        kAttentionFactor,
        {"truncate", "Whether the ramp begins and ends at whole pairs. Default true.", false, RopeKey::Type::flag}}},
      {"longrope",
       {{"short_factor", "Divisors of each pair's frequency.", true, RopeKey::Type::list},
        {"long_factor", "The same, in sequences longer than those of the first training.", true, RopeKey::Type::list},
        kOriginal,
        {"max_position_embeddings", "Longest sequence; gives `factor`.", false},
        {"factor", kFactor.help, false},
        kAttentionFactor}},
  };
  return scalings;
}

std::string print(const Rope& rope) {
  if (rope.theta == 0) return {};
  std::string text = "theta=" + text_of(rope.theta);
  if (rope.interleaved) text += ";style=interleaved";
  if (rope.partial != 1) text += ";partial=" + text_of(rope.partial);
  if (!rope.scaling.empty()) text += ";scaling=" + rope.scaling + text_of(rope.numbers);
  return text;
}

Rope parse_rope(std::string_view text) {
  Rope rope;
  while (!text.empty()) {
    std::string_view item = take(text, ';');
    const std::string_view name = take(item, '=');
    if (name == "theta")
      rope.theta = number_of(item);
    else if (name == "style")
      rope.interleaved = item == "interleaved";
    else if (name == "partial")
      rope.partial = number_of(item);
    else if (name == "scaling")
      rope.scaling = item;
    else
      rope.numbers.emplace(name, list_of(item));
  }
  return rope;
}

std::string rope_mistake(const Rope& rope, std::int64_t head_dim) {
  if (rope.theta == 0) return {};
  const std::int64_t dims = turned_dims(rope, head_dim);
  if (rope.partial == 1 && dims % 2 != 0)
    return "rotary positions need heads of even size, not " + std::to_string(head_dim);
  if (dims % 2 != 0 || dims == 0)
    return "rotary positions need an even part of a head, not " + std::to_string(dims) + " of " +
           std::to_string(head_dim) + " elements";
  if (rope.scaling == "dynamic" && dims < 4) return "dynamic scaling needs at least 4 elements that turn";
  if ((rope.scaling == "yarn" || rope.scaling == "longrope") && rope.theta == 1) return "theta cannot be 1";
  if (rope.scaling == "llama3" && number(rope.numbers, "low_freq_factor") >= number(rope.numbers, "high_freq_factor"))
    return "low_freq_factor has to be below high_freq_factor";
  if (rope.scaling != "longrope") return {};
  for (const char* name : {"short_factor", "long_factor"})
    if (const std::size_t given = rope.numbers.at(name).size(); given != static_cast<std::size_t>(dims / 2))
      return std::string(name) + " has " + std::to_string(given) + " numbers where " + std::to_string(dims / 2) +
             " are needed, one for each pair that turns";
  if (number(rope.numbers, "original_max_position_embeddings") <= 1)
    return "original_max_position_embeddings has to be above 1";
  const auto has = [&](const char* name) { return rope.numbers.contains(name); };
  if (!has("factor") && !has("max_position_embeddings") && !has("attention_factor"))
    return "longrope needs max_position_embeddings, factor or attention_factor";
  return {};
}

void set_rope(Attributes& attributes, const Rope& rope, std::int64_t head_dim, std::int64_t seq) {
  const std::int64_t dims = turned_dims(rope, head_dim);
  const bool dynamic = rope.scaling == "dynamic", longrope = rope.scaling == "longrope";
  attributes.set("rope_theta",
                 dynamic ? dynamic_theta(rope, static_cast<double>(dims), static_cast<double>(seq)) : rope.theta);
  if (rope.theta == 0) return;
  if (rope.interleaved) attributes.set("rope_interleaved", true);
  if (dims != head_dim) attributes.set("rope_dims", dims);
  if (rope.scaling.empty() || dynamic) return;
  Numbers numbers = rope.numbers;
  if (longrope) {
    const bool is_long = static_cast<double>(seq) > number(numbers, "original_max_position_embeddings");
    numbers = {{"attention_factor", {longrope_factor(numbers)}},
               {"factors", numbers.at(is_long ? "long_factor" : "short_factor")}};
  }
  attributes.set("rope_scaling", rope.scaling + text_of(numbers));
}

RopeFrequencies rope_frequencies(const Attributes& attributes, std::int64_t head_dim) {
  RopeFrequencies result;
  const double theta = attributes.has("rope_theta") ? attributes.real("rope_theta") : 0;
  if (theta == 0) return result;
  const std::int64_t dims = attributes.has("rope_dims") ? attributes.integer("rope_dims") : head_dim;
  CHECK(theta > 0 && dims > 0 && dims % 2 == 0 && dims <= head_dim,
        "RoPE needs theta > 0 and an even part of a head, not " + std::to_string(dims) + " of " +
            std::to_string(head_dim));
  for (std::int64_t j = 0; j < dims / 2; ++j)
    result.angles.push_back(std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(dims)));
  result.interleaved = attributes.has("rope_interleaved") && attributes.flag("rope_interleaved");
  if (attributes.has("rope_scaling")) scale(result, theta, attributes.text("rope_scaling"));
  return result;
}

}  // namespace trainer
