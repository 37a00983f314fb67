// trainer tokenize: text to ids and back. trainer tokenizer train: a byte-level BPE from text.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/tokenizer/text_tokenizer.h"
#include "engine/tokenizer/train.h"
#include "tools/command.h"
#include "tools/lines.h"

namespace trainer::tools {
namespace {

using tokenizer::EncodeOptions;
using tokenizer::TextTokenizer;
using tokenizer::Tokens;

// One line on a terminal that is overwritten; nothing if stderr is not a terminal.
class StatusLine {
 public:
  ~StatusLine() {
    if (drawn_) draw("\r\033[K");
  }
  void show(const std::string& what) {
    if (!shown_ || std::chrono::steady_clock::now() < due_) return;
    due_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    draw("\r\033[K" + what);
    drawn_ = true;
  }

 private:
  bool shown_ = ::isatty(STDERR_FILENO) == 1, drawn_ = false;
  std::chrono::steady_clock::time_point due_{};
};

struct TokenizeArguments {
  std::string tokenizer, file = "-";
  bool decode = false, special = false, skip_special = false, plain = false, offsets = false, json = false;
};

Json row_of(const std::string& line, const Lines& lines) {
  Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object()) lines.fail("is not a JSON object");
  return row;
}

Json encoded(const TextTokenizer& tokenizer, const Json& row, const TokenizeArguments& arguments, const Lines& lines) {
  if (!row.contains("text") || !row["text"].is_string()) lines.fail("has no \"text\", which must be a string");
  EncodeOptions options{.special = arguments.special, .ranges = arguments.offsets};
  options.plain.all = arguments.plain;
  Tokens tokens;
  try {
    tokens = tokenizer.encode(row["text"].get_ref<const std::string&>(), options);
  } catch (const DataError& error) {
    lines.fail(error.what());
  }
  Json out{{"ids", std::move(tokens.ids)}};
  if (!arguments.offsets) return out;
  Json& offsets = out["offsets"] = Json::array();
  for (const tokenizer::SourceRange& range : tokens.ranges) offsets.push_back({range.begin, range.end});
  return out;
}

Json decoded(const TextTokenizer& tokenizer, const Json& row, const TokenizeArguments& arguments, const Lines& lines) {
  if (!row.contains("ids") || !row["ids"].is_array()) lines.fail("has no \"ids\", which must be a list");
  std::vector<std::int32_t> ids;
  for (const Json& id : row["ids"]) {
    const std::int64_t number = id.is_number_integer() ? id.get<std::int64_t>() : -1;
    if (number < 0 || number >= tokenizer.vocab_size() || !tokenizer.has(static_cast<std::int32_t>(number)))
      lines.fail(id.dump() + " is not an id of this tokenizer, which has " + std::to_string(tokenizer.vocab_size()));
    ids.push_back(static_cast<std::int32_t>(number));
  }
  return {{"text", tokenizer.decode(ids, arguments.skip_special)}};
}

int tokenize(const TokenizeArguments& arguments) {
  if (arguments.decode && (arguments.special || arguments.plain || arguments.offsets))
    throw UsageError("--special, --plain and --offsets have no effect with --decode");
  if (!arguments.decode && arguments.skip_special) throw UsageError("--skip-special needs --decode");
  const std::shared_ptr<const TextTokenizer> tokenizer = TextTokenizer::read(arguments.tokenizer);
  Lines lines(arguments.file);
  StatusLine status;
  Json rows = Json::array();
  std::string line;
  for (std::int64_t count = 0; lines.next(line); ++count) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json row = row_of(line, lines);
    Json out =
        arguments.decode ? decoded(*tokenizer, row, arguments, lines) : encoded(*tokenizer, row, arguments, lines);
    if (arguments.json)
      rows.push_back(std::move(out));
    else
      put("{}\n", out.dump());
    if (count % 64 == 0)
      status.show(fmt::format("{} rows, {:.1f} MB", count, static_cast<double>(lines.bytes()) / 1e6));
  }
  if (arguments.json) put_document({{"rows", std::move(rows)}});
  return kDone;
}

struct TrainArguments {
  std::string action, out;
  std::vector<std::string> files;
  tokenizer::TrainingOptions options;
  bool no_special = false;
};

void write_file(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  const Descriptor file = create_file(part);
  write_all(file, text.data(), text.size(), part);
  sync_file(file, part);
  std::error_code error;
  std::filesystem::rename(part, path, error);
  if (error) throw IoError(path + ": cannot be written: " + error.message());
}

int train_tokenizer(const TrainArguments& arguments) {
  tokenizer::TrainingOptions options = arguments.options;
  if (arguments.no_special) options.special.clear();
  tokenizer::BpeTraining training(options);
  std::error_code error;
  std::filesystem::create_directories(arguments.out, error);
  if (error) throw IoError(arguments.out + ": cannot be made: " + error.message());
  StatusLine status;
  std::int64_t bytes = 0;
  for (const std::string& path : arguments.files) {
    const MappedFile file(path);
    const std::size_t bad = tokenizer::first_not_utf8(file.text());
    if (bad != file.text().size()) throw DataError(path + ": offset " + std::to_string(bad) + ": is not UTF-8");
    for (std::size_t at = 0; at < file.text().size();) {
      constexpr std::size_t kBlock = 1 << 24;
      std::size_t end =
          file.text().size() - at > kBlock ? file.text().rfind('\n', at + kBlock) + 1 : file.text().size();
      if (end <= at) end = std::min(file.text().find('\n', at), file.text().size() - 1) + 1;
      training.add(file.text().substr(at, end - at));
      bytes += static_cast<std::int64_t>(end - at);
      at = end;
      status.show(fmt::format("read {:.1f} MB", static_cast<double>(bytes) / 1e6));
    }
  }
  if (bytes == 0) throw DataError(arguments.files.front() + ": there is no text to learn from");
  training.learn([&](std::int64_t tokens) { status.show(fmt::format("{} of {} tokens", tokens, options.vocab)); });
  write_file(arguments.out + "/tokenizer.json", training.tokenizer_json());
  write_file(arguments.out + "/tokenizer_config.json", training.config_json());
  const auto tokens = static_cast<std::int64_t>(training.tokens().size());
  if (tokens < options.vocab)
    say("{}: {} tokens, fewer than the {} asked for: no other pair occurs {} times\n", arguments.out, tokens,
        options.vocab, options.min_frequency);
  else
    say("{}: {} tokens from {:.1f} MB\n", arguments.out, tokens, static_cast<double>(bytes) / 1e6);
  return kDone;
}

}  // namespace

void add_tokenize(CommandLine& app, Work& work) {
  Subcommand* command = app.add_subcommand("tokenize", "text to token ids and back, by a tokenizer.json");
  auto arguments = std::make_shared<TokenizeArguments>();
  command->add_option("TOKENIZER", arguments->tokenizer, "a tokenizer.json, or a folder with one")
      ->required()
      ->type_name("");
  command
      ->add_option("FILE", arguments->file,
                   "a line of JSON for each text, {\"text\": …}, or with --decode {\"ids\": …}; -: stdin")
      ->capture_default_str()
      ->type_name("");
  command->add_flag("--decode", arguments->decode, "from ids to text");
  command->add_flag("--special", arguments->special, "adds the special tokens that the tokenizer puts around a text");
  command->add_flag("--plain", arguments->plain, "special tokens that are written in the text are text");
  command->add_flag("--offsets", arguments->offsets,
                    "also the bytes of the text that each id came from, as \"offsets\"");
  command->add_flag("--skip-special", arguments->skip_special, "with --decode: leaves special tokens out");
  command->add_flag("--json", arguments->json, "one document, {\"rows\": [...]}, in place of a line for each row");
  command->footer(
      "Examples:\n"
      "  echo '{\"text\": \"Hello world\"}' | trainer tokenize models/Qwen2.5-0.5B\n"
      "  trainer tokenize tokenizer.json texts.jsonl >ids.jsonl\n"
      "  trainer tokenize tokenizer.json ids.jsonl --decode --skip-special\n"
      "\n"
      "`trainer tokenizer train` makes a tokenizer from text.\n");
  command->callback([arguments, &work] { work = [arguments] { return tokenize(*arguments); }; });
}

void add_tokenizer(CommandLine& app, Work& work) {
  Subcommand* command = app.add_subcommand("tokenizer", "trains a byte-level BPE tokenizer");
  auto arguments = std::make_shared<TrainArguments>();
  tokenizer::TrainingOptions& options = arguments->options;
  command->add_option("ACTION", arguments->action, "train")->required()->one_of({"train"})->type_name("");
  command->add_option("FILES", arguments->files, "text files in UTF-8")->required()->type_name("");
  command->add_option("--output,-o", arguments->out, "the folder that gets tokenizer.json and tokenizer_config.json")
      ->required()
      ->type_name("DIR");
  command->add_option("--vocab", options.vocab, "tokens in all, the 256 bytes and the special tokens included")
      ->at_least(256)
      ->capture_default_str()
      ->type_name("N");
  command
      ->add_option("--pattern", options.pattern,
                   "how text is split into the pieces that merges stay within: that of a known tokenizer")
      ->one_of({"gpt2", "llama3", "qwen2", "qwen3.5", "tekken", "gpt4o"})
      ->capture_default_str()
      ->type_name("NAME");
  command->add_option("--special-token", options.special, "a special token, once for each; the first ends a text")
      ->one_value()
      ->capture_default_str()
      ->type_name("TOKEN");
  command->add_flag("--no-special", arguments->no_special, "without special tokens");
  command->add_option("--min-frequency", options.min_frequency, "pairs that are rarer are not merged")
      ->at_least(1)
      ->capture_default_str()
      ->type_name("N");
  command->footer(
      "Examples:\n"
      "  trainer tokenizer train --vocab 32768 data/*.txt -o tokenizers/mine\n"
      "  trainer tokenizer train --vocab 8192 --pattern llama3 --special-token '<|endoftext|>' book.txt -o book\n"
      "\n"
      "The result depends on the text alone: of pairs that are equally frequent the one with the smallest ids is "
      "merged first.\n");
  command->callback([arguments, &work] { work = [arguments] { return train_tokenizer(*arguments); }; });
}

}  // namespace trainer::tools
