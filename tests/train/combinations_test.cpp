// Each late axis beside all that was there before: context parallelism (gathered, in a ring), expert parallelism and
// offload to disk, with every data strategy, tensor and sequence parallelism, schedules of pipelines and each other, on
// 2, 4 and 8 ranks. The table is the whole product; each job is one rank's training, in the memory that its plan fixed.
//
// Bound in f32: orders of sums alone differ. By equivalence_test.cpp losses and norms may differ by 5.4e-6 times the
// number of the step, relatively; four steps are compared, and 1e-5 holds for all of them. AdamW's eps is 0.1, so that
// no gradient near zero decides the sign of an update.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/train/mixture_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

// What a job is made of: its part of `strategy`, and the ranks that it takes.
struct Part {
  const char* text;
  int ranks;
};

struct Data {
  const char* text;
  int least_ranks;
};

const std::vector<Data> kData{{"ddp", 1}, {"zero1", 2}, {"zero2", 2}, {"zero3", 2}, {"full_shard", 2}, {"hybrid", 4}};

const std::vector<Part> kBeside{{"", 1},
                                {"tensor: {degree: 2}", 2},
                                {"tensor: {degree: 2, sequence_parallel: true}", 2},
                                {"pipeline: {degree: 2, schedule: 1f1b}", 2},
                                {"pipeline: {degree: 2, schedule: zb_h1}", 2},
                                {"pipeline: {degree: 2, schedule: interleaved, virtual_stages: 2}", 2},
                                {"pipeline: {degree: 2, schedule: dualpipe_v}", 2},
                                {"tensor: {degree: 2}, pipeline: {degree: 2, schedule: 1f1b}", 4}};

std::vector<Part> beside_without(const char* word) {
  std::vector<Part> parts = kBeside;
  std::erase_if(parts, [&](const Part& part) { return std::string(part.text).find(word) != std::string::npos; });
  return parts;
}

std::string data_text(const std::string& data) {
  if (data == "full_shard") return "data: {kind: fsdp, sharding: full_shard}";
  if (data == "hybrid") return "data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}";
  return "data: " + data;
}

bool gathers(std::string_view data) { return data == "zero3" || data == "full_shard" || data == "hybrid"; }

// Every job of a late part; calls fn(ranks, strategy).
template <typename Fn>
int for_each_job(const std::vector<Part>& late, const std::vector<Part>& all_beside, Fn&& fn) {
  int jobs = 0;
  for (const Part& part : late)
    for (const Part& beside : all_beside)
      for (const int world : {2, 4, 8}) {
        const int ranks = part.ranks * beside.ranks, data_ranks = world / ranks;
        if (world % ranks != 0) continue;
        for (const Data& data : kData) {
          if (data_ranks < data.least_ranks) continue;
          if (std::string_view(part.text).find("parameters") != std::string_view::npos && !gathers(data.text)) continue;
          std::string strategy = "{" + data_text(data.text) + ", " + part.text;
          if (*beside.text != '\0') strategy += std::string(", ") + beside.text;
          fn(world, strategy + "}");
          ++jobs;
        }
      }
  return jobs;
}

const Overrides kSame{"train.steps=4", "train.batch.micro=1", "train.optimizer={name: adamw, lr: 1.0e-2, eps: 0.1}",
                      "checkpoint.resume=none"};

// A decoder of four layers, dense or of experts with room for every choice; its training on one rank, and on others.
enum class Kind : std::uint8_t { dense, sparse, attentive };
class Decoder {
 public:
  explicit Decoder(Kind kind)
      : name_(kind == Kind::dense ? "llama" : "gpt2"), with_(both(kSame, {model_of(kind)})), one_(train({})) {}

  /// Compares what ranks do with what one does.
  std::function<void(int, const std::string&)> check(const Overrides& more = {}) const {
    return [this, more](int ranks, const std::string& strategy) {
      CAPTURE(strategy);
      CAPTURE(ranks);
      check_same_training(train(on(ranks, strategy, more)), one_, kBound);
    };
  }

 private:
  std::string model_of(Kind kind) const {
    if (kind == Kind::dense) return "model.with.layers=4";
    const std::string graph =
        kind == Kind::sparse ? jobs_.path("mixture.yaml") : jobs_.write("attentive.yaml", attentive_mixture());
    return "model={graph: " + graph + ", with: {bound: 4.0}}";
  }
  Trained train(const Overrides& more) const {
    return run(from_the_start(jobs_.load(name_, "run", both(with_, more))));
  }

  const Jobs jobs_;
  const std::string name_;
  const Overrides with_;
  const Trained one_;
};

}  // namespace

TEST_CASE("parts of sequences, in a ring or gathered, and optimizers on disk go beside every strategy") {
  const Decoder dense(Kind::dense);
  CHECK(for_each_job({{"context: {degree: 2, kind: ring}", 2},
                      {"context: {degree: 2, kind: gather}", 2},
                      {"offload: {optimizer: disk}", 1},
                      {"context: {degree: 2, kind: ring}, offload: {optimizer: disk}", 2}},
                     kBeside, dense.check()) == 242);
}

TEST_CASE("experts over ranks go beside every strategy, and their optimizers on disk") {
  const Decoder sparse(Kind::sparse);
  CHECK(for_each_job({{"expert: {degree: 2}", 2},
                      {"expert: {degree: 4}", 4},
                      {"expert: {degree: 2}, offload: {optimizer: disk}", 2}},
                     kBeside, sparse.check()) == 110);
}

TEST_CASE("experts over ranks go beside parts of sequences, in a ring or gathered") {
  const Decoder attentive(Kind::attentive);
  CHECK(for_each_job({{"expert: {degree: 2}, context: {degree: 2, kind: ring}", 4},
                      {"expert: {degree: 2}, context: {degree: 2, kind: gather}", 4},
                      {"expert: {degree: 4}, context: {degree: 2, kind: ring}", 8},
                      {"expert: {degree: 2}, context: {degree: 4, kind: ring}", 8}},
                     kBeside, attentive.check()) == 26);
}

TEST_CASE("working copies on disk go beside every strategy") {
  const Decoder dense(Kind::dense), sparse(Kind::sparse);
  CHECK(for_each_job({{"offload: {parameters: disk}", 1},
                      {"context: {degree: 2, kind: ring}, offload: {optimizer: disk, parameters: disk}", 2}},
                     kBeside, dense.check()) == 57);
  CHECK(for_each_job({{"expert: {degree: 2}, offload: {optimizer: disk, parameters: disk}", 2}}, kBeside,
                     sparse.check()) == 17);
}

TEST_CASE("gradients on disk go beside every strategy without stages") {
  const Overrides at_once{"train.batch.micro=auto"};
  const Decoder dense(Kind::dense), sparse(Kind::sparse);
  CHECK(for_each_job({{"offload: {optimizer: disk, gradients: disk}", 1},
                      {"context: {degree: 2, kind: ring}, offload: {optimizer: disk, gradients: disk}", 2}},
                     beside_without("pipeline"), dense.check(at_once)) == 65);
  CHECK(for_each_job({{"expert: {degree: 2}, offload: {optimizer: disk, gradients: disk}", 2}},
                     beside_without("pipeline"), sparse.check(at_once)) == 24);
}
