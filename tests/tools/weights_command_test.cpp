// Commands that read weights: eval, sample, inspect, export, and adapters beside their base.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/tools/workplace.h"

namespace trainer::weights_command_test {

using nlohmann::json;
using namespace trainer::tests;

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

}  // namespace trainer::weights_command_test
