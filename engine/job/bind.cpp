// From checked values to the typed Job: section by section, in an order in which each finds what it reads of others.
#include <filesystem>

#include "engine/job/check.h"
#include "engine/job/sections/sections.h"
#include "engine/job/values.h"

namespace trainer {
namespace {

/// A search over everything decides recomputation too, unless the job does.
void search_recomputation(Values& v) {
  CheckedValue& mode = v.checked().values.find("activation_checkpointing.mode")->second;
  if (mode.from == Setting::From::otherwise) mode.node.text = "auto";
}

/// The file's name without its suffix, if the job has no name.
void name_job(Values& v, const std::string& path) {
  if (v.has("name")) return;
  yaml::Node node;
  node.text = std::filesystem::path(path).stem().string();
  node.quoted = !node.as_string();
  v.checked().values["name"] = {node, Setting::From::otherwise};
  v.checked().order.insert(v.checked().order.begin(), "name");
}

}  // namespace

Job bind(Checked& checked, const std::string& path, const LoadOptions& options, std::vector<Diagnostic>& mistakes) {
  Values v(checked, path);
  name_job(v, path);
  Job job;
  job.name = v.text("name");
  if (v.right("seed")) job.seed = static_cast<std::uint64_t>(v.integer("seed"));
  job.model = bind_model(v, options, mistakes);
  if (v.right("adapter")) job.adapter = bind_adapter(v, job.model.folder, mistakes);
  if (!v.checked().doubtful.contains("trainable")) job.trainable = bind_trainable(v);
  job.data = v.right("data") ? bind_data(v, options, mistakes) : bind_samples(v, options, mistakes);
  if (v.right("train")) job.train = bind_train(v);
  if (v.right("eval") && !v.node("eval.every").is_null()) job.eval = bind_eval(v);
  if (v.right("precision")) job.precision = bind_precision(v);
  if (v.right("activation_checkpointing")) {
    if (v.has("strategy") && v.is("strategy", "auto")) search_recomputation(v);
    job.activation_checkpointing = bind_activation_checkpointing(v);
  }
  if (v.right("strategy")) job.strategy = bind_strategy(v);
  if (v.right("goal")) job.goal = v.word<Goal>("goal");
  if (v.right("cluster")) job.cluster = bind_cluster(v);
  if (v.right("checkpoint")) job.checkpoint = bind_checkpoint(v, job.name);
  OffloadJob& offload = job.strategy.offload;
  if (offload.uses_disk() && offload.dir.empty()) offload.dir = job.checkpoint.dir.value_or("");
  if (v.right("log")) job.log = bind_log(v);
  return job;
}

}  // namespace trainer
