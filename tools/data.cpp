// trainer data: samples of a job as the model will see them: what is trained, which document is where, what was cut. Of
// labelled rows: texts and labels.
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "engine/core/error.h"
#include "engine/core/printable.h"
#include "engine/data/data.h"
#include "engine/train/inputs.h"
#include "tools/command.h"

namespace trainer::tools {
namespace {

struct DataArguments : JobArguments {
  std::int64_t rows = 3;
  std::int64_t first = 0;
  bool val = false;
};

using data::SampleIds;

/// The sample of a list of parts, as `get(part, index)` gives it, or nothing where all of them have fewer samples.
template <typename Part, typename Get>
auto in_parts(const std::vector<std::shared_ptr<const Part>>& parts, std::int64_t sample, const Get& get)
    -> std::optional<decltype(get(*parts[0], sample))> {
  for (const auto& part : parts) {
    if (sample < part->num_samples()) return get(*part, sample);
    sample -= part->num_samples();
  }
  return std::nullopt;
}

/// REQUIRES: the data has the part.
SampleIds sample_of(const data::Data& data, bool val, std::int64_t seq_len, std::int64_t sample) {
  if (auto row = in_parts(val ? data.val_rows : data.train_rows, sample,
                          [](const data::RowSamples& part, std::int64_t i) { return part.ids_of(i); }))
    return std::move(*row);
  // A window of text or ids: all of it is trained.
  SampleIds out;
  out.ids.resize(static_cast<std::size_t>(seq_len));
  std::vector<std::int32_t> targets(out.ids.size());
  std::byte* fields[] = {reinterpret_cast<std::byte*>(out.ids.data()), reinterpret_cast<std::byte*>(targets.data())};
  (val ? *data.val : *data.train).read(sample, fields);
  out.ids.push_back(targets.back());
  out.trained.assign(out.ids.size(), 1);
  out.trained.front() = 0;
  out.documents.assign(out.ids.size(), 0);
  return out;
}

Json json_of(const SampleIds& sample) {
  return {{"ids", sample.ids},
          {"trained", std::vector<bool>(sample.trained.begin(), sample.trained.end())},
          {"documents", sample.documents}};
}

/// On one line.
std::string text_of(const data::Tokenizer* tokenizer, std::span<const std::int32_t> ids) {
  if (tokenizer != nullptr) return printable(tokenizer->decode(ids));
  std::string text;
  for (const std::int32_t id : ids) text += std::to_string(id) + " ";
  return text;
}

data::LabelledText text_of(const data::Data& data, bool val, std::int64_t sample) {
  return in_parts(val ? data.val_labelled : data.train_labelled, sample,
                  [](const data::LabelledSamples& part, std::int64_t i) { return part.text_of(i); })
      .value();
}

/// Whole numbers are classes.
Json json_of(const data::LabelledText& sample) {
  Json out{{"ids", sample.ids}};
  if (sample.label == std::floor(sample.label) && std::abs(sample.label) < 1 << 24)
    out["label"] = static_cast<std::int64_t>(sample.label);
  else
    out["label"] = sample.label;
  return out;
}

/// The label, and the class that it is.
std::string label_of(const data::LabelledText& sample, const std::map<std::string, double>& names) {
  std::string text = fmt::format("{}", sample.label);
  for (const auto& [name, label] : names)
    if (label == static_cast<double>(sample.label)) text += " (" + name + ")";
  return text;
}

/// A line for each run of ids that are all trained or all not, under a line for each document.
void show(const SampleIds& window, const data::Tokenizer* tokenizer, bool pair, bool colour) {
  const std::size_t size = window.ids.size();
  for (std::size_t begin = 0; begin < size;) {
    std::size_t end = begin + 1;
    while (end < size && window.trained[end] == window.trained[begin] &&
           window.documents[end] == window.documents[begin])
      ++end;
    if (window.documents.back() > 0 && (begin == 0 || window.documents[begin] != window.documents[begin - 1]))
      put("  {}\n", !pair                          ? "document " + std::to_string(window.documents[begin])
                    : window.documents[begin] == 0 ? "chosen"
                                                   : "rejected");
    const bool trained = window.trained[begin] != 0;
    const std::string text = text_of(tokenizer, {window.ids.data() + begin, end - begin});
    if (colour)
      put("    {}{}\033[0m\n", trained ? "\033[1;32m" : "\033[2m", text);
    else
      put("    {} {}\n", trained ? "trained" : "context", text);
    begin = end;
  }
}

int show_data(const DataArguments& arguments) {
  LoadedJob loaded = arguments.load();
  const DataJob& job = loaded.job.data;
  if (!job.is_text() && !job.is_labelled())
    throw DataError(
        "`trainer data` shows samples of tokens; this job has `format: " + std::string(name_of(job.format)) + "`");
  const data::Data data = open_samples(loaded, {.progress = progress_line("tokenizing"), .say = say_line});
  if (arguments.val && !data.val) throw DataError("the job has no data.val");
  const std::int64_t size = (arguments.val ? data.val : data.train)->num_samples();
  const std::int64_t begin = std::min(arguments.first, size);
  const std::int64_t end = arguments.rows < 0 ? size : std::min(begin + arguments.rows, size);
  if (arguments.json) {
    Json rows = Json::array();
    for (std::int64_t i = begin; i < end; ++i)
      rows.push_back(job.is_labelled() ? json_of(text_of(data, arguments.val, i))
                                       : json_of(sample_of(data, arguments.val, job.seq_len, i)));
    put_document(rows);
    return kDone;
  }
  const bool colour = ::isatty(STDOUT_FILENO) == 1;
  const std::map<std::string, double> names =
      job.is_labelled() ? data::label_names(job) : std::map<std::string, double>();
  for (std::int64_t i = begin; i < end; ++i) {
    if (job.is_labelled()) {
      const data::LabelledText text = text_of(data, arguments.val, i);
      put("sample {}: {} tokens, label {}\n", i, text.ids.size(), label_of(text, names));
      put("    {}\n", text_of(data.tokenizer.get(), text.ids));
      continue;
    }
    const SampleIds window = sample_of(data, arguments.val, job.seq_len, i);
    put("sample {}: {} tokens, {} trained\n", i, window.ids.size(), std::ranges::count(window.trained, 1));
    show(window, data.tokenizer.get(), job.sequences() > 1, colour);
  }
  put("{}\n", data::summary_of_rows(data, job.seq_len, arguments.val));
  return kDone;
}

}  // namespace

void add_data(CommandLine& app, Work& work) {
  Subcommand* command = app.add_subcommand("data", "shows samples of a job as the model will see them");
  auto arguments = std::make_shared<DataArguments>();
  arguments->add_to(*command);
  command->add_option("--rows", arguments->rows, "samples to show; -1: all of them")
      ->capture_default_str()
      ->type_name("N")
      ->at_least(-1);
  command->add_option("--first", arguments->first, "the first one to show")
      ->capture_default_str()
      ->type_name("N")
      ->at_least(0);
  command->add_flag("--val", arguments->val, "samples of data.val");
  command->footer(
      "Examples:\n"
      "  trainer data job.yaml\n"
      "  trainer data job.yaml --rows 20 data.seq_len=512 data.packing=documents\n"
      "  trainer data job.yaml --rows -1 --json > samples.json\n"
      "\n"
      "Shows each sample in the order of the files: which tokens are trained (bright on a terminal) and which only "
      "give\n"
      "context, and where one document ends and the next begins. Below it: rows that were dropped, truncated or "
      "split,\n"
      "and how much of the samples is padding. With --json a list of {\"ids\": […], \"trained\": […], \"documents\": "
      "[…]}:\n"
      "the inputs of a sample and its last target, without padding; trained[i] says whether ids[i] counts as a "
      "target.\n"
      "Of preference rows document 0 is the chosen text and document 1 the rejected one. Of labelled rows it is\n"
      "{\"ids\": […], \"label\": 1}.\n");
  command->callback([arguments, &work] { work = [arguments] { return show_data(*arguments); }; });
}

}  // namespace trainer::tools
