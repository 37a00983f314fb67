// The order in which training asks for samples.
#include <algorithm>
#include <string>

#include "engine/core/check.h"
#include "engine/core/random.h"
#include "engine/data/dataset.h"

namespace trainer::data {
namespace {

// Of n samples one keeps its place in all rounds with chance 2^-48, two keep their distance with (3/4)^48.
constexpr int kRounds = 48;

// Shares are fixed-point numbers, so that dealing is exact.
constexpr std::uint64_t kOne = std::uint64_t{1} << 62;

// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
constexpr std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

SampleOrder::SampleOrder(std::int64_t num_samples, std::int64_t global_batch, bool shuffle, std::uint64_t seed)
    : SampleOrder(std::vector{SamplePart{num_samples, 1}}, global_batch, shuffle, seed) {}

SampleOrder::SampleOrder(std::span<const SamplePart> parts, std::int64_t global_batch, bool shuffle, std::uint64_t seed)
    : global_batch_(global_batch), shuffle_(shuffle) {
  CHECK(!parts.empty() && global_batch > 0, "an order has samples");
  double left = 0;  // weight of the parts that are not yet dealt to
  for (const SamplePart& part : parts) left += part.weight;
  std::int64_t first = 0;
  for (const SamplePart& part : parts) {
    CHECK(part.samples > 0 && part.weight > 0, "a part has samples and a weight");
    const std::string number = parts_.empty() ? "" : "." + std::to_string(parts_.size());
    const double share = std::min(1.0, part.weight / left);
    parts_.push_back({first, part.samples, static_cast<std::uint64_t>(share * static_cast<double>(kOne)),
                      random_key(seed, "data.mix" + number) % kOne, random_key(seed, "data.shuffle" + number)});
    first += part.samples;
    left -= part.weight;
  }
}

std::int64_t SampleOrder::sample(std::int64_t step, std::int64_t position) const {
  std::int64_t place = step * global_batch_ + position;
  for (const Part& part : parts_) {
    // Of the first n places floor(n·share + offset) are the part's.
    const auto dealt = [&](std::int64_t places) {
      const unsigned __int128 sum = static_cast<unsigned __int128>(places) * part.share + part.offset;
      return static_cast<std::int64_t>(sum / kOne);
    };
    const std::int64_t index = &part == &parts_.back() ? place : dealt(place);
    if (&part != &parts_.back() && dealt(place + 1) == index) {
      place -= index;
      continue;
    }
    const std::int64_t sample = index % part.count;
    return part.first + (shuffle_ ? permuted(part, sample, index / part.count) : sample);
  }
  UNREACHABLE("the last part takes every place that is left");
}

// A round pairs x with pivot - x (mod n) and swaps the pair by the toss of a coin, which both of it compute alike.
std::int64_t SampleOrder::permuted(const Part& part, std::int64_t index, std::int64_t epoch) {
  const std::array<std::uint32_t, 4> words = philox(part.key, static_cast<std::uint64_t>(epoch), 0);
  std::uint64_t counter = std::uint64_t{words[0]} << 32 | words[1];
  const auto n = static_cast<std::uint64_t>(part.count);
  auto x = static_cast<std::uint64_t>(index);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t key = mixed(counter += 0x9E3779B97F4A7C15u);
    const auto pivot = static_cast<std::uint64_t>(static_cast<unsigned __int128>(key) * n >> 64);
    const std::uint64_t partner = pivot >= x ? pivot - x : pivot + n - x;
    if (mixed(key + std::max(x, partner)) & 1) x = partner;
  }
  return static_cast<std::int64_t>(x);
}

}  // namespace trainer::data
