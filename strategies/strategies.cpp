// Names to strategies.
#include "strategies/strategies.h"

#include <fmt/format.h>

namespace trainer::strategies {
namespace {

// Name, function, virtual stages from and to, whether it splits the backward.
constexpr PipelineEntry kPipeline[] = {
    {"gpipe", gpipe, 1, 1, false},
    {"1f1b", one_forward_one_backward, 1, 1, false},
    {"interleaved", interleaved, 2, kAnyVirtualStages, false},
    {"looped_bfs", looped_bfs, 1, kAnyVirtualStages, false},
    {"zb_h1", zb_h1, 1, 1, true},
    {"zb_h2", zb_h2, 1, 1, true},
    {"zb_v", zb_v, 2, 2, true},
};

}  // namespace

std::unique_ptr<DataStrategy> data_strategy(const DataStrategyJob& job, bool pipelined) {
  switch (job.kind) {
    case DataKind::ddp:
      return make_ddp();
    case DataKind::zero1:
    case DataKind::zero2:
    case DataKind::zero3:
      return make_zero(job, pipelined);
    case DataKind::fsdp:
      return make_fsdp(job, pipelined);
    case DataKind::local_sgd:
      return make_local_sgd(job);
  }
  return nullptr;
}

std::unique_ptr<GradientCompression> compression(const Compression& job) {
  switch (job.kind) {
    case Compression::Kind::none:
      return nullptr;
    case Compression::Kind::bf16:
      return make_bf16();
    case Compression::Kind::int8:
      return make_int8();
    case Compression::Kind::top_k:
      return make_top_k(job.fraction);
  }
  return nullptr;
}

const PipelineEntry* pipeline_schedule(std::string_view name) {
  for (const PipelineEntry& entry : kPipeline)
    if (entry.name == name) return &entry;
  return nullptr;
}

std::vector<std::string_view> pipeline_schedule_names() {
  std::vector<std::string_view> names;
  for (const PipelineEntry& entry : kPipeline) names.push_back(entry.name);
  return names;
}

std::optional<std::string> PipelineEntry::refuses(int stages, int virtual_stages, int micro_batches) const {
  if (stages < 1) return fmt::format("a pipeline of {} stages: at least 1", stages);
  if (micro_batches < 1) return fmt::format("{} micro-batches: at least 1", micro_batches);
  if (virtual_stages >= least_virtual_stages && virtual_stages <= most_virtual_stages) return std::nullopt;
  const std::string allowed = least_virtual_stages == most_virtual_stages
                                  ? fmt::format("exactly {}", least_virtual_stages)
                                  : fmt::format("at least {}", least_virtual_stages);
  return fmt::format("{} with {} virtual stages: it takes {}", name, virtual_stages, allowed);
}

}  // namespace trainer::strategies
