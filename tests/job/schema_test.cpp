// The JSON Schema and the program give the same verdict on the same job.
//
// Rules that compare two values (engine/job/rules.h: what does not divide, warm-up beyond the run, …) cannot be said in
// draft-07: the schema is held to the table of fields, and the program is held to the table and the rules. JSON has no
// infinities; they are handed to the schema as something that no key takes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>

#include "engine/cost/machine_fields.h"
#include "engine/cost/machine_model.h"
#include "engine/job/check.h"
#include "engine/job/job.h"
#include "engine/job/rules.h"
#include "engine/job/schema.h"
#include "tests/job/random_jobs.h"

namespace trainer {
namespace {

using nlohmann::json;
using valijson::adapters::NlohmannJsonAdapter;

std::string source_dir() { return TRAINER_SOURCE_DIR; }

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A whole number is an integer in JSON Schema, however it is written.
json number_json(double value) {
  if (!std::isfinite(value)) return json::array({json::array({json::array()})});
  if (value == std::floor(value) && std::abs(value) < 9.2e18) return static_cast<std::int64_t>(value);
  return value;
}

json to_json(const yaml::Node& node) {
  if (node.is_sequence()) {
    json out = json::array();
    for (const yaml::Node& item : node.items) out.push_back(to_json(item));
    return out;
  }
  if (node.is_mapping()) {
    json out = json::object();
    for (std::size_t i = 0; i < node.keys.size(); ++i) out[node.keys[i].text] = to_json(node.items[i]);
    return out;
  }
  if (node.is_null()) return nullptr;
  if (const auto flag = node.as_bool()) return *flag;
  if (const auto integer = node.as_integer()) return *integer;
  if (const auto number = node.as_number()) return number_json(*number);
  return node.text;
}

class Schema {
 public:
  explicit Schema(const std::string& text) : document_(json::parse(text)) {
    NlohmannJsonAdapter adapter(document_);
    valijson::SchemaParser parser(valijson::SchemaParser::kDraft7);
    parser.populateSchema(adapter, schema_);
  }

  bool accepts(const yaml::Node& node) const {
    const json value = to_json(node);
    valijson::Validator validator;
    return validator.validate(schema_, NlohmannJsonAdapter(value), nullptr);
  }

 private:
  json document_;
  valijson::Schema schema_;
};

TEST_CASE("the schemas in schemas/ are what the tables of fields give") {
  // After a change of a table: trainer schema job >schemas/job.schema.json, trainer schema graph
  // >schemas/graph.schema.json, trainer schema hardware >schemas/hardware.schema.json
  CHECK(contents(source_dir() + "/schemas/job.schema.json") == job_schema());
  CHECK(contents(source_dir() + "/schemas/graph.schema.json") == graph_schema());
  CHECK(contents(source_dir() + "/schemas/hardware.schema.json") == cost::hardware_schema());
}

TEST_CASE("the schemas accept every job, graph and hardware file of configs/") {
  const Schema jobs(job_schema()), graphs(graph_schema()), machines(cost::hardware_schema());
  for (const auto& [schema, folder] :
       {std::pair{&jobs, "/configs"}, {&graphs, "/configs/models"}, {&machines, "/configs/hardware"}}) {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(source_dir() + folder)) {
      if (entry.path().extension() != ".yaml") continue;
      CAPTURE(entry.path().string());
      CHECK(schema->accepts(yaml::read_file(entry.path().string())));
      ++count;
    }
    CHECK(count >= 4);
  }
}

TEST_CASE("the schema of graphs refuses what graph files may not say") {
  const Schema schema(graph_schema());
  const std::string head = "inputs: {x: {dtype: f32, shape: [batch, 4]}}\noutputs: {loss: l}\nnodes:\n";
  const auto accepts = [&](const std::string& nodes) {
    return schema.accepts(yaml::parse(head + nodes, "graph.yaml"));
  };
  CHECK(accepts("  - {name: a, op: linear, input: x, out: 3}"));
  CHECK(accepts("  - {name: a, op: linear, input: x, out: \"${2 * 3}\", init: {normal: 0.1}}"));
  CHECK(accepts("  - {name: a, op: linear, input: x, out: 3, init: {uniform: 0.1}}"));
  CHECK(accepts("  - {name: a, op: scale, input: x, factor: -0.5}"));
  CHECK(accepts("  - {repeat: 2, name: \"h.{index}\", nodes: [{name: a, op: relu, input: x}]}"));
  CHECK_FALSE(accepts("  - {name: a, op: lineal, input: x, out: 3}"));
  CHECK_FALSE(accepts("  - {name: a, op: linear, input: x}"));
  CHECK_FALSE(accepts("  - {name: a, op: linear, input: x, out: three}"));
  CHECK_FALSE(accepts("  - {name: a, op: linear, input: x, out: 3, heads: 2}"));
  CHECK_FALSE(accepts("  - {name: a, op: relu, eps: 1}"));
  CHECK_FALSE(accepts("  - {op: relu}"));
  CHECK_FALSE(accepts("  - {repeat: 2, name: h, nodes: [{name: a, op: rely}]}"));
  CHECK_FALSE(accepts("  - {name: a, op: linear, out: 3, init: {normal: 1, constant: 1}}"));
}

TEST_CASE("program and schema give the same verdict on thousands of jobs") {
  const Schema schema(job_schema());
  test::RandomJobs jobs(20240);
  constexpr int kJobs = 6000;
  int num_good = 0;
  for (int i = 0; i < kJobs; ++i) {
    yaml::Node job = jobs.good();
    const bool spoilt = i % 2 == 1;
    if (spoilt) {
      for (std::size_t changes = 1 + jobs.below(3); changes > 0; --changes) jobs.spoil(job);
    }
    yaml::Node written_out = job;
    expand_short_forms(written_out, job_fields());
    const Checked checked = check(job_fields(), written_out);
    const bool right = checked.mistakes.empty();
    num_good += right;
    CAPTURE(job.flow());
    std::string mistakes;
    for (const Diagnostic& mistake : checked.mistakes) mistakes += mistake.str() + "\n";
    CAPTURE(mistakes);
    if (!spoilt) REQUIRE(right);
    REQUIRE(schema.accepts(job) == right);
  }
  CHECK(num_good > kJobs / 2);
  CHECK(num_good < kJobs * 9 / 10);
}

TEST_CASE("program and schema give the same verdict on thousands of hardware files") {
  const Schema schema(cost::hardware_schema());
  test::RandomJobs machines(5, cost::machine_fields());
  int num_good = 0, num_tried = 0;
  for (int i = 0; i < 4000; ++i) {
    yaml::Node machine = machines.good();
    if (machine.find("base") != nullptr) continue;  // it is held to the whole that it makes with its base
    const bool spoilt = i % 2 == 1;
    if (spoilt) machines.spoil(machine);
    if (machine.find("base") != nullptr) continue;
    const Checked checked = check(cost::machine_fields(), machine);
    const bool right = checked.mistakes.empty();
    num_good += right;
    ++num_tried;
    CAPTURE(machine.flow());
    std::string mistakes;
    for (const Diagnostic& mistake : checked.mistakes) mistakes += mistake.str() + "\n";
    CAPTURE(mistakes);
    if (!spoilt) REQUIRE(right);
    REQUIRE(schema.accepts(machine) == right);
  }
  CHECK(num_tried > 1000);
  CHECK(num_good > num_tried / 2);
  CHECK(num_good < num_tried);
}

TEST_CASE("the schema of hardware files asks of one with a base no more than what it says") {
  const Schema schema(cost::hardware_schema());
  const auto accepts = [&](const std::string& text) { return schema.accepts(yaml::parse(text, "machine.yaml")); };
  CHECK(accepts("base: h100-sxm"));
  CHECK(accepts("{base: h100-sxm, device: {memory: 64GiB}, links: {inside: {latency_us: 3}, between: null}}"));
  CHECK(accepts("{base: cpu-avx512, device: {peak: {bf16: {value: 1e12, spread: 0.1}}}}"));
  CHECK_FALSE(accepts("{devices_per_node: 8}"));
  CHECK_FALSE(accepts("{base: h100-sxm, device: {memory: 64GB}}"));
  CHECK_FALSE(accepts("{base: h100-sxm, device: {peak: {bf16: {spread: 0.1}}}}"));
  CHECK_FALSE(accepts("{base: h100-sxm, links: {between: {bandwith: 1e10}}}"));
}

TEST_CASE("what table and rules accept becomes a job, and all else is refused") {
  test::RandomJobs jobs(77);
  int num_loaded = 0;
  for (int i = 0; i < 2000; ++i) {
    yaml::Node job = jobs.good();
    if (i % 4 == 3) jobs.spoil(job);
    CAPTURE(job.flow());
    // Written out and read again, so that the text form is held to the tree as well.
    yaml::Node read = yaml::parse(job.flow(), "job.yaml");
    REQUIRE(read.flow() == job.flow());
    expand_short_forms(read, job_fields());
    const Checked checked = check(job_fields(), read);
    // What `auto` is of a job without a folder is found when the job is made.
    const bool of_folder = checked.values.contains("model.from"),
               no_tokenizer = !of_folder && checked.node("data.tokenizer").text == "auto";
    // A group takes over momentum from train.optimizer when the job is made.
    const bool takes_over = job.flow().find("nesterov: true") != std::string::npos && job.find("train")->find("groups");
    if (takes_over) continue;
    const bool right = checked.mistakes.empty() && check_rules(checked, read).empty() && !no_tokenizer;
    bool loaded = true;
    try {
      const LoadedJob first = parse_job(job.flow(), "job.yaml", {}, {.configs_dir = {}, .check_files = false});
      const LoadedJob second =
          parse_job(effective_job(first), "job.yaml", {}, {.configs_dir = {}, .check_files = false});
      REQUIRE(first.settings.size() == second.settings.size());
      for (std::size_t k = 0; k < first.settings.size(); ++k)
        REQUIRE(first.settings[k].value == second.settings[k].value);
    } catch (const JobError&) {
      loaded = false;
    }
    REQUIRE(loaded == right);
    num_loaded += loaded;
  }
  CHECK(num_loaded > 50);
}

}  // namespace
}  // namespace trainer
