// Activations off the device: the same bits as with them there, whatever the strategy; the device's memory does not
// grow with the blocks; the proof names what comes too early, from elsewhere or of another micro-batch.
#include <doctest/doctest.h>

#include <cctype>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "engine/core/error.h"
#include "engine/plan/verify/verify.h"
#include "tests/train/mixed_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

const Overrides kOnDisk{"strategy.offload={activations: disk}"};

struct Moves {
  std::size_t leave = 0, come = 0;
  std::int64_t left = 0, came = 0;  // bytes
};

Moves moves_of(const Role& role) {
  Moves moves;
  for (const Issued& issued : role.program(ProgramKind::step)->instructions)
    if (const auto* move = std::get_if<Move>(&issued.instruction)) {
      const bool comes = role.space_of(move->to.region) == Space::device;
      ++(comes ? moves.come : moves.leave);
      (comes ? moves.came : moves.left) += move->to.region.bytes;
    }
  return moves;
}

// Of what the backward pass reads of the forward pass all but what the last block reads there, each value once: read
// off a plan that keeps everything on the device, by the nodes that its launches name.
std::int64_t kept_before_last_block(const CompiledJob& job, std::int64_t least) {
  const Role& role = job.plan.roles[0];
  std::map<BufferId, std::size_t> made, last;
  std::set<BufferId> kept;
  std::size_t begin = 0;
  const std::vector<Issued>& step = role.program(ProgramKind::step)->instructions;
  // "h.3" of "h.3.attn.c_attn"; empty outside of blocks.
  const auto block = [&](const Issued& one) -> std::string {
    const auto* launch = std::get_if<Launch>(&one.instruction);
    const std::string name = launch == nullptr ? "" : role.name(launch->name);
    const std::size_t dot = name.find('.'), end = name.find('.', dot + 1);
    const bool numbered = dot != std::string::npos && end != std::string::npos && std::isdigit(name[dot + 1]) != 0;
    return numbered ? name.substr(0, end) : "";
  };
  std::string latest;
  for (std::size_t i = 0; i < step.size(); ++i) {
    if (step[i].why.micro_batch != 0) continue;
    const bool forward = step[i].why.phase == Provenance::Phase::forward;
    if (const std::string name = block(step[i]); forward && !name.empty() && name != latest) latest = name, begin = i;
    for_each_access(step[i].instruction, [&](Access access, const Region& region) {
      const Buffer& buffer = role.buffer(region.buffer);
      if (buffer.micro_batch != 0 || buffer.category != Category::activations) return;
      if (forward) {
        if (access == Access::write) made.try_emplace(region.buffer, i);
        last[region.buffer] = i;
      } else if (access != Access::write && made.contains(region.buffer)) {
        kept.insert(region.buffer);
      }
    });
  }
  std::int64_t bytes = 0;
  for (const BufferId id : kept)
    if (last.at(id) < begin && role.buffer(id).bytes >= least) bytes += aligned(role.buffer(id).bytes);
  return bytes;
}

std::string refusal(const Plan& right, const std::function<void(std::vector<Issued>&)>& spoil, bool order = true) {
  Plan plan = right;
  Role& role = plan.roles[0];
  spoil(role.programs[static_cast<std::size_t>(role.program_index(ProgramKind::step))].instructions);
  if (order) derive_order(role, plan.mesh);
  std::string text;
  for (const std::string& one : violations(plan)) text += one + "\n";
  return text;
}

}  // namespace

TEST_CASE("with activations on disk every strategy trains to the same bits, in the memory of its plan") {
  const EnvironmentSetting one_thread("TRAINER_THREADS", "1");
  const MixedJobs jobs;
  int folder = 0;
  for (const auto& [line, more] : std::vector<std::pair<std::string, Overrides>>{
           {"gpt ddp m1 clip", {}},
           {"llama ddp m4 clip bf16", {}},
           {"gpt r2 ddp m2 drop", {}},
           {"llama r2 ddp m2 full", {}},
           {"gpt r2 zero1 m2 selective", {}},
           {"packed r4 zero2 m2 clip bf16", {}},
           {"llama r4 full_shard m2 clip bf16 every_2", {}},
           {"gpt r4 zero1 t2 sp m2 clip bf16", {}},
           {"llama r4 zero1 c2 m2", {}},
           {"gpt r2 ddp m2", {"strategy.data={kind: local_sgd, every: 5}", "strategy.offload={activations: disk}"}},
           {"llama r2 full_shard m2 lora bf16", {}},
           {"llama ddp m1 bf16", {"strategy.offload={activations: disk, optimizer: disk, gradients: disk}"}}}) {
    CAPTURE(line);
    Overrides without = more;
    std::erase_if(without, [](const std::string& one) { return one.starts_with("strategy.offload"); });
    const LoadedJob plain = jobs.load(line, "plain" + std::to_string(folder), without),
                    loaded = jobs.load(line, "disk" + std::to_string(folder++), more.empty() ? kOnDisk : more);
    const CompiledJob job = compiled(loaded);
    CHECK(violations(job.plan).empty());
    const Trained want = run(plain), got = run(loaded, job);
    CHECK(got.loss == want.loss);
    if (more.empty()) CHECK(got.grad_norm == want.grad_norm);
    CHECK(largest_difference(tensors_of(got.report.checkpoint), tensors_of(want.report.checkpoint)) == 0);
    for (int rank = 0; rank < job.plan.mesh.world_size(); ++rank) {
      const Role& role = job.plan.role_of(rank);
      const RankReport& told = got.report.ranks[static_cast<std::size_t>(rank)];
      CHECK(told.allocated_bytes == told.planned_bytes);
      CHECK(told.planned_bytes == role.total_bytes);
      CHECK(told.allocated_offload_bytes == role.disk_bytes);
      if (!more.empty()) continue;
      const Moves moves = moves_of(role);
      CHECK(moves.leave > 0);
      CHECK(moves.leave == moves.come);
      CHECK(moves.left == moves.came);
    }
  }
}

TEST_CASE(
    "what leaves is what the backward pass needs of all blocks but the last, and the device does not grow with them") {
  const MixedJobs jobs;
  const auto of_layers = [&](int layers, const Overrides& more) {
    return compiled(jobs.load("gpt ddp m1", "run", both({"model.with.layers=" + std::to_string(layers)}, more)));
  };
  std::map<int, std::int64_t> on_disk, activations, plain;
  for (const int layers : {6, 8, 10}) {
    const CompiledJob all = of_layers(layers, {}), job = of_layers(layers, kOnDisk);
    const Role& role = job.plan.roles[0];
    CHECK(role.disk_bytes == kept_before_last_block(all, kBufferAlignment));
    on_disk[layers] = role.disk_bytes;
    activations[layers] = role.total_bytes - role.persistent_bytes;
    plain[layers] = all.plan.roles[0].total_bytes - all.plan.roles[0].persistent_bytes;
  }
  CHECK(on_disk[10] - on_disk[8] == on_disk[8] - on_disk[6]);
  CHECK(plain[10] - plain[6] >= on_disk[10] - on_disk[6]);
  CHECK(activations[10] - activations[6] < (plain[10] - plain[6]) / 8);
  CHECK(activations[8] < plain[8] / 2);
}

TEST_CASE("activations off the device go with no pipeline") {
  const MixedJobs jobs;
  for (const char* line : {"gpt r2 ddp p2 1f1b m4", "llama r4 ddp p2 gpipe m4"}) {
    std::string path;
    try {
      compiled(jobs.load(line, "run", kOnDisk));
    } catch (const JobError& error) {
      path = error.diagnostics().front().path;
    }
    CHECK(path == "strategy.offload.activations");
  }
}

TEST_CASE("the proof names activations that are not here, of another value, or of a micro-batch before") {
  const MixedJobs jobs;
  const Plan right = compiled(jobs.load("llama ddp m4", "run", both(kOnDisk, {"strategy.wrap=none"}))).plan;
  REQUIRE(violations(right).empty());
  REQUIRE(print(parse_plan(print(right))) == print(right));
  const Role& role = right.roles[0];
  const std::vector<Issued>& step = role.program(ProgramKind::step)->instructions;
  std::vector<std::size_t> leave, come;
  for (std::size_t i = 0; i < step.size(); ++i)
    if (const auto* move = std::get_if<Move>(&step[i].instruction))
      (role.space_of(move->to.region) == Space::device ? come : leave).push_back(i);
  REQUIRE(come.size() > 8);
  std::size_t spoiled = 0;
  for (const auto& moves : {leave, come})
    for (std::size_t n = 0; n < moves.size(); n += 3, ++spoiled) {
      CAPTURE(moves[n]);
      CHECK(!refusal(right, [&](std::vector<Issued>& plan) {
               plan.erase(plan.begin() + static_cast<long>(moves[n]));
             }).empty());
      // From the place of another value of the same size.
      CHECK(!refusal(right, [&](std::vector<Issued>& plan) {
               auto& mine = std::get<Move>(plan[moves[n]].instruction);
               for (const std::size_t other : moves) {
                 const auto& theirs = std::get<Move>(plan[other].instruction);
                 const bool comes = role.space_of(mine.to.region) == Space::device;
                 Region& home = comes ? mine.from.region : mine.to.region;
                 const Region& elsewhere = comes ? theirs.from.region : theirs.to.region;
                 if (home == elsewhere || home.bytes != elsewhere.bytes) continue;
                 home = elsewhere;
                 return;
               }
               plan.erase(plan.begin() + static_cast<long>(moves[n]));
             }).empty());
    }
  CHECK(spoiled > 10);
  for (const Stream stream : {Stream::fetch, Stream::store})
    CHECK(!refusal(
               right,
               [&](std::vector<Issued>& plan) {
                 for (Issued& one : plan) one.after[static_cast<std::size_t>(stream)] = -1;
               },
               false)
               .empty());
}
