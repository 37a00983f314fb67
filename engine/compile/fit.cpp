// Changes are tried by the search's scores of memory; nothing is planned for them.
#include "engine/compile/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "engine/compile/hardware.h"
#include "engine/compile/optimizers.h"
#include "engine/compile/profile_cache.h"
#include "engine/compile/trained.h"
#include "engine/core/amounts.h"
#include "engine/cost/machine_model.h"
#include "engine/job/unsupported.h"

namespace trainer {
namespace {

std::int64_t divided_up(std::int64_t number, std::int64_t by) { return (number + by - 1) / by; }

struct Parameters {
  std::int64_t trained = 0, frozen = 0, frozen_bytes = 0;
  // Of a trained one: the f32 weight, the optimizer's states, the gradient, and a copy to compute with where that has
  // another dtype.
  double bytes_of_trained = 0;
};

Parameters parameters_of(const LoadedJob& loaded) {
  const Graph graph = whole_graph(loaded);
  Parameters result;
  for (const Parameter& parameter : graph.parameters) {
    const Value& value = graph.value(parameter.value);
    if (parameter.trainable)
      result.trained += value.shape().elements();
    else
      result.frozen_bytes += value.desc().bytes();
  }
  result.frozen = graph.num_parameters() - result.trained;
  const PrecisionJob& precision = loaded.job.precision;
  const std::int64_t working = cost::working_bytes_on_device(loaded.job);
  if (working == 0) result.frozen_bytes = 0;
  const bool keeps_gradients = loaded.job.strategy.offload.gradients == OffloadTo::none;
  result.bytes_of_trained = static_cast<double>((keeps_gradients ? size_of(precision.reduce) : 0) +
                                                (precision.compute == DType::f32 ? 0 : working)) +
                            cost::bytes_on_device(loaded.job, state_bytes(loaded, graph));
  return result;
}

// Of a rank, with the best sharding.
std::int64_t least_bytes(const LoadedJob& loaded, const Parameters& parameters) {
  const auto trained = static_cast<std::int64_t>(static_cast<double>(parameters.trained) * parameters.bytes_of_trained);
  return divided_up(trained + parameters.frozen_bytes, world_size_of(loaded.job));
}

std::int64_t ranks_of_node(const Job& job) { return std::max<std::int64_t>(1, world_size_of(job) / job.cluster.nodes); }

// Tries changes of one job.
class Remedies {
 public:
  Remedies(const LoadedJob& loaded, const Hardware& hardware)
      : loaded_(loaded), hardware_(hardware), machine_(*hardware.machine) {
    limit_ = memory_limit(loaded.job, hardware, ranks_of_node(loaded.job));
    least_devices_ =
        divided_up(least_states_bytes(loaded) * world_size_of(loaded.job), std::max<std::int64_t>(1, limit_));
  }

  std::vector<Suggestion> run() {
    if (least_devices_ <= world_size_of(loaded_.job)) {
      single_keys();
      if (result_.empty()) whole_strategy();
    }
    if (result_.empty()) {
      offloaded_optimizer();
      more_devices();
    }
    return std::move(result_);
  }

 private:
  struct Change {
    LoadedJob loaded;
    std::vector<std::string> overrides;

    void set(const std::string& override, const std::function<void(Job&)>& change) {
      change(loaded.job);
      overrides.push_back(override);
    }
  };

  bool attempt(const Change& change) {
    ProfileCache profiles(change.loaded, hardware_);
    const auto found =
        cost::first_fit(search_space(change.loaded.job, hardware_, state_bytes(change.loaded)), profiles);
    if (found) result_.push_back({change.overrides, "fits: " + cost::text_of(*found), 0});
    return found.has_value();
  }

  static void free_recomputation(Change& change) {
    if (change.loaded.job.activation_checkpointing.mode != CheckpointingMode::automatic)
      change.set("activation_checkpointing.mode=auto",
                 [](Job& job) { job.activation_checkpointing.mode = CheckpointingMode::automatic; });
  }
  static void free_gathered(Change& change) {
    const TensorStrategyJob& tensor = change.loaded.job.strategy.tensor;
    if (tensor.sequence_parallel && tensor.keep == TensorKeep::gathered)
      change.set("strategy.tensor.keep=auto", [](Job& job) { job.strategy.tensor.keep = TensorKeep::automatic; });
  }
  static void free_micro(Change& change) {
    if (change.loaded.job.train.batch.micro.value_or(1) > 1)
      change.set("train.batch.micro=auto", [](Job& job) { job.train.batch.micro.reset(); });
  }
  static void free_data(Change& change) {
    if (!change.loaded.job.strategy.free.data)
      change.set("strategy.data=auto", [](Job& job) { job.strategy.free.data = true; });
  }

  void single_keys() {
    for (const auto& free : {free_gathered, free_recomputation, free_micro, free_data}) {
      Change change{loaded_, {}};
      free(change);
      if (!change.overrides.empty()) attempt(change);
    }
  }

  // Everything that leaves model, data and batch as they are.
  Change all_free() const {
    Change change{loaded_, {}};
    const FreeParts& free = loaded_.job.strategy.free;
    if (!(free.data && free.tensor && free.sequence_parallel && free.pipeline && free.schedule && free.virtual_stages &&
          free.context && free.expert))
      change.set("strategy=auto", [](Job& job) {
        job.strategy.free = StrategyJob{}.free;
        job.strategy.tensor.keep = TensorKeep::automatic;
      });
    free_recomputation(change);
    free_micro(change);
    return change;
  }

  void whole_strategy() {
    Change change = all_free();
    if (!change.overrides.empty() && attempt(change)) return;
    const DType compute = loaded_.job.precision.compute;
    if (compute != DType::f32 || !machine_.device.peak.contains(DType::bf16)) return;
    change.set("precision.compute=bf16", [](Job& job) { job.precision.compute = DType::bf16; });
    attempt(change);
  }

  // Master weights and the optimizer's states in the memory of a GPU's host, if it holds them, or on a CPU's disk: data
  // ranks alone.
  void offloaded_optimizer() {
    const Job& job = loaded_.job;
    const bool cuda = machine_.device.kind == cost::DeviceKind::cuda;
    if (job.strategy.offload.optimizer != OffloadTo::none || (!cuda && !job.checkpoint.dir)) return;
    Change change{loaded_, {}};
    change.set(cuda ? "strategy={data: auto, offload: host}" : "strategy={data: auto, offload: disk}", [&](Job& to) {
      to.strategy = StrategyJob{};
      to.strategy.free = {};
      to.strategy.free.data = true;
      to.strategy.offload.optimizer = cuda ? OffloadTo::host : OffloadTo::disk;
    });
    const Parameters before = parameters_of(loaded_), after = parameters_of(change.loaded);
    const double moved = (before.bytes_of_trained - after.bytes_of_trained) * static_cast<double>(before.trained);
    const auto host = static_cast<double>(machine_.host_memory_bytes * job.cluster.nodes);
    if (least_bytes(change.loaded, after) > limit_ || (cuda && host > 0 && moved > host)) return;
    free_recomputation(change);
    free_micro(change);
    attempt(change);
  }

  // As many devices more of a node as it has, then nodes, twice as many each time.
  void more_devices() {
    const ClusterJob& cluster = loaded_.job.cluster;
    const std::int64_t here = ranks_of_node(loaded_.job),
                       most_of_node = machine_.device.kind == cost::DeviceKind::cuda ? machine_.devices_per_node : here;
    for (std::int64_t devices = 2 * here; devices <= most_of_node; devices *= 2)
      if (enough(cluster.nodes * devices) && attempt_devices(cluster.nodes, devices)) return;
    const std::int64_t devices = std::max(here, most_of_node),
                       most_nodes = 4 * std::max(divided_up(least_devices_, devices), cluster.nodes);
    for (std::int64_t nodes = 2 * cluster.nodes; nodes <= most_nodes && machine_.between; nodes *= 2)
      if (enough(nodes * devices) && attempt_devices(nodes, devices)) return;
  }

  bool enough(std::int64_t devices) const { return devices >= least_devices_; }

  bool attempt_devices(std::int64_t nodes, std::int64_t devices) {
    Change change = all_free();
    if (nodes != loaded_.job.cluster.nodes)
      change.set(fmt::format("cluster.nodes={}", nodes), [=](Job& job) { job.cluster.nodes = nodes; });
    change.loaded.job.cluster.devices_per_node = devices;
    if (devices != ranks_of_node(loaded_.job))
      change.overrides.push_back(fmt::format("cluster.devices_per_node={}", devices));
    if (attempt(change)) return true;
    const std::int64_t ranks = nodes * devices, batch = divided_up(loaded_.job.train.batch.global, ranks) * ranks;
    if (batch == loaded_.job.train.batch.global) return false;
    change.set(fmt::format("train.batch.global={}", batch), [=](Job& job) { job.train.batch.global = batch; });
    return attempt(change);
  }

  const LoadedJob& loaded_;
  const Hardware& hardware_;
  const cost::MachineModel& machine_;
  std::int64_t limit_ = 0, least_devices_ = 0;
  std::vector<Suggestion> result_;
};

std::vector<std::string> texts(const std::vector<Suggestion>& suggestions) {
  std::vector<std::string> result;
  for (const Suggestion& one : suggestions) result.push_back(one.str());
  return result;
}

// "optimizer 62.2 GiB, gradients 31.1 GiB": what takes a tenth or more.
std::string largest_parts(const CompiledJob& compiled) {
  const auto fuller = [](const MemoryReport& a, const MemoryReport& b) { return a.peak_bytes < b.peak_bytes; };
  const MemoryReport& report = *std::max_element(compiled.memory.begin(), compiled.memory.end(), fuller);
  std::vector<std::pair<std::int64_t, std::string_view>> parts;
  for (int i = 0; i < kNumCategories; ++i)
    parts.emplace_back(report.by_category[static_cast<std::size_t>(i)], name_of(static_cast<Category>(i)));
  std::sort(parts.rbegin(), parts.rend());
  std::string text;
  for (const auto& [bytes, name] : parts)
    if (10 * bytes >= report.peak_bytes)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, bytes_text(bytes));
  return text;
}

}  // namespace

std::int64_t least_states_bytes(const LoadedJob& loaded) { return least_bytes(loaded, parameters_of(loaded)); }

bool has_room_for_states(const LoadedJob& loaded, const Hardware& hardware) {
  if (!unsupported(loaded).empty()) return true;  // whoever compiles tells that
  return least_states_bytes(loaded) <= memory_limit(loaded.job, hardware, ranks_of_node(loaded.job));
}

Diagnostic no_room_for_states(const LoadedJob& loaded, const Hardware& hardware) {
  const Job& job = loaded.job;
  const Parameters parameters = parameters_of(loaded);
  const std::int64_t world = world_size_of(job), limit = memory_limit(job, hardware, ranks_of_node(job)),
                     least = least_bytes(loaded, parameters);
  const std::int64_t all = least * world, devices = divided_up(all, std::max<std::int64_t>(1, limit));
  const std::string frozen =
      parameters.frozen == 0
          ? ""
          : fmt::format(", and {} frozen ones ({:.3g} bytes each)", count_text(static_cast<double>(parameters.frozen)),
                        static_cast<double>(parameters.frozen_bytes) / static_cast<double>(parameters.frozen));
  Diagnostic mistake = loaded.at(
      "cluster", fmt::format("the model is too large for {} rank{}: weights, gradients and optimizer states of {} "
                             "parameters{} need {} a rank with the best sharding ({:.4g} bytes a parameter), "
                             "and a rank has {}; at least {} such ranks are needed",
                             world, world == 1 ? "" : "s", count_text(static_cast<double>(parameters.trained)), frozen,
                             bytes_text(least), parameters.bytes_of_trained, bytes_text(limit), grouped(devices)));
  if (hardware.machine != nullptr) mistake.remedies = texts(what_would_fit(loaded, hardware));
  return mistake;
}

std::vector<Suggestion> what_would_fit(const LoadedJob& loaded, const Hardware& hardware) {
  return Remedies(loaded, hardware).run();
}

Diagnostic does_not_fit(const LoadedJob& loaded, const CompiledJob& compiled) {
  const std::int64_t fullest = compiled.peak_bytes();
  Diagnostic mistake =
      loaded.at("train.batch", fmt::format("the plan needs {} a rank, and there are {}: {} too many; most of it is {}",
                                           bytes_text(fullest), bytes_text(compiled.limit_bytes),
                                           bytes_text(fullest - compiled.limit_bytes), largest_parts(compiled)));
  mistake.remedies = texts(compiled.would_fit);
  if (mistake.remedies.empty()) mistake.remedies = {"more devices, devices with more memory, or a smaller model"};
  return mistake;
}

}  // namespace trainer
