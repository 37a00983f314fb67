// The order in which training asks for samples.
#include <algorithm>

#include "engine/core/check.h"
#include "engine/core/random.h"
#include "engine/data/dataset.h"

namespace trainer::data {
namespace {

// Of n samples one keeps its place in all rounds with chance 2^-48, two keep their distance with (3/4)^48.
constexpr int kRounds = 48;

// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
constexpr std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

SampleOrder::SampleOrder(std::int64_t num_samples, std::int64_t global_batch, bool shuffle, std::uint64_t seed)
    : num_samples_(num_samples),
      global_batch_(global_batch),
      shuffle_(shuffle),
      key_(random_key(seed, "data.shuffle")) {
  CHECK(num_samples > 0 && global_batch > 0, "an order has samples");
}

std::int64_t SampleOrder::sample(std::int64_t step, std::int64_t position) const {
  const std::int64_t place = step * global_batch_ + position;
  const std::int64_t index = place % num_samples_;
  return shuffle_ ? permuted(index, place / num_samples_) : index;
}

// A round pairs x with pivot - x (mod n) and swaps the pair by the toss of a coin, which both of it compute alike.
std::int64_t SampleOrder::permuted(std::int64_t index, std::int64_t epoch) const {
  const std::array<std::uint32_t, 4> words = philox(key_, static_cast<std::uint64_t>(epoch), 0);
  std::uint64_t counter = std::uint64_t{words[0]} << 32 | words[1];
  const auto n = static_cast<std::uint64_t>(num_samples_);
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
