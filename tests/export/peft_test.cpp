// Adapters of PEFT: read as peft computes them, written as they were read, merged without a change of what they
// compute; what of a folder cannot be read is said at its line.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/narrow.h"
#include "engine/export/export.h"
#include "engine/job/folder_job.h"
#include "engine/job/peft_config.h"
#include "engine/train/score.h"
#include "tests/goldens/golden.h"
#include "tests/models/folder_jobs.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using test::configs;
using test::golden;
using tests::contains;
using tests::message_of;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

struct Case {
  std::string adapter, base;
};
const std::vector<Case> kCases{{"llama", "llama_tied"}, {"gpt2", "gpt2"},         {"llama_dora", "llama_tied"},
                               {"gpt2_dora", "gpt2"},   {"llama_head", "llama3"}, {"gpt2_positions", "gpt2"}};

std::string peft(const std::string& name) { return goldens::folder() + "/peft/" + name; }

/// The ids that peft was given, as they are stored: rows of one length.
Rows rows_of(const std::string& name) {
  const reference::Tensor ids = goldens::load_tensors(peft(name) + "/expected.safetensors").at("ids");
  Rows rows(static_cast<std::size_t>(ids.shape[0]));
  for (std::size_t i = 0; i < ids.data.size(); ++i)
    rows[i / static_cast<std::size_t>(ids.shape[1])].push_back(static_cast<std::int32_t>(ids.data[i]));
  return rows;
}

std::vector<double> expected_of(const std::string& name) {
  return goldens::load_tensors(peft(name) + "/expected.safetensors").at("logprobs").data;
}

/// `weights` under the job that the adapter stands for beside its base, or the job of a model folder.
std::vector<double> scored(LoadedJob loaded, const std::string& weights, const Rows& rows) {
  loaded.job.precision.compute = DType::f32;
  loaded.job.cluster.devices_per_node = loaded.job.cluster.devices_per_node.value_or(1);
  set_batch_for_scoring(loaded, rows);
  const CompiledJob compiled = test::compiled_here(loaded, Purpose::score);
  std::vector<double> out;
  const auto take = [&](std::size_t, std::span<const float> some) { out.insert(out.end(), some.begin(), some.end()); };
  score(loaded, compiled, weights, rows, take, {.threads = 1});
  return out;
}

LoadedJob job_of_adapter(const std::string& adapter, const std::string& base,
                         const std::vector<std::string>& overrides = {}) {
  const LoadOptions options{.configs_dir = configs()};
  return parse_job(job_of_peft_folder(adapter, base, overrides, options), "adapter.yaml", overrides, options);
}

double largest(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

/// A checkpoint of no steps that begins from the adapter.
std::string checkpoint_of(const tests::TemporaryFolder& folder, const Case& one) {
  folder.write("train.bin", std::string(400, '\0'));
  const LoadedJob loaded =
      job_of_adapter(peft(one.adapter), golden(one.base),
                     {"data.format=tokens", "data.train=" + folder.path("train.bin"), "data.token_type=u16",
                      "data.seq_len=16", "train.steps=0", "train.lr_schedule.warmup_steps=0", "train.batch.global=1",
                      "cluster.devices_per_node=1", "precision.compute=f32", "checkpoint.dir=" + folder.path("run")});
  return tests::run(loaded).report.checkpoint;
}

exporting::Options options_for(const std::string& from, const std::string& to) {
  exporting::Options options;
  options.checkpoint = from;
  options.out = to;
  options.configs_dir = configs();
  return options;
}

/// A copy of a golden whose adapter_config.json has other values; null: the key goes.
std::string changed(const tests::TemporaryFolder& folder, const std::string& name, const Json& values) {
  Json config = Json::parse(tests::contents_of(peft(name) + "/adapter_config.json"));
  for (const auto& [key, value] : values.items()) config[key] = value;
  folder.write("changed/adapter_config.json", config.dump(2));
  fs::copy_file(peft(name) + "/adapter_model.safetensors", folder.path("changed/adapter_model.safetensors"),
                fs::copy_options::overwrite_existing);
  return folder.path("changed");
}

}  // namespace

TEST_CASE("adapters of peft give the log-probabilities that peft computed, on one rank and under strategies") {
  for (const Case& one : kCases) {
    CAPTURE(one.adapter);
    const Rows rows = rows_of(one.adapter);
    const std::vector<double> expected = expected_of(one.adapter);
    // Logits of about 10 in f32, of sums of 24 to 40 products through two layers.
    CHECK(largest(scored(job_of_adapter(peft(one.adapter), golden(one.base)), peft(one.adapter), rows), expected) <
          3e-6);
    for (const char* strategy : {"fsdp", "{tensor: 2}"}) {
      const LoadedJob two = job_of_adapter(peft(one.adapter), golden(one.base),
                                           {"cluster.devices_per_node=2", "strategy=" + std::string(strategy)});
      CHECK(largest(scored(two, peft(one.adapter), rows), expected) < 3e-6);
    }
    CHECK(largest(scored(test::job_of(golden(one.base)), golden(one.base), rows), expected) > 0.1);  // the base alone
  }
}

TEST_CASE("an adapter of peft goes through a checkpoint and comes back bit for bit, with what its config says") {
  for (const Case& one : kCases) {
    CAPTURE(one.adapter);
    tests::TemporaryFolder folder;
    exporting::Options options = options_for(checkpoint_of(folder, one), folder.path("out"));
    options.format = exporting::Format::adapter;
    export_model(options);
    const auto tensors = [](const std::string& path) {
      const checkpoint::SafetensorsFile file(path + "/adapter_model.safetensors");
      CHECK(file.metadata() == checkpoint::Metadata{{"format", "pt"}});
      std::map<std::string, std::string> all;
      for (const checkpoint::TensorEntry& entry : file.tensors()) {
        const auto bytes = file.bytes(entry);
        all[entry.name] = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        for (const std::int64_t size : entry.shape) all[entry.name] += " " + std::to_string(size);
      }
      return all;
    };
    CHECK(tensors(folder.path("out")) == tensors(peft(one.adapter)));
    const auto config = [](const std::string& path) {
      return Json::parse(tests::contents_of(path + "/adapter_config.json"));
    };
    const Json theirs = config(peft(one.adapter)), ours = config(folder.path("out"));
    for (const auto& [key, value] : ours.items()) {
      CAPTURE(key);
      if (key != "base_model_name_or_path") CHECK(value == theirs.at(key));
    }
    CHECK(ours.at("base_model_name_or_path") == golden(one.base));
  }
}

TEST_CASE("target_modules are the fewest names that choose the adapted modules") {
  for (const auto& [targets, expected] : {std::pair(R"(["*.attn.c_proj"])", Json{"attn.c_proj"}),
                                          std::pair(R"(["c_proj", "c_fc"])", Json{"c_fc", "c_proj"}),
                                          std::pair(R"(["h.1.attn.c_proj"])", Json{"transformer.h.1.attn.c_proj"})}) {
    tests::TemporaryFolder folder;
    folder.write("train.bin", std::string(400, '\0'));
    const LoadedJob loaded = test::job_of(
        golden("gpt2"), {"adapter={rank: 2, targets: " + std::string(targets) + "}", "data.format=tokens",
                         "data.train=" + folder.path("train.bin"), "data.token_type=u16", "data.seq_len=16",
                         "train.steps=0", "train.lr_schedule.warmup_steps=0", "train.batch.global=1",
                         "precision.compute=f32", "checkpoint.dir=" + folder.path("run")});
    exporting::Options options = options_for(tests::run(loaded).report.checkpoint, folder.path("out"));
    options.format = exporting::Format::adapter;
    export_model(options);
    CHECK(Json::parse(tests::contents_of(folder.path("out/adapter_config.json")))["target_modules"] == expected);
  }
}

TEST_CASE("merged weights compute what base and adapter do, and the report says what rounding to bf16 took") {
  for (const Case& one : kCases) {
    CAPTURE(one.adapter);
    tests::TemporaryFolder folder;
    const Rows rows = rows_of(one.adapter);
    exporting::Options options = options_for(peft(one.adapter), folder.path("f32"));
    options.merge = true;
    options.base = golden(one.base);
    const exporting::Report whole = export_model(options);
    CHECK(largest(scored(test::job_of(options.out), options.out, rows), expected_of(one.adapter)) < 3e-6);
    std::size_t adapted = 0;
    for (const auto& [name, tensor] : goldens::load_tensors(peft(one.adapter) + "/adapter_model.safetensors"))
      adapted += name.ends_with(".lora_A.weight") ? 1 : 0;
    CHECK(whole.merged.size() == adapted);

    options.out = folder.path("bf16");
    options.precision = exporting::Precision::bf16;
    const exporting::Report rounded = export_model(options);
    const auto store = [&](const std::string& path) {
      return checkpoint::TensorStore::from_folder(path, read_model_folder(golden(one.base), configs()).names);
    };
    const checkpoint::TensorStore base = store(golden(one.base)), f32 = store(folder.path("f32")),
                                  bf16 = store(folder.path("bf16"));
    for (std::size_t i = 1; i < rounded.merged.size(); ++i)
      CHECK(rounded.merged[i - 1].lost() >= rounded.merged[i].lost());
    for (const exporting::MergedMatrix& matrix : rounded.merged) {
      CAPTURE(matrix.tensor);
      const std::vector<double> before = test::read_tensor(base, matrix.tensor).data,
                                after = test::read_tensor(f32, matrix.tensor).data;
      std::vector<std::byte> raw(before.size() * 2);
      bf16.read(matrix.tensor, 0, static_cast<std::int64_t>(before.size()), raw.data());
      std::vector<float> stored(before.size());
      to_f32(DType::bf16, raw.data(), static_cast<std::int64_t>(stored.size()), stored.data());
      double change = 0, error = 0;
      for (std::size_t k = 0; k < before.size(); ++k) {
        change += (after[k] - before[k]) * (after[k] - before[k]);
        error += (stored[k] - after[k]) * (stored[k] - after[k]);
      }
      CHECK(matrix.change == doctest::Approx(std::sqrt(change)).epsilon(1e-5));
      CHECK(matrix.error == doctest::Approx(std::sqrt(error)).epsilon(1e-9));
      CHECK(matrix.lost() > 1e-4);
    }
    CHECK(std::ranges::all_of(whole.merged, [](const auto& matrix) { return matrix.error == 0; }));
  }
}

TEST_CASE("a merged DeepSeek V3 has the biases of its base's routers, which no adapter moves") {
  const tests::TemporaryFolder folder;
  const LoadedJob loaded = test::job_of(
      golden("deepseek_v3"),
      {"data.format=tokens", "data.token_type=u16", "data.train=" + goldens::folder() + "/experts/deepseek_v3.bin",
       "data.seq_len=8", "train.steps=2", "train.batch.global=4", "precision.compute=f32",
       "adapter={kind: lora, rank: 2}", "checkpoint.dir=" + folder.path("run"), "checkpoint.resume=none"});
  exporting::Options options = options_for(tests::run(loaded).report.checkpoint, folder.path("merged"));
  options.merge = true;
  CHECK(export_model(options).merged.size() > 20);
  const DiskNames names = read_model_folder(golden("deepseek_v3"), configs()).names;
  const auto base = checkpoint::TensorStore::from_folder(golden("deepseek_v3"), names),
             merged = checkpoint::TensorStore::from_folder(options.out, names);
  CHECK(merged.tensors().size() == base.tensors().size());
  for (const int layer : {1, 2}) {
    const std::string bias = "model.layers." + std::to_string(layer) + ".mlp.gate.e_score_correction_bias";
    CHECK(test::read_tensor(merged, bias).data == test::read_tensor(base, bias).data);
  }
}

TEST_CASE("what the config of an adapter says becomes the job's, and a job that says something else is wrong") {
  const LoadedJob loaded = job_of_adapter(peft("llama"), golden("llama_tied"));
  REQUIRE(loaded.job.adapter);
  CHECK(loaded.job.adapter->rank == 3);
  CHECK(loaded.job.adapter->alpha == 5);
  CHECK(loaded.job.adapter->dropout == 0.05);
  CHECK(loaded.job.adapter->scaled_by_root);
  CHECK(loaded.job.adapter->targets == std::vector<std::string>{"down_proj", "q_proj", "v_proj"});
  CHECK(loaded.setting("adapter.rank")->origin("job.yaml").starts_with("adapter_config.json:"));
  CHECK(job_of_adapter(peft("llama"), golden("llama_tied"), {"adapter.dropout=0.5", "adapter.rank=3"})
            .job.adapter->dropout == 0.5);
  for (const char* other : {"adapter.rank=4", "adapter.alpha=4", "adapter.scaled_by_root=false"}) {
    CAPTURE(std::string(other));
    const std::string what =
        message_of<JobError>([&] { job_of_adapter(peft("llama"), golden("llama_tied"), {other}); });
    CHECK(contains(what, "has another"));
    CHECK(contains(what, std::string(other).substr(0, 10)));
  }
  // As weights of a job that has another adapter.
  const std::string what = message_of<DataError>([&] {
    scored(test::job_of(golden("llama_tied"), {"adapter={rank: 3, alpha: 7, targets: [q_proj, v_proj, down_proj]}"}),
           peft("llama"), rows_of("llama"));
  });
  CHECK(contains(what, "adapter.alpha is 5 there"));
}

TEST_CASE("a key of adapter_config.json that is not understood is a mistake at its line") {
  struct Bad {
    Json values;
    std::string message;
  };
  const std::vector<Bad> bad{
      {{{"bias", "all"}}, "bias: biases trained beside the adapter cannot be read"},
      {{{"modules_to_save", {"lm_head"}}}, "modules_to_save: adapter_model.safetensors has no tensor of these modules"},
      {{{"modules_to_save", true}}, "modules_to_save: has another type"},
      {{{"layers_to_transform", {0}}}, "layers_to_transform: an adapter of some layers only"},
      {{{"exclude_modules", {"v_proj"}}}, "exclude_modules: modules are excluded"},
      {{{"rank_pattern", {{"q_proj", 2}}}}, "rank_pattern: ranks that differ"},
      {{{"alpha_pattern", {{"q_proj", 2}}}}, "alpha_pattern: alphas that differ"},
      {{{"init_lora_weights", "pissa"}}, "init_lora_weights: this initialization changes the base's weights"},
      {{{"init_lora_weights", "loftq"}}, "init_lora_weights: this initialization changes the base's weights"},
      {{{"trainable_token_indices", {1, 2}}}, "trainable_token_indices: trained rows"},
      {{{"use_qalora", true}}, "use_qalora: QALoRA cannot be read"},
      {{{"peft_type", "IA3"}}, "peft_type: this kind of adapter cannot be read"},
      {{{"target_modules", ".*_proj"}}, "target_modules: regular expressions"},
      {{{"target_modules", nullptr}}, "target_modules: missing"},
      {{{"r", 0}}, "r: has another type, or is out of range"},
      {{{"lora_alpha", "8"}}, "lora_alpha: has another type"},
      {{{"use_rsloar", true}}, "use_rsloar: unknown key"},
  };
  for (const Bad& each : bad) {
    CAPTURE(each.message);
    tests::TemporaryFolder folder;
    const std::string what =
        message_of<JobError>([&] { job_of_adapter(changed(folder, "llama", each.values), golden("llama_tied")); });
    CHECK(contains(what, each.message));
    CHECK(contains(what, "adapter_config.json:"));
  }
  tests::TemporaryFolder folder;
  for (const Json& fine : {Json{{"init_lora_weights", "gaussian"}}, Json{{"init_lora_weights", false}},
                           Json{{"task_type", nullptr}}, Json{{"fan_in_fan_out", true}}, Json{{"lora_bias", false}}})
    CHECK_NOTHROW(job_of_adapter(changed(folder, "llama", fine), golden("llama_tied")));
  // Where the job says which linears are adapted, nothing else has to.
  CHECK_NOTHROW(job_of_adapter(changed(folder, "llama", {{"target_modules", ".*"}}), golden("llama_tied"),
                               {"adapter.targets=[q_proj, v_proj, down_proj]"}));
}

TEST_CASE("every tensor of an adapter binds, and every linear that it names has its tensors") {
  tests::TemporaryFolder folder;
  const Rows rows = rows_of("llama");
  const auto refusal = [&](const Json& values) {
    const std::string adapter = changed(folder, "llama", values);
    return message_of<DataError>([&] { scored(job_of_adapter(adapter, golden("llama_tied")), adapter, rows); });
  };
  const std::string left = refusal({{"target_modules", {"q_proj", "v_proj"}}});
  CHECK(contains(left, "model.layers.0.mlp.down_proj.lora_A.weight [3, 40] is not in the model"));
  const std::string missing = refusal({{"target_modules", {"q_proj", "v_proj", "down_proj", "o_proj"}}});
  CHECK(contains(missing, "model.layers.0.self_attn.o_proj.lora_A.weight [3, 24] is missing"));
  CHECK(contains(refusal({{"r", 4}}), "lora_A.weight is [3, 24], the model has [4, 24]"));
  fs::remove(folder.path("changed/adapter_model.safetensors"));
  const auto read = [&] {
    scored(job_of_adapter(folder.path("changed"), golden("llama_tied"), {"adapter.rank=4"}), folder.path("changed"),
           rows);
  };
  CHECK(contains(message_of<DataError>(read), "has no adapter_model.safetensors"));
  folder.write("changed/adapter_model.bin", "pickled");
  CHECK(contains(message_of<DataError>(read), "pickled"));
}

TEST_CASE("modules that were trained whole are trained on, and a job that freezes one is wrong") {
  const std::string adapter = peft("gpt2_positions");
  const LoadedJob loaded = job_of_adapter(adapter, golden("gpt2"));
  CHECK(loaded.job.trainable.globs == std::vector<std::string>{"ln_f.bias", "ln_f.weight", "wpe.weight"});
  CHECK(job_of_adapter(adapter, golden("gpt2"), {"trainable=all"}).job.trainable.globs.empty());
  CHECK_NOTHROW(job_of_adapter(adapter, golden("gpt2"), {"trainable=[ln_f.*, wpe.weight, wte.weight]"}));
  for (const char* other : {"trainable=adapter", "trainable=[ln_f.*]"}) {
    CAPTURE(std::string(other));
    const std::string what = message_of<JobError>([&] { job_of_adapter(adapter, golden("gpt2"), {other}); });
    CHECK(contains(what, "trainable: the adapter in"));
    CHECK(contains(what, "has trained "));
  }
}

TEST_CASE("an export as an adapter refuses a module of which only a part was trained") {
  tests::TemporaryFolder folder;
  folder.write("train.bin", std::string(400, '\0'));
  for (const auto& [trainable, expected] : {std::pair(R"(["ln_f.weight"])", "ln_f was trained without its bias"),
                                            std::pair(R"(["wte.weight[3:7]"])", "are some rows of a tensor")}) {
    const LoadedJob loaded = test::job_of(
        golden("gpt2"), {"adapter={rank: 2}", "trainable=" + std::string(trainable), "data.format=tokens",
                         "data.train=" + folder.path("train.bin"), "data.token_type=u16", "data.seq_len=16",
                         "train.steps=0", "train.lr_schedule.warmup_steps=0", "train.batch.global=1",
                         "precision.compute=f32", "checkpoint.dir=" + folder.path("run")});
    exporting::Options options = options_for(tests::run(loaded).report.checkpoint, folder.path("out"));
    options.format = exporting::Format::adapter;
    const std::string what = message_of<DataError>([&] { export_model(options); });
    CHECK_MESSAGE(contains(what, expected), what);
    fs::remove_all(folder.path("run"));
  }
}

TEST_CASE("what an export of an adapter cannot say is refused, and nothing is left behind") {
  tests::TemporaryFolder folder;
  const auto refusal = [&](const std::string& from, auto&& change) {
    exporting::Options options = options_for(from, folder.path("out"));
    options.format = exporting::Format::adapter;
    change(options);
    std::string what;
    try {
      export_model(options);
    } catch (const std::exception& error) {
      what = error.what();
    }
    CHECK_FALSE(fs::exists(folder.path("out")));
    return what;
  };
  const auto nothing = [](exporting::Options&) {};
  CHECK(contains(refusal(golden("gpt2"), nothing), "--format adapter is for checkpoints of adapters"));
  CHECK(contains(refusal(peft("gpt2"), nothing), "is a folder of peft already"));
  CHECK(contains(refusal(peft("gpt2"), [](exporting::Options& options) { options.merge = true; }), "--merge adds"));
  const auto as_folder = [](exporting::Options& options) { options.format = exporting::Format::hf; };
  CHECK(contains(refusal(peft("gpt2"), as_folder), "is an adapter; --merge adds it to its base"));
  const auto no_base = [](exporting::Options& options) {
    options.format = exporting::Format::hf;
    options.merge = true;
    options.base = "nowhere";
  };
  CHECK(contains(refusal(peft("gpt2"), no_base), "nowhere: the base of the adapter is not there"));
}
