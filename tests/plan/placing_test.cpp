// The structures that make planning fast, against the plain way of doing the same: maps of addresses against an array,
// the placing of buffers against a look at all that are alive.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/core/parallel.h"
#include "engine/plan/address_map.h"
#include "engine/plan/memory.h"

using namespace trainer;

namespace {

// Buffer i is first touched by instruction first[i], last by last[i].
struct Touches {
  std::vector<std::int32_t> first, last;
};

Role role_of(const Touches& lives, const std::vector<std::int64_t>& bytes, std::int32_t num_instructions) {
  Role role;
  role.names = {"b"};
  for (std::int64_t size : bytes) role.buffers.push_back({0, -1, Category::activations, 0, size, -1});
  role.programs.push_back({ProgramKind::step, {}});
  for (std::int32_t i = 0; i < num_instructions; ++i) {
    Launch launch;
    for (std::size_t id = 0; id < bytes.size(); ++id)
      if (lives.first[id] == i || lives.last[id] == i)
        launch.operands.emplace_back(Update{{static_cast<BufferId>(id), 0, bytes[id]}});
    role.programs[0].instructions.push_back({Stream::compute, launch, {}});
  }
  return role;
}

// Greedy by size, each into the smallest gap that holds it between those placed before and alive with it.
std::vector<std::int64_t> placed_plainly(const Touches& lives, const std::vector<std::int64_t>& bytes) {
  std::vector<std::size_t> order(bytes.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
  const auto room = [&](std::size_t id) { return aligned(bytes[id]); };
  std::vector<std::int64_t> offsets(bytes.size(), -1);
  for (std::size_t id : order) {
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;
    for (std::size_t other = 0; other < bytes.size(); ++other)
      if (offsets[other] >= 0 && lives.first[other] <= lives.last[id] && lives.first[id] <= lives.last[other])
        taken.emplace_back(offsets[other], offsets[other] + room(other));
    std::sort(taken.begin(), taken.end());
    std::int64_t at = 0, best = -1, best_gap = 0;
    for (const auto& [from, to] : taken) {
      if (from - at >= room(id) && (best < 0 || from - at < best_gap)) best = at, best_gap = from - at;
      at = std::max(at, to);
    }
    offsets[id] = best < 0 ? at : best;
  }
  return offsets;
}

}  // namespace

TEST_CASE("buffers lie where looking at all that are alive would put them") {
  std::mt19937 random(7);
  for (std::int32_t num_instructions : {1, 2, 33, 200, 257}) {
    Touches lives;
    std::vector<std::int64_t> bytes;
    for (int i = 0; i < 300; ++i) {
      const auto a = static_cast<std::int32_t>(random() % static_cast<unsigned>(num_instructions));
      const auto reach = static_cast<std::int32_t>(random() % (i % 3 == 0 ? 200 : 5));
      lives.first.push_back(a);
      lives.last.push_back(std::min(num_instructions - 1, a + reach));
      bytes.push_back(1 + static_cast<std::int64_t>(random() % (i % 2 == 0 ? 8 : 4000)) * 40);
    }
    Role role = role_of(lives, bytes, num_instructions);
    plan_memory(role);
    const std::vector<std::int64_t> expected = placed_plainly(lives, bytes);
    for (std::size_t id = 0; id < bytes.size(); ++id) REQUIRE(role.buffers[id].offset == expected[id]);
  }
}

// A step of segments of three kinds, in random order: 20 instructions, what lives within each, and what stays alive for
// some segments more.
struct Repeating {
  std::vector<std::int32_t> begins;
  std::vector<Lifetime> lives;
  std::vector<std::int64_t> bytes;
  std::size_t num_instructions = 0;

  Repeating(std::mt19937& random, std::int32_t num_segments) : num_instructions(20 * std::size_t(num_segments)) {
    const auto up_to = [&](std::int32_t most) { return static_cast<std::int32_t>(random() % (unsigned(most) + 1)); };
    std::vector<std::vector<std::pair<Lifetime, std::int64_t>>> kinds(3);
    for (auto& kind : kinds)
      for (int i = 0; i < 12; ++i) {
        const std::int32_t first = up_to(19);
        kind.push_back({{first, first + up_to(19 - first)}, aligned(1 + 100 * up_to(90))});
      }
    for (std::int32_t s = 0; s < num_segments; ++s) {
      const std::int32_t begin = 20 * s, last = 20 * num_segments - 1;
      begins.push_back(begin);
      for (const auto& [life, size] : kinds[static_cast<std::size_t>(up_to(2))])
        add({begin + life.first, begin + life.last}, size);
      for (int i = 0; i < 3; ++i)
        add({begin + 4 * i, std::min(last, begin + 20 * (1 + up_to(5)) + up_to(19))}, aligned(3000 + i));
    }
  }

  void add(Lifetime life, std::int64_t size) { lives.push_back(life), bytes.push_back(size); }

  std::vector<Placed> items() const {
    std::vector<Placed> result;
    for (std::size_t i = 0; i < lives.size(); ++i) result.push_back({bytes[i], {&lives[i], 1}});
    return result;
  }
};

TEST_CASE("blocks: nothing overlaps what is alive with it, and little memory is lost") {
  constexpr std::int64_t kBase = 512;
  std::mt19937 random(5);
  for (const auto& [num_segments, bundled] : {std::pair{1, false}, {7, false}, {60, false}, {7, true}, {60, true}}) {
    const Repeating step(random, num_segments);
    std::vector<Placed> items = step.items(), whole = step.items();
    const std::int64_t end = place_in_blocks(items, step.begins, kBase, step.num_instructions, bundled);
    const std::int64_t end_of_whole = place(whole, kBase, step.num_instructions);
    const std::int64_t least = most_alive(items, kBase, step.num_instructions);
    std::int64_t highest = kBase;
    for (std::size_t a = 0; a < items.size(); ++a) {
      REQUIRE(items[a].offset >= kBase);
      highest = std::max(highest, items[a].offset + items[a].bytes);
      for (std::size_t b = 0; b < a; ++b) {
        const Lifetime x = step.lives[a], y = step.lives[b];
        if (x.first > y.last || y.first > x.last) continue;
        REQUIRE((items[a].offset + items[a].bytes <= items[b].offset ||
                 items[b].offset + items[b].bytes <= items[a].offset));
      }
    }
    CHECK(end == highest);
    CHECK(end_of_whole >= least);
    CHECK(end >= least);
    CHECK(static_cast<double>(end) <= (bundled ? 1.5 : 1.15) * static_cast<double>(end_of_whole));
  }
}

TEST_CASE("the most that is alive is what adding up every moment gives") {
  std::mt19937 random(3);
  const Repeating step(random, 9);
  std::int64_t most = 0;
  for (std::int32_t at = 0; at < static_cast<std::int32_t>(step.num_instructions); ++at) {
    std::int64_t alive = 0;
    for (std::size_t i = 0; i < step.lives.size(); ++i)
      if (step.lives[i].first <= at && at <= step.lives[i].last) alive += step.bytes[i];
    most = std::max(most, alive);
  }
  CHECK(most_alive(step.items(), 100, step.num_instructions) == 100 + most);
}

TEST_CASE("a map of addresses is an array of values, however its pieces are cut and replaced") {
  constexpr int kSize = 200;
  std::mt19937 random(11);
  AddressMap<int> map;
  std::vector<int> array(kSize, 0);
  for (int round = 0; round < 5000; ++round) {
    int first = static_cast<int>(random() % kSize), last = static_cast<int>(random() % (kSize + 1));
    if (first > last) std::swap(first, last);
    const int value = round + 1;
    long sum = 0, expected = 0;
    switch (random() % 3) {
      case 0:
        map.assign(first, last, value);
        std::fill(array.begin() + first, array.begin() + last, value);
        break;
      case 1: {
        std::int64_t at = first;
        map.update_pieces(first, last, [&](std::int64_t from, std::int64_t to, int& one) {
          REQUIRE(from == at);
          at = to;
          for (std::int64_t i = from; i < to; ++i) REQUIRE(array[static_cast<std::size_t>(i)] == one);
          one += 3;
        });
        CHECK(at == last);
        for (int i = first; i < last; ++i) array[static_cast<std::size_t>(i)] += 3;
        break;
      }
      default:
        // What was there is shown before it goes: at least once each value, as pieces of one value may be many.
        map.replace(first, last, value, [&](const int& one) { sum |= one; });
        for (int i = first; i < last; ++i) expected |= array[static_cast<std::size_t>(i)];
        CHECK(sum == expected);
        std::fill(array.begin() + first, array.begin() + last, value);
    }
  }
}

TEST_CASE("work on several threads gives every index its turn, and raises the first index's error") {
  std::vector<int> turns(1000, 0);
  for_each_index(turns.size(), [&](std::size_t i) { ++turns[i]; });
  CHECK(std::all_of(turns.begin(), turns.end(), [](int n) { return n == 1; }));
  std::string raised;
  try {
    for_each_index(turns.size(), [&](std::size_t i) {
      if (i >= 300 && i % 100 == 0) throw std::runtime_error(std::to_string(i));
    });
  } catch (const std::runtime_error& error) {
    raised = error.what();
  }
  CHECK(raised == "300");
  for_each_index(0, [](std::size_t) { FAIL("there is nothing to do"); });
}
