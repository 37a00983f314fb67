// Interleaved 1F1B (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
// Megatron-LM", 2021, section 2.2.2): each stage holds v chunks, p chunks apart, and so fills the pipeline in steps of
// 1/v of its work. Micro-batches go in groups: a group passes a stage's first chunk, then its second, and so on;
// backward the chunks are taken in reverse.
//
// With p stages, v chunks a stage, m micro-batches and times F and B of all of a stage's chunks:
//   bubble: (p − 1)(F + B)/v a step, (p − 1)/(v m) of the ideal time, where m ≥ p;
//   live activations: at most 2(p − 1 − s) + (v − 1)g + 1 chunks on stage s with groups of g micro-batches.
// The paper takes groups of p, and requires p to divide m; then this is its schedule. Any other m is cut into ⌊m/p⌋
// groups of almost equal size, never smaller than p, so that a group's first micro-batch has always come round before
// the next chunk takes it: the bubble stays what it was, and groups larger than p cost their activations. (Groups
// smaller than p after larger ones would deadlock.) With m < p there is one group, and a stage waits p − m forwards and
// backwards more at every turn.
#include <algorithm>

#include "strategies/pipeline/actions.h"
#include "strategies/strategies.h"

namespace trainer::strategies {
namespace {

struct Turn {
  int micro_batch;
  int loop;  // which of the stage's chunks, in forward order
};

int num_groups(int stages, int micro_batches) { return std::max(1, micro_batches / stages); }

// The order in which every stage runs its forwards.
std::vector<Turn> turns(int stages, int virtual_stages, int micro_batches) {
  std::vector<Turn> turns;
  const int groups = num_groups(stages, micro_batches);
  int begin = 0;
  for (int group = 0; group < groups; ++group) {
    const int end = begin + micro_batches / groups + (group < micro_batches % groups ? 1 : 0);
    for (int loop = 0; loop < virtual_stages; ++loop)
      for (int i = begin; i < end; ++i) turns.push_back({i, loop});
    begin = end;
  }
  return turns;
}

}  // namespace

Schedule interleaved(int stages, int virtual_stages, int micro_batches) {
  Schedule schedule{in_loops(stages, virtual_stages), {}};
  const std::vector<Turn> order = turns(stages, virtual_stages, micro_batches);
  const int groups = num_groups(stages, micro_batches);
  const int largest_group = (micro_batches + groups - 1) / groups;
  for (int stage = 0; stage < stages; ++stage) {
    Actions actions;
    const auto forward = [&](const Turn& turn) { actions.forward(turn.micro_batch, turn.loop * stages + stage); };
    const auto backward = [&](const Turn& turn) {
      actions.backward(turn.micro_batch, (virtual_stages - 1 - turn.loop) * stages + stage);
    };

    const int ahead = 2 * (stages - 1 - stage) + (virtual_stages - 1) * largest_group;
    const std::size_t warm_up = std::min(order.size(), static_cast<std::size_t>(ahead));
    for (std::size_t i = 0; i < warm_up; ++i) forward(order[i]);
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i + warm_up < order.size()) forward(order[i + warm_up]);
      backward(order[i]);
    }
    schedule.stages.push_back(actions.take());
  }
  return schedule;
}

}  // namespace trainer::strategies
