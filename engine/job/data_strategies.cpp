// Sources of what `auto` is: Rajbhandari et al., "ZeRO", SC 2020, section 5; Zhao et al., "PyTorch FSDP", VLDB 2023,
// section 3.2.
#include "engine/job/data_strategies.h"

#include <algorithm>

#include "engine/core/check.h"
#include "engine/job/values.h"

namespace trainer {

const std::vector<DataRecord>& data_records() {
  static const std::vector<std::string_view> kFullySharded{"sharding",  "replicate",  "keep",         "reduce",
                                                           "gather",    "secondary",  "reduce_dtype", "prefetch",
                                                           "bucket_mb", "compression"},
      kKept{"sharding",     "replicate", "keep",      "reduce",     "gather",
            "reduce_dtype", "prefetch",  "bucket_mb", "compression"};
  static const std::vector<DataRecord> records{
      {.kind = DataKind::ddp,
       .what = "every rank has everything",
       .keys = {"reduce", "bucket_mb", "compression"},
       .searched = true},
      {.kind = DataKind::zero1,
       .what = "optimizer states are sharded",
       .keys = {"bucket_mb", "compression"},
       .shard_states = true,
       .searched = true},
      {.kind = DataKind::zero2,
       .what = "optimizer states and gradients are sharded",
       .keys = {"reduce_dtype", "bucket_mb", "compression"},
       .shard_states = true,
       .shard_gradients = true,
       .reduce = Reduce::micro_batch,
       .searched = true},
      {.kind = DataKind::fsdp,
       .sharding = Sharding::shard_grad_op,
       .what = "sharded as `sharding` says",
       .keys = kKept,
       .shard_states = true,
       .shard_gradients = true,
       .shard_parameters = true,
       .keep = Keep::pass,
       .reduce = Reduce::micro_batch,
       .searched = true,
       .searched_once = true},  // then as zero1, but the gather hides behind the forward pass
      {.kind = DataKind::fsdp,
       .sharding = Sharding::full_shard,
       .keys = kFullySharded,
       .shard_states = true,
       .shard_gradients = true,
       .shard_parameters = true,
       .keep = Keep::use,
       .reduce = Reduce::micro_batch,
       .searched = true},
      {.kind = DataKind::fsdp,
       .sharding = Sharding::hybrid_shard,
       .keys = kKept,
       .shard_states = true,
       .shard_gradients = true,
       .shard_parameters = true,
       .keep = Keep::use,
       .reduce = Reduce::micro_batch,
       .replica_is_node = true,
       .searched = true},
      {.kind = DataKind::fsdp,
       .sharding = Sharding::no_shard,
       .keys = {"sharding", "reduce", "bucket_mb", "compression"}},
      {.kind = DataKind::zero3,
       .what = "optimizer states, gradients and parameters are sharded",
       .keys = {"keep", "reduce", "gather", "secondary", "reduce_dtype", "prefetch", "bucket_mb", "compression"},
       .shard_states = true,
       .shard_gradients = true,
       .shard_parameters = true,
       .keep = Keep::use,
       .reduce = Reduce::micro_batch},
      {.kind = DataKind::local_sgd,
       .what = "every rank trains alone, and they average every so many steps",
       .keys = {"bucket_mb", "every", "outer", "parts", "delayed"},
       .averages = true},
  };
  return records;
}

const std::vector<CompressionRecord>& compression_records() {
  using enum Compression::Kind;
  static const std::vector<CompressionRecord> records{
      {.kind = bf16},
      {.kind = int8, .sums_slices = true},
      {.kind = top_k,
       .fraction = "The fraction of each gradient that is sent.",
       .needs_whole = "send the largest elements"},
  };
  return records;
}

namespace {

using namespace form;
using Forms = std::vector<Form>;
using WordList = std::vector<std::string_view>;

template <typename E>
KeyValue word_value(E value) {
  return {std::string(name_of(value))};
}

FieldDef field(std::string_view name, std::string_view doc, Forms forms, std::string_view otherwise) {
  return {name, doc, std::move(forms), FieldDef::Absent::otherwise, otherwise};
}

// A word, or of what has a number {top_k: 0.01}.
Forms compression_forms() {
  WordList words{"none"};
  Forms sections;
  for (const CompressionRecord& record : compression_records()) {
    if (record.fraction.empty())
      words.push_back(name_of(record.kind));
    else
      sections.push_back(section(
          {FieldDef{name_of(record.kind), record.fraction, {between(0, 1, true, true)}, FieldDef::Absent::required}}));
  }
  sections.insert(sections.begin(), word(words));
  return sections;
}

Compression read_compression(const Values& v, const std::string& at) {
  if (!v.is_section(at)) return {v.word<Compression::Kind>(at)};
  for (const CompressionRecord& record : compression_records())
    if (const std::string number = at + "." + std::string(name_of(record.kind)); v.has(number))
      return {record.kind, v.number(number)};
  return {};
}

KeyValue compression_value(const Compression& compression) {
  const CompressionRecord* record = compression_record(compression.kind);
  if (record == nullptr || record->fraction.empty()) return word_value(compression.kind);
  return {std::vector<std::pair<std::string, KeyValue>>{{std::string(name_of(record->kind)), {compression.fraction}}}};
}

// DiLoCo's outer optimizer and its numbers.
Form outer_optimizer() {
  return section({
      field("lr", "Learning rate of the outer step.", {between(0, kMostF32, true, false)}, "0.7"),
      field("momentum", "Decay rate of its velocity; 0: none.", {between(0, 1, false, true)}, "0.9"),
      field("nesterov", "Nesterov's momentum.", {flag()}, "true").when_above("momentum", 0),
      field("compression", "Of outer gradients; what was not sent is added to those of the next round.",
            compression_forms(), "none"),
  });
}

void read_outer(const Values& v, const std::string& at, DataStrategyJob& data) {
  if (!v.is_section(at)) return;
  data.outer = {.lr = v.number(at + ".lr"), .momentum = v.number(at + ".momentum"), .nesterov = false};
  if (v.has(at + ".nesterov")) data.outer->nesterov = v.flag(at + ".nesterov");
  data.outer->compression = read_compression(v, at + ".compression");
}

KeyValue outer_value(const DataStrategyJob& data) {
  if (!data.outer) return {std::string("none")};
  std::vector<std::pair<std::string, KeyValue>> numbers{{"lr", {data.outer->lr}}, {"momentum", {data.outer->momentum}}};
  if (data.outer->momentum > 0) numbers.emplace_back("nesterov", KeyValue{data.outer->nesterov});
  numbers.emplace_back("compression", compression_value(data.outer->compression));
  return {std::move(numbers)};
}

}  // namespace

const std::vector<DataKey>& data_keys() {
  using Data = DataStrategyJob;
  using At = const std::string&;
  static const std::vector<DataKey> keys{
      {field("sharding", "FSDP's strategy.", {word(words<Sharding>())}, "full_shard"),
       [](const Values& v, At at, Data& data) { data.sharding = v.word<Sharding>(at); },
       [](const Data& data) { return word_value(data.sharding); }},
      {field("replicate", "Copies of the sharded model; auto: 1, or under hybrid_shard the number of nodes.",
             {word({"auto"}), integer(1, kMostRanks)}, "auto"),
       [](const Values& v, At at, Data& data) { data.replicate = v.integer_or_nothing(at); },
       [](const Data& data) { return data.replicate ? KeyValue{*data.replicate} : KeyValue{std::string("auto")}; }},
      {field("keep", "How long gathered parameters stay.", {word(words<Keep>())}, "auto"),
       [](const Values& v, At at, Data& data) { data.keep = v.word<Keep>(at); },
       [](const Data& data) { return word_value(data.keep); }},
      {field("reduce", "When gradients are reduced.", {word(words<Reduce>())}, "auto"),
       [](const Values& v, At at, Data& data) { data.reduce = v.word<Reduce>(at); },
       [](const Data& data) { return word_value(data.reduce); }},
      {field(
           "gather",
           "What parameters are gathered as; exact: precision.compute; int8: codes of 8 bits with a scale for each 256 "
           "(ZeRO++).",
           {word(words<SentAs>())}, "exact"),
       [](const Values& v, At at, Data& data) { data.gather = v.word<SentAs>(at); },
       [](const Data& data) { return word_value(data.gather); }},
      {field("secondary",
             "Ranks that share a second copy of the parameters, out of which they gather after the first time in a "
             "step; node: those of a node (ZeRO++).",
             {word({"none", "node"}), integer(2, kMostRanks)}, "none"),
       [](const Values& v, At at, Data& data) {
         data.secondary = v.is(at, "none") ? 1 : v.integer_or_nothing(at).value_or(Data::kOfNode);
       },
       [](const Data& data) {
         if (data.secondary > 1) return KeyValue{data.secondary};
         return KeyValue{std::string(data.secondary == Data::kOfNode ? "node" : "none")};
       }},
      {field("reduce_dtype",
             "What gradients are sent as to those who sum them; exact: precision.reduce; int8: codes of 8 bits with a "
             "scale for each 256, each sent once (ZeRO++).",
             {word(words<SentAs>())}, "exact"),
       [](const Values& v, At at, Data& data) { data.reduce_dtype = v.word<SentAs>(at); },
       [](const Data& data) { return word_value(data.reduce_dtype); }},
      {field("prefetch", "Units gathered ahead of their use.", {integer(0, 1000)}, "1"),
       [](const Values& v, At at, Data& data) { data.prefetch = v.integer(at); },
       [](const Data& data) { return KeyValue{data.prefetch}; }},
      {field("bucket_mb", "Units smaller than so many MiB share a collective.", {between(0, 1e6, true, false)}, "25"),
       [](const Values& v, At at, Data& data) { data.bucket_mb = v.number(at); },
       [](const Data& data) { return KeyValue{data.bucket_mb}; }},
      {field("compression", "Of gradients where they are reduced; what was not sent is added to the next one.",
             compression_forms(), "none"),
       [](const Values& v, At at, Data& data) { data.compression = read_compression(v, at); },
       [](const Data& data) { return compression_value(data.compression); }},
      {field("every", "Steps from one average of the ranks to the next.", {integer(1, 1e6)}, "10"),
       [](const Values& v, At at, Data& data) { data.every = v.integer(at); },
       [](const Data& data) { return KeyValue{data.every}; }},
      {field("outer",
             "An optimizer of the averages, whose gradient is how far a round came (DiLoCo); none: the average is "
             "taken as it is.",
             {word({"none"}), outer_optimizer()}, "none"),
       read_outer, outer_value},
      {field("parts",
             "Parts of the model, each averaged at a step of its own within `every`: the most that is sent at once "
             "falls by as much (streaming DiLoCo); of several, with `outer`.",
             {integer(1, 1000)}, "1"),
       [](const Values& v, At at, Data& data) { data.parts = v.integer(at); },
       [](const Data& data) { return KeyValue{data.parts}; }},
      {field("delayed", "The average is applied one round late, while training goes on.", {flag()}, "false"),
       [](const Values& v, At at, Data& data) { data.delayed = v.flag(at); },
       [](const Data& data) { return KeyValue{data.delayed}; }},
  };
  return keys;
}

namespace {

const std::string& help_of_kinds() {
  static const std::string text = [] {
    std::string text;
    for (const auto& [kind, name] : names_of(DataKind())) {
      const auto first = std::ranges::find(data_records(), kind, &DataRecord::kind);
      text += std::string(name) + ": " + std::string(first->what) + "; ";
    }
    return text + "auto: the fastest that fits.";
  }();
  return text;
}

// Where a field has an effect: under kinds all of whose records take it, and under those shardings of other kinds.
void add_variants(const FieldDef& field, std::vector<FieldDef>& fields) {
  WordList whole;
  std::vector<std::pair<std::string_view, WordList>> parts;
  for (const auto& [kind, name] : names_of(DataKind())) {
    WordList shardings;
    bool all = true;
    for (const DataRecord& record : data_records()) {
      if (record.kind != kind) continue;
      all = all && record.takes(field.name);
    }
    for (const auto& [sharding, word] : names_of(Sharding()))
      if (const DataRecord* record = data_record(name, word); record->sharding && record->takes(field.name))
        shardings.push_back(word);
    if (all)
      whole.push_back(name);
    else if (!shardings.empty())
      parts.emplace_back(name, std::move(shardings));
  }
  if (whole.size() == names_of(DataKind()).size()) return fields.push_back(field);
  if (!whole.empty()) fields.push_back(field.when("kind", whole));
  for (const auto& [kind, shardings] : parts) fields.push_back(field.when("kind", {kind}).when("sharding", shardings));
}

}  // namespace

std::vector<FieldDef> data_strategy_fields() {
  WordList kinds = words<DataKind>();
  kinds.insert(kinds.begin(), "auto");
  std::vector<FieldDef> fields{field("kind", help_of_kinds(), {word(std::move(kinds))}, "ddp")};
  for (const DataKey& key : data_keys()) add_variants(key.field, fields);
  return fields;
}

bool DataRecord::takes(std::string_view key) const { return std::ranges::find(keys, key) != keys.end(); }

std::string DataRecord::text() const {
  return std::string(name_of(kind)) + (sharding ? " " + std::string(name_of(*sharding)) : "");
}

const DataRecord& record_of(DataKind kind, Sharding sharding) {
  for (const DataRecord& record : data_records())
    if (record.kind == kind && record.sharding.value_or(sharding) == sharding) return record;
  UNREACHABLE("a data strategy without a record");
}

const DataRecord* data_record(std::string_view kind, std::string_view sharding) {
  for (const DataRecord& record : data_records())
    if (name_of(record.kind) == kind && (!record.sharding || name_of(*record.sharding) == sharding)) return &record;
  return nullptr;
}

const CompressionRecord* compression_record(Compression::Kind kind) {
  for (const CompressionRecord& record : compression_records())
    if (record.kind == kind) return &record;
  return nullptr;
}

}  // namespace trainer
