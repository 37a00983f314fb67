// Export: golden folders come back bit for bit, rounded once, in shards; checkpoints carry what export needs; nothing
// is left behind where writing fails.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/folder_files.h"
#include "engine/core/error.h"
#include "engine/export/config_text.h"
#include "engine/export/export.h"
#include "tests/export/golden_folders.h"
#include "tests/temporary.h"

using namespace trainer;
using exporting::Precision;
using tests::changed;
using tests::configs;
using tests::golden;
using tests::options_for;
using tests::replaced;
using tests::store_of;
using tests::values_of;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

const std::vector<std::string> kFamilies{
    "llama3",         "llama_tied", "mistral", "qwen2",     "qwen3",     "gemma2",      "gemma3_text",
    "phi3",           "gpt2",       "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3", "deepseek_v3_plain",
    "deepseek_v3_mtp"};

/// Bytes of every tensor in a file, by name, behind dtype and shape.
std::map<std::string, std::string> bytes_of(const std::string& path) {
  const checkpoint::SafetensorsFile file(path);
  std::map<std::string, std::string> tensors;
  for (const checkpoint::TensorEntry& entry : file.tensors()) {
    std::string text = entry.dtype_name;
    for (const std::int64_t size : entry.shape) text += " " + std::to_string(size);
    const auto bytes = file.bytes(entry);
    tensors[entry.name] = text + ":" + std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return tensors;
}

/// A checkpoint of step 3 with the weights of a golden folder, in two pieces each, and a state of an optimizer.
std::string save(const std::string& dir, const std::string& folder, const std::string& metadata = "{}") {
  const checkpoint::TensorStore store = store_of(folder);
  checkpoint::Store saved(dir);
  saved.carry(checkpoint::files_beside_weights(folder));
  saved.begin(3);
  for (int owner = 0; owner < 2; ++owner) {
    std::vector<checkpoint::FileWriter::Entry> entries;
    for (const checkpoint::TensorInfo& info : store.tensors()) {
      const std::int64_t half = info.shape.elements() / 2;
      entries.push_back(
          {info, owner == 0 ? checkpoint::Range{0, half} : checkpoint::Range{half, info.shape.elements()}});
    }
    checkpoint::FileWriter writer(dir, 3, checkpoint::file_name("model", owner, 2), entries);
    for (const auto& entry : writer.order()) {
      const std::vector<float> values = values_of(store, entry.tensor.name);
      writer.write(entry, values.data() + entry.range.first, entry.range.count());
    }
    writer.finish();
  }
  const checkpoint::TensorInfo state{"model.norm.weight.exp_avg", DType::f32, Shape{4}};
  checkpoint::FileWriter optimizer(dir, 3, "optimizer.safetensors", {{state, {0, 4}}});
  const std::vector<float> zeros(4);
  optimizer.write(optimizer.order()[0], zeros.data(), 4);
  optimizer.finish();
  return saved.commit(3, "plan", metadata);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

}  // namespace

TEST_CASE("every family comes back bit for bit, its config byte for byte") {
  tests::TemporaryFolder folder;
  std::vector<std::string> all = kFamilies;
  all.insert(all.end(),
             {"bert_words", "bert_classes", "bert_number", "llama_classes", "gpt2_number", "vit", "whisper"});
  for (const std::string& name : all) {
    CAPTURE(name);
    const exporting::Report report = export_model(options_for(golden(name), folder.path(name)));
    CHECK(report.precision == Precision::f32);
    CHECK(bytes_of(folder.path(name + "/model.safetensors")) == bytes_of(golden(name) + "/model.safetensors"));
    CHECK(tests::contents_of(folder.path(name + "/config.json")) == tests::contents_of(golden(name) + "/config.json"));
    CHECK(names_in(folder.path(name)) == std::vector<std::string>{"config.json", "model.safetensors"});
    const checkpoint::SafetensorsFile file(folder.path(name + "/model.safetensors"));
    CHECK(file.metadata() == checkpoint::Metadata{{"format", "pt"}});
  }
  CHECK(names_in(folder.path()).size() == all.size());  // and nothing beside them
}

TEST_CASE(
    "DeepSeek V3 in FP8 is exported as it computes, its routers' bias in f32, the layer for a further token with "
    "copies "
    "of embedding and head") {
  tests::TemporaryFolder folder;
  const std::string golden_folder = golden("deepseek_v3_fp8");
  const exporting::Report report = export_model(options_for(golden_folder, folder.path("m")));
  CHECK(report.precision == Precision::bf16);
  const auto written = bytes_of(folder.path("m/model.safetensors")),
             before = bytes_of(golden_folder + "/model.safetensors");
  std::size_t plain = 0;
  for (const auto& [name, bytes] : before) {
    CAPTURE(name);
    const bool stays = !name.ends_with("_scale_inv");
    REQUIRE(written.contains(name) == stays);
    if (!stays) continue;
    CHECK(written.at(name).starts_with(name.ends_with("e_score_correction_bias") ? "F32" : "BF16"));
    if (!bytes.starts_with("F8")) CHECK(written.at(name) == bytes);
    plain += bytes.starts_with("F8") ? 0 : 1;
  }
  CHECK(plain > 10);
  for (const auto& [copy, of] :
       std::map<std::string, std::string>{{"embed_tokens", "model.embed_tokens"}, {"shared_head.head", "lm_head"}})
    CHECK(written.at("model.layers.2." + copy + ".weight") == written.at(of + ".weight"));
  CHECK(tests::contents_of(folder.path("m/config.json")).find("quantization") == std::string::npos);
}

TEST_CASE("a ResNet comes back bit for bit, running statistics included, without PyTorch's counts of batches") {
  tests::TemporaryFolder folder;
  for (const std::string name : {"resnet", "resnet_basic"}) {
    CAPTURE(name);
    export_model(options_for(golden(name), folder.path(name)));
    auto expected = bytes_of(golden(name) + "/model.safetensors");
    const std::size_t all = expected.size();
    std::erase_if(expected, [](const auto& tensor) { return tensor.first.ends_with(".num_batches_tracked"); });
    CHECK(expected.size() < all);
    CHECK(bytes_of(folder.path(name + "/model.safetensors")) == expected);
    CHECK(tests::contents_of(folder.path(name + "/config.json")) == tests::contents_of(golden(name) + "/config.json"));
  }
}

TEST_CASE("a checkpoint holds the folder's small files, and its export is the folder, which may be gone") {
  for (const char* name : {"gpt2", "llama_tied"}) {
    CAPTURE(std::string(name));
    tests::TemporaryFolder folder;
    fs::copy(golden(name), folder.path("source"));
    folder.write("source/tokenizer.json", "{\"tokens\": 1}");
    folder.write("source/chat_template.jinja", "{{ messages }}\n");
    folder.write("source/other.bin", "not the model's");
    const std::string step = save(folder.path("run"), folder.path("source"));
    CHECK(names_in(folder.path("run")) == std::vector<std::string>{"step-00000003"});
    fs::remove_all(folder.path("source"));
    CHECK(checkpoint::verify(step).empty());
    CHECK(!is_model_folder(step));  // its weights have the graph's names
    export_model(options_for(folder.path("run"), folder.path("out")));
    CHECK(bytes_of(folder.path("out/model.safetensors")) == bytes_of(golden(name) + "/model.safetensors"));
    CHECK(tests::contents_of(folder.path("out/config.json")) == tests::contents_of(golden(name) + "/config.json"));
    CHECK(tests::contents_of(folder.path("out/tokenizer.json")) == "{\"tokens\": 1}");
    CHECK(tests::contents_of(folder.path("out/chat_template.jinja")) == "{{ messages }}\n");
    CHECK(!fs::exists(folder.path("out/other.bin")));

    std::ofstream(step + "/tokenizer.json", std::ios::binary) << "{\"tokens\": 2}";
    const std::vector<std::string> damage = checkpoint::verify(step);
    REQUIRE(damage.size() == 1);
    CHECK(tests::contains(damage[0], "tokenizer.json"));
    CHECK_THROWS_AS(export_model(options_for(step, folder.path("again"))), DataError);
    CHECK(!fs::exists(folder.path("again")));
  }
}

TEST_CASE("files that checkpoints carry are on the disk once") {
  tests::TemporaryFolder folder;
  const std::string file = folder.write("tokenizer.json", "{}");
  {
    checkpoint::Store store(folder.path("run"));
    store.carry({file});
    folder.write("tokenizer.json", "{\"later\": 1}");
    for (const std::int64_t step : {1, 2}) {
      store.begin(step);
      checkpoint::FileWriter writer(folder.path("run"), step, "model.safetensors", {{{"w", DType::f32, {1}}, {0, 1}}});
      const float value = 1;
      writer.write(writer.order()[0], &value, 1);
      writer.finish();
      store.commit(step, "plan", "{}");
    }
    CHECK(fs::hard_link_count(folder.path("run/step-00000001/tokenizer.json")) == 3);
  }
  CHECK(fs::hard_link_count(folder.path("run/step-00000002/tokenizer.json")) == 2);
  CHECK(tests::contents_of(folder.path("run/step-00000002/tokenizer.json")) == "{}");
  CHECK(names_in(folder.path("run")) == std::vector<std::string>{"step-00000001", "step-00000002"});
}

TEST_CASE("bf16 and f16 are the nearest values, and config.json says so and nothing else") {
  for (const auto& [precision, dtype, bits, torch] : {std::tuple(Precision::bf16, DType::bf16, 8, "bfloat16"),
                                                      std::tuple(Precision::f16, DType::f16, 11, "float16")}) {
    tests::TemporaryFolder folder;
    exporting::Options options = options_for(golden("gpt2"), folder.path("out"));
    options.precision = precision;
    export_model(options);
    const checkpoint::TensorStore before = store_of(golden("gpt2")), after = store_of(folder.path("out"));
    REQUIRE(before.tensors().size() == after.tensors().size());
    for (const checkpoint::TensorInfo& info : before.tensors()) {
      CHECK(after.find(info.name)->dtype == dtype);
      const std::vector<float> exact = values_of(before, info.name), rounded = values_of(after, info.name);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        int exponent = 0;
        std::frexp(exact[i], &exponent);
        if (dtype == DType::f16) exponent = std::max(exponent, -13);  // subnormal
        const double unit = std::ldexp(1.0, exponent - bits);
        const double nearest = std::nearbyint(exact[i] / unit) * unit;  // ties to even
        if (static_cast<double>(rounded[i]) != nearest) FAIL(info.name << " " << exact[i] << " is " << rounded[i]);
      }
    }
    CHECK(
        tests::contents_of(folder.path("out/config.json")) ==
        replaced(tests::contents_of(golden("gpt2") + "/config.json"), "\"float32\"", "\"" + std::string(torch) + "\""));
    // Written back in the dtype that it has, it stays as it is.
    export_model(options_for(folder.path("out"), folder.path("again")));
    CHECK(bytes_of(folder.path("again/model.safetensors")) == bytes_of(folder.path("out/model.safetensors")));
  }
}

TEST_CASE("weights are cut into files of a given size, with an index") {
  tests::TemporaryFolder folder;
  exporting::Options options = options_for(golden("llama3"), folder.path("out"));
  options.shard_bytes = 5000;
  const exporting::Report report = export_model(options);
  const Json index = Json::parse(tests::contents_of(folder.path("out/model.safetensors.index.json")));
  std::map<std::string, std::string> all;
  std::int64_t total = 0, files = 0;
  for (const std::string& name : names_in(folder.path("out"))) {
    if (!name.ends_with(".safetensors")) continue;
    ++files;
    const auto tensors = bytes_of(folder.path("out/" + name));
    std::int64_t bytes = 0;
    const checkpoint::SafetensorsFile shard(folder.path("out/" + name));
    for (const checkpoint::TensorEntry& entry : shard.tensors()) {
      bytes += entry.last - entry.first;
      CHECK(index["weight_map"][entry.name] == name);
    }
    CHECK((bytes <= 5000 || tensors.size() == 1));
    total += bytes;
    all.insert(tensors.begin(), tensors.end());
  }
  CHECK(files > 3);
  CHECK(fs::exists(folder.path("out/" + checkpoint::file_name("model", 1, static_cast<int>(files)))));
  CHECK(index["metadata"]["total_size"] == total);
  CHECK(index["weight_map"].size() == all.size());
  CHECK(all == bytes_of(golden("llama3") + "/model.safetensors"));
  CHECK(report.files.size() == static_cast<std::size_t>(files) + 2);
  CHECK(store_of(folder.path("out")).tensors().size() == all.size());
}

TEST_CASE("config.json keeps its text but for the dtype and the quantisation that is gone") {
  using exporting::with_dtype;
  CHECK(with_dtype("{\"a\": {\"dtype\": \"x\"}, \"torch_dtype\" : \"float16\"}", "bfloat16") ==
        "{\"a\": {\"dtype\": \"x\"}, \"torch_dtype\" : \"bfloat16\"}");
  CHECK(with_dtype("{\n  \"a\": 1,\n  \"quantization_config\": {\"q\": [1, \"}\"]},\n  \"b\": 2\n}", "float32") ==
        "{\n  \"a\": 1,\n  \"b\": 2\n}");
  CHECK(with_dtype("{\n  \"a\": 1,\n  \"quantization_config\": {}\n}", "float32") == "{\n  \"a\": 1\n}");
  CHECK(with_dtype("{\"dtype\": null}", "float32") == "{\"dtype\": null}");
}

TEST_CASE("the text model of a larger one is a folder of its own") {
  tests::TemporaryFolder folder;
  const Json text = Json::parse(tests::contents_of(golden("gemma3_text") + "/config.json"));
  const Json whole{
      {"architectures", {"Gemma3ForConditionalGeneration"}}, {"model_type", "gemma3"}, {"text_config", text}};
  folder.write("m/config.json", whole.dump());
  const checkpoint::SafetensorsFile plain(golden("gemma3_text") + "/model.safetensors");
  std::vector<checkpoint::TensorSpec> specs;
  for (const auto& entry : plain.tensors())
    specs.push_back({"language_model." + entry.name, *entry.dtype, Shape(entry.shape)});
  checkpoint::SafetensorsWriter writer(folder.path("m/model.safetensors"), specs, {});
  for (const auto& entry : plain.tensors())
    writer.write("language_model." + entry.name, plain.bytes(entry).data(), entry.last - entry.first);
  writer.finish();
  export_model(options_for(folder.path("m"), folder.path("out")));
  CHECK(bytes_of(folder.path("out/model.safetensors")) == bytes_of(golden("gemma3_text") + "/model.safetensors"));
  CHECK(Json::parse(tests::contents_of(folder.path("out/config.json"))) == text);
}

TEST_CASE("what cannot be exported is said, and nothing is left behind") {
  tests::TemporaryFolder folder;
  const auto told = [&](const exporting::Options& options) {
    std::string what;
    try {
      export_model(options);
    } catch (const std::exception& error) {
      what = error.what();
    }
    return what;
  };
  exporting::Options options = options_for(golden("qwen2"), folder.write("taken", "mine"));
  CHECK_THROWS_AS(export_model(options), IoError);
  CHECK(tests::contains(told(options), "never overwrites"));
  CHECK(tests::contents_of(folder.path("taken")) == "mine");
  options.out = folder.path("no/such/folder");
  CHECK(tests::contains(told(options), "no such folder"));
  options.out = folder.path("out");
  options.precision = Precision::q8_0;
  CHECK_THROWS_AS(export_model(options), UsageError);
  options.precision = {};
  options.merge = true;
  CHECK_THROWS_AS(export_model(options), UsageError);
  options.merge = false;
  options.checkpoint = golden("qwen2") + "/model.safetensors";
  CHECK(tests::contains(told(options), "is a file"));
  options.checkpoint = changed(folder, "qwen2", "\"intermediate_size\": 40", "\"intermediate_size\": 41");
  CHECK(tests::contains(told(options), "model.layers.0.mlp.gate_proj.weight is [40, 24], the model has [41, 24]"));
  fs::remove_all(folder.path("qwen2"));
  options.checkpoint = changed(folder, "gpt2", "\"n_layer\": 2", "\"n_layer\": 3");
  CHECK(tests::contains(told(options), "h.2.ln_1.weight [24] is missing"));
  fs::remove_all(folder.path("gpt2"));

  // A disk that is full: of files, after 4096 bytes.
  options.checkpoint = golden("qwen2");
  std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const struct rlimit small { 4096, before.rlim_max };
  for (const exporting::Format format : {exporting::Format::hf, exporting::Format::gguf}) {
    options.format = format;
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    std::string what;
    try {
      export_model(options);
    } catch (const IoError& error) {
      what = error.what();
    }
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(tests::contains(what, "File too large"));
  }
  CHECK(names_in(folder.path()) == std::vector<std::string>{"taken"});
}

TEST_CASE("a weight that is not finite, or too large for the dtype, is named") {
  tests::TemporaryFolder folder;
  fs::copy(golden("qwen3"), folder.path("m"));
  const checkpoint::SafetensorsFile file(folder.path("m/model.safetensors"));
  const std::int64_t at = file.find("model.norm.weight")->first + 8;
  exporting::Options options = options_for(folder.path("m"), folder.path("out"));
  for (const float value : {1e6F, std::nanf("")}) {
    std::fstream(folder.path("m/model.safetensors"), std::ios::in | std::ios::out | std::ios::binary)
        .seekp(at)
        .write(reinterpret_cast<const char*>(&value), sizeof value);
    options.precision = Precision::f16;
    const std::string what = tests::message_of<DataError>([&] { export_model(options); });
    CHECK_MESSAGE(tests::contains(what, "model.norm.weight"), what);
    CHECK_MESSAGE(tests::contains(what, std::isnan(value) ? "is not finite" : "too large for f16"), what);
  }
  CHECK(!fs::exists(folder.path("out")));
}

TEST_CASE("an adapter is added to its base: W + s B A, with what else was trained in place of the base's") {
  tests::TemporaryFolder folder;
  const std::string base = golden("llama_tied"), q = "model.layers.1.self_attn.q_proj", norm = "model.norm.weight";
  const checkpoint::TensorStore store = store_of(base);
  std::vector<std::string> names;
  for (const auto& info : store.tensors()) names.push_back(info.name);
  const std::int64_t out = store.find(q + ".weight")->shape[0], in = store.find(q + ".weight")->shape[1], rank = 3;
  std::vector<float> a(static_cast<std::size_t>(rank * in)), b(static_cast<std::size_t>(out * rank)), trained(24);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = std::sin(static_cast<float>(i));
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = std::cos(static_cast<float>(i));
  for (std::size_t i = 0; i < trained.size(); ++i) trained[i] = static_cast<float>(i) / 7;
  const std::string table = "model.embed_tokens.weight";
  const Shape vocabulary = store.find(table)->shape;
  const std::string part = table + ".rows.2-5.of." + std::to_string(vocabulary[0]);
  std::vector<float> rows(static_cast<std::size_t>(3 * vocabulary[1]));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i) / 5;
  const auto saved = [&](const std::string& hash) {
    const Json metadata{{"base", {{"hash", hash}, {"from", base}, {"tensors", names}}},
                        {"job",
                         {{"settings",
                           {{"adapter.rank", "3"},
                            {"adapter.alpha", "12"},
                            {"adapter.scaled_by_root", "true"},
                            {"adapter.dropout", "0"},
                            {"adapter.magnitude", "false"}}},
                          {"graph", ""},
                          {"data", ""}}}};
    checkpoint::Store adapter(folder.path("run"));
    adapter.begin(1);
    checkpoint::FileWriter writer(folder.path("run"), 1, "model.safetensors",
                                  {{{q + ".lora_A.weight", DType::f32, {rank, in}}, {0, rank * in}},
                                   {{q + ".lora_B.weight", DType::f32, {out, rank}}, {0, out * rank}},
                                   {{part, DType::f32, {3, vocabulary[1]}}, {0, 3 * vocabulary[1]}},
                                   {{norm, DType::f32, {24}}, {0, 24}}});
    for (const auto& entry : writer.order()) {
      const std::vector<float>& values = entry.tensor.name == norm                      ? trained
                                         : entry.tensor.name == part                    ? rows
                                         : entry.tensor.name.ends_with("lora_A.weight") ? a
                                                                                        : b;
      writer.write(entry, values.data(), entry.range.count());
    }
    writer.finish();
    return adapter.commit(1, "plan", metadata.dump());
  };
  exporting::Options options = options_for(saved("another"), folder.path("out"));
  CHECK_THROWS_AS(export_model(options), UsageError);  // without --merge
  options.merge = true;
  const std::string what = tests::message_of<DataError>([&] { export_model(options); });
  REQUIRE(tests::contains(what, "is an adapter of the base another"));
  const std::string is = base + " is ";
  const std::size_t at = what.find(is) + is.size();
  saved(what.substr(at, 32));
  options.base = base;
  export_model(options);
  const checkpoint::TensorStore merged = store_of(folder.path("out"));
  REQUIRE(merged.tensors().size() == names.size());
  for (const std::string& name : names) {
    std::vector<float> expected = values_of(store, name);
    if (name == norm) expected = trained;
    if (name == table) std::ranges::copy(rows, expected.begin() + 2 * vocabulary[1]);
    if (name == q + ".weight")
      for (std::int64_t row = 0; row < out; ++row)
        for (std::int64_t column = 0; column < in; ++column) {
          double sum = 0;
          for (std::int64_t k = 0; k < rank; ++k)
            sum += static_cast<double>(b[static_cast<std::size_t>(row * rank + k)]) *
                   a[static_cast<std::size_t>(k * in + column)];
          expected[static_cast<std::size_t>(row * in + column)] += static_cast<float>(12 / std::sqrt(3.0) * sum);
        }
    const std::vector<float> got = values_of(merged, name);
    double most = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(got[i]) - expected[i]));
    CHECK_MESSAGE(most <= (name == q + ".weight" ? 4e-6 : 0), name);
  }
}
