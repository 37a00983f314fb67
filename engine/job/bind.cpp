// From checked values to the typed Job.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/core/check.h"
#include "engine/core/glob.h"
#include "engine/job/bytes.h"
#include "engine/job/data_strategies.h"
#include "engine/job/nearest.h"
#include "engine/job/peft_config.h"
#include "engine/job/rules.h"
#include "engine/job/values.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

std::map<std::string, ParamValue> bind_with(Values& v) {
  const std::string prefix = "model.with.";
  std::map<std::string, ParamValue> out;
  for (const std::string& path : v.checked().order) {
    if (path.starts_with(prefix)) out[path.substr(prefix.size())] = *value_of(v.node(path));
  }
  return out;
}

bool is_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// Names of the files of a kind that came with the program.
std::vector<std::string> installed(const std::string& folder, const char* extension) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == extension) names.push_back(entry.path().stem().string());
  std::ranges::sort(names);
  return names;
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

DataFiles bind_files(Values& v, const std::string& path) {
  if (!v.is_section(path)) return {.paths = v.files(path), .images = {}, .labels = {}};
  return {.paths = {}, .images = *v.file(path + ".images"), .labels = *v.file(path + ".labels")};
}

/// Words by words: those of `data.fields`, of `data.roles`.
std::map<std::string, std::string> bind_words(Values& v, const std::string& prefix) {
  std::map<std::string, std::string> out;
  for (const std::string& path : v.checked().order)
    if (path.starts_with(prefix)) out[path.substr(prefix.size())] = v.text(path);
  return out;
}

/// A model folder brings its tokenizer: without the key it is `auto` there.
void bind_tokenizer(Values& v, DataJob& data, std::vector<Diagnostic>& mistakes) {
  if (!v.has("data.tokenizer")) return;
  const bool of_folder = v.has("model.from");
  CheckedValue& value = v.checked().values.find("data.tokenizer")->second;
  if (of_folder && value.from == Setting::From::otherwise) value.node.text = "auto";
  if (v.is("data.tokenizer", "auto")) {
    data.tokenizer = Tokenizer::file;
    if (of_folder) {
      data.tokenizer_file = *v.file("model.from");
    } else if (value.from != Setting::From::otherwise) {  // else the rules have told it
      mistakes.push_back(value.node.at("data.tokenizer", "the tokenizer of a model folder, but there is no model.from",
                                       "bytes, chars, or the path of a tokenizer.json"));
      mistakes.back().value = "auto";
    }
    return;
  }
  const bool is_word =
      std::ranges::any_of(names_of(Tokenizer()), [&](const auto& name) { return v.is("data.tokenizer", name.second); });
  data.tokenizer = is_word ? v.word<Tokenizer>("data.tokenizer") : Tokenizer::file;
  if (!is_word) data.tokenizer_file = *v.file("data.tokenizer");
}

void bind_mix(Values& v, DataJob& data) {
  for (std::string at = "data.mix[0]"; v.is_section(at); at = fmt::format("data.mix[{}]", data.mix.size())) {
    data.mix.push_back({v.files(at + ".files"), v.number(at + ".weight")});
    const std::vector<std::string>& paths = data.mix.back().paths;
    data.train.paths.insert(data.train.paths.end(), paths.begin(), paths.end());
  }
}

/// A name of a template is one that came with the program; a path is a file.
std::string find_template(Values& v, const LoadOptions& options, std::vector<Diagnostic>& mistakes) {
  const std::string written = v.text("data.template"), here = *v.file("data.template");
  if (!options.check_files || is_file(here)) return here;
  const bool is_name = !fs::path(written).has_parent_path() && !fs::path(written).has_extension();
  const std::string folder = options.configs_dir.empty() ? "" : options.configs_dir + "/templates";
  if (is_name && !folder.empty())
    if (const std::string there = folder + "/" + written + ".jinja"; is_file(there)) return there;
  const std::vector<std::string> names = installed(folder, ".jinja");
  const yaml::Node& node = v.node("data.template");
  mistakes.push_back(
      node.at("data.template", "no such file; looked for " + here,
              fmt::format("auto, a path, or a template that came with trainer: {}", fmt::join(names, ", "))));
  mistakes.back().value = node.brief();
  mistakes.back().suggestion = nearest(written, std::vector<std::string_view>(names.begin(), names.end()));
  return here;
}

/// What only samples of rows and tensors have.
void bind_rows(Values& v, const LoadOptions& options, DataJob& data, std::vector<Diagnostic>& mistakes) {
  data.fields = bind_words(v, "data.fields.");
  data.roles = bind_words(v, "data.roles.");
  if (v.has("data.train_on")) data.train_on = v.word<TrainOn>("data.train_on");
  if (v.has("data.template") && !v.is("data.template", "auto"))
    data.chat_template = find_template(v, options, mistakes);
  if (v.has("data.packing")) data.packing = v.word<Packing>("data.packing");
  if (v.has("data.too_long")) data.too_long = v.word<TooLong>("data.too_long");
}

DataJob bind_data(Values& v, const LoadOptions& options, std::vector<Diagnostic>& mistakes) {
  DataJob data;
  data.format = v.word<DataFormat>("data.format");
  if (v.has("data.train") || v.is_section("data.train")) data.train = bind_files(v, "data.train");
  bind_mix(v, data);
  if (v.has("data.val.fraction")) {
    data.val = v.number("data.val.fraction");
  } else if (v.is_section("data.val") || !v.node("data.val").is_null()) {
    data.val = bind_files(v, "data.val");
  }
  bind_tokenizer(v, data, mistakes);
  if (v.has("data.token_type") && !v.is("data.token_type", "auto"))
    data.token_type = v.word<TokenType>("data.token_type");
  if (v.has("data.seq_len")) data.seq_len = v.integer("data.seq_len");
  bind_rows(v, options, data, mistakes);
  if (v.has("data.target")) {
    if (v.node("data.target").as_number()) {
      data.target = v.integer("data.target");
    } else {
      data.target = v.text("data.target");
    }
  }
  if (v.has("data.normalize")) data.normalize = v.word<Normalize>("data.normalize");
  data.shuffle = v.flag("data.shuffle");
  return data;
}

/// Of data with a mistake in it, what says how samples look.
DataJob bind_samples(Values& v, const LoadOptions& options, std::vector<Diagnostic>& mistakes) {
  DataJob data;
  if (v.has("data.format")) data.format = v.word<DataFormat>("data.format");
  bind_tokenizer(v, data, mistakes);
  if (v.has("data.seq_len")) data.seq_len = v.integer("data.seq_len");
  bind_rows(v, options, data, mistakes);
  return data;
}

OptimizerJob bind_optimizer(const Values& v, const std::string& section) {
  const std::string at = section + ".";
  OptimizerJob optimizer;
  optimizer.name = v.word<OptimizerName>(at + "name");
  optimizer.lr = v.number(at + "lr");
  if (v.has(at + "betas")) {
    const std::vector<yaml::Node>& betas = v.node(at + "betas").items;
    optimizer.betas = {Values::number_of(betas[0]), Values::number_of(betas[1])};
  }
  if (v.has(at + "eps")) optimizer.eps = v.number(at + "eps");
  if (v.has(at + "momentum")) optimizer.momentum = v.number(at + "momentum");
  if (v.has(at + "nesterov")) optimizer.nesterov = v.flag(at + "nesterov");
  optimizer.weight_decay = v.number(at + "weight_decay");
  if (v.has(at + "decay")) optimizer.decay = v.word<Decay>(at + "decay");
  if (v.has(at + "states")) optimizer.states = v.word<States>(at + "states");
  if (v.has(at + "ns_steps")) optimizer.ns_steps = v.integer(at + "ns_steps");
  if (v.has(at + "adjust")) optimizer.adjust = v.word<MuonAdjust>(at + "adjust");
  if (v.is_section(at + "others")) optimizer.others = {bind_optimizer(v, at + "others")};
  return optimizer;
}

std::vector<GroupJob> bind_groups(const Values& v) {
  std::vector<GroupJob> groups;
  for (std::string at = "train.groups[0]"; v.is_section(at); at = fmt::format("train.groups[{}]", groups.size()))
    groups.push_back({v.texts(at + ".match"), bind_optimizer(v, at + ".optimizer")});
  return groups;
}

LrScheduleJob bind_lr_schedule(const Values& v) {
  const std::string at = "train.lr_schedule.";
  LrScheduleJob schedule;
  schedule.name = v.word<ScheduleName>(at + "name");
  schedule.warmup_steps = v.integer(at + "warmup_steps");
  if (v.has(at + "min_lr")) schedule.min_lr = v.number(at + "min_lr");
  if (v.has(at + "decay_steps")) schedule.decay_steps = v.integer(at + "decay_steps");
  return schedule;
}

TrainJob bind_train(const Values& v) {
  TrainJob train;
  train.steps = v.integer("train.steps");
  train.objective.kind = v.word<ObjectiveKind>("train.objective.kind");
  if (v.has("train.objective.beta")) train.objective.beta = v.number("train.objective.beta");
  train.batch = {v.integer("train.batch.global"), v.integer_or_nothing("train.batch.micro")};
  train.optimizer = bind_optimizer(v, "train.optimizer");
  train.groups = bind_groups(v);
  train.lr_schedule = bind_lr_schedule(v);
  const bool clips = !v.node("train.clip_norm").is_null();
  train.clip_norm = clips ? std::optional(v.number("train.clip_norm")) : std::nullopt;
  train.on_nan = v.word<OnNan>("train.on_nan");
  return train;
}

DType dtype(const Values& v, std::string_view path) {
  const std::optional<DType> dtype = dtype_named(v.text(path));
  CHECK(dtype.has_value(), v.text(path) + " is in the table of fields but no dtype");
  return *dtype;
}

LossScale bind_loss_scale(const Values& v) {
  using Mode = LossScale::Mode;
  const std::string at = "precision.loss_scale";
  LossScale scale;
  scale.mode = Mode::dynamic;
  scale.factor = 65536;
  if (v.is_section(at)) {
    scale.factor = v.number(at + ".init_scale");
    scale.growth_factor = v.number(at + ".growth_factor");
    scale.backoff_factor = v.number(at + ".backoff_factor");
    scale.growth_interval = v.integer(at + ".growth_interval");
    scale.largest = v.number(at + ".largest_scale");
    scale.smallest = v.number(at + ".smallest_scale");
    return scale;
  }
  if (v.is(at, "dynamic")) return scale;
  if (v.is(at, "none")) return {};
  return {Mode::fixed, v.number(at)};
}

PrecisionJob bind_precision(const Values& v) {
  PrecisionJob precision;
  precision.params = dtype(v, "precision.params");
  precision.compute = dtype(v, "precision.compute");
  precision.reduce = dtype(v, "precision.reduce");
  precision.matmul = v.word<MatmulPrecision>("precision.matmul");
  precision.loss_scale = bind_loss_scale(v);
  return precision;
}

DataStrategyJob bind_data_strategy(const Values& v, FreeParts& free) {
  const std::string at = "strategy.data.";
  DataStrategyJob data;
  free.data = !v.is_section("strategy.data") || v.is(at + "kind", "auto");
  if (!free.data) data.kind = v.word<DataKind>(at + "kind");
  for (const DataKey& key : data_keys())
    if (const std::string path = at + std::string(key.field.name); v.has(path) || v.is_section(path))
      key.read(v, path, data);
  return data;
}

TensorStrategyJob bind_tensor(const Values& v, FreeParts& free) {
  const std::string at = "strategy.tensor.";
  TensorStrategyJob tensor;
  if (v.has("strategy.tensor") && !v.is_section("strategy.tensor")) free.tensor = free.sequence_parallel = true;
  if (!v.is_section("strategy.tensor")) return tensor;
  free.tensor = v.is(at + "degree", "auto");
  if (!free.tensor) tensor.degree = v.integer(at + "degree");
  if (!v.has(at + "sequence_parallel")) return tensor;
  free.sequence_parallel = v.is(at + "sequence_parallel", "auto");
  if (!free.sequence_parallel) tensor.sequence_parallel = v.flag(at + "sequence_parallel");
  if (v.has(at + "keep")) tensor.keep = v.word<TensorKeep>(at + "keep");
  if (v.has(at + "overlap")) tensor.overlap = v.flag(at + "overlap");
  return tensor;
}

ExpertStrategyJob bind_expert(const Values& v) {
  ExpertStrategyJob expert;
  if (v.is_section("strategy.expert")) expert.degree = v.integer("strategy.expert.degree");
  return expert;
}

ContextStrategyJob bind_context(const Values& v) {
  ContextStrategyJob context;
  if (!v.is_section("strategy.context")) return context;
  context.degree = v.integer("strategy.context.degree");
  context.kind = v.word<ContextKind>("strategy.context.kind");
  return context;
}

PipelineStrategyJob bind_pipeline(Values& v, FreeParts& free) {
  const std::string at = "strategy.pipeline.";
  PipelineStrategyJob pipeline;
  if (v.has("strategy.pipeline") && !v.is_section("strategy.pipeline"))
    free.pipeline = free.schedule = free.virtual_stages = true;
  if (!v.is_section("strategy.pipeline")) return pipeline;
  free.pipeline = v.is(at + "degree", "auto");
  if (!free.pipeline) pipeline.degree = v.integer(at + "degree");
  if (pipeline.degree == 1 && !free.pipeline) return pipeline;
  if (v.is_section(at + "schedule")) {
    pipeline.schedule_file = *v.file(at + "schedule.file");
  } else {
    free.schedule = v.is(at + "schedule", "auto");
    if (!free.schedule) pipeline.schedule = v.word<PipelineSchedule>(at + "schedule");
    free.virtual_stages = v.is(at + "virtual_stages", "auto");
    if (!free.virtual_stages) pipeline.virtual_stages = v.integer(at + "virtual_stages");
  }
  if (free.pipeline) return pipeline;
  pipeline.split = v.texts(at + "split");
  pipeline.split_policy = pipeline.split.empty() ? v.word<SplitPolicy>(at + "split") : SplitPolicy::names;
  return pipeline;
}

OffloadJob bind_offload(Values& v) {
  const std::string at = "strategy.offload.";
  OffloadJob offload;
  if (!v.is_section("strategy.offload")) return offload;
  offload.optimizer = v.word<OffloadTo>(at + "optimizer");
  offload.gradients = v.word<OffloadTo>(at + "gradients");
  offload.parameters = v.word<OffloadTo>(at + "parameters");
  offload.activations = v.word<OffloadTo>(at + "activations");
  if (v.has(at + "dir") && !v.is(at + "dir", "auto")) offload.dir = *v.file(at + "dir");
  return offload;
}

WrapJob bind_wrap(const Values& v) {
  const std::string at = "strategy.wrap.";
  WrapJob wrap;
  wrap.policy = v.word<WrapPolicy>(at + "policy");
  if (v.has(at + "block")) wrap.block = v.text(at + "block");
  if (v.has(at + "min_params")) wrap.min_params = v.integer(at + "min_params");
  if (v.has(at + "names")) wrap.names = v.texts(at + "names");
  wrap.excluded = v.texts(at + "excluded");
  return wrap;
}

/// The short form: a kind of data strategy, or one axis that takes every device.
StrategyJob named_strategy(const std::string& name) {
  StrategyJob strategy;
  if (name == "auto") return strategy;
  strategy.free = {};
  if (name == "tensor") {
    strategy.tensor.degree.reset();
  } else if (name == "pipeline") {
    strategy.pipeline.degree.reset();
  } else {
    strategy.data.kind = value_named<DataKind>(name);
  }
  return strategy;
}

StrategyJob bind_strategy(Values& v) {
  if (!v.is_section("strategy")) return named_strategy(v.text("strategy"));
  StrategyJob strategy;
  strategy.free = {};
  strategy.profile = v.word<Profile>("strategy.profile");
  fill_in_profile(v.checked());
  strategy.data = bind_data_strategy(v, strategy.free);
  strategy.tensor = bind_tensor(v, strategy.free);
  strategy.expert = bind_expert(v);
  strategy.context = bind_context(v);
  strategy.pipeline = bind_pipeline(v, strategy.free);
  strategy.offload = bind_offload(v);
  strategy.wrap = bind_wrap(v);
  return strategy;
}

ClusterJob bind_cluster(Values& v) {
  ClusterJob cluster;
  cluster.device = v.word<Device>("cluster.device");
  cluster.backend = v.word<Backend>("cluster.backend");
  cluster.nodes = v.integer("cluster.nodes");
  cluster.devices_per_node = v.integer_or_nothing("cluster.devices_per_node");
  const std::string& hardware = v.text("cluster.hardware");
  // A path has a slash or a suffix; a name has neither.
  const bool is_path = hardware.find('/') != std::string::npos || hardware.ends_with(".yaml");
  if (hardware != "auto") cluster.hardware = is_path ? *v.file("cluster.hardware") : hardware;
  cluster.memory_limit = bytes_of(v.node("cluster.memory_limit"));
  const yaml::Node& price = v.node("cluster.price_per_device_hour");
  if (!price.is_null()) cluster.price_per_device_hour = v.number("cluster.price_per_device_hour");
  return cluster;
}

/// As one part of a path.
std::string folder_name(std::string name) {
  std::replace(name.begin(), name.end(), '/', '_');
  if (name.starts_with('.')) name.front() = '_';
  return name;
}

CheckpointJob bind_checkpoint(Values& v, const std::string& name) {
  CheckpointJob checkpoint;
  CheckedValue& dir = v.checked().values.find("checkpoint.dir")->second;
  if (dir.node.as_string() && dir.node.text == "auto")
    dir.node.text = v.beside_job("runs/" + folder_name(name), dir.node);
  checkpoint.dir = v.file("checkpoint.dir");
  if (!checkpoint.dir) return checkpoint;
  checkpoint.every = v.integer("checkpoint.every");
  checkpoint.keep = v.integer_or_nothing("checkpoint.keep");
  checkpoint.keep_best = v.flag("checkpoint.keep_best");
  checkpoint.behind = v.flag("checkpoint.behind");
  checkpoint.format = v.word<CheckpointFormat>("checkpoint.format");
  checkpoint.accept = v.texts("checkpoint.accept");
  using Resume = CheckpointJob::Resume;
  const std::string& resume = v.text("checkpoint.resume");
  checkpoint.resume = resume == "auto" ? Resume::automatic : resume == "none" ? Resume::none : Resume::path;
  if (checkpoint.resume == Resume::path) checkpoint.resume_from = *v.file("checkpoint.resume");
  return checkpoint;
}

EvalJob bind_eval(Values& v) {
  EvalJob eval{v.integer("eval.every"), v.integer("eval.batches")};
  if (v.is_section("eval.generate"))
    eval.generate = {*v.file("eval.generate.file"), v.integer("eval.generate.max_tokens")};
  return eval;
}

LogJob bind_log(Values& v) {
  return {v.integer("log.every"), v.file("log.jsonl"), v.file("log.tensorboard"), v.file("log.trace")};
}

ActivationCheckpointingJob bind_activation_checkpointing(const Values& v) {
  const std::string at = "activation_checkpointing.";
  ActivationCheckpointingJob out;
  out.mode = v.word<CheckpointingMode>(at + "mode");
  if (v.has(at + "every")) out.every = v.integer(at + "every");
  return out;
}

/// A search over everything decides recomputation too, unless the job does.
void search_recomputation(Values& v) {
  CheckedValue& mode = v.checked().values.find("activation_checkpointing.mode")->second;
  if (mode.from == Setting::From::otherwise) mode.node.text = "auto";
}

/// The file's name without its suffix, if the job has no name.
void name_job(Values& v, const std::string& path) {
  if (v.has("name")) return;
  yaml::Node node;
  node.text = fs::path(path).stem().string();
  node.quoted = !node.as_string();
  v.checked().values["name"] = {node, Setting::From::otherwise};
  v.checked().order.insert(v.checked().order.begin(), "name");
}

}  // namespace

Job bind(Checked& checked, const std::string& path, const LoadOptions& options, std::vector<Diagnostic>& mistakes) {
  Values v(checked, path);
  name_job(v, path);
  Job job;
  job.name = v.text("name");
  if (v.right("seed")) job.seed = static_cast<std::uint64_t>(v.integer("seed"));
  job.model = bind_model(v, options, mistakes);
  if (v.right("adapter")) job.adapter = bind_adapter(v, job.model.folder, mistakes);
  if (!v.checked().doubtful.contains("trainable")) job.trainable = bind_trainable(v);
  job.data = v.right("data") ? bind_data(v, options, mistakes) : bind_samples(v, options, mistakes);
  if (v.right("train")) job.train = bind_train(v);
  if (v.right("eval") && !v.node("eval.every").is_null()) job.eval = bind_eval(v);
  if (v.right("precision")) job.precision = bind_precision(v);
  if (v.right("activation_checkpointing")) {
    if (v.has("strategy") && v.is("strategy", "auto")) search_recomputation(v);
    job.activation_checkpointing = bind_activation_checkpointing(v);
  }
  if (v.right("strategy")) job.strategy = bind_strategy(v);
  if (v.right("goal")) job.goal = v.word<Goal>("goal");
  if (v.right("cluster")) job.cluster = bind_cluster(v);
  if (v.right("checkpoint")) job.checkpoint = bind_checkpoint(v, job.name);
  OffloadJob& offload = job.strategy.offload;
  if (offload.uses_disk() && offload.dir.empty()) offload.dir = job.checkpoint.dir.value_or("");
  if (v.right("log")) job.log = bind_log(v);
  return job;
}

}  // namespace trainer
