// The data of mixed jobs, and what each word stands for.
#include "tests/train/mixed_jobs.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <stdexcept>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/core/random.h"
#include "engine/job/pipeline_schedules.h"
#include "tests/train/mixed_models.h"

namespace trainer::tests {
namespace {

constexpr std::string_view kTokens = R"(
data: {format: tokens, token_type: u16, train: mixed.bin, val: {fraction: 0.2}, seq_len: 8, shuffle: true}
)";
constexpr std::string_view kTable = R"(
data: {format: table, train: table.csv, val: {fraction: 0.2}, target: -1, normalize: standard, shuffle: true}
)";

// The large eps of AdamW keeps an update linear in the gradient where the gradient is nothing but rounding.
constexpr std::string_view kTraining = R"(
seed: 7
train:
  steps: 10
  batch: {global: 16, micro: 16}
  optimizer: {name: adamw, lr: 1.0e-2, betas: [0.9, 0.95], eps: 1.0e-1, weight_decay: 0.1}
  lr_schedule: {name: cosine, warmup_steps: 2, min_lr: 1.0e-3}
  clip_norm: null
eval: {every: 5, batches: 2}  # the second is not full
checkpoint: {every: 1000000, keep: null, format: full, resume: none}
)";

constexpr std::string_view kMuon =
    "{name: muon, lr: 1.0e-2, momentum: 0.9, weight_decay: 0.1, others: {name: adamw, lr: 1.0e-2, betas: [0.9, 0.95], "
    "eps: 1.0e-1, weight_decay: 0.1}}";

// Samples of 8 ids; id 5 fills none, a quarter, a half or three quarters of a sample.
std::string tokens(std::int64_t samples) {
  std::string bytes;
  for (std::int64_t i = 0; i < samples * 8 + 1; ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    const bool five = random_below(3, 0, at, 4) < random_below(3, 1, at / 8, 4);
    bytes.push_back(static_cast<char>(five                             ? 5
                                      : random_below(3, 2, at, 3) == 0 ? random_below(3, 3, at, 33)
                                                                       : (i * 2) % 33));
    bytes.push_back('\0');
  }
  return bytes;
}

bool is_number(const std::string& word, char letter) {
  return word.size() == 2 && word[0] == letter && word[1] >= '1' && word[1] <= '9';
}

template <typename E>
bool names(const std::string& word) {
  return std::ranges::any_of(names_of(E()), [&](const auto& one) { return one.second == word; });
}

// Of a line: its sizes, and the overrides of its words.
class Line {
 public:
  Line(const std::string& line, std::string folder)
      : words_(words_of(line)), model_(words_.front()), folder_(std::move(folder)) {
    for (std::size_t i = 1; i < words_.size(); ++i) word(words_[i]);
    const int data = ranks_ / tensor_ / pipeline_ / context_;
    set("cluster.devices_per_node", std::to_string(ranks_));
    set("train.batch.micro", std::to_string(16 / data / micro_batches_));
    if (excluded_)
      set("strategy.wrap.excluded", model_ == "gpt" ? "[\"**ln_*\"]" : model_ == "mlp" ? "[head]" : "[\"**norm*\"]");
    if (split_names_) set("strategy.pipeline.split", split(pipeline_ * virtual_));
  }

  const std::string& model() const { return model_; }
  const Overrides& overrides() const { return overrides_; }

 private:
  void set(const std::string& key, const std::string& value) { overrides_.push_back(key + "=" + value); }

  void word(const std::string& word) {
    const std::string rest = word.substr(word.find(':') + 1);
    if (is_number(word, 'r'))
      ranks_ = word[1] - '0';
    else if (is_number(word, 'm'))
      micro_batches_ = word[1] - '0';
    else if (is_number(word, 't'))
      set("strategy.tensor.degree", std::to_string(tensor_ = word[1] - '0'));
    else if (is_number(word, 'c'))
      set("strategy.context.degree", std::to_string(context_ = word[1] - '0'));
    else if (word == "ring")
      set("strategy.context.kind", word);
    else if (is_number(word, 'p'))
      set("strategy.pipeline.degree", std::to_string(pipeline_ = word[1] - '0'));
    else if (is_number(word, 'v'))
      set("strategy.pipeline.virtual_stages", std::to_string(virtual_ = word[1] - '0'));
    else if (word.starts_with("secondary"))
      set("strategy.data.secondary", word.substr(9));
    else if (word == "shards")
      set("strategy.tensor.keep", "shard");
    else if (word == "pairs")
      set("strategy.tensor.overlap", "true");
    else if (word == "sp")
      set("strategy.tensor.sequence_parallel", "true");
    else if (names<DataKind>(word))
      set("strategy.data.kind", word);
    else if (names<Sharding>(word))
      fsdp(word);
    else if (word.starts_with("hybrid"))
      fsdp("hybrid_shard"), set("strategy.data.replicate", word.substr(6));
    else if (const auto* record = std::ranges::find(kScheduleRecords, word, &ScheduleRecord::name);
             record != std::end(kScheduleRecords))
      schedule(*record);
    else if (word == "split:uniform")
      set("strategy.pipeline.split", "uniform");
    else if (word == "split:names")
      split_names_ = true;
    else if (word.starts_with("keep:"))
      set("strategy.data.keep", rest);
    else if (word.starts_with("reduce:"))
      set("strategy.data.reduce", rest);
    else if (word.starts_with("prefetch:"))
      set("strategy.data.prefetch", rest);
    else if (word.starts_with("wrap:"))
      set("strategy.wrap", wrap(rest));
    else if (word == "clip")
      set("train.clip_norm", "0.2");
    else if (word == "drop")
      set("model.with.dropout", "0.1");
    else if (word == "ignore")
      set("model.with.ignore", "5");
    else if (word == "full" || word == "selective")
      set("activation_checkpointing.mode", word);
    else if (word == "every_2")
      set("activation_checkpointing", "{mode: every_n, every: 2}");
    else if (word == "lora")
      set("adapter", "{rank: 3, alpha: 6, from: " + folder_ + model_ + ".start.safetensors}"),
          set("model.init_from", folder_ + model_ + ".base");
    else if (word == "dora")
      set("adapter.magnitude", "true"), set("adapter.from", folder_ + model_ + ".dora.start.safetensors");
    else if (word == "lora_drop")
      set("adapter.dropout", "0.1");
    else if (word == "norms")
      set("trainable", model_ == "gpt" ? "[\"*ln_*\"]" : model_ == "mlp" ? "[\"head*\"]" : "[\"*norm*\"]");
    else if (word == "part")
      set("trainable", model_ == "gpt" ? "[\"h.6.*\", \"h.7.*\", \"ln_f*\"]"
                                       : "[\"" + block(6) + ".*\", \"" + block(7) + ".*\", \"*head*\"]");
    else if (word == "muon")
      set("train.optimizer", std::string(kMuon));
    else if (word == "groups")
      groups();
    else if (word == "bf16")
      set("precision.compute", "bf16");
    else if (word == "excluded")
      excluded_ = true;
    else if (word == "sharded")
      set("checkpoint.format", "sharded");
    else
      throw std::invalid_argument("no word of a mixed job: " + word);
  }

  // SGD for norms, Muon for matrices of blocks, AdamW of three rates for biases of blocks, embeddings and the head.
  void groups() {
    const std::string norms = model_ == "gpt" ? "*ln_*" : "*norm*", embedding = model_ == "gpt" ? "w*" : "*embed*";
    set("train.groups", "[{match: [\"" + norms +
                            "\"], optimizer: {name: sgd, lr: 5.0e-3, momentum: 0.9}},"
                            " {match: [\"" +
                            embedding +
                            "\"], optimizer: {name: adamw, lr: 2.0e-3}},"
                            " {match: [\"" +
                            block(0).substr(0, block(0).size() - 1) + "*\"], optimizer: " + std::string(kMuon) + "}]");
  }

  void fsdp(const std::string& sharding) {
    set("strategy.data.kind", "fsdp");
    set("strategy.data.sharding", sharding);
  }

  void schedule(const ScheduleRecord& record) {
    set("strategy.pipeline.schedule", std::string(record.name));
    if (record.takes(2)) virtual_ = 2;  // by default
  }

  std::string block(int index) const {
    const std::string prefix = model_ == "gpt"      ? "h."
                               : model_ == "llama"  ? "model.layers."
                               : model_ == "packed" ? "layer."
                                                    : "layers.";
    return prefix + std::to_string(index);
  }

  std::string wrap(const std::string& policy) const {
    if (policy == "transformer")
      return "{policy: transformer, block: " + std::string(model_ == "mlp" ? "HiddenLayer" : "TransformerBlock") + "}";
    if (policy == "size") return "{policy: size, min_params: 1500}";
    if (policy == "names") return "{policy: names, names: [\"" + block(0) + ".*\", \"" + block(2) + "**\"]}";
    return "{policy: " + policy + "}";
  }

  std::string split(int chunks) const {
    std::string names;
    for (int chunk = 1; chunk < chunks; ++chunk) names += (chunk > 1 ? ", " : "") + block(chunk * 8 / chunks);
    return "[" + names + "]";
  }

  std::vector<std::string> words_;
  std::string model_, folder_;
  Overrides overrides_;
  int ranks_ = 1, tensor_ = 1, pipeline_ = 1, context_ = 1, virtual_ = 1, micro_batches_ = 1;
  bool split_names_ = false, excluded_ = false;
};

}  // namespace

MixedJobs::MixedJobs() {
  const auto job = [&](const std::string& name, std::string_view model, std::string_view data) {
    jobs_.write(name + ".yaml", "model: " + std::string(model) + std::string(data) + std::string(kTraining));
  };
  jobs_.write("mixed.bin", tokens(120));
  jobs_.write("gpt_graph.yaml", kGpt);
  jobs_.write("packed_graph.yaml", kPacked);
  jobs_.write("pieces_graph.yaml", kPieces);
  jobs_.write("heads_graph.yaml", kHeads);
  jobs_.write("token_graph.yaml", kToken);
  jobs_.write("mlp_graph.yaml", kMlp);
  job("gpt", "{graph: gpt_graph.yaml}", kTokens);
  job("packed", "{graph: packed_graph.yaml}", kTokens);
  job("llama",
      "{graph: models/llama.yaml, with: {layers: 8, heads: 8, kv_heads: 4, dim: 32, hidden: 24, vocab: 33, rope_theta: "
      "100}}",
      kTokens);
  job("pieces", "{graph: pieces_graph.yaml}", kTokens);
  job("heads", "{graph: heads_graph.yaml}", kTokens);
  job("token", "{graph: token_graph.yaml}", kTokens);
  job("mlp", "{graph: mlp_graph.yaml}", kTable);
}

namespace {

std::string start_of(const std::string& model, const std::string& kind) {
  return model + (kind == "dora" ? ".dora" : "") + ".start.safetensors";
}

}  // namespace

LoadedJob MixedJobs::load(const std::string& line, const std::string& run, const Overrides& more) const {
  const Line parsed(line, path("") + "/");
  for (const char* kind : {"lora", "dora"})
    if (has_word(line, kind) && !std::filesystem::exists(path(start_of(parsed.model(), kind))))
      make_adapter(parsed.model(), kind);
  Overrides overrides = parsed.overrides();
  overrides.insert(overrides.end(), more.begin(), more.end());
  return jobs_.load(parsed.model(), run, overrides);
}

void MixedJobs::make_adapter(const std::string& model, const std::string& kind) const {
  const std::string adapter = "adapter={rank: 3, magnitude: " + std::string(kind == "dora" ? "true" : "false") + "}",
                    base = "model.init_from=" + path(model + ".base");
  if (!std::filesystem::exists(path(model + ".base")))
    run(jobs_.load(model, model + ".base", {"train.steps=0", "seed=5"}));
  const Trained initial = run(jobs_.load(model, model + "." + kind + ".start", {"train.steps=0", adapter, base}));
  const checkpoint::Checkpoint drawn = checkpoint::open_checkpoint(initial.report.checkpoint);
  std::vector<checkpoint::TensorSpec> specs;
  for (const checkpoint::TensorInfo& info : drawn.tensors.tensors())
    if (info.name.ends_with(".weight") || info.name.ends_with("_vector"))
      specs.push_back({info.name, info.dtype, info.shape});
  checkpoint::SafetensorsWriter writer(path(start_of(model, kind)), specs, {});
  for (const checkpoint::TensorSpec& spec : writer.order()) {
    std::vector<float> values(static_cast<std::size_t>(spec.shape.elements()));
    drawn.tensors.read(spec.name, 0, spec.shape.elements(), values.data());
    if (spec.name.ends_with(".lora_B.weight")) {
      fill_normal(random_key(9, spec.name), 0, 0, spec.shape.elements(), values.data());
      for (float& value : values) value *= 0.1F;
    }
    if (spec.name.ends_with("_vector"))
      for (std::size_t i = 0; i < values.size(); ++i) values[i] *= 1 + 0.05F * static_cast<float>(i % 7);
    writer.write(spec.name, values.data(), spec.bytes());
  }
  writer.finish();
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

bool has_word(const std::string& line, const std::string& word) {
  const std::vector<std::string> words = words_of(line);
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string alone(const std::string& line) {
  std::string result = words_of(line).front();
  for (const char* kept :
       {"clip", "drop", "ignore", "lora", "lora_drop", "dora", "norms", "part", "muon", "groups", "bf16", "excluded"})
    if (has_word(line, kept)) result += std::string(" ") + kept;
  return result;
}

}  // namespace trainer::tests
