// What the schedules of this folder are written with: one stage's list of actions, and the two ways in which a stage
// holds chunks.
#pragma once

#include <utility>
#include <vector>

#include "engine/plan/strategy.h"

namespace trainer::strategies {

/// One stage's actions while they are listed.
class Actions {
 public:
  void forward(int micro_batch, int chunk) { list_.push_back({Action::Kind::forward, micro_batch, chunk}); }
  void backward(int micro_batch, int chunk) { list_.push_back({Action::Kind::backward, micro_batch, chunk}); }
  void backward_input(int micro_batch, int chunk) {
    list_.push_back({Action::Kind::backward_input, micro_batch, chunk});
  }
  void backward_weight(int micro_batch, int chunk) {
    list_.push_back({Action::Kind::backward_weight, micro_batch, chunk});
  }
  std::vector<Action> take() { return std::move(list_); }

 private:
  std::vector<Action> list_;
};

/// Chunk c lives on stage c mod stages: with one virtual stage a line, with more a loop.
inline std::vector<int> in_loops(int stages, int virtual_stages) {
  std::vector<int> stage_of_chunk;
  for (int chunk = 0; chunk < stages * virtual_stages; ++chunk) stage_of_chunk.push_back(chunk % stages);
  return stage_of_chunk;
}

/// Two chunks a stage: 0 to stages − 1 on the way there, the others on the way back, so that stage 0 has the first and
/// the last.
inline std::vector<int> in_a_v(int stages) {
  std::vector<int> stage_of_chunk;
  for (int chunk = 0; chunk < 2 * stages; ++chunk)
    stage_of_chunk.push_back(chunk < stages ? chunk : 2 * stages - 1 - chunk);
  return stage_of_chunk;
}

}  // namespace trainer::strategies
