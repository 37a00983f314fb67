// Generation with cached keys and values: transformers' greedy ids for every family, texts that outgrow their sequence,
// and what cannot be generated.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/train/generator.h"
#include "engine/train/ranks.h"
#include "engine/train/train.h"
#include "tests/models/folder_jobs.h"

namespace trainer::generation_test {

using namespace trainer::test;
using Ids = std::vector<std::int32_t>;

namespace {

std::string words(const Ids& ids) {
  std::string text;
  for (std::int32_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
  return text;
}

LoadedJob job_for(const std::string& folder, std::int64_t length, const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides{"data.format=tokens", "precision.compute=f32"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  LoadedJob loaded = job_of(golden(folder), overrides);
  loaded.job.data.seq_len = length;
  return loaded;
}

std::vector<CompiledJob> plans_for(LoadedJob loaded) {
  std::vector<CompiledJob> plans;
  for (const std::int64_t length : lengths_for_sampling(loaded, loaded.job.data.seq_len)) {
    loaded.job.data.seq_len = length;
    plans.push_back(compiled_here(loaded, Purpose::sample, threads_per_rank(1)));
  }
  return plans;
}

/// What follows a prompt, in a sequence of `length` tokens.
Ids generated(const std::string& folder, const Ids& prompt, std::int64_t length, std::int64_t count,
              const Drawing& drawing = {.temperature = 0}) {
  const LoadedJob loaded = job_for(folder, length);
  SampleOptions options{.prompt = words(prompt), .num_tokens = count, .drawing = drawing};
  const Sampled sampled = sample(loaded, plans_for(loaded), golden(folder), options, [](const std::string&) {});
  REQUIRE(sampled.ids.size() >= prompt.size());
  return {sampled.ids.begin() + static_cast<std::ptrdiff_t>(prompt.size()), sampled.ids.end()};
}

}  // namespace

TEST_CASE("every family generates the ids of transformers") {
  std::ifstream file(golden("greedy.json"));
  const nlohmann::json rows = nlohmann::json::parse(file);
  REQUIRE(rows.size() == 33);
  for (const nlohmann::json& row : rows) {
    const std::string folder = row["folder"];
    CAPTURE(folder);
    const Ids prompt = row["prompt"], wanted = row["ids"];
    CAPTURE(prompt.size());
    REQUIRE(row["closest"] > 1e-4);  // the best two logits are never as close as rounding could bring them
    const auto count = static_cast<std::int64_t>(wanted.size());
    CHECK(generated(folder, prompt, static_cast<std::int64_t>(prompt.size()) + count, count) == wanted);
  }
}

TEST_CASE("a model that is another one in longer sequences has a plan for each") {
  CHECK(lengths_for_sampling(job_for("phi3", 48), 48) == std::vector<std::int64_t>{16, 48});
  CHECK(lengths_for_sampling(job_for("llama3", 48), 48) == std::vector<std::int64_t>{48});
}

TEST_CASE("a text that fills its sequence goes on from its second half") {
  const Ids prompt{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
  const Ids all = generated("qwen3", prompt, 12, 20);
  REQUIRE(all.size() == 20);
  Ids text = prompt;
  text.insert(text.end(), all.begin(), all.end());
  // Two ids fill the sequence of 12; the next come from its last 6, until those and what follows fill it again.
  std::size_t known = 13;
  for (std::size_t first : {7, 14}) {
    const Ids begin(text.begin() + static_cast<std::ptrdiff_t>(first),
                    text.begin() + static_cast<std::ptrdiff_t>(known));
    const std::int64_t count = 7;
    const Ids wanted(text.begin() + static_cast<std::ptrdiff_t>(known),
                     text.begin() + static_cast<std::ptrdiff_t>(known) + count);
    CHECK(generated("qwen3", begin, 12, count) == wanted);
    known += count;
  }
}

TEST_CASE("a prompt longer than the sequence begins with its last half") {
  Ids prompt;
  for (std::int32_t i = 0; i < 30; ++i) prompt.push_back(i * 11 % 50);
  const Ids last(prompt.end() - 6, prompt.end());
  CHECK(generated("llama3", prompt, 12, 5) == generated("llama3", last, 12, 5));
}

TEST_CASE("attention that is not causal generates nothing, and the message names it") {
  LoadedJob loaded = job_for("llama3", 16);
  yaml::Node tree = graph_tree(loaded);
  loaded.job.model.graph.clear();
  const auto make_bidirectional = [](yaml::Node& node, auto&& again) -> void {
    for (std::size_t i = 0; i < node.keys.size(); ++i)
      if (node.keys[i].text == "causal") node.items[i].text = "false";
    for (yaml::Node& item : node.items) again(item, again);
  };
  make_bidirectional(tree, make_bidirectional);
  loaded.job.model.inline_graph = tree;
  std::string message;
  try {
    compiled_here(loaded, Purpose::sample);
  } catch (const JobError& error) {
    message = error.what();
  }
  CHECK(message.find("text cannot be generated token by token: this attention is not causal") != std::string::npos);
}

TEST_CASE("draws have the probabilities of the softmax, top-k and top-p cut its tail") {
  const std::vector<float> logits{0.5F, 2.0F, -1.0F, 1.0F, 2.0F};
  const auto shares = [&](Drawing drawing) {
    constexpr int kDraws = 20000;
    std::vector<double> share(logits.size());
    for (std::uint64_t i = 0; i < kDraws; ++i)
      share[static_cast<std::size_t>(draw(logits, drawing, i))] += 1.0 / kDraws;
    return share;
  };
  const auto expected = [&](double temperature, const std::vector<std::size_t>& kept) {
    std::vector<double> share(logits.size());
    double total = 0;
    for (std::size_t i : kept) total += share[i] = std::exp(static_cast<double>(logits[i]) / temperature);
    for (double& one : share) one /= total;
    return share;
  };
  const auto close = [](const std::vector<double>& a, const std::vector<double>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) < 0.015);  // 4 σ of 20,000 draws
  };
  close(shares({.temperature = 1}), expected(1, {0, 1, 2, 3, 4}));
  close(shares({.temperature = 0.5}), expected(0.5, {0, 1, 2, 3, 4}));
  close(shares({.temperature = 2, .top_k = 3}), expected(2, {1, 3, 4}));
  close(shares({.temperature = 1, .top_p = 0.8}), expected(1, {1, 3, 4}));
  close(shares({.temperature = 1, .top_k = 2, .top_p = 0.4}), expected(1, {1}));
  CHECK(draw(logits, {.temperature = 0}, 7) == 1);  // the first of two equal ones
  CHECK(draw(logits, {.temperature = 1, .seed = 3}, 5) == draw(logits, {.temperature = 1, .seed = 3}, 5));
}

}  // namespace trainer::generation_test
