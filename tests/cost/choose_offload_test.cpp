// What `auto` moves to the memory of a GPU's host where nothing fits on the GPU, and what is said where it may not.
#include <doctest/doctest.h>

#include <string>

#include "engine/compile/advise.h"
#include "engine/compile/compile.h"
#include "engine/compile/fit.h"
#include "engine/compile/hardware.h"
#include "engine/cost/predict.h"
#include "tests/cost/search_case.h"

namespace trainer {

using namespace tests;

namespace {

// On one H100 with so much memory.
CompiledJob on_one_gpu(LoadedJob loaded, std::int64_t bytes) {
  static const PlainTarget target;
  loaded.job.cluster.devices_per_node = 1;
  return compile(
      loaded,
      Hardware{
          .target = &target, .memory_bytes = bytes, .machine = &h100(), .ranks_per_node = 1, .device_bytes = bytes},
      Purpose::train);
}

}  // namespace

TEST_CASE("where nothing fits on GPUs, states move to the host, and no more of them than has to") {
  // On one GPU 8.03 billion weights take 15.0 GiB in bf16, their gradients in f32 29.9, masters and states 89.7. What
  // a layer keeps of 2,048 tokens, the head and the moves come on top.
  const auto chosen = [](std::int64_t memory_gib) {
    return on_one_gpu(job_of(kLlama8B, 1, "{global: 1}", "activation_checkpointing: {mode: auto}\n"), memory_gib << 30);
  };
  const CompiledJob whole = chosen(150), states = chosen(60), gradients = chosen(30), weights = chosen(12);
  for (const CompiledJob* one : {&whole, &states, &gradients, &weights}) CHECK(one->fits);
  CHECK_FALSE(whole.strategy.offload.any());
  CHECK(states.strategy.offload.optimizer == OffloadTo::host);
  CHECK(states.strategy.offload.gradients == OffloadTo::none);
  CHECK(
      states.strategy_why.starts_with("Nothing fits with everything on the device, so the optimizer's states and "
                                      "master weights are in the host's memory. "));
  CHECK(gradients.strategy.offload.gradients == OffloadTo::host);
  CHECK(gradients.strategy.offload.parameters == OffloadTo::none);
  CHECK(weights.strategy.offload.parameters == OffloadTo::host);
  // All of a host's bandwidth updates faster than states come and go; a share of it need not.
  CHECK(states.strategy.offload.update == UpdateOn::host);
  CHECK(states.strategy_why.find("The host's processor updates the weights: a step takes ") != std::string::npos);
  // What was chosen, written down, is the same plan.
  LoadedJob written = job_of(kLlama8B, 1, "{global: 1, micro: 1}", "");
  written.job.cluster.devices_per_node = 1;
  written.job.strategy = states.strategy;
  written.job.activation_checkpointing = states.recompute;
  static const PlainTarget target;
  const CompiledJob again = compile(
      written, Hardware{.target = &target, .memory_bytes = std::int64_t{60} << 30, .machine = &h100()}, Purpose::train);
  CHECK(hash_of(again) == hash_of(states));
}

TEST_CASE("what a job says of its strategy keeps states on the device, and offload is a remedy") {
  const std::string data = "strategy: {data: auto}\nactivation_checkpointing: {mode: auto}\n";
  const CompiledJob compiled = planned(of_length(4096, job_of(kLlama8B, 1, "{global: 64}", data)), 17);
  CHECK_FALSE(compiled.fits);
  REQUIRE(!compiled.would_fit.empty());
  CHECK(compiled.would_fit.front().overrides.front() == "strategy={data: auto, offload: host}");
  const CompiledJob offloaded = planned(of_length(4096, job_of(kLlama8B, 1, "{global: 64}",
                                                               "strategy: {data: auto, offload: host}\n"
                                                               "activation_checkpointing: {mode: auto}\n")),
                                        17);
  CHECK(offloaded.fits);
  CHECK(offloaded.strategy.offload.optimizer == OffloadTo::host);
}

TEST_CASE("what backward passes need moves to the host where that is less than states, and hides") {
  // A billion weights: of 65,536 tokens 16 blocks keep 0.25 GiB each at least.
  const std::string model =
      "{graph: models/llama.yaml, with: {layers: 16, heads: 32, kv_heads: 8, dim: 2048, hidden: 8192, vocab: 32000}}";
  const LoadedJob loaded =
      of_length(65536, job_of(model, 1, "{global: 1}", "activation_checkpointing: {mode: auto}\n"));
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  const CompiledJob least = on_one_gpu(loaded, 40 * kGiB);  // of everything on the device
  CHECK(least.recompute.mode == CheckpointingMode::full);
  CHECK_FALSE(least.strategy.offload.any());
  const CompiledJob moved = on_one_gpu(loaded, least.peak_bytes() - kGiB / 4);
  CHECK(moved.fits);
  CHECK(moved.strategy.offload.activations == OffloadTo::host);
  CHECK(moved.strategy.offload.optimizer == OffloadTo::none);
  CHECK(moved.strategy_why.starts_with("Nothing fits with everything on the device, so what backward passes need is "));
  CHECK(moved.prediction->roles.front().offload_us < 0.01 * moved.prediction->step_us);
}

TEST_CASE("advice names the processor that updates what is in the host's memory in less time") {
  static const PlainTarget target;
  constexpr std::int64_t kBytes = std::int64_t{77} << 30;
  const auto advised = [&](int gpus, const std::string& update) {
    const std::string strategy = "strategy: {data: {kind: fsdp}, offload: {optimizer: host, update: " + update + "}}\n";
    LoadedJob loaded =
        job_of(kLlama8B, 1, "{global: 8, micro: 1}", strategy + "activation_checkpointing: {mode: full}\n");
    loaded.job.cluster.devices_per_node = gpus;
    const Hardware hardware{
        .target = &target, .memory_bytes = kBytes, .machine = &h100(), .ranks_per_node = gpus, .device_bytes = kBytes};
    const CompiledJob compiled = compile(loaded, hardware, Purpose::train);
    const double us = cost::predict(compiled.plan, cost::CostModel(cluster_of(compiled, hardware))).step_us;
    std::string found;
    for (const Suggestion& one : advise(loaded, hardware, compiled, us))
      if (one.overrides.front().starts_with("strategy.")) found += one.overrides.front();
    return found;
  };
  CHECK(advised(1, "device") == "strategy.offload.update=host");
  CHECK(advised(1, "host").empty());
  CHECK(advised(8, "host") == "strategy.offload.update=device");
  CHECK(advised(8, "device").empty());
}

TEST_CASE("a host that cannot hold the states is no remedy") {
  static cost::MachineModel small = h100();
  small.host_memory_bytes = std::int64_t{64} << 30;
  static const PlainTarget target;
  const LoadedJob loaded = of_length(4096, job_of(kLlama8B, 1, "{global: 64}", ""));
  const auto remedies = [&](const cost::MachineModel& machine) {
    const std::int64_t bytes = std::int64_t{8 * 17} << 30;
    const Hardware hardware{.target = &target, .memory_bytes = bytes, .machine = &machine, .ranks_per_node = 8};
    return what_would_fit(loaded, hardware).size();
  };
  CHECK(remedies(h100()) == 2);
  CHECK(remedies(small) == 1);
}

}  // namespace trainer
