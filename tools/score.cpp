// trainer score: the log-probability that a model gives to every token of given rows.
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/data/tokenizer.h"
#include "engine/tokenizer/text_tokenizer.h"
#include "engine/train/ranks.h"
#include "engine/train/row_groups.h"
#include "engine/train/score.h"
#include "tools/command.h"
#include "tools/lines.h"
#include "tools/model_text.h"
#include "tools/own_rank.h"

namespace trainer::tools {
namespace {

struct ScoreArguments : JobArguments {
  std::string rows, checkpoint;
};

/// Text to ids as the model was trained on them: with the special tokens that its tokenizer adds to a text.
std::function<std::vector<std::int32_t>(const std::string&)> encoder_of(const LoadedJob& loaded) {
  const DataJob& data = loaded.job.data;
  if (data.format == DataFormat::text && data.tokenizer == Tokenizer::bytes)
    return [](const std::string& text) { return data::BytesTokenizer().encode(text); };
  const std::optional<std::string> path = tokenizer_path(loaded);
  if (!path)
    throw DataError(
        "rows of text need a model folder with a tokenizer, or a job of `format: text` with `tokenizer: bytes` "
        "or the path of a tokenizer.json; give \"ids\"");
  const auto tokenizer = tokenizer::TextTokenizer::read(*path);
  return [tokenizer](const std::string& text) { return tokenizer->encode(text, {.special = true}).ids; };
}

/// Rows, and of each of their ids whether it counts: of a conversation those that the assistant says.
struct ReadRows {
  Rows ids;
  std::vector<std::vector<bool>> trained;
};

class RowReader {
 public:
  RowReader(const LoadedJob& loaded, const std::string& file) : loaded_(loaded), file_(file), lines_(file) {}

  ReadRows read() {
    ReadRows rows;
    for (std::string text; lines_.next(text);) {
      if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
      std::vector<bool> trained;
      rows.ids.push_back(ids_of(text, trained));
      trained.resize(rows.ids.back().size(), true);
      trained.front() = false;  // it has nothing before it
      rows.trained.push_back(std::move(trained));
    }
    if (rows.ids.empty()) throw DataError(file_ + ": has no rows");
    return rows;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { lines_.fail(why); }

  /// `trained` is filled for conversations.
  std::vector<std::int32_t> ids_of(const std::string& text, std::vector<bool>& trained) {
    const Json row = Json::parse(text, nullptr, false);
    if (row.is_discarded()) fail("no JSON");
    if (!row.is_object()) fail(R"(a row is a JSON object, as {"ids": [1, 2, 3]}, {"text": "…"} or {"messages": […]})");
    if (row.contains("ids")) return listed_ids(row["ids"]);
    if (row.contains("messages")) return ids_of_chat(text, trained);
    if (!row.contains("text")) fail(R"(the row has neither "ids" nor "text" nor "messages")");
    if (!row["text"].is_string()) fail(R"("text" is a string)");
    if (!encode_) encode_ = encoder_of(loaded_);
    std::vector<std::int32_t> ids = encode_(row["text"].get<std::string>());
    if (ids.empty()) fail("the text has no tokens");
    return ids;
  }

  std::vector<std::int32_t> ids_of_chat(const std::string& text, std::vector<bool>& trained) {
    if (!chat_) chat_ = chat_format_of(loaded_);
    try {
      chat::EncodedChat chat = chat_->encode(chat::Conversation::parse(text), chat::TrainOn::assistant);
      if (!chat.ids.empty()) {
        trained = std::move(chat.trained);
        return std::move(chat.ids);
      }
    } catch (const DataError& error) {
      fail(error.what());
    }
    fail("the template writes nothing for the row");
  }

  std::vector<std::int32_t> listed_ids(const Json& ids) const {
    if (!ids.is_array() || ids.empty()) fail(R"("ids" is a list of at least one token id)");
    std::vector<std::int32_t> out;
    for (const Json& id : ids) {
      if (!id.is_number_integer() || id < 0 || id > 2147483647)
        fail("an id is a whole number from 0 on, not " + id.dump());
      out.push_back(id.get<std::int32_t>());
    }
    return out;
  }

  const LoadedJob& loaded_;
  const std::string file_;
  Lines lines_;
  std::function<std::vector<std::int32_t>(const std::string&)> encode_;
  std::shared_ptr<const chat::ChatFormat> chat_;
};

Json row_json(const std::vector<std::int32_t>& ids, const std::vector<bool>& trained, std::span<const float> logprobs) {
  Json values = Json::array({nullptr});
  for (const float logprob : logprobs) values.push_back(logprob);
  return {{"ids", ids}, {"logprobs", std::move(values)}, {"trained", trained}};
}

int score_rows(const ScoreArguments& arguments) {
  if (const std::optional<int> code = run_as_ranks(arguments, Reads::weights)) return *code;
  OwnRank own = join_ranks(arguments, Reads::weights);
  LoadedJob& loaded = own.loaded;
  // The job of a model folder or a checkpoint is made up: the user did not ask for what it says.
  const Setting* compute = loaded.setting("precision.compute");
  const bool asked = compute != nullptr && (compute->from == Setting::From::command_line ||
                                            (compute->from == Setting::From::file && !arguments.is_made_up()));
  if (!asked) loaded.job.precision.compute = DType::f32;
  Json document{{"rows", Json::array()}};
  double total = 0;
  std::int64_t tokens = 0;
  abort_on_error(own.process.get(), [&] {
    const std::string weights = weights_of(arguments, loaded, arguments.checkpoint);
    const ReadRows read = RowReader(loaded, arguments.rows).read();
    const Rows& rows = read.ids;
    const std::vector<std::vector<std::size_t>> groups = groups_of_rows(loaded, rows);
    std::vector<std::optional<std::vector<float>>> scored(rows.size());  // those that wait for rows before them
    std::size_t next = 0;                                                // row to tell
    const auto tell = [&](std::size_t row, std::span<const float> logprobs) {
      const std::vector<bool>& trained = read.trained[row];
      for (std::size_t i = 0; i < logprobs.size(); ++i) {
        if (!trained[i + 1]) continue;
        total += static_cast<double>(logprobs[i]);
        ++tokens;
      }
      Json json = row_json(rows[row], trained, logprobs);
      if (arguments.json)
        document["rows"].push_back(std::move(json));
      else
        put("{}\n", json.dump());
    };
    for (const std::vector<std::size_t>& group : groups) {
      Rows some;
      for (const std::size_t row : group) some.push_back(rows[row]);
      set_batch_for_scoring(loaded, some);
      const CompiledJob compiled = compile_here(loaded, Purpose::score, own.threads);
      check_same_plan(own.process.get(), compiled.plan);
      if (&group == &groups.front()) check_ids(compiled, rows);  // all, before the first is told
      const auto take = [&](std::size_t i, std::span<const float> logprobs) {
        scored[group[i]].emplace(logprobs.begin(), logprobs.end());
        for (; next < rows.size() && scored[next]; scored[next++].reset()) tell(next, *scored[next]);
      };
      score(loaded, compiled, weights, some, take, {own.process.get(), own.threads, say_line});
    }
  });
  if (!speaks()) return kDone;
  const double perplexity = tokens > 0 ? std::exp(-total / static_cast<double>(tokens)) : std::nan("");
  document["perplexity"] = tokens > 0 ? Json(perplexity) : Json(nullptr);
  document["tokens"] = tokens;
  if (arguments.json)
    put_document(document);
  else
    say("perplexity {:.6g} over {} tokens\n", perplexity, tokens);
  return kDone;
}

}  // namespace

void add_score(CommandLine& app, Work& work) {
  Subcommand* command = app.add_subcommand("score", "log-probabilities of the tokens of given rows");
  auto arguments = std::make_shared<ScoreArguments>();
  arguments->or_checkpoint = true;
  command
      ->add_option("MODEL", arguments->path, "a job, a checkpoint, a model folder or a folder with an adapter of peft")
      ->required()
      ->type_name("");
  command
      ->add_option("FILE", arguments->rows,
                   R"(rows of JSON: {"ids": [1, 2, 3]}, {"text": "…"} or {"messages": […]}; -: from stdin)")
      ->required()
      ->type_name("");
  command->add_option("OVERRIDES", arguments->overrides, "key.path=value: replaces what the job says")->type_name("");
  command->add_flag("--json", arguments->json, "makes stdout one JSON document");
  add_checkpoint_option(*command, arguments->checkpoint);
  add_base_option(*command, *arguments);
  command->footer(
      "Examples:\n"
      "  trainer score models/Qwen2.5-0.5B rows.jsonl\n"
      "  trainer score runs/job/step-00000500 rows.jsonl --json\n"
      "  trainer score job.yaml rows.jsonl --checkpoint runs/other\n"
      "\n"
      "The weights are those of the folder or the checkpoint, and of a job those of its newest checkpoint. A "
      "checkpoint\n"
      "holds what its model is, and needs neither its job nor its folder.\n"
      "Text becomes ids by the model's tokenizer.json, with the special tokens that it adds to a text. Messages (with\n"
      "\"tools\" where there are) become ids by the chat template beside it; what the assistant says is trained.\n"
      "For each row a line {\"ids\": […], \"logprobs\": [null, …], \"trained\": [false, …]}: the natural logarithm of "
      "each\n"
      "id's probability given those before it. The perplexity of what is trained goes to stderr. It computes in f32, "
      "unless\n"
      "precision.compute says otherwise.\n");
  command->callback([arguments, &work] { work = [arguments] { return score_rows(*arguments); }; });
}

}  // namespace trainer::tools
