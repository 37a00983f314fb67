// A step's times, measured and planned, on small pipelines and data parallel jobs.
#include "tools/step_times.h"

#include <doctest/doctest.h>

#include <array>

#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;
using namespace trainer::tools;

namespace {

constexpr const char* kPipeline = "strategy={pipeline: {degree: 2}}";

LoadedJob pipeline_job(const TinyJobs& jobs) {
  return jobs.load("gpt2", "run", {"cluster.devices_per_node=2", kPipeline, "train.batch.micro=2", "train.steps=2"});
}

// Kernels of 10 ns, messages of 1 ns, one after another, and the second rank a second late.
std::vector<RankTrace> made_up(const Plan& plan) {
  std::vector<RankTrace> traces;
  for (int rank = 0; rank < plan.mesh.world_size(); ++rank) {
    RankTrace& trace = traces.emplace_back(RankTrace{rank, rank * 1'000'000'000LL, {}});
    std::int64_t now = 0;
    for (const Issued& issued : plan.role_of(rank).program("step")->instructions) {
      const std::int64_t duration = std::holds_alternative<Launch>(issued.instruction) ? 10 : 1;
      trace.spans.push_back({now, now + duration});
      now += duration;
    }
  }
  return traces;
}

}  // namespace

TEST_CASE("an instruction that communicates meets its partners, and every message has two ends") {
  const TinyJobs jobs;
  const CompiledJob job = compiled(pipeline_job(jobs));
  const Meetings meetings(job.plan);
  // Of each of 4 micro-batches activations go down and gradients come back.
  CHECK(meetings.messages().size() >= 8);
  for (const Meetings::Message& message : meetings.messages()) {
    CHECK(message.from.rank != message.to.rank);
    CHECK_FALSE(meetings.of(message.from.rank, static_cast<std::size_t>(message.from.instruction)).empty());
  }
  for (int rank : {0, 1}) {
    const std::vector<Issued>& step = job.plan.role_of(rank).program("step")->instructions;
    for (std::size_t i = 0; i < step.size(); ++i) {
      const bool communicates = std::holds_alternative<Collective>(step[i].instruction) || std::holds_alternative<Exchange>(step[i].instruction);
      CHECK(meetings.of(rank, i).empty() == !communicates);
    }
  }
}

TEST_CASE("a planned step keeps the plan's order, and nothing starts before what it meets") {
  const TinyJobs jobs;
  const CompiledJob job = compiled(pipeline_job(jobs));
  const Meetings meetings(job.plan);
  const std::vector<RankTrace> planned = planned_times(job.plan, meetings, made_up(job.plan));
  REQUIRE(planned.size() == 2);
  for (int rank : {0, 1}) {
    const std::vector<Issued>& step = job.plan.role_of(rank).program("step")->instructions;
    const std::vector<Span>& spans = planned[static_cast<std::size_t>(rank)].spans;
    REQUIRE(spans.size() == step.size());
    std::array<std::int64_t, kNumStreams> free{};
    for (std::size_t i = 0; i < step.size(); ++i) {
      std::int64_t& before = free[static_cast<std::size_t>(step[i].stream)];
      CHECK(spans[i].begin_ns >= before);
      before = spans[i].end_ns;
      for (std::int32_t after : step[i].after)
        if (after >= 0) CHECK(spans[i].begin_ns >= spans[static_cast<std::size_t>(after)].end_ns);
    }
  }
  for (const Meetings::Message& message : meetings.messages()) {
    const Span& from = planned[static_cast<std::size_t>(message.from.rank)].spans[static_cast<std::size_t>(message.from.instruction)];
    const Span& to = planned[static_cast<std::size_t>(message.to.rank)].spans[static_cast<std::size_t>(message.to.instruction)];
    CHECK(from.begin_ns <= to.end_ns);
    CHECK(to.begin_ns <= from.end_ns);
  }
}

TEST_CASE("a rank's time is computing, communicating and waiting, and a late partner makes it wait") {
  const TinyJobs jobs;
  const CompiledJob job = compiled(pipeline_job(jobs));
  const std::vector<RankTimes> times = measure(job.plan, Meetings(job.plan), made_up(job.plan));
  REQUIRE(times.size() == 2);
  std::int64_t launches = 0;
  for (const Issued& issued : job.plan.roles[0].program("step")->instructions) launches += std::holds_alternative<Launch>(issued.instruction);
  CHECK(times[0].compute == 10 * launches);
  for (const RankTimes& one : times) {
    CHECK(one.step == times[0].step);
    CHECK(one.compute + one.exposed + one.waiting == one.step);
  }
  CHECK(times[0].exposed == 0);  // whatever it sent, nobody was there yet
  CHECK(times[1].exposed > 0);
  CHECK(times[0].waiting > 900'000'000);
}

TEST_CASE("the traces of all ranks are on one clock") {
  const TinyJobs jobs;
  std::vector<RankTrace> traces;
  const LoadedJob loaded = pipeline_job(jobs);
  run(loaded, {}, {.trace = [&](const std::vector<RankTrace>& all) { traces = all; }});
  REQUIRE(traces.size() == 2);
  const CompiledJob job = compiled(loaded);
  // A message cannot have been received before its sending began.
  const Meetings meetings(job.plan);
  for (const Meetings::Message& message : meetings.messages()) {
    const RankTrace& from = traces[static_cast<std::size_t>(message.from.rank)];
    const RankTrace& to = traces[static_cast<std::size_t>(message.to.rank)];
    CHECK(to.start_ns + to.spans[static_cast<std::size_t>(message.to.instruction)].end_ns >=
          from.start_ns + from.spans[static_cast<std::size_t>(message.from.instruction)].begin_ns);
  }
}
