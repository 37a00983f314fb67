// Training with the optimizer on disk: the same bits as without it, whatever the strategy, in the memory of the plan
// and of the formula; checkpoints go from one way to the other; a run leaves no file behind, however it ends.
#include <doctest/doctest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>

#include "engine/compile/compile.h"
#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/run/offload_file.h"
#include "kernels/cpu/runtime/isa.h"
#include "kernels/cpu/table.h"
#include "tests/train/mixed_jobs.h"
#include "tests/train/spoiled_plan.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

// Chunks of so few elements that every unit has several.
CompiledJob in_small_chunks(const LoadedJob& loaded, std::int64_t chunk = 256) {
  const int threads = threads_per_rank(world_size_of(loaded.job));
  const kernels::cpu::CpuTarget target({.isa = kernels::cpu::detect_isa(), .threads = threads});
  Hardware hardware{.target = &target, .memory_bytes = std::int64_t{64} << 30, .threads = threads};
  hardware.offload_chunk = chunk;
  return compile(loaded, hardware, Purpose::train);
}

const Overrides kStatesOnDisk{"strategy.offload={optimizer: disk}"};

std::int64_t moved_bytes(const Role& role, ProgramKind kind, bool comes) {
  std::int64_t bytes = 0;
  for (const Issued& issued : role.program(kind)->instructions)
    if (const auto* move = std::get_if<Move>(&issued.instruction))
      if ((role.space_of(move->to.region) == Space::device) == comes) bytes += move->to.region.bytes;
  return bytes;
}

// Masters (unless the working copy is one) and states of what a rank updates.
std::int64_t formula(const Role& role, bool masters) {
  std::int64_t bytes = 0;
  for (const Unit& unit : role.units) {
    if (!unit.trained()) continue;
    if (masters && unit.compute != DType::f32) bytes += aligned(4 * unit.slice());
    for (const Slot& slot : unit.slots)
      if (slot.kind == Slot::Kind::state) bytes += aligned(bytes_of(slot.spec.format, unit.slice()));
  }
  return bytes;
}

void check_same_bits(const Trained& got, const Trained& want) {
  CHECK(got.loss == want.loss);
  CHECK(got.grad_norm == want.grad_norm);
  CHECK(largest_difference(tensors_of(got.report.checkpoint), tensors_of(want.report.checkpoint)) == 0);
}

}  // namespace

TEST_CASE(
    "with the optimizer on disk every strategy trains to the same bits, in the memory of its plan and the formula") {
  const EnvironmentSetting one_thread("TRAINER_THREADS", "1");
  const MixedJobs jobs;
  int folder = 0;
  for (const auto& [line, more] : std::vector<std::pair<std::string, Overrides>>{
           {"gpt ddp m1 clip", {}},
           {"llama ddp m4 clip bf16", {}},
           {"gpt r2 ddp m2 clip bf16 excluded", {}},
           {"gpt r2 ddp m2 clip", {"train.optimizer={name: sgd, lr: 1.0e-2, momentum: 0.9}"}},
           {"gpt r4 zero1 m2 clip bf16", {}},
           {"gpt r4 zero1 m2", {"train.optimizer.states=int8"}},
           {"llama r4 zero2 m2 bf16", {"train.optimizer.states=bf16"}},
           {"llama r4 zero3 m2 clip bf16 wrap:transformer sharded", {}},
           {"llama r4 full_shard m2 clip bf16", {"train.optimizer.states=int8"}},
           {"packed r4 hybrid2 m2 wrap:size clip", {}},
           {"gpt r4 zero1 t2 sp m2 clip bf16", {}},
           {"llama r2 p2 1f1b m4 clip bf16", {}},
           {"gpt r4 ddp p2 zb_h1 m8 clip bf16 sharded", {}},
           {"packed r8 zero2 t2 p2 1f1b m4 clip sharded bf16", {}},
           {"llama r4 zero1 c2 m2 bf16", {}},
           {"gpt r2 ddp m2 norms bf16", {}},
           {"llama r2 full_shard m2 lora bf16", {}}}) {
    CAPTURE(line);
    const LoadedJob plain = jobs.load(line, "plain" + std::to_string(folder), more),
                    loaded = jobs.load(line, "disk" + std::to_string(folder++), both(kStatesOnDisk, more));
    const CompiledJob job = in_small_chunks(loaded);
    const Trained want = run(plain), got = run(loaded, job);
    check_same_bits(got, want);
    const Mesh& mesh = job.plan.mesh;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const Role& role = job.plan.role_of(rank);
      const RankReport& told = got.report.ranks[static_cast<std::size_t>(rank)];
      CHECK(told.allocated_bytes == told.planned_bytes);
      CHECK(told.planned_bytes == role.total_bytes);
      CHECK(told.allocated_offload_bytes == told.planned_offload_bytes);
      CHECK(told.planned_offload_bytes == formula(role, true));
      // Each element of the file comes once a step and leaves once; masters alone come when weights are renewed.
      const std::int64_t comes = moved_bytes(role, ProgramKind::step, true);
      CHECK(comes == moved_bytes(role, ProgramKind::step, false));
      CHECK(comes <= role.disk_bytes);
      CHECK(role.disk_bytes - comes < 512 * 4 * static_cast<std::int64_t>(role.units.size()));  // alignment
      CHECK(moved_bytes(role, ProgramKind::refresh, false) == 0);
    }
  }
}

TEST_CASE("what is on disk leaves the device, but for three chunks") {
  const MixedJobs jobs;
  const LoadedJob loaded = jobs.load("llama ddp m1 bf16", "run", kStatesOnDisk);
  const Role on_disk = in_small_chunks(loaded, 1024).plan.roles[0],
             plain = compiled(jobs.load("llama ddp m1 bf16", "run")).plan.roles[0];
  CHECK(plain.persistent_bytes - on_disk.persistent_bytes == formula(plain, true));
  std::int64_t staged = 0, largest = 0;
  const Program& step = *on_disk.program(ProgramKind::step);
  const auto index = static_cast<std::int32_t>(&step - on_disk.programs.data());
  for (const Issued& issued : step.instructions)
    if (const auto* move = std::get_if<Move>(&issued.instruction)) {
      if (issued.stream != Stream::fetch) continue;
      const Buffer& buffer = on_disk.buffer(move->to.region.buffer);
      CHECK(buffer.program == index);
      largest = std::max(largest, buffer.bytes);
      staged += buffer.bytes;
    }
  CHECK(largest <= 1024 * 4);
  CHECK(staged > 12 * largest);  // more than three chunks of a master and two states went through
}

TEST_CASE("checkpoints go from one way of keeping states to the other") {
  const EnvironmentSetting one_thread("TRAINER_THREADS", "1");
  const MixedJobs jobs;
  const std::string line = "gpt r2 zero1 m2 clip bf16";
  const auto load = [&](const std::string& folder, bool disk, int steps) {
    Overrides more{"train.steps=" + std::to_string(steps), "train.lr_schedule=constant", "checkpoint.resume=auto"};
    return jobs.load(line, folder, disk ? both(kStatesOnDisk, more) : more);
  };
  const Trained whole = run(load("whole", false, 8));
  for (const bool disk_first : {true, false}) {
    const std::string folder = disk_first ? "from_disk" : "to_disk";
    const auto job = [&](bool disk, int steps) {
      const LoadedJob loaded = load(folder, disk, steps);
      return run(loaded, in_small_chunks(loaded));
    };
    job(disk_first, 4);
    const Trained rest = job(!disk_first, 8);
    CHECK(rest.report.first_step == 4);
    CHECK(largest_difference(tensors_of(rest.report.checkpoint), tensors_of(whole.report.checkpoint)) == 0);
  }
}

// A kill at any moment leaves nothing behind, where the file system of temporary files has O_TMPFILE, as all local ones
// of Linux have.
TEST_CASE("the file never has a name, and is gone with the run") {
  const TemporaryFolder folder;
  const std::string dir = folder.path("new/folder");
  std::filesystem::create_directories(dir);
  const Descriptor names_made(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  REQUIRE(::inotify_add_watch(names_made.get(), dir.c_str(), IN_CREATE) >= 0);
  {
    const OffloadFile file(dir, 0, 1 << 20);
    CHECK(names_in(dir).empty());
    std::vector<float> data(1024, 1.5F), back(1024);
    file.read((1 << 20) - 4096, back.data(), 4096);
    CHECK(back == std::vector<float>(1024, 0.0F));  // zeros at first
    file.write(4096, data.data(), 4096);
    file.read(4096, back.data(), 4096);
    CHECK(back == data);
  }
  CHECK(names_in(dir).empty());
  std::array<char, 4096> events{};
  CHECK(::read(names_made.get(), events.data(), events.size()) == -1);  // there are none
}

TEST_CASE("a disk that is too small is found before the first step, and nothing is taken of it") {
  const TemporaryFolder folder;
  const auto free = [&] { return std::filesystem::space(folder.path()).available; };
  const auto before = free();
  try {
    const OffloadFile file(folder.path(), 3, std::int64_t{1} << 55);
    FAIL("took 32 PiB");
  } catch (const IoError& error) {
    const std::string text = error.what();
    CAPTURE(text);
    CHECK(text.find("offload.3: ") != std::string::npos);
    CHECK(text.find("strategy.offload.dir") != std::string::npos);
    CHECK(text.find("No space left on device") != std::string::npos);
  }
  CHECK(free() + (1 << 28) > before);
  CHECK_THROWS_AS(OffloadFile("/proc/nowhere", 0, 4096), IoError);
}

namespace {

// The place of the n-th move of a step in some direction.
std::size_t move_at(const Plan& plan, bool comes, int n) {
  const std::vector<Issued>& step = plan.roles[0].program(ProgramKind::step)->instructions;
  for (std::size_t i = 0; i < step.size(); ++i)
    if (step[i].stream == (comes ? Stream::fetch : Stream::store) && n-- == 0) return i;
  FAIL("there are fewer moves");
  return 0;
}

}  // namespace

TEST_CASE("the proof names what is used before it is here, overwritten before it left, or not brought back") {
  const MixedJobs jobs;
  const Plan right = in_small_chunks(jobs.load("llama ddp m1 bf16", "run", kStatesOnDisk)).plan;
  REQUIRE(violations(right).empty());
  REQUIRE(print(parse_plan(print(right))) == print(right));
  const std::size_t fetch = move_at(right, true, 5), store = move_at(right, false, 5);

  // Order: a fetch that nobody waits for, a store that the next fetch does not wait for.
  for (const Stream stream : {Stream::fetch, Stream::store}) {
    CAPTURE(name_of(stream));
    const auto forget = [&](Plan& plan) {
      for (Issued& one : step_of(plan)) one.after[static_cast<std::size_t>(stream)] = -1;
    };
    const std::string text = refusal(right, forget, false);
    CHECK(has(text, stream == Stream::fetch ? "without waiting" : "writes without waiting for an earlier access"));
  }
  const auto left_out = [&](std::size_t i) {
    return refusal(right, [&](Plan& plan) { step_of(plan).erase(step_of(plan).begin() + static_cast<long>(i)); });
  };
  CHECK(has(left_out(fetch), "reads bytes that"));  // nobody's, or those of the chunk that lay there
  CHECK(has(left_out(store), "has not brought back"));
  const auto wrong_place = [&](std::size_t i, bool comes) {
    return refusal(right, [&](Plan& plan) {
      auto& move = std::get<Move>(step_of(plan)[i].instruction);
      (comes ? move.from.region : move.to.region).offset += 64;
    });
  };
  CHECK(!wrong_place(fetch, true).empty());
  CHECK(has(wrong_place(store, false), "brings to a place what is not the update of what lies there"));
  CHECK(has(refusal(right, [&](Plan& plan) { std::swap(step_of(plan)[fetch].stream, step_of(plan)[store].stream); }),
            "on a stream for another direction"));
  // A store in front of the update: the old bytes go back.
  const auto early = [&](Plan& plan) {
    std::vector<Issued>& step = step_of(plan);
    std::size_t update = store;
    while (!std::holds_alternative<Launch>(step[update].instruction)) --update;
    std::rotate(step.begin() + static_cast<long>(update), step.begin() + static_cast<long>(store),
                step.begin() + static_cast<long>(store) + 1);
  };
  CHECK(has(refusal(right, early), "brings to a place what is not the update of what lies there"));
  // A kernel that works on the file.
  const auto on_disk = [&](Plan& plan) {
    for (Issued& one : step_of(plan))
      if (auto* launch = std::get_if<Launch>(&one.instruction))
        for (Operand& operand : launch->operands)
          if (auto* update = std::get_if<Update>(&operand);
              update != nullptr && one.why.phase == Provenance::Phase::update && one.why.unit == 0)
            update->region.buffer = plan.roles[0].units[0].parameters().region.buffer;
  };
  CHECK(has(refusal(right, on_disk), "touches what is off the device"));
}

// Squares of gradients are summed in f64 as the backward pass makes them, in another order of units: where that changes
// a bit of the norm, it is its last.
TEST_CASE("with gradients on disk too every strategy trains to the same bits, and holds two units of them at most") {
  const EnvironmentSetting one_thread("TRAINER_THREADS", "1");
  const MixedJobs jobs;
  int folder = 0;
  for (const auto& [line, more] : std::vector<std::pair<std::string, Overrides>>{
           {"gpt ddp m1", {}},
           {"llama ddp m1 bf16 wrap:transformer", {"precision.reduce=bf16"}},
           {"gpt r2 ddp m1 bf16 wrap:transformer", {}},
           {"gpt r4 zero1 m1 bf16 wrap:transformer", {"train.optimizer.states=int8"}},
           {"llama r4 zero2 m1 bf16", {}},
           {"llama r4 full_shard m1 wrap:transformer sharded", {}},
           {"packed r4 hybrid2 m1 wrap:size bf16", {}},
           {"gpt r4 zero1 t2 sp m1 bf16", {}},
           {"llama r4 zero1 c2 m1 bf16", {}},
           {"llama r2 full_shard m1 lora bf16", {}}}) {
    CAPTURE(line);
    for (const std::string optimizer : {"disk", "none"}) {
      CAPTURE(optimizer);
      const LoadedJob plain = jobs.load(line, "plain" + std::to_string(folder), more),
                      loaded =
                          jobs.load(line, "disk" + std::to_string(folder++),
                                    both({"strategy.offload={gradients: disk, optimizer: " + optimizer + "}"}, more));
      const CompiledJob job = in_small_chunks(loaded);
      const Trained want = run(plain), got = run(loaded, job);
      CHECK(got.loss == want.loss);
      for (std::size_t step = 0; step < want.grad_norm.size(); ++step)
        CHECK(std::fabs(got.grad_norm[step] / want.grad_norm[step] - 1) < 1.5 * 0x1p-23);
      CHECK(largest_difference(tensors_of(got.report.checkpoint), tensors_of(want.report.checkpoint)) == 0);
      for (int rank = 0; rank < job.plan.mesh.world_size(); ++rank) {
        const Role& role = job.plan.role_of(rank);
        const RankReport& told = got.report.ranks[static_cast<std::size_t>(rank)];
        CHECK(told.allocated_bytes == role.total_bytes);
        CHECK(told.allocated_offload_bytes == role.disk_bytes);
        const std::int64_t width = size_of(loaded.job.precision.reduce);
        std::int64_t gradients = 0;
        for (const Unit& unit : role.units)
          if (unit.trained()) gradients += aligned(width * unit.slice());
        CHECK(role.disk_bytes == gradients + (optimizer == "disk" ? formula(role, true) : 0));
      }
    }
  }
}

TEST_CASE("gradients on disk that are of several micro-batches, of stages, or compressed, are refused at their key") {
  const MixedJobs jobs;
  const auto refusal_of = [&](const std::string& line, Overrides more = {}) {
    more.emplace_back("strategy.offload={gradients: disk}");
    try {
      in_small_chunks(jobs.load(line, "run", more));
    } catch (const JobError& error) {
      return error.diagnostics().front().path;
    }
    return std::string();
  };
  CHECK(refusal_of("gpt ddp m2") == "strategy.offload.gradients");
  CHECK(refusal_of("gpt r2 ddp p2 1f1b m4") == "strategy.offload.gradients");
  for (const char* compression : {"int8", "bf16", "{top_k: 0.1}"})
    CHECK(refusal_of("gpt r2 ddp m1", {"strategy.data.compression=" + std::string(compression)}) ==
          "strategy.offload.gradients");
  CHECK(refusal_of("gpt ddp m1").empty());
}

TEST_CASE("the proof names a gradient of a step before, and one of other elements") {
  const MixedJobs jobs;
  const Plan right =
      in_small_chunks(jobs.load("llama r2 ddp m1 bf16", "run", {"strategy.offload={optimizer: disk, gradients: disk}"}))
          .plan;
  REQUIRE(violations(right).empty());
  const auto of_gradient = [&](Plan& plan, Stream stream) {
    std::vector<Issued>& step = step_of(plan);
    return std::find_if(step.begin(), step.end(), [&](const Issued& one) {
      const auto* move = std::get_if<Move>(&one.instruction);
      return move != nullptr && one.stream == stream && plan.roles[0].name(move->name).ends_with(".gradient");
    });
  };
  const auto not_kept = [&](Plan& plan) { step_of(plan).erase(of_gradient(plan, Stream::store)); };
  CHECK(has(refusal(right, not_kept), "with gradients that are"));
  const auto others = [&](Plan& plan) {
    auto second = std::find_if(of_gradient(plan, Stream::fetch) + 1, step_of(plan).end(), [&](const Issued& one) {
      const auto* move = std::get_if<Move>(&one.instruction);
      return move != nullptr && one.stream == Stream::fetch && move->from.region.offset > 0 &&
             plan.roles[0].name(move->name).ends_with(".gradient");
    });
    std::get<Move>(second->instruction).from.region.offset = 0;
  };
  CHECK(has(refusal(right, others), "takes the gradient of other elements than it updates"));
}

namespace {

// Slices of working copies, on a rank: of trained units in f32 they are the masters.
std::int64_t working_copies(const Role& role) {
  std::int64_t bytes = 0;
  for (const Unit& unit : role.units) bytes += aligned(unit.slice() * size_of(unit.compute));
  return bytes;
}

// What is brought for passes, by the name of its unit.
std::map<std::string, std::int64_t> fetched_for_passes(const Role& role, ProgramKind kind) {
  std::map<std::string, std::int64_t> bytes;
  for (const Issued& issued : role.program(kind)->instructions)
    if (const auto* move = std::get_if<Move>(&issued.instruction); move != nullptr && issued.stream == Stream::fetch)
      if (const std::string name = role.name(move->name); name.ends_with(".fetched"))
        bytes[name.substr(0, name.size() - 8)] += move->to.region.bytes;
  return bytes;
}

// What a rank gives to gathers of working copies.
std::map<std::string, std::int64_t> gathered(const Role& role, ProgramKind kind) {
  std::map<std::string, std::int64_t> bytes;
  for (const Issued& issued : role.program(kind)->instructions)
    if (const auto* one = std::get_if<Collective>(&issued.instruction);
        one != nullptr && one->kind == CollectiveKind::all_gather && issued.why.phase == Provenance::Phase::gather)
      bytes[std::string(role.name(one->name))] += one->input.region.bytes;
  return bytes;
}

}  // namespace

TEST_CASE("with parameters on disk zero3 and fsdp train to the same bits, and fetch what they gather") {
  const EnvironmentSetting one_thread("TRAINER_THREADS", "1");
  const MixedJobs jobs;
  int folder = 0;
  for (const auto& [line, more] : std::vector<std::pair<std::string, Overrides>>{
           {"llama full_shard m2 clip bf16 wrap:transformer", {}},
           {"gpt full_shard m1 clip wrap:transformer", {}},
           {"llama r4 zero3 m2 clip bf16 wrap:transformer sharded", {}},
           {"llama r2 full_shard m2 wrap:transformer", {}},
           {"gpt r2 shard_grad_op m2 bf16 wrap:transformer", {"train.optimizer.states=int8"}},
           {"packed r4 hybrid2 m2 wrap:size clip", {}},
           {"llama r2 full_shard m2 bf16 wrap:transformer", {"strategy.data.gather=int8"}},
           {"gpt r4 full_shard t2 sp m2 clip bf16 wrap:transformer", {}},
           {"llama r4 full_shard p2 1f1b m4 clip bf16 wrap:transformer", {}},
           {"llama r2 full_shard m2 norms bf16 wrap:transformer", {}},
           {"llama r4 zero3 secondary2 m2 bf16 wrap:transformer", {}},
           {"llama r2 full_shard m2 lora bf16 wrap:transformer", {}}}) {
    CAPTURE(line);
    const bool secondary = has_word(line, "secondary2");  // gathered from, after a unit's first gather of a step
    for (const std::string optimizer : {"none", "disk"}) {
      CAPTURE(optimizer);
      const Overrides off = both({"strategy.offload={parameters: disk, optimizer: " + optimizer + "}"}, more);
      const LoadedJob plain = jobs.load(line, "plain" + std::to_string(folder), more),
                      loaded = jobs.load(line, "disk" + std::to_string(folder++), off);
      const CompiledJob job = in_small_chunks(loaded), without = compiled(plain);
      check_same_bits(run(loaded, job), run(plain));
      for (int rank = 0; rank < job.plan.mesh.world_size(); ++rank) {
        const Role &role = job.plan.role_of(rank), &on_device = without.plan.role_of(rank);
        CHECK(role.disk_bytes == working_copies(role) + (optimizer == "disk" ? formula(role, true) : 0));
        CHECK(on_device.persistent_bytes - role.persistent_bytes == role.disk_bytes);
        const bool gathers = job.plan.mesh.group_size(kSliceAxes) > 1;
        for (const ProgramKind kind : {ProgramKind::step, ProgramKind::evaluate})
          if (gathers && !secondary && role.program(kind) != nullptr &&
              loaded.job.strategy.data.gather == SentAs::exact)
            CHECK(fetched_for_passes(role, kind) == gathered(on_device, kind));
        CHECK(!fetched_for_passes(role, ProgramKind::step).empty());
      }
    }
  }
}

TEST_CASE("parameters off the device need a strategy that gathers them") {
  const MixedJobs jobs;
  for (const std::string line : {"gpt ddp m1", "gpt r2 zero2 m1"}) {
    CAPTURE(line);
    try {
      in_small_chunks(jobs.load(line, "run", {"strategy.offload={parameters: disk}"}));
      FAIL("is planned");
    } catch (const JobError& error) {
      CHECK(error.diagnostics().front().path == "strategy.offload.parameters");
    }
  }
}

TEST_CASE("the proof names working copies that are not renewed off the device, or in another place") {
  const MixedJobs jobs;
  const Plan right = in_small_chunks(jobs.load("llama r2 full_shard m1 bf16 wrap:transformer", "run",
                                               {"strategy.offload={parameters: disk}"}))
                         .plan;
  REQUIRE(violations(right).empty());
  const auto stores = [](Plan& plan, ProgramKind kind) -> std::vector<std::size_t> {
    const Role& role = plan.roles[0];
    std::vector<std::size_t> at;
    const std::vector<Issued>& list = role.program(kind)->instructions;
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].stream == Stream::store) at.push_back(i);
    return at;
  };
  const auto list_of = [](Plan& plan, ProgramKind kind) -> std::vector<Issued>& {
    Role& role = plan.roles[0];
    return role.programs[static_cast<std::size_t>(role.program_index(kind))].instructions;
  };
  for (const ProgramKind kind : {ProgramKind::step, ProgramKind::refresh}) {
    CAPTURE(name_of(kind));
    const auto left_out = [&](Plan& plan) {
      list_of(plan, kind).erase(list_of(plan, kind).begin() + static_cast<long>(stores(plan, kind)[3]));
    };
    CHECK(has(refusal(right, left_out), "has not brought back working"));
    const auto elsewhere = [&](Plan& plan) {
      std::get<Move>(list_of(plan, kind)[stores(plan, kind)[3]].instruction).to.region.offset += 64;
    };
    CHECK(has(refusal(right, elsewhere), "brings to a place what is not the update of what lies there"));
  }
}
