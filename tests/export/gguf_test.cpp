// GGUF files hold the weights of a folder under llama.cpp's names, with its keys and the tokenizer inside.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/export/gguf_format.h"
#include "engine/export/gguf_mapping.h"
#include "engine/job/yaml.h"
#include "engine/transform/transform.h"
#include "tests/export/gguf_reader.h"
#include "tests/export/golden_folders.h"

using namespace trainer;
using exporting::Precision;
using tests::changed;
using tests::configs;
using tests::golden;
using tests::options_for;
using tests::store_of;
using tests::values_of;
namespace fs = std::filesystem;

namespace {

tests::ReadGguf gguf_of(const tests::TemporaryFolder& folder, const std::string& from, Precision precision) {
  exporting::Options options = options_for(from, folder.path("out.gguf"));
  options.format = exporting::Format::gguf;
  options.precision = precision;
  fs::remove(options.out);
  export_model(options);
  return tests::GgufReader(options.out).read();
}

/// Whether a tensor of the file is the model's, with `add` added.
void check_tensor(const tests::ReadGguf& file, const std::string& name, const checkpoint::TensorStore& store,
                  const std::string& own, double add = 0, double tolerance = 0) {
  REQUIRE_MESSAGE(file.tensors.contains(name), name);
  const tests::ReadTensor& tensor = file.tensors.at(name);
  const Shape& shape = store.find(own)->shape;
  std::vector<std::uint64_t> dims(shape.sizes().begin(), shape.sizes().end());
  std::ranges::reverse(dims);
  CHECK(tensor.dims == dims);
  const std::vector<float> values = values_of(store, own);
  double most = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    most = std::max(most, std::abs(tensor.values[i] - (values[i] + add)) - tolerance * std::abs(values[i]));
  const double subnormal = tolerance > 0 ? 0x1p-25 : 0;  // half a step of f16 where it has no more digits
  CHECK_MESSAGE(most <= (add == 0 ? subnormal : 1e-6), name);
}

template <typename T>
T key(const tests::ReadGguf& file, const std::string& name) {
  REQUIRE_MESSAGE(file.keys.contains(name), name);
  REQUIRE_MESSAGE(std::holds_alternative<T>(file.keys.at(name)), name);
  return std::get<T>(file.keys.at(name));
}

}  // namespace

TEST_CASE("GGUF of llama: pairs of rows, the factors of llama3, keys of their types") {
  tests::TemporaryFolder folder;
  const tests::ReadGguf file = gguf_of(folder, golden("llama3"), Precision::f32);
  const checkpoint::TensorStore store = store_of(golden("llama3"));
  CHECK(file.tensors.size() == store.tensors().size() + 1);
  CHECK(key<std::string>(file, "general.architecture") == "llama");
  CHECK(key<std::uint32_t>(file, "general.file_type") == 0);
  CHECK(key<std::uint32_t>(file, "llama.block_count") == 2);
  CHECK(key<std::uint32_t>(file, "llama.vocab_size") == 61);
  CHECK(key<std::uint32_t>(file, "llama.attention.head_count") == 6);
  CHECK(key<std::uint32_t>(file, "llama.attention.head_count_kv") == 2);
  CHECK(key<std::uint32_t>(file, "llama.rope.dimension_count") == 4);
  CHECK(key<float>(file, "llama.rope.freq_base") == 500000.0F);
  CHECK(key<float>(file, "llama.attention.layer_norm_rms_epsilon") == 1e-6F);
  CHECK(!file.keys.contains("llama.rope.scaling.type"));
  CHECK(key<std::string>(file, "tokenizer.ggml.model") == "none");
  check_tensor(file, "token_embd.weight", store, "model.embed_tokens.weight");
  check_tensor(file, "output.weight", store, "lm_head.weight");
  check_tensor(file, "blk.1.attn_v.weight", store, "model.layers.1.self_attn.v_proj.weight");
  check_tensor(file, "blk.1.ffn_norm.weight", store, "model.layers.1.post_attention_layernorm.weight");
  // Row 2j + p of a head is row j + p · half.
  for (const auto& [name, own] : {std::pair("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
                                  std::pair("blk.1.attn_k.weight", "model.layers.1.self_attn.k_proj.weight")}) {
    const std::vector<float> values = values_of(store, own);
    const std::vector<double>& got = file.tensors.at(name).values;
    REQUIRE(got.size() == values.size());
    for (std::size_t row = 0; row < got.size() / 24; ++row)
      for (std::size_t column = 0; column < 24; ++column) {
        const std::size_t head = row / 4, pair = row % 4 / 2, half = row % 2;
        CHECK(got[row * 24 + column] == static_cast<double>(values[(head * 4 + half * 2 + pair) * 24 + column]));
      }
  }
  // Llama 3's scaling of frequencies θ^(−2j/d), as transformers has it: what divides them.
  for (int j = 0; j < 2; ++j) {
    const double frequency = std::pow(500000.0, -2.0 * j / 4), wave = 2 * M_PI / frequency,
                 smooth = (16 / wave - 1) / (4.0 - 1);
    const double scaled = wave < 16 / 4.0   ? frequency
                          : wave > 16 / 1.0 ? frequency / 8
                                            : (1 - smooth) * frequency / 8 + smooth * frequency;
    CHECK(file.tensors.at("rope_freqs.weight").values[static_cast<std::size_t>(j)] ==
          doctest::Approx(frequency / scaled).epsilon(1e-6));
  }
}

TEST_CASE("GGUF of the other families: names, norms that count from 1, windows, factors") {
  tests::TemporaryFolder folder;
  {
    const std::string from =
        changed(folder, "gemma3_text", "\"query_pre_attn_scalar\": 256", "\"query_pre_attn_scalar\": 8");
    const tests::ReadGguf file = gguf_of(folder, from, Precision::f32);
    const checkpoint::TensorStore store = store_of(from);
    CHECK(file.tensors.size() == store.tensors().size());
    check_tensor(file, "output_norm.weight", store, "model.norm.weight", 1);
    check_tensor(file, "blk.2.post_attention_norm.weight", store, "model.layers.2.post_attention_layernorm.weight", 1);
    check_tensor(file, "blk.2.attn_q_norm.weight", store, "model.layers.2.self_attn.q_norm.weight", 1);
    check_tensor(file, "blk.2.attn_q.weight", store, "model.layers.2.self_attn.q_proj.weight");
    CHECK(file.numbers.at("gemma3.attention.sliding_window_pattern") == std::vector<double>{1, 0, 1});
    CHECK(key<std::uint32_t>(file, "gemma3.attention.sliding_window") == 5);
    CHECK(key<float>(file, "gemma3.rope.freq_base") == 1e6F);
    CHECK(key<float>(file, "gemma3.rope.freq_base_swa") == 1e4F);
    CHECK(key<std::string>(file, "gemma3.rope.scaling.type") == "linear");
    CHECK(key<float>(file, "gemma3.rope.scaling.factor") == 8.0F);
  }
  {
    exporting::Options options = options_for(golden("gemma2"), folder.path("refused.gguf"));
    options.format = exporting::Format::gguf;
    CHECK(tests::contains(tests::message_of<DataError>([&] { export_model(options); }), "query_pre_attn_scalar"));
    CHECK(!fs::exists(options.out));
    for (const char* whole_texts : {"llama_classes", "gpt2_number"}) {
      exporting::Options other = options_for(golden(whole_texts), folder.path("refused.gguf"));
      other.format = exporting::Format::gguf;
      CHECK(tests::contains(tests::message_of<DataError>([&] { export_model(other); }),
                            "a GGUF file has a head of words"));
    }
    const std::string from = changed(folder, "gemma2", "\"query_pre_attn_scalar\": 12", "\"query_pre_attn_scalar\": 8");
    const tests::ReadGguf file = gguf_of(folder, from, Precision::f32);
    CHECK(key<float>(file, "gemma2.attn_logit_softcapping") == 5.0F);
    CHECK(key<float>(file, "gemma2.final_logit_softcapping") == 3.0F);
    CHECK(!file.tensors.contains("output.weight"));
  }
  {
    const tests::ReadGguf file = gguf_of(folder, golden("phi3"), Precision::f32);
    const checkpoint::TensorStore store = store_of(golden("phi3"));
    check_tensor(file, "blk.0.attn_qkv.weight", store, "model.layers.0.self_attn.qkv_proj.weight");
    check_tensor(file, "blk.0.ffn_up.weight", store, "model.layers.0.mlp.gate_up_proj.weight");
    CHECK(file.tensors.at("rope_factors_long.weight").values == std::vector<double>{2, 3.5});
    CHECK(file.tensors.at("rope_factors_short.weight").values == std::vector<double>{1, 1.25});
    CHECK(key<std::string>(file, "phi3.rope.scaling.type") == "longrope");
    CHECK(key<float>(file, "phi3.rope.scaling.attn_factor") ==
          doctest::Approx(std::sqrt(1 + std::log(3.0) / std::log(16.0))).epsilon(1e-6));
  }
  for (const char* name : {"mistral", "qwen2", "qwen3", "llama_tied"}) {
    CAPTURE(std::string(name));
    const tests::ReadGguf file = gguf_of(folder, golden(name), Precision::f16);
    const checkpoint::TensorStore store = store_of(golden(name));
    CHECK(file.tensors.size() == store.tensors().size());
    CHECK(key<std::uint32_t>(file, "general.file_type") == 1);
    CHECK(file.tensors.at("blk.1.ffn_down.weight").type == 1);
    CHECK(file.tensors.at("blk.1.ffn_norm.weight").type == 0);
    check_tensor(file, "blk.1.ffn_down.weight", store, "model.layers.1.mlp.down_proj.weight", 0, 0x1p-11);
    check_tensor(file, "blk.1.attn_norm.weight", store, "model.layers.1.input_layernorm.weight");
  }
  const tests::ReadGguf file = gguf_of(folder, golden("gpt2"), Precision::bf16);
  const checkpoint::TensorStore store = store_of(golden("gpt2"));
  check_tensor(file, "blk.1.attn_output.weight", store, "h.1.attn.c_proj.weight", 0, 0x1p-8);
  check_tensor(file, "blk.1.attn_qkv.bias", store, "h.1.attn.c_attn.bias");
  check_tensor(file, "position_embd.weight", store, "wpe.weight");
  CHECK(key<float>(file, "gpt2.attention.layer_norm_epsilon") == 1e-5F);
}

TEST_CASE("every published config has a form in GGUF, with a name for each parameter") {
  int models = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(goldens::folder() + "/../job/published")) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    CAPTURE(name);
    ModelFolder folder = read_model_folder(entry.path().string(), configs());
    if (folder.with.contains("experts")) {  // no mixture of experts has one
      CHECK_THROWS_WITH_AS(exporting::GgufMapping(folder, configs()), doctest::Contains("cannot be written as GGUF"),
                           DataError);
      continue;
    }
    const exporting::GgufMapping mapping(folder, configs());
    folder.with["layers"] = ParamValue(2.0);
    BuildOptions options;
    options.field_shapes = {{"tokens", {8}}, {"targets", {8}}};
    options.mode = BuildOptions::Mode::evaluate;
    const Graph graph = read_graph(yaml::read_file(folder.graph), folder.with, options);
    for (const Parameter& parameter : graph.parameters)
      CHECK(static_cast<std::int64_t>(mapping.place(graph.value(parameter.value).name).name.size()) <=
            exporting::kMostGgufName);
    ++models;
    if (name != "llama-3.1-8b") continue;
    const std::vector<float>& divisors = mapping.tensors().at("rope_freqs.weight");
    REQUIRE(divisors.size() == 64);
    CHECK(divisors.front() == 1.0F);
    CHECK(divisors.back() == 8.0F);
  }
  CHECK(models > 30);
}

TEST_CASE("q8_0 is ggml's: a scale of 32 weights, halves away from zero") {
  std::vector<float> values(96);
  for (std::size_t i = 0; i < 32; ++i) values[i] = std::sin(static_cast<float>(i)) * 3;
  for (std::size_t i = 32; i < 64; ++i) values[i] = (static_cast<float>(i) - 48) + 0.5F;
  values[32] = 127;  // the scale is 1: halves show
  std::vector<std::byte> blocks;
  exporting::quantize_q8_0(values, blocks);
  REQUIRE(blocks.size() == 3 * 34);
  for (std::size_t block = 0; block < 3; ++block) {
    float largest = 0;
    for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, std::abs(values[block * 32 + i]));
    _Float16 scale;
    std::memcpy(&scale, blocks.data() + block * 34, 2);
    CHECK(scale == static_cast<_Float16>(largest / 127));
    for (std::size_t i = 0; i < 32; ++i) {
      const auto code = static_cast<std::int8_t>(blocks[block * 34 + 2 + i]);
      const double exact = largest > 0 ? static_cast<double>(values[block * 32 + i]) * 127 / largest : 0;
      CHECK(std::abs(exact - code) <= 0.5 + 1e-5);
      if (block == 1) CHECK(code == static_cast<int>(exact + (exact > 0 ? 0.5 : -0.5)));
    }
  }
}

TEST_CASE("GGUF has the tokenizer inside: tokens by id, their types, merges, special tokens, template") {
  tests::TemporaryFolder folder;
  fs::copy(golden("qwen3"), folder.path("m"));
  folder.write("m/tokenizer.json",
               R"({"added_tokens": [{"id": 4, "content": "<|im_end|>", "normalized": false, "special": true},
    {"id": 5, "content": "<think>", "normalized": false, "special": false}], "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "aab": 3}, "merges": ["a b", ["a", "ab"]]}})");
  folder.write("m/tokenizer_config.json", R"({"eos_token": "<|im_end|>", "chat_template": "{{ x }}"})");
  tests::ReadGguf file = gguf_of(folder, folder.path("m"), Precision::f32);
  CHECK(key<std::string>(file, "tokenizer.ggml.model") == "gpt2");
  CHECK(key<std::string>(file, "tokenizer.ggml.pre") == "gpt-2");
  const std::vector<std::string>& tokens = file.strings.at("tokenizer.ggml.tokens");
  REQUIRE(tokens.size() == 61);
  CHECK(std::vector(tokens.begin(), tokens.begin() + 7) ==
        std::vector<std::string>{"a", "b", "ab", "aab", "<|im_end|>", "<think>", "[PAD6]"});
  const std::vector<double>& types = file.numbers.at("tokenizer.ggml.token_type");
  CHECK(std::vector(types.begin(), types.begin() + 7) == std::vector<double>{1, 1, 1, 1, 3, 4, 5});
  CHECK(file.strings.at("tokenizer.ggml.merges") == std::vector<std::string>{"a b", "a ab"});
  CHECK(key<std::uint32_t>(file, "tokenizer.ggml.eos_token_id") == 4);
  CHECK(!key<bool>(file, "tokenizer.ggml.add_bos_token"));
  CHECK(key<std::string>(file, "tokenizer.chat_template") == "{{ x }}");

  folder.write("m/tokenizer.json",
               R"({"added_tokens": [{"id": 1, "content": "<bos>", "normalized": false, "special": true}],
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]}}},
    "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
    "vocab": {"<unk>": 0, "<bos>": 1, "<0x0A>": 2, "a": 3, "b": 4, "ab": 5, "bab": 6}, "merges": ["a b", "b ab"]}})");
  file = gguf_of(folder, folder.path("m"), Precision::f32);
  CHECK(key<std::string>(file, "tokenizer.ggml.model") == "llama");
  const std::vector<double>& kinds = file.numbers.at("tokenizer.ggml.token_type");
  CHECK(std::vector(kinds.begin(), kinds.begin() + 8) == std::vector<double>{2, 3, 6, 1, 1, 1, 1, 5});
  const std::vector<double>& scores = file.numbers.at("tokenizer.ggml.scores");
  CHECK(scores[5] > scores[6]);
  CHECK(key<bool>(file, "tokenizer.ggml.add_bos_token"));
  CHECK(!key<bool>(file, "tokenizer.ggml.add_space_prefix"));

  folder.write("m/tokenizer.json", R"({"model": {"type": "WordPiece"}})");
  exporting::Options options = options_for(folder.path("m"), folder.path("no.gguf"));
  options.format = exporting::Format::gguf;
  CHECK(tests::contains(tests::message_of<DataError>([&] { export_model(options); }), "WordPiece"));
  folder.write(
      "m/tokenizer.json",
      R"({"pre_tokenizer": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 99}, "merges": []}})");
  CHECK(tests::contains(tests::message_of<DataError>([&] { export_model(options); }), "the model has 61 rows"));
  CHECK(!fs::exists(options.out));
}
