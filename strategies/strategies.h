// The code of strategies by the names of jobs: one file each in data/, compression/ and pipeline/. Their records, which
// say what they are to whoever needs no code, are engine/job/data_strategies.h and engine/job/pipeline_schedules.h. The
// linker names a strategy without code.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/job/pipeline_schedules.h"
#include "engine/job/resolve.h"
#include "engine/plan/strategy.h"

namespace trainer::strategies {

/// The data strategy of a job. `pipelined`: there is more than one stage.
std::unique_ptr<DataStrategy> data_strategy(const DataStrategyJob& job, bool pipelined);

/// How a job's gradients are compressed; null: not at all.
std::unique_ptr<GradientCompression> compression(const Compression& job);

/// Where a plan keeps what a job offloads.
Space space_of(OffloadTo where);

/// A pipeline schedule: its record and its function. Every one takes any number of stages and of micro-batches.
struct PipelineEntry : ScheduleRecord {
  ScheduleFunction make;

  /// Why `make` may not be called with these, and what would do; or nothing.
  std::optional<std::string> refuses(int stages, int virtual_stages, int micro_batches) const;
};

/// The schedule that `stages` stages run: `schedule`, or for one stage 1F1B, which there is accumulation of gradients.
const PipelineEntry& pipeline_schedule(PipelineSchedule schedule, int stages = 2);

// What data_strategy chooses from.
#define TRAINER_MAKE(kind) \
  std::unique_ptr<DataStrategy> make_##kind(const DataStrategyJob& job, const ResolvedData& data);
TRAINER_DATA_KINDS(TRAINER_MAKE)
#undef TRAINER_MAKE

// What compression chooses from.
#define TRAINER_MAKE(kind) std::unique_ptr<GradientCompression> make_##kind(const Compression& job);
TRAINER_COMPRESSIONS(TRAINER_MAKE)
#undef TRAINER_MAKE

// What pipeline_schedule chooses from.
#define TRAINER_SCHEDULE(schedule, ...) Schedule schedule(int stages, int virtual_stages, int micro_batches);
#include "engine/job/pipeline_schedules.inc"

}  // namespace trainer::strategies
