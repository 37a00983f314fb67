// Each key is printed by its record; keys that the strategy does not take are left out.
#include "engine/report/strategy_json.h"

#include <nlohmann/json.hpp>

#include "engine/job/data_strategies.h"
#include "engine/job/resolve.h"

namespace trainer::report {
namespace {

using Json = nlohmann::ordered_json;

template <typename E>
std::string text(E value) {
  return std::string(name_of(value));
}

Json json_of(const KeyValue& key) {
  const auto json = [](const auto& value) -> Json {
    if constexpr (requires { value.front().first; }) {
      Json section = Json::object();
      for (const auto& [name, one] : value) section[name] = json_of(one);
      return section;
    } else {
      return value;
    }
  };
  return std::visit(json, key.value);
}

// The keys that the strategy takes, with nothing left to `auto`.
Json data_json(DataStrategyJob data, const Mesh& mesh) {
  const ResolvedData resolved = resolve(data, mesh.size(Axis::pipeline) > 1);
  data.replicate = resolved.secondary ? 1 : mesh.size(Axis::replicate);
  if (resolved.secondary) data.secondary = mesh.group_size(kSliceAxes);
  data.keep = resolved.keep;
  data.reduce = resolved.reduce;
  Json json{{"kind", text(data.kind)}};
  const DataRecord& record = record_of(data);
  for (const DataKey& key : data_keys())
    if (record.takes(key.field.name)) json[std::string(key.field.name)] = json_of(key.value(data));
  return json;
}

Json pipeline_json(const PipelineStrategyJob& pipeline, int degree) {
  Json json{{"degree", degree}};
  if (pipeline.schedule_file.empty())
    json.update({{"schedule", text(pipeline.schedule)}, {"virtual_stages", pipeline.virtual_stages}});
  else
    json["schedule"] = {{"file", pipeline.schedule_file}};
  json["split"] =
      pipeline.split_policy == SplitPolicy::names ? Json(pipeline.split) : Json(text(pipeline.split_policy));
  return json;
}

Json wrap_json(const WrapJob& wrap) {
  Json json{{"policy", text(wrap.policy)}};
  if (wrap.policy == WrapPolicy::transformer) json["block"] = wrap.block;
  if (wrap.policy == WrapPolicy::size) json["min_params"] = wrap.min_params;
  if (wrap.policy == WrapPolicy::names) json["names"] = wrap.names;
  if (!wrap.excluded.empty()) json["excluded"] = wrap.excluded;
  return json;
}

}  // namespace

Json explicit_strategy(const StrategyJob& strategy, const Mesh& mesh) {
  Json json{{"data", data_json(strategy.data, mesh)}};
  const int tensor = mesh.size(Axis::tensor), pipeline = mesh.size(Axis::pipeline);
  if (tensor > 1) json["tensor"] = {{"degree", tensor}, {"sequence_parallel", strategy.tensor.sequence_parallel}};
  if (tensor > 1 && strategy.tensor.sequence_parallel) json["tensor"]["keep"] = text(strategy.tensor.keep);
  if (tensor > 1 && strategy.tensor.overlap) json["tensor"]["overlap"] = true;
  if (mesh.size(Axis::expert) > 1) json["expert"] = {{"degree", mesh.size(Axis::expert)}};
  if (mesh.size(Axis::context) > 1)
    json["context"] = {{"degree", mesh.size(Axis::context)}, {"kind", text(strategy.context.kind)}};
  if (pipeline > 1) json["pipeline"] = pipeline_json(strategy.pipeline, pipeline);
  const OffloadJob& offload = strategy.offload;
  if (offload.any()) {
    for (const auto& [key, place] : offload.parts()) json["offload"][std::string(key)] = text(place);
    if (offload.optimizer == OffloadTo::host) json["offload"]["update"] = text(offload.update);
    if (offload.uses_disk()) json["offload"]["dir"] = offload.dir;
  }
  json["wrap"] = wrap_json(strategy.wrap);
  return json;
}

}  // namespace trainer::report
