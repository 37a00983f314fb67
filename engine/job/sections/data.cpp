// Section `data`: files, what their samples are, and how these are taken.
#include "engine/job/sections/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/job/nearest.h"
#include "engine/job/sections/define.h"
#include "engine/job/sections/installed.h"
#include "engine/job/values.h"

namespace trainer {
namespace {

using namespace form;

namespace fs = std::filesystem;

constexpr double kMostSeq = 1 << 24;  // no real job reaches it

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

}  // namespace

Fields data_fields() {
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

DataJob bind_samples(Values& v, const LoadOptions& options, std::vector<Diagnostic>& mistakes) {
  DataJob data;
  if (v.has("data.format")) data.format = v.word<DataFormat>("data.format");
  bind_tokenizer(v, data, mistakes);
  if (v.has("data.seq_len")) data.seq_len = v.integer("data.seq_len");
  bind_rows(v, options, data, mistakes);
  return data;
}

}  // namespace trainer
