// The list, as words that become overrides.
#include "tests/plan/golden_jobs.h"

#include <map>
#include <optional>

#include "kernels/cuda/target.h"

namespace trainer::tests {
namespace {

// Stands for a CPU: its answers depend on no processor.
class FixedCpu final : public Target {
 public:
  std::int64_t workspace_bytes(const Signature& signature) const override {
    return signature.op == Op::linear_grad_weight ? 64 : signature.op == Op::attention ? 192 : 0;
  }
};

const std::map<std::string, std::string> kModels{
    {"gpt2",
     "model: {graph: models/gpt2.yaml, with: {layers: 2, heads: 2, dim: 16, vocab: 33, context: 8, dropout: 0.1}}\n"},
    {"llama",
     "model: {graph: models/llama.yaml, with: {layers: 2, heads: 4, kv_heads: 2, dim: 16, hidden: 24, vocab: 32, "
     "rope_theta: 100}}\n"},
    {"mlp", "model: {graph: models/mlp.yaml, with: {features: 6, hidden: 16, layers: 3, classes: 4, dropout: 0.0}}\n"},
    {"convnet",
     "model: {graph: models/convnet.yaml, with: {rows: 8, cols: 8, width: 4, hidden: 16, classes: 10, dropout: "
     "0.25}}\n"},
};
constexpr const char* kTokens =
    "data: {format: tokens, token_type: u16, train: tokens.bin, seq_len: 8, val: {fraction: 0.2}}\n";
const std::map<std::string, std::string> kData{
    {"gpt2", kTokens},
    {"llama", kTokens},
    {"mlp", "data: {format: table, train: table.csv, target: -1, normalize: standard, val: {fraction: 0.2}}\n"},
    {"convnet",
     "data: {format: idx, train: {images: images, labels: labels}, val: {images: held_images, labels: held_labels}}\n"},
};
constexpr const char* kTraining =
    "train: {steps: 6, batch: {global: 16, micro: 2}, optimizer: {name: adamw, lr: 1.0e-2, weight_decay: 0.1}, "
    "clip_norm: 1.0}\n"
    "precision: {params: f32, compute: f32, reduce: f32, loss_scale: none}\n";

std::string ranks(int number) { return "cluster.devices_per_node=" + std::to_string(number); }

constexpr auto cpu = GoldenTarget::cpu, cuda = GoldenTarget::cuda;
const std::string kBf16 = "precision.compute=bf16",
                  kF16 = "precision={params: f32, compute: f16, reduce: f32, loss_scale: dynamic}";
const std::string kDeep = "model.with.layers=4", kNoVal = "data.val=null";
const std::string kFull = "activation_checkpointing={mode: full}",
                  kSelective = "activation_checkpointing={mode: selective}";
const std::string kEvery2 = "activation_checkpointing={mode: every_n, every: 2}";

const std::vector<GoldenJob> kJobs{
    // One rank.
    {"gpt2", "gpt2", cpu, {ranks(1), "train.batch.global=4"}},
    {"gpt2_cuda_bf16", "gpt2", cuda, {ranks(1), kBf16, "model.with.dropout=0.0"}},
    {"gpt2_cuda_f16", "gpt2", cuda, {ranks(1), kF16, "train.on_nan=skip"}},
    {"gpt2_full", "gpt2", cpu, {ranks(1), kFull, kNoVal}},
    {"gpt2_zero1_disk", "gpt2", cpu, {ranks(2), kBf16, "strategy={data: {kind: zero1}, offload: disk}"}},
    {"llama_fsdp_host_cuda", "llama", cuda, {ranks(4), kBf16, "strategy={data: {kind: fsdp}, offload: host}"}},
    {"llama_zero1_update_host_cuda",
     "llama",
     cuda,
     {ranks(2), kBf16, "strategy={data: {kind: zero1}, offload: {optimizer: host, update: host}}"}},
    {"llama_fsdp_parameters_disk",
     "llama",
     cpu,
     {ranks(2), kBf16, "strategy={data: {kind: fsdp}, offload: {optimizer: disk, parameters: disk}}"}},
    {"llama_selective_cuda", "llama", cuda, {ranks(1), kSelective, kBf16}},
    {"llama_every2", "llama", cpu, {ranks(1), kEvery2, kDeep, "train.clip_norm=null"}},
    {"mlp", "mlp", cpu, {ranks(1), "train.batch.global=4", "train.batch.micro=4"}, Purpose::train, true},
    {"convnet",
     "convnet",
     cpu,
     {ranks(1), "train.optimizer={name: lion, lr: 1.0e-3, betas: [0.9, 0.99], weight_decay: 0.1}"}},
    {"convnet_sgd_ddp_cuda",
     "convnet",
     cuda,
     {ranks(2), "strategy=ddp", "train.optimizer={name: sgd, lr: 1.0e-2, momentum: 0.9}"}},
    {"gpt2_evaluate_tensor", "gpt2", cpu, {ranks(2), "strategy=tensor", kBf16}, Purpose::evaluate},
    {"llama_sample", "llama", cpu, {ranks(1)}, Purpose::sample},
    // Data strategies.
    {"gpt2_ddp_cuda", "gpt2", cuda, {ranks(4), "strategy={data: {kind: ddp, bucket_mb: 0.01}}", kSelective, kBf16}},
    {"llama_ddp", "llama", cpu, {ranks(2), "strategy=ddp", kNoVal, "precision.reduce=bf16", kBf16}},
    {"gpt2_zero1", "gpt2", cpu, {ranks(4), "strategy=zero1"}},
    {"gpt2_zero1_bf16", "gpt2", cpu, {ranks(4), "strategy=zero1", kBf16}},
    {"gpt2_zero2_cuda", "gpt2", cuda, {ranks(4), "strategy=zero2", kBf16}},
    {"llama_zero3", "llama", cpu, {ranks(4), "strategy=zero3", kBf16}},
    {"mlp_fsdp", "mlp", cpu, {ranks(2), "strategy=fsdp", "train.batch.global=8", kNoVal}, Purpose::train, true},
    {"gpt2_fsdp_cuda", "gpt2", cuda, {ranks(4), "strategy=fsdp", kBf16, kFull}},
    {"llama_shard_grad_op", "llama", cpu, {ranks(4), "strategy={data: {kind: fsdp, sharding: shard_grad_op}}"}},
    {"gpt2_no_shard", "gpt2", cpu, {ranks(2), "strategy={data: {kind: fsdp, sharding: no_shard}}"}},
    {"gpt2_hybrid_cuda",
     "gpt2",
     cuda,
     {ranks(4), "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2, prefetch: 2}}", kBf16}},
    {"llama_fsdp_keep_step", "llama", cpu, {ranks(2), "strategy={data: {kind: fsdp, keep: step, reduce: step}}"}},
    {"gpt2_fsdp_excluded_f16",
     "gpt2",
     cuda,
     {ranks(2), "strategy={data: {kind: fsdp, prefetch: 1}, wrap: {excluded: [\"**ln_*\"]}}", kF16}},
    {"llama_fsdp_gather_int8_cuda", "llama", cuda, {ranks(4), "strategy={data: {kind: fsdp, gather: int8}}", kBf16}},
    {"gpt2_zero2_reduce_int8", "gpt2", cpu, {ranks(4), "strategy={data: {kind: zero2, reduce_dtype: int8}}"}},
    {"gpt2_hybrid_codes_tensor",
     "gpt2",
     cpu,
     {ranks(8),
      "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2, gather: int8, reduce_dtype: int8}, tensor: "
      "{degree: 2}}",
      kBf16}},
    {"gpt2_secondary", "gpt2", cpu, {ranks(4), "strategy={data: {kind: zero3, secondary: 2}}"}},
    {"llama_secondary_int8_cuda",
     "llama",
     cuda,
     {ranks(8), "strategy={data: {kind: fsdp, secondary: 4, gather: int8}}", kBf16}},
    {"gpt2_local_sgd", "gpt2", cpu, {ranks(2), "strategy={data: {kind: local_sgd, every: 2}}"}},
    {"llama_local_sgd_outer",
     "llama",
     cpu,
     {ranks(2), "strategy={data: {kind: local_sgd, every: 2, outer: {lr: 0.7, momentum: 0.9}}}", kBf16}},
    {"gpt2_local_sgd_parts_int8",
     "gpt2",
     cpu,
     {ranks(4),
      "strategy={data: {kind: local_sgd, every: 2, parts: 2, outer: {lr: 0.7, compression: int8}}, tensor: {degree: "
      "2}}",
      kBf16}},
    {"gpt2_local_sgd_delayed",
     "gpt2",
     cuda,
     {ranks(2), "strategy={data: {kind: local_sgd, every: 2, delayed: true}}", kBf16}},
    {"gpt2_ddp_compress_bf16", "gpt2", cpu, {ranks(2), "strategy={data: {kind: ddp, compression: bf16}}"}},
    {"llama_ddp_compress_int8", "llama", cpu, {ranks(2), "strategy={data: {kind: ddp, compression: int8}}"}},
    {"gpt2_zero1_compress_int8", "gpt2", cpu, {ranks(2), "strategy={data: {kind: zero1, compression: int8}}"}},
    {"gpt2_ddp_compress_top_k_tensor",
     "gpt2",
     cuda,
     {ranks(4), "strategy={data: {kind: ddp, compression: {top_k: 0.01}}, tensor: {degree: 2}}", kBf16}},
    // States in fewer bytes.
    {"gpt2_zero1_states_int8", "gpt2", cpu, {ranks(4), "strategy=zero1", "train.optimizer.states=int8"}},
    {"llama_fsdp_tensor_states_int8_cuda",
     "llama",
     cuda,
     {ranks(4), "strategy={data: {kind: fsdp}, tensor: {degree: 2}}", "train.optimizer.states=int8", kBf16}},
    {"gpt2_pipeline_states_bf16",
     "gpt2",
     cpu,
     {ranks(2), "strategy={pipeline: {degree: 2}}", "train.optimizer.states=bf16"}},
    // Several optimizers.
    {"gpt2_muon_zero1", "gpt2", cpu, {ranks(4), "strategy=zero1", "train.optimizer=muon"}},
    {"llama_muon_fsdp_tensor_cuda",
     "llama",
     cuda,
     {ranks(4), "strategy={data: {kind: fsdp}, tensor: {degree: 2}}", "train.optimizer={name: muon, states: bf16}",
      kBf16}},
    {"gpt2_groups_tensor",
     "gpt2",
     cpu,
     {ranks(2), "strategy=tensor",
      "train.groups=[{match: [\"*.bias\"], optimizer: {name: adamw, lr: 1.0e-3}}, {match: [\"h.0.*\"], optimizer: "
      "muon}]"}},
    // Tensor.
    {"gpt2_tensor", "gpt2", cpu, {ranks(2), "strategy=tensor"}},
    {"llama_tensor",
     "llama",
     cpu,
     {ranks(2), "strategy=tensor", "model.with.layers=1", "train.batch.global=4", kNoVal},
     Purpose::train,
     true},
    {"llama_sequence", "llama", cpu, {ranks(2), "strategy={tensor: {degree: 2, sequence_parallel: true}}"}},
    {"llama_sequence_shard",
     "llama",
     cpu,
     {ranks(2), "strategy={tensor: {degree: 2, sequence_parallel: true, keep: shard}}"}},
    {"gpt2_sequence_shard_pipeline_cuda",
     "gpt2",
     cuda,
     {ranks(4), "strategy={tensor: {degree: 2, sequence_parallel: true, keep: shard}, pipeline: {degree: 2}}", kBf16}},
    {"gpt2_sequence_cuda",
     "gpt2",
     cuda,
     {ranks(2), "strategy={tensor: {degree: 2, sequence_parallel: true}}", kBf16, kSelective}},
    {"llama_tensor_fsdp_cuda",
     "llama",
     cuda,
     {ranks(4), "strategy={data: {kind: fsdp, prefetch: 1}, tensor: {degree: 2}}", kBf16, kDeep}},
    {"gpt2_tensor_hybrid",
     "gpt2",
     cpu,
     {ranks(8), "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}, tensor: {degree: 2}}", kBf16}},
    {"gpt2_tensor_sequence_zero1",
     "gpt2",
     cpu,
     {ranks(4), "strategy={data: {kind: zero1}, tensor: {degree: 2, sequence_parallel: true}}"}},
    {"gpt2_tensor_local_sgd",
     "gpt2",
     cpu,
     {ranks(4), "strategy={data: {kind: local_sgd, every: 2}, tensor: {degree: 2}}"}},
    // Context.
    {"llama_context", "llama", cpu, {ranks(2), "strategy={context: {degree: 2}}"}},
    {"gpt2_context_zero1_cuda",
     "gpt2",
     cuda,
     {ranks(4), "strategy={data: {kind: zero1}, context: {degree: 2}}", kBf16}},
    {"llama_ring", "llama", cpu, {ranks(4), "strategy={context: {degree: 4, kind: ring}}"}},
    {"gpt2_ring_zero1_cuda",
     "gpt2",
     cuda,
     {ranks(4), "strategy={data: {kind: zero1}, context: {degree: 2, kind: ring}}", kBf16}},
    {"llama_context_tensor_sequence_fsdp",
     "llama",
     cpu,
     {ranks(8), "strategy={data: {kind: fsdp}, context: {degree: 2}, tensor: {degree: 2, sequence_parallel: true}}"}},
    // Pipelines; the head of gpt2 is tied to the embedding, so that first and last stage share a unit.
    {"gpt2_1f1b",
     "gpt2",
     cpu,
     {ranks(2), "strategy={pipeline: {degree: 2, schedule: 1f1b}}", "train.batch.global=4", "train.batch.micro=2",
      kNoVal},
     Purpose::train,
     true},
    {"gpt2_1f1b_deep_cuda", "gpt2", cuda, {ranks(4), "strategy={pipeline: {degree: 4}}", kDeep, kBf16}},
    {"llama_gpipe", "llama", cpu, {ranks(2), "strategy={pipeline: {degree: 2, schedule: gpipe}}"}},
    {"gpt2_interleaved",
     "gpt2",
     cpu,
     {ranks(2), "strategy={pipeline: {degree: 2, schedule: interleaved, virtual_stages: 2}}", kDeep}},
    {"gpt2_looped_bfs_zero3",
     "gpt2",
     cpu,
     {ranks(4), "strategy={pipeline: {degree: 2, schedule: looped_bfs, virtual_stages: 2}, data: {kind: zero3}}", kDeep,
      kBf16}},
    {"gpt2_zb_h1", "gpt2", cpu, {ranks(2), "strategy={pipeline: {degree: 2, schedule: zb_h1}}", kFull}},
    {"gpt2_zb_h2_tensor_cuda",
     "gpt2",
     cuda,
     {ranks(4), "strategy={pipeline: {degree: 2, schedule: zb_h2}, tensor: {degree: 2}}", kBf16}},
    {"llama_zb_v",
     "llama",
     cuda,
     {ranks(2), "strategy={pipeline: {degree: 2, schedule: zb_v, virtual_stages: 2}}", kDeep, kBf16}},
    {"gpt2_zb_v_fsdp",
     "gpt2",
     cpu,
     {ranks(4), "strategy={data: {kind: fsdp}, pipeline: {degree: 2, schedule: zb_v, virtual_stages: 2}}", kDeep}},
    {"gpt2_dualpipe_v",
     "gpt2",
     cuda,
     {ranks(2), "strategy={pipeline: {degree: 2, schedule: dualpipe_v}}", kDeep, kBf16}},
    {"mlp_zero3_pipeline", "mlp", cpu, {ranks(4), "strategy={data: {kind: zero3}, pipeline: {degree: 2}}"}},
    {"gpt2_pipeline_f16", "gpt2", cuda, {ranks(2), "strategy={pipeline: {degree: 2}}", kF16, "train.on_nan=skip"}},
    {"gpt2_pipeline_local_sgd",
     "gpt2",
     cpu,
     {ranks(4), "strategy={data: {kind: local_sgd, every: 2}, pipeline: {degree: 2}}"}},
    // Three axes.
    {"gpt2_3d_zero1",
     "gpt2",
     cpu,
     {ranks(8), "strategy={data: {kind: zero1}, tensor: {degree: 2}, pipeline: {degree: 2}}"}},
    {"gpt2_3d_fsdp_sequence_cuda",
     "gpt2",
     cuda,
     {ranks(8), "strategy={data: {kind: fsdp}, tensor: {degree: 2, sequence_parallel: true}, pipeline: {degree: 2}}",
      kFull, kBf16}},
    {"llama_3d_looped_bfs_zero2",
     "llama",
     cuda,
     {ranks(8),
      "strategy={data: {kind: zero2}, tensor: {degree: 2}, pipeline: {degree: 2, schedule: looped_bfs, virtual_stages: "
      "2}}",
      kDeep, kBf16}},
    {"gpt2_3d_f16",
     "gpt2",
     cuda,
     {ranks(8), "strategy={data: {kind: fsdp}, tensor: {degree: 2}, pipeline: {degree: 2, schedule: zb_h1}}", kF16}},
};

}  // namespace

const std::vector<GoldenJob>& golden_jobs() { return kJobs; }

GoldenJob longer(GoldenJob job, int samples) {
  job.overrides.emplace_back("train.batch.micro=1");
  job.overrides.emplace_back("train.batch.global=" + std::to_string(samples));
  return job;
}

CompiledJob golden_compiled(const GoldenJob& job, bool loops) {
  static const FixedCpu fixed_cpu;
  static const kernels::cuda::CudaTarget sm_90(90, 132);
  const LoadedJob loaded =
      parse_job(kModels.at(job.model) + kData.at(job.model) + kTraining, "job.yaml", job.overrides,
                {.configs_dir = std::string(TRAINER_SOURCE_DIR) + "/configs", .check_files = true, .world_size = 0});
  Hardware hardware{.target = &fixed_cpu, .memory_bytes = std::int64_t{64} << 30, .threads = 1};
  if (job.target == GoldenTarget::cuda) hardware.target = &sm_90;
  hardware.loops = loops;
  return compile(loaded, hardware, job.purpose);
}

}  // namespace trainer::tests
