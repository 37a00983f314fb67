// The list of strategies by name. One file each in data/ and pipeline/; adding one is its file and a line here.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/job/job.h"
#include "engine/plan/strategy.h"

namespace trainer::strategies {

/// The data strategy of a job. `pipelined`: there is more than one stage.
std::unique_ptr<DataStrategy> data_strategy(const DataStrategyJob& job, bool pipelined);

/// How a job's gradients are compressed; null: not at all.
std::unique_ptr<GradientCompression> compression(const Compression& job);

/// A pipeline schedule and what it asks for. Every one takes any number of stages and of micro-batches.
struct PipelineEntry {
  std::string_view name;
  ScheduleFunction make;
  int least_virtual_stages;
  int most_virtual_stages;  ///< kAnyVirtualStages: no limit
  bool splits_backward;     ///< uses backward_input and backward_weight in place of backward

  /// Why `make` may not be called with these, and what would do; or nothing.
  std::optional<std::string> refuses(int stages, int virtual_stages, int micro_batches) const;
};
inline constexpr int kAnyVirtualStages = std::numeric_limits<int>::max();

/// The pipeline schedule of that name, or null. One stage alone is "1f1b" of one stage: accumulation of gradients.
const PipelineEntry* pipeline_schedule(std::string_view name);
std::vector<std::string_view> pipeline_schedule_names();

// What data_strategy chooses from.
std::unique_ptr<DataStrategy> make_ddp();
std::unique_ptr<DataStrategy> make_zero(const DataStrategyJob& job, bool pipelined);
std::unique_ptr<DataStrategy> make_fsdp(const DataStrategyJob& job, bool pipelined);
std::unique_ptr<DataStrategy> make_local_sgd(const DataStrategyJob& job);

// What compression chooses from.
std::unique_ptr<GradientCompression> make_bf16();
std::unique_ptr<GradientCompression> make_int8();
std::unique_ptr<GradientCompression> make_top_k(double fraction);

// What pipeline_schedule chooses from.
Schedule gpipe(int stages, int virtual_stages, int micro_batches);
Schedule one_forward_one_backward(int stages, int virtual_stages, int micro_batches);
Schedule interleaved(int stages, int virtual_stages, int micro_batches);
Schedule looped_bfs(int stages, int virtual_stages, int micro_batches);
Schedule zb_h1(int stages, int virtual_stages, int micro_batches);
Schedule zb_h2(int stages, int virtual_stages, int micro_batches);
Schedule zb_v(int stages, int virtual_stages, int micro_batches);

}  // namespace trainer::strategies
