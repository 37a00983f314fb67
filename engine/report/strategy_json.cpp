#include "engine/report/strategy_json.h"

#include <nlohmann/json.hpp>

#include "engine/job/resolve.h"

namespace trainer::report {
namespace {

using Json = nlohmann::ordered_json;

template <typename E>
std::string text(E value) {
  return std::string(name_of(value));
}

Json compression_json(const Compression& compression) {
  if (compression.kind == Compression::Kind::top_k) return {{"top_k", compression.fraction}};
  return text(compression.kind);
}

Json outer_json(const std::optional<OuterJob>& outer) {
  if (!outer) return "none";
  Json json{{"lr", outer->lr}, {"momentum", outer->momentum}};
  if (outer->momentum > 0) json["nesterov"] = outer->nesterov;
  return json;
}

Json data_json(const DataStrategyJob& data, const Mesh& mesh) {
  const ResolvedData resolved = resolve(data, mesh.size(Axis::pipeline) > 1);
  const bool fsdp = data.kind == DataKind::fsdp, averages = data.kind == DataKind::local_sgd;
  Json json{{"kind", text(data.kind)}};
  if (fsdp) json["sharding"] = text(data.sharding);
  if (fsdp && resolved.shard_parameters) json["replicate"] = mesh.size(Axis::replicate);
  if (resolved.shard_parameters) json["keep"] = text(resolved.keep);
  if (fsdp || data.kind == DataKind::ddp || data.kind == DataKind::zero3) json["reduce"] = text(resolved.reduce);
  if (resolved.shard_parameters) json["prefetch"] = data.prefetch;
  json["bucket_mb"] = data.bucket_mb;
  if (!averages) json["compression"] = compression_json(data.compression);
  if (averages) json.update({{"every", data.every}, {"outer", outer_json(data.outer)}, {"delayed", data.delayed}});
  return json;
}

Json pipeline_json(const PipelineStrategyJob& pipeline, int degree) {
  Json json{{"degree", degree}, {"schedule", text(pipeline.schedule)}, {"virtual_stages", pipeline.virtual_stages}};
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
  if (mesh.size(Axis::context) > 1)
    json["context"] = {{"degree", mesh.size(Axis::context)}, {"kind", text(strategy.context.kind)}};
  if (pipeline > 1) json["pipeline"] = pipeline_json(strategy.pipeline, pipeline);
  json["wrap"] = wrap_json(strategy.wrap);
  return json;
}

}  // namespace trainer::report
