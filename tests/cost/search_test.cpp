// What `auto` chooses, on machines that are not here: the same with the same inputs, within what a job fixes, and never
// what does not fit.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "engine/compile/advise.h"
#include "engine/compile/compile.h"
#include "engine/compile/fit.h"
#include "engine/compile/fixed.h"
#include "engine/compile/hardware.h"
#include "engine/compile/mesh_of.h"
#include "engine/compile/model_graph.h"
#include "engine/compile/profile_cache.h"
#include "engine/compile/repeated.h"
#include "engine/compile/trained.h"
#include "engine/core/error.h"
#include "engine/cost/kinds.h"
#include "engine/cost/machine_model.h"
#include "engine/cost/predict.h"
#include "engine/cost/score.h"
#include "engine/cost/sketch.h"
#include "strategies/pipeline/chunks.h"
#include "tests/temporary.h"

namespace trainer {

using tests::message_of;

namespace {

// A device without packed weights and workspaces.
struct PlainTarget final : Target {
  Layout preferred_layout(const Signature&, int) const override { return Layout::row_major; }
  std::int64_t bytes(const TensorDesc& tensor) const override { return tensor.bytes(); }
  std::int64_t workspace_bytes(const Signature&) const override { return 0; }
};

// Communication of three kinds beside each other, as on a GPU.
struct StreamsTarget final : Target {
  Layout preferred_layout(const Signature&, int) const override { return Layout::row_major; }
  std::int64_t bytes(const TensorDesc& tensor) const override { return tensor.bytes(); }
  std::int64_t workspace_bytes(const Signature&) const override { return 0; }
  int communication_streams() const override { return 3; }
};

const std::string kConfigs = std::string(TRAINER_SOURCE_DIR) + "/configs";

const cost::MachineModel& h100() {
  static const cost::MachineModel machine = cost::load_machine(kConfigs + "/hardware/h100-sxm.yaml");
  return machine;
}

const std::string kBf16 = "precision: {compute: bf16}\n";

LoadedJob job_of(const std::string& model, int nodes, const std::string& batch, const std::string& rest,
                 const std::string& precision = kBf16) {
  const std::string text =
      "model: " + model +
      "\ndata: {format: tokens, train: [ids.bin], seq_len: 2048}\ntrain: {steps: 10, batch: " + batch + "}\n" +
      precision + "cluster: {backend: mpi, nodes: " + std::to_string(nodes) + ", devices_per_node: 8}\n" + rest;
  LoadOptions options;
  options.configs_dir = kConfigs;
  return parse_job(text, "job.yaml", {}, options);
}

CompiledJob planned(const LoadedJob& loaded, double memory_gib = 76) {
  static const PlainTarget target;
  const auto bytes = static_cast<std::int64_t>(memory_gib * (std::int64_t{1} << 30)) * 8;
  return compile(loaded, Hardware{.target = &target, .memory_bytes = bytes, .machine = &h100(), .ranks_per_node = 8},
                 Purpose::train);
}

// The same of sequences of another length.
LoadedJob of_length(std::int64_t seq_len, LoadedJob loaded) {
  loaded.job.data.seq_len = seq_len;
  return loaded;
}

const std::string kSmall =
    "{graph: models/gpt2.yaml, with: {layers: 4, heads: 8, dim: 512, vocab: 8192, context: 2048}}";
const std::string kLlama8B =
    "{graph: models/llama.yaml, with: {layers: 32, heads: 32, kv_heads: 8, dim: 4096, hidden: 14336, vocab: 128256}}";

}  // namespace

TEST_CASE("a model that fits many times over is replicated or sharded, and neither cut nor recomputed") {
  const CompiledJob compiled = planned(job_of(kSmall, 1, "{global: 64}", ""));
  CHECK(compiled.fits);
  CHECK(compiled.plan.mesh.size(Axis::tensor) == 1);
  CHECK(compiled.plan.mesh.size(Axis::pipeline) == 1);
  CHECK(compiled.recompute.mode == CheckpointingMode::none);
  CHECK(compiled.alternatives.size() > 4);
  CHECK(compiled.alternatives.front().rejected.empty());
  CHECK(std::none_of(compiled.alternatives.begin() + 1, compiled.alternatives.end(),
                     [](const Alternative& one) { return one.rejected.empty(); }));
}

TEST_CASE("the same inputs choose the same, to the words") {
  const LoadedJob loaded = job_of(kSmall, 2, "{global: 64}", "");
  const CompiledJob a = planned(loaded), b = planned(loaded);
  CHECK(hash_of(a.plan) == hash_of(b.plan));
  CHECK(a.strategy_why == b.strategy_why);
}

TEST_CASE("what a job fixes stands, and the rest is found around it") {
  const CompiledJob cut = planned(
      job_of(kSmall, 1, "{global: 64, micro: 2}", "strategy: {pipeline: {degree: 2, schedule: auto}, data: auto}\n"));
  CHECK(cut.plan.mesh.size(Axis::pipeline) == 2);
  CHECK(cut.plan.mesh.size(Axis::tensor) == 1);
  CHECK(cut.batch.micro == 2);
  const CompiledJob tensor = planned(job_of(
      kSmall, 1, "{global: 64}", "strategy: {tensor: {degree: 4, sequence_parallel: auto}, data: {kind: zero1}}\n"));
  CHECK(tensor.plan.mesh.size(Axis::tensor) == 4);
  CHECK(tensor.strategy.data.kind == DataKind::zero1);
  const CompiledJob kept = planned(job_of(kSmall, 1, "{global: 64}", "activation_checkpointing: {mode: full}\n"));
  CHECK(kept.recompute.mode == CheckpointingMode::full);
}

TEST_CASE("less memory is answered by sharding and recomputation, and every choice fits") {
  const LoadedJob loaded = job_of(kLlama8B, 1, "{global: 32}", "");
  const CompiledJob rich = planned(loaded), poor = planned(loaded, 30);
  CHECK(rich.fits);
  CHECK(poor.fits);
  for (const MemoryReport& report : poor.memory) CHECK(report.peak_bytes <= poor.limit_bytes);
  const auto peak = [](const CompiledJob& job) { return job.alternatives.front().peak_bytes; };
  CHECK(peak(poor) < peak(rich));
  CHECK(poor.alternatives.front().predicted_us >= 0.98 * rich.alternatives.front().predicted_us);
}

TEST_CASE("the goal memory takes the least, whatever the time") {
  const CompiledJob fast = planned(job_of(kSmall, 1, "{global: 64}", ""));
  LoadedJob frugal = job_of(kSmall, 1, "{global: 64}", "");
  frugal.job.goal = Goal::memory;
  const CompiledJob small = planned(frugal);
  CHECK(small.alternatives.front().peak_bytes < fast.alternatives.front().peak_bytes);
}

TEST_CASE("of a small model all that seems faster than what is chosen is planned") {
  int faster = 0;
  for (const int nodes : {1, 2, 4, 8, 16, 64}) {
    CAPTURE(nodes);
    const CompiledJob compiled = planned(job_of(kSmall, nodes, "{global: 512}", ""));
    const Alternative& chosen = compiled.alternatives.front();
    for (const Alternative& one : compiled.alternatives) {
      if (one.predicted_us >= chosen.predicted_us || one.peak_bytes > compiled.limit_bytes) continue;
      CAPTURE(one.text);
      CHECK(one.exact);
      ++faster;
    }
  }
  CHECK(faster >= 6);
}

TEST_CASE("recomputation alone may be left open") {
  const std::string rest = "strategy: {data: {kind: fsdp}}\nactivation_checkpointing: {mode: auto}\n";
  CHECK(planned(job_of(kLlama8B, 1, "{global: 8}", rest)).recompute.mode == CheckpointingMode::none);
  const CompiledJob tight = planned(job_of(kLlama8B, 1, "{global: 8}", rest), 24);
  CHECK(tight.fits);
  CHECK(tight.recompute.mode != CheckpointingMode::none);
}

TEST_CASE(
    "a job whose states alone are too large is refused before anything is planned, with how many ranks it needs") {
  const LoadedJob loaded = job_of(kLlama8B, 1, "{global: 64}", "");
  const std::string text = message_of<JobError>([&] { planned(loaded, 4); });
  // 8.03 billion parameters of 18 bytes: masters, two states and gradients in f32, a copy in bf16.
  CHECK(text.find("8.03 billion parameters need 16.8 GiB a rank") != std::string::npos);
  CHECK(text.find("a rank has 4.0 GiB; at least 34 such ranks are needed") != std::string::npos);
  CHECK(text.find("help: cluster.nodes=8: fits: ") !=
        std::string::npos);  // 5 hold the states; the search takes powers of two
}

TEST_CASE("the states of a job are a bound that no plan is below") {
  static const PlainTarget target;
  const Hardware hardware{
      .target = &target, .memory_bytes = std::int64_t{8 * 600} << 30, .machine = &h100(), .ranks_per_node = 8};
  for (const char* strategy : {"ddp", "{data: {kind: zero1}}", "{data: {kind: zero2}}", "fsdp", "tensor",
                               "{pipeline: {degree: 2}}", "{data: {kind: fsdp, sharding: shard_grad_op}}"})
    for (const char* rest : {"", "precision: {compute: bf16, reduce: bf16}\n", "precision: {compute: f32}\n"}) {
      CAPTURE(strategy);
      CAPTURE(rest);
      const LoadedJob loaded = job_of(kSmall, 1, "{global: 64, micro: 1}", "strategy: " + std::string(strategy) + "\n",
                                      *rest == 0 ? kBf16 : rest);
      const CompiledJob compiled = compile_fixed(loaded, hardware, Purpose::train, Proof::later);
      CHECK(least_states_bytes(loaded) <= compiled.peak_bytes());
      if (std::string(strategy) == "fsdp")
        CHECK(10 * least_states_bytes(loaded) >
              compiled.memory.front().by_category[static_cast<std::size_t>(Category::optimizer)]);
    }
}

TEST_CASE(
    "a frozen parameter counts with what is computed with, and room for its gradients and states is not asked for") {
  const std::string base = kLlama8B.substr(0, kLlama8B.size() - 1) + ", init_from: base.safetensors}";
  const LoadedJob whole = job_of(base, 1, "{global: 64}", ""),
                  adapter = job_of(base, 1, "{global: 64}", "adapter: {rank: 16}\n"),
                  head = job_of(base, 1, "{global: 64}", "trainable: [lm_head.weight]\n");
  // 8,030,261,248 parameters, 128256 · 4096 of them the head's; an adapter of rank 16 has 16 (in + out) for each of
  // seven linears of 32 layers.
  const std::int64_t all = 8'030'261'248, of_head = 128'256 * 4096,
                     added = 32LL * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336));
  CHECK(least_states_bytes(whole) == (all * 18 + 7) / 8);
  CHECK(least_states_bytes(adapter) == (all * 2 + added * 18 + 7) / 8);
  CHECK(least_states_bytes(head) == ((all - of_head) * 2 + of_head * 18 + 7) / 8);
  // The whole is refused where the adapter trains.
  CHECK(message_of<JobError>([&] { planned(whole, 8); }).find("the model is too large") != std::string::npos);
  const CompiledJob fitted = planned(adapter, 8);
  CHECK(fitted.fits);
  CHECK(fitted.num_parameters == all + added);
  CHECK(fitted.num_trained == added);
  CHECK(message_of<JobError>([&] { planned(adapter, 1); }).find("and 8.03 billion frozen ones (2 bytes each)") !=
        std::string::npos);
}

TEST_CASE("where nothing fits, what lacks least is planned, and the nearest changes are named") {
  const LoadedJob loaded = of_length(4096, job_of(kLlama8B, 1, "{global: 64}", ""));
  const CompiledJob compiled = planned(loaded, 17);
  CHECK_FALSE(compiled.fits);
  REQUIRE(compiled.would_fit.size() == 1);
  CHECK(compiled.would_fit.front().overrides == std::vector<std::string>{"cluster.nodes=2"});
  CHECK(compiled.alternatives.front().rejected.empty());
  const Diagnostic mistake = does_not_fit(loaded, compiled);
  CHECK(mistake.message.find(" GiB a rank, and there are 17.0 GiB: ") != std::string::npos);
  CHECK(mistake.message.find("most of it is ") != std::string::npos);
  REQUIRE(mistake.remedies.size() == 1);
  CHECK(mistake.remedies.front().starts_with("cluster.nodes=2: fits: "));
}

TEST_CASE(
    "more devices are proposed by the node, before more nodes, and never a pipeline with fewer micro-batches than "
    "stages") {
  LoadedJob loaded = job_of(kLlama8B, 1, "{global: 1}", "");
  loaded.job.cluster.devices_per_node = 1;
  static const PlainTarget target;
  const auto bytes = static_cast<std::int64_t>(22.6 * (std::int64_t{1} << 30));
  const Hardware hardware{
      .target = &target, .memory_bytes = bytes, .machine = &h100(), .ranks_per_node = 1, .device_bytes = bytes};
  const std::string told = message_of<JobError>([&] { compile(loaded, hardware, Purpose::train); });
  CHECK(told.find("at least 6 such ranks are needed") != std::string::npos);
  CHECK(told.find("help: cluster.devices_per_node=8: fits: tensor 8") != std::string::npos);
  CHECK(told.find("pipeline") == std::string::npos);
}

TEST_CASE("a fixed strategy that does not fit is told what of it to change") {
  const CompiledJob compiled = planned(job_of(kLlama8B, 1, "{global: 64, micro: 8}", "strategy: ddp\n"));
  CHECK_FALSE(compiled.fits);
  const auto told = [&](const std::string& what) {
    return std::any_of(compiled.would_fit.begin(), compiled.would_fit.end(),
                       [&](const Suggestion& one) { return one.overrides.front() == what; });
  };
  CHECK(told("strategy=auto"));
  CHECK_FALSE(told("activation_checkpointing.mode=auto"));  // 16 bytes a parameter are too many for one device
}

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
          &cost::Piece::own_parameters, &cost::Piece::own_trained, &cost::Piece::packed_bytes})
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

// Of 64 experts of a layer a token goes to two: on many nodes it is cheaper to take few tokens to experts than to
// gather what experts have, or to sum it up. On one node, with small experts, it is not. One head of keys: no tensor
// axis.
TEST_CASE("experts are spread over ranks where that is faster, and the reasons say so") {
  const auto chosen = [](int experts, int hidden, int nodes, const std::string& strategy) {
    const std::string model =
        "{graph: models/decoder.yaml, with: {layers: 24, heads: 16, kv_heads: 1, head_dim: 128, dim: 2048, hidden: "
        "4096, vocab: 32000, sparse: true, experts: " +
        std::to_string(experts) + ", top_k: 2, expert_hidden: " + std::to_string(hidden) + "}}";
    return planned(job_of(model, nodes, "{global: 64}", "strategy: " + strategy + "\n"));
  };
  const CompiledJob spread = chosen(64, 4096, 8, "auto");
  const int degree = spread.plan.mesh.size(Axis::expert);
  CHECK(spread.fits);
  CHECK(degree > 1);
  CHECK(spread.strategy_why.find("expert " + std::to_string(degree)) != std::string::npos);
  const CompiledJob without = chosen(64, 4096, 8, "{data: auto, pipeline: auto}");
  CHECK(without.plan.mesh.size(Axis::expert) == 1);
  CHECK(without.alternatives.front().predicted_us > 1.05 * spread.alternatives.front().predicted_us);
  const CompiledJob whole = chosen(8, 1024, 1, "auto");
  CHECK(whole.fits);
  CHECK(whole.plan.mesh.size(Axis::expert) == 1);
  CHECK(whole.strategy_why.find("expert") == std::string::npos);
  for (const Alternative& one : whole.alternatives)
    CHECK((one.mesh.size(Axis::expert) == 1 || one.rejected.find("slower") != std::string::npos));
}

// A sequence is cut over so many ranks that the batch is enough for all of them.
TEST_CASE("parts of a long sequence may lie on several nodes") {
  const LoadedJob loaded =
      load_job(std::string(TRAINER_SOURCE_DIR) + "/tests/job/published/llama-3.1-8b",
               {"cluster.nodes=4", "cluster.devices_per_node=8", "data.seq_len=262144", "train.batch.global=1"},
               {.configs_dir = kConfigs});
  const CompiledJob compiled = planned(loaded);
  CHECK(compiled.fits);
  CHECK(compiled.plan.mesh.size(Axis::context) * compiled.plan.mesh.size(Axis::tensor) > 8);
}

// A router has states: a bias, what its experts were chosen for, sums that all routers share.
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

// Of tensor 8 over a node, in memory between what both ways to keep need.
TEST_CASE("sequence parallelism keeps shards where what it gathers does not fit") {
  const auto strategy = [](const std::string& keep) {
    return "strategy: {data: {kind: zero1}, tensor: {degree: 8, sequence_parallel: true" + keep + "}}\n";
  };
  const auto gib = [](const CompiledJob& job) { return static_cast<double>(job.peak_bytes()) / (1 << 30); };
  const auto compiled = [&](const std::string& keep, double memory) {
    return planned(job_of(kLlama8B, 1, "{global: 4, micro: 4}", strategy(keep)), memory);
  };
  const CompiledJob gathered = compiled(", keep: gathered", 76), shard = compiled(", keep: shard", 76);
  REQUIRE(gib(shard) < 0.95 * gib(gathered));
  const double between = (gib(shard) + gib(gathered)) / 2;
  CHECK(compiled("", 76).strategy.tensor.keep == TensorKeep::gathered);
  CHECK(hash_of(compiled("", 76).plan) == hash_of(gathered.plan));
  const CompiledJob tight = compiled("", between);
  CHECK(tight.fits);
  CHECK(tight.strategy.tensor.keep == TensorKeep::shard);
  CHECK(tight.strategy_why.find("strategy.tensor.keep is shard") != std::string::npos);
  CHECK(hash_of(tight.plan) == hash_of(shard.plan));
  const CompiledJob fixed = compiled(", keep: gathered", between);
  CHECK_FALSE(fixed.fits);
  CHECK(std::ranges::any_of(fixed.would_fit, [](const Suggestion& one) {
    return one.overrides == std::vector<std::string>{"strategy.tensor.keep=auto"};
  }));
}

TEST_CASE("where a job leaves it open, keeping shards is a choice of its own, and is named") {
  const std::string rest = "strategy: {data: auto, tensor: {degree: 8, sequence_parallel: true}}\n";
  const LoadedJob loaded = job_of(kLlama8B, 1, "{global: 4, micro: 4}", rest);
  const auto chosen = [&](double memory) { return planned(loaded, memory); };
  const CompiledJob ample = chosen(76);
  CHECK(ample.strategy.tensor.keep == TensorKeep::gathered);
  CHECK(ample.strategy_why.find("keep: shard") == std::string::npos);
  const CompiledJob tight = chosen(static_cast<double>(ample.peak_bytes()) / (1 << 30) * 0.97);
  CHECK(tight.fits);
  CHECK(tight.strategy.tensor.keep == TensorKeep::shard);
  CHECK(tight.strategy_why.find("with sequence parallel (keep: shard)") != std::string::npos);
  LoadedJob asked = job_of(kLlama8B, 1, "{global: 4, micro: 4}",
                           "strategy: {data: auto, tensor: {degree: 8, sequence_parallel: true, keep: gathered}}\n");
  for (const Alternative& one : planned(asked).alternatives) CHECK(one.text.find("keep: shard") == std::string::npos);
}

// Two samples leave nothing but cutting layers to eight ranks.
TEST_CASE("pairs of micro-batches are looked at where layers are cut, and chosen where what they hide is much") {
  const auto chosen = [](const std::string& strategy) {
    return planned(of_length(8192, job_of(kLlama8B, 1, "{global: 2, micro: 1}", strategy)));
  };
  const CompiledJob pairs = chosen("strategy: auto\n");
  REQUIRE(pairs.plan.mesh.size(Axis::tensor) == 8);
  CHECK(pairs.strategy.tensor.overlap);
  CHECK(pairs.strategy_why.find("(overlap)") != std::string::npos);
  // A degree that the job names goes alone, unless it says so.
  const CompiledJob alone = chosen("strategy: {data: auto, tensor: {degree: 8, sequence_parallel: auto}}\n");
  CHECK_FALSE(alone.strategy.tensor.overlap);
  for (const Alternative& one : alone.alternatives) CHECK(one.text.find("(overlap)") == std::string::npos);
  CHECK(pairs.alternatives.front().predicted_us < 0.85 * alone.alternatives.front().predicted_us);
  const CompiledJob asked =
      chosen("strategy: {data: auto, tensor: {degree: 8, sequence_parallel: true, overlap: true}}\n");
  CHECK(asked.strategy.tensor.overlap);
  for (const Alternative& one : asked.alternatives) CHECK(one.text.find("(overlap)") != std::string::npos);
}

// The last of the ranks that gather has nearly twice the mean's attention, which is most of such a step.
TEST_CASE("rings are looked at beside gathers, and chosen where attention is most of a step") {
  const auto chosen = [](const std::string& strategy) {
    return planned(of_length(524288, job_of(kLlama8B, 2, "{global: 2}", strategy)));
  };
  const CompiledJob ring = chosen("strategy: auto\n");
  REQUIRE(ring.plan.mesh.size(Axis::context) > 1);
  CHECK(ring.strategy.context.kind == ContextKind::ring);
  CHECK(ring.strategy_why.find("(ring)") != std::string::npos);
  const std::string degree = std::to_string(ring.plan.mesh.size(Axis::context));
  const CompiledJob gather =
      chosen("strategy: {data: auto, tensor: {degree: auto}, context: {degree: " + degree + ", kind: gather}}\n");
  CHECK(gather.strategy.context.kind == ContextKind::gather);
  for (const Alternative& one : gather.alternatives) CHECK(one.text.find("(ring)") == std::string::npos);
  CHECK(ring.alternatives.front().predicted_us < 0.9 * gather.alternatives.front().predicted_us);
}

TEST_CASE("copies of weights in each node are looked at where gathers cross nodes") {
  const auto copied = [](int nodes, const std::string& strategy, int pipeline) {
    const LoadedJob loaded = job_of(kLlama8B, nodes, "{global: 64}", strategy);
    const cost::SearchSpace space{.job = &loaded.job, .machine = &h100(), .world_size = 8 * nodes, .ranks_per_node = 8};
    cost::Candidate c;
    c.mesh.set(Axis::tensor, 2);
    c.mesh.set(Axis::pipeline, pipeline);
    std::string refused;
    std::vector<cost::Candidate> all = cost::kinds_over(space, c, 4 * nodes / pipeline, refused);
    std::erase_if(all, [](const cost::Candidate& one) { return !one.secondary; });
    for (const cost::Candidate& one : all) {
      CHECK(one.slices() == 4 * nodes);
      CHECK(cost::text_of(one).find("a secondary copy over 4") != std::string::npos);
      LoadedJob fixed = loaded;
      fixed.job.strategy.free = {};
      fixed.job.strategy.tensor.degree = 2;
      fixed.job.strategy.data = cost::data_strategy_of(loaded.job.strategy.data, one);
      CHECK(mesh_of(fixed) == one.mesh);
    }
    return all.size();
  };
  CHECK(copied(2, "", 1) == 1);
  CHECK(copied(1, "", 1) == 0);
  CHECK(copied(2, "", 2) == 0);
  CHECK(copied(4, "strategy: {data: {kind: zero3, secondary: node}, tensor: {degree: auto}}\n", 1) == 1);
  CHECK(copied(4, "strategy: {data: {kind: zero3}, tensor: {degree: auto}}\n", 1) == 0);
}

TEST_CASE("scores of memory and time are near those of the whole plan") {
  static const PlainTarget target;
  const Hardware hardware{
      .target = &target, .memory_bytes = (std::int64_t{600} << 30), .machine = &h100(), .ranks_per_node = 8};
  for (const char* trained : {"", "adapter: {rank: 16}\n", "trainable: [\"h.15.*\", \"*ln_*\"]\n"}) {
    for (const Row& row : ways_over_eight()) {
      CAPTURE(row.strategy);
      CAPTURE(std::string(trained));
      const LoadedJob loaded = job_of_way(row, trained);
      const CompiledJob compiled = compile_fixed(loaded, hardware, Purpose::train, Proof::later);
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
    const CompiledJob compiled = compile_fixed(loaded, hardware, Purpose::train, Proof::later);
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
  const CompiledJob compiled = compile_fixed(loaded, hardware, Purpose::train, Proof::later);
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
    const CompiledJob compiled = compile_fixed(loaded, hardware, Purpose::train, Proof::later);
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
    const CompiledJob compiled = compile_fixed(loaded, hardware, Purpose::train, Proof::later);
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

TEST_CASE("where the fastest turns out not to fit, what fits is found among those that need less memory") {
  // A limit just below what the choice takes: it is predicted to fit, or nearly so, again and again.
  const LoadedJob loaded = job_of(kLlama8B, 1, "{global: 32}", "");
  double gib = 40;
  for (int round = 0; round < 3; ++round) {
    const CompiledJob chosen = planned(loaded, gib);
    REQUIRE(chosen.fits);
    const double taken = static_cast<double>(chosen.peak_bytes()) / (std::int64_t{1} << 30);
    CHECK(taken <= gib);
    gib = taken - 0.02;
  }
}

TEST_CASE("what needs the least memory is found however slow it is") {
  static const PlainTarget target;
  const Hardware hardware{
      .target = &target, .memory_bytes = (std::int64_t{600} << 30), .machine = &h100(), .ranks_per_node = 8};
  const LoadedJob loaded = job_of(kLlama8B, 1, "{global: 32}", "");
  ProfileCache profiles(loaded, hardware);
  const cost::SearchSpace space = search_space(loaded.job, hardware, 8);
  const std::vector<cost::Scored> frugal = cost::frugal(space, profiles);
  REQUIRE_FALSE(frugal.empty());
  CHECK(std::is_sorted(frugal.begin(), frugal.end(),
                       [](const cost::Scored& a, const cost::Scored& b) { return a.bytes < b.bytes; }));
  for (const cost::Scored& one : cost::search(space, profiles).scored) CHECK(frugal.front().bytes <= one.bytes);
}

TEST_CASE("a search for the least memory leaves out nothing for being slow") {
  static const PlainTarget target;
  const Hardware hardware{
      .target = &target, .memory_bytes = (std::int64_t{600} << 30), .machine = &h100(), .ranks_per_node = 8};
  for (const int nodes : {1, 8}) {
    LoadedJob loaded = job_of(kLlama8B, nodes, "{global: 64}", "");
    loaded.job.goal = Goal::memory;
    ProfileCache profiles(loaded, hardware);
    const cost::SearchSpace space = search_space(loaded.job, hardware, 8 * nodes);
    const std::vector<cost::Scored> frugal = cost::frugal(space, profiles);
    REQUIRE_FALSE(frugal.empty());
    CHECK(cost::search(space, profiles).scored.front().bytes <= frugal.front().bytes);
  }
}

TEST_CASE("what would be faster is said: a batch that divides, the micro-batch left open, a padded vocabulary") {
  static const PlainTarget target;
  const auto bytes = std::int64_t{76} << 30;
  const auto advice = [&](const LoadedJob& loaded, int ranks) {
    const Hardware hardware{
        .target = &target, .memory_bytes = bytes, .machine = &h100(), .ranks_per_node = ranks, .device_bytes = bytes};
    const CompiledJob compiled = compile(loaded, hardware, Purpose::train);
    return advise(loaded, hardware, compiled,
                  cost::predict(compiled.plan, cost::CostModel(cluster_of(compiled, hardware))).step_us);
  };
  const auto of = [](const std::string& model, const std::string& batch, int ranks) {
    LoadedJob loaded = job_of(model, 1, batch, "");
    loaded.job.cluster.devices_per_node = ranks;
    return loaded;
  };
  CHECK(advice(of(kSmall, "{global: 96}", 3), 3).empty());
  CHECK(advice(of(kSmall, "{global: 2}", 3), 3).empty());  // 3 samples would be another training

  const auto divisible = advice(of(kSmall, "{global: 100}", 3), 3);
  REQUIRE(divisible.size() == 1);
  CHECK(divisible.front().overrides == std::vector<std::string>{"train.batch.global=99"});
  CHECK(divisible.front().text.find("over 3") != std::string::npos);
  CHECK(divisible.front().text.find("102 divides over 3 ranks too") != std::string::npos);
  const auto sample_us = [&](const LoadedJob& loaded) {
    const Hardware hardware{
        .target = &target, .memory_bytes = bytes, .machine = &h100(), .ranks_per_node = 3, .device_bytes = bytes};
    return compile(loaded, hardware, Purpose::train).alternatives.front().predicted_us /
           static_cast<double>(loaded.job.train.batch.global);
  };
  const double promised = divisible.front().predicted_us / 99, kept = sample_us(of(kSmall, "{global: 99}", 3));
  CHECK(promised == doctest::Approx(kept).epsilon(0.15));
  CHECK(kept < sample_us(of(kSmall, "{global: 100}", 3)));

  const auto open = advice(of(kSmall, "{global: 64, micro: 1}", 8), 8);
  REQUIRE_FALSE(open.empty());
  CHECK(open.front().overrides == std::vector<std::string>{"train.batch.micro=auto"});
  CHECK(open.front().text.find("instead of the job's micro-batch of 1") != std::string::npos);
  CHECK(advice(of(kSmall, "{global: 64, micro: 8}", 8), 8).empty());  // it is the best

  const std::string odd =
      "{graph: models/gpt2.yaml, with: {layers: 4, heads: 8, dim: 512, vocab: 8191, context: 2048}}";
  const auto padded = advice(of(odd, "{global: 64}", 8), 8);
  REQUIRE(padded.size() == 1);
  CHECK(padded.front().overrides == std::vector<std::string>{"model.with.vocab=8192"});
}

TEST_CASE("degrees that the model refuses are named with the reason") {
  const CompiledJob compiled =
      planned(job_of("{graph: models/gpt2.yaml, with: {layers: 2, heads: 12, dim: 768, vocab: 8192, context: 2048}}", 1,
                     "{global: 64}", ""));
  CHECK(compiled.strategy_why.find("heads (12) cannot be split evenly over 8 ranks") != std::string::npos);
}

namespace {

cost::Scored scored(double us, double gib, const std::function<void(cost::Candidate&)>& change = {},
                    double spread = 0.06) {
  cost::Scored one;
  one.candidate.mesh.set(Axis::shard, 8);
  one.candidate.kind = DataKind::zero1;
  if (change) change(one.candidate);
  one.step_us = us;
  one.spread = spread;
  one.bytes = static_cast<std::int64_t>(gib * (std::int64_t{1} << 30));
  one.fits = gib <= 80;
  return one;
}

std::size_t taken(const std::vector<cost::Scored>& list, Goal goal = Goal::time) {
  return cost::choose(goal, std::int64_t{80} << 30, list);
}

}  // namespace

TEST_CASE("of ties what leaves memory free is taken, then what is simpler, then what is faster") {
  const auto fsdp = [](cost::Candidate& c) { c.kind = DataKind::fsdp; };
  CHECK(taken({scored(1000, 60), scored(990, 60, fsdp)}) == 0);        // simpler
  CHECK(taken({scored(1000, 75), scored(990, 60, fsdp)}) == 1);        // a tie with a tenth of memory free
  CHECK(taken({scored(1000, 60), scored(960, 75, fsdp)}) == 1);        // 4% are more than half of a spread of 6%
  CHECK(taken({scored(1000, 60), scored(960, 60, fsdp, 0.09)}) == 0);  // and less than half of one of 9%
  CHECK(taken({scored(1000, 60), scored(930, 60, fsdp, 0.4)}) == 1);   // but never more than 5% of the time is given up
  CHECK(taken({scored(1000, 79), scored(990, 78, fsdp)}) == 0);        // where nothing leaves a tenth free, the simpler
  CHECK(taken({scored(1000, 60), scored(990, 60)}) == 1);              // equally simple: the faster
  CHECK(taken({scored(1000, 60), scored(900, 81, fsdp)}) == 0);        // what does not fit is no candidate
  CHECK(taken({scored(900, 90), scored(1000, 85)}) == 1);              // nothing fits: what needs least
}

TEST_CASE("another axis has to pay more than the spread of the prediction") {
  const auto pipeline = [](cost::Candidate& c) { c.mesh.set(Axis::pipeline, 2); };
  CHECK(taken({scored(1000, 60), scored(960, 60, pipeline)}) == 0);
  CHECK(taken({scored(1000, 60), scored(930, 60, pipeline)}) == 1);
  CHECK(taken({scored(1000, 60), scored(960, 60, pipeline, 0.02)}) == 1);
  CHECK(taken({scored(1000, 60), scored(960, 60, pipeline, 0.5)}) == 0);
  CHECK(taken({scored(1000, 60), scored(945, 60, pipeline, 0.5)}) == 1);  // no more than 5% is given up
  CHECK(taken({scored(1000, 60), scored(999, 40, pipeline)}, Goal::memory) == 1);
  const auto fsdp = [](cost::Candidate& c) { c.kind = DataKind::fsdp; };
  CHECK(taken({scored(1049, 60), scored(1020, 60, fsdp), scored(990, 60, pipeline)}) ==
        1);  // both together give up no more than 5%
}

}  // namespace trainer
