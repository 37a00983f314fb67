// A folder with a tiny job whose checkpoints go to `ck`, what is visible there, and the command under faults
// (faults.cpp).
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/temporary.h"
#include "tests/tools/process.h"

namespace trainer::tests {

using Words = std::vector<std::string>;

/// Whether the long form was asked for: every operation, every fault, many kills. Some ten minutes.
inline bool is_long() { return std::getenv("TRAINER_LONG_TESTS") != nullptr; }

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Storm : public TemporaryFolder {
 public:
  Storm() {
    write("job.yaml", R"(name: tiny
model:
  graph: models/gpt2.yaml
  with: {layers: 1, heads: 1, dim: 8, vocab: 256, context: 8}
data: {format: text, train: text.txt, seq_len: 8}
train:
  steps: 4
  batch: {global: 4}
  optimizer: {lr: 1.0e-2}
  lr_schedule: {name: constant}
checkpoint: {dir: ck, every: 2, keep: 1}
)");
    std::string text;
    for (int i = 0; i < 60; ++i) text += "the quick brown fox jumps over the lazy dog\n";
    write("text.txt", text);
  }

  std::string checkpoints() const { return path("ck"); }

  /// `trainer run job.yaml` with overrides; `settings` are variables of the environment, as "NAME=value".
  Outcome run(const Words& overrides, const Words& settings = {}) const { return start(overrides, settings)->wait(); }
  std::unique_ptr<Process> start(const Words& overrides, const Words& settings = {}) const {
    return std::make_unique<Process>(path(), settings + Words{TRAINER_COMMAND, "run", "job.yaml"} + overrides,
                                     "/usr/bin/env");
  }

  /// Names in `ck` that are a checkpoint's, visible or hidden.
  Words names() const {
    Words found;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints(), none))
      if (const std::string name = entry.path().filename(); name.starts_with("step-") || name.starts_with(".step-"))
        found.push_back(name);
    std::sort(found.begin(), found.end());
    return found;
  }

  /// The visible checkpoints that `trainer inspect` does not find whole.
  Words broken() const {
    Words found;
    for (const std::string& name : names())
      if (!name.starts_with('.') && trainer(path(), {"inspect", "ck/" + name}).code != 0) found.push_back(name);
    return found;
  }

  /// Contents of the weights and states of a checkpoint, by file.
  std::map<std::string, std::string> weights(const std::string& name) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints() + "/" + name))
      if (entry.path().extension() == ".safetensors") files[entry.path().filename()] = contents_of(entry.path());
    return files;
  }

  void clear() const { std::filesystem::remove_all(checkpoints()); }
  void copy(const std::string& from, const std::string& to) const {
    std::filesystem::remove_all(path(to));
    std::filesystem::copy(path(from), path(to), std::filesystem::copy_options::recursive);
  }
};

}  // namespace trainer::tests
