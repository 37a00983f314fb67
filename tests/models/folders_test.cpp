// Model folders of every family: log-probabilities and gradients of transformers, by the graph that the family makes
// of config.json (interpreted in f64) and by `score` on every strategy; both generations of config.json; bad folders.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>

#include "engine/checkpoint/tensor_store.h"
#include "engine/compile/compile.h"
#include "engine/core/error.h"
#include "engine/train/row_groups.h"
#include "engine/train/score.h"
#include "engine/transform/transform.h"
#include "kernels/cpu/table.h"
#include "tests/goldens/golden.h"
#include "tests/models/folder_jobs.h"
#include "tests/reference/interpreter.h"
#include "tests/temporary.h"

namespace trainer::folders_test {

using namespace trainer::test;
using reference::Tensor;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kFamilies{
    "llama3", "llama_tied", "mistral", "qwen2",     "qwen3",     "gemma2",      "gemma3_text",
    "phi3",   "gpt2",       "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3", "deepseek_v3_plain"};

/// A copy of a golden folder; `config` is the file that becomes its config.json.
void copy_folder(const std::string& name, const std::string& to, const std::string& config = "config.json") {
  fs::create_directories(to);
  fs::copy_file(golden(name) + "/model.safetensors", to + "/model.safetensors");
  fs::copy_file(golden(name) + "/" + config, to + "/config.json");
}

Tensor read(const checkpoint::TensorStore& store, const std::string& name, const Shape& shape) {
  Tensor tensor = read_tensor(store, name);
  REQUIRE_MESSAGE(tensor.shape == shape, name);
  return tensor;
}

Rows rows_of(const Tensor& ids) {
  Rows rows;
  for (std::int64_t row = 0; row < ids.shape[0]; ++row) {
    rows.emplace_back();
    for (std::int64_t i = 0; i < ids.shape[1]; ++i)
      rows.back().push_back(static_cast<std::int32_t>(ids.data[static_cast<std::size_t>(row * ids.shape[1] + i)]));
  }
  return rows;
}

/// Log-probabilities of the golden's rows, one after another.
std::vector<float> scored(const std::string& folder, const Rows& rows, const std::vector<std::string>& overrides = {}) {
  LoadedJob loaded = job_of(folder, overrides);
  loaded.job.precision.compute = DType::f32;
  set_batch_for_scoring(loaded, rows);
  const CompiledJob compiled = compiled_here(loaded, Purpose::score);
  std::vector<float> out;
  score(loaded, compiled, folder, rows,
        [&](std::size_t, std::span<const float> logprobs) { out.insert(out.end(), logprobs.begin(), logprobs.end()); },
        {.threads = 1});
  return out;
}

double largest_difference(const std::vector<float>& got, const Tensor& expected) {
  REQUIRE(got.size() == expected.data.size());
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(got[i]) - expected.data[i]));
  return most;
}

}  // namespace

TEST_CASE("rows are cut into runs at the least cost") {
  std::mt19937 random(9);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> lengths(1 + random() % 9);
    for (std::int64_t& length : lengths) length = 1 + static_cast<std::int64_t>(random() % 63);
    std::ranges::sort(lengths);
    const auto per_run = static_cast<std::int64_t>(random() % 60);
    const auto cost_of = [&](const std::vector<std::size_t>& ends) {
      std::int64_t cost = 0;
      std::size_t begin = 0;
      for (const std::size_t end : ends) {
        cost += static_cast<std::int64_t>(end - begin) * lengths[end - 1] + per_run;
        begin = end;
      }
      return cost;
    };
    std::int64_t least = INT64_MAX;
    for (unsigned cuts = 0; cuts < 1U << (lengths.size() - 1); ++cuts) {  // every way to cut them
      std::vector<std::size_t> ends;
      for (std::size_t i = 1; i < lengths.size(); ++i)
        if (((cuts >> (i - 1)) & 1) != 0) ends.push_back(i);
      ends.push_back(lengths.size());
      least = std::min(least, cost_of(ends));
    }
    const std::vector<std::size_t> ends = cheapest_runs(lengths, per_run);
    REQUIRE(ends.back() == lengths.size());
    REQUIRE(cost_of(ends) == least);
  }
  // One long row does not make thousands of short ones long.
  std::vector<std::int64_t> many(10000, 20);
  many.push_back(100000);
  CHECK(cheapest_runs(many, 2048) == std::vector<std::size_t>{10000, 10001});
}

TEST_CASE("rows of very different lengths are scored in groups, as each alone is") {
  const LoadedJob loaded = job_of(golden("llama_tied"));
  std::mt19937 random(4);
  Rows rows;
  for (int i = 0; i < 400; ++i) {
    rows.emplace_back(1 + random() % 12);
    if (i == 7) rows.back().resize(*loaded.job.model.folder->longest);
    for (std::int32_t& id : rows.back()) id = static_cast<std::int32_t>(random() % 50);
  }
  const std::vector<std::vector<std::size_t>> groups = groups_of_rows(loaded, rows);
  REQUIRE(groups.size() == 2);
  CHECK(groups[1] == std::vector<std::size_t>{7});
  CHECK(groups[0].size() == 399);
  for (const std::size_t row : {std::size_t{0}, std::size_t{7}, std::size_t{399}}) {
    const std::vector<float> alone = scored(golden("llama_tied"), {rows[row]});
    Rows some;
    std::size_t before = 0;  // log-probabilities before the row's
    for (const std::vector<std::size_t>& group : groups)
      if (std::ranges::find(group, row) != group.end())
        for (const std::size_t each : group) {
          some.push_back(rows[each]);
          if (each < row) before += rows[each].size() - 1;
        }
    const std::vector<float> together = scored(golden("llama_tied"), some);
    for (std::size_t i = 0; i < alone.size(); ++i) CHECK(std::abs(together[before + i] - alone[i]) < 1e-5F);
  }
}

TEST_CASE("the graph of every family has transformers' loss and gradients of all parameters") {
  for (const std::string& name : kFamilies) {
    CAPTURE(name);
    const std::map<std::string, Tensor> expected = goldens::load_tensors(golden(name) + "/expected.safetensors");
    const Tensor& ids = expected.at("ids");
    const LoadedJob loaded = job_of(golden(name));
    const ModelFolder& folder = *loaded.job.model.folder;
    const auto store = checkpoint::TensorStore::from_folder(golden(name), folder.names);
    BuildOptions options;
    options.batch = ids.shape[0];
    options.field_shapes = {{"tokens", {ids.shape[1]}}, {"targets", {ids.shape[1]}}};
    options.mode = BuildOptions::Mode::evaluate;  // without dropout
    Graph graph = read_graph(graph_tree(loaded), loaded.job.model.with, options);
    CHECK(graph.parameters.size() + graph.states.size() == store.tensors().size());
    differentiate(graph, DType::f32);

    Tensor targets(ids.shape);
    std::fill(targets.data.begin(), targets.data.end(), -100);
    for (std::int64_t row = 0; row < ids.shape[0]; ++row)
      for (std::int64_t i = 0; i + 1 < ids.shape[1]; ++i)
        targets.data[static_cast<std::size_t>(row * ids.shape[1] + i)] =
            ids.data[static_cast<std::size_t>(row * ids.shape[1] + i + 1)];
    reference::Interpreter values(graph);
    for (const ValueId input : graph.inputs) values.set(input, graph.value(input).name == "tokens" ? ids : targets);
    for (const Parameter& parameter : graph.parameters)
      values.set(parameter.value, read(store, graph.value(parameter.value).name, graph.value(parameter.value).shape()));
    for (const GraphState& state : graph.states)
      values.set(state.value, read(store, graph.value(state.value).name, graph.value(state.value).shape()));
    const auto counted = static_cast<double>(expected.at("logprobs").data.size());
    values.set(graph.seed, Tensor({1}, 1 / counted));
    values.run();

    double mean = 0;
    for (const double logprob : expected.at("logprobs").data) mean -= logprob / counted;
    CHECK(values.get(graph.loss.sum)[0] / counted == doctest::Approx(mean).epsilon(1e-6));

    // The gradients have the names of the files.
    for (const Parameter& parameter : graph.parameters) {
      const std::string& own = graph.value(parameter.value).name;
      std::string in_file = own;
      for (const std::string& prefix : folder.names.prefixes)
        if (expected.contains("grad/" + prefix + own)) in_file = prefix + own;
      REQUIRE_MESSAGE(expected.contains("grad/" + in_file), in_file);
      const Tensor& wanted = expected.at("grad/" + in_file);
      const Tensor got = parameter_gradient(graph, values, parameter.value);
      const bool transposed = wanted.shape != got.shape;
      double most = 0, scale = 0;
      const std::int64_t columns = got.shape[-1], rows = got.shape.elements() / columns;
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) {
          const double other = wanted.data[static_cast<std::size_t>(transposed ? c * rows + r : r * columns + c)];
          most = std::max(most, std::abs(got.data[static_cast<std::size_t>(r * columns + c)] - other));
          scale = std::max(scale, std::abs(other));
        }
      const bool square = got.shape.rank() == 2 && rows == columns && name == "gpt2";
      if (square) continue;  // which way it lies cannot be seen here; `score` does
      CHECK_MESSAGE(most <= 1e-5 * scale + 1e-9, own);
    }
  }
}

TEST_CASE("score gives transformers' log-probabilities, on one rank and on every strategy over two") {
  for (const std::string& name : kFamilies) {
    const std::map<std::string, Tensor> expected = goldens::load_tensors(golden(name) + "/expected.safetensors");
    const Rows rows = rows_of(expected.at("ids"));
    CAPTURE(name);
    CHECK(largest_difference(scored(golden(name), rows), expected.at("logprobs")) < 2e-5);
    for (const char* strategy : {"tensor", "fsdp", "pipeline"}) {
      CAPTURE(std::string(strategy));
      const std::vector<float> got =
          scored(golden(name), rows, {"cluster.devices_per_node=2", std::string("strategy=") + strategy});
      CHECK(largest_difference(got, expected.at("logprobs")) < 2e-5);
    }
  }
}

TEST_CASE("config.json of both generations is the same model") {
  for (const std::string& name : kFamilies) {
    if (!fs::exists(golden(name) + "/config_v4.json")) continue;
    CAPTURE(name);
    tests::TemporaryFolder folder;
    copy_folder(name, folder.path("v4"), "config_v4.json");
    const ModelFolder v5 = read_model_folder(golden(name), configs()),
                      v4 = read_model_folder(folder.path("v4"), configs());
    CHECK(v4.with == v5.with);
    CHECK(v4.dtype == v5.dtype);
    CHECK(v4.longest == v5.longest);
  }
}

// ---- Folders that are wrong ---------------------------------------------------------------------------------------

namespace {

/// A mistake in config.json: a text of the golden's that is replaced, the key that is told and what is said.
struct BadConfig {
  std::string family, from, to;
  std::string path, said;  ///< a part of message and allowed together
};

const std::vector<BadConfig> kBadConfigs{
    {"llama3", "\"model_type\": \"llama\"", "\"model_type\": \"lama\"", "model_type", "no such family"},
    {"llama3", "\"model_type\": \"llama\"", "\"model_type\": \"deepseek_v2\"", "model_type", "with experts"},
    {"llama3", "  \"model_type\": \"llama\",\n", "", "model_type", "names the family"},
    {"llama3", "\"architectures\": [\n    \"LlamaForCausalLM\"",
     "\"architectures\": [\n    \"LlamaForTokenClassification\"", "architectures", "LlamaForCausalLM"},
    {"llama3", "\"hidden_size\": 24", "\"hiden_size\": 24", "hiden_size", "does not know"},
    {"llama3", "\"hidden_size\": 24", "\"hidden_size\": \"24\"", "hidden_size", "an integer of at least 1"},
    {"llama3", "\"hidden_size\": 24", "\"hidden_size\": 0", "hidden_size", "an integer of at least 1"},
    {"llama3", "\"hidden_size\": 24", "\"hidden_size\": -24", "hidden_size", "an integer of at least 1"},
    {"llama3", "\"hidden_size\": 24", "\"hidden_size\": 24.5", "hidden_size", "an integer of at least 1"},
    {"llama3", "\"hidden_size\": 24", "\"hidden_size\": true", "hidden_size", "an integer of at least 1"},
    {"llama3", "\"hidden_size\": 24", "\"hidden_size\": [24]", "hidden_size", "an integer of at least 1"},
    {"llama3", "\"hidden_size\": 24", "\"hidden_size\": {\"x\": 24}", "hidden_size.x", "does not know"},
    {"llama3", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"swish2\"", "hidden_act", "silu"},
    {"llama3", "\"hidden_act\": \"silu\"", "\"hidden_act\": 3", "hidden_act", "a string"},
    {"llama3", "\"attention_bias\": false", "\"attention_bias\": \"no\"", "attention_bias", "true or false"},
    {"llama3", "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": \"tiny\"", "rms_norm_eps", "a number"},
    {"llama3", "\"rms_norm_eps\": 1e-06", "\"layer_norm_eps\": 1e-06", "layer_norm_eps", "does not know"},
    {"llama3", "\"rope_type\": \"llama3\"", "\"rope_type\": \"ntk\"", "rope_parameters.rope_type", "llama3"},
    {"llama3", "\"low_freq_factor\": 1.0", "\"low_frequency_factor\": 1.0", "rope_parameters.low_frequency_factor",
     "does not know"},
    {"llama3", "\"vocab_size\": 61", "\"vocab_size\": 61, \"vocab_size\": 62", "", "duplicate key"},
    {"llama3", "\"dtype\": \"float32\"", "\"dtype\": \"int4\"", "dtype", "bfloat16"},
    {"llama3", "\"use_cache\": true", "\"sliding_window\": 7", "sliding_window", "does not know"},
    {"llama3", "\"use_cache\": true", "\"quantization_config\": {\"quant_method\": \"gptq\"}",
     "quantization_config.quant_method", "fp8"},
    {"llama3", "\"use_cache\": true", "\"quantization_config\": {\"load_in_4bit\": true}",
     "quantization_config.load_in_4bit", "does not know"},
    {"llama3", "\"vocab_size\": 61\n}", "\"vocab_size\": 61\n", "", ""},
    {"mistral", "\"sliding_window\": 7", "\"sliding_window\": \"all\"", "sliding_window", "an integer"},
    {"qwen2", "\"layer_types\": [\n", "\"layer_types\": [ [\"x\"],\n", "layer_types", "a list of numbers or words"},
    {"gemma2", "gelu_pytorch_tanh", "gelu", "hidden_activation", "gelu_pytorch_tanh"},
    {"gemma3_text", "\"rope_type\": \"default\"", "\"rope_type\": \"linear\"",
     "rope_parameters.sliding_attention.rope_type", "default"},
    {"gemma3_text", "\"use_bidirectional_attention\": false", "\"use_bidirectional_attention\": true",
     "use_bidirectional_attention", "false"},
    {"phi3", "\"rope_type\": \"longrope\"", "\"rope_type\": \"llama3\"", "rope_parameters.rope_type", "longrope"},
    {"gpt2", "\"activation_function\": \"gelu_new\"", "\"activation_function\": \"relu\"", "activation_function",
     "gelu_new"},
    {"qwen3_moe", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": \"two\"", "num_experts_per_tok",
     "an integer of at least 1"},
    {"deepseek_v3", "\"qk_nope_head_dim\": 6", "\"qk_nope_head_dim\": 6.5", "qk_nope_head_dim",
     "an integer of at least 1"},
    {"deepseek_v3", "\"num_key_value_heads\": 4", "\"num_key_value_heads\": 2", "num_key_value_heads", "as many heads"},
    {"deepseek_v3", "\"n_group\": 4", "\"n_group\": 3", "n_group", "do not divide"},
    {"deepseek_v3", "\"num_nextn_predict_layers\": 1", "\"num_nextn_predict_layers\": 2", "num_nextn_predict_layers",
     "0, 1"},
    {"deepseek_v3", "\"rope_interleave\": true", "\"scoring_func\": \"softmax\"", "scoring_func", "sigmoid"},
    {"gpt2", "\"scale_attn_weights\": true", "\"scale_attn_weights\": false", "scale_attn_weights", "true"},
    {"gpt2", "\"add_cross_attention\": false", "\"add_cross_attention\": true", "add_cross_attention", "false"},
};

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Returns the line of the text that was replaced.
int replace(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = text_of(path);
  const std::size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  text.replace(at, from.size(), to);
  std::ofstream(path, std::ios::binary) << text;
  return 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

/// What opening a folder's weights says; empty: nothing is wrong.
std::string told(const std::string& folder) {
  try {
    const LoadedJob loaded = job_of(folder);
    const Tensor ids = goldens::load_tensors(golden("llama3") + "/expected.safetensors").at("ids");
    scored(folder, rows_of(ids));
  } catch (const DataError& error) {
    return error.what();
  } catch (const JobError& error) {
    return std::string("job: ") + error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a mistake in config.json is told at its line, with its key and what is allowed") {
  for (const BadConfig& bad : kBadConfigs) {
    CAPTURE(bad.family);
    CAPTURE(bad.to);
    tests::TemporaryFolder folder;
    copy_folder(bad.family, folder.path("m"));
    const int line = replace(folder.path("m/config.json"), bad.from, bad.to);
    const std::vector<Diagnostic> found = mistakes_of(folder.path("m"));
    REQUIRE(!found.empty());
    CHECK(found[0].file == folder.path("m/config.json"));
    if (bad.said.empty()) continue;  // no JSON: the parser's words
    CHECK(found[0].line == (bad.to.empty() ? 1 : line));
    CHECK(found[0].path == bad.path);
    CHECK_MESSAGE((found[0].message + found[0].allowed).find(bad.said) != std::string::npos, found[0].str());
  }
}

TEST_CASE("a word of a job with a folder that is none is told at its place") {
  for (const auto& [override, allowed] : std::vector<std::pair<std::string, std::string>>{
           {"model.weights=init", "load, random"}, {"model.quantize=nf5", "nf4"}}) {
    const std::string message = tests::message_of<JobError>([&] { job_of(golden("llama3"), {override}); });
    CAPTURE(message);
    CHECK(message.find(override.substr(0, override.find('='))) != std::string::npos);
    CHECK(message.find(allowed) != std::string::npos);
  }
}

TEST_CASE("what is wrong with the files of a model folder is told with the name of the file or tensor") {
  struct Bad {
    const char* what;
    std::function<void(const tests::TemporaryFolder&)> spoil;
    const char* said;
  };
  const auto index = [](const std::string& text) {
    return [text](const tests::TemporaryFolder& folder) {
      std::ofstream(folder.path("m/model.safetensors.index.json")) << text;
    };
  };
  const auto config = [](const std::string& from, const std::string& to) {
    return [from, to](const tests::TemporaryFolder& folder) { replace(folder.path("m/config.json"), from, to); };
  };
  const auto header = [](const std::string& from, const std::string& to) {
    return [from, to](const tests::TemporaryFolder& folder) {
      REQUIRE(from.size() == to.size());
      replace(folder.path("m/model.safetensors"), from, to);
    };
  };
  const auto without = [](const tests::TemporaryFolder& folder) { fs::remove(folder.path("m/model.safetensors")); };
  const std::vector<Bad> cases{
      {"no weights", without, "has no model.safetensors"},
      {"pickled weights",
       [&](const tests::TemporaryFolder& folder) {
         without(folder);
         folder.write("m/pytorch_model.bin", "x");
       },
       "pickled"},
      {"a part without the index",
       [](const tests::TemporaryFolder& folder) {
         fs::rename(folder.path("m/model.safetensors"), folder.path("m/model-00001-of-00002.safetensors"));
       },
       "no model.safetensors.index.json"},
      {"an index that is no JSON", index("{"), "no JSON object"},
      {"an index that is a list", index("[]"), "weight_map"},
      {"an index without a map", index("{}"), "weight_map"},
      {"a map that is a list", index(R"({"weight_map": []})"), "weight_map"},
      {"a file that is a number", index(R"({"weight_map": {"a": 1}})"), "weight_map.a names no file"},
      {"a file of another folder", index(R"({"weight_map": {"a": "../model.safetensors"}})"), "no file of this folder"},
      {"a file that is missing", index(R"({"weight_map": {"a": "model-2.safetensors"}})"), "not complete"},
      {"a tensor that the index lacks", index(R"({"weight_map": {"model.norm.weight": "model.safetensors"}})"),
       "does not list"},
      {"an empty index", index(R"({"weight_map": {}})"), "model.norm.weight"},
      {"a tensor with another name", header("model.norm.weight", "model.norn.weight"), "model.norm.weight"},
      {"a tensor that is left over", header("model.norm.weight", "model.norn.weight"), "model.norn.weight"},
      {"a tensor of another dtype", header("\"dtype\":\"F32\"", "\"dtype\":\"I32\""), "not floats"},
      {"a tensor of an unknown dtype", header("\"dtype\":\"F32\"", "\"dtype\":\"F99\""), "F99"},
      {"a file that ends too early",
       [](const tests::TemporaryFolder& folder) {
         fs::resize_file(folder.path("m/model.safetensors"), fs::file_size(folder.path("m/model.safetensors")) - 4);
       },
       "model.safetensors"},
      {"a header that lies",
       [](const tests::TemporaryFolder& folder) {
         std::fstream file(folder.path("m/model.safetensors"), std::ios::in | std::ios::out | std::ios::binary);
         file.put('\xff');
       },
       "model.safetensors"},
      {"an empty file",
       [](const tests::TemporaryFolder& folder) { fs::resize_file(folder.path("m/model.safetensors"), 0); },
       "model.safetensors"},
      {"a smaller vocabulary", config("\"vocab_size\": 61", "\"vocab_size\": 60"),
       "model.embed_tokens.weight is [61, 24]"},
      {"a wider MLP", config("\"intermediate_size\": 40", "\"intermediate_size\": 41"),
       "mlp.gate_proj.weight is [40, 24]"},
      {"more layers", config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"),
       "model.layers.2.input_layernorm.weight [24] is missing"},
      {"fewer layers", config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"),
       "model.layers.1.input_layernorm.weight [24] is not in the model"},
      {"larger heads", config("\"head_dim\": 4", "\"head_dim\": 6"), "self_attn.q_proj.weight is [24, 24]"},
      {"biases that are not there", config("\"attention_bias\": false", "\"attention_bias\": true"),
       "self_attn.q_proj.bias [24] is missing"},
      {"a head that should be there", config("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"),
       "self_attn.k_proj.weight is [8, 24]"},
  };
  for (const Bad& bad : cases) {
    CAPTURE(std::string(bad.what));
    tests::TemporaryFolder folder;
    copy_folder("llama3", folder.path("m"));
    bad.spoil(folder);
    const std::string found = told(folder.path("m"));
    CHECK_MESSAGE(found.find(bad.said) != std::string::npos, found);
  }
}

TEST_CASE("weights in several files, and the head of a tied model twice, are read") {
  const std::map<std::string, Tensor> expected = goldens::load_tensors(golden("llama_tied") + "/expected.safetensors");
  const auto store = checkpoint::TensorStore::from_folder(golden("llama_tied"), DiskNames());
  tests::TemporaryFolder folder;
  fs::create_directories(folder.path("m"));
  fs::copy_file(golden("llama_tied") + "/config.json", folder.path("m/config.json"));
  std::string map;
  for (int part = 0; part < 2; ++part) {
    const std::string file = "model-0000" + std::to_string(part + 1) + "-of-00002.safetensors";
    std::vector<checkpoint::TensorSpec> specs;
    for (std::size_t i = 0; i < store.tensors().size(); ++i) {
      const checkpoint::TensorInfo& info = store.tensors()[i];
      if (static_cast<int>(i % 2) != part) continue;
      specs.push_back({info.name, info.dtype, info.shape});
      if (info.name == "model.embed_tokens.weight") specs.push_back({"lm_head.weight", info.dtype, info.shape});
    }
    checkpoint::SafetensorsWriter writer(folder.path("m/" + file), specs, {{"format", "pt"}});
    for (const checkpoint::TensorSpec& spec : writer.order()) {
      std::vector<float> values(static_cast<std::size_t>(spec.shape.elements()));
      const bool head = spec.name == "lm_head.weight";
      store.read(head ? "model.embed_tokens.weight" : spec.name, 0, spec.shape.elements(), values.data());
      writer.write(spec.name, values.data(), spec.bytes());
      map += (map.empty() ? "" : ", ") + ("\"" + spec.name + "\": \"" + file + "\"");
    }
    writer.finish();
  }
  folder.write("m/model.safetensors.index.json", "{\"metadata\": {}, \"weight_map\": {" + map + "}}");
  CHECK(largest_difference(scored(folder.path("m"), rows_of(expected.at("ids"))), expected.at("logprobs")) < 2e-5);
}

TEST_CASE(
    "DeepSeek V3 as it is published: FP8 by blocks, experts in tensors of their own, a further layer that is told") {
  const std::map<std::string, Tensor> expected =
      goldens::load_tensors(golden("deepseek_v3_fp8") + "/expected.safetensors");
  const Rows rows = rows_of(expected.at("ids"));
  CHECK(largest_difference(scored(golden("deepseek_v3_fp8"), rows), expected.at("logprobs")) < 2e-5);
  for (const char* strategy : {"tensor", "fsdp"})
    CHECK(largest_difference(scored(golden("deepseek_v3_fp8"), rows,
                                    {"cluster.devices_per_node=2", std::string("strategy=") + strategy}),
                             expected.at("logprobs")) < 2e-5);
  const ModelFolder folder = read_model_folder(golden("deepseek_v3_fp8"), configs());
  REQUIRE(folder.warnings.size() == 1);
  CHECK(folder.warnings[0].path == "num_nextn_predict_layers");
}

TEST_CASE("a part of FP8 matrices of experts is what the same part of all of them is") {
  const ModelFolder folder = read_model_folder(golden("deepseek_v3_fp8"), configs());
  const auto store = checkpoint::TensorStore::from_folder(golden("deepseek_v3_fp8"), folder.names);
  const std::string name = "model.layers.1.mlp.experts.down_proj.weight";
  const Tensor all = read(store, name, {4, 24, 136});
  for (const checkpoint::Range& range : std::vector<checkpoint::Range>{{0, 10},
                                                                       {3000, 7000},
                                                                       {24 * 136 - 1, 24 * 136 + 1},
                                                                       {36, 130, 90, 136},
                                                                       {2 * 24 * 136 + 130, 4 * 24 * 136}}) {
    std::vector<float> part(static_cast<std::size_t>(range.count() * range.repeat));
    store.read(name, range, part.data());
    for (std::int64_t r = 0; r < range.repeat; ++r)
      for (std::int64_t i = 0; i < range.count(); ++i)
        REQUIRE(part[static_cast<std::size_t>(r * range.count() + i)] == all[range.first + r * range.stride + i]);
  }
}

TEST_CASE("a matrix in FP8 without its scale, and a scale without its matrix, are named") {
  for (const auto& [from, to, said] : std::vector<std::array<std::string, 3>>{
           {"experts.2.up_proj.weight_scale_inv", "experts.9.up_proj.weight_scale_inv", "belongs to no tensor in FP8"},
           {"experts.2.up_proj.weight_scale_inv", "experts.2.up_proj.weight_scale_env", "_scale_inv"},
           {"layers.1.self_attn.o_proj.weight_scale_inv", "layers.1.self_attn.x_proj.weight_scale_inv", "x_proj"},
       }) {
    CAPTURE(to);
    tests::TemporaryFolder folder;
    copy_folder("deepseek_v3_fp8", folder.path("m"));
    replace(folder.path("m/model.safetensors"), from, to);
    const std::string found = told(folder.path("m"));
    CHECK_MESSAGE(found.find(said) != std::string::npos, found);
  }
}

}  // namespace trainer::folders_test
