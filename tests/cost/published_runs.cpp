// The sections of an entry become those of a job.
#include "tests/cost/published_runs.h"

#include "engine/core/error.h"
#include "engine/job/yaml.h"

namespace trainer {
namespace {

const yaml::Node& need(const yaml::Node& entry, const char* key) {
  const yaml::Node* found = entry.find(key);
  if (found == nullptr) throw JobError({entry.at(key, "a published run lacks this")});
  return *found;
}

std::string text_of(const yaml::Node& entry, const char* key) {
  const yaml::Node* found = entry.find(key);
  return found == nullptr ? "" : found->text;
}

double number_of(const yaml::Node& entry, const char* key) { return need(entry, key).as_number().value(); }

std::string job_of(const yaml::Node& entry) {
  const yaml::Node& batch = need(entry, "batch");
  std::string job = "name: " + need(entry, "id").text + "\n";
  job += "model: " + need(entry, "model").flow() + "\n";
  job += "data: {format: tokens, train: [tokens.bin], seq_len: " + need(batch, "seq_len").text + "}\n";
  job += "train: {steps: 1000, batch: {global: " + need(batch, "global").text +
         ", micro: " + need(batch, "micro").text + "}";
  if (const yaml::Node* train = entry.find("train")) job += ", clip_norm: " + need(*train, "clip_norm").text;
  job += "}\n";
  for (const char* section : {"precision", "activation_checkpointing", "strategy", "cluster"})
    job += std::string(section) + ": " + need(entry, section).flow() + "\n";
  return job;
}

PublishedRun read_run(const yaml::Node& entry) {
  PublishedRun run;
  const yaml::Node& cluster = need(entry, "cluster");
  run.id = need(entry, "id").text;
  run.software = need(entry, "software").text;
  run.hardware = need(cluster, "hardware").text;
  run.certainty = need(entry, "certainty").text;
  run.differs = text_of(entry, "differs");
  run.materialised = need(entry, "attention").text == "materialised";
  run.is_long = entry.find("long") != nullptr;
  run.nodes = static_cast<int>(number_of(cluster, "nodes"));
  run.devices_per_node = static_cast<int>(number_of(cluster, "devices_per_node"));
  if (const yaml::Node* network = entry.find("network"))
    run.network_bytes = number_of(*network, "gbit_per_device") * 1e9 / 8;
  if (entry.find("step_ms") != nullptr) run.step_ms = number_of(entry, "step_ms");
  if (entry.find("memory_gib") != nullptr) run.memory_gib = number_of(entry, "memory_gib");
  run.study = text_of(entry, "study");
  run.job = job_of(entry);
  return run;
}

}  // namespace

std::vector<PublishedRun> read_published_runs(const std::string& path) {
  const yaml::Node tree = yaml::read_file(path);
  std::vector<PublishedRun> runs;
  runs.reserve(tree.items.size());
  for (const yaml::Node& entry : tree.items) runs.push_back(read_run(entry));
  return runs;
}

}  // namespace trainer
