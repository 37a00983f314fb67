// Facts to JSON and back.
#include "engine/train/saved_facts.h"

#include <nlohmann/json.hpp>

#include "engine/core/error.h"

namespace trainer {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
void take(const Json& json, const char* key, T& value) {
  if (json.contains(key)) value = json.at(key).get<T>();
}

Json to_json(const SavedJob& job) {
  Json settings = Json::object();
  for (const auto& [path, value] : job.settings) settings[path] = value;
  return {{"settings", std::move(settings)}, {"graph", job.graph}, {"data", job.data}};
}

SavedJob job_from(const Json& json) {
  SavedJob job;
  for (const auto& [path, value] : json.at("settings").items())
    job.settings.emplace_back(path, value.get<std::string>());
  take(json, "graph", job.graph);
  take(json, "data", job.data);
  return job;
}

// Lists of parameters by the name of their optimizer, which is shorter.
Json to_json(const std::map<std::string, std::string>& optimizers) {
  Json json = Json::object();
  for (const auto& [parameter, optimizer] : optimizers) json[optimizer].push_back(parameter);
  return json;
}

std::map<std::string, std::string> optimizers_from(const Json& json) {
  std::map<std::string, std::string> optimizers;
  for (const auto& [optimizer, parameters] : json.items())
    for (const Json& parameter : parameters) optimizers.emplace(parameter.get<std::string>(), optimizer);
  return optimizers;
}

Json to_json(const SavedBase& base) {
  Json json{{"hash", base.hash}, {"from", base.from}, {"tensors", base.tensors}};
  if (base.quantization != Quantization::none)
    json["quantized"] = {{"as", name_of(base.quantization)}, {"matrices", base.quantized}};
  return json;
}

SavedBase base_from(const Json& json, const std::string& path) {
  SavedBase base;
  for (const auto& [key, text] : {std::pair("hash", &base.hash), std::pair("from", &base.from)})
    *text = json.at(key).get<std::string>();
  base.tensors = json.at("tensors").get<std::vector<std::string>>();
  if (!json.contains("quantized")) return base;
  const auto as = json["quantized"].at("as").get<std::string>();
  base.quantized = json["quantized"].at("matrices").get<std::vector<std::string>>();
  for (const Quantization known : {Quantization::int8, Quantization::nf4})
    if (as == name_of(known)) base.quantization = known;
  if (base.quantization == Quantization::none)
    throw DataError(path + ": the base of this adapter was quantized as " + as + ", which is not known here");
  return base;
}

}  // namespace

std::string canonical_json(const std::string& text) { return nlohmann::json::parse(text).dump(); }

std::string metadata_of(const SavedFacts& facts) {
  Json json{{"name", facts.name}, {"strategy", facts.strategy}, {"world_size", facts.world_size}};
  if (!facts.tokenizer.empty()) json["tokenizer"] = Json::parse(facts.tokenizer);
  if (!facts.run_id.empty()) json["run"] = facts.run_id;
  if (facts.job) json["job"] = to_json(*facts.job);
  if (!facts.optimizers.empty()) json["optimizers"] = to_json(facts.optimizers);
  if (facts.base) json["base"] = to_json(*facts.base);
  if (facts.val_loss) json["val_loss"] = *facts.val_loss;
  if (facts.after_skipped) json["after_skipped"] = true;
  if (facts.batches_left_out > 0) json["batches_left_out"] = facts.batches_left_out;
  if (facts.rollbacks > 0) json["rollbacks"] = facts.rollbacks;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

SavedFacts facts_of(const checkpoint::Manifest& manifest, const std::string& path) {
  SavedFacts facts;
  try {
    const Json json = Json::parse(manifest.metadata);
    if (!json.is_object()) return facts;
    take(json, "name", facts.name);
    take(json, "strategy", facts.strategy);
    take(json, "world_size", facts.world_size);
    if (json.contains("tokenizer")) facts.tokenizer = canonical_json(json["tokenizer"].dump());
    take(json, "run", facts.run_id);
    if (json.contains("job")) facts.job = job_from(json["job"]);
    if (json.contains("optimizers")) facts.optimizers = optimizers_from(json["optimizers"]);
    if (json.contains("base")) facts.base = base_from(json["base"], path);
    if (json.contains("val_loss")) facts.val_loss = json["val_loss"].get<double>();
    take(json, "after_skipped", facts.after_skipped);
    take(json, "batches_left_out", facts.batches_left_out);
    take(json, "rollbacks", facts.rollbacks);
  } catch (const Json::exception& error) {
    throw DataError(path + ": the manifest's metadata is malformed: " + error.what());
  }
  if (facts.batches_left_out < 0 || facts.batches_left_out > INT64_MAX / 2)
    throw DataError(path + ": the manifest's metadata has a batches_left_out that cannot be");
  return facts;
}

}  // namespace trainer
