// Profiles of repeated blocks against those of whole models, and scores, sketches and least bytes against plans.
#include <doctest/doctest.h>
#include <algorithm>
#include <string>
#include "engine/compile/advise.h"
#include "engine/compile/fixed.h"
#include "engine/compile/hardware.h"
#include "engine/compile/profile_cache.h"
#include "engine/compile/repeated.h"
#include "engine/compile/trained.h"
#include "engine/cost/predict.h"
#include "engine/cost/score.h"
#include "engine/cost/sketch.h"
#include "strategies/pipeline/chunks.h"
#include "tests/cost/search_case.h"

namespace trainer {

using namespace tests;

namespace {

void check_same_profiles(const cost::Profile& one, const cost::Profile& other) {
  REQUIRE(one.pieces.size() == other.pieces.size());
  CHECK(one.input_bytes == other.input_bytes);
  for (std::size_t i = 0; i < one.pieces.size(); ++i) {
    CAPTURE(i);
    const cost::Piece &a = one.pieces[i], &b = other.pieces[i];
    for (double cost::Piece::*us : {&cost::Piece::forward_us, &cost::Piece::input_us, &cost::Piece::weight_us,
                                    &cost::Piece::adding_us, &cost::Piece::network_us, &cost::Piece::network_forward_us,
                                    &cost::Piece::network_again_us, &cost::Piece::recompute_us})
      CHECK(a.*us == doctest::Approx(b.*us).epsilon(1e-12));
    for (std::int64_t cost::Piece::*bytes :
         {&cost::Piece::saved_bytes, &cost::Piece::freed_bytes, &cost::Piece::handed_bytes,
          &cost::Piece::transient_bytes, &cost::Piece::boundary_bytes, &cost::Piece::parameters, &cost::Piece::trained,
          &cost::Piece::own_parameters, &cost::Piece::own_trained})
      CHECK(a.*bytes == b.*bytes);
  }
}

// Of repeated blocks looked at once, and of the whole model, in every way to recompute.
void check_profiles(const LoadedJob& loaded, const Mesh& mesh, bool sequence, ProfileCache& few, ProfileCache& whole,
                    ContextKind context = ContextKind::gather) {
  CAPTURE(loaded.file);
  for (const CheckpointingMode mode :
       {CheckpointingMode::none, CheckpointingMode::selective, CheckpointingMode::full, CheckpointingMode::every_n})
    for (const bool again : {false, true}) {
      cost::Candidate c;
      c.mesh = mesh;
      c.sequence_parallel = sequence;
      c.gathers_again = again;
      c.context = context;
      c.recompute = {mode, 2};
      c.micro = 2;
      const cost::Profile *one = few.profile(c), *other = whole.profile(c);
      REQUIRE((one == nullptr) == (other == nullptr));
      if (one != nullptr) check_same_profiles(*one, *other);
    }
}

}  // namespace

TEST_CASE("profiles of a few blocks are those of the whole model") {
  static const PlainTarget target;
  const Hardware hardware{
      .target = &target, .memory_bytes = (std::int64_t{600} << 30), .machine = &h100(), .ranks_per_node = 8};
  const auto with = [](const std::string& graph, const std::string& more) {
    return "{graph: models/" + graph + ".yaml, with: {layers: 9, heads: 8, dim: 512, vocab: 1024" + more + "}}";
  };
  for (const std::string& model :
       {with("gpt2", ", context: 2048, dropout: 0.1"), with("llama", ", kv_heads: 4, hidden: 1408")})
    for (const char* trained : {"", "trainable: [\"*.8.*\", \"*.4.*\"]\n"}) {
      CAPTURE(model);
      CAPTURE(std::string(trained));
      const LoadedJob loaded = job_of(model, 1, "{global: 64, micro: 1}", std::string("strategy: auto\n") + trained);
      ProfileCache few(loaded, hardware), whole(loaded, hardware, true);
      for (const int tensor : {1, 4})
        for (const int context : {1, 2})
          for (const bool sequence : {false, true})
            for (const ContextKind kind : {ContextKind::gather, ContextKind::ring})
              check_profiles(loaded, {{Axis::context, context}, {Axis::tensor, tensor}}, sequence && tensor > 1, few,
                             whole, kind);
    }
}

TEST_CASE("so are those of models whose blocks take turns") {
  static const PlainTarget target;
  const Hardware hardware{
      .target = &target, .memory_bytes = (std::int64_t{600} << 30), .machine = &h100(), .ranks_per_node = 8};
  LoadOptions options;
  options.configs_dir = kConfigs;
  const std::string folder = std::string(TRAINER_SOURCE_DIR) + "/tests/job/published/";
  for (const char* model : {"gemma-2-2b", "gemma-3-1b"}) {  // windows in every second block, and in five of six
    LoadedJob loaded = load_job(folder + model, {"cluster.nodes=1", "cluster.devices_per_node=8"}, options);
    ProfileCache few(loaded, hardware), whole(loaded, hardware, true);
    check_profiles(loaded, {}, false, few, whole);
    check_profiles(loaded, {{Axis::tensor, 2}}, true, few, whole);
    const Graph graph = whole_graph(loaded);
    const std::vector<std::string> begins = strategies::piece_begins(graph);
    const std::vector<int> like = stand_ins_of(graph, begins);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < begins.size(); ++i) kept += like[i] == static_cast<int>(i);
    CHECK(kept < begins.size() * 3 / 4);
  }
}

TEST_CASE("so are those of mixtures of experts, whose routers have states") {
  static const PlainTarget target;
  const Hardware hardware{
      .target = &target, .memory_bytes = (std::int64_t{600} << 30), .machine = &h100(), .ranks_per_node = 8};
  for (const char* routers : {"router_aux: 0.01, router_z: 0.001", "router_balance: bias, router_score: sigmoid",
                              "router_balance: bias, router_aux: 0.01, expert_capacity: 1.5"}) {
    CAPTURE(std::string(routers));
    const LoadedJob loaded = job_of(std::string("{graph: models/decoder.yaml, with: {layers: 11, heads: 8, kv_heads: "
                                                "4, head_dim: 64, dim: 512, hidden: 1408, vocab: 1024, sparse: "
                                                "[false, false, true, true, true, true, true, true, true, true, true], "
                                                "experts: 8, top_k: 2, expert_hidden: 256, shared_hidden: 256, ") +
                                        routers + "}}",
                                    1, "{global: 64, micro: 1}", "strategy: auto\n");
    ProfileCache few(loaded, hardware), whole(loaded, hardware, true);
    for (const int expert : {1, 4})
      for (const int tensor : {1, 2})
        check_profiles(loaded, {{Axis::expert, expert}, {Axis::tensor, tensor}}, false, few, whole);
    if (loaded.job.model.with.contains("router_score"))  // neither losses nor capacities of whole samples
      for (const int expert : {1, 4}) {
        check_profiles(loaded, {{Axis::expert, expert}, {Axis::context, 2}}, false, few, whole);
        check_profiles(loaded, {{Axis::expert, expert}, {Axis::tensor, 2}}, true, few, whole);
      }
    const Graph graph = whole_graph(loaded);
    const std::vector<int> like = stand_ins_of(graph, strategies::piece_begins(graph));
    CHECK(like == std::vector<int>{0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 10, 11, 12});
  }
}

namespace {

struct Row {
  std::string strategy, mode;
  cost::Candidate candidate;
};

// One of each way to spread a job over eight ranks.
std::vector<Row> ways_over_eight() {
  const auto data = [](DataKind kind, Sharding sharding, int replicate, int shard) {
    cost::Candidate c;
    c.kind = kind;
    c.sharding = sharding;
    c.mesh.set(Axis::replicate, replicate);
    c.mesh.set(Axis::shard, shard);
    return c;
  };
  const auto staged = [&](PipelineSchedule schedule, int virtual_stages) {
    cost::Candidate c = data(DataKind::ddp, Sharding::full_shard, 2, 1);
    c.mesh.set(Axis::pipeline, 4);
    c.schedule = schedule;
    c.virtual_stages = virtual_stages;
    return c;
  };
  cost::Candidate cut = data(DataKind::ddp, Sharding::full_shard, 4, 1);
  cut.mesh.set(Axis::tensor, 2);
  cut.sequence_parallel = true;
  cost::Candidate shards = cut, sharing = data(DataKind::fsdp, Sharding::full_shard, 2, 4);
  shards.gathers_again = true;
  sharing.secondary = true;
  cost::Candidate in_parts = data(DataKind::zero1, Sharding::full_shard, 1, 4);
  in_parts.mesh.set(Axis::context, 2);
  cost::Candidate in_ring = in_parts;
  in_ring.context = ContextKind::ring;
  const auto pair = [&](int data_ranks, int tensor, bool sequence, int stages) {
    cost::Candidate c = data(DataKind::zero1, Sharding::full_shard, 1, data_ranks);
    c.mesh.set(Axis::tensor, tensor);
    c.mesh.set(Axis::pipeline, stages);
    c.sequence_parallel = sequence;
    c.pairs = true;
    return c;
  };
  const auto pipeline = [](const std::string& rest) {
    return "{data: {kind: ddp}, pipeline: {degree: 4, " + rest + "}}";
  };
  return {
      {"{data: {kind: ddp}}", "none", data(DataKind::ddp, Sharding::full_shard, 8, 1)},
      {"{data: {kind: ddp}}", "full", data(DataKind::ddp, Sharding::full_shard, 8, 1)},
      {"{data: {kind: zero1}}", "selective", data(DataKind::zero1, Sharding::full_shard, 1, 8)},
      {"{data: {kind: zero2}}", "none", data(DataKind::zero2, Sharding::full_shard, 1, 8)},
      {"{data: {kind: fsdp}}", "none", data(DataKind::fsdp, Sharding::full_shard, 1, 8)},
      {"{data: {kind: fsdp, gather: int8, reduce_dtype: int8}}", "none",
       data(DataKind::fsdp, Sharding::full_shard, 1, 8)},
      {"{data: {kind: fsdp, sharding: shard_grad_op}}", "none", data(DataKind::fsdp, Sharding::shard_grad_op, 1, 8)},
      {"{data: {kind: ddp}, tensor: {degree: 2, sequence_parallel: true}}", "none", cut},
      {"{data: {kind: ddp}, tensor: {degree: 2, sequence_parallel: true, keep: shard}}", "none", shards},
      {"{data: {kind: zero1}, tensor: {degree: 2, sequence_parallel: true, overlap: true}}", "none",
       pair(4, 2, true, 1)},
      {"{data: {kind: zero1}, tensor: {degree: 8, overlap: true}}", "none", pair(1, 8, false, 1)},
      {"{data: {kind: zero1}, tensor: {degree: 8, sequence_parallel: true, overlap: true}}", "full",
       pair(1, 8, true, 1)},
      {"{data: {kind: zero1}, tensor: {degree: 4, sequence_parallel: true, overlap: true}, pipeline: {degree: 2}}",
       "selective", pair(1, 4, true, 2)},
      {"{data: {kind: fsdp, secondary: 4}}", "none", sharing},
      {"{data: {kind: zero1}, context: {degree: 2}}", "none", in_parts},
      {"{data: {kind: zero1}, context: {degree: 2, kind: ring}}", "selective", in_ring},
      {"{data: {kind: zero3, secondary: 4, gather: int8}}", "selective", sharing},
      {pipeline("schedule: 1f1b"), "none", staged(PipelineSchedule::one_f_one_b, 1)},
      {pipeline("schedule: interleaved, virtual_stages: 2"), "none", staged(PipelineSchedule::interleaved, 2)},
      {pipeline("schedule: zb_h1"), "none", staged(PipelineSchedule::zb_h1, 1)},
      {pipeline("schedule: zb_v"), "none", staged(PipelineSchedule::zb_v, 2)},
  };
}

const std::string kSixteenLayers =
    "{graph: models/gpt2.yaml, with: {layers: 16, heads: 16, dim: 2048, vocab: 8192, context: 2048}, init_from: "
    "base.safetensors}";

LoadedJob job_of_way(const Row& row, const std::string& rest) {
  return job_of(kSixteenLayers, 1, "{global: 64, micro: 1}",
                "strategy: " + row.strategy + "\nactivation_checkpointing: {mode: " + row.mode + "}\n" + rest);
}

}  // namespace

TEST_CASE("scores of memory and time are near those of the whole plan") {
  static const PlainTarget target;
  const Hardware hardware{
      .target = &target, .memory_bytes = (std::int64_t{600} << 30), .machine = &h100(), .ranks_per_node = 8};
  for (const char* trained : {"", "adapter: {rank: 16}\n", "trainable: [\"h.15.*\", \"*ln_*\"]\n"}) {
    for (const Row& row : ways_over_eight()) {
      CAPTURE(row.strategy);
      CAPTURE(std::string(trained));
      const LoadedJob loaded = job_of_way(row, trained);
      const CompiledJob compiled = compile_fixed(loaded, hardware, Purpose::train, Finish::unproved);
      std::int64_t bytes = 0;
      for (const MemoryReport& report : compiled.memory) bytes = std::max(bytes, report.peak_bytes);
      const double us = cost::predict(compiled.plan, cost::CostModel(cluster_of(compiled, hardware))).step_us;

      ProfileCache profiles(loaded, hardware);
      const cost::SearchSpace space{.job = &loaded.job,
                                    .machine = &h100(),
                                    .world_size = 8,
                                    .ranks_per_node = 8,
                                    .threads = 0,
                                    .limit_bytes = hardware.memory_bytes / 8};
      cost::Scorer scorer(space, profiles);
      cost::Candidate candidate = row.candidate;
      candidate.micro_batches = compiled.batch.micro_batches;
      candidate.recompute = loaded.job.activation_checkpointing;
      cost::Pipelined pipelined;
      const cost::Profile* profile = scorer.profile_of(candidate);
      REQUIRE(profile != nullptr);
      REQUIRE(scorer.pipeline(candidate, *profile, pipelined));
      const cost::Scored scored = scorer.score(candidate, *profile, pipelined);
      CHECK(static_cast<double>(scored.bytes) == doctest::Approx(static_cast<double>(bytes)).epsilon(0.15));
      CHECK(scored.step_us == doctest::Approx(us).epsilon(0.25));
    }
  }
}

TEST_CASE("a sketch takes as long as the plan") {
  static const StreamsTarget target;
  const Hardware hardware{
      .target = &target, .memory_bytes = (std::int64_t{600} << 30), .machine = &h100(), .ranks_per_node = 8};
  for (const Row& row : ways_over_eight()) {
    CAPTURE(row.strategy);
    CAPTURE(row.mode);
    const LoadedJob loaded = job_of_way(row, "");
    const CompiledJob compiled = compile_fixed(loaded, hardware, Purpose::train, Finish::unproved);
    ProfileCache profiles(loaded, hardware);
    const cost::SearchSpace space = search_space(loaded.job, hardware, 8);
    cost::Candidate candidate = row.candidate;
    candidate.micro_batches = compiled.batch.micro_batches;
    candidate.recompute = loaded.job.activation_checkpointing;
    CHECK(cost::Sketcher(space, profiles).step_us(candidate) ==
          doctest::Approx(cost::predict(compiled.plan, cost::CostModel(cluster_of(compiled, hardware))).step_us)
              .epsilon(candidate.pairs ? 0.04 : 0.03));
  }
}

// 2,048 tokens of a block of 50 million parameters keep what the link needs longer for than the block; under full
// recomputation they keep their input alone.
TEST_CASE("moves of activations count in sketches") {
  static const StreamsTarget target;
  const Hardware hardware{
      .target = &target, .memory_bytes = (std::int64_t{600} << 30), .machine = &h100(), .ranks_per_node = 8};
  cost::Candidate candidate;
  candidate.kind = DataKind::fsdp;
  candidate.mesh.set(Axis::shard, 8);
  const auto sketched = [&](const std::string& offload, const std::string& mode, double& planned) {
    const LoadedJob loaded = job_of_way({"{data: {kind: fsdp}" + offload + "}", mode, {}}, "");
    const CompiledJob compiled = compile_fixed(loaded, hardware, Purpose::train, Finish::unproved);
    planned = cost::predict(compiled.plan, cost::CostModel(cluster_of(compiled, hardware))).step_us;
    ProfileCache profiles(loaded, hardware);
    const cost::SearchSpace space = search_space(loaded.job, hardware, 8);
    candidate.micro_batches = compiled.batch.micro_batches;
    candidate.recompute = loaded.job.activation_checkpointing;
    return cost::Sketcher(space, profiles).step_us(candidate);
  };
  for (const char* mode : {"none", "full"}) {
    CAPTURE(std::string(mode));
    double planned = 0, here = 0;
    const double moved = sketched(", offload: {activations: host}", mode, planned), stays = sketched("", mode, here);
    CHECK(moved == doctest::Approx(planned).epsilon(0.05));
    CHECK((moved > 1.2 * stays) == (planned > 1.2 * here));
    CHECK((planned > 1.2 * here) == (std::string(mode) == "none"));
  }
}

TEST_CASE("a sketch waits for the slowest of all ranks, as the plan does") {
  static const StreamsTarget target;
  const Hardware hardware{
      .target = &target, .memory_bytes = (std::int64_t{6000} << 30), .machine = &h100(), .ranks_per_node = 8};
  cost::Candidate candidate;
  candidate.kind = DataKind::fsdp;
  candidate.mesh.set(Axis::shard, 2048);
  candidate.mesh.set(Axis::tensor, 2);
  candidate.sequence_parallel = true;
  candidate.micro = 64;
  const LoadedJob loaded =
      job_of(kSixteenLayers, 512, "{global: 131072, micro: 64}",
             "strategy: {data: {kind: fsdp, sharding: full_shard}, tensor: {degree: 2, sequence_parallel: true}}\n");
  const CompiledJob compiled = compile_fixed(loaded, hardware, Purpose::train, Finish::unproved);
  const double us = cost::predict(compiled.plan, cost::CostModel(cluster_of(compiled, hardware))).step_us;
  ProfileCache profiles(loaded, hardware);
  const cost::SearchSpace space = search_space(loaded.job, hardware, 8);
  CHECK(cost::Sketcher(space, profiles).step_us(candidate) == doctest::Approx(us).epsilon(0.01));
}

TEST_CASE("a pipeline is scored with the chunks that it is planned with") {
  static const PlainTarget target;
  const Hardware hardware{
      .target = &target, .memory_bytes = (std::int64_t{600} << 30), .machine = &h100(), .ranks_per_node = 8};
  for (const int micro : {1, 4}) {
    const LoadedJob loaded =
        job_of(kLlama8B, 1, "{global: 64, micro: " + std::to_string(micro) + "}",
               "strategy: {data: {kind: ddp}, pipeline: {degree: 4, schedule: interleaved, virtual_stages: 3}}\n");
    const CompiledJob compiled = compile_fixed(loaded, hardware, Purpose::train, Finish::unproved);
    ProfileCache profiles(loaded, hardware);
    std::vector<int> lengths;
    int first = 0;
    for (const PipelineChunk& chunk : compiled.chunks) {
      lengths.push_back(first);
      first += static_cast<int>(std::count_if(chunk.parts.begin(), chunk.parts.end(), [](const std::string& part) {
        return part.find_first_of("0123456789") != std::string::npos;  // a block has its number in its name
      }));
    }
    const std::vector<int>& cut = profiles.cut(12, micro * compiled.batch.data_ranks);
    REQUIRE(cut.size() == lengths.size());
    // What lies before the first block is a piece too.
    for (std::size_t i = 1; i < cut.size(); ++i) CHECK(cut[i] == lengths[i] + 1);
  }
}

TEST_CASE("what a stage needs at least is no more than its plan takes, and hardly less") {
  // A loop may cost 5 %.
  static const PlainTarget target;
  const Hardware hardware{
      .target = &target, .memory_bytes = (std::int64_t{600} << 30), .machine = &h100(), .ranks_per_node = 8};
  for (const char* pipeline : {"{degree: 4}", "{degree: 2, schedule: interleaved, virtual_stages: 2}",
                               "{degree: 4, schedule: zb_h1}", "{degree: 1}"}) {
    CAPTURE(pipeline);
    const LoadedJob loaded = job_of(kSmall, 1, "{global: 64, micro: 1}",
                                    std::string("strategy: {data: {kind: zero1}, pipeline: ") + pipeline + "}\n");
    const CompiledJob compiled = compile_fixed(loaded, hardware, Purpose::train, Finish::unproved);
    std::vector<int> all;
    for (std::size_t stage = 0; stage < compiled.memory.size(); ++stage) {
      all.push_back(static_cast<int>(stage));
      const auto least = static_cast<double>(least_bytes(loaded, hardware, {static_cast<int>(stage)}));
      const auto planned = static_cast<double>(compiled.memory[stage].peak_bytes);
      CHECK(least <= planned);
      CHECK(least >= 0.95 * planned);
    }
    CHECK(static_cast<double>(least_bytes(loaded, hardware, all)) >= 0.95 * static_cast<double>(compiled.peak_bytes()));
  }
}

}  // namespace trainer
