// Plans of every job of configs/, on 1, 2 and 4 ranks, with every way of recomputation: they verify, round-trip as
// text, and what verification refuses is shown by breaking them.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/core/random.h"
#include "engine/plan/verify/verify.h"
#include "kernels/cpu/table.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

constexpr std::array kModes{"{mode: none}", "{mode: full}", "{mode: selective}", "{mode: every_n, every: 2}"};

std::int64_t activations(const CompiledJob& job) {
  return job.memory[0].by_category[static_cast<std::size_t>(Category::activations)];
}

// Random numbers below a bound, one after another.
class Dice {
 public:
  explicit Dice(std::uint64_t key) : key_(key) {}
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(random_below(key_, 0, next_++, static_cast<std::uint64_t>(bound)));
  }

 private:
  std::uint64_t key_, next_ = 0;
};

// A plan with several buckets, two micro-batches and two ranks.
CompiledJob plan_to_break(const TinyJobs& jobs) {
  return compiled(jobs.load("gpt2", "run",
                            {"cluster.devices_per_node=2", "strategy.data.kind=ddp", "strategy.data.bucket_mb=0.01",
                             "train.batch.micro=2", "data.val={fraction: 0.2}"}));
}

bool refused(const Plan& plan) { return !violations(plan).empty(); }

template <typename Visit>
void for_each_issued(Plan& plan, Visit&& visit) {
  for (Program& program : plan.roles[0].programs)
    for (std::size_t i = 0; i < program.instructions.size(); ++i) visit(program, i);
}

std::vector<Region*> regions_of(Instruction& instruction) {
  std::vector<Region*> regions;
  if (auto* launch = std::get_if<Launch>(&instruction)) {
    for (Operand& operand : launch->operands) regions.push_back(const_cast<Region*>(&region_of(operand)));
    if (launch->workspace.region.bytes > 0) regions.push_back(&launch->workspace.region);
  } else if (auto* collective = std::get_if<Collective>(&instruction)) {
    regions = {&collective->input.region, &collective->output.region};
  } else if (auto* in = std::get_if<CopyIn>(&instruction)) {
    regions = {&in->region.region};
  } else if (auto* out = std::get_if<CopyOut>(&instruction)) {
    regions = {&out->region.region};
  }
  return regions;
}

}  // namespace

TEST_CASE(
    "every job of configs/ has plans that verify and round-trip, for every number of ranks, recomputation and "
    "accumulation") {
  int plans = 0;
  for (const auto& entry : std::filesystem::directory_iterator(configs_dir())) {
    if (entry.path().extension() != ".yaml") continue;
    CAPTURE(entry.path().filename().string());
    for (int ranks : {1, 2, 4})
      for (std::size_t mode = 0; mode < kModes.size(); ++mode) {
        const int accumulation = 1 + (plans & 1);  // in turns: over the jobs each mode meets both
        CAPTURE(ranks);
        CAPTURE(mode);
        const LoadedJob loaded =
            load_job(entry.path().string(),
                     {"cluster.devices_per_node=" + std::to_string(ranks), "strategy=ddp",
                      "activation_checkpointing=" + std::string(kModes[mode]),
                      "train.batch={global: 8, micro: " + std::to_string(8 / ranks / accumulation) + "}"},
                     {.configs_dir = configs_dir()});
        const Plan plan = compiled(loaded).plan;  // compile verifies
        const std::string text = print(plan);
        const Plan again = parse_plan(text);
        CHECK(print(again) == text);
        CHECK(hash_of(again) == hash_of(plan));
        if (ranks == 2) CHECK(!refused(again));
        ++plans;
      }
  }
  CHECK(plans >= 9 * 12);
}

TEST_CASE("recomputation keeps the bits and lowers the memory of activations") {
  const TinyJobs jobs;
  const Overrides deep{"model.with.layers=4", "model.with.dropout=0.1", "train.batch.micro=4"};
  const auto with = [&](std::size_t mode) {
    Overrides overrides = deep;
    overrides.push_back("activation_checkpointing=" + std::string(kModes[mode]));
    return jobs.load("gpt2", "mode" + std::to_string(mode), overrides);
  };
  const Trained none = run(with(0));
  const Tensors weights = tensors_of(none.report.checkpoint);
  for (std::size_t mode = 1; mode < kModes.size(); ++mode) {
    CAPTURE(std::string(kModes[mode]));
    const Trained recomputed = run(with(mode));
    CHECK(recomputed.loss == none.loss);
    CHECK(recomputed.grad_norm == none.grad_norm);
    CHECK(largest_difference(tensors_of(recomputed.report.checkpoint), weights) == 0);
    CHECK(activations(compiled(with(mode))) < activations(compiled(with(0))));
  }
}

TEST_CASE("a plan without any one of its waits is refused, and with any one of them earlier") {
  const TinyJobs jobs;
  Plan plan = plan_to_break(jobs).plan;
  REQUIRE(!refused(plan));
  int waits = 0;
  for_each_issued(plan, [&](Program& program, std::size_t i) {
    for (std::int32_t& after : program.instructions[i].after.at) {
      if (after < 0) continue;
      const std::int32_t right = after;
      CAPTURE(i);
      after = -1;
      CHECK(refused(plan));
      for (after = right - 1; after >= 0 && program.instructions[static_cast<std::size_t>(after)].stream !=
                                                program.instructions[static_cast<std::size_t>(right)].stream;)
        --after;
      CHECK(refused(plan));
      after = right;
      ++waits;
    }
  });
  CHECK(waits > 15);
  MESSAGE(waits << " waits, all needed");
}

TEST_CASE("a collective of another size, group or place is refused, and so is a plan without it") {
  const TinyJobs jobs;
  Plan plan = plan_to_break(jobs).plan;
  int collectives = 0;
  for_each_issued(plan, [&](Program& program, std::size_t i) {
    auto* collective = std::get_if<Collective>(&program.instructions[i].instruction);
    if (collective == nullptr) return;
    CAPTURE(print(plan.roles[0], program.instructions[i].instruction));
    const Collective right = *collective;
    const auto broken = [&](auto&& change) {
      change(collective->input.region);
      change(collective->output.region);
      CHECK(refused(plan));
      *collective = right;
    };
    const std::int64_t width = size_of(right.dtype);
    broken([&](Region& region) { region.bytes -= 32 * width; });  // a unit may end in up to 31 zeros of padding
    broken([&](Region& region) { region.bytes += width; });
    broken([&](Region& region) { region.bytes /= 2; });
    broken([&](Region& region) { region.offset += width; });
    broken([&](Region& region) { region.bytes -= width, region.offset += width; });
    for (Region* one : {&collective->input.region, &collective->output.region}) {
      one->bytes -= width;
      CHECK(refused(plan));
      *collective = right;
    }
    for (Axis axis : {Axis::pipeline, Axis::shard, Axis::tensor}) {  // groups of this rank alone
      collective->axes = Axes::of(axis);
      CHECK(refused(plan));
      *collective = right;
    }
    collective->kind = CollectiveKind::reduce_scatter;
    CHECK(refused(plan));
    collective->kind = CollectiveKind::all_gather;
    CHECK(refused(plan));
    *collective = right;

    Program whole = program;
    program.instructions.erase(program.instructions.begin() + static_cast<std::ptrdiff_t>(i));
    derive_order(plan.roles[0], plan.mesh);
    CHECK(refused(plan));
    program = whole;
    derive_order(plan.roles[0], plan.mesh);
    ++collectives;
  });
  CHECK(collectives >= 7);
}

// What verification cannot know is what a plan is for: one that reads other, well-defined bytes, or leaves an update
// out, is a plan as well. So the share of refusals is stated, and bounded from below by what was measured. A move in
// memory that it lets pass must not change a bit.
TEST_CASE("random mutants are refused for the most part; moves in memory that pass change nothing") {
  const TinyJobs jobs;
  CompiledJob job = plan_to_break(jobs);
  Plan& plan = job.plan;
  const Plan right = plan;
  Role& role = plan.roles[0];
  Dice dice(5);
  std::vector<Plan> moved;
  int refused_moves = 0, refused_regions = 0, refused_drops = 0;
  constexpr int kEach = 150;
  for (int mutant = 0; mutant < kEach; ++mutant) {
    Buffer& buffer = role.buffers[static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(role.buffers.size())))];
    buffer.offset += (dice.below(2) == 0 ? -1 : 1) * kBufferAlignment * (1 + dice.below(16));
    if (refused(plan))
      ++refused_moves;
    else
      moved.push_back(plan);
    plan = right;
  }
  for (int mutant = 0; mutant < kEach; ++mutant) {
    std::vector<Issued>& step = role.programs[0].instructions;
    const std::vector<Region*> regions =
        regions_of(step[static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(step.size())))].instruction);
    Region& region = *regions[static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(regions.size())))];
    const std::int64_t by = (dice.below(2) == 0 ? -1 : 1) * 4 * (1 + dice.below(64));
    (dice.below(2) == 0 ? region.bytes : region.offset) += by;
    refused_regions += refused(plan) ? 1 : 0;
    plan = right;
  }
  for (int mutant = 0; mutant < kEach; ++mutant) {
    std::vector<Issued>& step = role.programs[0].instructions;
    step.erase(step.begin() + dice.below(static_cast<std::int64_t>(step.size())));
    derive_order(role, plan.mesh);
    refused_drops += refused(plan) ? 1 : 0;
    plan = right;
  }
  MESSAGE("refused, of " << kEach << " each: " << refused_moves << " moves of a buffer, " << refused_regions
                         << " changed regions, " << refused_drops << " dropped instructions");
  CHECK(refused_moves > 0);
  CHECK(refused_regions > kEach / 2);
  CHECK(refused_drops > kEach / 2);

  const LoadedJob loaded =
      jobs.load("gpt2", "moved",
                {"cluster.devices_per_node=2", "strategy.data.kind=ddp", "strategy.data.bucket_mb=0.01",
                 "train.batch.micro=2", "data.val={fraction: 0.2}", "checkpoint.resume=none"});
  const auto losses = [&](const Plan& of) {
    job.plan = of;
    std::filesystem::remove_all(*loaded.job.checkpoint.dir);
    const RunReport report = train(loaded, job, {}, {});
    return std::pair(report.loss, weights_of(report.checkpoint));
  };
  const auto expected = losses(right);
  for (std::size_t i = 0; i < std::min<std::size_t>(moved.size(), 8); ++i) CHECK(losses(moved[i]) == expected);
}

TEST_CASE("a plan's text with a changed letter is refused or another plan") {
  const TinyJobs jobs;
  const std::string text = print(plan_to_break(jobs).plan);
  Dice dice(9);
  int read = 0;
  for (int mutant = 0; mutant < 600; ++mutant) {
    std::string changed = text;
    const std::size_t at = static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(text.size())));
    char& letter = changed[at];
    letter = "0123456789 abx-+:\n"[dice.below(18)];
    try {
      const Plan plan = parse_plan(changed);
      ++read;
      (void)violations(plan);  // whatever it holds, looking at it is safe
      CAPTURE(text.substr(text.rfind('\n', at) + 1, 80));
      CAPTURE(changed.substr(text.rfind('\n', at) + 1, 80));
      CHECK((print(plan) == text) == (changed == text));
    } catch (const std::exception&) {
    }
  }
  MESSAGE(read << " of 600 were plans");
}

TEST_CASE("a schedule from a file makes the plan of the schedule that it is, or a mistake that says what differs") {
  const TinyJobs jobs;
  jobs.write("s.csv", "F0.0,F1.0,B0.0,F2.0,B1.0,F3.0,B2.0,B3.0\nF0.1,B0.1,F1.1,B1.1,F2.1,B2.1,F3.1,B3.1\n");
  const auto load = [&](const std::string& schedule, const Overrides& more = {}) {
    return jobs.load("gpt2", "run",
                     both({"cluster.devices_per_node=2", "train.batch.global=4",
                           "strategy={pipeline: {degree: 2, schedule: " + schedule + "}}"},
                          more));
  };
  const std::string file = "{file: " + jobs.path("s.csv") + "}";
  const CompiledJob given = compiled(load(file, {"train.batch.micro=1"}));
  CHECK(print(given.plan) == print(compiled(load("1f1b", {"train.batch.micro=1"})).plan));
  CHECK(compiled(load(file)).batch.micro_batches == 4);  // micro: auto
  const auto mistake = [&](const std::string& schedule, const Overrides& more) {
    return message_of<JobError>([&] { compiled(load(schedule, more)); });
  };
  CHECK(contains(mistake(file, {"train.batch.micro=2"}), "s.csv has 4 micro-batches; train.batch gives 2"));
  CHECK(
      contains(mistake(file, {"train.batch.global=6"}), "s.csv has 4 micro-batches; train.batch gives no such number"));
  CHECK(contains(mistake(file, {"cluster.devices_per_node=4", "strategy.pipeline.degree=4"}),
                 "s.csv has 2 stages; strategy.pipeline.degree is 4"));
  CHECK(contains(mistake("{file: nothing.csv}", {}), "strategy.pipeline.schedule.file"));
  CHECK(contains(mistake(file, {"strategy.pipeline.virtual_stages=1"}), "strategy.pipeline.virtual_stages"));
  CHECK(contains(mistake(file, {"activation_checkpointing=auto"}), "belongs to one strategy"));
}

TEST_CASE("pairs of micro-batches say where there are none") {
  const TinyJobs jobs;
  const auto mistake = [&](const Overrides& more) {
    Overrides all{"cluster.devices_per_node=2", "strategy={tensor: {degree: 2, overlap: true}}"};
    all.insert(all.end(), more.begin(), more.end());
    return message_of<JobError>([&] { compiled(jobs.load("llama", "run", all)); });
  };
  CHECK(mistake({"train.batch.global=8", "train.batch.micro=4"}).empty());
  CHECK(contains(mistake({"train.batch.global=8", "train.batch.micro=8"}),
                 "the 8 samples of a rank make one; a smaller train.batch.micro"));
  CHECK(contains(mistake({"train.batch.global=9", "train.batch.micro=3"}),
                 "the 9 samples of a rank make 3; an even number of samples is needed"));
}
