// The tables of keys, and the values that become a job's.
#include "engine/job/peft_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/job/nearest.h"

namespace trainer {
namespace {

struct Key {
  std::string_view name, message;
};

/// Keys that become values of the job.
constexpr std::array kUsed = std::to_array<std::string_view>(
    {"peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "target_modules", "bias",
     "init_lora_weights", "base_model_name_or_path", "modules_to_save"});

/// Keys that say how the weights were made or would be kept, not what they compute. The names of the tensors and the
/// family of the base say which matrices lie transposed.
constexpr std::array kIgnored =
    std::to_array<std::string_view>({"auto_mapping", "revision", "task_type", "inference_mode", "fan_in_fan_out",
                                     "peft_version", "megatron_core", "qalora_group_size", "ensure_weight_tying",
                                     "runtime_config", "eva_config", "corda_config", "loftq_config", "lora_ga_config"});

/// Keys that choose modules beside target_modules.
constexpr std::array kChoosing = std::to_array<Key>({
    {"layers_to_transform", "an adapter of some layers only: name its linears in the job's adapter.targets"},
    {"layers_pattern", "an adapter of some layers only: name its linears in the job's adapter.targets"},
    {"exclude_modules", "modules are excluded from target_modules: name the others in the job's adapter.targets"},
});

/// Keys whose features are not built: only a value that turns them off is right.
constexpr std::array kOff = std::to_array<Key>({
    {"rank_pattern", "ranks that differ by module cannot be read: an adapter has one rank"},
    {"alpha_pattern", "alphas that differ by module cannot be read: an adapter has one alpha"},
    {"trainable_token_indices", "trained rows of an embedding cannot be read"},
    {"layer_replication", "replicated layers cannot be read"},
    {"lora_bias", "biases of lora_B cannot be read"},
    {"target_parameters", "adapters of parameters that are no linear's cannot be read"},
    {"use_qalora", "QALoRA cannot be read"},
    {"use_bdlora", "block-diagonal LoRA cannot be read"},
    {"alora_invocation_tokens", "activated LoRA cannot be read"},
    {"arrow_config", "Arrow routing cannot be read"},
    {"kasa_config", "KaSA cannot be read: it changes the base"},
    {"monteclora_config", "MonteCLoRA cannot be read"},
    {"velora_config", "VeLoRA cannot be read"},
    {"megatron_config", "linears of Megatron cannot be read"},
});

/// Ways to draw the first weights that leave the base as it is: the file has what they became.
constexpr std::array kDrawn = std::to_array<std::string_view>({"gaussian", "eva", "orthogonal"});

bool is_off(const yaml::Node& node) {
  return node.is_null() || (!node.is_scalar() && node.items.empty()) || node.as_bool() == false;
}

/// Names of the tensors in a safetensors file, from its header; none where it is no such file, which its reader says.
std::vector<std::string> tensors_in(const std::string& path) {
  constexpr std::uint64_t kMostHeader = 100 << 20;
  std::ifstream file(path, std::ios::binary);
  std::array<unsigned char, 8> size{};
  if (!file.read(reinterpret_cast<char*>(size.data()), size.size())) return {};
  std::uint64_t bytes = 0;
  for (std::size_t i = size.size(); i-- > 0;) bytes = bytes << 8 | size[i];
  if (bytes > kMostHeader) return {};
  std::string header(bytes, '\0');
  if (!file.read(header.data(), static_cast<std::streamsize>(bytes))) return {};
  const nlohmann::json json = nlohmann::json::parse(header, nullptr, false);
  std::vector<std::string> names;
  if (json.is_object())
    for (const auto& [name, tensor] : json.items())
      if (name != "__metadata__") names.push_back(name);
  return names;
}

bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

class Reader {
 public:
  Reader(const std::string& folder, const std::vector<std::string>& prefixes, bool has_targets)
      : folder_(folder),
        prefixes_(prefixes),
        has_targets_(has_targets),
        tree_(yaml::read_file((std::filesystem::path(folder) / kPeftConfig).string())) {}

  PeftConfig read() {
    if (!tree_.is_mapping()) throw JobError({tree_.at("", std::string(kPeftConfig) + " is no JSON object")});
    for (const yaml::Node& key : tree_.keys) check_key(key);
    read_kind();
    read_numbers();
    read_targets();
    read_whole_modules();
    if (const yaml::Node* base = tree_.find("base_model_name_or_path"); base != nullptr && !base->is_null())
      config_.base = base->text;
    if (!mistakes_.empty()) throw JobError(std::move(mistakes_));
    return std::move(config_);
  }

 private:
  void add(const yaml::Node& node, std::string_view key, std::string message, std::string allowed = "") {
    mistakes_.push_back(node.at(std::string(key), std::move(message), std::move(allowed)));
    mistakes_.back().value = node.brief();
  }

  void check_key(const yaml::Node& key) {
    const std::string& name = key.text;
    const yaml::Node& value = *tree_.find(name);
    for (const Key& each : kOff)
      if (name == each.name) return is_off(value) ? void() : add(value, name, std::string(each.message));
    for (const Key& each : kChoosing)
      if (name == each.name)
        return is_off(value) || has_targets_ ? void() : add(value, name, std::string(each.message));
    if (is_one_of(kUsed, name) || is_one_of(kIgnored, name)) return;
    mistakes_.push_back(key.at(name, "unknown key: what it does to the adapter is not known"));
    mistakes_.back().suggestion = nearest(name, {kUsed.begin(), kUsed.end()});
  }

  void read_kind() {
    const yaml::Node* kind = tree_.find("peft_type");
    if (kind == nullptr)
      mistakes_.push_back(tree_.at("peft_type", "missing: it names the kind of adapter", "LORA"));
    else if (kind->text != "LORA")
      add(*kind, "peft_type", "this kind of adapter cannot be read", "LORA");
    if (const yaml::Node* bias = tree_.find("bias"); bias != nullptr && bias->text != "none")
      add(*bias, "bias", "biases trained beside the adapter cannot be read", "none");
    const yaml::Node* init = tree_.find("init_lora_weights");
    if (init == nullptr || init->is_null() || init->as_bool() || is_one_of(kDrawn, init->text)) return;
    add(*init, "init_lora_weights",
        "this initialization changes the base's weights, which the adapter's file does not hold",
        "true, false, gaussian, eva or orthogonal; peft's save_pretrained(…, "
        "path_initial_model_for_weight_conversion=…) "
        "writes an adapter of the unchanged base");
  }

  void read_numbers() {
    const auto is_rank = [](const yaml::Node& node) {
      const auto rank = node.as_integer();
      return rank && *rank >= 1 && *rank <= 65536;
    };
    const auto is_alpha = [](const yaml::Node& node) {
      const auto alpha = node.as_number();
      return alpha && std::isfinite(*alpha) && *alpha > 0;
    };
    const auto is_dropout = [](const yaml::Node& node) {
      const auto p = node.as_number();
      return p && *p >= 0 && *p < 1;
    };
    const auto is_flag = [](const yaml::Node& node) { return node.as_bool().has_value(); };
    take("r", "rank", "8", true, is_rank, "an integer of at least 1");
    take("lora_alpha", "alpha", "8", true, is_alpha, "a positive number");
    take("lora_dropout", "dropout", "0", false, is_dropout, "at least 0 and less than 1");
    take("use_rslora", "scaled_by_root", "false", true, is_flag, "true or false");
    take("use_dora", "magnitude", "false", true, is_flag, "true or false");
  }

  /// `otherwise` is peft's default.
  template <typename Check>
  void take(std::string_view theirs, std::string ours, std::string otherwise, bool must_agree, Check&& is_right,
            std::string allowed) {
    const yaml::Node* found = tree_.find(theirs);
    yaml::Node node;
    node.text = std::move(otherwise);
    node.source = tree_.source;
    if (found != nullptr && !found->is_null()) node = *found;
    if (is_right(node))
      config_.values.push_back({std::move(ours), std::move(node), must_agree});
    else
      add(node, theirs, "has another type, or is out of range", std::move(allowed));
  }

  void read_targets() {
    if (has_targets_) return;
    const yaml::Node* targets = tree_.find("target_modules");
    const std::string_view allowed = "a list of names; or name the linears in the job's adapter.targets";
    if (targets == nullptr || targets->is_null() || (targets->is_sequence() && targets->items.empty()))
      return mistakes_.push_back(tree_.at("target_modules", "missing", std::string(allowed)));
    yaml::Node node = *targets;
    if (node.is_scalar() && node.text != "all-linear")
      return add(node, "target_modules", "regular expressions over modules cannot be read", std::string(allowed));
    for (yaml::Node& item : node.items) {
      if (!item.is_scalar() || item.text.empty() || item.text.find('*') != std::string::npos)
        return add(item, "target_modules", "no name of a module", std::string(allowed));
      item.text = without_first(item.text, prefixes_);
      item.quoted = true;
    }
    config_.values.push_back({"targets", std::move(node), false});
  }

  /// Beside a head that tells classes peft lists "classifier" and "score", of which a model has one.
  void read_whole_modules() {
    const yaml::Node* modules = tree_.find("modules_to_save");
    if (modules == nullptr || is_off(*modules)) return;
    if (!modules->is_sequence())
      return add(*modules, "modules_to_save", "has another type", "a list of names of modules");
    for (const std::string& full : tensors_in((std::filesystem::path(folder_) / kPeftWeights).string())) {
      std::string name = without_first(full, peft_prefixes(prefixes_));
      const std::string module = name.substr(0, name.rfind('.'));
      const bool is_whole = std::ranges::any_of(modules->items, [&](const yaml::Node& item) {
        const std::string of_model = without_first(item.text, prefixes_);
        return module == of_model || module.ends_with("." + of_model);
      });
      if (is_whole) config_.whole.push_back(std::move(name));
    }
    std::ranges::sort(config_.whole);
    if (config_.whole.empty())
      add(*modules, "modules_to_save", std::string(kPeftWeights) + " has no tensor of these modules");
  }

  static std::string without_first(const std::string& name, const std::vector<std::string>& prefixes) {
    for (const std::string& prefix : prefixes)
      if (name.starts_with(prefix)) return name.substr(prefix.size());
    return name;
  }

  const std::string folder_;
  const std::vector<std::string>& prefixes_;
  const bool has_targets_;
  const yaml::Node tree_;
  PeftConfig config_;
  std::vector<Diagnostic> mistakes_;
};

}  // namespace

bool is_peft_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(std::filesystem::path(path) / kPeftConfig, error);
}

PeftConfig read_peft_config(const std::string& folder, const std::vector<std::string>& prefixes, bool has_targets) {
  return Reader(folder, prefixes, has_targets).read();
}

std::vector<std::string> peft_prefixes(const std::vector<std::string>& prefixes) {
  std::vector<std::string> all;
  for (const std::string& prefix : prefixes) all.push_back(kPeftPrefix + prefix);
  all.emplace_back(kPeftPrefix);
  return all;
}

}  // namespace trainer
