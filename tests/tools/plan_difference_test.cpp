// trainer plan A B, from outside.
#include <doctest/doctest.h>

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/temporary.h"
#include "tests/tools/process.h"

namespace trainer::plan_difference_test {

using nlohmann::json;
using namespace trainer::tests;

namespace {

constexpr const char* kJob = R"(name: tiny
model:
  graph: models/gpt2.yaml
  with: {layers: 2, heads: 2, dim: 16, vocab: 256, context: 8}
data: {format: text, train: text.txt, seq_len: 8}
train: {steps: 6, batch: {global: 8}, optimizer: {lr: 1.0e-2}}
cluster: {devices_per_node: 2}
)";

class Workplace : public TemporaryFolder {
 public:
  Workplace() {
    write("a.yaml", std::string(kJob) + "strategy: ddp\n");
    write("b.yaml", std::string(kJob) + "strategy: fsdp\ncheckpoint: {dir: runs, format: sharded}\n");
  }
  Outcome plan(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "plan");
    return trainer::tests::trainer(path(), arguments);
  }
  json parsed(std::vector<std::string> arguments) const {
    arguments.emplace_back("--json");
    const Outcome outcome = plan(arguments);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return json::parse(outcome.out);
  }
};

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t number = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++number;
  return number;
}

std::map<std::string, json> lines_of(const json& differences, const std::string& section) {
  std::map<std::string, json> lines;
  for (const json& one : differences)
    if (one["section"] == section) lines[one["name"]] = one;
  return lines;
}

}  // namespace

TEST_CASE("two jobs are compared by what plan says of each") {
  const Workplace in;
  const json both = in.parsed({"a.yaml", "b.yaml"}), a = in.parsed({"a.yaml"}), b = in.parsed({"b.yaml"});
  CHECK(both["a"] == a);
  CHECK(both["b"] == b);
  const auto settings = lines_of(both["differences"], "settings"), memory = lines_of(both["differences"], "memory"),
             sent = lines_of(both["differences"], "communication");
  CHECK(settings.contains("checkpoint.format"));
  CHECK_FALSE(settings.contains("train.steps"));
  CHECK(memory.at("peak")["difference"] ==
        b["memory"]["peak_bytes"].get<double>() - a["memory"]["peak_bytes"].get<double>());
  CHECK(memory.at("optimizer")["difference"].get<double>() < 0);  // a half
  CHECK(sent.at("all_gather shard")["a"].is_null());
  CHECK(lines_of(both["differences"], "plan").at("strategy")["b"] == "fsdp full_shard over 2 ranks");
  CHECK(lines_of(both["differences"], "units").at("states divided by")["b"] == 2);
  for (const json& one : both["differences"]) CHECK(one["a"] != one["b"]);
}

TEST_CASE("what is compared is told to people, a line each, and a job against itself has no difference") {
  const Workplace in;
  const Outcome outcome = in.plan({"a.yaml", "b.yaml"});
  CHECK(outcome.code == 0);
  for (const char* part : {"A: a.yaml: tiny", "B: b.yaml: tiny", "settings that differ", "checkpoint.format",
                           "  peak  ", "  all_reduce replicate  ", " KiB", "step, ms", "gathers in a step"})
    CHECK_MESSAGE(contains(outcome.out, part), part);
  CHECK(contains(in.plan({"a.yaml", "a.yaml"}).out, "the plans are the same"));
  CHECK(in.parsed({"a.yaml", "a.yaml"})["differences"].empty());
}

TEST_CASE("overrides are of both jobs; three jobs, or a page of two, are refused") {
  const Workplace in;
  const json both = in.parsed({"a.yaml", "b.yaml", "train.batch.global=16"});
  for (const char* job : {"a", "b"}) CHECK(both[job]["batch"]["global"] == 16);
  CHECK(in.plan({"a.yaml", "b.yaml", "a.yaml"}).code == 64);
  CHECK(in.plan({"a.yaml", "b.yaml", "--html", "page.html"}).code == 64);
  CHECK(in.plan({"a.yaml", "none.yaml"}).code == 64);
  CHECK(in.plan({"a.yaml", "b.yaml", "cluster.memory_limit=100KiB"}).code == 78);
}

TEST_CASE("both jobs are of the machine that their cluster names, with as many devices as it has") {
  const Workplace in;
  const std::string job =
      std::string(kJob).substr(0, std::string(kJob).find("cluster:")) + "precision: {compute: bf16}\n";
  in.write("here.yaml", job);
  in.write("there.yaml", job + "cluster: {hardware: h100-sxm}\n");
  const auto same = [&](std::vector<std::string> arguments) {
    const json both = in.parsed(std::move(arguments));
    CHECK(both["differences"].empty());
    for (const char* one : {"a", "b"}) {
      CHECK(both[one]["world_size"] == 8);
      CHECK(both[one]["predicted"]["hardware"] == "h100-sxm");
    }
  };
  same({"there.yaml", "there.yaml"});
  same({"here.yaml", "here.yaml", "cluster.hardware=h100-sxm"});
  same({"here.yaml", "there.yaml", "cluster.hardware=h100-sxm"});
  const json both = in.parsed({"here.yaml", "there.yaml"});
  CHECK(both["a"] == in.parsed({"here.yaml"}));
  CHECK(both["b"] == in.parsed({"there.yaml"}));
}

TEST_CASE("a sweep plans every combination as its overrides would") {
  const Workplace in;
  const Outcome outcome = in.plan({"a.yaml", "--sweep", "train.batch.global=8,16", "--sweep", "devices=1,2",
                                   "cluster.price_per_device_hour=2", "--json"});
  CHECK(outcome.code == 0);
  const json document = json::parse(outcome.out), &rows = document["sweep"];
  REQUIRE(rows.size() == 4);
  CHECK(rows[1]["overrides"] == json{"train.batch.global=8", "cluster.devices_per_node=2"});
  CHECK(rows[2]["plan"] == in.parsed({"a.yaml", "cluster.price_per_device_hour=2", "train.batch.global=16",
                                      "cluster.devices_per_node=1"}));
  const auto of = [&](const char* best, const char* key) {
    return rows[document[best].get<std::size_t>()]["plan"]["predicted"][key].get<double>();
  };
  for (const json& row : rows) {
    const json& predicted = row["plan"]["predicted"];
    CHECK(predicted["run_hours"].get<double>() == doctest::Approx(6 * predicted["step_ms"].get<double>() / 3.6e6));
    CHECK(predicted["run_cost"].get<double>() ==
          doctest::Approx(2 * predicted["run_hours"].get<double>()));  // ranks share the one CPU
    CHECK(predicted["tokens_per_s"].get<double>() <= of("fastest", "tokens_per_s"));
    CHECK(predicted["run_cost"].get<double>() >= of("cheapest", "run_cost"));
  }
}

TEST_CASE("a sweep shows what cannot be, and fails where nothing fits") {
  const Workplace in;
  const Outcome some = in.plan({"a.yaml", "--sweep", "train.batch.global=7,8", "--sweep", "model.with.dim=16,1048576"});
  CHECK(some.code == 0);
  for (const char* part :
       {"train.batch.global=8 model.with.dim=16", "error: train.batch.global", "states alone do not fit", "fastest"})
    CHECK_MESSAGE(contains(some.out, part), part);
  CHECK(count(some.out, "\n") == 5);
  const Outcome none = in.plan({"a.yaml", "--sweep", "cluster.memory_limit=1KiB,2KiB", "--json"});
  CHECK(none.code == 78);
  CHECK(json::parse(none.out)["sweep"].size() == 2);
  CHECK(json::parse(none.out)["sweep"][0]["plan"].is_null());
  CHECK(contains(none.err, "the model is too large for 2 ranks"));
  for (const std::string bad : {"nodes", "nodes=", "=1", "nodes=1,,2"})
    CHECK(in.plan({"a.yaml", "--sweep", bad}).code == 64);
  CHECK(in.plan({"a.yaml", "b.yaml", "--sweep", "nodes=1"}).code == 64);
  CHECK(in.plan({"a.yaml", "--sweep", "nodes=1", "--html", "page.html"}).code == 64);
}

TEST_CASE("the points of a run's life are told, each with what it takes beside the allocation") {
  const Workplace in;
  const json a = in.parsed({"a.yaml", "checkpoint.dir=null"}), b = in.parsed({"b.yaml"}),
             full = in.parsed({"b.yaml", "checkpoint.format=full"});
  const auto points = [](const json& plan) {
    std::map<std::string, json> found;
    for (const json& one : plan["memory"]["lifecycle"]) found[one["point"]] = one;
    return found;
  };
  CHECK(points(a).contains("start"));
  CHECK_FALSE(points(a).contains("save"));
  CHECK(points(a).at("step")["bytes"] == 0);
  CHECK(points(a).at("step")["inside_bytes"].get<std::int64_t>() <= a["memory"]["peak_bytes"].get<std::int64_t>());
  for (const char* point : {"start", "save", "resume"}) CHECK(points(b).at(point)["bytes"].get<std::int64_t>() > 0);
  CHECK(points(full).at("save")["bytes"].get<std::int64_t>() > points(b).at("save")["bytes"].get<std::int64_t>());
}

}  // namespace trainer::plan_difference_test
