// The proof on plans of every strategy, and that it bites: whatever changes what is communicated is refused.
#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/plan/verify.h"
#include "tests/temporary.h"

using namespace trainer;

namespace {

// Kernels that pack the weights of bf16 products and want some scratch memory.
class SomeTarget final : public Target {
 public:
  Layout preferred_layout(const Signature& signature, int index) const override {
    if (index != 1 || signature.operands[1].dtype != DType::bf16) return Layout::row_major;
    return signature.op == Op::linear ? Layout::packed : signature.op == Op::linear_grad_input ? Layout::packed_transposed : Layout::row_major;
  }
  std::int64_t bytes(const TensorDesc& tensor) const override { return (tensor.bytes() + 63) / 64 * 64; }
  std::int64_t workspace_bytes(const Signature& signature) const override { return signature.op == Op::linear_grad_weight ? 64 : 0; }
};

constexpr std::string_view kGpt2 = "model: {graph: models/gpt2.yaml, with: {layers: 2, heads: 2, dim: 16, vocab: 32, context: 8, dropout: 0.0}}\n";
constexpr std::string_view kLlama = "model: {graph: models/llama.yaml, with: {layers: 2, heads: 4, kv_heads: 2, dim: 16, hidden: 24, vocab: 32, rope_theta: 100}}\n";
constexpr std::string_view kMlp = "model: {graph: models/mlp.yaml, with: {features: 6, hidden: 32, layers: 3, classes: 4, dropout: 0.0}}\n";
constexpr std::string_view kTokens = "data: {format: tokens, token_type: u16, train: tokens.bin, seq_len: 8, shuffle: true}\n";
constexpr std::string_view kTable = "data: {format: table, train: table.csv, target: -1, normalize: standard, shuffle: true}\n";
constexpr std::string_view kTraining =
    "train: {steps: 6, batch: {global: 8, micro: auto}, optimizer: {name: adamw, lr: 1.0e-2}, clip_norm: 1.0}\n"
    "precision: {params: f32, compute: f32, reduce: f32, loss_scale: none}\n";

class Jobs {
 public:
  Jobs() {
    std::string tokens, table;
    for (int i = 0; i < 8 * 40 + 1; ++i) tokens += {static_cast<char>(i % 32), '\0'};
    for (int i = 0; i < 40; ++i) table += "1,2,3,4,5,6," + std::to_string(i % 4) + "\n";
    folder_.write("tokens.bin", tokens);
    folder_.write("table.csv", table);
    for (const auto& [name, model, data] : {std::tuple("gpt2", kGpt2, kTokens), std::tuple("llama", kLlama, kTokens), std::tuple("mlp", kMlp, kTable)})
      folder_.write(std::string(name) + ".yaml", std::string(model) + std::string(data) + std::string(kTraining));
  }
  Plan plan(const std::string& model, const std::vector<std::string>& overrides) const {
    const LoadedJob loaded = load_job(folder_.path(model + ".yaml"), overrides, {.configs_dir = std::string(TRAINER_SOURCE_DIR) + "/configs"});
    const SomeTarget target;
    return compile(loaded, {.target = &target, .memory_bytes = std::int64_t{64} << 30, .threads = 1}, Purpose::train).plan;
  }

 private:
  tests::TemporaryFolder folder_;
};

std::string ranks(int number) { return "cluster.devices_per_node=" + std::to_string(number); }

struct Case {
  std::string model;
  std::vector<std::string> overrides;
};

const std::vector<Case> kCases{
    {"gpt2", {ranks(2), "strategy=ddp"}},
    {"gpt2", {ranks(4), "strategy=zero1"}},
    {"gpt2", {ranks(4), "strategy=zero1", "precision.compute=bf16"}},
    {"gpt2", {ranks(4), "strategy=zero2", "train.batch.micro=1"}},
    {"gpt2", {ranks(4), "strategy=zero3"}},
    {"gpt2", {ranks(4), "strategy=zero3", "precision.compute=bf16"}},
    {"gpt2", {ranks(4), "strategy=fsdp"}},
    {"gpt2", {ranks(4), "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}}"}},
    {"gpt2", {ranks(4), "strategy={data: {kind: fsdp, sharding: shard_grad_op}}"}},
    {"gpt2", {ranks(2), "strategy=tensor"}},
    {"llama", {ranks(2), "strategy=tensor"}},
    {"llama", {ranks(2), "strategy={tensor: {degree: 2, sequence_parallel: true}}"}},
    {"gpt2", {ranks(2), "strategy={tensor: {degree: 2, sequence_parallel: true}}", "model.with.dropout=0.1"}},
    {"gpt2", {ranks(2), "strategy=pipeline"}},
    {"gpt2", {ranks(2), "strategy={pipeline: {degree: 2, schedule: gpipe}}"}},
    {"gpt2", {ranks(2), "strategy={pipeline: {degree: 2, schedule: zb_v, virtual_stages: 2}}", "model.with.layers=4"}},
    {"gpt2", {ranks(2), "strategy={pipeline: {degree: 2, schedule: zb_h1}}"}},
    {"gpt2", {ranks(2), "strategy={pipeline: {degree: 2, schedule: interleaved, virtual_stages: 2}}", "model.with.layers=4"}},
    {"gpt2", {ranks(8), "strategy={data: {kind: zero1}, tensor: {degree: 2}, pipeline: {degree: 2}}", "model.with.dropout=0.1", "train.clip_norm=1.0", "model.with.vocab=33", "train.batch.micro=2"}},
    {"gpt2", {ranks(8), "strategy={data: {kind: fsdp}, tensor: {degree: 2, sequence_parallel: true}, pipeline: {degree: 2}}", "activation_checkpointing={mode: full}"}},
    {"mlp", {ranks(4), "strategy={data: {kind: zero3}, pipeline: {degree: 2}}"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: local_sgd, every: 2}}"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: ddp, compression: bf16}}"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: ddp, compression: int8}}"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: ddp, compression: {top_k: 0.01}}}"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: zero1, compression: bf16}}"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: zero1, compression: int8}}"}},
    {"gpt2", {ranks(4), "strategy={data: {kind: ddp, compression: int8}, tensor: {degree: 2}}"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: local_sgd, every: 2, delayed: true}}"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: local_sgd, every: 2, outer: {lr: 0.7, momentum: 0.9}}}", "precision.compute=bf16"}},
    {"gpt2", {ranks(4), "strategy={data: {kind: local_sgd, every: 2}, tensor: {degree: 2}}"}},
    {"gpt2", {ranks(4), "strategy={data: {kind: local_sgd, every: 2}, pipeline: {degree: 2}}"}},
    {"gpt2", {ranks(4), "strategy={pipeline: {degree: 4}}", "model.with.layers=4", "train.batch.micro=1"}},
    {"gpt2", {ranks(4), "strategy={pipeline: {degree: 2, schedule: zb_h2}, tensor: {degree: 2}}"}},
    {"llama", {ranks(8), "strategy={pipeline: {degree: 2, schedule: looped_bfs, virtual_stages: 2}, tensor: {degree: 2}, data: {kind: zero2}}", "precision.compute=bf16", "model.with.layers=4"}},
    {"gpt2", {ranks(8), "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}, tensor: {degree: 2}}", "precision.compute=bf16", "model.with.vocab=33"}},
    {"gpt2", {ranks(2), "strategy={data: {kind: ddp, bucket_mb: 0.01}}", "activation_checkpointing={mode: selective}", "model.with.dropout=0.1"}},
    {"gpt2", {ranks(4), "strategy={data: {kind: fsdp, sharding: no_shard}, tensor: {degree: 2}}"}},
};

std::string text_of(const Case& one) {
  std::string text = one.model;
  for (const std::string& word : one.overrides) text += " " + word;
  return text;
}

}  // namespace

TEST_CASE("plans of every strategy hold, and so do their texts") {
  const Jobs jobs;
  for (const Case& one : kCases)
    for (const char* evaluation : {"data.val=null", "data.val={fraction: 0.2}"}) {
      CAPTURE(text_of(one));
      std::vector<std::string> overrides = one.overrides;
      overrides.emplace_back(evaluation);
      const Plan plan = jobs.plan(one.model, overrides);  // compile verifies
      const std::string text = print(plan);
      const Plan again = parse_plan(text);
      CHECK(print(again) == text);
      CHECK(violations(again) == std::vector<std::string>{});
    }
}
