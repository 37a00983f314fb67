// A folder that PEFT's from_pretrained opens: adapter_model.safetensors, whose names are those of the base's modules,
// and adapter_config.json. Source: peft 0.21, utils/save_and_load.py and tuners/tuners_utils.py (how target_modules
// match).
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/checkpoint/safetensors.h"
#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/glob.h"
#include "engine/core/narrow.h"
#include "engine/export/adapter.h"
#include "engine/export/formats.h"
#include "engine/job/peft_config.h"

namespace trainer::exporting {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorInfo;
using OrderedJson = nlohmann::ordered_json;

/// The checkpoint's adapter. Throws where there is none, or one that PEFT's files cannot say.
Adapter open_adapter(const Options& options) {
  const std::string& path = options.checkpoint;
  if (!exists(path)) throw DataError(path + ": there is no such file or directory");
  if (is_peft_folder(path)) throw UsageError(path + ": is a folder of peft already");
  const char* of_adapters = ": --format adapter is for checkpoints of adapters";
  if (!is_directory(path) || is_model_folder(path)) throw UsageError(path + of_adapters);
  WeightSource weights = open_weights(path, DiskNames());
  const SavedFacts facts = facts_of(*weights.manifest, weights.path);
  if (!facts.base) throw UsageError(weights.path + of_adapters + "; this one is of a whole model");
  Adapter adapter = adapter_of_checkpoint(std::move(weights), facts, options);
  if (adapter.folder && !adapter.folder->part.empty())
    throw DataError(adapter.base + ": the adapter is of a part of a larger model (" + adapter.folder->part +
                    "), for which peft has other names; --format hf --merge writes the part as a model");
  return adapter;
}

bool is_of_adapter(const std::string& name) {
  return name.ends_with(kLoraA) || name.ends_with(kLoraB) || name.ends_with(kMagnitude);
}

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }
std::string module_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

/// The nodes that are adapted, in the order of the checkpoint.
std::vector<std::string> adapted_nodes(const Adapter& adapter) {
  std::vector<std::string> nodes;
  for (const TensorInfo& info : adapter.tensors) {
    if (!info.name.ends_with(kLoraA)) continue;
    const std::string node = info.name.substr(0, info.name.size() - kLoraA.size()), weight = node + ".weight";
    if (std::ranges::find(adapter.saved->tensors, weight) == adapter.saved->tensors.end())
      throw DataError(adapter.weights.path + ": " + node +
                      " reads the weight of another node, for which peft has no name; --format hf --merge writes "
                      "everything");
    nodes.push_back(node);
  }
  return nodes;
}

/// The modules that were trained whole beside the adapter, sorted. A module is what peft keeps: all of its tensors.
std::vector<std::string> whole_modules(const Adapter& adapter) {
  std::set<std::string> trained, modules;
  for (const TensorInfo& info : adapter.tensors)
    if (!is_of_adapter(info.name)) trained.insert(info.name), modules.insert(module_of(info.name));
  const auto fail = [&](const std::string& what) {
    throw DataError(adapter.weights.path + ": " + what + "; --format hf --merge writes everything");
  };
  for (const std::string& name : trained)
    if (std::ranges::find(adapter.saved->tensors, name) == adapter.saved->tensors.end())
      fail(name + " are some rows of a tensor, which are not written as an adapter of peft");
  for (const std::string& name : adapter.saved->tensors)
    if (modules.contains(module_of(name)) && !trained.contains(name))
      fail("beside the adapter " + module_of(name) + " was trained without its " + last_part(name) +
           ", and peft keeps modules whole");
  return {modules.begin(), modules.end()};
}

/// What the base's own program calls a module or tensor.
std::string disk_name(const Adapter& adapter, const std::string& name) {
  if (!adapter.folder || adapter.folder->names.prefixes.empty()) return name;
  const DiskNames& names = adapter.folder->names;
  const std::string weight = with_prefix(names, name + ".weight");  // of a module
  return weight == name + ".weight" ? name : with_prefix(names, name);
}

/// The end of a name after its last number, a layer's: "self_attn.q_proj" of "model.layers.3.self_attn.q_proj".
std::string after_numbers(const std::string& name) {
  std::size_t begin = 0;
  for (std::size_t dot = name.find('.'), from = 0; dot != std::string::npos;
       from = dot + 1, dot = name.find('.', from)) {
    const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
    if (dot > from && std::all_of(name.begin() + static_cast<std::ptrdiff_t>(from),
                                  name.begin() + static_cast<std::ptrdiff_t>(dot), is_digit))
      begin = dot + 1;
  }
  return name.substr(begin);
}

/// As few names as choose just these modules: their last parts, or what follows the number of the layer, or whole
/// names. PEFT takes a module if its name ends with one of these, and for target_modules only after `before`, a dot.
std::vector<std::string> choosing(const Adapter& adapter, const std::vector<std::string>& nodes,
                                  const std::string& before) {
  std::vector<std::string> others;  // modules with a weight that are not chosen
  for (const std::string& name : adapter.saved->tensors) {
    const std::string module = module_of(name);
    if (name.ends_with(".weight") && std::ranges::find(nodes, module) == nodes.end()) others.push_back(module);
  }
  const auto shorter = [&](auto&& part) {
    std::vector<std::string> names;
    for (const std::string& node : nodes) names.push_back(part(node));
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    const bool just_these = std::ranges::none_of(others, [&](const std::string& other) {
      return std::ranges::any_of(
          names, [&](const std::string& name) { return other == name || other.ends_with(before + name); });
    });
    return just_these ? names : std::vector<std::string>();
  };
  for (const auto part : {last_part, after_numbers})
    if (std::vector<std::string> names = shorter(part); !names.empty()) return names;
  return shorter([&](const std::string& node) { return disk_name(adapter, node); });
}

OrderedJson number(double value) {
  return value == std::floor(value) ? OrderedJson(static_cast<std::int64_t>(value)) : OrderedJson(value);
}

/// What peft wraps the base for.
OrderedJson task_of(const std::optional<ModelFolder>& folder) {
  if (!folder) return nullptr;
  const auto head = folder->with.find("head");
  const std::string* word = head == folder->with.end() ? nullptr : head->second.word();
  if (word != nullptr && *word != "words") return "SEQ_CLS";
  return folder->tensors ? OrderedJson(nullptr) : OrderedJson("CAUSAL_LM");
}

std::string config_of(const Adapter& adapter, const std::vector<std::string>& nodes,
                      const std::vector<std::string>& whole) {
  const bool transposed = adapter.folder && std::ranges::any_of(nodes, [&](const std::string& node) {
                            return std::ranges::any_of(adapter.folder->names.transposed, [&](const std::string& glob) {
                              return name_matches(glob, node + ".weight");
                            });
                          });
  return OrderedJson{
             {"alpha_pattern", OrderedJson::object()},
             {"base_model_name_or_path", adapter.base},
             {"bias", "none"},
             {"fan_in_fan_out", transposed},
             {"inference_mode", true},
             {"init_lora_weights", true},
             {"layers_to_transform", nullptr},
             {"lora_alpha", number(adapter.alpha)},
             {"lora_dropout", number(adapter.dropout)},
             {"modules_to_save", whole.empty() ? OrderedJson(nullptr) : OrderedJson(choosing(adapter, whole, ""))},
             {"peft_type", "LORA"},
             {"r", adapter.rank},
             {"rank_pattern", OrderedJson::object()},
             {"target_modules", choosing(adapter, nodes, ".")},
             {"task_type", task_of(adapter.folder)},
             {"use_dora", adapter.magnitude},
             {"use_rslora", adapter.scaled_by_root}}
             .dump(2) +
         "\n";
}

/// One tensor at a time.
std::int64_t write_weights(const Adapter& adapter, const std::string& path, DType dtype, const Options& options) {
  std::vector<checkpoint::TensorSpec> specs;
  std::map<std::string, const TensorInfo*> tensors;  // by name in the file
  std::int64_t total = 0;
  for (const TensorInfo& info : adapter.tensors) {
    const std::string name = kPeftPrefix + disk_name(adapter, info.name);
    specs.push_back({name, dtype, info.shape});
    tensors[name] = &info;
    total += info.shape.elements() * size_of(dtype);
  }
  Progress progress(options, total);
  checkpoint::SafetensorsWriter writer(path, specs, {{"format", "pt"}});
  std::vector<std::byte> bytes;
  for (const checkpoint::TensorSpec& spec : writer.order()) {
    const TensorInfo& info = *tensors.at(spec.name);
    const std::int64_t count = info.shape.elements();
    std::vector<std::byte> raw(static_cast<std::size_t>(count * size_of(info.dtype)));
    adapter.weights.tensors.read(info.name, {0, count}, raw.data());
    std::vector<float> values(static_cast<std::size_t>(count));
    to_f32(info.dtype, raw.data(), count, values.data());
    if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
      throw DataError(adapter.weights.path + ": the weight " + info.name +
                      " is not finite; take an earlier checkpoint");
    narrow(values, dtype, info.name, bytes);
    writer.write(spec.name, bytes.data(), static_cast<std::int64_t>(bytes.size()));
    progress.add(static_cast<std::int64_t>(bytes.size()));
  }
  return writer.finish().bytes;
}

}  // namespace

void write_adapter_folder(const std::string& path, const Options& options, Report& report) {
  const Adapter adapter = open_adapter(options);
  const std::vector<std::string> nodes = adapted_nodes(adapter), whole = whole_modules(adapter);
  report.source = adapter.weights.path;
  report.precision = options.precision.value_or(Precision::f32);
  report.tensors = static_cast<std::int64_t>(adapter.tensors.size());
  for (const TensorInfo& info : adapter.tensors) report.parameters += info.shape.elements();
  if (!adapter.folder)
    report.notes.push_back("the base is a graph of its own, not a model folder: the names are those of its nodes");
  std::error_code error;
  fs::create_directory(path, error);
  if (error) throw IoError(path + ": creating the folder: " + error.message());
  const std::string config = config_of(adapter, nodes, whole);
  write_text(path + "/" + kPeftConfig, config);
  report.files.emplace_back(kPeftConfig, static_cast<std::int64_t>(config.size()));
  const DType dtype = report.precision == Precision::bf16  ? DType::bf16
                      : report.precision == Precision::f16 ? DType::f16
                                                           : DType::f32;
  report.files.emplace_back(kPeftWeights, write_weights(adapter, path + "/" + kPeftWeights, dtype, options));
  sync_directory(path);
}

}  // namespace trainer::exporting
