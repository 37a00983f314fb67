// The order of samples and the loader that follows it.
#include "engine/data/loader.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

#include "engine/core/error.h"
#include "engine/data/dataset.h"

namespace trainer::data {
namespace {

using Indices = std::vector<std::int64_t>;

// A sample is its own index, twice.
class Counting final : public Dataset {
 public:
  explicit Counting(std::int64_t samples, std::int64_t bad = -1) : samples_(samples), bad_(bad) {}
  std::int64_t num_samples() const override { return samples_; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(std::int64_t sample, std::span<std::byte* const> out) const override {
    if (sample == bad_) throw DataError("sample " + std::to_string(sample) + " is bad");
    const std::int32_t pair[] = {static_cast<std::int32_t>(sample), static_cast<std::int32_t>(sample)};
    const float value = static_cast<float>(sample);
    std::memcpy(out[0], pair, sizeof pair);
    std::memcpy(out[1], &value, sizeof value);
  }

 private:
  std::int64_t samples_, bad_;
  std::vector<SampleField> fields_{{"pair", DType::i32, Shape{2}}, {"value", DType::f32, Shape{}}};
};

Indices epoch_of(const SampleOrder& order, std::int64_t samples, std::int64_t epoch) {
  Indices indices;
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t place = epoch * samples + i;
    indices.push_back(order.sample(place / order.global_batch(), place % order.global_batch()));
  }
  return indices;
}

bool is_permutation_of_range(Indices indices) {
  std::sort(indices.begin(), indices.end());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] != static_cast<std::int64_t>(i)) return false;
  }
  return true;
}

Indices values_of(const Loader::Batch& batch, std::int64_t count) {
  Indices values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<std::int64_t>(reinterpret_cast<const float*>(batch.fields[1])[i]));
    CHECK(reinterpret_cast<const std::int32_t*>(batch.fields[0])[2 * i + 1] == values.back());
  }
  return values;
}

TEST_CASE("without shuffle step k takes samples from k * B, modulo their number") {
  const SampleOrder order(5, 3, false, 1);
  CHECK(Indices{order.sample(0, 0), order.sample(0, 2), order.sample(1, 1), order.sample(1, 2), order.sample(3, 0)} ==
        Indices{0, 2, 4, 0, 4});
}

TEST_CASE("each shuffled epoch is a permutation of its own, for any number of samples") {
  for (std::int64_t samples : {1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 100, 1000, 4097, 65537}) {
    const SampleOrder order(samples, 3, true, 1337);
    const Indices first = epoch_of(order, samples, 0), second = epoch_of(order, samples, 1);
    CHECK(is_permutation_of_range(first));
    CHECK(is_permutation_of_range(second));
    if (samples > 10) CHECK(first != second);
  }
}

TEST_CASE("seeds give different orders, one seed the same") {
  CHECK(epoch_of(SampleOrder(100, 4, true, 1), 100, 0) != epoch_of(SampleOrder(100, 4, true, 2), 100, 0));
  CHECK(epoch_of(SampleOrder(100, 4, true, 1), 100, 3) == epoch_of(SampleOrder(100, 4, true, 1), 100, 3));
}

// Under uniform permutations each of the counts is binomial; five deviations are exceeded once in 1.7 million.
TEST_CASE("every sample comes to every place equally often, and all orders of five are reached") {
  constexpr int kSamples = 5, kEpochs = 60000;
  const SampleOrder order(kSamples, 1, true, 7);
  std::map<Indices, int> orders;
  int places[kSamples][kSamples] = {};
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const Indices indices = epoch_of(order, kSamples, epoch);
    ++orders[indices];
    for (int i = 0; i < kSamples; ++i) ++places[i][indices[static_cast<std::size_t>(i)]];
  }
  CHECK(orders.size() == 120);
  for (const auto& [indices, count] : orders) CHECK(std::abs(count - 500.0) < 5 * std::sqrt(500.0));
  for (const auto& place : places) {
    for (int count : place) CHECK(std::abs(count - 12000.0) < 5 * std::sqrt(12000.0 * 0.8));
  }
}

TEST_CASE("neighbours of a large shuffled epoch are as far apart as chance has it") {
  constexpr std::int64_t kSamples = 1000003;
  const SampleOrder order(kSamples, 1, true, 11);
  double distance = 0;
  constexpr int kPairs = 20000;
  for (int i = 0; i < kPairs; ++i) {
    distance += std::abs(static_cast<double>(order.sample(2 * i, 0) - order.sample(2 * i + 1, 0))) / kSamples;
  }
  // The mean of |a - b| of two uniform numbers is 1/3, its deviation 1/sqrt(18).
  CHECK(std::abs(distance / kPairs - 1.0 / 3) < 5 * std::sqrt(1.0 / 18 / kPairs));
}

TEST_CASE("the shares of all ranks are the global batch in order") {
  for (int ranks : {1, 2, 4}) {
    Indices all;
    for (int rank = 0; rank < ranks; ++rank) {
      Loader loader(std::make_shared<Counting>(100), SampleOrder(100, 8, true, 3), share_of(rank, ranks, 8), 5);
      const Loader::Batch batch = loader.next();
      CHECK(batch.step == 5);
      const Indices part = values_of(batch, 8 / ranks);
      all.insert(all.end(), part.begin(), part.end());
    }
    Indices expected;
    for (std::int64_t i = 0; i < 8; ++i) expected.push_back(SampleOrder(100, 8, true, 3).sample(5, i));
    CHECK(all == expected);
  }
}

TEST_CASE("a loader that starts at a step gives what one from the start gives there") {
  const auto dataset = std::make_shared<Counting>(50);
  const SampleOrder order(50, 4, true, 9);
  Loader whole(dataset, order, {0, 4});
  for (std::int64_t step = 0; step < 40; ++step) {
    const Indices expected = values_of(whole.next(), 4);
    if (step % 13 == 0) {
      Loader resumed(dataset, order, {0, 4}, step);
      CHECK(values_of(resumed.next(), 4) == expected);
    }
  }
}

TEST_CASE("a batch stays valid over the next call") {
  Loader loader(std::make_shared<Counting>(1000), SampleOrder(1000, 10, false, 0), {0, 10});
  Loader::Batch before = loader.next();
  Indices expected = values_of(before, 10);
  for (int step = 1; step < 200; ++step) {
    const Loader::Batch now = loader.next();
    const Indices next = values_of(now, 10);
    CHECK(values_of(before, 10) == expected);
    CHECK(next.front() == step * 10 % 1000);
    before = now;
    expected = next;
  }
}

TEST_CASE("seek goes to any step and leaves what was given out") {
  Loader loader(std::make_shared<Counting>(1000), SampleOrder(1000, 10, false, 0), {0, 10});
  const Loader::Batch first = loader.next();
  loader.seek(50);
  const Loader::Batch later = loader.next();
  CHECK(later.step == 50);
  CHECK(values_of(later, 10).front() == 500);
  CHECK(values_of(first, 10).front() == 0);
  loader.seek(0);
  CHECK(values_of(loader.next(), 10).front() == 0);
  CHECK(values_of(loader.next(), 10).front() == 10);
}

TEST_CASE("a bad sample is raised by the step that has it, not before, and again") {
  Loader loader(std::make_shared<Counting>(100, 25), SampleOrder(100, 10, false, 0), {0, 10});
  CHECK_NOTHROW(loader.next());
  CHECK_NOTHROW(loader.next());
  CHECK_THROWS_WITH_AS(loader.next(), "sample 25 is bad", DataError);
  CHECK_THROWS_AS(loader.next(), DataError);
  loader.seek(3);
  CHECK(values_of(loader.next(), 10).front() == 30);
}

}  // namespace
}  // namespace trainer::data
