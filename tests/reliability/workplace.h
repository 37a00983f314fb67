// A folder with a tiny job and its text, and the command run through a shell, which closes streams and sets limits as
// users do.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/temporary.h"
#include "tests/tools/process.h"

namespace trainer::tests {

class Workplace : public TemporaryFolder {
 public:
  Workplace() {
    write("job.yaml", R"(name: tiny
model:
  graph: models/gpt2.yaml
  with: {layers: 2, heads: 2, dim: 16, vocab: 256, context: 8}
data: {format: text, train: text.txt, val: {fraction: 0.2}, seq_len: 8}
train:
  steps: 6
  batch: {global: 4}
  optimizer: {lr: 1.0e-2}
checkpoint: {dir: saved, every: 1000000}
log: {every: 1, jsonl: log.jsonl}
)");
    std::string text;
    for (int i = 0; i < 60; ++i) text += "the quick brown fox jumps over the lazy dog\n";
    write("text.txt", text);
  }

  /// Starts a line of bash in which $T is the command; `exec $T …` makes it the process itself.
  Process start(const std::string& line) const {
    return Process(path(), {"-c", "T='" TRAINER_COMMAND "'; " + line}, "/bin/bash");
  }
  Outcome operator()(const std::string& line) const { return start(line).wait(); }

  bool has(const std::string& name) const {
    std::error_code none;
    return std::filesystem::exists(path(name), none);
  }
  /// Steps of the checkpoints in a folder.
  std::vector<std::string> saved(const std::string& folder = "saved") const {
    std::vector<std::string> steps;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(path(folder), none))
      if (const std::string name = entry.path().filename(); name.starts_with("step-")) steps.push_back(name);
    return steps;
  }
};

/// Whether it becomes true within `seconds`.
inline bool within(double seconds, const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// Ends within `seconds`, or is killed and fails the test.
inline Outcome wait_at_most(Process& process, double seconds) {
  if (!within(seconds, [&] { return process.has_ended(); })) process.signal(SIGKILL);
  return process.wait();
}

/// A run that goes on until it is told to end.
inline constexpr const char* kEndless = "run job.yaml train.steps=100000000 log.every=1000000";

}  // namespace trainer::tests
