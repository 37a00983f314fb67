// Every name that a job may use for a value, by enum. The table of fields takes its words from here, and so do the reader
// and name_of: a name is written once.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/check.h"
#include "engine/job/job.h"

namespace trainer {

template <typename E>
using Names = std::vector<std::pair<E, std::string_view>>;

/// The names of `E`, in the order in which messages list them.
template <typename E>
const Names<E>& names();

template <>
const Names<AdapterKind>& names();
template <>
const Names<DataFormat>& names();
template <>
const Names<Tokenizer>& names();
template <>
const Names<TokenType>& names();
template <>
const Names<Normalize>& names();
template <>
const Names<OptimizerName>& names();
template <>
const Names<Decay>& names();
template <>
const Names<States>& names();
template <>
const Names<MuonAdjust>& names();
template <>
const Names<ScheduleName>& names();
template <>
const Names<OnNan>& names();
template <>
const Names<CheckpointingMode>& names();
template <>
const Names<DataKind>& names();
template <>
const Names<Sharding>& names();
template <>
const Names<Keep>& names();
template <>
const Names<Reduce>& names();
template <>
const Names<Compression::Kind>& names();
template <>
const Names<ContextKind>& names();
template <>
const Names<PipelineSchedule>& names();
template <>
const Names<SplitPolicy>& names();
template <>
const Names<WrapPolicy>& names();
template <>
const Names<Profile>& names();
template <>
const Names<Device>& names();
template <>
const Names<Backend>& names();
template <>
const Names<CheckpointFormat>& names();
template <>
const Names<Goal>& names();

/// The names alone.
template <typename E>
std::vector<std::string_view> words() {
  std::vector<std::string_view> out;
  for (const auto& [value, name] : names<E>()) out.push_back(name);
  return out;
}

/// REQUIRES: `name` is a name of E (the reader has checked it).
template <typename E>
E value_named(std::string_view name) {
  for (const auto& [value, word] : names<E>()) {
    if (word == name) return value;
  }
  fail_check("known name", __FILE__, __LINE__, "\"" + std::string(name) + "\" passed the table of fields but has no value");
}

}  // namespace trainer
