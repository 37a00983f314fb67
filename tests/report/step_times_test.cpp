// A step's times, measured and predicted, on small pipelines and data parallel jobs.
#include "engine/report/step_times.h"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/report/compare_times.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;
using namespace trainer::report;

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
    for (const Issued& issued : plan.role_of(rank).program(ProgramKind::step)->instructions) {
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
    const std::vector<Issued>& step = job.plan.role_of(rank).program(ProgramKind::step)->instructions;
    for (std::size_t i = 0; i < step.size(); ++i) {
      const bool communicates = std::holds_alternative<Collective>(step[i].instruction) ||
                                std::holds_alternative<Exchange>(step[i].instruction);
      CHECK(meetings.of(rank, i).empty() == !communicates);
    }
  }
}

TEST_CASE("predicted is set beside measured by what was run, waits aside, and all of it adds up") {
  const TinyJobs jobs;
  const CompiledJob job = compiled(pipeline_job(jobs));
  const Meetings meetings(job.plan);
  const std::vector<RankTrace> measured = made_up(job.plan);
  // A prediction of 10 ns for every kernel, and of 1 ns and a wait for all else.
  cost::Prediction prediction;
  double launches = 0;
  for (const Role& role : job.plan.roles) {
    std::vector<cost::Span>& spans = prediction.spans.emplace_back();
    for (const Issued& issued : role.program(ProgramKind::step)->instructions) {
      const bool launch = std::holds_alternative<Launch>(issued.instruction);
      launches += launch;
      spans.push_back(launch ? cost::Span{5, 5.010, 0} : cost::Span{5, 6.001, 1});
    }
  }
  cost::DeviceModel device;
  device.memory_bandwidth.value = 1e9;
  device.peak[DType::f32].value = 1e9;
  const std::vector<TimeDifference> differences = compare_times(job.plan, device, prediction, meetings, measured);
  double predicted = 0, measured_launches = 0, count = 0;
  int seeds = 0;
  for (std::size_t i = 0; i < differences.size(); ++i) {
    const TimeDifference& one = differences[i];
    if (i > 0) CHECK(std::abs(one.difference_us()) <= std::abs(differences[i - 1].difference_us()));
    CHECK(one.work != "");
    // At a gigabyte a second: 8 bytes of the count, the scalars, and 4 of the seed.
    if (one.work.starts_with("loss_seed")) {
      ++seeds;
      const std::int64_t scalars = job.plan.roles[0].buffer(job.plan.roles[0].scalars).bytes;
      CHECK(one.floor_us == doctest::Approx(one.count * static_cast<double>(12 + scalars) * 1e-3));
    }
    predicted += one.predicted_us;
    count += one.count;
    const bool communicates = one.work.starts_with("all_reduce") || one.work.starts_with("exchange");
    if (!communicates && !one.work.starts_with("copy")) measured_launches += one.measured_us;
    if (!communicates) CHECK(one.difference_us() == doctest::Approx(0).epsilon(1e-9));
  }
  CHECK(seeds > 0);
  const double instructions = static_cast<double>(prediction.spans[0].size() + prediction.spans[1].size());
  CHECK(count == doctest::Approx(instructions / 2));
  CHECK(measured_launches == doctest::Approx(launches / 2 * 0.010));
  CHECK(predicted == doctest::Approx((launches * 0.010 + (instructions - launches) * 0.001) / 2));
}

TEST_CASE("a rank's time is computing, communicating and waiting, and a late partner makes it wait") {
  const TinyJobs jobs;
  const CompiledJob job = compiled(pipeline_job(jobs));
  const std::vector<RankTimes> times = measure(job.plan, Meetings(job.plan), made_up(job.plan));
  REQUIRE(times.size() == 2);
  std::int64_t launches = 0;
  for (const Issued& issued : job.plan.roles[0].program(ProgramKind::step)->instructions)
    launches += std::holds_alternative<Launch>(issued.instruction);
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
