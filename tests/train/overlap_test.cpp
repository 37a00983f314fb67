// Reductions go on during the backward pass: by the order the plan leaves open, and by the clock. What is sent is what
// the plan says.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/ops/op_def.h"
#include "engine/run/executor.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

constexpr std::size_t kCommunication = static_cast<std::size_t>(Stream::communication);

const std::vector<Issued>& step_of(const CompiledJob& job) {
  return job.plan.roles[0].program(ProgramKind::step)->instructions;
}

bool reduces_gradients(const Role& role, const Issued& issued) {
  const auto* collective = std::get_if<Collective>(&issued.instruction);
  return collective != nullptr && role.buffer(collective->input.region.buffer).category == Category::gradients;
}

bool is_of_graph(const Issued& issued) {
  return std::holds_alternative<Launch>(issued.instruction) && is_pass(issued.why.phase);
}

// For each reduction of gradients: the launches of the backward pass issued after it that do not wait for it.
std::vector<int> launches_beside(const CompiledJob& job) {
  std::vector<int> beside;
  const std::vector<Issued>& step = step_of(job);
  for (std::size_t i = 0; i < step.size(); ++i) {
    if (!reduces_gradients(job.plan.roles[0], step[i])) continue;
    int count = 0;
    for (std::size_t j = i + 1; j < step.size(); ++j) {
      // Streams run in order: a wait of one instruction holds for all that follow on its stream.
      if (step[j].stream == Stream::compute && step[j].after[kCommunication] >= static_cast<std::int32_t>(i)) break;
      count += is_of_graph(step[j]) ? 1 : 0;
    }
    beside.push_back(count);
  }
  return beside;
}

// For each collective of the graph: the products of the other micro-batch of its pair that are issued behind it and do
// not wait for it.
std::vector<int> products_of_the_other(const CompiledJob& job) {
  std::vector<int> beside;
  const Role& role = job.plan.roles[0];
  const std::vector<Issued>& step = step_of(job);
  for (std::size_t i = 0; i < step.size(); ++i) {
    const Provenance& of = step[i].why;
    if (!std::holds_alternative<Collective>(step[i].instruction) || !is_pass(of.phase) || of.node < 0) continue;
    const auto stream = static_cast<std::size_t>(step[i].stream);
    int count = 0;
    for (std::size_t j = i + 1; j < step.size(); ++j) {
      if (step[j].stream == Stream::compute && step[j].after[stream] >= static_cast<std::int32_t>(i)) break;
      const auto* launch = std::get_if<Launch>(&step[j].instruction);
      count += launch != nullptr && step[j].why.micro_batch == (of.micro_batch ^ 1) &&
               cost_of(role.signatures[static_cast<std::size_t>(launch->signature)]).flops > 0;
    }
    beside.push_back(count);
  }
  return beside;
}

}  // namespace

TEST_CASE("in pairs of micro-batches one multiplies while what the other sends travels") {
  const TinyJobs jobs;
  for (const char* sequence_parallel : {"false", "true"}) {
    CAPTURE(std::string(sequence_parallel));
    const auto load = [&](const char* overlap) {
      return compiled(jobs.load("llama", "run",
                                {"cluster.devices_per_node=2",
                                 std::string("strategy={tensor: {degree: 2, sequence_parallel: ") + sequence_parallel +
                                     ", overlap: " + overlap + "}}",
                                 "model.with.layers=4", "train.batch.global=4", "train.batch.micro=2"}));
    };
    const std::vector<int> apart = products_of_the_other(load("false")), pairs = products_of_the_other(load("true"));
    REQUIRE(apart.size() == pairs.size());
    REQUIRE(apart.size() >= 32);
    CHECK(std::ranges::count(apart, 0) == std::ssize(apart));
    // At the ends of both passes there is nothing to multiply meanwhile.
    CHECK(std::ranges::count(pairs, 0) <= 8);
  }
}

TEST_CASE("every bucket but the last is reduced beside launches of the backward pass") {
  const TinyJobs jobs;
  for (const char* accumulation : {"4", "1"}) {
    CAPTURE(std::string(accumulation));
    const CompiledJob job =
        compiled(jobs.load("gpt2", "run",
                           {"cluster.devices_per_node=2", "strategy.data.kind=ddp", "strategy.data.bucket_mb=0.004",
                            std::string("train.batch.micro=") + accumulation}));
    const std::vector<int> beside = launches_beside(job);
    REQUIRE(beside.size() >= 4);
    for (std::size_t i = 0; i + 1 < beside.size(); ++i) {
      CAPTURE(i);
      CHECK(beside[i] > 0);
    }
    // Gradients accumulate over micro-batches and are reduced once.
    CHECK(beside.size() == job.plan.roles[0].units.size());
  }
}

TEST_CASE("a reduction begins before the backward pass ends") {
  const TinyJobs jobs;
  const std::string tokens = jobs.write("long.bin", std::string(2 * (8 * 128 + 1), '\0'));
  const auto loaded_into = [&](const std::string& folder) {
    return jobs.load("gpt2", folder,
                     {"cluster.devices_per_node=2", "strategy.data.kind=ddp", "strategy.data.bucket_mb=0.1",
                      "model.with.dim=128", "model.with.layers=4", "data.train=" + tokens, "train.batch.global=128",
                      "train.steps=2", "checkpoint.resume=none"});
  };
  const CompiledJob job = compiled(loaded_into("run"));
  REQUIRE(job.plan.roles[0].units.size() >= 4);
  bool overlapped = false;
  // The backward pass takes several of the scheduler's time slices, so that a communication thread has its turn even
  // where all cores compute; on a loaded machine perhaps not every time.
  for (int attempt = 0; attempt < 20 && !overlapped; ++attempt) {
    run(loaded_into("run" + std::to_string(attempt)), {}, {.trace = [&](const std::vector<RankTrace>& traces) {
          const std::vector<Issued>& step = step_of(job);
          std::int64_t first_reduction = INT64_MAX, last_launch = 0;
          for (std::size_t i = 0; i < step.size(); ++i) {
            if (reduces_gradients(job.plan.roles[0], step[i]))
              first_reduction = std::min(first_reduction, traces[0].spans[i].begin_ns);
            if (is_of_graph(step[i])) last_launch = std::max(last_launch, traces[0].spans[i].end_ns);
          }
          overlapped = first_reduction < last_launch;
        }});
  }
  CHECK(overlapped);
}

TEST_CASE("a rank sends 2 (n - 1) / n of what it reduces") {
  const TinyJobs jobs;
  for (int ranks : {2, 4}) {
    CAPTURE(ranks);
    const LoadedJob loaded = jobs.load("llama", "run" + std::to_string(ranks),
                                       {"cluster.devices_per_node=" + std::to_string(ranks), "strategy.data.kind=ddp",
                                        "strategy.data.bucket_mb=0.004"});
    std::int64_t sent = 0, gradients = 0;
    const CompiledJob job = compiled(loaded);
    for (const Issued& issued : step_of(job))
      if (const auto* collective = std::get_if<Collective>(&issued.instruction)) {
        REQUIRE(collective->kind == CollectiveKind::all_reduce);
        sent += 2 * collective->input.region.bytes * (ranks - 1) / ranks;
        if (reduces_gradients(job.plan.roles[0], issued)) gradients += collective->input.region.bytes;
      }
    CHECK(gradients >= 4 * job.num_parameters);
    CHECK(gradients < 4 * job.num_parameters + 4 * 32 * 64);  // each tensor is padded to 32 elements at most
    CHECK(run(loaded).report.bytes_sent == 6 * sent);
  }
}
