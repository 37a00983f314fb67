// Names to strategies.
#include "strategies/strategies.h"

#include <array>
#include <utility>

namespace trainer::strategies {
namespace {

constexpr std::array<std::pair<std::string_view, std::unique_ptr<DataStrategy> (*)()>, 1> kData{{
    {"ddp", make_ddp},
}};

constexpr std::array<std::pair<std::string_view, ScheduleFunction>, 1> kPipeline{{
    {"single_stage", single_stage},
}};

}  // namespace

std::unique_ptr<DataStrategy> data_strategy(std::string_view name) {
  for (const auto& [known, make] : kData)
    if (known == name) return make();
  return nullptr;
}

std::vector<std::string_view> data_strategy_names() {
  std::vector<std::string_view> names;
  for (const auto& entry : kData) names.push_back(entry.first);
  return names;
}

ScheduleFunction pipeline_schedule(std::string_view name) {
  for (const auto& [known, schedule] : kPipeline)
    if (known == name) return schedule;
  return nullptr;
}

}  // namespace trainer::strategies
