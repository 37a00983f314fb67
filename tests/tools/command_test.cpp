// Every subcommand from outside: what it prints where, its keys, its exit codes. A tiny GPT over a tiny text serves
// all.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "tests/temporary.h"
#include "tests/tools/process.h"

using nlohmann::json;
using trainer::tests::contains;
using trainer::tests::contents_of;
using trainer::tests::Outcome;
using trainer::tests::Process;
using trainer::tests::TemporaryFolder;

namespace {

constexpr const char* kJob = R"(name: tiny
model:
  graph: models/gpt2.yaml
  with: {layers: 2, heads: 2, dim: 16, vocab: 256, context: 8}
data:
  format: text
  train: text.txt
  val: {fraction: 0.2}
  seq_len: 8
train:
  steps: 6
  batch: {global: 4}
  optimizer: {lr: 1.0e-2}
eval: {every: 3, batches: 2}
checkpoint: {dir: runs, every: 2, keep: 3}
log: {every: 2, jsonl: logs/log.jsonl, tensorboard: logs/tb, trace: logs/trace.json}
)";

// A folder with the job and its text.
class Workplace : public TemporaryFolder {
 public:
  Workplace() {
    write("job.yaml", kJob);
    std::string text;
    for (int i = 0; i < 60; ++i) text += "the quick brown fox jumps over the lazy dog\n";
    write("text.txt", text);
  }
  Outcome operator()(std::vector<std::string> arguments) const { return trainer::tests::trainer(path(), arguments); }
  /// The same with another job beside it.
  std::string with_change(const std::string& from, const std::string& to) const {
    std::string job = kJob;
    const std::size_t at = job.find(from);
    REQUIRE(at != std::string::npos);
    job.replace(at, from.size(), to);
    write("changed.yaml", job);
    return "changed.yaml";
  }
};

json parsed(const Outcome& outcome) {
  INFO(outcome.err);
  const json document = json::parse(outcome.out, nullptr, false);
  REQUIRE_FALSE(document.is_discarded());
  return document;
}

std::set<std::string> keys_of(const json& object) {
  std::set<std::string> keys;
  for (const auto& item : object.items()) keys.insert(item.key());
  return keys;
}

bool has_keys(const json& object, const std::set<std::string>& wanted) {
  const std::set<std::string> keys = keys_of(object);
  return std::includes(keys.begin(), keys.end(), wanted.begin(), wanted.end());
}

std::vector<json> lines_of(const std::string& path) {
  std::vector<json> lines;
  std::istringstream text(contents_of(path));
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

void flip_byte(const std::string& path, std::int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
}

}  // namespace

// ---- The command line
// --------------------------------------------------------------------------------------------------

TEST_CASE("every subcommand has help with an example, on stdout") {
  const Workplace in;
  for (const std::string name : {"run", "plan", "validate", "verify", "eval", "sample", "export", "inspect", "schema",
                                 "init", "doctor", "tokenize", "tokenizer"}) {
    CAPTURE(name);
    const Outcome help = in({name, "--help"});
    CHECK(help.code == 0);
    CHECK(contains(help.out, "Example"));
    CHECK(contains(help.out, "trainer " + name));
    CHECK(help.err.empty());
  }
  CHECK(contains(in({"--help"}).out, "Exit codes"));
  CHECK(contains(in({"--version"}).out, "trainer "));
  CHECK(in({}).out == in({"--help"}).out);
}

TEST_CASE("a wrong command line exits 64 and leaves stdout empty") {
  const Workplace in;
  const std::vector<std::vector<std::string>> wrong{{"rnu", "job.yaml"},
                                                    {"run"},
                                                    {"run", "job.yaml", "--jsno"},
                                                    {"plan", "job.yaml", "train.steps"},
                                                    {"sample", "job.yaml", "--tokens", "-3"},
                                                    {"schema", "jobs"},
                                                    {"plan", "job.yaml", "--json", "--effective"},
                                                    {"inspect"}};
  for (const auto& arguments : wrong) {
    const Outcome outcome = in(arguments);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 64);
    CHECK(outcome.out.empty());
    CHECK_FALSE(outcome.err.empty());
  }
  CHECK(contains(in({"rnu"}).err, "did you mean \"run\"?"));
}

TEST_CASE("a missing job file exits 74 and is named") {
  const Workplace in;
  for (const char* command : {"run", "plan", "eval", "sample", "validate"}) {
    const Outcome outcome = in({command, "nowhere.yaml"});
    CHECK(outcome.code == 74);
    CHECK(contains(outcome.err, "nowhere.yaml"));
  }
}

TEST_CASE("a bad job exits 78, every mistake on a line of its own with its place") {
  const Workplace in;
  in.write("changed.yaml", std::string(kJob) + "trian: {steps: 3}\nprecision: {compute: f33}\n");
  for (const char* command : {"run", "plan", "eval", "sample", "validate"}) {
    const Outcome outcome = in({command, "changed.yaml"});
    CAPTURE(outcome.err);
    CHECK(outcome.code == 78);
    CHECK(contains(outcome.err, "changed.yaml:17:1: error: trian"));
    CHECK(contains(outcome.err, "did you mean \"train\"?"));
    CHECK(contains(outcome.err, "changed.yaml:18:22: error: precision.compute"));
  }
  CHECK_FALSE(std::filesystem::exists(in.path("runs")));
}

// ---- validate, plan, schema, init, doctor
// ------------------------------------------------------------------------------

TEST_CASE("validate says of each job whether it is right") {
  const Workplace in;
  const std::string bad = in.with_change("steps: 6", "stps: 6");
  const Outcome outcome = in({"validate", "job.yaml", bad, "--json"});
  CHECK(outcome.code == 78);
  const json jobs = parsed(outcome)["jobs"];
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[0] == json{{"file", "job.yaml"}, {"ok", true}, {"errors", json::array()}, {"warnings", json::array()}});
  CHECK(jobs[1]["file"] == bad);
  CHECK(jobs[1]["ok"] == false);
  REQUIRE_FALSE(jobs[1]["errors"].empty());
  for (const json& error : jobs[1]["errors"])
    CHECK(has_keys(error, {"file", "line", "column", "path", "message", "value", "allowed", "suggestion"}));
  CHECK(std::any_of(jobs[1]["errors"].begin(), jobs[1]["errors"].end(),
                    [](const json& error) { return error["path"] == "train.stps" && error["suggestion"] == "steps"; }));
  CHECK(in({"validate", "job.yaml"}).code == 0);
  CHECK_FALSE(std::filesystem::exists(in.path("runs")));
  CHECK_FALSE(std::filesystem::exists(in.path("logs")));
}

TEST_CASE("validate refuses a job that cannot fit, and a mistake in the graph") {
  const Workplace in;
  const std::string huge = in.with_change("dim: 16", "dim: 1048576");
  const Outcome outcome = in({"validate", huge, "--json"});
  CHECK(outcome.code == 78);
  CHECK(contains(parsed(outcome)["jobs"][0]["errors"][0]["message"].get<std::string>(), "bytes"));
  const Outcome odd = in({"validate", in.with_change("heads: 2", "heads: 3")});
  CHECK(odd.code == 78);
  CHECK(contains(odd.err, "gpt2.yaml:"));
}

TEST_CASE("a cluster of GPUs is planned and validated here, and running it is refused") {
  const Workplace in;
  const std::vector<std::string> gpus{"cluster.hardware=h100-sxm", "cluster.nodes=2", "train.batch.global=16",
                                      "strategy=ddp"};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), gpus.begin(), gpus.end());
    return in(arguments);
  };
  const Outcome outcome = with({"plan", "job.yaml", "--json"});
  CHECK(outcome.code == 0);
  const json plan = parsed(outcome);
  CHECK(plan["world_size"] == 16);  // two nodes of as many as the file says
  CHECK(plan["memory"]["limit_bytes"].get<double>() > 70e9);
  CHECK(plan["predicted"]["hardware"] == "h100-sxm");
  CHECK(plan["predicted"]["step_ms"].get<double>() > 0);

  const std::string mine = in.write("mine.yaml", "base: h100-sxm\ndevice: {memory: 16GiB}\n");
  const Outcome own = in({"plan", "job.yaml", "cluster.hardware=" + mine, "cluster.devices_per_node=4",
                          "cluster.memory_limit=2GiB", "--json"});
  CHECK(own.code == 0);
  CHECK(parsed(own)["world_size"] == 4);
  CHECK(parsed(own)["memory"]["limit_bytes"] == std::int64_t{2} << 30);

  const std::string job = in.with_change("log: {", "cluster: {hardware: h100-sxm, devices_per_node: 4}\nlog: {");
  CHECK(in({"validate", job}).code == 0);
  for (const char* command : {"run", "verify", "eval", "sample"}) {
    CAPTURE(command);
    const Outcome refused = in({command, job});
    CHECK(refused.code == 78);
    CHECK(contains(refused.err, "here the job can be planned and validated"));
    CHECK(contains(refused.err, "changed.yaml:16:21"));
  }
  CHECK_FALSE(std::filesystem::exists(in.path("runs")));
}

TEST_CASE("what was measured here changes what plan predicts and never the plan") {
  const Workplace in;
  ::setenv("XDG_CONFIG_HOME", in.path("config").c_str(), 1);
  const json before = parsed(in({"plan", "job.yaml", "--json"}));
  in.write("config/trainer/hardware.yaml",
           "base: cpu-avx512\ndevice: {memory: 1GiB, memory_bandwidth: 3e9, peak: {f32: 1e10}}\nmeasured_here: true\n");
  const json after = parsed(in({"plan", "job.yaml", "--json"}));
  ::unsetenv("XDG_CONFIG_HOME");
  CHECK(contains(before["predicted"]["hardware_from"].get<std::string>(), "has not measured"));
  CHECK(contains(after["predicted"]["hardware_from"].get<std::string>(), in.path("config/trainer/hardware.yaml")));
  CHECK(after["predicted"]["step_ms"].get<double>() > before["predicted"]["step_ms"].get<double>());
  CHECK(after["hash"] == before["hash"]);
  CHECK(after["memory"] == before["memory"]);
}

TEST_CASE("a processor with AVX2 alone has figures of its own, and a bf16 job on it says what it costs") {
  const Workplace in;
  ::setenv("XDG_CONFIG_HOME", in.path("config").c_str(), 1);  // nothing measured there
  if (parsed(in({"doctor", "--json"}))["instruction_set"] == "portable") return;
  ::setenv("TRAINER_ISA", "avx2", 1);
  const json doctor = parsed(in({"doctor", "--json"}));
  const json f32 = parsed(in({"plan", "job.yaml", "precision.compute=f32", "--json"})),
             bf16 = parsed(in({"plan", "job.yaml", "precision.compute=bf16", "--json"}));
  const std::string text = in({"plan", "job.yaml", "precision.compute=bf16"}).out;
  const Outcome run =
      in({"run", "job.yaml", "precision.compute=bf16", "train.steps=1", "checkpoint.dir=null", "log.jsonl=null"});
  ::unsetenv("TRAINER_ISA");
  ::unsetenv("XDG_CONFIG_HOME");
  CHECK(contains(doctor["figures"].get<std::string>(), "by the figures of cpu-avx2"));
  CHECK(contains(bf16["predicted"]["hardware_from"].get<std::string>(), "by the figures of cpu-avx2"));
  CHECK(f32["without_bf16"].is_null());
  CHECK(bf16["without_bf16"]["instruction_set"] == "avx2");
  CHECK(bf16["without_bf16"]["peak_bytes_f32"] == f32["memory"]["peak_bytes"]);
  CHECK(bf16["without_bf16"]["step_ms_f32"].get<double>() ==
        doctest::Approx(f32["predicted"]["step_ms"].get<double>()));
  CHECK(contains(text, "this processor (avx2) has no bf16 instructions"));
  CHECK(run.code == 0);
  CHECK(contains(run.err, "this processor (avx2) has no bf16 instructions"));
}

TEST_CASE("a wrong hardware file and a job that contradicts it are told at their lines") {
  const Workplace in;
  in.write("mine.yaml", "base: h100-sxm\ndevice:\n  memory_bandwidth: 0\n  peak: {bf61: 1e15}\n");
  const Outcome wrong = in({"plan", "job.yaml", "cluster.hardware=./mine.yaml"});
  CHECK(wrong.code == 78);
  CHECK(contains(wrong.err, "mine.yaml:3:21: error: device.memory_bandwidth: out of range (found 0)"));
  CHECK(contains(wrong.err, "did you mean \"bf16\""));
  const Outcome misspelt = in({"plan", "job.yaml", "cluster.hardware=h100-smx"});
  CHECK(misspelt.code == 78);
  CHECK(contains(misspelt.err, "did you mean \"h100-sxm\""));
  const Outcome asked = in({"validate", in.with_change("log: {", "cluster: {device: cuda}\nlog: {"), "--json"});
  CHECK(asked.code == 78);
  const json error = parsed(asked)["jobs"][0]["errors"][0];
  CHECK(error["path"] == "cluster.device");
  CHECK(contains(error["allowed"].get<std::string>(), "h100-sxm"));
}

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
  CHECK(plan["mesh"] == json{{"pipeline", 1}, {"replicate", 2}, {"shard", 1}, {"context", 1}, {"tensor", 1}});
  CHECK(plan["strategy"]["data"]["kind"] == "ddp");
  // wte and wpe, then of two blocks: 12 · dim² weights and 13 · dim biases and norms, then ln_f.
  CHECK(plan["parameters"] == 256 * 16 + 8 * 16 + 2 * (12 * 16 * 16 + 13 * 16) + 2 * 16);
  CHECK(plan["flops_per_step"].get<double>() > 6.0 * 32 * 2 * 12 * 16 * 16);  // products alone, of 32 tokens

  const json memory = plan["memory"];
  CHECK(has_keys(memory, {"limit_bytes", "peak_bytes", "fits", "by_category", "peak_at"}));
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
  CHECK(in({"verify", "job.yaml", "cluster.devices_per_node=2", "strategy.data.compression=int8"}).code == 78);
}

TEST_CASE("a plan that does not fit exits 78 and is printed all the same") {
  const Workplace in;
  const Outcome outcome = in({"plan", "job.yaml", "cluster.memory_limit=300KiB", "--json"});
  CHECK(outcome.code == 78);
  const json plan = parsed(outcome);
  CHECK(plan["memory"]["fits"] == false);
  for (const json& one : plan["would_fit"]) CHECK(has_keys(one, {"overrides", "text"}));
  CHECK(contains(outcome.err, "error: train.batch"));
  CHECK(contains(outcome.err, " KiB a rank, and there are 300.0 KiB: "));
  CHECK(contains(in({"plan", "job.yaml", "cluster.memory_limit=300KiB"}).out, "DOES NOT FIT"));
  const Outcome run = in({"run", "job.yaml", "cluster.memory_limit=300KiB"});
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

// ---- run, eval, sample, inspect
// ----------------------------------------------------------------------------------------

TEST_CASE("run trains, logs, saves and reports") {
  const Workplace in;
  const Outcome outcome = in({"run", "job.yaml", "--json"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const json report = parsed(outcome);
  CHECK(has_keys(report, {"plan_hash", "strategy", "world_size", "steps", "loss", "val_loss", "tokens_per_s", "step_ms",
                          "startup_ms", "planned_peak_bytes", "allocated_bytes", "checkpoint"}));
  CHECK(has_keys(report["step_ms"], {"median", "p95"}));
  CHECK(report["steps"] == 6);
  CHECK(report["world_size"] == 1);
  CHECK(report["planned_peak_bytes"] == report["allocated_bytes"]);
  CHECK(report["startup_ms"].get<double>() > 0);
  CHECK(report["checkpoint"] == "runs/step-00000006");
  CHECK(report["plan_hash"] == parsed(in({"plan", "job.yaml", "--json"}))["hash"]);

  const std::vector<json> lines = lines_of(in.path("logs/log.jsonl"));
  REQUIRE(lines.size() == 9);  // the start, six steps, two evaluations
  CHECK(lines[0]["event"] == "start");
  CHECK(lines[0]["run"] == report["run_id"]);
  CHECK(lines[0]["plan_hash"] == report["plan_hash"]);
  CHECK(keys_of(lines[1]) == std::set<std::string>{"step", "loss", "lr", "grad_norm", "tokens", "step_ms",
                                                   "tokens_per_s", "time", "samples", "epoch", "memory_bytes", "mfu"});
  CHECK(lines[1]["tokens"] == 32);
  CHECK(lines[2]["samples"] == 8);
  CHECK(lines[2]["epoch"].get<double>() > 0);
  CHECK(lines[1]["memory_bytes"] == report["allocated_bytes"]);
  CHECK(lines[4]["step"] == 3);
  CHECK(has_keys(lines[4], {"val_loss"}));
  CHECK(lines[7]["loss"] == report["loss"]);
  CHECK(lines[8]["val_loss"] == report["val_loss"]);

  for (const char* part : {"parameters", "strategy:", "memory:", "step 1/6: loss", "step 6/6: loss", "validation loss",
                           "saved runs/step-00000006"})
    CHECK(contains(outcome.err, part));
  CHECK(std::filesystem::exists(in.path("runs/step-00000002")));
  CHECK_FALSE(std::filesystem::is_empty(in.path("logs/tb")));
}

TEST_CASE("what auto chose can be pasted into the job and gives the same plan") {
  const Workplace in;
  const json chosen = parsed(in({"plan", "job.yaml", "cluster.devices_per_node=2", "strategy=auto", "--json"}));
  REQUIRE(chosen["alternatives"].size() > 3);
  CHECK(chosen["alternatives"][0]["strategy"]["data"]["kind"] == chosen["strategy"]["data"]["kind"]);
  CHECK_FALSE(chosen["alternatives"][0].contains("rejected"));
  for (std::size_t i = 1; i < chosen["alternatives"].size(); ++i)
    CHECK(has_keys(chosen["alternatives"][i], {"strategy", "predicted_ms", "peak_bytes", "rejected"}));
  const json pasted =
      parsed(in({"plan", "job.yaml", "cluster.devices_per_node=2", "strategy=" + chosen["strategy"].dump(),
                 "train.batch.micro=" + chosen["batch"]["micro"].dump(),
                 "activation_checkpointing=" + chosen["activation_checkpointing"].dump(), "--json"}));
  CHECK(pasted["hash"] == chosen["hash"]);
  CHECK(pasted["alternatives"].empty());
}

TEST_CASE("a trace has every instruction of a step on every rank, with its bytes") {
  const Workplace in;
  const Outcome outcome = in({"run", "job.yaml", "cluster.devices_per_node=2", "strategy=ddp", "checkpoint.dir=null"});
  REQUIRE(outcome.code == 0);
  const json events = json::parse(contents_of(in.path("logs/trace.json")));
  const json plan =
      parsed(in({"plan", "job.yaml", "cluster.devices_per_node=2", "strategy=ddp", "checkpoint.dir=null", "--json"}));
  std::map<int, std::int64_t> instructions, predicted;
  std::map<int, std::string> names;
  bool reduced = false;
  for (const json& event : events) {
    if (event["name"] == "process_name") names[event["pid"].get<int>()] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    CHECK(event["ts"].get<double>() >= 0);
    CHECK(event["args"].contains("bytes"));
    if (event["cat"] == "predicted") {
      ++predicted[event["pid"].get<int>()];
      continue;
    }
    ++instructions[event["pid"].get<int>()];
    reduced = reduced || (event["cat"] == "collective" && event["tid"] == 1);
  }
  const std::int64_t wanted = plan["instructions"]["step"].get<std::int64_t>();
  CHECK(instructions == std::map<int, std::int64_t>{{0, wanted}, {1, wanted}});
  CHECK(predicted == std::map<int, std::int64_t>{{2, wanted}, {3, wanted}});
  CHECK(names ==
        std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}, {2, "rank 0, predicted"}, {3, "rank 1, predicted"}});
  CHECK(reduced);
  CHECK(contains(outcome.err, "rank 1, last step: computing"));
  for (const char* part : {"the step was predicted to take", "measured / predicted", "all_reduce replicate"})
    CHECK(contains(outcome.err, part));
}

TEST_CASE(
    "plan predicts the step: its parts add up, its interval holds it, and its trace has every instruction of every "
    "stage") {
  const Workplace in;
  const Outcome outcome = in({"plan", "job.yaml", "cluster.devices_per_node=2", "strategy={pipeline: {degree: 2}}",
                              "train.batch.micro=2", "--json", "--trace", "predicted/step.json"});
  REQUIRE(outcome.code == 0);
  const json plan = parsed(outcome), predicted = plan["predicted"];
  CHECK(has_keys(predicted, {"step_ms", "compute_ms", "exposed_communication_ms", "bubble_ms", "optimizer_ms",
                             "input_ms", "low_ms", "high_ms", "tokens_per_s", "mfu", "hardware"}));
  const auto number = [&](const json& of, const char* key) { return of[key].get<double>(); };
  const double step = number(predicted, "step_ms");
  CHECK(number(predicted, "low_ms") <= step);
  CHECK(step <= number(predicted, "high_ms"));
  CHECK(number(predicted, "mfu") > 0);
  CHECK(number(predicted, "mfu") < 1);
  CHECK(number(predicted, "tokens_per_s") == doctest::Approx(32 / (step * 1e-3)));
  CHECK(number(predicted, "bubble_ms") > 0);
  REQUIRE(predicted["stages"].size() == 2);
  for (const json& stage : predicted["stages"]) {
    double sum = 0;
    for (const char* part : {"compute_ms", "exposed_communication_ms", "bubble_ms", "optimizer_ms", "input_ms"})
      sum += number(stage, part);
    CHECK(sum == doctest::Approx(step));
  }
  std::map<int, std::int64_t> instructions;
  double end = 0;
  for (const json& event : json::parse(contents_of(in.path("predicted/step.json")))) {
    if (event["ph"] != "X") continue;
    ++instructions[event["pid"].get<int>()];
    end = std::max(end, number(event, "ts") + number(event, "dur"));
  }
  CHECK(instructions.size() == 2);
  CHECK(instructions[0] == plan["instructions"]["step"].get<std::int64_t>());
  CHECK(end == doctest::Approx(step * 1e3).epsilon(1e-3));
  CHECK(contains(in({"plan", "job.yaml"}).out, "a step on "));
}

TEST_CASE("of ranks that train apart plan predicts what bringing them together adds") {
  const Workplace in;
  const json plan =
      parsed(in({"plan", "job.yaml", "cluster.devices_per_node=2", "strategy={data: {kind: local_sgd, every: 4}}",
                 "eval.every=4", "checkpoint.every=4", "--json"}));
  const json predicted = plan["predicted"];
  CHECK(predicted["average_every"] == 4);
  const double step = predicted["step_ms"].get<double>(), average = predicted["average_ms"].get<double>();
  CHECK(average > 0);
  CHECK(predicted["tokens_per_s"].get<double>() == doctest::Approx(32 / ((step + average / 4) * 1e-3)));
  CHECK_FALSE(
      parsed(in({"plan", "job.yaml", "cluster.devices_per_node=2", "--json"}))["predicted"].contains("average_ms"));
}

TEST_CASE("the trace of a pipeline has an arrow for every message") {
  const Workplace in;
  REQUIRE(in({"run", "job.yaml", "cluster.devices_per_node=2", "strategy={pipeline: {degree: 2}}",
              "train.batch.micro=2", "checkpoint.dir=null"})
              .code == 0);
  std::map<std::int64_t, std::set<std::string>> arrows;
  for (const json& event : json::parse(contents_of(in.path("logs/trace.json"))))
    if (event["ph"] == "s" || event["ph"] == "f")
      arrows[event["id"].get<std::int64_t>()].insert(event["ph"].get<std::string>());
  CHECK(arrows.size() >= 4);  // of two micro-batches, forward and back
  for (const auto& [id, ends] : arrows) CHECK(ends == std::set<std::string>{"s", "f"});
}

TEST_CASE("a finished run says that nothing is left to do and touches nothing") {
  const Workplace in;
  REQUIRE(in({"run", "job.yaml"}).code == 0);
  const std::string trace = contents_of(in.path("logs/trace.json")), log = contents_of(in.path("logs/log.jsonl"));
  const Outcome again = in({"run", "job.yaml", "--json"});
  CHECK(again.code == 0);
  CHECK(contains(again.err, "nothing left to do: 6 of 6 steps"));
  const json report = parsed(again);
  CHECK(report["finished_before"] == true);
  CHECK(report["steps"] == 6);
  CHECK(report["tokens_per_s"].is_null());
  CHECK(contents_of(in.path("logs/trace.json")) == trace);
  CHECK(contents_of(in.path("logs/log.jsonl")) == log);
  CHECK(std::distance(std::filesystem::directory_iterator(in.path("logs/tb")), {}) == 1);
  const Outcome changed = in({"run", "job.yaml", "train.optimizer.lr=0.5"});
  CHECK(changed.code == 78);
  CHECK(contains(changed.err, "has finished with another value"));
}

TEST_CASE(
    "weights are saved in runs/<name> beside the job unless checkpoint.dir is null, which the first line repeats") {
  const Workplace in;
  const std::string job = in.with_change("checkpoint: {dir: runs, every: 2, keep: 3}", "checkpoint: {every: 2}");
  REQUIRE(in({"run", job}).code == 0);
  CHECK(std::filesystem::exists(in.path("runs/tiny/step-00000006")));
  const Outcome none = in({"run", job, "checkpoint={dir: null}"});
  CHECK(none.code == 0);
  CHECK(none.err.starts_with("weights will not be saved: checkpoint.dir is null\n"));
}

TEST_CASE("a trace does not overwrite a file that is not one") {
  const Workplace in;
  const std::string text = contents_of(in.path("text.txt"));
  const Outcome outcome = in({"run", "job.yaml", "log.trace=text.txt"});
  CHECK(outcome.code == 65);
  CHECK(contains(outcome.err, "is not a trace"));
  CHECK(contents_of(in.path("text.txt")) == text);
}

TEST_CASE("run without --json prints a summary for people") {
  const Workplace in;
  const Outcome outcome = in({"run", "job.yaml"});
  CHECK(outcome.code == 0);
  for (const char* part : {"steps: 6", "loss: ", "validation loss: ", "checkpoint: runs/step-00000006"})
    CHECK(contains(outcome.out, part));
}

TEST_CASE("a run that was stopped by a signal saves, exits 143, and goes on to the bits of an undisturbed one") {
  const Workplace in;
  const std::vector<std::string> arguments{
      "run", "job.yaml", "train.steps=3000", "eval.every=10000", "checkpoint.every=10000", "--json"};
  const Workplace undisturbed;
  const Outcome whole = undisturbed(arguments);
  REQUIRE(whole.code == 0);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
    CAPTURE(number);
    Process process(in.path(), arguments);
    const std::string log = in.path("logs/log.jsonl");
    const std::size_t before = contents_of(log).size();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (contents_of(log).size() <= before + 500 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    process.signal(number);
    const Outcome stopped = process.wait();
    CAPTURE(stopped.err);
    REQUIRE(stopped.code == 143);
    const json report = parsed(stopped);
    CHECK(report["stopped_by_signal"] == true);
    CHECK(std::filesystem::exists(in.path(report["checkpoint"].get<std::string>())));
  }
  const Outcome resumed = in(arguments);
  CHECK(resumed.code == 0);
  CHECK(contains(resumed.err, "resuming from runs/step-"));
  CHECK(parsed(resumed)["loss"] == parsed(whole)["loss"]);
  std::int64_t step = 0;
  for (const json& line : lines_of(in.path("logs/log.jsonl")))
    if (line.contains("loss")) CHECK(line["step"] == step++);
  CHECK(step == 3000);
}

TEST_CASE("zero steps write the initial weights, which eval can measure") {
  const Workplace in;
  const Outcome outcome = in({"run", "job.yaml", "train.steps=0", "--json"});
  CHECK(outcome.code == 0);
  CHECK(parsed(outcome)["loss"].is_null());
  const json record = parsed(in({"eval", "job.yaml", "--checkpoint", "runs/step-00000000", "--json"}));
  CHECK(record["step"] == 0);
  CHECK(record["val_loss"].get<double>() ==
        doctest::Approx(std::log(256.0)).epsilon(0.02));  // nearly uniform over 256 ids
}

TEST_CASE("eval gives the validation loss that the run gave, of the newest checkpoint by default") {
  const Workplace in;
  const json report = parsed(in({"run", "job.yaml", "--json"}));
  const json record = parsed(in({"eval", "job.yaml", "--json"}));
  CHECK(record["step"] == 6);
  CHECK(record["val_loss"].get<double>() == doctest::Approx(report["val_loss"].get<double>()).epsilon(1e-6));
  CHECK(parsed(in({"eval", "job.yaml", "--checkpoint", "runs/step-00000004", "--json"}))["step"] == 4);
  CHECK(in({"eval", "job.yaml", "--checkpoint", "runs/step-00000004/model.safetensors", "--json"}).code == 0);
  CHECK(contains(in({"eval", "job.yaml", "--batches", "0"}).out, "validation loss: "));
}

TEST_CASE("sample goes on from its prompt, the same for the same seed") {
  const Workplace in;
  REQUIRE(in({"run", "job.yaml", "train.steps=100"}).code == 0);
  const std::vector<std::string> arguments{"sample",   "job.yaml", "--prompt",      "the quick",
                                           "--tokens", "20",       "--temperature", "0"};
  const Outcome text = in(arguments);
  CHECK(text.code == 0);
  CHECK(text.out.starts_with("the quick"));
  CHECK(text.out.size() == std::string("the quick").size() + 20 + 1);
  CHECK(in(arguments).out == text.out);
  const Outcome document =
      in({"sample", "job.yaml", "--prompt", "the quick", "--tokens", "20", "--temperature", "0", "--json"});
  CHECK(parsed(document)["text"].get<std::string>() + "\n" == text.out);
}

TEST_CASE("of the likeliest tokens top-p 0 takes the first, and a stop id ends the text before itself") {
  const Workplace in;
  REQUIRE(in({"run", "job.yaml", "train.steps=100"}).code == 0);
  const auto sample = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"sample", "job.yaml", "--prompt", "the", "--tokens", "30", "--json"});
    return parsed(in(more));
  };
  const json greedy = sample({"--temperature", "0"});
  CHECK(greedy["ids"].size() == 33);
  CHECK(sample({"--top-p", "0"})["ids"] == greedy["ids"]);
  CHECK(sample({"--temperature", "5"})["ids"] != greedy["ids"]);
  CHECK(sample({"--temperature", "5", "--top-p", "0.000001"})["ids"] == greedy["ids"]);
  CHECK(sample({"--temperature", "5", "--top-p", "1"}) == sample({"--temperature", "5"}));
  const json stop = greedy["ids"][10];
  json expected = json::array();
  for (std::size_t i = 0; i < 33 && (i < 3 || greedy["ids"][i] != stop); ++i) expected.push_back(greedy["ids"][i]);
  CHECK(sample({"--temperature", "0", "--stop", stop.dump()})["ids"] == expected);
}

TEST_CASE("a job of token ids is sampled by ids") {
  const Workplace in;
  std::string ids;
  for (int i = 0; i < 2000; ++i) ids += {static_cast<char>(i * i % 50), '\0'};
  in.write("ids.bin", ids);
  const std::string job = in.with_change("  format: text\n  train: text.txt", "  format: tokens\n  train: ids.bin");
  REQUIRE(in({"run", job}).code == 0);
  const Outcome text = in({"sample", job, "--prompt", "12 44 5", "--tokens", "4", "--temperature", "0"});
  CHECK(text.code == 0);
  CHECK(text.out.starts_with("12 44 5 "));
  const json document =
      parsed(in({"sample", job, "--prompt", "12 44 5", "--tokens", "4", "--temperature", "0", "--json"}));
  CHECK(document["ids"].size() == 7);
  CHECK_FALSE(document.contains("text"));
  std::string joined;
  for (const json& id : document["ids"]) joined += (joined.empty() ? "" : " ") + id.dump();
  CHECK(text.out == joined + "\n");
  const Outcome none = in({"sample", job});
  CHECK(none.code == 64);
  CHECK(contains(none.err, "--prompt \"50256\""));
  const Outcome words = in({"sample", job, "--prompt", "the quick"});
  CHECK(words.code == 65);
  CHECK(contains(words.err, "\"the\" is no token id"));
  CHECK(in({"sample", job, "--prompt", "256"}).code == 65);
}

TEST_CASE("inspect lists a checkpoint's files and tensors") {
  const Workplace in;
  REQUIRE(in({"run", "job.yaml", "cluster.devices_per_node=2", "checkpoint.format=sharded",
              "strategy={data: {kind: ddp, bucket_mb: 0.001}}"})
              .code == 0);
  const Outcome outcome = in({"inspect", "runs", "--json"});
  CHECK(outcome.code == 0);
  const json contents = parsed(outcome);
  CHECK(has_keys(contents, {"step", "strategy", "world_size", "files", "tensors"}));
  CHECK(contents["step"] == 6);
  CHECK(contents["strategy"] == "ddp");
  CHECK(contents["world_size"] == 2);
  CHECK(contents["files"].size() == 5);  // two ranks, two kinds, and the graph
  CHECK(contents["other_checkpoints"].size() == 2);
  bool found = false;
  for (const json& tensor : contents["tensors"])
    found = found || tensor == json{{"name", "h.0.attn.c_attn.weight"}, {"dtype", "f32"}, {"shape", {48, 16}}};
  CHECK(found);
  const Outcome file = in({"inspect", "runs/step-00000006/model-00001-of-00002.safetensors"});
  CHECK(file.code == 0);
  CHECK(contains(file.out, "f32"));
}

TEST_CASE("export writes the weights of the newest checkpoint, and never over what is there") {
  const Workplace in;
  REQUIRE(in({"run", "job.yaml"}).code == 0);
  const Outcome outcome = in({"export", "runs", "out", "--dtype", "bf16", "--shard-size", "4KB", "--json"});
  CHECK(outcome.code == 0);
  const json report = parsed(outcome);
  CHECK(report["source"] == "runs/step-00000006");
  CHECK(report["dtype"] == "bf16");
  CHECK(report["files"].size() > 2);
  CHECK(std::filesystem::exists(in.path("out/model.safetensors.index.json")));
  CHECK(contains(outcome.err, "a graph of its own"));
  CHECK(in({"export", "runs", "out"}).code == 74);
  CHECK(in({"export", "runs", "other", "--dtype", "q8_0"}).code == 64);
  CHECK(in({"export", "runs", "other", "--format", "adapter"}).code == 64);
  CHECK(in({"export", "runs", "other", "--shard-size", "5 apples"}).code == 64);
  CHECK(in({"export", "runs", "other", "--format", "gguf"}).code == 65);
  CHECK(in({"export", "nothing", "other"}).code == 65);
  CHECK_FALSE(std::filesystem::exists(in.path("other")));
}

TEST_CASE("inspect shows a name from a file without what a terminal would obey") {
  const Workplace in;
  const std::string header =
      R"({"w\u001b[2J\nevery checksum is right":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  const std::string length{static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
  std::ofstream(in.path("w.safetensors"), std::ios::binary) << length << header << 'x';
  const Outcome outcome = in({"inspect", "w.safetensors"});
  CHECK(outcome.code == 0);
  CHECK(contains(outcome.out, R"(w\x1b[2J\nevery checksum is right)"));
  CHECK(outcome.out.find('\x1b') == std::string::npos);
}

TEST_CASE("a damaged checkpoint is named: by inspect, by eval, and by a run that goes on from the one before") {
  const Workplace in;
  REQUIRE(in({"run", "job.yaml"}).code == 0);
  flip_byte(in.path("runs/step-00000006/model.safetensors"), 3000);
  const Outcome inspected = in({"inspect", "runs/step-00000006", "--json"});
  CHECK(inspected.code == 65);
  CHECK(contains(inspected.err, "runs/step-00000006/model.safetensors"));
  CHECK(parsed(inspected)["damaged"].size() == 1);
  CHECK(in({"eval", "job.yaml", "--checkpoint", "runs/step-00000006"}).code == 65);
  const std::string passed_over = "passed over a damaged checkpoint: runs/step-00000006/model.safetensors";
  const Outcome evaluated = in({"eval", "job.yaml", "cluster.devices_per_node=2", "strategy=ddp"});
  CHECK(evaluated.code == 0);
  CHECK(contains(evaluated.err, passed_over));
  CHECK(evaluated.err.find(passed_over) == evaluated.err.rfind(passed_over));
  CHECK(contains(in({"sample", "job.yaml", "--tokens", "2"}).err, passed_over));
  const std::string begun =
      in({"run", "job.yaml", "model.init_from=runs", "checkpoint.dir=other", "train.steps=1"}).err;
  CHECK(contains(begun, "passed over a damaged checkpoint: "));
  CHECK(contains(begun, "runs/step-00000006/model.safetensors: checksum"));
  const Outcome resumed = in({"run", "job.yaml"});
  CHECK(resumed.code == 0);
  CHECK(contains(resumed.err, "passed over a damaged checkpoint: runs/step-00000006/model.safetensors"));
  CHECK(contains(resumed.err, "resuming from runs/step-00000004"));

  flip_byte(in.path("runs/step-00000002/manifest.json"), 40);
  const Outcome manifest = in({"inspect", "runs/step-00000002"});
  CHECK(manifest.code == 65);
  CHECK(contains(manifest.err, "manifest.json"));
}

TEST_CASE("an adapter is evaluated beside its base, wherever that is, and beside no other") {
  const Workplace in;
  REQUIRE(in({"run", "job.yaml", "checkpoint.dir=base"}).code == 0);
  const std::string job = in.with_change("context: 8}", "context: 8}\n  init_from: base\nadapter: {rank: 2, alpha: 4}");
  const Outcome trained = in({"run", job});
  CHECK(trained.code == 0);
  CHECK(contains(trained.err, " of them trained"));
  // Of two blocks, rank · (in + out) of four linears.
  CHECK(parsed(in({"plan", job, "--json"}))["trained_parameters"] ==
        2 * 2 * ((16 + 48) + (16 + 16) + (16 + 64) + (64 + 16)));
  CHECK(contains(in({"plan", job}).out, "trained"));
  const json inspected = parsed(in({"inspect", "runs", "--json"}));
  CHECK(inspected["base"]["hash"].get<std::string>().size() == 32);
  CHECK(inspected["base"]["from"] == "base/step-00000006");
  int parameters = 0;
  for (const json& tensor : inspected["tensors"]) {
    if (const std::string name = tensor["name"]; name.ends_with(".weight")) {
      ++parameters;
      CHECK(contains(name, ".lora_"));
    }
  }
  CHECK(parameters == 2 * 4 * 2);
  const Outcome at_home = in({"eval", job, "--json"});
  CHECK(at_home.code == 0);

  // Merged, it is a whole model of the same loss.
  CHECK(in({"export", "runs", "merged"}).code == 64);
  CHECK(in({"export", "runs", "merged", "--merge"}).code == 0);
  const Outcome merged = in({"eval", "job.yaml", "--checkpoint", "merged/model.safetensors", "--json"});
  CHECK(merged.code == 0);
  CHECK(parsed(merged)["val_loss"].get<double>() ==
        doctest::Approx(parsed(at_home)["val_loss"].get<double>()).epsilon(1e-5));

  std::filesystem::rename(in.path("base"), in.path("moved"));
  const Outcome gone = in({"eval", job});
  CHECK(gone.code == 65);
  CHECK(contains(gone.err, "--base names where it is"));
  CHECK(in({"eval", job, "--base", "moved", "--json"}).out == at_home.out);
  CHECK(in({"sample", job, "--base", "moved", "--tokens", "2"}).code == 0);
  // It stands for a model.init_from that the job lacks, whatever the folder is called.
  const std::string odd = "base: \"1\" #2";
  std::filesystem::copy(in.path("moved"), in.path(odd), std::filesystem::copy_options::recursive);
  CHECK(in({"eval", "job.yaml", "adapter={rank: 2, alpha: 4}"}).code == 78);
  CHECK(in({"eval", "job.yaml", "adapter={rank: 2, alpha: 4}", "--base", odd, "--json"}).out == at_home.out);
  CHECK(in({"sample", "job.yaml", "adapter={rank: 2, alpha: 4}", "--base", odd, "--tokens", "2"}).code == 0);
  REQUIRE(in({"run", "job.yaml", "checkpoint.dir=other", "train.steps=0", "seed=5"}).code == 0);
  for (const std::string command : {"eval", "sample"}) {
    const Outcome other = in({command, job, "--base", "other"});
    CHECK(other.code == 65);
    CHECK(contains(other.err, inspected["base"]["hash"].get<std::string>()));
  }
  CHECK(in({"run", job, "train.steps=8", "model.init_from=other"}).code == 78);
  CHECK(contains(in({"run", job, "train.steps=8", "model.init_from=moved"}).err, "changed: model.init_from"));
  CHECK(in({"eval", "job.yaml", "--base", "moved"}).code == 64);
  CHECK(in({"run", "job.yaml", "adapter=lora"}).code == 78);
}

TEST_CASE("missing data exits 65, a missing checkpoint too, each named") {
  const Workplace in;
  const Outcome data = in({"run", in.with_change("text.txt", "nowhere.txt")});
  CHECK(data.code == 65);
  CHECK(contains(data.err, "nowhere.txt"));
  const Outcome checkpoint = in({"sample", "job.yaml", "--checkpoint", "nowhere"});
  CHECK(checkpoint.code == 65);
  CHECK(contains(checkpoint.err, "nowhere"));
  CHECK(in({"eval", "job.yaml", "checkpoint.dir=null"}).code == 64);
  CHECK(in({"inspect", "text.txt"}).code == 65);
  CHECK(in({"inspect", "logs"}).code == 65);
}

TEST_CASE("bad data ends a run before its first step, at the line of the job that names it") {
  const Workplace in;
  std::string ids(4000, '\0');
  ids[3001] = '\x7f';  // id 32512 at offset 3000
  in.write("ids.bin", ids);
  in.write("ids.bin.gz", "\x1f\x8b\x08" + std::string(6, '\0') + "\x03" + ids);
  const auto run = [&](const std::string& from, const std::string& to) {
    const Outcome outcome = in({"run", in.with_change(from, to)});
    CHECK(outcome.code == 65);
    CHECK_FALSE(contains(outcome.err, "step 1"));
    CHECK_FALSE(std::filesystem::exists(in.path("runs/step-00000002")));
    return outcome.err;
  };
  const std::string text = "format: text\n  train: text.txt";
  CHECK(contains(run(text, "format: tokens\n  train: ids.bin"),
                 "changed.yaml:7:10: error: data.train: ids.bin: offset 3000: token id 32512 is outside of the "
                 "vocabulary of 256"));
  CHECK(contains(run(text, "format: tokens\n  train: ids.bin.gz"),
                 "changed.yaml:7:10: error: data.train: ids.bin.gz: is a gzip file; unpack it with gunzip"));
  CHECK(contains(run("global: 4", "global: 4000"),
                 "data.train: the training part has 263 samples, fewer than one batch of 4000"));
  CHECK(contains(run("fraction: 0.2", "fraction: 0.001"),
                 "changed.yaml:8:8: error: data.val: text.txt: the validation part has no sample"));
}

// How a run ends whose text is changed when it has trained some steps.
Outcome run_with_change(const std::function<void(const std::string& path)>& change) {
  const Workplace in;
  std::string text;
  while (text.size() < (std::size_t{4} << 20)) text += "the quick brown fox jumps over the lazy dog\n";
  const std::string path = in.write("text.txt", text);
  Process process(in.path(), {"run", "job.yaml", "data.tokenizer=chars", "eval.every=1000000000", "train.steps=1000000",
                              "checkpoint.every=1000000000"});
  for (int tries = 0; tries < 600 && !contains(process.err_so_far(), "loss"); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  change(path);
  return process.wait();
}

TEST_CASE("a data file that becomes shorter, or another text, under a run ends it with the file's name") {
  const Outcome shorter = run_with_change([](const std::string& path) { std::filesystem::resize_file(path, 5000); });
  CHECK(shorter.code == 74);
  CHECK(contains(shorter.err,
                 "text.txt: the file became shorter while it was in use: it had 4194344 bytes and now has 5000"));
  const Outcome other = run_with_change([](const std::string& path) {
    std::fstream(path, std::ios::binary | std::ios::in | std::ios::out) << std::string(std::size_t{4} << 20, '#');
  });
  CHECK(other.code == 65);
  CHECK(contains(other.err, "text.txt: offset "));
  CHECK(contains(other.err, "it was changed while it was in use"));
}

TEST_CASE("validate --files says of data and initial weights what run would, all at once") {
  const Workplace in;
  CHECK(in({"validate", "--files", "job.yaml"}).code == 0);
  CHECK(in({"validate", in.with_change("text.txt", "nowhere.txt")}).code == 0);  // without --files no data is read
  const auto errors = [&](const std::string& from, const std::string& to) {
    const Outcome outcome = in({"validate", "--files", "--json", in.with_change(from, to)});
    CHECK(outcome.code == 65);
    std::vector<std::string> lines;
    const json document = parsed(outcome);
    for (const json& error : document["jobs"][0]["errors"])
      lines.push_back(error["line"].dump() + " " + error["path"].get<std::string>() + ": " +
                      error["message"].get<std::string>());
    return lines;
  };
  using Lines = std::vector<std::string>;
  CHECK(errors("text.txt\n  val: {fraction: 0.2}", "[a.txt, text.txt, b.txt]\n  val: '*.none'") ==
        Lines{"7 data.train: a.txt: no such file", "7 data.train: b.txt: no such file",
              "8 data.val: *.none: no file matches"});
  CHECK(contains(errors("global: 4", "global: 4000").at(0),
                 "7 data.train: the training part has 263 samples, fewer than one batch of 4000"));
  CHECK(contains(errors("context: 8}", "context: 8}\n  init_from: nowhere").at(0),
                 "5 model.init_from: nowhere: there is no such file"));

  in.write("small.yaml", contents_of(in.path("job.yaml")).replace(std::string(kJob).find("dim: 16"), 7, "dim: 8 "));
  REQUIRE(in({"run", "small.yaml", "checkpoint.dir=small"}).code == 0);
  for (const std::string from : {"small", "small/step-00000006", "small/step-00000006/model.safetensors"}) {
    const Lines lines = errors("context: 8}", "context: 8}\n  init_from: " + from);
    REQUIRE(lines.size() == 1);
    CHECK(contains(lines[0], "5 model.init_from: " + from + " does not fit the model:"));
    CHECK(contains(lines[0], "wte.weight is [256, 8], the model has [256, 16]"));
  }
  in.write("empty.txt", "");
  CHECK(errors("text.txt\n  val: {fraction: 0.2}", "empty.txt\n  val: small.yaml") ==
        Lines{"7 data.train: empty.txt: the training part has no sample of seq_len + 1 = 9 tokens"});
}

TEST_CASE("an output that cannot be written exits 74 and is named") {
  const Workplace in;
  const Outcome outcome = in({"run", "job.yaml", "log.jsonl=text.txt/log.jsonl"});
  CHECK(outcome.code == 74);
  CHECK(contains(outcome.err, "text.txt"));
}

TEST_CASE("a run that diverges stops before the update, names the step, and exits 65") {
  const Workplace in;
  const Outcome outcome = in({"run", "job.yaml", "train.optimizer={name: sgd, lr: 1e30}", "train.clip_norm=null"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 65);
  CHECK(contains(outcome.err, "diverged: step "));
}

// ---- Tokenizers
// ---------------------------------------------------------------------------------------------------------

TEST_CASE("tokenizer train makes a folder with which tokenize goes from text to ids and back") {
  const Workplace in;
  const Outcome trained = in({"tokenizer", "train", "--vocab", "280", "text.txt", "-o", "mine"});
  INFO(trained.err);
  CHECK(trained.code == 0);
  CHECK(trained.out.empty());
  CHECK(contains(trained.err, "mine: 280 tokens"));
  CHECK(contains(contents_of(in.path("mine/tokenizer_config.json")), "<|endoftext|>"));
  in.write("texts.jsonl", "{\"text\": \"the lazy dog\"}\n\n{\"text\": \"<|endoftext|>\\u00e9\"}\n");
  const Outcome ids = in({"tokenize", "mine", "texts.jsonl"});
  INFO(ids.err);
  CHECK(ids.code == 0);
  CHECK(ids.err.empty());
  in.write("ids.jsonl", ids.out);
  CHECK(in({"tokenize", "mine", "ids.jsonl", "--decode"}).out ==
        "{\"text\":\"the lazy dog\"}\n{\"text\":\"<|endoftext|>\u00e9\"}\n");
  CHECK(contains(in({"tokenize", "mine/tokenizer.json", "ids.jsonl", "--decode", "--skip-special"}).out,
                 "{\"text\":\"\u00e9\"}"));
  const json document = parsed(in({"tokenize", "mine", "texts.jsonl", "--offsets", "--plain", "--json"}));
  CHECK(document["rows"][1]["ids"].size() > 3);
  CHECK(document["rows"][1]["offsets"].back() == json::array({14, 15}));
  CHECK(in({"tokenize", "train", "--vocab", "280", "text.txt", "-o", "again"}).code == 0);
  CHECK(contents_of(in.path("again/tokenizer.json")) == contents_of(in.path("mine/tokenizer.json")));
}

TEST_CASE("tokenize names the file and line of what it cannot take") {
  const Workplace in;
  REQUIRE(in({"tokenizer", "train", "--vocab", "280", "text.txt", "-o", "mine"}).code == 0);
  const auto error = [&](std::string_view line, std::vector<std::string> more = {}) {
    in.write("bad.jsonl", "{\"text\": \"a\", \"ids\": [1]}\n" + std::string(line) + "\n");
    std::vector<std::string> arguments{"tokenize", "mine", "bad.jsonl"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = in(arguments);
    CHECK(outcome.code == 65);
    return outcome.err;
  };
  CHECK(contains(error("{\"txt\": 1}"), "bad.jsonl:2: has no \"text\""));
  CHECK(contains(error("{"), "bad.jsonl:2: is not a JSON object"));
  CHECK(contains(error("{\"ids\": [280]}", {"--decode"}), "bad.jsonl:2: 280 is not an id"));
  CHECK(in({"tokenize", "mine", "bad.jsonl", "--skip-special"}).code == 64);
  CHECK(in({"tokenize", "nowhere", "bad.jsonl"}).code == 65);
  CHECK(in({"tokenizer", "train", "--vocab", "256", "text.txt", "-o", "small"}).code == 64);
  in.write("tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
  const Outcome foreign = in({"tokenize", "tokenizer.json", "bad.jsonl"});
  CHECK(foreign.code == 65);
  CHECK(contains(foreign.err, "tokenizer.json:1:11: model: \"Unigram\" is not supported; supported is BPE"));
}

TEST_CASE("score takes conversations by the folder's chat template, and says what is trained") {
  const Workplace in;
  std::filesystem::copy(std::string(TRAINER_SOURCE_DIR) + "/tests/goldens/folders/llama3", in.path("m"));
  in.write(
      "m/tokenizer.json",
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<": 2, ">": 3, "u": 4, ":": 5}, "merges": []}, "pre_tokenizer": null,
               "added_tokens": [{"id": 6, "content": "<>", "normalized": false, "special": true}]})");
  in.write(
      "rows.jsonl",
      R"({"messages": [{"role": "u", "content": "a<>"}, {"role": "assistant", "content": "b"}, {"role": "u", "content": "a"}]})"
      "\n");
  CHECK(contains(in({"score", "m", "rows.jsonl"}).err, "m: has no chat template"));
  in.write("m/chat_template.jinja",
           "{% for m in messages %}{{ m.role[0] if m.role is string else raise_exception('role?') }}:{{ m.content "
           "}}<>{% endfor %}{{ 'a:' if add_generation_prompt }}");
  const json document = parsed(in({"score", "m", "rows.jsonl", "--json"}));
  CHECK(document["rows"][0]["ids"] == json::array({4, 5, 0, 2, 3, 6, 0, 5, 1, 6, 4, 5, 0, 6}));
  const auto trained = document["rows"][0]["trained"].get<std::vector<bool>>();
  for (std::size_t i = 0; i < trained.size(); ++i) CHECK(trained[i] == (i == 8 || i == 9));
  const auto& logprobs = document["rows"][0]["logprobs"];
  CHECK(document["tokens"] == 2);
  CHECK(document["perplexity"].get<double>() ==
        doctest::Approx(std::exp(-(logprobs[8].get<double>() + logprobs[9].get<double>()) / 2)));
  in.write("rows.jsonl", "{\"ids\": [1]}\n{\"messages\": [{\"role\": 1, \"content\": \"a\"}]}\n");
  const Outcome bad = in({"score", "m", "rows.jsonl"});
  CHECK(bad.code == 65);
  CHECK(contains(bad.err, "rows.jsonl:2: m/chat_template.jinja:1:77: the template refuses the conversation: role?"));
}
