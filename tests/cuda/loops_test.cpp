// Programs with loops through the executor of GPUs, on the emulated one and with the CPU's kernels: to the bit what the
// CPU and the same program written out give, issued and captured, in whatever order streams go on.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/comm/host_communicator.h"
#include "engine/core/error.h"
#include "engine/plan/loop.h"
#include "engine/run/cuda_device.h"
#include "tests/cuda/emulated/emulated.h"
#include "tests/cuda/emulated_jobs.h"

namespace trainer::loops_test {

using tests::GpuJob;
using tests::TinyJobs;
using tests::Trained;

namespace {

constexpr std::uint64_t kOrders = 6;

const TinyJobs& jobs() {
  static const TinyJobs one;
  return one;
}

// ---- Jobs ----

tests::Overrides many_micro_batches(tests::Overrides more = {}) {
  more.insert(more.begin(),
              {"checkpoint.resume=none", "strategy=ddp", "train.batch={global: 40, micro: 1}", "train.steps=4"});
  return more;
}

Trained on_cpu(const std::string& name, const tests::Overrides& overrides) {
  TrainOptions options;
  options.threads = 1;
  return tests::run(tests::from_the_start(jobs().load(name, "cpu", overrides)), {}, options);
}

bool same_run(const Trained& a, const Trained& b) {
  return a.loss.size() == 4 && a.loss == b.loss && a.grad_norm == b.grad_norm &&
         tests::files_of(a.report.checkpoint)["model.safetensors"] ==
             tests::files_of(b.report.checkpoint)["model.safetensors"];
}

// ---- A program of three streams ----

constexpr std::int64_t kElements = 64, kBytes = kElements * 4;
constexpr std::int32_t kListed = 7, kLoops = 4;  // micro-batches of the list, and the one that loops

// Micro-batch k: a[k % 2] = x[k] + w, b[k % 3] = a[k % 2] on one stream of communication, c[k % 2] = b[k % 3] on
// another, then sum = c[k % 2] + next, next = sum + x[k]. So each stream works on another micro-batch than its
// neighbours, and what comes out of order shows in all that follows.
class ThreeStreams {
 public:
  explicit ThreeStreams(std::int32_t passes) {
    role_.names = {"v"};
    role_.signatures = {{Op::add, {}, {tensor(), tensor(), tensor()}}};
    micro_batches_ = kListed + passes - 1;
    role_.fields = {field("x", Field::Kind::batch, micro_batches_), field("w", Field::Kind::batch, 1),
                    field("out", Field::Kind::result, 1)};
    x_ = ring(micro_batches_), w_ = ring(1), a_ = ring(2), b_ = ring(3), c_ = ring(2), sum_ = ring(1), next_ = ring(1);
    role_.programs.emplace_back();
    issue(Stream::copy, CopyIn{0, 0, {{x_, 0, micro_batches_ * kBytes}}});
    issue(Stream::copy, CopyIn{1, 0, {{w_, 0, kBytes}}});
    issue(Stream::copy, CopyIn{1, 0, {{next_, 0, kBytes}}});
    Loop loop;
    for (std::int32_t k = 0; k < kListed; ++k) {
      if (k == kLoops) loop.first = here();
      micro_batch(k);
      if (k == kLoops) loop.last = here();
    }
    loop.times = passes, loop.micro_batches = 1;
    role_.programs.front().loops = {loop};
    issue(Stream::copy, CopyOut{2, 0, {{next_, 0, kBytes}}});
    role_.total_bytes = end_;
    derive_order(role_, Mesh{});
  }

  Plan plan() const { return {Mesh{}, false, {role_}}; }
  std::int32_t micro_batches() const { return micro_batches_; }

 private:
  static TensorDesc tensor() { return {DType::f32, {kElements}}; }
  static Field field(const std::string& name, Field::Kind kind, std::int64_t parts) {
    return {name, kind, Spec(DType::f32, Shape{kElements}), parts * kBytes};
  }
  std::int32_t here() const { return static_cast<std::int32_t>(role_.programs.front().instructions.size()); }

  BufferId ring(std::int64_t parts) {
    Buffer buffer;
    buffer.program = 0, buffer.bytes = parts * kBytes, buffer.offset = end_;
    if (parts > 1) buffer.stride = kBytes, buffer.advance = 1;
    end_ += buffer.bytes;
    role_.buffers.push_back(buffer);
    return static_cast<BufferId>(role_.buffers.size()) - 1;
  }
  Region part(BufferId id, std::int32_t micro_batch) const {
    return {id, micro_batch % role_.buffer(id).parts() * kBytes, kBytes};
  }

  void issue(Stream stream, Instruction instruction) {
    role_.programs.front().instructions.push_back({stream, std::move(instruction), {}});
  }
  void add(const Region& x, const Region& y, const Region& to) {
    Launch one;
    one.operands = {Read{x}, Read{y}, Write{to}};
    issue(Stream::compute, one);
  }
  void copy(Stream stream, const Region& from, const Region& to) {
    Collective one;
    one.kind = CollectiveKind::all_gather, one.input = {from}, one.output = {to};
    issue(stream, one);
  }
  void micro_batch(std::int32_t k) {
    add(part(x_, k), part(w_, 0), part(a_, k));
    copy(Stream::communication, part(a_, k), part(b_, k));
    copy(Stream::background, part(b_, k), part(c_, k));
    if (k == 0) return;
    add(part(c_, k - 1), part(next_, 0), part(sum_, 0));
    add(part(sum_, 0), part(x_, k), part(next_, 0));
  }

  Role role_;
  std::int64_t end_ = 0;
  std::int32_t micro_batches_ = 0;
  BufferId x_, w_, a_, b_, c_, sum_, next_;
};

float x_of(std::int32_t micro_batch, std::int64_t element) {
  return static_cast<float>((micro_batch * 7 + element) % 13) / 16;
}
float w_of(std::int64_t element) { return static_cast<float>(element % 5) / 8; }

// By the formula; exact in f32.
std::vector<float> expected(std::int32_t micro_batches) {
  std::vector<float> next;
  for (std::int64_t i = 0; i < kElements; ++i) {
    next.push_back(w_of(i));
    for (std::int32_t k = 1; k < micro_batches; ++k) next.back() += x_of(k - 1, i) + w_of(i) + x_of(k, i);
  }
  return next;
}

// Of three runs, so that one is issued and two are of the graph; each finds what the run before left.
std::vector<std::vector<float>> outputs(const Plan& plan, std::int32_t micro_batches, std::uint64_t order) {
  emulated::settings().order = order;
  const auto communicators = thread_communicators(1);
  const auto executor = cuda_device({})->load(plan, 0, *communicators[0]);
  std::vector<float> x, w, out(kElements);
  for (std::int32_t k = 0; k < micro_batches; ++k)
    for (std::int64_t i = 0; i < kElements; ++i) x.push_back(x_of(k, i));
  for (std::int64_t i = 0; i < kElements; ++i) w.push_back(w_of(i));
  executor->bind(0, x.data()), executor->bind(1, w.data()), executor->bind(2, out.data());
  std::vector<std::vector<float>> all;
  for (int run = 0; run < 3; ++run) {
    executor->run(0);
    all.push_back(out);
  }
  emulated::settings().order = 0;
  return all;
}

}  // namespace

TEST_CASE("steps with a loop are those of the CPU and of the plan written out to the bit, issued and captured") {
  for (const char* name : {"gpt2", "mlp"}) {
    CAPTURE(name);
    const tests::Overrides overrides = many_micro_batches();
    const Trained cpu = on_cpu(name, overrides);
    const GpuJob job = tests::gpu_job(jobs(), name, "gpu", overrides);
    REQUIRE(loops(job.compiled.plan));
    for (std::uint64_t order = 0; order < kOrders; ++order) CHECK(same_run(cpu, run(job, order)));
    GpuJob full = job;
    full.compiled = written_out(job.compiled);
    CHECK(same_run(cpu, run(full, 1)));
    const tests::EnvironmentSetting off("TRAINER_CUDA_GRAPH", "0");
    for (std::uint64_t order = 0; order < kOrders; ++order) CHECK(same_run(cpu, run(job, order)));
  }
}

TEST_CASE("times are of every pass, and a step that diverges names the pass that the CPU names") {
  const GpuJob job = tests::gpu_job(jobs(), "gpt2", "gpu", many_micro_batches());
  std::vector<RankTrace> traces;
  TrainOptions options;
  options.trace = [&](const std::vector<RankTrace>& ranks) { traces = ranks; };
  run(job, 2, options);
  REQUIRE(traces.size() == 1);
  const Program& step = *job.compiled.plan.roles[0].program(ProgramKind::step);
  CHECK(static_cast<std::int64_t>(traces[0].spans.size()) == step.length());
  for (const Span& span : traces[0].spans) CHECK(span.end_ns > 0);

  // Features of 1e30 in one row: the first step or a later one overflows in the micro-batch that has it.
  std::string table;
  for (int row = 0; row < 64; ++row)
    table += std::to_string(0.1 * (row % 5)) + "," + (row == 37 ? "3e38" : "0.5") + ",1,2,3,4," +
             std::to_string(row % 4) + "\n";
  jobs().write("outlier.csv", table);
  const tests::Overrides wild = many_micro_batches({"data.train=" + jobs().path("outlier.csv"), "data.normalize=none"});
  const auto message_of = [](auto&& train) {
    try {
      train();
    } catch (const NonFiniteError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string cpu = message_of([&] { on_cpu("mlp", wild); });
  CHECK(cpu.find("the first tensor that is not finite is") != std::string::npos);
  CHECK(message_of([&] { run(tests::gpu_job(jobs(), "mlp", "wild", wild), 1); }) == cpu);
}

TEST_CASE("passes of a loop that overlap on three streams keep their order") {
  const tests::EnvironmentSetting poisoned("TRAINER_POISON", "1");
  for (const std::int32_t passes : {2, 3, 8, 31}) {
    CAPTURE(passes);
    const ThreeStreams program(passes);
    const Plan plan = program.plan(), full = unrolled(plan);
    const std::vector<float> right = expected(program.micro_batches());
    for (std::uint64_t order = 0; order < 4 * kOrders; ++order) {
      CAPTURE(order);
      for (const std::vector<float>& out : outputs(plan, program.micro_batches(), order)) CHECK(out == right);
      for (const std::vector<float>& out : outputs(full, program.micro_batches(), order)) CHECK(out == right);
    }
  }
}

TEST_CASE("without the waits of a loop some order goes wrong") {
  const ThreeStreams program(8);
  Plan plan = program.plan();
  Program& step = plan.roles[0].programs[0];
  for (std::int32_t i = step.loops.front().first; i < step.loops.front().last; ++i)
    step.instructions[static_cast<std::size_t>(i)].after = {};
  const std::vector<float> right = expected(program.micro_batches());
  int wrong = 0;
  for (std::uint64_t order = 0; order < 4 * kOrders; ++order)
    for (const std::vector<float>& out : outputs(plan, program.micro_batches(), order)) wrong += out == right ? 0 : 1;
  CHECK(wrong > 0);
}

}  // namespace trainer::loops_test
