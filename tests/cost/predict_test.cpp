// Plans played on a machine, against what a person works out: own times of instructions are the cost model's, all else
// is by hand.
#include "engine/cost/predict.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/cost/work.h"
#include "engine/plan/simulate.h"
#include "strategies/strategies.h"
#include "tests/cost/played_plans.h"

using namespace trainer;
using namespace trainer::cost;

namespace {

constexpr std::size_t kCompute = 0, kCommunication = 1, kCopy = 2;

// Times are sums of a few thousand roundings of 2^-53.
const doctest::Approx about(double value) { return doctest::Approx(value).epsilon(1e-10); }

Cluster cluster_of(const MachineModel& machine, const Plan& plan) {
  Cluster cluster;
  cluster.machine = &machine;
  cluster.mesh = plan.mesh;
  cluster.ranks_per_node = 8;
  return cluster;
}

// One role of `ranks` data ranks.
Plan one_role(int ranks, std::vector<Signature> signatures, std::vector<Issued> step) {
  Plan plan;
  plan.mesh.set(Axis::replicate, ranks);
  Role role;
  role.names = {"x"};
  role.fields = {{.name = "tokens", .spec = {DType::u8, {1 << 20}}, .bytes = 1 << 20}};
  role.signatures = std::move(signatures);
  role.programs = {{ProgramKind::step, std::move(step)}};
  plan.roles = {std::move(role)};
  return plan;
}

Issued launch(std::int32_t signature, std::int32_t after_communication = -1, std::int32_t after_copy = -1) {
  Launch one;
  one.signature = signature;
  return {Stream::compute, one, {-1, after_communication, after_copy}};
}

Issued all_reduce(std::int64_t bytes, std::int32_t after_compute) {
  Collective one;
  one.axes = Axes::of(Axis::replicate);
  one.input.region.bytes = one.output.region.bytes = bytes;
  return {Stream::communication, one, {after_compute, -1, -1}};
}

Issued copy_in(std::int64_t bytes) {
  CopyIn one;
  one.region.region.bytes = bytes;
  return {Stream::copy, one, {-1, -1, -1}};
}

const Signature kShort = kernel_of(1 << 24), kLong = kernel_of(1 << 28);
const Signature kNorm{Op::sum_squares, {}, {TensorDesc{DType::f32, Shape{1 << 26}}, TensorDesc{DType::f64, Shape{1}}}};

void check_sums(const Prediction& prediction) {
  for (const RoleTimes& role : prediction.roles) CHECK(role.sum() == about(prediction.step_us));
  CHECK(prediction.low_us <= prediction.step_us);
  CHECK(prediction.step_us <= prediction.high_us);
}

bool same(const Prediction& a, const Prediction& b) {
  for (std::size_t role = 0; role < a.spans.size(); ++role)
    for (std::size_t i = 0; i < a.spans[role].size(); ++i)
      if (a.spans[role][i].begin != b.spans[role][i].begin || a.spans[role][i].end != b.spans[role][i].end)
        return false;
  return a.step_us == b.step_us && a.low_us == b.low_us && a.high_us == b.high_us;
}

// The step of a schedule by the machine, as a share of what its actions take on one stage.
double share_of_bubble(const Schedule& schedule, const MachineModel& machine, const ActionKernels& kernels) {
  const Plan plan = pipeline_plan(schedule, kernels);
  const CostModel model(cluster_of(machine, plan));
  const Prediction prediction = predict(plan, model);
  check_sums(prediction);
  const double busy = prediction.roles[0].compute_us;
  return prediction.step_us / busy - 1;
}

}  // namespace

TEST_CASE("kernels of a stream run one after another, and an all-reduce beside them hides") {
  MachineModel machine = round_machine();
  const Plan plan = one_role(2, {kShort, kLong}, {launch(0), all_reduce(1 << 20, 0), launch(1), launch(0, 1)});
  const CostModel model(cluster_of(machine, plan));
  const double small = model.kernel(kShort).us, large = model.kernel(kLong).us;
  const double reduce =
      model.collective(CollectiveKind::all_reduce, DType::f32, Axes::of(Axis::replicate), {}, 1 << 20).us;
  REQUIRE(reduce > 0);
  REQUIRE(reduce < large);
  const Prediction prediction = predict(plan, model);
  CHECK(prediction.step_us == about(2 * small + large));
  const std::vector<Span>& spans = prediction.spans[0];
  CHECK(spans[1].begin == about(small));
  CHECK(spans[1].end == about(small + reduce));
  CHECK(spans[2].begin == about(small));
  CHECK(spans[3].begin == about(small + large));
  CHECK(prediction.roles[0].compute_us == about(2 * small + large));
  CHECK(prediction.roles[0].exposed_us == 0);
  check_sums(prediction);
  REQUIRE(prediction.communication.size() == 1);
  CHECK(prediction.communication[0].collective == "all_reduce");
  CHECK(prediction.communication[0].axis == "replicate");
  CHECK(prediction.communication[0].count == 1);
  CHECK(prediction.communication[0].total_us == about(reduce));
  REQUIRE(prediction.kernels.size() == 1);
  CHECK(prediction.kernels[0].op == Op::add);
  CHECK(prediction.kernels[0].count == 3);
  CHECK(prediction.kernels[0].us == about(2 * small + large));
}

TEST_CASE("what no kernel hides of an all-reduce is exposed") {
  MachineModel machine = round_machine();
  const Plan plan = one_role(2, {kShort}, {launch(0), all_reduce(1 << 30, 0), launch(0), launch(0, 1)});
  const CostModel model(cluster_of(machine, plan));
  const double small = model.kernel(kShort).us;
  const double reduce =
      model.collective(CollectiveKind::all_reduce, DType::f32, Axes::of(Axis::replicate), {}, 1 << 30).us;
  REQUIRE(reduce > small);
  const Prediction prediction = predict(plan, model);
  CHECK(prediction.step_us == about(2 * small + reduce));
  CHECK(prediction.roles[0].exposed_us == about(reduce - small));
  CHECK(prediction.communication[0].exposed_us == about(reduce - small));
  check_sums(prediction);
}

TEST_CASE("a kernel is slower for just as long as a collective runs beside it") {
  MachineModel machine = round_machine();
  machine.overlap_slowdown = 1.25;
  const Plan plan = one_role(2, {kShort, kLong}, {launch(0), all_reduce(1 << 20, 0), launch(1)});
  const CostModel model(cluster_of(machine, plan));
  const double small = model.kernel(kShort).us, large = model.kernel(kLong).us;
  const double reduce =
      model.collective(CollectiveKind::all_reduce, DType::f32, Axes::of(Axis::replicate), {}, 1 << 20).us;
  // In `reduce` the kernel does reduce / 1.25 of its work.
  CHECK(predict(plan, model).step_us == about(small + large + reduce - reduce / 1.25));
}

TEST_CASE("a slowed kernel that ends before the collective takes its factor, and the next one too") {
  MachineModel machine = round_machine();
  machine.overlap_slowdown = 1.5;
  const Plan plan = one_role(2, {kShort}, {launch(0), all_reduce(1 << 30, 0), launch(0), launch(0), launch(0, 1)});
  const CostModel model(cluster_of(machine, plan));
  const double small = model.kernel(kShort).us;
  const Prediction prediction = predict(plan, model);
  CHECK(prediction.spans[0][2].end - prediction.spans[0][2].begin == about(1.5 * small));
  CHECK(prediction.spans[0][3].end - prediction.spans[0][3].begin == about(1.5 * small));
  CHECK(prediction.spans[0][4].end - prediction.spans[0][4].begin == about(small));
  check_sums(prediction);
}

namespace {

// 2 × 2 ranks: gathers along the shard axis in the background, sums along the tensor axis in front.
constexpr std::int64_t kGathered = 1 << 28, kSummed = 1 << 26;

Plan two_streams(std::vector<Issued> step) {
  Plan plan = one_role(1, {kShort}, std::move(step));
  plan.mesh = {{Axis::shard, 2}, {Axis::tensor, 2}};
  return plan;
}

Issued gather(Stream stream) {
  Collective one;
  one.kind = CollectiveKind::all_gather;
  one.axes = Axes::of(Axis::shard);
  one.input.region.bytes = kGathered / 2;
  one.output.region.bytes = kGathered;
  return {stream, one, {}};
}

Issued tensor_sum(std::int32_t after_compute) {
  Collective one;
  one.axes = Axes::of(Axis::tensor);
  one.input.region.bytes = one.output.region.bytes = kSummed;
  return {Stream::communication, one, {after_compute}};
}

Issued launch_after(std::int32_t communication, std::int32_t background) {
  return {Stream::compute, Launch{}, {-1, communication, -1, background}};
}

}  // namespace

TEST_CASE("two communications on one kind of link share it, and on two kinds run as if alone") {
  const MachineModel machine = round_machine();
  const Plan plan = two_streams({gather(Stream::background), tensor_sum(-1)});
  for (int ranks_per_node : {8, 2}) {  // of two ranks a node, gathers are between nodes
    CAPTURE(ranks_per_node);
    Cluster cluster = cluster_of(machine, plan);
    cluster.ranks_per_node = ranks_per_node;
    const CostModel model(cluster);
    const Estimate gathered =
        model.collective(CollectiveKind::all_gather, DType::f32, Axes::of(Axis::shard), {}, kGathered);
    const Estimate summed =
        model.collective(CollectiveKind::all_reduce, DType::f32, Axes::of(Axis::tensor), {}, kSummed);
    REQUIRE(summed.us < gathered.us);
    const double factor = ranks_per_node == 8 ? double{gathered.links.inside} + double{summed.links.inside} : 1.0;
    CHECK((factor > 1.5) == (ranks_per_node == 8));
    CHECK(factor <= 2);
    CHECK((gathered.links.between > 0.5) == (ranks_per_node == 2));
    const Prediction prediction = predict(plan, model);
    CHECK(prediction.spans[0][1].end == about(factor * summed.us));
    CHECK(prediction.spans[0][0].end == about(factor * summed.us + gathered.us - summed.us));
    CHECK(prediction.roles[0].exposed_us == about(prediction.step_us));
    check_sums(prediction);
  }
}

TEST_CASE("what computing waits for is what is exposed") {
  const MachineModel machine = round_machine();
  const auto played = [&](Stream stream) {
    const std::int32_t gathered = 0;
    const bool background = stream == Stream::background;
    const Plan plan = two_streams({gather(stream), launch(0), tensor_sum(1), launch_after(2, -1),
                                   launch_after(background ? -1 : gathered, background ? gathered : -1)});
    Cluster cluster = cluster_of(machine, plan);
    cluster.ranks_per_node = 2;
    const CostModel model(cluster);
    Prediction prediction = predict(plan, model);
    check_sums(prediction);
    return prediction;
  };
  const Prediction one = played(Stream::communication), two = played(Stream::background);
  CHECK(two.step_us < one.step_us);
  CHECK(two.roles[0].exposed_us < one.roles[0].exposed_us);
  double sum = 0;
  for (const CommunicationTime& communication : two.communication) {
    CHECK(communication.exposed_us > 0);
    CHECK(communication.exposed_us < communication.total_us + 1e-6);
    sum += communication.exposed_us;
  }
  CHECK(two.communication.size() == 2);
  CHECK(sum == about(two.roles[0].exposed_us));
  // The sum is exposed from the first kernel's end, the gather from the second's.
  CHECK(two.communication.back().exposed_us == about(two.spans[0][2].end - two.spans[0][1].end));
}

TEST_CASE("kernels are slower while either stream communicates, and slower still while both hold multiprocessors") {
  MachineModel machine = round_machine();
  machine.overlap_slowdown = 1.25;
  const Plan plan = two_streams({gather(Stream::background), tensor_sum(-1), launch(0), launch(0)});
  const CostModel model(cluster_of(machine, plan));
  const Prediction prediction = predict(plan, model);
  REQUIRE(prediction.spans[0][2].end < prediction.spans[0][1].end);
  CHECK(prediction.spans[0][2].end == about(1.5 * model.kernel(kShort).us));
  check_sums(prediction);
}

TEST_CASE("copies come first, and what they alone do is input") {
  MachineModel machine = round_machine();
  const Plan plan = one_role(2, {kShort}, {copy_in(1 << 20), launch(0, -1, 0)});
  const CostModel model(cluster_of(machine, plan));
  const Prediction prediction = predict(plan, model);
  CHECK(prediction.roles[0].input_us == about(model.copy(1 << 20).us));
  CHECK(prediction.step_us == about(model.copy(1 << 20).us + model.kernel(kShort).us));
  check_sums(prediction);
}

TEST_CASE("on a GPU copies run beside kernels, on a CPU in turns with them") {
  MachineModel machine = round_machine();
  const Plan plan = one_role(1, {kShort}, {launch(0), copy_in(1 << 20), launch(0)});
  {
    const CostModel model(cluster_of(machine, plan));
    CHECK(predict(plan, model).step_us == about(std::max(model.copy(1 << 20).us, 2 * model.kernel(kShort).us)));
  }
  machine.device.kind = DeviceKind::cpu;
  Cluster cluster = cluster_of(machine, plan);
  cluster.threads = 100;
  const CostModel model(cluster);
  CHECK(predict(plan, model).step_us == about(model.copy(1 << 20).us + 2 * model.kernel(kShort).us));
}

TEST_CASE("moves run beside kernels and what they alone do is theirs; a disk moves one way at a time for all ranks") {
  MachineModel machine = round_machine();
  machine.host_link = {20e9, 0.1};
  machine.disk = {{2e9, 0.1}, {1e9, 0.1}};
  constexpr std::int64_t kBytes = 1 << 24;
  const auto plan_on = [&](Space space) {
    const Issued fetch{Stream::fetch, Move{0, {{1, 0, kBytes}}, {{0, 0, kBytes}}}, {}},
        store{Stream::store, Move{0, {{0, 0, kBytes}}, {{1, 0, kBytes}}}, {}};
    Plan plan = one_role(4, {kShort}, {fetch, store, launch(0)});
    plan.roles[0].buffers.resize(2);
    plan.roles[0].buffers[1].space = space;
    return plan;
  };
  {
    const Plan plan = plan_on(Space::host);
    const CostModel model(cluster_of(machine, plan));
    const double each = model.move(Space::host, true, kBytes).us;
    CHECK(each == about(5 + kBytes / 20e9 * 1e6));
    const Prediction prediction = predict(plan, model);
    CHECK(prediction.step_us == about(each));  // both ways at once
    CHECK(prediction.roles[0].offload_us == about(each - model.kernel(kShort).us));
    check_sums(prediction);
  }
  machine.device.kind = DeviceKind::cpu;
  const Plan plan = plan_on(Space::disk);
  Cluster cluster = cluster_of(machine, plan);
  cluster.threads = 100;
  const CostModel model(cluster);
  const double comes = model.move(Space::disk, true, kBytes).us, leaves = model.move(Space::disk, false, kBytes).us;
  CHECK(comes == about(100 + 4 * kBytes / 2e9 * 1e6));  // of four ranks
  CHECK(leaves == about(100 + 4 * kBytes / 1e9 * 1e6));
  CHECK(predict(plan, model).step_us == about(comes + leaves));
}

TEST_CASE("kernels on the processor of a GPU's host take their share of its memory's bandwidth, beside the GPU") {
  MachineModel machine = round_machine();
  machine.host_bandwidth = {80e9, 0.2};
  constexpr std::int64_t kElements = 1 << 20;
  const Signature add{Op::add, {}, {{DType::f32, {kElements}}, {DType::f32, {kElements}}, {DType::f32, {kElements}}}};
  const Region region{0, 0, 4 * kElements};
  const Issued on_host{
      Stream::host, Launch{.signature = 1, .operands = {Read{region}, Read{region}, Write{region}}}, {}};
  Plan plan = one_role(4, {kShort, add}, {on_host, launch(0)});
  const CostModel model(cluster_of(machine, plan));
  const double us = model.on_host(add).us;
  CHECK(us == about(20 + 3 * 4 * kElements / (80e9 / 4) * 1e6));  // of four ranks
  const Prediction prediction = predict(plan, model);
  CHECK(prediction.step_us == about(us));
  CHECK(prediction.roles[0].offload_us == about(us - model.kernel(kShort).us));
  check_sums(prediction);
}

TEST_CASE("from the norm on it is the optimizer's time") {
  MachineModel machine = round_machine();
  Issued norm = launch(1, 1);
  norm.why.phase = Provenance::Phase::norm;
  const Plan plan =
      one_role(2, {kShort, kNorm}, {launch(0), all_reduce(1 << 28, 0), norm, launch(0), all_reduce(1 << 28, 3)});
  const CostModel model(cluster_of(machine, plan));
  const Prediction prediction = predict(plan, model);
  const double reduce =
      model.collective(CollectiveKind::all_reduce, DType::f32, Axes::of(Axis::replicate), {}, 1 << 28).us;
  CHECK(prediction.roles[0].compute_us == about(model.kernel(kShort).us));
  CHECK(prediction.roles[0].exposed_us == about(reduce));
  CHECK(prediction.roles[0].optimizer_us == about(model.kernel(kNorm).us + model.kernel(kShort).us + reduce));
  check_sums(prediction);
}

TEST_CASE("the interval adds up half widths inside a class, and in quadrature over classes") {
  MachineModel machine = round_machine();
  const Plan plan = one_role(2, {kShort}, {launch(0), launch(0), all_reduce(1 << 28, 1)});
  const CostModel model(cluster_of(machine, plan));
  const Estimate kernel = model.kernel(kShort), reduce = model.collective(CollectiveKind::all_reduce, DType::f32,
                                                                          Axes::of(Axis::replicate), {}, 1 << 28);
  const double half = std::hypot(2 * kernel.us * kernel.spread, reduce.us * reduce.spread);
  const Prediction prediction = predict(plan, model);
  CHECK(prediction.step_us - prediction.low_us == about(half));
  CHECK(prediction.high_us - prediction.step_us == about(half));
}

TEST_CASE("a stage waits for its message, which takes its time, and the wait is the bubble") {
  MachineModel machine = round_machine();
  ActionKernels kernels;
  kernels.elements = 1 << 24;
  const std::int64_t bytes = 1 << 20;
  const Plan plan = pipeline_plan(strategies::gpipe(2, 1, 1), kernels, bytes);
  const CostModel model(cluster_of(machine, plan));
  const double kernel = model.kernel(kernel_of(1 << 24)).us, message = model.send(Axis::pipeline, 1, bytes).us;
  const Prediction prediction = predict(plan, model);
  // Forward here, there; backward (two kernels) there, here.
  CHECK(prediction.step_us == about(6 * kernel + 2 * message));
  CHECK(prediction.roles[0].compute_us == about(3 * kernel));
  CHECK(prediction.roles[0].exposed_us == about(2 * message));
  CHECK(prediction.roles[0].bubble_us == about(3 * kernel));
  CHECK(prediction.roles[1].bubble_us == about(3 * kernel));
  check_sums(prediction);
}

TEST_CASE("a collective over stages ends for all at once, and starts with the last") {
  MachineModel machine = round_machine();
  Plan plan;
  plan.mesh.set(Axis::pipeline, 2);
  for (const Signature& signature : {kShort, kLong}) {
    Role role;
    role.names = {"count"};
    role.signatures = {signature};
    Collective count;
    count.axes = Axes::of(Axis::pipeline);
    count.dtype = DType::f64;
    count.input.region.bytes = count.output.region.bytes = 8;
    role.programs = {{ProgramKind::step, {launch(0), {Stream::communication, count, {0, -1, -1}}}}};
    plan.roles.push_back(role);
  }
  const CostModel model(cluster_of(machine, plan));
  const double small = model.kernel(kShort).us, large = model.kernel(kLong).us;
  const double count = model.collective(CollectiveKind::all_reduce, DType::f64, Axes::of(Axis::pipeline), {}, 8).us;
  const Prediction prediction = predict(plan, model);
  CHECK(prediction.spans[0][1].end == about(large + count));
  CHECK(prediction.spans[1][1].end == about(large + count));
  CHECK(prediction.spans[0][1].waited == about(large - small));
  CHECK(prediction.roles[0].bubble_us == about(large - small));
  CHECK(prediction.slowest == 1);
  check_sums(prediction);
}

TEST_CASE("a program that cannot come to its end is a bug") {
  const MachineModel machine = round_machine();
  Plan plan = pipeline_plan(strategies::gpipe(2, 1, 2), {});
  plan.roles[1].programs[0].instructions.pop_back();  // a gradient that is never sent
  const CostModel model(cluster_of(machine, plan));
  CHECK_THROWS_AS(predict(plan, model), Bug);
  CHECK_THROWS_AS(predict(plan, model, ProgramKind::sample), Bug);
}

TEST_CASE("bubbles of played pipelines are their papers' where messages take next to nothing") {
  const MachineModel machine = round_machine();
  // Kernels of a fifth of a second against messages of some microseconds.
  const auto close = [](double value) { return doctest::Approx(value).epsilon(1e-3); };
  for (int stages : {2, 4, 8})
    for (int micro_batches : {8, 16}) {
      const double p = stages, m = micro_batches;
      CAPTURE(stages);
      CAPTURE(micro_batches);
      CHECK(share_of_bubble(strategies::gpipe(stages, 1, micro_batches), machine, {}) == close((p - 1) / m));
      CHECK(share_of_bubble(strategies::one_f_one_b(stages, 1, micro_batches), machine, {}) == close((p - 1) / m));
      CHECK(share_of_bubble(strategies::interleaved(stages, 2, micro_batches), machine, {}) == close((p - 1) / m / 2));
      // Of three equal parts, ZB-H1 leaves (p − 1)(F + I − W); of ZB-H2 only that stages begin and end one after
      // another.
      CHECK(share_of_bubble(strategies::zb_h1(stages, 1, micro_batches), machine, {}) == close((p - 1) / m / 3));
      if (micro_batches >= 2 * stages - 1)
        CHECK(share_of_bubble(strategies::zb_h2(stages, 1, micro_batches), machine, {}) == close((p - 1) / m / 3));
    }
}

TEST_CASE("stages with fewer cores than there are stages have those that the others' bubbles leave") {
  ActionKernels kernels;
  kernels.elements = 1 << 24;
  const Work work = work_of(kernel_of(kernels.elements));
  const double us = 1e5;  // of a kernel that has a core; messages take next to nothing
  const Plan plan = pipeline_plan(strategies::gpipe(4, 1, 8), kernels);
  for (int cores : {1, 2, 3, 4, 8}) {
    CAPTURE(cores);
    MachineModel machine = round_machine();
    machine.device.kind = DeviceKind::cpu;
    machine.device.units = cores;
    machine.device.measured = {{std::string(work.name), work.dtype, 1, 1, work.sizes, {work.amount / us * 1e6, 0}}};
    Cluster cluster = cluster_of(machine, plan);
    cluster.threads = 1;
    const CostModel model(cluster);
    // A stage's 8 forward and 8 backward passes are 24 kernels, and it waits for 9 more. No step is shorter than all
    // kernels on all cores.
    const Prediction prediction = predict(plan, model);
    CHECK(prediction.step_us == doctest::Approx(us * std::max(24.0 + 9.0, 4 * 24.0 / cores)).epsilon(1e-3));
    check_sums(prediction);
  }
}

TEST_CASE("the same plan takes the same time, to the last bit") {
  MachineModel machine = round_machine();
  machine.overlap_slowdown = 1.1;
  ActionKernels kernels;
  kernels.elements = 1 << 22;
  const Plan plan = pipeline_plan(strategies::interleaved(4, 2, 16), kernels, 1 << 22);
  const CostModel model(cluster_of(machine, plan));
  CHECK(same(predict(plan, model), predict(plan, model)));
}

TEST_CASE("of a million instructions the parts add up") {
  const MachineModel machine = round_machine();
  ActionKernels kernels{12, 12, 12, 1 << 22};
  const Plan plan = pipeline_plan(strategies::one_f_one_b(16, 1, 1600), kernels, 1 << 20);
  std::size_t instructions = 0;
  for (const Role& role : plan.roles) instructions += role.programs[0].instructions.size();
  REQUIRE(instructions >= 900'000);
  const CostModel model(cluster_of(machine, plan));
  const Prediction prediction = predict(plan, model);
  check_sums(prediction);
}
