// The table itself, section by section, and the small functions that its rows are made of.
#include "engine/job/fields.h"

#include <algorithm>
#include <iterator>

#include "engine/job/data_strategies.h"
#include "engine/job/job.h"
#include "engine/job/pipeline_schedules.h"

namespace trainer {

namespace form {

Form null() { return {.kind = Form::Kind::null}; }
Form word(std::vector<std::string_view> words) { return {.kind = Form::Kind::word, .words = std::move(words)}; }
Form integer(double least, double most) { return {.kind = Form::Kind::integer, .least = least, .most = most}; }
Form number(double least, double most) { return {.kind = Form::Kind::number, .least = least, .most = most}; }
Form bytes() { return {.kind = Form::Kind::bytes, .least = 1, .most = kMostInteger}; }
Form positive() { return between(0, kMostF32, true, false); }
Form between(double least, double most, bool above_least, bool below_most) {
  return {
      .kind = Form::Kind::number, .least = least, .most = most, .above_least = above_least, .below_most = below_most};
}
Form flag() { return {.kind = Form::Kind::flag}; }
Form text() { return {.kind = Form::Kind::text}; }
Form path(std::string_view extension) { return {.kind = Form::Kind::path, .name = extension}; }
Form expression() { return {.kind = Form::Kind::expression}; }
Form list(Form item, std::size_t min_items, std::size_t max_items) {
  return {.kind = Form::Kind::list, .items = {std::move(item)}, .min_items = min_items, .max_items = max_items};
}
Form list_of(std::vector<Form> items) { return {.kind = Form::Kind::list, .items = std::move(items)}; }
Form map(std::vector<Form> items) { return {.kind = Form::Kind::map, .items = std::move(items)}; }
Form section(std::vector<FieldDef> fields, std::string_view shorthand) {
  return {.kind = Form::Kind::section, .fields = std::move(fields), .shorthand = shorthand};
}
std::vector<Form> values() {
  std::vector<Form> one{number(-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()),
                        flag(), text(), null()};
  std::vector<Form> all = one;
  all.push_back(list_of(std::move(one)));
  return all;
}
Form tree() { return {.kind = Form::Kind::tree}; }
Form reference(std::string_view name) { return {.kind = Form::Kind::reference, .name = name}; }

}  // namespace form

FieldDef FieldDef::when(std::string_view path, std::vector<std::string_view> words) const {
  FieldDef field = *this;
  field.conditions.push_back({path, std::move(words), std::nullopt});
  return field;
}

FieldDef FieldDef::when_above(std::string_view path, double bound) const {
  FieldDef field = *this;
  field.conditions.push_back({path, {}, bound});
  return field;
}

namespace {

using namespace form;
using Fields = std::vector<FieldDef>;
using Forms = std::vector<Form>;
using Names = std::vector<std::string_view>;

// What the search decides where a job says so.
Names with_auto(Names words) {
  words.insert(words.begin(), "auto");
  return words;
}

Names without(Names words, std::string_view word) {
  std::erase(words, word);
  return words;
}

// Bounds no real job reaches; they keep products of sizes within 64 bits.
constexpr double kMostF32 = 3.4028234663852886e38;
constexpr double kMostSamples = 1e9, kMostDevices = 4096, kMostSeq = 1 << 24;
constexpr int kMostVirtualStages = 1000;

FieldDef required(std::string_view name, std::string_view doc, Forms forms) {
  return {name, doc, std::move(forms), FieldDef::Absent::required};
}
FieldDef optional(std::string_view name, std::string_view doc, Forms forms, std::string_view otherwise) {
  return {name, doc, std::move(forms), FieldDef::Absent::otherwise, otherwise};
}
FieldDef part(std::string_view name, std::string_view doc, Fields fields, std::string_view shorthand = {}) {
  return {name, doc, {section(std::move(fields), shorthand)}, FieldDef::Absent::fill};
}
FieldDef extra(std::string_view name, std::string_view doc, Forms forms) {
  return {name, doc, std::move(forms), FieldDef::Absent::nothing};
}

Fields model() {
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

Fields adapter() {
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

Form paths() { return list(text(), 1); }

Form idx_files() {
  return section({required("images", "File of images in MNIST's idx format.", {text()}),
                  required("labels", "File of labels in MNIST's idx format.", {text()})});
}

Form fraction() {
  return section({required("fraction", "The contiguous last part of the training samples that is held out.",
                           {between(0, 1, true, true)})},
                 "fraction");
}

Form field_names(std::initializer_list<std::string_view> names) {
  Fields fields;
  for (const std::string_view name : names)
    fields.push_back(extra(name, "The member of a row that this is.", {text()}));
  return section(std::move(fields));
}

/// Of the formats whose files hold rows.
Fields rows() {
  const Names formats{"documents", "chat", "completion", "preference", "labelled"},
      packed{"documents", "chat", "completion"};
  const std::string_view fields = "Members of a row by what they are, where they have other names.";
  const std::string_view tokenizer =
      "auto: the tokenizer.json of the model folder, which is the default of a job with model.from. A path: a "
      "tokenizer.json, or a folder with one. bytes: ids 0 to 255, and 256 at the end of a text.";
  const std::string_view train_on =
      "The tokens that count as targets: what the assistant says, its last turn, the completion, or all.";
  return {
      extra("train", "Training rows: a path, a glob or a list of them; JSONL, plain, .gz or .zst, or Parquet.",
            {text(), paths()})
          .when("format", formats),
      extra("mix", "In place of train: parts with the share of samples that each is. Their order is keyed by the seed.",
            {list(section({required("files", "Training rows: a path, a glob or a list of them.", {text(), paths()}),
                           optional("weight", "Samples of the part, as a share of the sum of weights.", {positive()},
                                    "1.0")}),
                  1)})
          .when("format", formats),
      optional("val", "Held-out rows: a fraction of the training rows, or files.",
               {null(), fraction(), text(), paths()}, "null")
          .when("format", formats),
      optional("fields", fields, {field_names({"text"})}, "{}").when("format", {"documents"}),
      optional("fields", fields,
               {field_names({"messages", "role", "content", "tools", "instruction", "input", "output", "system"})},
               "{}")
          .when("format", {"chat"}),
      optional("fields", fields, {field_names({"prompt", "completion"})}, "{}").when("format", {"completion"}),
      optional("fields", fields, {field_names({"text", "label"})}, "{}").when("format", {"labelled"}),
      optional("fields", fields, {field_names({"prompt", "chosen", "rejected", "role", "content", "tools"})}, "{}")
          .when("format", {"preference"}),
      optional("roles", "Roles by the words that the rows have for them, as {human: user, gpt: assistant}.",
               {map({text()})}, "{}")
          .when("format", {"chat", "preference"}),
      optional("tokenizer", tokenizer, {word({"auto", "bytes"}), path(".json")}, "bytes")
          .when("format", {"documents", "completion", "preference"}),
      optional("tokenizer",
               "auto: the tokenizer.json of the model folder, which is the default of a job with model.from. A path: a "
               "tokenizer.json, or a folder with one. bytes: ids 0 to 255.",
               {word({"auto", "bytes"}), path(".json")}, "bytes")
          .when("format", {"labelled"}),
      optional("tokenizer", "auto: that of the model folder. A path: a tokenizer.json, or a folder with one.",
               {word({"auto"}), path(".json")}, "auto")
          .when("format", {"chat"}),
      optional(
          "template",
          "auto: the chat template beside the tokenizer. A path: a Jinja file. A name: one that came with trainer.",
          {text()}, "auto")
          .when("format", {"chat", "preference"}),
      optional("train_on", train_on, {word({"assistant", "last", "all"})}, "assistant").when("format", {"chat"}),
      optional("train_on", train_on, {word({"completion", "all"})}, "completion").when("format", {"completion"}),
      optional(
          "packing",
          "none: a row a sample, and padding. documents: as many rows as fit, each with attention and positions of "
          "its own.",
          {word(words<Packing>())}, "none")
          .when("format", packed),
      optional(
          "too_long",
          "Of a row that is longer than a sample: error; drop leaves it out; truncate keeps its first tokens; split "
          "makes several of it.",
          {word(words<TooLong>())}, "error")
          .when("format", packed),
      optional(
          "too_long",
          "Of a pair with a text that is longer than a sample: error; drop leaves the pair out; truncate keeps the "
          "first tokens of both texts.",
          {word(without(words<TooLong>(), "split"))}, "error")
          .when("format", {"preference"}),
      optional("too_long",
               "Of a text that is longer than a sample: error; drop leaves it out; truncate keeps its first tokens.",
               {word({"error", "drop", "truncate"})}, "error")
          .when("format", {"labelled"}),
  };
}

Fields data() {
  const std::vector<std::string_view> files{"text", "tokens", "table", "tensors"};
  const std::string_view train =
      "Training samples: a path, a glob or a list of them; of idx, a file of images and one of labels.";
  const std::string_view val = "Held-out samples: a fraction of the training samples, or files.";
  const std::string_view format =
      "text: files as they are. tokens: token ids as a flat file, an .npy array or an llm.c file. table: CSV. idx: "
      "MNIST's files. tensors: safetensors files, of whose tensors each is a field of all samples. documents: rows of "
      "text, each ended by the end-of-text token. chat: rows of messages. completion: rows of a prompt and what "
      "follows. preference: rows of a prompt, a chosen answer and a "
      "rejected one, for train.objective: dpo. labelled: rows of a text and a label, a class or a number.";
  const std::string_view target =
      "The column to predict: its name in the header, or its number; negative numbers count from the last.";
  Fields fields{
      required("format", format, {word(words<DataFormat>())}),
      required("train", train, {text(), paths()}).when("format", files),
      required("train", train, {idx_files()}).when("format", {"idx"}),
      optional("val", val, {null(), fraction(), text(), paths()}, "null").when("format", files),
      optional("val", val, {null(), fraction(), idx_files()}, "null").when("format", {"idx"}),
      optional(
          "tokenizer",
          "bytes: ids 0 to 255. chars: the sorted distinct characters of all the text. auto: the tokenizer.json of the "
          "model folder, which is the default of a job with model.from. A path: a tokenizer.json, or a folder with "
          "one.",
          {word(with_auto(words<Tokenizer>())), path(".json")}, "bytes")
          .when("format", {"text"}),
      optional("token_type",
               "Type of the ids; auto: what the header of an .npy or llm.c file says, u16 where there is none.",
               {word(with_auto(words<TokenType>()))}, "auto")
          .when("format", {"tokens"}),
      optional("seq_len", "Tokens of one sample; of tensors, what a graph means by seq.", {integer(1, kMostSeq)}, "256")
          .when("format", {"text", "tokens", "tensors", "documents", "chat", "completion", "preference", "labelled"}),
      optional(
          "fields",
          "Names of tensors by the inputs of the graph that they are; without it all that the graph needs, under its "
          "own names.",
          {map({text()})}, "{}")
          .when("format", {"tensors"}),
      optional("target", target, {integer(-1e6, 1e6), text()}, "-1").when("format", {"table"}),
      optional("normalize", "standard: features get mean 0 and deviation 1, of the training part.",
               {word(words<Normalize>())}, "none")
          .when("format", {"table"}),
      optional("shuffle",
               "true: each epoch is a permutation keyed by (seed, epoch). false: consecutive samples, in order.",
               {flag()}, "true"),
  };
  const Fields of_rows = rows();
  fields.insert(fields.begin() + 1, of_rows.begin(), of_rows.end());
  return fields;
}

Fields optimizer(std::vector<std::string_view> names) {
  const Form betas = list(between(0, 1, false, true), 2, 2);
  const Form rate = between(0, kMostF32, true, false);
  const std::string_view lr = "Peak learning rate.", moments = "Decay rates of the moments.";
  const std::string_view weight_decay = "Decoupled: a step takes lr * weight_decay of a weight.";
  const std::string_view states =
      "How its states are kept, in 4, 2 or 1.02 bytes each: bf16 is rounded stochastically, int8 has a scale for each "
      "block of 256.";
  const std::string_view adjust =
      "Factor of an update: original, the root of max(1, rows / columns); or match_rms_adamw, with which the lr of "
      "AdamW fits.";
  const std::string_view others = "The optimizer of what muon does not update: all but the matrices of blocks.";
  const bool muon = std::ranges::find(names, "muon") != names.end();
  Fields fields{
      optional("name", "The optimizer.", {word(std::move(names))}, "adamw"),
      optional("lr", lr, {rate}, "1.0e-3").when("name", {"adam", "adamw"}),
      optional("lr", lr, {rate}, "1.0e-4").when("name", {"lion"}),
      optional("lr", lr, {rate}, "1.0e-2").when("name", {"sgd"}),
      optional("betas", moments, {betas}, "[0.9, 0.999]").when("name", {"adam", "adamw"}),
      optional("betas", moments, {betas}, "[0.9, 0.99]").when("name", {"lion"}),
      optional("eps", "Added to the root of the second moment.", {positive()}, "1.0e-8")
          .when("name", {"adam", "adamw"}),
      optional("momentum", "Decay rate of sgd's velocity (0: none), of muon's average of gradients.",
               {between(0, 1, false, true)}, "0.0")
          .when("name", {"sgd"}),
      optional("nesterov", "Nesterov's momentum.", {flag()}, "false").when("name", {"sgd"}),
      optional("weight_decay", weight_decay, {number(0)}, "0.1")
          .when("name", muon ? Names{"adamw", "muon"} : Names{"adamw"}),
      optional("weight_decay", weight_decay, {number(0)}, "0.0").when("name", {"adam", "lion", "sgd"}),
      optional("decay", "matrices: weight decay applies to parameters of two or more dims. all: to every one.",
               {word(words<Decay>())}, "matrices")
          .when("name", {"adam", "adamw", "lion", "sgd"}),
      optional("states", states, {word(words<States>())}, "f32")
          .when("name", muon ? Names{"adam", "adamw", "lion", "muon"} : Names{"adam", "adamw", "lion"}),
      optional("states", states, {word(words<States>())}, "f32").when("name", {"sgd"}).when_above("momentum", 0),
  };
  if (!muon) return fields;
  const Fields more{
      optional("lr", lr, {rate}, "2.0e-2").when("name", {"muon"}),
      optional("momentum", "Decay rate of sgd's velocity (0: none), of muon's average of gradients.",
               {between(0, 1, true, true)}, "0.95")
          .when("name", {"muon"}),
      optional("nesterov", "Nesterov's momentum.", {flag()}, "true").when("name", {"muon"}),
      optional("ns_steps", "Steps of the Newton-Schulz iteration.", {integer(1, 100)}, "5").when("name", {"muon"}),
      optional("adjust", adjust, {word(words<MuonAdjust>())}, "original").when("name", {"muon"}),
      part("others", others, optimizer(without(words<OptimizerName>(), "muon")), "name").when("name", {"muon"}),
  };
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

Fields optimizer() { return optimizer(words<OptimizerName>()); }

Fields group() {
  const std::string_view doc =
      "Their optimizer. What it leaves out is as in train.optimizer, where that has the same name.";
  Fields fields = optimizer();
  fields.front().absent = FieldDef::Absent::required;  // its name
  return {required("match", "Globs over names of parameters.", {list(text(), 1)}),
          required("optimizer", doc, {section(std::move(fields), "name")})};
}

Fields lr_schedule() {
  return {
      optional("name", "The learning rate after warm-up; wsd: constant, then linear over decay_steps.",
               {word(words<ScheduleName>())}, "cosine"),
      optional("warmup_steps", "Steps of linear rise to lr.", {integer(0)}, "0"),
      optional("min_lr", "Where the learning rate ends.", {number(0)}, "0.0").when("name", {"linear", "cosine", "wsd"}),
      required("decay_steps", "Length of the fall at the end.", {integer(1)}).when("name", {"wsd"}),
  };
}

Fields batch() {
  return {
      optional("global", "Samples of a step, over all ranks; pairs under dpo.", {integer(1, kMostSamples)}, "64"),
      optional("micro", "Samples of a micro-batch of one data rank; auto: as fits.",
               {word({"auto"}), integer(1, kMostSamples)}, "auto"),
  };
}

Fields objective() {
  return {
      optional("kind",
               "auto: the loss of the graph. dpo: direct preference optimization of pairs (Rafailov et al. 2023), with "
               "the model as it starts, without its adapter, for the reference.",
               {word(words<ObjectiveKind>())}, "auto"),
      optional("beta", "How far the model may move from the reference: rewards are beta times the log-ratio of both.",
               {positive()}, "0.1")
          .when("kind", {"dpo"}),
  };
}

Fields train() {
  return {
      required("steps", "Optimizer steps; 0 writes the initial weights.", {integer(0)}),
      part("objective", "What is made smaller.", objective(), "kind"),
      part("batch", "Sizes of batches, in samples.", batch(), "global"),
      part("optimizer", "The optimizer and its numbers.", optimizer(), "name"),
      optional("groups",
               "Parameters with an optimizer of their own: a parameter takes the first group that matches it, else "
               "train.optimizer.",
               {list(section(group()), 0)}, "[]"),
      part("lr_schedule", "The learning rate over the steps.", lr_schedule(), "name"),
      optional("clip_norm", "Largest global norm of the gradients; null: no clipping.", {null(), positive()}, "1.0"),
      optional("on_nan",
               "At a loss or gradient that is not finite: stop and save nothing; skip the update; or rollback to the "
               "last good checkpoint, "
               "leaving out the batches since, at most three times.",
               {word(words<OnNan>())}, "stop"),
  };
}

Fields generate() {
  return {
      required("file", "Rows with `prompt` and `answer`: JSONL (plain, .gz or .zst) or Parquet.", {text()}),
      optional("max_tokens", "Tokens of an answer at most.", {integer(1)}, "64"),
  };
}

Fields eval() {
  return {
      optional("every", "Steps from one evaluation to the next; null: no evaluation.", {null(), integer(1)}, "250"),
      optional("batches", "Global batches of one evaluation.", {integer(1)}, "20").when("every"),
      extra("generate",
            "Prompts that each evaluation answers by greedy generation; exact_match is the share it gets right.",
            {section(generate(), "file")})
          .when("every"),
  };
}

// The largest is that whose inverse is a normal number of f32.
Form scale() { return number(1e-6, 0x1p126); }

/// A dynamic loss scale and its numbers: PyTorch's names and defaults.
Form dynamic_scale() {
  return section({
      optional("init_scale", "The scale of the first step.", {scale()}, "65536.0"),
      optional("growth_factor", "By which it grows after growth_interval steps in a row without overflow.",
               {between(1, 1e6, true, false)}, "2.0"),
      optional("backoff_factor", "By which it shrinks after a step that overflowed.", {between(0, 1, true, true)},
               "0.5"),
      optional("growth_interval", "Steps without overflow from one growth to the next.", {integer(1, 1e9)}, "2000"),
      optional("largest_scale", "It grows no further.", {scale()}, "16777216.0"),
      optional("smallest_scale", "It shrinks no further: a step that overflows even so is an error.", {scale()}, "1.0"),
  });
}

Fields precision() {
  const Form dtype = word({"f32", "bf16", "f16"});
  const auto loss_scale = [](std::string_view otherwise) {
    return optional("loss_scale",
                    "A factor of the loss during the backward pass; dynamic: one that follows the gradients. Dynamic "
                    "by default where compute is f16.",
                    {word({"none", "dynamic"}), scale(), dynamic_scale()}, otherwise);
  };
  return {
      optional("params", "Dtype of master weights.", {dtype}, "f32"),
      optional("compute", "Dtype of activations and working weights.", {dtype}, "f32"),
      optional("reduce", "Dtype in which gradients of parameters are summed.", {dtype}, "f32"),
      optional("matmul",
               "fp8: linears in blocks multiply e4m3, in the backward pass e5m2 gradients with e4m3; on GPUs that have "
               "it, with compute: bf16.",
               {word(words<MatmulPrecision>())}, "none"),
      loss_scale("none").when("compute", {"f32", "bf16"}),
      loss_scale("dynamic").when("compute", {"f16"}),
  };
}

Fields activation_checkpointing() {
  const std::string_view mode =
      "What is recomputed in the backward pass: nothing, blocks, all but matrix products, or every n-th block.";
  return {
      optional("mode", mode, {word(words<CheckpointingMode>())}, "none"),
      required("every", "Of so many consecutive blocks the first is recomputed.", {integer(1, 1e6)})
          .when("mode", {"every_n"}),
  };
}

Fields tensor_strategy() {
  const FieldDef sequence =
      optional("sequence_parallel", "Norms and dropout are cut along the sequence.", {flag(), word({"auto"})}, "false");
  const FieldDef keep =
      optional("keep",
               "What is kept for the backward pass of what sequence parallelism gathers: all of it, or a rank's shard, "
               "which is gathered again; auto: all of it where that fits.",
               {word(words<TensorKeep>())}, "auto");
  return {
      required("degree", "Ranks of a layer.", {integer(1, kMostRanks), word({"auto"})}),
      sequence.when_above("degree", 1),
      optional("sequence_parallel", "Norms and dropout are cut along the sequence.", {flag(), word({"auto"})}, "auto")
          .when("degree", {"auto"}),
      keep.when_above("degree", 1),
      optional("overlap",
               "Micro-batches go through the model in pairs: while the sums and gathers of one travel, the other "
               "computes. Needs an even number of micro-batches, and memory for the activations of both.",
               {flag()}, "false")
          .when_above("degree", 1),
      keep.when("degree", {"auto"}),
  };
}

Fields expert_strategy() {
  return {
      required("degree", "Ranks over which experts are cut; each has samples of its own. It divides their number.",
               {integer(1, kMostRanks)}),
  };
}

Fields context_strategy() {
  return {
      required("degree",
               "Ranks over which each sequence is cut. data.seq_len divides by it, and with `ring` by twice as much.",
               {integer(1, kMostRanks)}),
      optional("kind",
               "gather: the keys and values of all positions are gathered before attention. ring: they travel round "
               "the ranks while attention computes.",
               {word(words<ContextKind>())}, "gather"),
  };
}

FieldDef virtual_stages(Forms forms, std::string_view otherwise) {
  return optional("virtual_stages", "Chunks of the model on each stage.", std::move(forms), otherwise);
}

// One variant for each range of virtual stages, of the schedules that take it; where there is a choice, two are the
// default.
Fields virtual_stages_by_schedule() {
  Fields fields;
  for (const ScheduleRecord& record : kScheduleRecords) {
    const auto alike = [&](const ScheduleRecord& other) {
      return other.least_virtual_stages == record.least_virtual_stages &&
             other.most_virtual_stages == record.most_virtual_stages;
    };
    if (std::ranges::find_if(kScheduleRecords, alike) != &record) continue;
    Names schedules;
    for (const ScheduleRecord& other : kScheduleRecords)
      if (alike(other)) schedules.push_back(other.name);
    Forms forms{integer(record.least_virtual_stages, std::min(record.most_virtual_stages, kMostVirtualStages))};
    if (record.least_virtual_stages < record.most_virtual_stages) forms.push_back(word({"auto"}));
    fields.push_back(virtual_stages(std::move(forms), record.takes(2) ? "2" : "1")
                         .when_above("degree", 1)
                         .when("schedule", std::move(schedules)));
  }
  return fields;
}

Fields schedule_file() {
  return {required("file",
                   "A line for each stage with its actions in order, as F0.1,B0.1: F forward, B backward, I and W its "
                   "input and weight part; the micro-batch; the chunk.",
                   {text()})};
}

Fields pipeline_strategy() {
  const std::string_view order = "Order of the micro-batches' forward and backward passes.";
  const Forms open{word({"auto"}), integer(1, kMostVirtualStages)};
  Fields fields{
      required("degree", "Stages.", {integer(1, kMostRanks), word({"auto"})}),
      optional("schedule", order, {word(with_auto(words<PipelineSchedule>())), section(schedule_file())}, "1f1b")
          .when_above("degree", 1),
      optional("schedule", order, {word(with_auto(words<PipelineSchedule>()))}, "auto").when("degree", {"auto"}),
  };
  std::ranges::move(virtual_stages_by_schedule(), std::back_inserter(fields));
  fields.push_back(virtual_stages(open, "auto").when_above("degree", 1).when("schedule", {"auto"}));
  fields.push_back(virtual_stages(open, "auto").when("degree", {"auto"}));
  fields.push_back(optional("split",
                            "auto: chunks of equal cost. uniform: of equally many blocks. Or the nodes or blocks that "
                            "begin the chunks after the first.",
                            {word({"auto", "uniform"}), list(text(), 1)}, "auto")
                       .when_above("degree", 1));
  return fields;
}

Fields offload() {
  const std::vector<std::string_view> places = words<OffloadTo>();
  const auto dir = [] {
    return optional("dir", "A folder for the files, which go with the run; auto: checkpoint.dir.", {text()}, "auto");
  };
  return {
      optional("optimizer",
               "Where master weights and the optimizer's states are kept: on the device, in the memory of a GPU's "
               "host, or in a file of each rank.",
               {word(places)}, "none"),
      optional("gradients",
               "The same of gradients, from the backward pass to the update, of steps of one micro-batch without a "
               "pipeline.",
               {word(places)}, "none"),
      optional(
          "parameters",
          "The same of working copies, which come for each use; under zero3 and fsdp. In f32 they are the masters.",
          {word(places)}, "none"),
      optional("activations",
               "The same of what the backward pass needs of the forward pass, block by block; without a pipeline.",
               {word(places)}, "none"),
      dir().when("optimizer", {"disk"}),
      dir().when("optimizer", {"none", "host"}).when("gradients", {"disk"}),
      dir().when("optimizer", {"none", "host"}).when("gradients", {"none", "host"}).when("parameters", {"disk"}),
      dir()
          .when("optimizer", {"none", "host"})
          .when("gradients", {"none", "host"})
          .when("parameters", {"none", "host"})
          .when("activations", {"disk"}),
  };
}

Fields wrap() {
  return {
      optional("policy",
               "What becomes a unit: buckets, a kind of block, parts of some size, named parts, or the whole model.",
               {word(words<WrapPolicy>())}, "auto"),
      optional("block", "Kind of block that is a unit.", {text()}, "TransformerBlock").when("policy", {"transformer"}),
      optional("min_params", "Least number of parameters of a unit.", {integer(1)}, "100_000_000")
          .when("policy", {"size"}),
      required("names", "Nodes or blocks that are a unit each.", {list(text(), 1)}).when("policy", {"names"}),
      optional("excluded", "Globs over nodes that keep f32 under mixed precision.", {list(text(), 0)}, "[]"),
  };
}

Fields strategy() {
  FieldDef data = part("data", "How parameters live over the data ranks.", data_strategy_fields(), "kind");
  data.forms.push_back(word({"auto"}));
  return {
      data,
      extra("tensor", "Layers cut over ranks.", {section(tensor_strategy(), "degree"), word({"auto"})}),
      extra("expert", "Experts over ranks, to which tokens travel.", {section(expert_strategy(), "degree")}),
      extra("context", "Sequences cut over ranks.", {section(context_strategy(), "degree")}),
      extra("pipeline", "The model cut into stages.", {section(pipeline_strategy(), "degree"), word({"auto"})}),
      extra("offload", "What is kept off the device while it is not used.", {section(offload(), "optimizer")}),
      part("wrap", "What becomes a unit of parameters.", wrap(), "policy"),
      optional("profile", "Of the network: fills in bucket_mb, compression and every of data where they are not given.",
               {word(words<Profile>())}, "none"),
  };
}

Fields cluster() {
  const FieldDef backend = optional(
      "backend", "What communicates: threads of one process, mpi between CPUs, nccl between GPUs.", {}, "auto");
  const auto with_words = [](FieldDef field, std::vector<std::string_view> words) {
    field.forms = {word(std::move(words))};
    return field;
  };
  const std::string_view devices = "Ranks of a machine; auto: all GPUs, or one rank with all cores.";
  return {
      optional("device", "What computes.", {word(words<Device>())}, "auto"),
      with_words(backend, words<Backend>()).when("device", {"auto"}),
      with_words(backend, {"auto", "threads", "mpi"}).when("device", {"cpu"}),
      with_words(backend, {"auto", "mpi", "nccl"}).when("device", {"cuda"}),
      optional("nodes", "Machines.", {integer(1, 1)}, "1").when("backend", {"threads"}),
      optional("nodes", "Machines.", {integer(1, kMostRanks)}, "1").when("backend", {"auto", "mpi", "nccl"}),
      optional("devices_per_node", devices, {word({"auto"}), integer(1, kMostDevices)}, "auto"),
      optional("hardware", "A name in configs/hardware/ or a path; auto: this machine.", {text()}, "auto"),
      optional("memory_limit", "Bytes of a rank that a plan may use, where that is less than the device has.",
               {null(), form::bytes()}, "null"),
      optional("price_per_device_hour", "In any currency; null: the hardware file's.", {null(), positive()}, "null"),
  };
}

Fields checkpoint() {
  return {
      optional("dir", "Where checkpoints are written; auto: runs/<name> beside the job; null: nowhere.",
               {null(), text()}, "auto"),
      optional("every", "Steps from one checkpoint to the next; the last step is always saved.", {integer(1)}, "500")
          .when("dir"),
      optional("keep", "How many are kept, the newest; null: all.", {null(), integer(1)}, "2").when("dir"),
      optional("keep_best", "And the one with the lowest validation loss; each new lowest is saved.", {flag()}, "false")
          .when("dir"),
      optional("behind", "Files are written while the next steps run, from a copy in host memory, if it fits.",
               {flag()}, "true")
          .when("dir"),
      optional("format", "full: one file. sharded: one for each rank that owns data.",
               {word(words<CheckpointFormat>())}, "full")
          .when("dir"),
      optional("resume", "auto: from the newest whole checkpoint in dir. none: from the start. Or a step's directory.",
               {text()}, "auto")
          .when("dir"),
      optional("accept", "What may differ from the checkpoint's job that otherwise may not.",
               {list(word({"model", "data", "tokenizer", "seq_len", "batch", "seed", "optimizer", "objective"}), 0)},
               "[]")
          .when("dir"),
  };
}

Fields log() {
  return {
      optional("every", "Steps from one line of progress to the next.", {integer(1)}, "10"),
      optional("jsonl", "A file that gets one JSON object per step.", {null(), text()}, "null"),
      optional("tensorboard", "A directory for TensorBoard.", {null(), text()}, "null"),
      optional("trace", "A file for a trace of the run.", {null(), text()}, "null"),
  };
}

Fields job() {
  Names names = with_auto(words<DataKind>());
  names.insert(names.end(), {"tensor", "pipeline"});
  return {
      extra("name", "What the run is called; default: the file's name.", {text()}),
      optional("seed", "Of initial weights, dropout and the order of samples.", {integer(0)}, "1337"),
      required("model", "What is trained.", {section(model(), "graph")}),
      optional("adapter", "Small matrices that are trained beside the model's; the model's are model.init_from.",
               {null(), section(adapter(), "kind")}, "null"),
      extra("trainable",
            "Parameters of the model that are trained: all, none beside the adapter, or globs over their names; "
            "[first:last] behind one: these rows of an embedding. "
            "Default: adapter where there is one (of labelled rows with the head), else all.",
            {word({"all", "adapter"}), list(text(), 1)}),
      required("data", "What it is trained on.", {section(data())}),
      required("train", "How it is trained.", {section(train())}),
      part("eval", "Evaluation on the held-out samples.", eval(), "every").when("data.val"),
      part("precision", "Dtypes.", precision(), "compute"),
      part("activation_checkpointing", "What is recomputed instead of kept.", activation_checkpointing(), "mode"),
      optional("strategy", "How the work is spread over ranks: auto, a name, or the explicit form.",
               {word(names), section(strategy())}, "auto"),
      optional("goal",
               "What strategy: auto makes least: the time of a step, the memory of a rank, or the cost of a sample.",
               {word(words<Goal>())}, "time"),
      part("cluster", "Where it runs.", cluster()),
      part("checkpoint", "What is saved.", checkpoint(), "dir"),
      part("log", "What is told.", log()),
  };
}

}  // namespace

const std::vector<FieldDef>& job_fields() {
  static const std::vector<FieldDef> fields = job();
  return fields;
}

}  // namespace trainer
