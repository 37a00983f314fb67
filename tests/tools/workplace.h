// A folder with a tiny job for tests of commands: a small GPT over a small text, and what reads the commands' output.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/temporary.h"
#include "tests/tools/process.h"

namespace trainer::tests {

inline constexpr const char* kJob = R"(name: tiny
model:
  graph: models/gpt2.yaml
  with: {layers: 2, heads: 2, dim: 16, vocab: 256, context: 8}
data:
  format: text
  train: text.txt
  val: {fraction: 0.2}
  seq_len: 8
train:
  steps: 6
  batch: {global: 4}
  optimizer: {lr: 1.0e-2}
eval: {every: 3, batches: 2}
checkpoint: {dir: runs, every: 2, keep: 3}
log: {every: 2, jsonl: logs/log.jsonl, tensorboard: logs/tb, trace: logs/trace.json}
)";

inline std::string lines_of_text(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) text += "the quick brown fox jumps over the lazy dog\n";
  return text;
}

// A folder with a job and its text.
class Workplace : public TemporaryFolder {
 public:
  explicit Workplace(const std::string& job = kJob) {
    write("job.yaml", job);
    write("text.txt", lines_of_text(60));
  }
  Outcome operator()(std::vector<std::string> arguments) const { return trainer::tests::trainer(path(), arguments); }
  /// The same with another job beside it.
  std::string with_change(const std::string& from, const std::string& to) const {
    std::string job = kJob;
    const std::size_t at = job.find(from);
    REQUIRE(at != std::string::npos);
    job.replace(at, from.size(), to);
    write("changed.yaml", job);
    return "changed.yaml";
  }
};

inline nlohmann::json parsed(const Outcome& outcome) {
  INFO(outcome.err);
  const nlohmann::json document = nlohmann::json::parse(outcome.out, nullptr, false);
  REQUIRE_FALSE(document.is_discarded());
  return document;
}

inline std::set<std::string> keys_of(const nlohmann::json& object) {
  std::set<std::string> keys;
  for (const auto& item : object.items()) keys.insert(item.key());
  return keys;
}

inline bool has_keys(const nlohmann::json& object, const std::set<std::string>& wanted) {
  const std::set<std::string> keys = keys_of(object);
  return std::includes(keys.begin(), keys.end(), wanted.begin(), wanted.end());
}

inline std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(contents_of(path));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

inline void flip_byte(const std::string& path, std::int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
}

}  // namespace trainer::tests
