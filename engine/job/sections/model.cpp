// Sections `model`, `adapter` and `trainable`: what is trained.
#include "engine/job/sections/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/core/glob.h"
#include "engine/job/nearest.h"
#include "engine/job/peft_config.h"
#include "engine/job/sections/define.h"
#include "engine/job/sections/installed.h"
#include "engine/job/values.h"

namespace trainer {
namespace {

using namespace form;

namespace fs = std::filesystem;

std::map<std::string, ParamValue> bind_with(Values& v) {
  const std::string prefix = "model.with.";
  std::map<std::string, ParamValue> out;
  for (const std::string& path : v.checked().order) {
    if (path.starts_with(prefix)) out[path.substr(prefix.size())] = *value_of(v.node(path));
  }
  return out;
}

/// A graph file stands beside the job or among the installed configs, where a model's name alone finds it (gpt2:
/// models/gpt2.yaml).
std::string find_graph(Values& v, const LoadOptions& options, std::vector<Diagnostic>& mistakes) {
  const std::string written = v.node("model.graph").text;
  const std::string here = *v.file("model.graph");
  yaml::Node& node = v.checked().values.find("model.graph")->second.node;
  if (!options.check_files || is_file(here)) return here;
  std::string tried = here;
  const fs::path file(written);
  const bool is_name = !file.has_parent_path() && !file.has_extension();
  if (!options.configs_dir.empty() && file.is_relative()) {
    const fs::path below = is_name ? fs::path("models") / (written + ".yaml") : file;
    const std::string there = (fs::path(options.configs_dir) / below).lexically_normal().string();
    if (is_file(there)) {
      node.text = node.source->name == kCommandLine ? there : below.string();
      return there;
    }
    tried += " and " + there;
  }
  Diagnostic mistake = node.at("model.graph", "no such file; looked for " + tried);
  mistake.value = node.brief();
  const std::vector<std::string> models =
      options.configs_dir.empty() ? std::vector<std::string>() : installed(options.configs_dir + "/models", ".yaml");
  mistake.suggestion = nearest(file.stem().string(), std::vector<std::string_view>(models.begin(), models.end()));
  if (!mistake.suggestion.empty()) mistake.suggestion = "models/" + mistake.suggestion + ".yaml";
  if (!models.empty())
    mistake.allowed = fmt::format("a path, or a model that came with trainer: {}", fmt::join(models, ", "));
  mistakes.push_back(std::move(mistake));
  return here;
}

/// Makes the folder's params settings of the job, except those that the job replaces.
void add_params(Values& v, const ModelFolder& folder, ModelJob& model) {
  std::vector<std::string>& order = v.checked().order;
  auto at = std::ranges::find_if(order, [](const std::string& path) { return path == "model.init_from"; });
  for (const auto& [name, value] : folder.with) {
    if (!model.with.emplace(name, value).second) continue;
    yaml::Node node = yaml::parse(text_of(value), "config.json");
    node.line = 0;
    if (const auto origin = folder.origins.find(name); origin != folder.origins.end()) {
      node.line = origin->second.line;
      node.column = origin->second.column;
      node.source = origin->second.source;
    }
    const std::string path = "model.with." + name;
    v.checked().values[path] = {std::move(node), Setting::From::folder};
    at = order.insert(at, path) + 1;
  }
}

void bind_folder(Values& v, const LoadOptions& options, ModelJob& model, std::vector<Diagnostic>& mistakes) {
  const std::string path = *v.file("model.from");
  if (options.configs_dir.empty()) return;
  std::error_code error;
  if (!fs::is_regular_file(fs::path(path) / "config.json", error)) {
    const bool there = fs::is_directory(path, error);
    const yaml::Node& node = v.node("model.from");
    mistakes.push_back(node.at("model.from",
                               there ? "this folder has no config.json" : "no such folder; looked for " + path,
                               "a model folder: config.json and .safetensors files"));
    mistakes.back().value = node.brief();
    return;
  }
  try {
    ModelFolder folder = read_model_folder(path, options.configs_dir, model.with);
    model.graph = folder.graph;
    add_params(v, folder, model);
    if (!model.init_from && v.right("model.weights") && v.is("model.weights", "load")) model.init_from = path;
    model.folder = std::move(folder);
  } catch (const JobError& error) {
    mistakes.insert(mistakes.end(), error.diagnostics().begin(), error.diagnostics().end());
  }
}

bool is_default(Values& v, const std::string& path) { return v.get(path).from == Setting::From::otherwise; }

/// A value of the key, which the job leaves out.
void add_trainable(Values& v, yaml::Node node, Setting::From from) {
  v.checked().values["trainable"] = {std::move(node), from};
  std::vector<std::string>& order = v.checked().order;
  order.insert(std::ranges::find_if(order, [](const std::string& path) { return path.starts_with("data."); }),
               "trainable");
}

/// Values of the folder's config become those that the job leaves out. Those that it has must be the same where the
/// tensors depend on them.
void take_peft_config(Values& v, const std::string& folder, const PeftConfig& config,
                      std::vector<Diagnostic>& mistakes) {
  for (const PeftConfig::Value& value : config.values) {
    const std::string path = "adapter." + value.key;
    CheckedValue& own = v.checked().values.find(path)->second;
    if (is_default(v, path)) {
      own = {value.node, Setting::From::folder};
    } else if (const auto theirs = value.node.as_number(), ours = own.node.as_number();
               value.must_agree && (theirs != ours || value.node.as_bool() != own.node.as_bool())) {
      mistakes.push_back(own.node.at(path, "the adapter in " + folder + " has another", value.node.text));
      mistakes.back().value = own.node.brief();
    }
  }
}

/// Without the key, `trainable` becomes what the adapter in `folder` has trained whole. With it, that is trained on.
void take_whole_modules(Values& v, const std::string& folder, const std::vector<std::string>& whole,
                        std::vector<Diagnostic>& mistakes) {
  if (whole.empty() || v.checked().doubtful.contains("trainable")) return;
  if (!v.has("trainable")) {
    yaml::Node node;
    node.kind = yaml::Kind::sequence;
    for (const std::string& name : whole) {
      yaml::Node& item = node.items.emplace_back();
      item.text = name;
      item.quoted = true;
    }
    return add_trainable(v, std::move(node), Setting::From::folder);
  }
  if (v.is("trainable", "all")) return;
  const std::vector<std::string> globs = v.texts("trainable");
  for (const std::string& name : whole) {
    if (std::ranges::any_of(globs, [&](const std::string& glob) { return name_matches(glob, name); })) continue;
    const yaml::Node& node = v.node("trainable");
    mistakes.push_back(node.at("trainable",
                               "the adapter in " + folder + " has trained " + name + ", and this freezes it",
                               "a list with \"" + name + "\""));
    mistakes.back().value = node.brief();
    return;
  }
}

/// What adapter.from says of the adapter, where it is a folder of PEFT.
void bind_peft_folder(Values& v, const std::optional<ModelFolder>& model, std::vector<Diagnostic>& mistakes) {
  const std::optional<std::string> from = v.file("adapter.from");
  if (!from || !is_peft_folder(*from)) return;
  try {
    const std::vector<std::string> prefixes = model ? model->names.prefixes : std::vector<std::string>();
    const PeftConfig config = read_peft_config(*from, prefixes, !is_default(v, "adapter.targets"));
    take_peft_config(v, *from, config, mistakes);
    take_whole_modules(v, *from, config.whole, mistakes);
  } catch (const JobError& error) {
    mistakes.insert(mistakes.end(), error.diagnostics().begin(), error.diagnostics().end());
  }
}

}  // namespace

Fields model_fields() {
  return {
      extra("graph",
            "The model: a graph file (relative to this file, then to the installed configs), or a graph written here.",
            {text(), tree()}),
      extra(
          "from",
          "In place of `graph`: a model folder as Hugging Face's from_pretrained opens it (config.json, .safetensors, "
          "tokenizer.json).",
          {text()}),
      optional("weights", "Of `from`: load its weights, or draw random ones.", {word({"load", "random"})}, "load")
          .when("from"),
      optional("with",
               "Values that replace params of the graph: numbers, true, false, words, null, or a list of them, one for "
               "each layer.",
               {map(values())}, "{}"),
      optional("init_from", "Initial weights: a checkpoint directory, a .safetensors file or a model folder.",
               {null(), text()}, "null"),
      optional("quantize",
               "How frozen matrices of linears are held beside an adapter: as they are; int8: eight bits an element, a "
               "scale for each row; nf4: four bits, a scale of eight bits for each 64 (QLoRA, Dettmers et al. 2023).",
               {word(words<Quantization>())}, "none"),
  };
}

ModelJob bind_model(Values& v, const LoadOptions& options, std::vector<Diagnostic>& mistakes) {
  ModelJob model;
  if (v.has("model.graph") && v.node("model.graph").is_mapping())
    model.inline_graph = v.node("model.graph");
  else if (v.has("model.graph"))
    model.graph = find_graph(v, options, mistakes);
  model.with = bind_with(v);
  if (v.has("model.init_from")) model.init_from = v.file("model.init_from");
  if (v.has("model.from")) bind_folder(v, options, model, mistakes);
  if (v.right("model.quantize")) model.quantize = v.word<Quantization>("model.quantize");
  return model;
}

Fields adapter_fields() {
  return {
      optional("kind", "lora: a low-rank matrix is added to each target (Hu et al. 2021).",
               {word(words<AdapterKind>())}, "lora"),
      optional("rank", "Of the added matrices.", {integer(1, 65536)}, "16"),
      optional("alpha", "The added matrices are scaled by alpha / rank.", {positive()}, "32"),
      optional("dropout", "Of what the adapter reads.", {between(0, 1, false, true)}, "0"),
      optional("targets",
               "Linears that get one: all but the head, or globs over names of nodes, or ends of names (q_proj).",
               {word({"all-linear"}), list(text(), 1)}, "all-linear"),
      optional("scaled_by_root", "Scaled by alpha / sqrt(rank) instead (rsLoRA).", {flag()}, "false"),
      optional("magnitude", "Trains the norm of each row of base and adapter apart (DoRA, Liu et al. 2024).", {flag()},
               "false"),
      optional("from",
               "Initial values: a checkpoint of an adapter, a folder with one of peft (keys left out are then those of "
               "its adapter_config.json), or a .safetensors file; null: A is drawn, B is zero.",
               {null(), text()}, "null"),
  };
}

std::optional<AdapterJob> bind_adapter(Values& v, const std::optional<ModelFolder>& model,
                                       std::vector<Diagnostic>& mistakes) {
  const std::string at = "adapter.";
  if (!v.is_section("adapter")) return std::nullopt;
  bind_peft_folder(v, model, mistakes);
  AdapterJob adapter;
  adapter.kind = v.word<AdapterKind>(at + "kind");
  adapter.rank = v.integer(at + "rank");
  adapter.alpha = v.number(at + "alpha");
  adapter.dropout = v.number(at + "dropout");
  adapter.targets = v.texts(at + "targets");
  adapter.scaled_by_root = v.flag(at + "scaled_by_root");
  adapter.magnitude = v.flag(at + "magnitude");
  adapter.from = v.file(at + "from");
  return adapter;
}

FieldDef trainable_field() {
  return extra("trainable",
               "Parameters of the model that are trained: all, none beside the adapter, or globs over their names; "
               "[first:last] behind one: these rows of an embedding. "
               "Default: adapter where there is one (of labelled rows with the head), else all.",
               {word({"all", "adapter"}), list(text(), 1)});
}

/// Without the key: the adapter where there is one, else everything.
TrainableJob bind_trainable(Values& v) {
  using Kind = TrainableJob::Kind;
  if (!v.has("trainable")) {
    yaml::Node node;
    node.text = v.is_section("adapter") ? "adapter" : "all";
    add_trainable(v, std::move(node), Setting::From::otherwise);
  }
  const std::vector<std::string> globs = v.texts("trainable");
  return {!globs.empty() ? Kind::globs : v.is("trainable", "all") ? Kind::all : Kind::adapter, globs};
}

}  // namespace trainer
