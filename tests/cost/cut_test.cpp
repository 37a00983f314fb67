// Cutting a pipeline for memory, against all cuts of small models; and a job that fits because of it.
#include "engine/cost/cut.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include "engine/compile/compile.h"
#include "engine/cost/machine_model.h"
#include "engine/cost/moments.h"
#include "engine/job/pipeline_schedules.h"
#include "strategies/strategies.h"

namespace trainer::cost {
namespace {

struct Cut {
  double fullest = 0;  // bytes
  double uneven = 0;   // sum of the fourth powers of times
};

Cut measured(const std::vector<Piece>& pieces, const ChunkBytes& bytes, const std::vector<int>& begins) {
  Cut cut;
  for (std::size_t chunk = 0; chunk < begins.size(); ++chunk) {
    const std::size_t end = chunk + 1 < begins.size() ? static_cast<std::size_t>(begins[chunk + 1]) : pieces.size();
    double held = 0, transient = 0, us = 0;
    for (auto i = static_cast<std::size_t>(begins[chunk]); i < end; ++i) {
      const Piece& piece = pieces[i];
      held += static_cast<double>(piece.trained) * bytes.trained +
              static_cast<double>(piece.parameters - piece.trained) * bytes.frozen +
              static_cast<double>(piece.saved_bytes) * bytes.in_flight[chunk];
      transient = std::max(transient, static_cast<double>(piece.transient_bytes));
      us += piece.forward_us + piece.backward_us();
    }
    cut.fullest = std::max(cut.fullest, held + transient / bytes.chunks_of_stage);
    cut.uneven += std::pow(us, 4);
  }
  return cut;
}

void for_each_cut(int num_pieces, std::size_t num_chunks, const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> begins{0};
  const std::function<void()> more = [&] {
    if (begins.size() == num_chunks) return visit(begins);
    for (int next = begins.back() + 1; next < num_pieces; ++next) {
      begins.push_back(next);
      more();
      begins.pop_back();
    }
  };
  more();
}

}  // namespace

TEST_CASE("a cut for memory is the best of all cuts") {
  std::mt19937 random(17);
  const auto up_to = [&](int most) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(most + 1)); };
  int within = 0, beyond = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<Piece> pieces(static_cast<std::size_t>(6 + up_to(4)));
    for (Piece& piece : pieces) {
      piece.forward_us = 1 + static_cast<double>(up_to(20)), piece.input_us = 2 + static_cast<double>(up_to(20));
      piece.parameters = up_to(100), piece.trained = up_to(static_cast<int>(piece.parameters));
      piece.saved_bytes = up_to(50), piece.transient_bytes = up_to(60);
    }
    ChunkBytes bytes{18, 2, {}, static_cast<int>(1 + up_to(2)), 0};
    const auto num_chunks = static_cast<std::size_t>(2 + up_to(2));
    for (std::size_t chunk = 0; chunk < num_chunks; ++chunk)
      bytes.in_flight.push_back(static_cast<double>(num_chunks - chunk));
    double least = std::numeric_limits<double>::infinity();
    for_each_cut(static_cast<int>(pieces.size()), num_chunks, [&](const std::vector<int>& begins) {
      least = std::min(least, measured(pieces, bytes, begins).fullest);
    });
    bytes.most = least * (round % 3 == 0 ? 0.9 : 1 + 0.1 * static_cast<double>(round % 5));
    const double limit = std::max(bytes.most, least * (1 + 1e-9));
    double most_even = std::numeric_limits<double>::infinity();
    for_each_cut(static_cast<int>(pieces.size()), num_chunks, [&](const std::vector<int>& begins) {
      const Cut cut = measured(pieces, bytes, begins);
      if (cut.fullest <= limit) most_even = std::min(most_even, cut.uneven);
    });
    const std::vector<int> begins = cut_for_memory(pieces, bytes);
    REQUIRE(begins.size() == num_chunks);
    REQUIRE(begins.front() == 0);
    const Cut cut = measured(pieces, bytes, begins);
    CHECK(cut.fullest <= limit);
    CHECK(cut.uneven == doctest::Approx(most_even).epsilon(1e-9));
    ++(bytes.most < least ? beyond : within);
  }
  CHECK(within > 10);
  CHECK(beyond > 10);
}

TEST_CASE("under 1f1b a stage holds as many micro-batches as there are stages from it on") {
  const strategies::PipelineEntry& entry = strategies::pipeline_schedule(PipelineSchedule::one_f_one_b, 4);
  CHECK(in_flight(entry.make(4, 1, 16)) == std::vector<double>{4, 3, 2, 1});
  const strategies::PipelineEntry& all_first = strategies::pipeline_schedule(PipelineSchedule::gpipe, 2);
  CHECK(in_flight(all_first.make(2, 1, 6)) == std::vector<double>{6, 6});
}

namespace {

struct PlainTarget final : Target {
  std::int64_t workspace_bytes(const Signature&) const override { return 0; }
};

// A Llama whose head takes as long as some of its blocks.
CompiledJob planned(const std::string& pipeline, double limit_gib) {
  LoadOptions options;
  options.configs_dir = std::string(TRAINER_SOURCE_DIR) + "/configs";
  const LoadedJob loaded = parse_job(
      "model: {graph: models/llama.yaml, with: {layers: 8, heads: 8, kv_heads: 8, dim: 1024, hidden: 2816, vocab: "
      "32000}}\n"
      "data: {format: tokens, train: [ids.bin], seq_len: 512}\ntrain: {steps: 10, batch: {global: 8, micro: 1}}\n"
      "precision: {compute: bf16}\ncluster: {backend: mpi, devices_per_node: 2}\nstrategy: {pipeline: " +
          pipeline + "}\nactivation_checkpointing: {mode: full}\n",
      "job.yaml", {}, options);
  static const PlainTarget target;
  static const MachineModel h100 = load_machine(options.configs_dir + "/hardware/h100-sxm.yaml");
  const auto bytes = static_cast<std::int64_t>(limit_gib * (std::int64_t{1} << 30)) * 2;
  return compile(loaded, Hardware{.target = &target, .memory_bytes = bytes, .machine = &h100, .ranks_per_node = 2},
                 Purpose::train);
}

double peak_gib(const CompiledJob& job) { return static_cast<double>(job.peak_bytes()) / (std::int64_t{1} << 30); }

}  // namespace

namespace {

// Bytes of activations at a stage's fullest moment: every action looked at.
std::int64_t fullest(const std::vector<Action>& actions, const std::vector<Piece>& chunks) {
  std::int64_t alive = 0, most = 0;
  for (const Action& action : actions) {
    const Piece& chunk = chunks[static_cast<std::size_t>(action.chunk)];
    if (action.kind == Action::Kind::forward) alive += chunk.saved_bytes;
    most = std::max(most, alive + chunk.transient_bytes);
    if (action.kind == Action::Kind::backward) alive -= chunk.saved_bytes;
    if (action.kind == Action::Kind::backward_input) alive += chunk.handed_bytes - chunk.freed_bytes;
    if (action.kind == Action::Kind::backward_weight)
      alive -= chunk.saved_bytes + chunk.handed_bytes - chunk.freed_bytes;
  }
  return most;
}

}  // namespace

TEST_CASE("the fullest moments of a schedule are as full as the fullest of all, whatever the chunks hold") {
  std::mt19937 random(5);
  const auto bytes = [&](int most) { return std::uniform_int_distribution<std::int64_t>(0, most)(random); };
  constexpr int kStages = 4, kMicroBatches = 24;
  for (const ScheduleRecord& record : kScheduleRecords) {
    const strategies::PipelineEntry& entry = strategies::pipeline_schedule(record.schedule, kStages);
    for (const int virtual_stages : {1, 2, 3}) {
      if (entry.refuses(kStages, virtual_stages, kMicroBatches)) continue;
      CAPTURE(name_of(record.schedule));
      const Schedule schedule = entry.make(kStages, virtual_stages, kMicroBatches);
      const std::vector<std::vector<Moment>> moments = fullest_moments(schedule);
      for (int round = 0; round < 20; ++round) {
        std::vector<Piece> chunks(schedule.stage_of_chunk.size());
        for (Piece& chunk : chunks) {
          chunk.saved_bytes = bytes(1000);
          chunk.freed_bytes = bytes(static_cast<int>(chunk.saved_bytes));
          chunk.handed_bytes = bytes(600);
          chunk.transient_bytes = bytes(2000);
        }
        for (std::size_t stage = 0; stage < kStages; ++stage)
          CHECK(peak_bytes(moments[stage], chunks) == fullest(schedule.stages[stage], chunks));
      }
    }
  }
}

TEST_CASE("where the cut by time does not fit, one for memory is taken, and its names plan the same again") {
  const CompiledJob by_time = planned("{degree: 2}", 100);
  const CompiledJob ample = planned("{degree: 2, schedule: auto}", 100);
  CHECK(ample.alternatives.front().text.find("cut for memory") == std::string::npos);
  const double limit = peak_gib(by_time) - 0.01;
  CHECK_FALSE(planned("{degree: 2}", limit).fits);
  const CompiledJob chosen = planned("{degree: 2, schedule: auto}", limit);
  REQUIRE(chosen.fits);
  CHECK(chosen.alternatives.front().text.find("cut for memory") != std::string::npos);
  CHECK(chosen.strategy.pipeline.split != by_time.strategy.pipeline.split);
  const PipelineStrategyJob& cut = chosen.strategy.pipeline;
  std::string names;
  for (const std::string& name : cut.split) names += (names.empty() ? "" : ", ") + name;
  const CompiledJob again =
      planned("{degree: 2, schedule: " + std::string(name_of(cut.schedule)) +
                  ", virtual_stages: " + std::to_string(cut.virtual_stages) + ", split: [" + names + "]}",
              limit);
  CHECK(hash_of(again) == hash_of(chosen));
}

}  // namespace trainer::cost
