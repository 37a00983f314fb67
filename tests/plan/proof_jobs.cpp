// The list of jobs, and the dice that choose where a plan is spoiled.
#include "tests/plan/proof_jobs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <tuple>

#include "engine/compile/compile.h"
#include "engine/core/random.h"
#include "engine/plan/verify/verify.h"

namespace trainer::tests {
namespace {

// Kernels that want some scratch memory.
class SomeTarget final : public Target {
 public:
  explicit SomeTarget(int streams) : streams_(streams) {}
  int communication_streams() const override { return streams_; }
  std::int64_t workspace_bytes(const Signature& signature) const override {
    return signature.op == Op::linear_grad_weight ? 64 : 0;
  }

 private:
  int streams_;
};

constexpr std::string_view kGpt2 =
    "model: {graph: models/gpt2.yaml, with: {layers: 2, heads: 2, dim: 16, vocab: 32, context: 8, dropout: 0.0}}\n";
constexpr std::string_view kLlama =
    "model: {graph: models/llama.yaml, with: {layers: 2, heads: 4, kv_heads: 2, dim: 16, hidden: 24, vocab: 32, "
    "rope_theta: 100}}\n";
constexpr std::string_view kMlp =
    "model: {graph: models/mlp.yaml, with: {features: 6, hidden: 32, layers: 3, classes: 4, dropout: 0.0}}\n";
constexpr std::string_view kTokens =
    "data: {format: tokens, token_type: u16, train: tokens.bin, seq_len: 8, shuffle: true}\n";
constexpr std::string_view kTable =
    "data: {format: table, train: table.csv, target: -1, normalize: standard, shuffle: true}\n";
constexpr std::string_view kTraining =
    "train: {steps: 6, batch: {global: 8, micro: auto}, optimizer: {name: adamw, lr: 1.0e-2}, clip_norm: 1.0}\n"
    "precision: {params: f32, compute: f32, reduce: f32, loss_scale: none}\n";

constexpr const char* kBase = "model.init_from=base.safetensors";
constexpr const char* kMuon = "train.optimizer={name: muon, others: {name: adamw, lr: 1.0e-2}}";

}  // namespace

std::string ProofCase::text() const {
  std::string text = model;
  for (const std::string& word : overrides) text += " " + word;
  return text;
}

std::string ranks(int number) { return "cluster.devices_per_node=" + std::to_string(number); }

const std::vector<ProofCase>& plain_cases() {
  static const std::vector<ProofCase> cases{
      {"gpt2", {ranks(2), "strategy=ddp"}},
      {"gpt2", {ranks(4), "strategy=zero1"}},
      {"gpt2", {ranks(4), "strategy=zero1", "precision.compute=bf16"}},
      {"gpt2", {ranks(4), "strategy=zero2", "train.batch.micro=1"}},
      {"gpt2", {ranks(4), "strategy=zero3"}},
      {"gpt2", {ranks(4), "strategy=zero3", "precision.compute=bf16"}},
      {"gpt2", {ranks(4), "strategy=fsdp"}},
      {"gpt2", {ranks(2), "strategy={data: {kind: ddp}, offload: disk}", "precision.compute=bf16"}},
      {"gpt2", {ranks(4), "strategy={data: {kind: zero1}, offload: disk}"}},
      {"llama", {ranks(4), "strategy={data: {kind: fsdp}, offload: disk}", "precision.compute=bf16"}},
      {"gpt2", {ranks(4), "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}}"}},
      {"gpt2", {ranks(4), "strategy={data: {kind: fsdp, sharding: shard_grad_op}}"}},
      {"gpt2", {ranks(2), "strategy=tensor"}},
      {"llama", {ranks(2), "strategy=tensor"}},
      {"llama", {ranks(2), "strategy={tensor: {degree: 2, sequence_parallel: true}}"}},
      {"gpt2", {ranks(2), "strategy={tensor: {degree: 2, sequence_parallel: true}}", "model.with.dropout=0.1"}},
      {"gpt2", {ranks(2), "strategy=pipeline"}},
      {"gpt2", {ranks(2), "strategy={pipeline: {degree: 2, schedule: gpipe}}"}},
      {"gpt2",
       {ranks(2), "strategy={pipeline: {degree: 2, schedule: zb_v, virtual_stages: 2}}", "model.with.layers=4"}},
      {"gpt2", {ranks(2), "strategy={pipeline: {degree: 2, schedule: zb_h1}}"}},
      {"gpt2",
       {ranks(2), "strategy={pipeline: {degree: 2, schedule: interleaved, virtual_stages: 2}}", "model.with.layers=4"}},
      {"gpt2",
       {ranks(8), "strategy={data: {kind: zero1}, tensor: {degree: 2}, pipeline: {degree: 2}}",
        "model.with.dropout=0.1", "train.clip_norm=1.0", "model.with.vocab=33", "train.batch.micro=2"}},
      {"gpt2",
       {ranks(8), "strategy={data: {kind: fsdp}, tensor: {degree: 2, sequence_parallel: true}, pipeline: {degree: 2}}",
        "activation_checkpointing={mode: full}"}},
      {"mlp", {ranks(4), "strategy={data: {kind: zero3}, pipeline: {degree: 2}}"}},
      {"gpt2", {ranks(2), "strategy={data: {kind: local_sgd, every: 2}}"}},
      {"gpt2", {ranks(2), "strategy={data: {kind: ddp, compression: bf16}}"}},
      {"gpt2", {ranks(2), "strategy={data: {kind: ddp, compression: int8}}"}},
      {"gpt2", {ranks(2), "strategy={data: {kind: ddp, compression: {top_k: 0.01}}}"}},
      {"gpt2", {ranks(2), "strategy={data: {kind: zero1, compression: bf16}}"}},
      {"gpt2", {ranks(2), "strategy={data: {kind: zero1, compression: int8}}"}},
      {"gpt2", {ranks(4), "strategy={data: {kind: ddp, compression: int8}, tensor: {degree: 2}}"}},
      {"gpt2", {ranks(4), "strategy={data: {kind: fsdp, gather: int8, reduce_dtype: int8}}", "precision.compute=bf16"}},
      {"llama",
       {ranks(8),
        "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2, gather: int8, reduce_dtype: int8}, tensor: "
        "{degree: 2, sequence_parallel: true}}"}},
      {"gpt2",
       {ranks(4), "strategy={data: {kind: zero3, gather: int8, reduce_dtype: int8}, pipeline: {degree: 2}}",
        "train.batch.micro=1"}},
      {"llama",
       {ranks(4), "strategy={data: {kind: zero2, reduce_dtype: int8}, context: {degree: 2}}", "train.batch.micro=1"}},
      {"gpt2", {ranks(2), "strategy={data: {kind: local_sgd, every: 2, delayed: true}}"}},
      {"gpt2",
       {ranks(2), "strategy={data: {kind: local_sgd, every: 2, outer: {lr: 0.7, momentum: 0.9}}}",
        "precision.compute=bf16"}},
      {"gpt2",
       {ranks(2), "strategy={data: {kind: local_sgd, every: 4, parts: 3, outer: {}}}", "precision.compute=bf16"}},
      {"gpt2",
       {ranks(4),
        "strategy={data: {kind: local_sgd, every: 2, parts: 2, outer: {compression: int8}}, tensor: {degree: 2}}"}},
      {"gpt2",
       {ranks(4),
        "strategy={data: {kind: local_sgd, every: 2, parts: 2, outer: {compression: bf16}}, pipeline: {degree: 2}}"}},
      {"mlp", {ranks(2), "strategy={data: {kind: local_sgd, every: 2, outer: {compression: {top_k: 0.1}}}}"}},
      {"gpt2", {ranks(4), "strategy={data: {kind: local_sgd, every: 2}, tensor: {degree: 2}}"}},
      {"gpt2", {ranks(4), "strategy={data: {kind: local_sgd, every: 2}, pipeline: {degree: 2}}"}},
      {"gpt2", {ranks(4), "strategy={pipeline: {degree: 4}}", "model.with.layers=4", "train.batch.micro=1"}},
      {"gpt2", {ranks(4), "strategy={pipeline: {degree: 2, schedule: zb_h2}, tensor: {degree: 2}}"}},
      {"llama",
       {ranks(8),
        "strategy={pipeline: {degree: 2, schedule: looped_bfs, virtual_stages: 2}, tensor: {degree: 2}, data: {kind: "
        "zero2}}",
        "precision.compute=bf16", "model.with.layers=4"}},
      {"gpt2",
       {ranks(8), "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}, tensor: {degree: 2}}",
        "precision.compute=bf16", "model.with.vocab=33"}},
      {"gpt2",
       {ranks(2), "strategy={data: {kind: ddp, bucket_mb: 0.01}}", "activation_checkpointing={mode: selective}",
        "model.with.dropout=0.1"}},
      {"gpt2", {ranks(4), "strategy={data: {kind: fsdp, sharding: no_shard}, tensor: {degree: 2}}"}},
      // Frozen parameters, and adapters beside them.
      {"gpt2", {ranks(2), "strategy=ddp", "adapter={rank: 3}", kBase}},
      {"llama",
       {ranks(4), "strategy=zero2", "adapter={rank: 3}", kBase, "trainable=[\"*norm*\"]", "precision.compute=bf16"}},
      {"gpt2",
       {ranks(4), "strategy={data: {kind: fsdp}, tensor: {degree: 2, sequence_parallel: true}}", "adapter={rank: 3}",
        kBase}},
      {"llama",
       {ranks(8), "strategy={data: {kind: zero1}, tensor: {degree: 2}, pipeline: {degree: 2}}", "adapter={rank: 3}",
        kBase, "train.batch.micro=1"}},
      {"gpt2",
       {ranks(4), "strategy={data: {kind: zero3}, context: {degree: 2}}", "trainable=[\"*mlp*\"]",
        "precision.compute=bf16"}},
      {"gpt2",
       {ranks(4), "strategy={data: {kind: ddp}, pipeline: {degree: 2}}", "trainable=[\"h.1.*\"]",
        "train.batch.micro=1"}},
      {"llama", {ranks(2), "strategy={context: {degree: 2}}"}},
      {"llama", {ranks(4), "strategy={context: {degree: 4, kind: ring}}"}},
      {"gpt2",
       {ranks(8), "strategy={data: {kind: zero1}, context: {degree: 2, kind: ring}, tensor: {degree: 2}}",
        "precision.compute=bf16"}},
      {"gpt2", {ranks(4), "strategy={data: {kind: zero1}, context: {degree: 2}}", "precision.compute=bf16"}},
      {"llama",
       {ranks(8), "strategy={data: {kind: fsdp}, context: {degree: 2}, tensor: {degree: 2, sequence_parallel: true}}"}},
      {"gpt2", {ranks(4), "strategy={data: {kind: fsdp, secondary: 2}}", "train.batch.micro=1"}},
      {"llama",
       {ranks(8), "strategy={data: {kind: zero3, secondary: 2, gather: int8}, tensor: {degree: 2}}",
        "precision.compute=bf16"}},
      {"llama",
       {ranks(4), "strategy={data: {kind: fsdp, secondary: 2}, offload: {parameters: disk}}",
        "precision.compute=bf16"}},
      {"llama", {ranks(2), "strategy={tensor: {degree: 2, sequence_parallel: true, keep: shard}}"}},
      {"llama",
       {ranks(4), "strategy={data: {kind: zero2}, tensor: {degree: 2, sequence_parallel: true, overlap: true}}",
        "train.batch.micro=1"}},
      {"gpt2",
       {ranks(4), "strategy={tensor: {degree: 2, overlap: true}, pipeline: {degree: 2, schedule: zb_h1}}",
        "train.batch.micro=1"}},
  };
  return cases;
}

const std::vector<ProofCase>& muon_cases() {
  static const std::vector<ProofCase> cases{
      {"gpt2", {ranks(2), "strategy=ddp", kMuon}},
      {"gpt2", {ranks(4), "strategy=zero1", kMuon}},
      {"llama", {ranks(4), "strategy=zero3", kMuon, "precision.compute=bf16"}},
      {"gpt2", {ranks(4), "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}}", kMuon}},
      {"llama", {ranks(2), "strategy={tensor: {degree: 2, sequence_parallel: true}}", kMuon}},
      {"gpt2",
       {ranks(8), "strategy={data: {kind: zero2}, tensor: {degree: 2}, pipeline: {degree: 2}}", kMuon,
        "train.batch.micro=2"}},
      {"llama",
       {ranks(8), "strategy={data: {kind: fsdp}, context: {degree: 2}, tensor: {degree: 2, sequence_parallel: true}}",
        kMuon}},
      {"gpt2",
       {ranks(4), "strategy={data: {kind: zero1}, tensor: {degree: 2}}",
        "train.groups=[{match: [\"h.0.*\"], optimizer: {name: muon}}, {match: [\"*.bias\"], optimizer: {name: adamw, "
        "lr: "
        "2.0e-3}}]"}},
  };
  return cases;
}

std::vector<ProofCase> all_cases() {
  std::vector<ProofCase> all = plain_cases();
  all.insert(all.end(), muon_cases().begin(), muon_cases().end());
  return all;
}

ProofJobs::ProofJobs() {
  std::string tokens, table;
  for (int i = 0; i < 8 * 40 + 1; ++i) tokens += {static_cast<char>(i % 32), '\0'};
  for (int i = 0; i < 40; ++i) table += "1,2,3,4,5,6," + std::to_string(i % 4) + "\n";
  folder_.write("tokens.bin", tokens);
  folder_.write("table.csv", table);
  for (const auto& [name, model, data] :
       {std::tuple("gpt2", kGpt2, kTokens), std::tuple("llama", kLlama, kTokens), std::tuple("mlp", kMlp, kTable)})
    folder_.write(std::string(name) + ".yaml", std::string(model) + std::string(data) + std::string(kTraining));
}
Plan ProofJobs::plan(const std::string& model, const std::vector<std::string>& overrides, int streams) const {
  const LoadedJob loaded =
      load_job(folder_.path(model + ".yaml"), overrides, {.configs_dir = std::string(TRAINER_SOURCE_DIR) + "/configs"});
  const SomeTarget target(streams);
  return compile(loaded, {.target = &target, .memory_bytes = std::int64_t{64} << 30, .threads = 1}, Purpose::train)
      .plan;
}

bool mentions(const std::vector<std::string>& found, std::string_view what) {
  return std::any_of(found.begin(), found.end(),
                     [&](const std::string& line) { return line.find(what) != std::string::npos; });
}

std::size_t Dice::below(std::size_t bound) {
  return static_cast<std::size_t>(random_below(key_, 0, next_++, static_cast<std::uint64_t>(bound)));
}

void judge(const Plan& mutant, Tally& tally) {
  const bool refused = !violations(mutant).empty();
  ++(refused ? tally.refused : tally.accepted);
  CHECK_MESSAGE(refused, "accepted");
}

void tell(const std::map<std::string, Tally>& tallies) {
  for (const auto& [name, tally] : tallies) {
    MESSAGE(name << ": " << tally.refused << " refused, " << tally.accepted << " accepted");
    CHECK(tally.refused > 0);
  }
}

}  // namespace trainer::tests
