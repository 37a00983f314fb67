// Sections `cluster`, `checkpoint` and `log`: where a run happens, what it saves and tells.
#include "engine/job/sections/sections.h"

#include <algorithm>

#include "engine/job/bytes.h"
#include "engine/job/sections/define.h"
#include "engine/job/values.h"

namespace trainer {
namespace {

using namespace form;

constexpr double kMostDevices = 4096;  // no real job reaches it

/// As one part of a path.
std::string folder_name(std::string name) {
  std::replace(name.begin(), name.end(), '/', '_');
  if (name.starts_with('.')) name.front() = '_';
  return name;
}

}  // namespace

Fields cluster_fields() {
  const FieldDef backend = optional(
      "backend", "What communicates: threads of one process, mpi between CPUs, nccl between GPUs.", {}, "auto");
  const auto with_words = [](FieldDef field, std::vector<std::string_view> words) {
    field.forms = {word(std::move(words))};
    return field;
  };
  const std::string_view devices = "Ranks of a machine; auto: all GPUs, or one rank with all cores.";
  return {
      optional("device", "What computes.", {word(words<Device>())}, "auto"),
      with_words(backend, words<Backend>()).when("device", {"auto"}),
      with_words(backend, {"auto", "threads", "mpi"}).when("device", {"cpu"}),
      with_words(backend, {"auto", "mpi", "nccl"}).when("device", {"cuda"}),
      optional("nodes", "Machines.", {integer(1, 1)}, "1").when("backend", {"threads"}),
      optional("nodes", "Machines.", {integer(1, kMostRanks)}, "1").when("backend", {"auto", "mpi", "nccl"}),
      optional("devices_per_node", devices, {word({"auto"}), integer(1, kMostDevices)}, "auto"),
      optional("hardware", "A name in configs/hardware/ or a path; auto: this machine.", {text()}, "auto"),
      optional("memory_limit", "Bytes of a rank that a plan may use, where that is less than the device has.",
               {null(), form::bytes()}, "null"),
      optional("price_per_device_hour", "In any currency; null: the hardware file's.", {null(), positive()}, "null"),
  };
}

ClusterJob bind_cluster(Values& v) {
  ClusterJob cluster;
  cluster.device = v.word<Device>("cluster.device");
  cluster.backend = v.word<Backend>("cluster.backend");
  cluster.nodes = v.integer("cluster.nodes");
  cluster.devices_per_node = v.integer_or_nothing("cluster.devices_per_node");
  const std::string& hardware = v.text("cluster.hardware");
  // A path has a slash or a suffix; a name has neither.
  const bool is_path = hardware.find('/') != std::string::npos || hardware.ends_with(".yaml");
  if (hardware != "auto") cluster.hardware = is_path ? *v.file("cluster.hardware") : hardware;
  cluster.memory_limit = bytes_of(v.node("cluster.memory_limit"));
  const yaml::Node& price = v.node("cluster.price_per_device_hour");
  if (!price.is_null()) cluster.price_per_device_hour = v.number("cluster.price_per_device_hour");
  return cluster;
}

Fields checkpoint_fields() {
  return {
      optional("dir", "Where checkpoints are written; auto: runs/<name> beside the job; null: nowhere.",
               {null(), text()}, "auto"),
      optional("every", "Steps from one checkpoint to the next; the last step is always saved.", {integer(1)}, "500")
          .when("dir"),
      optional("keep", "How many are kept, the newest; null: all.", {null(), integer(1)}, "2").when("dir"),
      optional("keep_best", "And the one with the lowest validation loss; each new lowest is saved.", {flag()}, "false")
          .when("dir"),
      optional("behind", "Files are written while the next steps run, from a copy in host memory, if it fits.",
               {flag()}, "true")
          .when("dir"),
      optional("format", "full: one file. sharded: one for each rank that owns data.",
               {word(words<CheckpointFormat>())}, "full")
          .when("dir"),
      optional("resume", "auto: from the newest whole checkpoint in dir. none: from the start. Or a step's directory.",
               {text()}, "auto")
          .when("dir"),
      optional("accept", "What may differ from the checkpoint's job that otherwise may not.",
               {list(word({"model", "data", "tokenizer", "seq_len", "batch", "seed", "optimizer", "objective"}), 0)},
               "[]")
          .when("dir"),
  };
}

CheckpointJob bind_checkpoint(Values& v, const std::string& name) {
  CheckpointJob checkpoint;
  CheckedValue& dir = v.checked().values.find("checkpoint.dir")->second;
  if (dir.node.as_string() && dir.node.text == "auto")
    dir.node.text = v.beside_job("runs/" + folder_name(name), dir.node);
  checkpoint.dir = v.file("checkpoint.dir");
  if (!checkpoint.dir) return checkpoint;
  checkpoint.every = v.integer("checkpoint.every");
  checkpoint.keep = v.integer_or_nothing("checkpoint.keep");
  checkpoint.keep_best = v.flag("checkpoint.keep_best");
  checkpoint.behind = v.flag("checkpoint.behind");
  checkpoint.format = v.word<CheckpointFormat>("checkpoint.format");
  checkpoint.accept = v.texts("checkpoint.accept");
  using Resume = CheckpointJob::Resume;
  const std::string& resume = v.text("checkpoint.resume");
  checkpoint.resume = resume == "auto" ? Resume::automatic : resume == "none" ? Resume::none : Resume::path;
  if (checkpoint.resume == Resume::path) checkpoint.resume_from = *v.file("checkpoint.resume");
  return checkpoint;
}

Fields log_fields() {
  return {
      optional("every", "Steps from one line of progress to the next.", {integer(1)}, "10"),
      optional("jsonl", "A file that gets one JSON object per step.", {null(), text()}, "null"),
      optional("tensorboard", "A directory for TensorBoard.", {null(), text()}, "null"),
      optional("trace", "A file for a trace of the run.", {null(), text()}, "null"),
  };
}

LogJob bind_log(Values& v) {
  return {v.integer("log.every"), v.file("log.jsonl"), v.file("log.tensorboard"), v.file("log.trace")};
}

}  // namespace trainer
