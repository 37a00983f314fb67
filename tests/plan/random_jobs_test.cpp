// Random jobs over every axis, strategy, schedule, precision, optimizer and kind of offload: each becomes a plan that
// is proved, or is refused at one of its keys. The same jobs in every run; TRAINER_RANDOM_JOBS makes more of them.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/core/error.h"
#include "kernels/cuda/target.h"

namespace trainer::random_jobs_test {
namespace {

using Words = std::vector<std::string>;

const Words kSchedules{"gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "looped_bfs", "dualpipe_v"};
const Words kData{"ddp",
                  "zero1",
                  "zero2",
                  "zero3",
                  "fsdp",
                  "{kind: ddp, bucket_mb: 0.1}",
                  "{kind: ddp, compression: int8}",
                  "{kind: ddp, compression: {top_k: 0.05}}",
                  "{kind: zero2, reduce_dtype: int8}",
                  "{kind: zero3, secondary: 2}",
                  "{kind: fsdp, prefetch: 2}",
                  "{kind: fsdp, sharding: shard_grad_op}",
                  "{kind: fsdp, sharding: hybrid_shard, replicate: 2}",
                  "{kind: fsdp, gather: int8}",
                  "{kind: fsdp, reduce_dtype: int8}",
                  "{kind: fsdp, keep: step, reduce: step}",
                  "{kind: local_sgd, every: 4}",
                  "{kind: local_sgd, every: 4, delayed: true}",
                  "{kind: local_sgd, every: 4, outer: {lr: 0.7, momentum: 0.9}}",
                  "{kind: local_sgd, every: 8, parts: 2, outer: {lr: 0.7, momentum: 0.9, compression: int8}}"};
const Words kOptimizers{"{name: adamw, lr: 1e-3}",
                        "{name: adamw, lr: 1e-3}",
                        "{name: adamw, lr: 1e-3, states: bf16}",
                        "{name: adamw, lr: 1e-3, states: int8}",
                        "{name: sgd, lr: 1e-2, momentum: 0.9}",
                        "{name: lion, lr: 1e-4}",
                        "{name: muon, lr: 2e-2, others: {name: adamw, lr: 3e-4}}"};
const Words kPrecisions{"{compute: f32}", "{compute: bf16}", "{compute: bf16, reduce: bf16}",
                        "{compute: f16, loss_scale: dynamic}", "{compute: bf16, matmul: fp8}"};
const Words kRecomputed{"none", "none", "full", "selective", "{mode: every_n, every: 2}"};

class RandomJob {
 public:
  explicit RandomJob(std::uint64_t seed) : random_(seed) {}

  std::string text() {
    const int stages = one_of<int>({1, 1, 1, 2, 4, 8}), tensor = one_of<int>({1, 1, 1, 2, 4}),
              context = one_of<int>({1, 1, 1, 2, 4}), data = one_of<int>({1, 1, 2, 4});
    const bool experts = chance(0.3);
    const int expert = experts && context == 1 ? one_of<int>({1, 1, 2, 4}) : 1;
    const std::string& schedule = one_of(kSchedules);
    const bool of_chunks =
        schedule == "interleaved" || schedule == "zb_v" || schedule == "looped_bfs" || schedule == "dualpipe_v";
    const int chunks = stages > 1 && of_chunks ? 2 : 1, micro = one_of<int>({1, 1, 2}),
              micro_batches = stages * one_of<int>({1, 2, 3, 4, 8});
    strategy_ = "data: " + one_of(kData);
    if (stages > 1)
      strategy_ += ", pipeline: {degree: " + std::to_string(stages) + ", schedule: " + schedule +
                   ", virtual_stages: " + std::to_string(chunks) + "}";
    if (tensor > 1)
      strategy_ += ", tensor: {degree: " + std::to_string(tensor) + ", sequence_parallel: " + flag(0.5) +
                   ", overlap: " + flag(0.3) + "}";
    if (context > 1)
      strategy_ +=
          ", context: {degree: " + std::to_string(context) + ", kind: " + one_of<std::string>({"gather", "ring"}) + "}";
    if (expert > 1) strategy_ += ", expert: {degree: " + std::to_string(expert) + "}";
    if (chance(0.2)) offload(stages);
    return "model: {graph: models/decoder.yaml, with: {" + model(stages * chunks, experts) +
           "}}\ndata: {format: tokens, train: tokens.bin, seq_len: 64}\ntrain: {steps: 8, clip_norm: 1.0, batch: "
           "{global: " +
           std::to_string(data * expert * micro * micro_batches) + ", micro: " + std::to_string(micro) +
           "}, optimizer: " + one_of(kOptimizers) + "}\nprecision: " + one_of(kPrecisions) +
           "\nactivation_checkpointing: " + one_of(kRecomputed) +
           "\ncluster: {device: cuda, devices_per_node: " + std::to_string(stages * tensor * context * expert * data) +
           "}\nstrategy: {" + strategy_ + "}\n";
  }

 private:
  bool chance(double share) { return static_cast<double>(random_() % 1000) < 1000 * share; }
  std::string flag(double share) { return chance(share) ? "true" : "false"; }
  template <typename T>
  const T& one_of(const std::vector<T>& all) {
    return all[random_() % all.size()];
  }
  template <typename T>
  T one_of(std::initializer_list<T> all) {
    return one_of(std::vector<T>(all));
  }

  void offload(int stages) {
    strategy_ += ", offload: {optimizer: host";
    if (chance(0.5)) strategy_ += ", update: host";
    if (chance(0.3)) strategy_ += ", gradients: host";
    if (chance(0.5)) strategy_ += ", parameters: host";
    if (stages == 1 && chance(0.5)) strategy_ += ", activations: host";
    strategy_ += "}";
  }

  std::string model(int chunks, bool experts) {
    std::string with = "layers: " + std::to_string(chunks * one_of<int>({1, 2})) +
                       ", heads: 8, kv_heads: " + one_of<std::string>({"4", "8"}) +
                       ", head_dim: 16, dim: 64, hidden: 128, vocab: 256";
    if (experts) with += ", sparse: true, experts: 8, expert_hidden: 32, top_k: " + one_of<std::string>({"1", "2"});
    if (experts && chance(0.3)) with += ", router_aux: 0.01";
    if (experts && chance(0.3)) with += ", router_score: sigmoid, router_balance: bias";
    if (experts && chance(0.3)) with += ", expert_capacity: 1.25";
    if (experts && chance(0.3)) with += ", shared_hidden: 64";
    if (chance(0.15)) with += ", mtp: true";
    if (chance(0.2)) with += ", tied: true";
    if (chance(0.2)) with += ", dropout: 0.1";
    if (chance(0.1)) with += ", window: 16";
    return with;
  }

  std::mt19937_64 random_;
  std::string strategy_;
};

}  // namespace

TEST_CASE("a random job becomes a plan that is proved, or is refused at one of its keys") {
  static const kernels::cuda::CudaTarget sm_90(90, 132);
  const Hardware hardware{.target = &sm_90, .memory_bytes = std::int64_t{64} << 30, .threads = 1};
  const char* const asked = std::getenv("TRAINER_RANDOM_JOBS");
  const int number = asked == nullptr ? 250 : std::atoi(asked);
  int planned = 0;
  for (int i = 0; i < number; ++i) {
    const std::string text = RandomJob(static_cast<std::uint64_t>(i)).text();
    CAPTURE(text);
    try {
      compile(parse_job(
                  text, "job.yaml", {},
                  {.configs_dir = std::string(TRAINER_SOURCE_DIR) + "/configs", .check_files = true, .world_size = 0}),
              hardware, Purpose::train);
      ++planned;
    } catch (const JobError& refused) {
      for (const Diagnostic& one : refused.diagnostics()) CHECK_FALSE(one.path.empty());
    } catch (const std::exception& failed) {
      FAIL_CHECK(std::string(failed.what()));
    }
  }
  MESSAGE(planned << " of " << number << " are planned");
  CHECK(2 * planned > number);
}

}  // namespace trainer::random_jobs_test
