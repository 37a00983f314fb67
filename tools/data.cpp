// trainer data: samples of a job as the model will see them: what is trained, which document is where, what was cut.
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/data/data.h"
#include "engine/train/inputs.h"
#include "tools/command.h"

namespace trainer::tools {
namespace {

struct Arguments : JobArguments {
  std::int64_t rows = 3;
  std::int64_t first = 0;
  bool val = false;
};

/// One sample, without its padding: the inputs and the last target.
struct Window {
  std::vector<std::int32_t> ids, documents;
  std::vector<bool> trained;
};

class Samples {
 public:
  /// REQUIRES: `data` has the part.
  Samples(const LoadedJob& loaded, const data::Data& data, bool val)
      : dataset_(val ? *data.val : *data.train), seq_len_(loaded.job.data.seq_len) {
    for (const auto& part : val ? data.val_rows : data.train_rows) parts_.push_back(part.get());
  }

  std::int64_t size() const { return dataset_.num_samples(); }

  Window window(std::int64_t sample) const {
    std::vector<std::vector<std::int32_t>> fields(dataset_.fields().size(),
                                                  std::vector<std::int32_t>(static_cast<std::size_t>(seq_len_)));
    std::vector<std::byte*> out;
    for (auto& field : fields) out.push_back(reinterpret_cast<std::byte*>(field.data()));
    dataset_.read(sample, out);
    Window window;
    window.ids = fields[0];
    window.trained.assign(window.ids.size(), false);
    window.documents.assign(window.ids.size(), 0);
    if (parts_.empty()) {
      window.ids.push_back(fields[1].back());
      window.trained.assign(window.ids.size(), true);
      window.trained.front() = false;
      window.documents.push_back(0);
      return window;
    }
    return of_rows(sample);
  }

 private:
  /// What the rows of the sample say, id by id.
  Window of_rows(std::int64_t sample) const {
    std::size_t part = 0;
    for (; sample >= parts_[part]->num_samples(); ++part) sample -= parts_[part]->num_samples();
    Window window;
    std::int32_t document = 0;
    for (const data::Segment& segment : parts_[part]->segments(sample)) {
      const auto count = static_cast<std::size_t>(segment.count);
      std::vector<std::int32_t> ids(count);
      std::vector<std::uint8_t> trained(count);
      parts_[part]->rows().read(segment.first, segment.count, ids.data(), trained.data());
      trained.front() = 0;
      window.ids.insert(window.ids.end(), ids.begin(), ids.end());
      window.trained.insert(window.trained.end(), trained.begin(), trained.end());
      window.documents.insert(window.documents.end(), count, document++);
    }
    return window;
  }

  const data::Dataset& dataset_;
  const std::int64_t seq_len_;
  std::vector<const data::RowSamples*> parts_;
};

Json json_of(const Window& window) {
  return {{"ids", window.ids}, {"trained", window.trained}, {"documents", window.documents}};
}

/// Text of ids [begin, end), printable on one line.
std::string text_of(const data::Tokenizer* tokenizer, const Window& window, std::size_t begin, std::size_t end) {
  const std::span<const std::int32_t> ids(window.ids.data() + begin, end - begin);
  if (tokenizer == nullptr) {
    std::string text;
    for (const std::int32_t id : ids) text += std::to_string(id) + " ";
    return text;
  }
  std::string text;
  for (const char c : tokenizer->decode(ids))
    text += c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\r' ? "\\r" : c == '\033' ? "\\e" : std::string(1, c);
  return text;
}

/// A line for each run of ids that are all trained or all not, under a line for each document.
void show(const Window& window, const data::Tokenizer* tokenizer, bool colour) {
  const std::size_t size = window.ids.size();
  for (std::size_t begin = 0; begin < size;) {
    std::size_t end = begin + 1;
    while (end < size && window.trained[end] == window.trained[begin] &&
           window.documents[end] == window.documents[begin])
      ++end;
    if (window.documents.back() > 0 && (begin == 0 || window.documents[begin] != window.documents[begin - 1]))
      put("  document {}\n", window.documents[begin]);
    const bool trained = window.trained[begin];
    const std::string text = text_of(tokenizer, window, begin, end);
    if (colour)
      put("    {}{}\033[0m\n", trained ? "\033[1;32m" : "\033[2m", text);
    else
      put("    {} {}\n", trained ? "trained" : "context", text);
    begin = end;
  }
}

int show_data(const Arguments& arguments) {
  LoadedJob loaded = arguments.load();
  const DataJob& job = loaded.job.data;
  if (!job.is_text())
    throw DataError(
        "`trainer data` shows samples of tokens; this job has `format: " + std::string(name_of(job.format)) + "`");
  const data::Data data = open_samples(loaded, {.progress = progress_line("tokenizing"), .say = say_line});
  if (arguments.val && !data.val) throw DataError("the job has no data.val");
  const Samples samples(loaded, data, arguments.val);
  const std::int64_t begin = std::min(arguments.first, samples.size());
  const std::int64_t end = arguments.rows < 0 ? samples.size() : std::min(begin + arguments.rows, samples.size());
  if (arguments.json) {
    Json rows = Json::array();
    for (std::int64_t i = begin; i < end; ++i) rows.push_back(json_of(samples.window(i)));
    put_document(rows);
    return kDone;
  }
  const bool colour = ::isatty(STDOUT_FILENO) == 1;
  for (std::int64_t i = begin; i < end; ++i) {
    const Window window = samples.window(i);
    put("sample {}: {} tokens, {} trained\n", i, window.ids.size(), std::ranges::count(window.trained, true));
    show(window, data.tokenizer.get(), colour);
  }
  put("{}", data::summary_of_rows(data, job.seq_len, arguments.val));
  return kDone;
}

}  // namespace

void add_data(CommandLine& app, Work& work) {
  Subcommand* command = app.add_subcommand("data", "shows samples of a job as the model will see them");
  auto arguments = std::make_shared<Arguments>();
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
      "target.\n");
  command->callback([arguments, &work] { work = [arguments] { return show_data(*arguments); }; });
}

}  // namespace trainer::tools
