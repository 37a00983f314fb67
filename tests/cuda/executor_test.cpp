// Whole jobs through the executor of GPUs, on the emulated one and with the CPU's kernels: what it does beside kernels
// is the CPU's to the bit, in whatever order streams go on where no event orders them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/comm/host_communicator.h"
#include "engine/core/error.h"
#include "engine/run/cuda_device.h"
#include "kernels/cuda/table.h"
#include "tests/cuda/emulated/emulated.h"
#include "tests/cuda/emulated_jobs.h"

namespace trainer::executor_test {

using tests::GpuJob;
using tests::TinyJobs;
using tests::Trained;

namespace {

constexpr std::uint64_t kOrders = 6;

const TinyJobs& jobs() {
  static const TinyJobs one;
  return one;
}

tests::Overrides fresh(tests::Overrides overrides = {}) {
  overrides.insert(overrides.begin(), "checkpoint.resume=none");
  return overrides;
}

Trained on_cpu(const std::string& name, const std::string& folder, tests::Overrides overrides = {}) {
  overrides.insert(overrides.begin(),
                   {"checkpoint.resume=none", "strategy=ddp", "train.batch.micro=2", "train.steps=20"});
  TrainOptions options;
  options.threads = 1;
  return tests::run(tests::from_the_start(jobs().load(name, folder, overrides)), {}, options);
}

bool same_run(const Trained& a, const Trained& b) {
  return a.loss == b.loss && a.grad_norm == b.grad_norm &&
         tests::files_of(a.report.checkpoint)["model.safetensors"] ==
             tests::files_of(b.report.checkpoint)["model.safetensors"];
}

}  // namespace

TEST_CASE("the emulated GPU is what kernels are prepared for") {
  const kernels::cuda::Device device(0);
  CHECK(device.name() == emulated::settings().name);
  CHECK(device.context().capability == 90);
}

TEST_CASE("jobs on a GPU train as on the CPU to the bit, in every order that the events allow") {
  for (const char* name : {"gpt2", "llama", "mlp"}) {
    CAPTURE(name);
    const Trained cpu = on_cpu(name, "cpu");
    const GpuJob job = tests::gpu_job(jobs(), name, "gpu", fresh());
    for (std::uint64_t order = 0; order < kOrders; ++order) {
      CAPTURE(order);
      const Trained gpu = run(job, order);
      CHECK(gpu.loss.size() == 20);
      CHECK(same_run(cpu, gpu));
    }
  }
}

TEST_CASE("dropout, recomputation, clipping and held-out data are the CPU's to the bit") {
  const tests::Overrides more{"model.with.dropout=0.1", "activation_checkpointing={mode: full}", "train.clip_norm=0.5",
                              "data.val={fraction: 0.2}", "eval={every: 5, batches: 2}"};
  const Trained cpu = on_cpu("gpt2", "cpu", more);
  const Trained gpu = run(tests::gpu_job(jobs(), "gpt2", "gpu", fresh(more)), 3);
  CHECK(same_run(cpu, gpu));
  REQUIRE(gpu.evaluations.size() == 4);
  for (std::size_t i = 0; i < gpu.evaluations.size(); ++i)
    CHECK(gpu.evaluations[i].val_loss == cpu.evaluations[i].val_loss);
}

TEST_CASE("states on the host: the same bits, issued and captured, in every order that the events allow") {
  for (const std::string compute : {"f32", "bf16"}) {
    CAPTURE(compute);
    const std::string precision = "precision.compute=" + compute;
    const Trained plain = run(tests::gpu_job(jobs(), "llama", "gpu", fresh({precision})));
    const GpuJob job = tests::gpu_job(jobs(), "llama", "host",
                                      fresh({precision, "strategy={data: {kind: ddp}, offload: {optimizer: host}}"}));
    const Role& role = job.compiled.plan.roles[0];
    CHECK(role.host_bytes > 0);
    CHECK(role.disk_bytes == 0);
    for (std::uint64_t order = 0; order < kOrders; ++order) {
      const Trained moved = run(job, order);
      CHECK(same_run(plain, moved));
      CHECK(tests::files_of(moved.report.checkpoint)["optimizer.safetensors"] ==
            tests::files_of(plain.report.checkpoint)["optimizer.safetensors"]);
      CHECK(moved.report.allocated_bytes == role.total_bytes);
      CHECK(moved.report.ranks[0].allocated_offload_bytes == role.host_bytes);
    }
    const tests::EnvironmentSetting off("TRAINER_CUDA_GRAPH", "0");
    CHECK(same_run(plain, run(job, 1)));
  }
}

namespace {

// What is kept on the host changes no bit, issued or captured, in any order that the events allow.
void check_moved(const Trained& plain, const GpuJob& job) {
  const Role& role = job.compiled.plan.roles[0];
  for (std::uint64_t order = 0; order < kOrders; ++order) {
    const Trained moved = run(job, order);
    CHECK(same_run(plain, moved));
    CHECK(moved.report.allocated_bytes == role.total_bytes);
    CHECK(moved.report.ranks[0].allocated_offload_bytes == role.host_bytes);
  }
  const tests::EnvironmentSetting off("TRAINER_CUDA_GRAPH", "0");
  CHECK(same_run(plain, run(job, 1)));
}

}  // namespace

TEST_CASE("working copies on the host come for each use: the same bits, issued and captured") {
  for (const std::string compute : {"f32", "bf16"}) {
    CAPTURE(compute);
    const tests::Overrides precision{"precision.compute=" + compute};
    const Trained plain = run(tests::gpu_job(jobs(), "llama", "gpu", fresh(tests::both(precision, {"strategy=fsdp"}))));
    const GpuJob job = tests::gpu_job(
        jobs(), "llama", "host",
        fresh(tests::both(precision, {"strategy={data: {kind: fsdp}, offload: {optimizer: host, parameters: host}}"})));
    check_moved(plain, job);
  }
}

// The GPU's kernels are the CPU's here, so that the processor's update has their bits.
TEST_CASE("an update on the processor of the host: the same bits, issued and captured") {
  for (const auto& [data, offload] :
       std::vector<std::pair<std::string, std::string>>{{"ddp", "optimizer: host"},
                                                        {"ddp", "optimizer: host, gradients: host"},
                                                        {"fsdp", "optimizer: host, parameters: host"},
                                                        {"fsdp", "optimizer: host, gradients: host, parameters: host"}})
    for (const std::string compute : {"f32", "bf16"}) {
      CAPTURE(offload);
      CAPTURE(compute);
      const tests::Overrides more{"precision.compute=" + compute, "train.batch.global=2"};
      const Trained plain = run(tests::gpu_job(jobs(), "llama", "gpu", fresh(tests::both(more, {"strategy=" + data}))));
      const std::string strategy = "strategy={data: {kind: " + data + "}, offload: {" + offload + ", update: host}}";
      const GpuJob job = tests::gpu_job(jobs(), "llama", "host", fresh(tests::both(more, {strategy})));
      const Program& step = *job.compiled.plan.roles[0].program(ProgramKind::step);
      const auto updates = std::ranges::count(step.instructions, Stream::host, &Issued::stream);
      CHECK(updates > static_cast<std::int64_t>(job.compiled.plan.roles[0].units.size()));  // in chunks
      const std::int64_t before = emulated::counts().host_functions;
      check_moved(plain, job);
      CHECK(emulated::counts().host_functions - before == (kOrders + 1) * 20 * updates);
    }
}

TEST_CASE("activations on the host: the same bits, issued and captured, in every order that the events allow") {
  for (const std::string mode : {"none", "full"}) {
    CAPTURE(mode);
    const tests::Overrides more{"model.with.layers=4", "activation_checkpointing.mode=" + mode, "train.batch.micro=1",
                                "train.steps=6"};
    const Trained plain = run(tests::gpu_job(jobs(), "llama", "gpu", fresh(more)));
    const GpuJob job =
        tests::gpu_job(jobs(), "llama", "host",
                       fresh(tests::both(more, {"strategy={data: {kind: ddp}, offload: {activations: host}}"})));
    CHECK(job.compiled.plan.roles[0].host_bytes > 0);
    check_moved(plain, job);
  }
}

TEST_CASE("a captured step is an issued one to the bit, and is launched once a step from the second on") {
  const GpuJob job = tests::gpu_job(jobs(), "gpt2", "gpu", fresh());
  const std::int64_t before = emulated::counts().graphs;
  const Trained captured = run(job, 2);
  CHECK(emulated::counts().graphs - before == 19);
  const tests::EnvironmentSetting off("TRAINER_CUDA_GRAPH", "0");
  const Trained issued = run(job, 2);
  CHECK(emulated::counts().graphs - before == 19);
  CHECK(same_run(captured, issued));
}

// Rank 0 tells of a step once the next are started: all that follow at once.
TEST_CASE("a step is started before the one before has ended, but for what comes between two steps") {
  const GpuJob job = tests::gpu_job(jobs(), "gpt2", "gpu", fresh({"checkpoint.every=8", "checkpoint.behind=false"}));
  const std::int64_t before = emulated::counts().graphs;
  std::vector<std::int64_t> started;  // when each step was told
  run(job, 1, {}, [&](std::int64_t) { started.push_back(1 + emulated::counts().graphs - before); });
  REQUIRE(started.size() == 20);
  for (std::int64_t step = 0; step < 20; ++step) {
    CAPTURE(step);
    const bool saved = (step + 1) % 8 == 0, next_is_saved = (step + 2) % 8 == 0;
    const std::int64_t ahead = saved ? 1 : next_is_saved ? 2 : 3;
    CHECK(started[static_cast<std::size_t>(step)] == std::min<std::int64_t>(20, step + ahead));
  }
}

TEST_CASE("what follows a step that fails is undone: a rollback is a run without those batches, skips are the CPU's") {
  for (const int poisoned : {7, 9, 10}) {  // the next follows at once; a checkpoint follows; one came before
    CAPTURE(poisoned);
    constexpr int good = 5;  // what is saved at 10 is not: no step from its weights was finite
    const tests::Overrides often{"checkpoint.every=5", "train.steps=14"};
    const auto table = [&](const std::string& name, const std::vector<int>& bad, const std::vector<int>& left_out) {
      return tests::both(often, tests::table_of(jobs(), name, 32, bad, left_out));
    };
    std::vector<int> since_good;
    for (int batch = good; batch <= poisoned; ++batch) since_good.push_back(batch);
    const tests::Overrides poison = table("poison.csv", {poisoned}, {}), clean = table("clean.csv", {}, since_good);
    const GpuJob rolls = tests::gpu_job(jobs(), "mlp", "rolled", fresh(tests::both(poison, {"train.on_nan=rollback"})));
    const Trained rolled = run(rolls, 2), straight = run(tests::gpu_job(jobs(), "mlp", "straight", fresh(clean)), 3);
    CHECK(rolled.report.rollbacks == 1);
    CHECK(rolled.report.steps == 14);
    CHECK(std::vector<double>(rolled.loss.end() - (14 - good), rolled.loss.end()) ==
          std::vector<double>(straight.loss.begin() + good, straight.loss.end()));
    CHECK(tests::tensors_of(rolled.report.checkpoint) == tests::tensors_of(straight.report.checkpoint));
    const tests::Overrides skips = tests::both(table("two.csv", {poisoned, poisoned + 1}, {}), {"train.on_nan=skip"});
    const Trained skipped = run(tests::gpu_job(jobs(), "mlp", "skipped", fresh(skips)), 4),
                  here = on_cpu("mlp", "skipped_cpu", skips);
    CHECK(skipped.skipped == std::vector<std::int64_t>{poisoned, poisoned + 1});
    CHECK(skipped.messages == here.messages);
    CHECK(tests::files_of(skipped.report.checkpoint)["model.safetensors"] ==
          tests::files_of(here.report.checkpoint)["model.safetensors"]);
  }
}

TEST_CASE("scratch memory that starts as NaN changes nothing") {
  const GpuJob job = tests::gpu_job(jobs(), "llama", "gpu", fresh());
  const Trained plain = run(job);
  const tests::EnvironmentSetting on("TRAINER_POISON", "1");
  for (std::uint64_t order = 0; order < kOrders; ++order) CHECK(same_run(plain, run(job, order)));
}

TEST_CASE("a run that stops goes on to the bit") {
  const Trained whole = run(tests::gpu_job(jobs(), "gpt2", "whole", fresh()));
  run(tests::gpu_job(jobs(), "gpt2", "parts", fresh({"train.steps=7", "train.lr_schedule={name: constant}"})));
  const Trained straight =
      run(tests::gpu_job(jobs(), "gpt2", "straight", fresh({"train.lr_schedule={name: constant}"})));
  const Trained rest = run(tests::gpu_job(jobs(), "gpt2", "parts", {"train.lr_schedule={name: constant}"}));
  CHECK(rest.loss == std::vector<double>(straight.loss.begin() + 7, straight.loss.end()));
  CHECK(whole.loss.front() == straight.loss.front());
}

TEST_CASE(
    "a dynamic loss scale leaves steps out inside the captured graph as the CPU does, to the bit, and over a resume") {
  std::string table;  // features of 2^14 under scales near the end of f32
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < 6; ++column)
      table += std::to_string(row % 8 >= 6 ? 16384.0 + 100 * column + row : 0.1 * (row % 5) + 0.05 * column) + ",";
    table += std::to_string(row % 4) + "\n";
  }
  jobs().write("large.csv", table);
  const tests::Overrides scaled{"data.train=" + jobs().path("large.csv"), "data.normalize=none",
                                "train.lr_schedule={name: constant}",
                                "precision.loss_scale={init_scale: 8.5e37, largest_scale: 8.5e37, growth_interval: 3}"};
  const Trained cpu = on_cpu("mlp", "cpu", scaled);
  REQUIRE(cpu.skipped.size() >= 5);
  REQUIRE(cpu.skipped.size() <= 16);
  const std::int64_t before = emulated::counts().graphs;
  const Trained gpu = run(tests::gpu_job(jobs(), "mlp", "gpu", fresh(scaled)), 2);
  CHECK(emulated::counts().graphs - before == 19);
  CHECK(gpu.loss == cpu.loss);  // norms of steps that are left out may be no numbers
  CHECK(tests::files_of(gpu.report.checkpoint)["model.safetensors"] ==
        tests::files_of(cpu.report.checkpoint)["model.safetensors"]);
  CHECK(gpu.skipped == cpu.skipped);
  CHECK(gpu.loss_scale == cpu.loss_scale);
  for (const std::string compute : {"f32", "bf16"}) {  // so does an update on the processor of the host
    const tests::Overrides here = tests::both(scaled, {"precision.compute=" + compute}),
                           host{"strategy={data: {kind: ddp}, offload: {optimizer: host, update: host}}"};
    const Trained plain = run(tests::gpu_job(jobs(), "mlp", "here", fresh(here))),
                  there = run(tests::gpu_job(jobs(), "mlp", "there", fresh(tests::both(here, host))), 2);
    CHECK(there.skipped.size() >= 5);
    CHECK(there.skipped == plain.skipped);
    CHECK(tests::files_of(there.report.checkpoint)["model.safetensors"] ==
          tests::files_of(plain.report.checkpoint)["model.safetensors"]);
  }
  tests::Overrides first = scaled;
  first.push_back("train.steps=9");
  run(tests::gpu_job(jobs(), "mlp", "scaled_parts", fresh(first)));
  const Trained rest = run(tests::gpu_job(jobs(), "mlp", "scaled_parts", scaled));
  CHECK(rest.report.first_step == 9);
  CHECK(rest.loss_scale == std::vector<double>(gpu.loss_scale.begin() + 9, gpu.loss_scale.end()));
  CHECK(tests::files_of(rest.report.checkpoint)["optimizer.safetensors"] ==
        tests::files_of(gpu.report.checkpoint)["optimizer.safetensors"]);
}

TEST_CASE("without the order of the plan some run goes wrong") {
  GpuJob job = tests::gpu_job(jobs(), "gpt2", "gpu", fresh());
  const Trained right = run(job);
  for (Role& role : job.compiled.plan.roles)
    for (Program& program : role.programs)
      for (Issued& issued : program.instructions) issued.after = {};
  const tests::EnvironmentSetting on("TRAINER_POISON", "1");
  int wrong = 0;
  for (std::uint64_t order = 0; order < kOrders; ++order) {
    try {
      wrong += same_run(right, run(job, order)) ? 0 : 1;
    } catch (const std::exception&) {
      ++wrong;
    }
  }
  CHECK(wrong > 0);
}

TEST_CASE("a rank takes what was planned, in one piece, and gives it back") {
  const GpuJob job = tests::gpu_job(jobs(), "gpt2", "gpu", fresh());
  const std::int64_t before = emulated::counts().allocated;
  const Trained trained = run(job);
  CHECK(trained.report.allocated_bytes == trained.report.planned_peak_bytes);
  CHECK(emulated::counts().allocated == before);
  const auto communicators = thread_communicators(1);
  const auto executor = cuda_device({})->load(job.compiled.plan, 0, *communicators[0]);
  CHECK(executor->allocated_bytes() == job.compiled.plan.roles[0].total_bytes);
  CHECK(emulated::counts().allocated - before == executor->allocated_bytes());
  CHECK(executor->counted_bytes() == executor->allocated_bytes());
}

TEST_CASE("a GPU with too little memory free is refused with both numbers, before anything is taken") {
  const GpuJob job = tests::gpu_job(jobs(), "gpt2", "gpu", fresh());
  const std::int64_t bytes = job.compiled.plan.roles[0].total_bytes, before = emulated::counts().allocated;
  const auto communicators = thread_communicators(1);
  const std::int64_t memory = emulated::settings().memory;
  emulated::settings().memory = before + bytes - 1;
  std::string message;
  try {
    cuda_device({})->load(job.compiled.plan, 0, *communicators[0]);
  } catch (const IoError& error) {
    message = error.what();
  }
  emulated::settings().memory = memory;
  CHECK(message.find(std::to_string(bytes - 1) + " bytes") != std::string::npos);
  CHECK(message.find(std::to_string(bytes) + " bytes") != std::string::npos);
  CHECK(emulated::counts().allocated == before);
}

TEST_CASE("a step that diverges names the tensor that the CPU names") {
  const tests::Overrides wild{"train.optimizer={name: sgd, lr: 1.0e+30}", "train.lr_schedule={name: constant}"};
  const auto message_of = [](auto&& train) {
    try {
      train();
    } catch (const NonFiniteError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string cpu = message_of([&] { on_cpu("gpt2", "wild_cpu", wild); });
  CHECK(cpu.find("the first tensor that is not finite is") != std::string::npos);
  CHECK(message_of([&] { run(tests::gpu_job(jobs(), "gpt2", "wild_gpu", fresh(wild)), 1); }) == cpu);
  // Also where each instruction takes so long that the host looks how far the device is, after the step was captured.
  emulated::settings().work_us = 2500;
  const std::string slow = message_of([&] { run(tests::gpu_job(jobs(), "mlp", "wild_gpu_slow", fresh(wild)), 1); });
  emulated::settings().work_us = 0;
  CHECK(slow == message_of([&] { on_cpu("mlp", "wild_cpu_slow", wild); }));
}

TEST_CASE("times of a step lie in it, in the order of each stream") {
  const GpuJob job = tests::gpu_job(jobs(), "gpt2", "gpu", fresh());
  std::vector<RankTrace> traces;
  TrainOptions options;
  options.trace = [&](const std::vector<RankTrace>& ranks) { traces = ranks; };
  run(job, 2, options);
  REQUIRE(traces.size() == 1);
  const Program& step = *job.compiled.plan.roles[0].program(ProgramKind::step);
  REQUIRE(traces[0].spans.size() == step.instructions.size());
  std::array<std::int64_t, kNumStreams> last{};
  std::int64_t rounded = 1000;  // CUDA gives milliseconds in f32
  for (std::size_t i = 0; i < step.instructions.size(); ++i) {
    const Span& span = traces[0].spans[i];
    std::int64_t& end = last[static_cast<std::size_t>(step.instructions[i].stream)];
    CHECK(span.end_ns > 0);
    CHECK(span.begin_ns + rounded >= end);
    CHECK(span.end_ns + rounded >= span.begin_ns);
    end = span.end_ns;
  }
}

TEST_CASE("steps are told of in order, each once, however the run ends") {
  std::vector<std::int64_t> told;
  const GpuJob job = tests::gpu_job(jobs(), "mlp", "gpu", fresh({"train.steps=5"}));
  tests::run(tests::from_the_start(job.loaded), job.compiled, [&](std::int64_t step) { told.push_back(step); });
  CHECK(told == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  told.clear();
  const GpuJob wild = tests::gpu_job(
      jobs(), "mlp", "gpu", fresh({"train.optimizer={name: sgd, lr: 1.0e+30}", "train.lr_schedule={name: constant}"}));
  CHECK_THROWS_AS(
      tests::run(tests::from_the_start(wild.loaded), wild.compiled, [&](std::int64_t step) { told.push_back(step); }),
      NonFiniteError);
  CHECK(told.size() >= 1);
  for (std::size_t i = 0; i < told.size(); ++i) CHECK(told[i] == static_cast<std::int64_t>(i));
}

}  // namespace trainer::executor_test
