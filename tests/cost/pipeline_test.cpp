// Schedules played by the times of their actions, against the same steps with every kernel played.
#include "engine/cost/pipeline.h"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "engine/compile/compile.h"
#include "kernels/cpu/table.h"
#include "strategies/strategies.h"
#include "tests/cost/played_plans.h"

using namespace trainer;
using namespace trainer::cost;

namespace {

Cluster cluster_of(const MachineModel& machine, const Mesh& mesh) {
  Cluster cluster;
  cluster.machine = &machine;
  cluster.mesh = mesh;
  cluster.ranks_per_node = 8;
  return cluster;
}

// What the round machine takes for all the kernels of an action.
ChunkTimes chunk_of(const CostModel& model, const ActionKernels& kernels, std::int64_t bytes) {
  const double us = model.kernel(kernel_of(kernels.elements)).us;
  return {{kernels.forward * us}, {kernels.backward_input * us}, {kernels.backward_weight * us}, bytes, bytes};
}

bool is_gradient(Op op) { return name_of(op).find("grad") != std::string_view::npos; }

// What a stage's one chunk takes for a micro-batch, and what the stage does before and after: its own kernels added up.
struct StageSums {
  ChunkTimes chunk;
  FixedTimes fixed;
};

StageSums sums_of(const Role& role, const CostModel& model) {
  StageSums sums;
  std::map<std::pair<int, bool>, double> passes;  // by micro-batch
  std::map<int, bool> backward;
  bool update = false;
  for (const Issued& issued : role.program("step")->instructions) {
    if (const auto* exchange = std::get_if<Exchange>(&issued.instruction)) {
      for (const auto& send : exchange->sends)
        (send.peer > 0 ? sums.chunk.activation_bytes : sums.chunk.gradient_bytes) = send.region.region.bytes;
      for (const auto& receive : exchange->receives)
        if (receive.peer > 0) sums.chunk.gradient_bytes = receive.region.region.bytes;
    }
    const auto* launch = std::get_if<Launch>(&issued.instruction);
    if (launch == nullptr) continue;
    const Signature& signature = role.signatures[static_cast<std::size_t>(launch->signature)];
    const double us = model.kernel(signature).us;
    update = update || signature.op == Op::sum_squares || signature.op == Op::update_scalars;
    if (update) {
      sums.fixed.update_us += us;
    } else if (launch->micro_batch < 0) {
      sums.fixed.before_us += us;
    } else {
      bool& turned = backward[launch->micro_batch];
      turned = turned || is_gradient(signature.op);
      passes[{launch->micro_batch, turned}] += us;
    }
  }
  sums.chunk.forward.us = passes[{1, false}];
  sums.chunk.backward_input.us = passes[{1, true}];
  return sums;
}

}  // namespace

TEST_CASE("a schedule played by its actions takes what it takes kernel by kernel, within 1%") {
  const MachineModel machine = round_machine();
  for (std::string_view name : strategies::pipeline_schedule_names()) {
    const strategies::PipelineEntry& entry = *strategies::pipeline_schedule(name);
    for (int stages : {2, 4})
      for (int micro_batches : {4, 16})
        for (std::int64_t bytes : {std::int64_t{1} << 10, std::int64_t{1} << 22}) {
          const int virtual_stages = std::max(entry.least_virtual_stages, std::min(2, entry.most_virtual_stages));
          if (entry.refuses(stages, virtual_stages, micro_batches)) continue;
          CAPTURE(name);
          CAPTURE(stages);
          CAPTURE(micro_batches);
          CAPTURE(bytes);
          const ActionKernels kernels{6, 5, 4, 1 << 22};
          const Schedule schedule = entry.make(stages, virtual_stages, micro_batches);
          const Plan plan = pipeline_plan(schedule, kernels, bytes);
          const CostModel model(cluster_of(machine, plan.mesh));
          const std::vector<ChunkTimes> chunks(schedule.stage_of_chunk.size(), chunk_of(model, kernels, bytes));
          const std::vector<FixedTimes> fixed(static_cast<std::size_t>(stages));
          const Prediction whole = predict(plan, model), condensed = predict_pipeline(schedule, chunks, fixed, model);
          CHECK(condensed.step_us == doctest::Approx(whole.step_us).epsilon(0.01));
          for (std::size_t stage = 0; stage < whole.roles.size(); ++stage) {
            CHECK(condensed.roles[stage].compute_us == doctest::Approx(whole.roles[stage].compute_us).epsilon(1e-9));
            CHECK(condensed.roles[stage].sum() == doctest::Approx(condensed.step_us).epsilon(1e-9));
          }
        }
  }
}

TEST_CASE("a compiled pipeline takes what its actions take, within 1%") {
  const std::string configs = TRAINER_SOURCE_DIR "/configs";
  const kernels::cpu::CpuTarget target({.isa = kernels::cpu::detect_isa(), .threads = 1});
  const MachineModel machine = round_machine();
  for (const char* schedule : {"gpipe", "1f1b"}) {
    CAPTURE(schedule);
    const LoadedJob loaded =
        load_job(configs + "/gpt2-pipeline4.yaml",
                 {"strategy.pipeline.degree=4", std::string("strategy.pipeline.schedule=") + schedule, "strategy.pipeline.virtual_stages=1",
                  "cluster.devices_per_node=4", "train.batch={global: 64, micro: 4}"},
                 {.configs_dir = configs});
    const CompiledJob job = compile(loaded, {.target = &target, .memory_bytes = std::int64_t{1} << 40, .threads = 1}, Purpose::train);
    REQUIRE(job.plan.roles.size() == 4);
    const CostModel model(cluster_of(machine, job.plan.mesh));
    std::vector<ChunkTimes> chunks;
    std::vector<FixedTimes> fixed;
    for (const Role& role : job.plan.roles) {
      const StageSums sums = sums_of(role, model);
      chunks.push_back(sums.chunk);
      fixed.push_back(sums.fixed);
    }
    const Prediction whole = predict(job.plan, model), condensed = predict_pipeline(job.schedule, chunks, fixed, model);
    // The whole step copies its batch first, which this one leaves out.
    CHECK(condensed.step_us == doctest::Approx(whole.step_us - whole.roles[0].input_us).epsilon(0.01));
  }
}

TEST_CASE("communication inside actions is told apart") {
  const MachineModel machine = round_machine();
  const Schedule schedule = strategies::one_forward_one_backward(2, 1, 4);
  Mesh mesh;
  mesh.sizes[static_cast<std::size_t>(Axis::pipeline)] = 2;
  const CostModel model(cluster_of(machine, mesh));
  const std::vector<ChunkTimes> chunks(2, ChunkTimes{{1000, 100}, {2000, 200}, {0, 0}, 4, 4});
  const std::vector<FixedTimes> fixed(2, FixedTimes{10, 500, 300});
  const Prediction prediction = predict_pipeline(schedule, chunks, fixed, model);
  for (const RoleTimes& role : prediction.roles) {
    CHECK(role.compute_us == doctest::Approx(10 + 4 * 2700));
    CHECK(role.exposed_us >= 4 * 300 + 500);
    CHECK(role.optimizer_us == doctest::Approx(300));
    CHECK(role.sum() == doctest::Approx(prediction.step_us));
  }
  CHECK(prediction.step_us > 10 + (4 + 1) * 3000 + 500 + 300);
}

TEST_CASE("64 stages of 512 micro-batches are played to their end") {
  const MachineModel machine = round_machine();
  Mesh mesh;
  mesh.sizes[static_cast<std::size_t>(Axis::pipeline)] = 64;
  const CostModel model(cluster_of(machine, mesh));
  const Schedule schedule = strategies::interleaved(64, 2, 512);
  const std::vector<ChunkTimes> chunks(128, ChunkTimes{{1000}, {1000}, {1000}, 1 << 20, 1 << 20});
  const std::vector<FixedTimes> fixed(64);
  const Prediction prediction = predict_pipeline(schedule, chunks, fixed, model);
  CHECK(prediction.step_us > 512 * 6000.0);
}
