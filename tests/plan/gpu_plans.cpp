// The list of jobs, and how one is planned for a GPU that is not here.
#include "tests/plan/gpu_plans.h"

#include "engine/compile/compile.h"
#include "engine/compile/hardware.h"
#include "kernels/cuda/target.h"

namespace trainer::tests {
namespace {

const std::string kConfigs = std::string(TRAINER_SOURCE_DIR) + "/configs";

std::string cluster_of(int number) { return "cluster.devices_per_node=" + std::to_string(number); }

Plan planned(const std::string& text, const std::vector<std::string>& overrides) {
  LoadedJob loaded = parse_job(text, "job.yaml", overrides, {kConfigs, true, 0});
  const cost::MachineModel machine = *resolve_cluster(loaded, kConfigs + "/hardware");
  const kernels::cuda::CudaTarget target(machine.device.capability, machine.device.units);
  const int on_node = static_cast<int>(*loaded.job.cluster.devices_per_node);
  return compile(loaded, {&target, machine.usable_bytes(), 1, &machine, on_node, machine.usable_bytes()},
                 Purpose::train)
      .plan;
}

}  // namespace

std::string GpuCase::text() const {
  std::string text = model;
  for (const std::string& word : overrides) text += " " + word;
  return text;
}

const std::vector<GpuCase>& gpu_cases() {
  static const std::vector<GpuCase> cases{
      {"gpt2", {cluster_of(1), "strategy=ddp"}},
      {"gpt2", {cluster_of(1), "strategy=ddp", "activation_checkpointing={mode: full}", "model.with.dropout=0.1"}},
      {"gpt2", {cluster_of(2), "strategy=ddp"}},
      {"gpt2",
       {cluster_of(4), "strategy={data: {kind: ddp, bucket_mb: 0.01}}", "activation_checkpointing={mode: selective}"}},
      {"gpt2", {cluster_of(4), "strategy=zero1"}},
      {"gpt2", {cluster_of(4), "strategy=zero2", "train.batch.micro=1"}},
      {"gpt2", {cluster_of(4), "strategy=zero3"}},
      {"llama", {cluster_of(4), "strategy=fsdp"}},
      {"gpt2", {cluster_of(4), "strategy=fsdp", "precision.compute=f32"}},
      {"gpt2", {cluster_of(4), "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2, prefetch: 2}}"}},
      {"gpt2", {cluster_of(4), "strategy={data: {kind: fsdp, sharding: shard_grad_op}}"}},
      {"gpt2", {cluster_of(4), "strategy={data: {kind: fsdp, gather: int8, reduce_dtype: int8}}"}},
      {"llama",
       {cluster_of(8), "strategy={data: {kind: zero3, gather: int8, reduce_dtype: int8}, tensor: {degree: 2}}",
        "precision.compute=f32"}},
      {"gpt2", {cluster_of(4), "strategy={data: {kind: fsdp, secondary: 2}}", "train.batch.micro=1"}},
      {"gpt2", {cluster_of(2), "strategy=tensor"}},
      {"llama", {cluster_of(2), "strategy={tensor: {degree: 2, sequence_parallel: true}}"}},
      {"llama", {cluster_of(2), "strategy={tensor: {degree: 2, sequence_parallel: true, keep: shard}}"}},
      {"gpt2", {cluster_of(2), "strategy=pipeline"}},
      {"gpt2", {cluster_of(2), "strategy={pipeline: {degree: 2, schedule: gpipe}}"}},
      {"gpt2", {cluster_of(4), "strategy={pipeline: {degree: 4}}", "model.with.layers=4", "train.batch.micro=1"}},
      {"gpt2",
       {cluster_of(2), "strategy={pipeline: {degree: 2, schedule: interleaved, virtual_stages: 2}}",
        "model.with.layers=4"}},
      {"gpt2",
       {cluster_of(2), "strategy={pipeline: {degree: 2, schedule: zb_v, virtual_stages: 2}}", "model.with.layers=4"}},
      {"gpt2", {cluster_of(2), "strategy={pipeline: {degree: 2, schedule: zb_h1}}"}},
      {"gpt2", {cluster_of(4), "strategy={pipeline: {degree: 2, schedule: zb_h2}, tensor: {degree: 2}}"}},
      {"gpt2", {cluster_of(4), "strategy={data: {kind: zero3}, pipeline: {degree: 2}}"}},
      {"gpt2",
       {cluster_of(8), "strategy={data: {kind: zero1}, tensor: {degree: 2}, pipeline: {degree: 2}}",
        "model.with.vocab=33", "train.batch.micro=2"}},
      {"gpt2",
       {cluster_of(8),
        "strategy={data: {kind: fsdp}, tensor: {degree: 2, sequence_parallel: true}, pipeline: {degree: 2}}",
        "activation_checkpointing={mode: full}"}},
      {"llama",
       {cluster_of(8),
        "strategy={pipeline: {degree: 2, schedule: looped_bfs, virtual_stages: 2}, tensor: {degree: 2}, data: {kind: "
        "zero2}}",
        "model.with.layers=4"}},
      {"gpt2",
       {cluster_of(8), "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}, tensor: {degree: 2}}",
        "model.with.vocab=33"}},
      {"gpt2", {cluster_of(4), "strategy={data: {kind: fsdp, sharding: no_shard}, tensor: {degree: 2}}"}},
      {"gpt2", {cluster_of(2), "strategy={data: {kind: local_sgd, every: 2}}"}},
      {"gpt2", {cluster_of(2), "strategy={data: {kind: local_sgd, every: 2, delayed: true}}"}},
      {"gpt2", {cluster_of(2), "strategy={data: {kind: local_sgd, every: 4, parts: 3, outer: {compression: int8}}}"}},
      {"gpt2", {cluster_of(4), "strategy={data: {kind: local_sgd, every: 2}, pipeline: {degree: 2}}"}},
      {"gpt2", {cluster_of(2), "strategy={data: {kind: ddp, compression: int8}}"}},
      {"gpt2", {cluster_of(4), "strategy={data: {kind: ddp, compression: {top_k: 0.01}}, tensor: {degree: 2}}"}},
      {"gpt2", {cluster_of(2), "strategy={data: {kind: zero1, compression: bf16}}"}},
  };
  return cases;
}

Plan gpu_plan(const GpuCase& one) {
  const std::string model =
      one.model == "llama"
          ? "{graph: models/llama.yaml, with: {layers: 2, heads: 4, kv_heads: 2, dim: 16, hidden: 24, vocab: 32, "
            "rope_theta: 100}}"
          : "{graph: models/gpt2.yaml, with: {layers: 2, heads: 2, dim: 16, vocab: 32, context: 8, dropout: 0.0}}";
  return planned(
      "model: " + model +
          "\ndata: {format: tokens, token_type: u16, train: tokens.bin, seq_len: 8, val: {fraction: 0.2}}\n"
          "train: {steps: 6, batch: {global: 8, micro: auto}, optimizer: {name: adamw, lr: 1.0e-2}, clip_norm: 1.0}\n"
          "precision: {params: f32, compute: bf16, reduce: f32, loss_scale: none}\ncluster: {hardware: h100-sxm}\n",
      one.overrides);
}

Plan gpt2_124m_plan(const std::vector<std::string>& overrides) {
  return planned(
      "model: {graph: models/gpt2.yaml}\ndata: {format: tokens, token_type: u16, train: tokens.bin, seq_len: 1024}\n"
      "train: {steps: 6, batch: {global: 64, micro: 8}, clip_norm: 1.0}\nprecision: {compute: bf16}\ncluster: "
      "{hardware: h100-sxm}\n",
      overrides);
}

}  // namespace trainer::tests
