// Random jobs over every axis, strategy, schedule, precision, optimizer and kind of offload: each becomes a plan that
// is proved, or is refused at one of its keys. The same jobs in every run; TRAINER_RANDOM_JOBS makes more of them.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <set>
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
    std::string strategy = "data: " + use(kData);
    if (stages > 1) {
      used.insert(schedule);
      strategy += ", pipeline: {degree: " + std::to_string(stages) + ", schedule: " + schedule +
                  ", virtual_stages: " + std::to_string(chunks) + "}";
    }
    if (tensor > 1) {
      strategy += ", tensor: {degree: " + std::to_string(tensor) + ", sequence_parallel: " + flag(0.5);
      strategy += ", overlap: " + flag(0.3) + "}";
    }
    if (context > 1)
      strategy += ", context: {degree: " + std::to_string(context) + ", kind: " + use({"gather", "ring"}) + "}";
    if (expert > 1) strategy += ", expert: {degree: " + std::to_string(expert) + "}";
    if (chance(0.2)) strategy += offload(stages);
    std::string text = "model: {graph: models/decoder.yaml, with: {" + model(stages * chunks, experts) + "}}\n";
    text += "data: {format: tokens, train: tokens.bin, seq_len: 64}\n";
    text +=
        "train: {steps: 8, clip_norm: 1.0, batch: {global: " + std::to_string(data * expert * micro * micro_batches) +
        ", micro: " + std::to_string(micro) + "}, optimizer: " + use(kOptimizers) + "}\n";
    text += "precision: " + use(kPrecisions) + "\n";
    text += "activation_checkpointing: " + use(kRecomputed) + "\n";
    text += "cluster: {device: cuda, devices_per_node: " + std::to_string(stages * tensor * context * expert * data) +
            "}\nstrategy: {" + strategy + "}\n";
    return text;
  }

  std::set<std::string> used;  ///< of what the job has, the words that some job has to be planned with

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

  const std::string& use(const Words& all) { return *used.insert(one_of(all)).first; }

  std::string offload(int stages) {
    std::string text = ", offload: {optimizer: host";
    const auto maybe = [&](double share, const char* more) {
      if (!chance(share)) return;
      text += ", " + std::string(more);
      used.insert(more);
    };
    maybe(0.5, "update: host");
    maybe(0.3, "gradients: host");
    maybe(0.5, "parameters: host");
    if (stages == 1) maybe(0.5, "activations: host");
    return text + "}";
  }

  std::string model(int chunks, bool experts) {
    std::string with = "layers: " + std::to_string(chunks * one_of<int>({1, 2}));
    with += ", dim: 64, hidden: 128, vocab: 256";
    const auto maybe = [&](double share, const std::string& more) {
      if (!chance(share)) return;
      with += ", " + more;
      used.insert(more);
    };
    if (chance(0.2))
      with += ", heads: 4, kv_heads: 4, head_dim: 24, kv_rank: 32, q_rank: 32, rope_dim: 8, v_dim: 16";
    else
      with += ", head_dim: 16, heads: " + one_of<std::string>({"4", "8"}) + ", kv_heads: 4";
    if (experts) {
      with += ", sparse: true, experts: 8, expert_hidden: 32, top_k: " + one_of<std::string>({"1", "2"});
      maybe(0.3, "router_aux: 0.01");
      maybe(0.3, "router_score: sigmoid, router_balance: bias");
      maybe(0.3, "expert_capacity: 1.25");
      maybe(0.3, "shared_hidden: 64");
    }
    maybe(0.15, "mtp: true");
    maybe(0.2, "tied: true");
    maybe(0.2, "dropout: 0.1");
    maybe(0.1, "window: 16");
    return with;
  }

  std::mt19937_64 random_;
};

}  // namespace

TEST_CASE("a random job becomes a plan that is proved, or is refused with a reason") {
  static const kernels::cuda::CudaTarget sm_90(90, 132);
  const Hardware hardware{.target = &sm_90, .memory_bytes = std::int64_t{64} << 30, .threads = 1};
  const LoadOptions options{
      .configs_dir = std::string(TRAINER_SOURCE_DIR) + "/configs", .check_files = true, .world_size = 0};
  const char* const asked = std::getenv("TRAINER_RANDOM_JOBS");
  const int number = asked == nullptr ? 300 : std::stoi(asked);
  int planned = 0;
  std::set<std::string> used, of_planned;
  for (int i = 0; i < number; ++i) {
    RandomJob job(static_cast<std::uint64_t>(i));
    const std::string text = job.text();
    CAPTURE(text);
    used.insert(job.used.begin(), job.used.end());
    try {
      compile(parse_job(text, "job.yaml", {}, options), hardware, Purpose::train);
      ++planned;
      of_planned.insert(job.used.begin(), job.used.end());
    } catch (const JobError& refused) {
      for (const Diagnostic& one : refused.diagnostics()) CHECK_FALSE((one.path.empty() || one.message.empty()));
    } catch (const std::exception& failed) {
      FAIL_CHECK(std::string(failed.what()));
    }
  }
  MESSAGE(planned << " of " << number << " are planned");
  CHECK(2 * planned > number);
  CHECK(of_planned == used);
}

}  // namespace trainer::random_jobs_test
