// plan, verify, schema, init and doctor.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/tools/workplace.h"

namespace trainer::plan_command_test {

using nlohmann::json;
using namespace trainer::tests;

TEST_CASE("plan --json has the plan's facts, and the same each time") {
  const Workplace in;
  const Outcome outcome = in({"plan", "job.yaml", "cluster.devices_per_node=2", "strategy=ddp", "--json"});
  CHECK(outcome.code == 0);
  const json plan = parsed(outcome);
  CHECK(has_keys(plan, {"hash", "strategy", "mesh", "world_size", "parameters", "flops_per_step", "predicted", "memory",
                        "communication", "alternatives"}));
  CHECK(plan["alternatives"].empty());  // the job chose itself
  CHECK(plan["hash"].get<std::string>().size() == 16);
  CHECK(plan["world_size"] == 2);
  CHECK(plan["mesh"] ==
        json{{"pipeline", 1}, {"replicate", 2}, {"shard", 1}, {"expert", 1}, {"context", 1}, {"tensor", 1}});
  CHECK(plan["strategy"]["data"]["kind"] == "ddp");
  // wte and wpe, then of two blocks: 12 · dim² weights and 13 · dim biases and norms, then ln_f.
  CHECK(plan["parameters"] == 256 * 16 + 8 * 16 + 2 * (12 * 16 * 16 + 13 * 16) + 2 * 16);
  CHECK(plan["flops_per_step"].get<double>() > 6.0 * 32 * 2 * 12 * 16 * 16);  // products alone, of 32 tokens

  const json memory = plan["memory"];
  CHECK(has_keys(memory, {"limit_bytes", "peak_bytes", "fits", "spaces", "by_category", "peak_at"}));
  CHECK(memory["spaces"]["device"]["peak_bytes"] == memory["peak_bytes"]);
  CHECK(memory["spaces"]["device"]["limit_bytes"] == memory["limit_bytes"]);
  for (const char* space : {"host", "disk"})
    CHECK(memory["spaces"][space] == json{{"peak_bytes", 0}, {"limit_bytes", nullptr}});
  CHECK(keys_of(memory["by_category"]) == std::set<std::string>{"parameters", "gradients", "optimizer", "activations",
                                                                "communication", "workspace", "inputs"});
  std::int64_t sum = 0;
  for (const json& bytes : memory["by_category"]) sum += bytes.get<std::int64_t>();
  CHECK(memory["peak_bytes"] == sum);
  CHECK(memory["fits"] == true);

  // An all-reduce of b bytes over two ranks sends b: all gradients, and the step's few scalars.
  REQUIRE(plan["communication"].size() == 1);
  const json& all_reduce = plan["communication"][0];
  CHECK(keys_of(all_reduce) == std::set<std::string>{"axis", "collective", "count", "bytes"});
  CHECK(all_reduce["axis"] == "replicate");
  CHECK(all_reduce["collective"] == "all_reduce");
  CHECK(all_reduce["bytes"].get<std::int64_t>() >= 4 * plan["parameters"].get<std::int64_t>());
  CHECK(all_reduce["bytes"].get<std::int64_t>() < 4 * plan["parameters"].get<std::int64_t>() + 4096);
  CHECK(in({"plan", "job.yaml", "cluster.devices_per_node=2", "strategy=ddp", "--json"}).out == outcome.out);
}

TEST_CASE("plan says in what linears multiply and with which scales, and refuses fp8 where the GPU has none") {
  const Workplace in;
  const auto plan = [&](const std::string& hardware, const std::string& matmul, bool as_json) {
    std::vector<std::string> words{"plan",
                                   "job.yaml",
                                   "cluster={hardware: " + hardware + ", devices_per_node: 1}",
                                   "strategy=ddp",
                                   "train.batch.micro=2",
                                   "precision={compute: bf16, matmul: " + matmul + "}"};
    if (as_json) words.emplace_back("--json");
    return in(words);
  };
  CHECK(parsed(plan("h100-sxm", "none", true))["precision"] ==
        json{{"compute", "bf16"}, {"matmul", "none"}, {"fp8_scales", "none"}});
  for (const auto& [hardware, scales] : {std::pair{"l40s", "tensor"}, {"h100-sxm", "block_128"}}) {
    CHECK(parsed(plan(hardware, "fp8", true))["precision"] ==
          json{{"compute", "bf16"}, {"matmul", "fp8"}, {"fp8_scales", scales}});
    CHECK(plan(hardware, "fp8", false).out.find(std::string("scales: ") + scales) != std::string::npos);
  }
  const Outcome refused = plan("a100-80gb", "fp8", true);
  CHECK(refused.code == 78);
  CHECK(refused.err.find("precision.matmul") != std::string::npos);
  CHECK(refused.err.find("no products of fp8 on a100-80gb, whose compute capability is 8.0") != std::string::npos);
}

TEST_CASE("the strategy that plan prints is one that a job takes, and gives the same plan") {
  const Workplace in;
  const json plan = parsed(in({"plan", "job.yaml", "cluster.devices_per_node=2", "strategy=ddp", "--json"}));
  const json again =
      parsed(in({"plan", "job.yaml", "cluster.devices_per_node=2", "strategy=" + plan["strategy"].dump(), "--json"}));
  CHECK(again["hash"] == plan["hash"]);
  CHECK(again["strategy"] == plan["strategy"]);
}

TEST_CASE("plan --json has every stage's memory and communication, every unit, the chunks and the bubble") {
  const Workplace in;
  const std::vector<std::string> arguments{"plan",
                                           "job.yaml",
                                           "cluster.devices_per_node=4",
                                           "strategy={data: {kind: fsdp}, pipeline: {degree: 2}}",
                                           "train.batch.micro=1",
                                           "--json"};
  const json plan = parsed(in(arguments));
  const json& strategy = plan["strategy"];
  CHECK(strategy["data"]["keep"] == "step");
  CHECK(strategy["data"]["reduce"] == "micro_batch");
  CHECK(strategy["wrap"] == json{{"policy", "transformer"}, {"block", "TransformerBlock"}});
  REQUIRE(strategy["pipeline"]["split"].size() == 1);
  CHECK(contains(strategy.dump(), "auto") == false);

  const json& memory = plan["memory"];
  REQUIRE(memory["stages"].size() == 2);
  std::int64_t fullest = 0;
  for (const json& stage : memory["stages"]) fullest = std::max(fullest, stage["peak_bytes"].get<std::int64_t>());
  CHECK(memory["peak_bytes"] == fullest);
  CHECK(memory["stages"][memory["fullest_stage"].get<std::size_t>()]["by_category"] == memory["by_category"]);

  REQUIRE(plan["communication_by_stage"].size() == 2);
  std::set<std::string> sent;
  for (const json& one : plan["communication"])
    sent.insert(one["axis"].get<std::string>() + " " + one["collective"].get<std::string>());
  for (const char* one : {"pipeline send", "shard all_gather", "shard reduce_scatter"}) CHECK(sent.contains(one));

  std::set<std::string> parameters;
  for (const json& unit : plan["units"]) {
    CHECK(unit["divided_by"] == json{{"states", 2}, {"gradients", 2}, {"parameters", 2}});
    CHECK(unit["gathers"] == 1);
    CHECK(unit["reductions"] == 2);  // a micro-batch each
    for (const json& name : unit["parameters"]) parameters.insert(name.get<std::string>());
  }
  CHECK(parameters.contains("h.1.mlp.c_fc.weight"));
  CHECK(parameters.contains("wte.weight"));

  const json& pipeline = plan["pipeline"];
  CHECK(pipeline["schedule"] == "1f1b");
  CHECK(pipeline["bubble"].get<double>() == doctest::Approx(1.0 / 3));  // (stages - 1) / (micro-batches + stages - 1)
  REQUIRE(pipeline["chunks"].size() == 2);
  CHECK(pipeline["chunks"][0]["stage"] == 0);
  CHECK(pipeline["chunks"][0]["parts"][0] == "wte");
  CHECK(pipeline["chunks"].back()["parts"].back() == "loss");

  // What it decided is a strategy to write down: it gives the same plan.
  std::vector<std::string> again = arguments;
  again[3] = "strategy=" + strategy.dump();
  CHECK(parsed(in(again))["hash"] == plan["hash"]);
  const std::string text = in({arguments.begin(), arguments.end() - 1}).out;
  for (const char* part : {"stage 0", "stage 1", "the fullest", "chunks of the model", "bubble 33.3%", "F0",
                           "gathered 1×", "reduced each micro-batch"})
    CHECK(contains(text, part));
}

TEST_CASE("verify shows every quantity with its bound, exits 0, and touches nothing of the job's") {
  const Workplace in;
  const std::vector<std::string> arguments{"verify",         "job.yaml", "cluster.devices_per_node=2",
                                           "strategy=zero3", "--steps",  "3"};
  const Outcome text = in(arguments);
  CAPTURE(text.err);
  CHECK(text.code == 0);
  for (const char* part : {"losses", "gradient norms", "weights together", "each weight", "holds", "rounding alone",
                           "the same training as on one rank"})
    CHECK(contains(text.out, part));
  std::vector<std::string> with_json = arguments;
  with_json.emplace_back("--json");
  const json proof = parsed(in(with_json));
  CHECK(proof["ok"] == true);
  CHECK(proof["steps"] == 3);
  CHECK(proof["strategy"]["data"]["kind"] == "zero3");
  for (const char* name : {"losses", "gradients", "weights"}) {
    CHECK(keys_of(proof[name]) == std::set<std::string>{"difference", "bound", "ok"});
    CHECK(proof[name]["difference"].get<double>() <= proof[name]["bound"].get<double>());
  }
  CHECK_FALSE(std::filesystem::exists(in.path("runs")));
  CHECK_FALSE(std::filesystem::exists(in.path("logs")));
  CHECK(in({"verify", "job.yaml", "--steps", "0"}).code == 64);
  CHECK(in({"verify", "job.yaml", "train.steps=0"}).code == 78);
  const Outcome codes = in({"verify", "job.yaml", "cluster.devices_per_node=2", "strategy.data.compression=int8"});
  CHECK(codes.code == 0);
  CHECK(contains(codes.out, "the same training as that of a serial simulation"));
  CHECK(contains(codes.out, "sums before codes"));
  const Outcome apart = in({"verify", "job.yaml", "cluster.devices_per_node=2", "trainable=[\"*.weight[2:]\"]",
                            "strategy.data.compression=int8"});
  CHECK(apart.code == 78);
  CHECK(contains(apart.err, "verify simulates no ranks that train rows of a table"));
}

TEST_CASE("plan says what is kept off the device") {
  const Workplace in;
  const Outcome plain = in({"plan", "job.yaml"});
  const Outcome moved = in({"plan", "job.yaml", "strategy={data: {kind: zero1}, offload: {optimizer: disk}}"});
  CHECK(contains(moved.out, "; offload: optimizer disk\n"));
  CHECK_FALSE(contains(plain.out, "offload: "));
}

TEST_CASE("a plan that does not fit exits 78 and is printed all the same") {
  const Workplace in;
  const Outcome outcome = in({"plan", "job.yaml", "cluster.memory_limit=200KiB", "--json"});
  CHECK(outcome.code == 78);
  const json plan = parsed(outcome);
  CHECK(plan["memory"]["fits"] == false);
  for (const json& one : plan["would_fit"]) CHECK(has_keys(one, {"overrides", "text"}));
  CHECK(contains(outcome.err, "error: train.batch"));
  CHECK(contains(outcome.err, " KiB a rank, and there are 200.0 KiB: "));
  CHECK(contains(in({"plan", "job.yaml", "cluster.memory_limit=200KiB"}).out, "DOES NOT FIT"));
  const Outcome run = in({"run", "job.yaml", "cluster.memory_limit=200KiB"});
  CHECK(run.code == 78);
  CHECK_FALSE(std::filesystem::exists(in.path("runs")));
}

TEST_CASE("a job whose weights and states alone do not fit is refused before it is planned") {
  const Workplace in;
  const std::string changed = in.with_change("dim: 16", "dim: 1048576");
  for (const char* command : {"plan", "validate", "run"}) {
    CAPTURE(command);
    const Outcome outcome = in({command, changed});
    CHECK(outcome.code == 78);
    CHECK(contains(outcome.err, "the model is too large for 1 rank: weights, gradients and optimizer states"));
    CHECK(contains(outcome.err, " TiB a rank"));
  }
  const json verdict = parsed(in({"validate", changed, "--json"}));
  CHECK(verdict["jobs"][0]["errors"][0].contains("remedies"));
}

TEST_CASE("a step of too many micro-batches is refused before it is planned") {
  const Workplace in;
  const Outcome outcome = in({"plan", "job.yaml", "train.batch={global: 100000000, micro: 1}"});
  CHECK(outcome.code == 78);
  CHECK(contains(outcome.err, "train.batch: 100000000 micro-batches"));
}

TEST_CASE("plan shows memory, communication and units to people, and every instruction when asked") {
  const Workplace in;
  const Outcome text = in({"plan", "job.yaml", "cluster.devices_per_node=2"});
  for (const char* part :
       {"strategy:", "mesh:", "memory of a rank", "optimizer", "the peak is at", "all_reduce", "units of parameters"})
    CHECK(contains(text.out, part));
  CHECK(text.err.empty());
  const Outcome instructions = in({"plan", "job.yaml", "--instructions"});
  CHECK(instructions.code == 0);
  CHECK(contains(instructions.out, "program step"));
  CHECK(contains(instructions.out, "launch adamw"));
}

TEST_CASE("plan says how the optimizer's states are kept, and in how many bytes a rank") {
  const Workplace in;
  CHECK(contains(in({"plan", "job.yaml"}).out, "states:     exp_avg, exp_avg_sq in f32; "));
  const Outcome text = in({"plan", "job.yaml", "train.optimizer.states=int8"});
  CHECK(contains(text.out, "states:     exp_avg, exp_avg_sq in int8; "));
  CHECK(contains(text.out, " a rank, in f32 they would be "));
  const json plan = parsed(in({"plan", "job.yaml", "train.optimizer.states=int8", "--json"}));
  const json f32 = parsed(in({"plan", "job.yaml", "--json"}));
  REQUIRE(plan["states"].size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(f32["states"][i]["format"] == "f32");
    CHECK(plan["states"][i]["format"] == "int8");
    CHECK(plan["states"][i]["name"] == (i == 0 ? "exp_avg" : "exp_avg_sq"));
    // A byte and 1/64 for the scale, of tensors that are padded to blocks.
    CHECK(plan["states"][i]["bytes"].get<double>() >= f32["states"][i]["bytes"].get<double>() / 4);
    CHECK(plan["states"][i]["bytes"] < f32["states"][i]["bytes"]);
  }
}

TEST_CASE("the effective job is a job that plans the same") {
  const Workplace in;
  const Outcome effective = in({"plan", "job.yaml", "train.steps=7", "--effective"});
  CHECK(effective.code == 0);
  CHECK(contains(effective.out, "command line"));
  CHECK(contains(effective.out, "default"));
  in.write("effective.yaml", effective.out);
  CHECK(parsed(in({"plan", "effective.yaml", "--json"}))["hash"] ==
        parsed(in({"plan", "job.yaml", "train.steps=7", "--json"}))["hash"]);
}

TEST_CASE("an override may name an installed graph") {
  const Workplace in;
  const std::vector<std::string> arguments{
      "plan", "job.yaml",
      "model={graph: models/llama.yaml, with: {layers: 1, heads: 2, kv_heads: 1, dim: 16, hidden: 32, vocab: 256}}"};
  const Outcome outcome = in(arguments);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
}

TEST_CASE("schema prints draft-07 schemas") {
  const Workplace in;
  for (const char* which : {"job", "graph"}) {
    const json schema = parsed(in({"schema", which}));
    CHECK(schema["$schema"] == "http://json-schema.org/draft-07/schema#");
  }
}

TEST_CASE("init writes a job that validates, and never over a file") {
  const Workplace in;
  CHECK(in({"init", "new.yaml", "--data", "text.txt"}).code == 0);
  CHECK(in({"validate", "new.yaml"}).code == 0);
  const Outcome again = in({"init", "job.yaml"});
  CHECK(again.code == 74);
  CHECK(contains(again.err, "job.yaml"));
  CHECK(contents_of(in.path("job.yaml")) == kJob);
}

TEST_CASE("the job of the README validates") {
  const Workplace in;
  const std::string readme = contents_of(TRAINER_SOURCE_DIR "/README.md");
  const std::size_t begin = readme.find("```yaml\n") + 8;
  in.write("readme.yaml", readme.substr(begin, readme.find("```", begin) - begin));
  const Outcome outcome = in({"validate", "readme.yaml"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
}

TEST_CASE("doctor names what the machine has, and every environment switch with its meaning") {
  const Workplace in;
  const json found = parsed(in({"doctor", "--json"}));
  CHECK(has_keys(found, {"cores", "threads", "instruction_set", "memory_bytes", "onednn", "openmp", "huge_pages",
                         "disk_free_bytes", "switches", "missing"}));
  CHECK(found["threads"] == 1);  // the tests set TRAINER_THREADS
  bool threads = false;
  for (const json& one : found["switches"]) {
    CHECK_FALSE(one["meaning"].get<std::string>().empty());
    threads = threads || (one["name"] == "TRAINER_THREADS" && one["value"] == "1");
  }
  CHECK(threads);
  const std::string text = in({"doctor"}).out;
  for (const char* part : {"instruction set", "memory", "oneDNN 3", "TRAINER_ISA"}) CHECK(contains(text, part));
}

}  // namespace trainer::plan_command_test
