// What the sharded data strategies are made of: what a rank holds of a unit, how long a gathered copy is kept, and when gradients are
// reduced. zero.cpp and fsdp.cpp name the combinations.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/plan/strategy.h"

namespace trainer::strategies {

enum class KeepGathered : std::uint8_t { use, pass, step };
enum class ReduceWhen : std::uint8_t { micro_batch, step };

struct ShardedSettings {
  std::string name;
  bool shard_parameters = false;  ///< false: each rank keeps the whole working copy (ZeRO-1 and 2)
  KeepGathered keep = KeepGathered::use;
  ReduceWhen reduce = ReduceWhen::micro_batch;
  int prefetch = 1;
};

std::unique_ptr<DataStrategy> make_sharded(const ShardedSettings& settings);

}  // namespace trainer::strategies
