// The rules, each a member of one class that collects mistakes at their places.
#include "engine/job/rules.h"

#include <fmt/format.h>

#include <charconv>
#include <set>

#include "engine/job/data_strategies.h"
#include "engine/job/expression.h"
#include "engine/job/nearest_numbers.h"

namespace trainer {
namespace {

using Integer = std::optional<std::int64_t>;

/// What a profile of the network fills in where the file gives no value of its own.
struct ProfileValue {
  std::string_view path, value;
};

std::vector<ProfileValue> profile_values(std::string_view profile) {
  // Fast networks hide small buckets behind the backward pass; slow ones pay for bytes first and for each message next.
  // Between averages lies the more computation the slower they are; 50 divides the default steps of evaluation and
  // checkpoints.
  if (profile == "high_bandwidth")
    return {{"strategy.data.bucket_mb", "25"}, {"strategy.data.compression", "none"}, {"strategy.data.every", "10"}};
  if (profile == "low_bandwidth")
    return {{"strategy.data.bucket_mb", "100"}, {"strategy.data.compression", "int8"}, {"strategy.data.every", "50"}};
  return {};
}

/// The item that "[2]" means; null if the list has none, or `list` is no list.
const yaml::Node* item_at(const yaml::Node& list, std::string_view index) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(index.data() + 1, index.data() + index.size(), number);
  const bool whole = error == std::errc() && end + 1 == index.data() + index.size() && *end == ']';
  return whole && list.is_sequence() && number < list.items.size() ? &list.items[number] : nullptr;
}

/// The data strategy that the explicit form names; null where it names none.
const DataRecord* data_record(const Checked& checked) {
  return trainer::data_record(checked.node("strategy.data.kind").text, checked.node("strategy.data.sharding").text);
}

/// "a", "a and b", "a, b, and c".
std::string listed(const std::vector<std::string>& items) {
  std::string text;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const bool last = i + 1 == items.size();
    text += (i == 0 ? "" : items.size() > 2 ? ", " : " ") + std::string(last && i > 0 ? "and " : "") + items[i];
  }
  return text;
}

/// "the kinds ddp, zero1, and fsdp with no_shard".
template <typename Wanted>
std::string kinds_listed(Wanted&& wanted) {
  std::vector<std::string> items;
  for (const DataRecord& record : data_records())
    if (wanted(record))
      items.push_back(std::string(name_of(record.kind)) +
                      (record.sharding ? " with " + std::string(name_of(*record.sharding)) : ""));
  return "the kinds " + listed(items);
}

template <typename Wanted>
std::vector<std::string> compressions(Wanted&& wanted) {
  std::vector<std::string> names;
  for (const CompressionRecord& record : compression_records())
    if (wanted(record)) names.emplace_back(name_of(record.kind));
  return names;
}

class Rules {
 public:
  Rules(const Checked& checked, const yaml::Node& tree) : checked_(checked), tree_(tree) { fill_in_profile(checked_); }

  std::vector<Diagnostic> all() {
    schedule();
    optimizer();
    micro_batch();
    mesh();
    pipeline_split();
    compression();
    gathered_codes();
    fp8();
    secondary();
    kept();
    overlapped();
    loss_scale();
    on_nan();
    keep_best();
    answers();
    whole_gradients();
    averages();
    excluded();
    profile();
    model();
    training_rows();
    objective();
    offload();
    adapter();
    return std::move(mistakes_);
  }

 private:
  void schedule() {
    const Integer steps = integer("train.steps"), warmup = integer("train.lr_schedule.warmup_steps"),
                  decay = integer("train.lr_schedule.decay_steps");
    const bool cut_short = steps == 0 || from("train.steps") == Setting::From::command_line;
    if (steps && warmup && !cut_short && *warmup > *steps) {
      add("train.lr_schedule.warmup_steps", fmt::format("more than train.steps, which is {}", *steps),
          fmt::format("at most {}", *steps));
    } else if (steps && warmup && decay && !cut_short && *warmup + *decay > *steps) {
      add("train.lr_schedule.decay_steps",
          fmt::format("warmup_steps and decay_steps are {} together, train.steps is {}", *warmup + *decay, *steps),
          fmt::format("at most {}", *steps - *warmup));
    }
    const auto lr = number("train.optimizer.lr"), least = number("train.lr_schedule.min_lr");
    if (lr && least && *least > *lr) {
      add("train.lr_schedule.min_lr", fmt::format("above train.optimizer.lr, which is {}", *lr),
          fmt::format("at most {}", *lr));
    }
  }

  void optimizer() {
    constexpr std::string_view kKey = ".nesterov";
    for (const auto& [path, value] : checked_.values) {
      if (!path.starts_with("train.") || !path.ends_with(kKey) || value.node.as_bool() != true) continue;
      const std::string momentum = path.substr(0, path.size() - kKey.size()) + ".momentum";
      if (number(momentum) == 0.0)
        add(path, "has no effect without momentum", fmt::format("only where {} is above 0", momentum));
    }
  }

  void micro_batch() {
    const Integer global = integer("train.batch.global"), micro = integer("train.batch.micro");
    if (global && micro && *global % *micro != 0) {
      add("train.batch.micro", fmt::format("does not divide train.batch.global, which is {}", *global),
          nearest_divisors(*global, *micro));
    }
  }

  /// Ranks, where the file alone says how many there are: auto on a CPU is one a node.
  Integer world() const {
    const Integer nodes = integer("cluster.nodes"), devices = integer("cluster.devices_per_node");
    if (!nodes || !checked_.find("cluster.devices_per_node")) return std::nullopt;
    if (devices) return *nodes * *devices;
    return text("cluster.device") == "cpu" ? nodes : std::nullopt;
  }

  void mesh() {
    const Integer ranks = world();
    if (!ranks || searched("strategy.pipeline") || searched("strategy.tensor")) return;
    std::int64_t left = *ranks;
    for (const char* axis : {"strategy.pipeline.degree", "strategy.tensor.degree", "strategy.context.degree",
                             "strategy.expert.degree", "strategy.data.replicate"}) {
      const Integer degree = integer(axis);
      if (!degree) continue;
      if (left % *degree != 0) {
        const std::string of = left == *ranks ? fmt::format("the {} ranks", left)
                                              : fmt::format("the {} ranks that other axes leave of {}", left, *ranks);
        return add(axis, "does not divide " + of, nearest_divisors(left, *degree));
      }
      if (std::string_view(axis) != "strategy.data.replicate") left /= *degree;
    }
    const std::int64_t experts = integer("strategy.expert.degree").value_or(1);  // with samples of their own
    data_ranks(data_size(left * experts));
  }

  /// Whether an axis's degree is for the search to find.
  bool searched(const std::string& axis) const { return text(axis) == "auto" || text(axis + ".degree") == "auto"; }

  /// Data ranks are what pipeline and tensor leave. Under auto, and where one axis takes every rank, they are not
  /// settled or 1.
  Integer data_size(std::int64_t left) const {
    const CheckedValue* name = checked_.find("strategy");
    if (name == nullptr) return checked_.sections.contains("strategy.data") ? Integer(left) : std::nullopt;
    const std::string& text = name->node.text;
    return text == "auto" ? std::nullopt : Integer(text == "tensor" || text == "pipeline" ? 1 : left);
  }

  void data_ranks(Integer ranks) {
    const Integer global = integer("train.batch.global"), micro = integer("train.batch.micro");
    if (!ranks || !global) return;
    if (*global % *ranks != 0) {
      add("train.batch.global", fmt::format("{} samples do not divide over {} data ranks", *global, *ranks),
          nearest_multiples(*ranks, *global));
    } else if (micro && *global % *micro == 0 && *global / *ranks % *micro != 0) {
      const std::int64_t each = *global / *ranks;
      add("train.batch.micro", fmt::format("does not divide the {} samples of each of {} data ranks", each, *ranks),
          nearest_divisors(each, *micro));
    }
  }

  void pipeline_split() {
    const CheckedValue* split = checked_.find("strategy.pipeline.split");
    const Integer degree = integer("strategy.pipeline.degree"), chunks = integer("strategy.pipeline.virtual_stages");
    if (split == nullptr || !split->node.is_sequence() || !degree || !chunks) return;
    const std::int64_t wanted = *degree * *chunks - 1;
    if (static_cast<std::int64_t>(split->node.items.size()) != wanted) {
      add("strategy.pipeline.split", fmt::format("{} names for {} chunks", split->node.items.size(), wanted + 1),
          fmt::format("a list of {}", wanted));
    }
    std::set<std::string_view> seen;
    for (const yaml::Node& name : split->node.items)
      if (!seen.insert(name.text).second)
        return add("strategy.pipeline.split", name.text + " begins two chunks", "different names");
  }

  void compression() {
    const CompressionRecord* compression = this->compression_record();
    const DataRecord* data = data_record(checked_);
    if (compression == nullptr || data == nullptr || checked_.doubtful.contains("strategy.data")) return;
    const std::string name =
        std::string(name_of(data->kind)) + (data->sharding ? " with " + std::string(name_of(*data->sharding)) : "");
    if (!data->compresses()) {
      add("strategy.data.compression", name + " cannot compress: it reduces gradients slice by slice",
          "none, or " + kinds_listed([](const DataRecord& record) { return record.compresses(); }));
    } else if (!compression->needs_whole.empty() && data->shard_states) {
      add("strategy.data.compression",
          fmt::format("{} cannot {}: each rank sums but its own slice", name, compression->needs_whole),
          fmt::format(
              "none, {}, or {}",
              fmt::join(compressions([](const CompressionRecord& one) { return one.needs_whole.empty(); }), ", "),
              kinds_listed([](const DataRecord& one) { return one.compresses() && !one.shard_states; })));
    }
  }

  void gathered_codes() {
    if (text("strategy.data.gather") == "int8" && text("precision.compute") == "f16")
      add("strategy.data.gather", "codes of 8 bits are made of f32 and bf16, and precision.compute is f16",
          "exact; or precision.compute: bf16 or f32");
  }

  void secondary() {
    const std::string at = "strategy.data.secondary";
    if (checked_.find(at) == nullptr || text(at) == "none") return;
    if (const std::string& keep = text("strategy.data.keep"); keep == "pass" || keep == "step")
      add(at, fmt::format("with strategy.data.keep: {} parameters stay, and are not gathered a second time", keep),
          "none; or strategy.data.keep: use");
    if (const Integer replicas = integer("strategy.data.replicate"); replicas && *replicas > 1)
      add(at, fmt::format("there is one primary copy of the parameters, and strategy.data.replicate is {}", *replicas),
          "none; or strategy.data.replicate: 1");
  }

  /// Pairs of micro-batches need several of them, and a place for what each of a pair keeps.
  void overlapped() {
    const std::string at = "strategy.tensor.overlap";
    if (checked_.find(at) == nullptr || checked_.node(at).as_bool() != true) return;
    for (const auto& [key, why] :
         {std::pair("strategy.offload.activations", "off the device there is room for those of one micro-batch"),
          {"strategy.offload.gradients", "gradients leave the device where a step has one micro-batch"}})
      if (const std::string& place = text(key); !place.empty() && place != "none")
        add(at, fmt::format("micro-batches go in pairs, and {} is {}: {}", key, place, why),
            fmt::format("false; or {}: none", key));
  }

  void kept() {
    const std::string at = "strategy.tensor.keep", sequence = "strategy.tensor.sequence_parallel";
    if (checked_.find(at) == nullptr || checked_.find(sequence) == nullptr || text(at) == "auto") return;
    if (checked_.node(sequence).as_bool() == false)
      add(at, "has no effect where strategy.tensor.sequence_parallel is false",
          "auto; or strategy.tensor.sequence_parallel: true");
  }

  /// Null: gradients are not compressed, or what the job says of it is no compression.
  const CompressionRecord* compression_record() const {
    const std::string at = "strategy.data.compression", &word = text(at);
    for (const CompressionRecord& record : compression_records())
      if (name_of(record.kind) == word || checked_.find(at + "." + std::string(name_of(record.kind))) != nullptr)
        return &record;
    return nullptr;
  }

  void fp8() {
    if (text("precision.matmul") == "fp8" && text("precision.compute") != "bf16")
      add("precision.matmul",
          "products of fp8 are of bf16 operands, and precision.compute is " + text("precision.compute"),
          "none; or precision.compute: bf16");
  }

  /// A scale that changes is that of all ranks and of everything that outlives a step.
  void loss_scale() {
    const std::string at = "precision.loss_scale";
    if (!checked_.sections.contains(at) && text(at) != "dynamic") return;
    if (const DataRecord* data = averaging())
      add(at, fmt::format("under {} each rank judges its own gradients, and would choose a scale alone", data->text()),
          "none or a number");
    if (compression_record() != nullptr)
      add(at, "compression keeps what it has not sent, in the scale of its step: the scale cannot change",
          "none or a number; or strategy.data.compression: none");
    const auto first = number(at + ".init_scale"), least = number(at + ".smallest_scale"),
               most = number(at + ".largest_scale");
    if (first && least && *least > *first)
      add(at + ".smallest_scale", fmt::format("above init_scale, which is {}", *first),
          fmt::format("at most {}", *first));
    if (first && most && *most < *first)
      add(at + ".largest_scale", fmt::format("below init_scale, which is {}", *first),
          fmt::format("at least {}", *first));
  }

  /// A skipped update must leave no trace, and a rollback needs something to go back to.
  void on_nan() {
    const std::string& word = text("train.on_nan");
    const CheckedValue* dir = checked_.find("checkpoint.dir");
    if (word == "rollback" && dir != nullptr && dir->node.is_null())
      add("train.on_nan", "a rollback needs checkpoints, and checkpoint.dir is null",
          "stop or skip; or a checkpoint.dir");
    if (word == "skip" && compression_record() != nullptr)
      add("train.on_nan", "compression keeps the error of each step, so a bad step cannot be skipped",
          "stop or rollback; or strategy.data.compression: none");
  }

  void keep_best() {
    if (flag("checkpoint.keep_best") && checked_.node("eval.every").is_null())
      add("checkpoint.keep_best", "has no effect without evaluation",
          "only where data.val is given and eval.every is not null");
  }

  void answers() {
    if (!checked_.sections.contains("eval.generate")) return;
    const std::string& format = text("data.format");
    if (format != "chat" && format != "completion" && format != "documents")
      add("eval.generate.file", "prompts become ids as the rows of data do, and data.format is " + format,
          "only with data.format: chat, completion or documents");
  }

  void whole_gradients() {
    const DataRecord* data = data_record(checked_);
    const bool whole = data == nullptr || !data->shard_gradients;
    if (whole && text("strategy.data.reduce") == "micro_batch")
      add("strategy.data.reduce",
          "gradients that every rank holds whole are added up and reduced once, at the step's end", "auto or step");
  }

  /// Rules of strategies under which ranks drift apart between averages.
  void averages() {
    const DataRecord* data = averaging();
    const Integer every = text("strategy").empty() ? integer("strategy.data.every") : DataStrategyJob{}.every;
    if (data == nullptr || !every) return;
    if (checked_.sections.contains("strategy.data.outer") && flag("strategy.data.delayed")) {
      add("strategy.data.delayed", "an average that comes a round late cannot go through an outer optimizer",
          "false, or outer: none");
    }
    const bool averaged = !checked_.sections.contains("strategy.data.outer");
    const std::int64_t parts = integer("strategy.data.parts").value_or(1);
    if (parts > 1 && averaged)
      add("strategy.data.parts", "parts go through an outer optimizer, each from where ranks last agreed on it",
          "1; or strategy.data.outer: {}");
    if (parts > *every)
      add("strategy.data.parts",
          fmt::format("each part is averaged at a step of its own, and strategy.data.every is {}", *every),
          fmt::format("at most {}", *every));
    for (const auto& [path, value] : checked_.values)
      if (averaged && path.starts_with("train.") && path.ends_with(".states") && value.node.text != "f32")
        add(path, data->text() + " averages the optimizer's states over the ranks, in f32",
            "f32; or strategy.data.outer, under which every rank keeps its own states");
    // Between averages every rank has weights of its own: there is no one model to save or to evaluate, unless parts
    // keep what ranks agreed on last.
    if (parts > 1) return;
    if (checked_.sections.contains("eval")) multiple_of(*every, "eval.every");
    if (checked_.find("checkpoint.every") != nullptr) multiple_of(*every, "checkpoint.every");
  }

  /// The data strategy, by either form, if ranks drift apart under it.
  const DataRecord* averaging() const {
    const std::string& name = text("strategy");
    const DataRecord* data = name.empty() ? data_record(checked_) : trainer::data_record(name, "");
    return data != nullptr && data->averages ? data : nullptr;
  }

  void multiple_of(std::int64_t every, std::string_view path) {
    const Integer value = integer(path);
    if (!value || *value % every == 0) return;
    // What the file does not say cannot be what is wrong in it.
    if (from(path) == Setting::From::otherwise && from("strategy.data.every") != Setting::From::otherwise) {
      add("strategy.data.every", fmt::format("{}, which is {} by default, is no multiple of it", path, *value),
          nearest_divisors(*value, every));
    } else {
      add(path,
          fmt::format(
              "ranks have one model only at their averages, and {} is no multiple of strategy.data.every, which is {}",
              *value, every),
          nearest_multiples(every, *value));
    }
  }

  void excluded() {
    const CheckedValue* names = checked_.find("strategy.wrap.excluded");
    const CheckedValue* compute = checked_.find("precision.compute");
    if (names == nullptr || compute == nullptr || names->node.items.empty() || compute->node.text != "f32") return;
    if (compute->from == Setting::From::command_line && names->from != Setting::From::command_line)
      return;  // switched off for this run
    add("strategy.wrap.excluded", "has no effect where precision.compute is f32",
        "only where precision.compute is bf16, f16");
  }

  /// Values that agree with the profile are what the effective job of such a one shows.
  void profile() {
    const std::string& name = text("strategy.profile");
    if (name.empty() || name == "none" || checked_.doubtful.contains("strategy.data")) return;
    bool used = false;
    for (const ProfileValue& value : profile_values(name)) {
      const CheckedValue* found = checked_.find(value.path);
      used = used || (found != nullptr && (found->from == Setting::From::profile || found->node.text == value.value));
    }
    if (!used) add("strategy.profile", "has no effect where all that it fills in is given", "");
  }

  Setting::From from(std::string_view path) const {
    const CheckedValue* value = checked_.find(path);
    return value == nullptr ? Setting::From::otherwise : value->from;
  }
  const std::string& text(std::string_view path) const { return checked_.node(path).text; }
  bool flag(std::string_view path) const { return checked_.node(path).as_bool().value_or(false); }
  std::optional<double> number(std::string_view path) const { return checked_.node(path).as_number(); }

  void model() {
    const bool wrong = checked_.doubtful.contains("model");
    const auto has = [&](std::string_view path) { return checked_.find(path) != nullptr; };
    if (!has("model.graph") && !has("model.from") && !wrong && tree_.find("model") != nullptr)
      add("model.graph", "missing", "a graph file, or a graph written here; or `from`: a model folder");
    if (has("model.graph") && has("model.from"))
      add("model.from", "has no effect beside model.graph", "one of the two: a model folder says what its graph is");
    const bool loads = has("model.from") && text("model.weights") == "load";
    if (loads && !checked_.node("model.init_from").is_null() && from("model.init_from") != Setting::From::command_line)
      add("model.init_from", "the weights are those of model.from", "only where model.weights is random");
  }

  void objective() {
    const std::string &kind = text("train.objective.kind"), &format = text("data.format");
    if (kind.empty() || format.empty()) return;  // mistakes of their own
    const bool dpo = kind == "dpo", pairs = format == "preference";
    if (dpo && !pairs)
      add("train.objective.kind", "dpo compares the two answers of a pair, and data.format is " + format,
          "auto; or data.format: preference");
    if (pairs && !dpo)
      add("data.format", "pairs of answers are for train.objective: dpo, and the objective is " + kind,
          "another format; or train.objective: dpo");
    const Integer context = integer("strategy.context.degree");
    if (dpo && context && *context > 1)
      add("strategy.context.degree", "dpo compares whole sequences, which cannot be cut over ranks", "1");
  }

  // States that are moved in chunks need an optimizer that updates each element by itself, on one rank.
  void offload() {
    std::string key;  // the first that is of parameters
    bool disk = false;
    for (const char* one : {"strategy.offload.activations", "strategy.offload.optimizer", "strategy.offload.gradients",
                            "strategy.offload.parameters"}) {
      const std::string& place = text(one);
      if (place.empty() || place == "none") continue;
      disk = disk || place == "disk";
      if (one == std::string_view("strategy.offload.activations")) {
        offloaded_activations();
        continue;
      }
      if (key.empty()) key = one;
      if (one == std::string_view("strategy.offload.gradients")) offloaded_gradients();
      if (one == std::string_view("strategy.offload.parameters")) offloaded_parameters();
    }
    const CheckedValue* dir = checked_.find("checkpoint.dir");
    if (disk && text("strategy.offload.dir") == "auto" && dir != nullptr && dir->node.is_null())
      add("strategy.offload.dir", "auto is checkpoint.dir, which is null", "a folder; or a checkpoint.dir");
    if (key.empty()) return;
    if (text("strategy.offload.update") == "host" && text("precision.compute") == "f16")
      add("strategy.offload.update", "no kernel of a processor makes working copies in f16",
          "device; or precision.compute: bf16");
    for (const auto& [path, value] : checked_.values)
      if (path.starts_with("train.") && path.ends_with("optimizer.name") && value.node.text == "muon")
        add(path, "muon updates whole matrices, and what is kept off the device comes there in parts",
            "adamw, adam, lion, sgd; or " + key + ": none");
    if (text("strategy.data.kind") == "local_sgd")
      add(key, "local_sgd averages states, which have to be on the device", "none; or another strategy.data.kind");
  }

  // They come and go as gathered copies do, which other strategies do not have.
  void offloaded_parameters() {
    const std::string& kind = text("strategy.data.kind");
    if (kind == "zero3" || (kind == "fsdp" && text("strategy.data.sharding") != "no_shard")) return;
    add("strategy.offload.parameters", "working copies come for each use only under zero3 and fsdp",
        "none; or strategy.data.kind: fsdp, with one rank too");
  }

  // Off the device there is room for those of one micro-batch.
  void offloaded_activations() {
    const Integer stages = integer("strategy.pipeline.degree");
    if ((stages && *stages > 1) || text("strategy.pipeline.degree") == "auto" || text("strategy.pipeline") == "auto")
      add("strategy.offload.activations",
          "a stage of a pipeline keeps the activations of several micro-batches at once",
          "none; or no strategy.pipeline");
  }

  // They leave as soon as the backward pass has made them.
  void offloaded_gradients() {
    const Integer stages = integer("strategy.pipeline.degree");
    if (stages && *stages > 1)
      add("strategy.offload.gradients", "stages of a pipeline sum the gradients of several micro-batches on the device",
          "none; or no strategy.pipeline");
    if (compression_record() != nullptr)
      add("strategy.offload.gradients", "what compression sends of a gradient comes after the gradients of later units",
          "none; or strategy.data.compression: none");
    if (text("strategy.data.reduce_dtype") == "int8")
      add("strategy.offload.gradients", "codes of a gradient are summed after the gradients of later units",
          "none; or strategy.data.reduce_dtype: exact");
  }

  void training_rows() {
    const std::string_view format = text("data.format");
    if (format != "documents" && format != "chat" && format != "completion" && format != "preference" &&
        format != "labelled")
      return;
    const bool train = checked_.find("data.train") != nullptr, mix = checked_.sections.contains("data.mix[0]");
    if (!train && !mix && !checked_.doubtful.contains("data"))
      add("data.train", "missing", "a path, a glob or a list of them; or `mix`: parts with weights");
    const CheckedValue* tokenizer = checked_.find("data.tokenizer");
    if (format == "chat" && tokenizer != nullptr && tokenizer->from == Setting::From::otherwise &&
        checked_.find("model.from") == nullptr && !checked_.doubtful.contains("model"))
      add("data.tokenizer", "missing", "the path of a tokenizer.json, or of a folder with one; or model.from");
    if (train && mix) add("data.mix", "the training rows are those of data.train", "one of the two");
  }

  void adapter() {
    const CheckedValue* base = checked_.find("model.init_from");
    const bool wrong = checked_.doubtful.contains("adapter"), there = checked_.sections.contains("adapter");
    if (!there && !wrong && text("trainable") == "adapter")
      add("trainable", "the job has no adapter", "all, or a list of globs; or an adapter");
    const CheckedValue* quantize = checked_.find("model.quantize");
    if (!there && !wrong && quantize != nullptr && quantize->node.text != "none")
      add("model.quantize",
          "weights are quantized beside an adapter: a checkpoint of the whole model would lose what "
          "rounding took",
          "none; or an adapter");
    const bool folder = checked_.find("model.from") != nullptr && text("model.weights") == "load";
    if (!there || base == nullptr || !base->node.is_null() || folder) return;
    add("adapter",
        "an adapter is trained beside the weights of a base, and its checkpoints hold the adapter only: "
        "model.init_from has to name them",
        "with model.init_from: a checkpoint directory or a .safetensors file. A job without the adapter and with "
        "train.steps: 0 writes a checkpoint of initial weights");
  }

  Integer integer(std::string_view path) const {
    const std::optional<double> value = number(path);
    return value ? whole(*value) : std::nullopt;
  }

  void add(std::string_view path, std::string message, std::string allowed) {
    Diagnostic mistake = mistake_at(tree_, path, std::move(message), std::move(allowed));
    if (const CheckedValue* value = checked_.find(path)) mistake.value = value->node.brief();
    mistakes_.push_back(std::move(mistake));
  }

  Checked checked_;
  const yaml::Node& tree_;
  std::vector<Diagnostic> mistakes_;
};

}  // namespace

std::vector<Diagnostic> check_rules(const Checked& checked, const yaml::Node& tree) {
  return Rules(checked, tree).all();
}

void fill_in_profile(Checked& checked) {
  for (const ProfileValue& value : profile_values(checked.node("strategy.profile").text)) {
    const auto slot = checked.values.find(value.path);
    if (slot == checked.values.end() || slot->second.from != Setting::From::otherwise) continue;
    const bool once = checked.node("strategy.data.reduce").text != "micro_batch";
    const DataRecord* data = data_record(checked);
    if (value.path == "strategy.data.compression" && !(once && data != nullptr && data->compresses())) continue;
    slot->second.node.text = value.value;
    slot->second.from = Setting::From::profile;
  }
}

Diagnostic mistake_at(const yaml::Node& tree, std::string_view path, std::string message, std::string allowed) {
  const yaml::Node* at = &tree;
  const yaml::Node* inside = &tree;
  for (std::string_view rest = path; !rest.empty() && inside->is_mapping();) {
    const std::string_view name = rest.substr(0, rest.find('.')), key_name = name.substr(0, name.find('['));
    const yaml::Node* key = inside->find_key(key_name);
    if (key == nullptr) break;
    inside = inside->find(key_name);
    const bool last = name.size() == rest.size();
    at = last ? inside : key;
    if (key_name.size() < name.size())
      if (const yaml::Node* item = item_at(*inside, name.substr(key_name.size()))) at = inside = item;
    rest.remove_prefix(last ? rest.size() : name.size() + 1);
  }
  return at->at(std::string(path), std::move(message), std::move(allowed));
}

}  // namespace trainer
