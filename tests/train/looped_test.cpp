// Steps of many micro-batches: a plan with loops trains to the bits of the same plan written out, in the same memory,
// for data strategies, schedules, and what else rings of memory pass through.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/plan/loop.h"
#include "tests/train/mixed_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

// A line of mixed jobs over sequences, with so many samples in a micro-batch and micro-batches in a step instead of
// what it says. (The smallest do not loop everywhere: rings would take too much beside so little memory.)
struct Many {
  std::string line;
  int micro, micro_batches, data_ranks;
};
const Many kJobs[] = {
    {"gpt r1 ddp m1 drop clip ignore", 1, 40, 1},
    {"llama r2 ddp m1 bf16", 1, 64, 2},
    {"packed r2 zero2 m1 selective", 1, 32, 2},
    {"gpt r2 zero3 m1 keep:use prefetch:3 wrap:transformer drop", 1, 32, 2},
    {"llama r2 full_shard m1 reduce:micro_batch full sharded", 1, 32, 2},
    {"packed r4 hybrid2 t2 sp m1 clip", 1, 128, 2},
    {"gpt r2 ddp c2 m1 drop", 1, 32, 1},
    {"llama r2 zero1 lora m1 clip", 1, 32, 2},
    {"gpt r2 ddp p2 1f1b m1 clip drop ignore", 1, 32, 1},
    {"gpt r4 full_shard p2 1f1b m1 keep:step full bf16", 8, 32, 2},
    {"gpt r4 ddp t2 p2 1f1b m1 muon clip", 8, 32, 1},
    {"packed r2 ddp p2 zb_h1 m1 drop", 1, 256, 1},
    {"gpt r2 ddp p2 gpipe m1 clip drop ignore", 1, 40, 1},
    {"llama r4 full_shard p2 gpipe m1 keep:pass", 8, 32, 2},
    {"gpt r4 ddp t2 p2 looped_bfs v2 m1 muon clip", 8, 32, 1},
    {"packed r2 ddp p2 looped_bfs v1 m1 drop", 1, 64, 1},
    {"llama r4 zero1 t2 sp m1 clip pairs", 1, 64, 2},
    {"gpt r4 ddp t2 p2 1f1b m1 drop pairs", 1, 128, 1},
};

}  // namespace

TEST_CASE("a step of many micro-batches trains to the bits of the same step written out") {
  const EnvironmentSetting one_thread("TRAINER_THREADS", "1");
  const MixedJobs jobs;
  TemporaryFolder data;
  std::string tokens;
  for (int i = 0; i < 1024 * 8; ++i) tokens += {static_cast<char>((i * 5 + i / 7) % 33), '\0'};
  data.write("tokens.bin", tokens);
  int folder = 0;
  for (const Many& many : kJobs) {
    CAPTURE(many.line);
    const auto load = [&] {
      const int samples = many.micro * many.micro_batches * many.data_ranks;
      return jobs.load(
          many.line, "run" + std::to_string(folder++),
          {"train.batch={micro: " + std::to_string(many.micro) + ", global: " + std::to_string(samples) + "}",
           "train.steps=2", "eval=null", "data.train=" + data.path("tokens.bin")});
    };
    const LoadedJob first = load(), second = load();
    const CompiledJob job = compiled(first);
    REQUIRE(loops(job.plan));
    REQUIRE(job.batch.micro_batches == many.micro_batches);
    const CompiledJob full = written_out(compiled(second));
    CHECK_FALSE(loops(full.plan));
    const Trained looped = run(first, job), whole = run(second, full);
    REQUIRE(looped.loss.size() == 2);
    CHECK(looped.loss == whole.loss);
    CHECK(looped.grad_norm == whole.grad_norm);
    CHECK(looped.report.allocated_bytes == whole.report.allocated_bytes);
    const auto files = files_of(looped.report.checkpoint), expected = files_of(whole.report.checkpoint);
    REQUIRE(files.size() == expected.size());
    for (const auto& [name, bytes] : expected)
      if (name.ends_with(".safetensors")) CHECK(files.at(name) == bytes);
  }
}
