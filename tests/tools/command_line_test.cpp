// The command line, jobs that are wrong, validate, and the hardware that a job names.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/tools/workplace.h"

namespace trainer::command_line_test {

using nlohmann::json;
using namespace trainer::tests;

TEST_CASE("every subcommand has help with an example, on stdout") {
  const Workplace in;
  for (const std::string name : {"run", "plan", "validate", "verify", "eval", "sample", "export", "inspect", "schema",
                                 "init", "doctor", "data", "score", "chat", "tokenize", "tokenizer"}) {
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
                                                    {"schema", "job", "graph"},
                                                    {"inspect"}};
  for (const auto& arguments : wrong) {
    const Outcome outcome = in(arguments);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 64);
    CHECK(outcome.out.empty());
    CHECK_FALSE(outcome.err.empty());
  }
  CHECK(contains(in({"rnu"}).err, "did you mean \"run\"?"));
  CHECK(contains(in({"run", "job.yaml", "--jsno"}).err, "there is no option \"--jsno\"; did you mean \"--json\"?"));
  CHECK(contains(in({"calibrate", "--output=here.yaml"}).err,
                 "there is no option \"--output\"; did you mean \"--out\"?"));
  CHECK(contains(in({"schema", "job", "graph"}).err, "unexpected argument \"graph\""));
  CHECK(contains(
      in({"plan", "job.yaml", "--batch_size=32"}).err,
      "there is no option \"--batch_size\"; a value of the job is replaced by key.path=value, without dashes"));
  CHECK_FALSE(contains(in({"calibrate", "--batch_size=32"}).err, "key.path"));
  CHECK(contains(in({"schema", "job", "-3"}).err, "unexpected argument \"-3\""));
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

}  // namespace trainer::command_line_test
