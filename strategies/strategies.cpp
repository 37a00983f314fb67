// Names to strategies.
#include "strategies/strategies.h"

#include <fmt/format.h>

#include "engine/core/check.h"

namespace trainer::strategies {
namespace {

constexpr PipelineEntry kPipeline[] = {
#define TRAINER_SCHEDULE(schedule, ...) {{PipelineSchedule::schedule, __VA_ARGS__}, schedule},
#include "engine/job/pipeline_schedules.inc"
};

}  // namespace

std::unique_ptr<DataStrategy> data_strategy(const DataStrategyJob& job, bool pipelined) {
#define TRAINER_MAKE(kind) make_##kind,
  constexpr std::unique_ptr<DataStrategy> (*kMake[])(const DataStrategyJob&,
                                                     const ResolvedData&){TRAINER_DATA_KINDS(TRAINER_MAKE)};
  return kMake[static_cast<std::size_t>(job.kind)](job, resolve(job, pipelined));
}

std::unique_ptr<GradientCompression> compression(const Compression& job) {
  if (job.kind == Compression::Kind::none) return nullptr;
  constexpr std::unique_ptr<GradientCompression> (*kMake[])(const Compression&){TRAINER_COMPRESSIONS(TRAINER_MAKE)};
#undef TRAINER_MAKE
  return kMake[static_cast<std::size_t>(job.kind) - 1](job);  // `none` is the first
}

Space space_of(OffloadTo where) {
  switch (where) {
    case OffloadTo::none:
      return Space::device;
    case OffloadTo::host:
      return Space::host;
    case OffloadTo::disk:
      return Space::disk;
  }
  UNREACHABLE("a space for every place");
}

const PipelineEntry& pipeline_schedule(PipelineSchedule schedule, int stages) {
  return kPipeline[static_cast<std::size_t>(stages == 1 ? PipelineSchedule::one_f_one_b : schedule)];
}

std::optional<std::string> PipelineEntry::refuses(int stages, int virtual_stages, int micro_batches) const {
  if (stages < 1) return fmt::format("a pipeline of {} stages: at least 1", stages);
  if (micro_batches < 1) return fmt::format("{} micro-batches: at least 1", micro_batches);
  if (takes(virtual_stages)) return std::nullopt;
  const std::string allowed = least_virtual_stages == most_virtual_stages
                                  ? fmt::format("exactly {}", least_virtual_stages)
                                  : fmt::format("at least {}", least_virtual_stages);
  return fmt::format("{} with {} virtual stages: it takes {}", name, virtual_stages, allowed);
}

}  // namespace trainer::strategies
