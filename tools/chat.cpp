// trainer chat: a conversation with a model, a line of stdin for each message, the answer as it comes.
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/train/sampler.h"
#include "tools/command.h"
#include "tools/model_text.h"

namespace trainer::tools {
namespace {

constexpr std::int64_t kUsualContext = 4096;

struct ChatArguments : JobArguments {
  std::string checkpoint, system;
  std::int64_t context = 0, max_tokens = 512;
  Drawing drawing{.temperature = 0.7};
};

/// How much a conversation may hold: as asked, else as much as the model takes, up to a usual length.
void set_context(LoadedJob& loaded, std::int64_t asked) {
  const std::optional<std::int64_t> longest = longest_text(loaded);
  if (asked > 0 && longest && asked > *longest)
    throw UsageError(fmt::format("--context {}: the model's sequences have at most {} tokens", asked, *longest));
  loaded.job.data.seq_len = asked > 0 ? asked : std::min(kUsualContext, longest.value_or(kUsualContext));
}

class Chat {
 public:
  Chat(const ChatArguments& arguments, std::shared_ptr<const chat::ChatFormat> format, Sampler& sampler,
       std::int64_t classes)
      : arguments_(arguments),
        format_(std::move(format)),
        sampler_(sampler),
        vocabulary_(std::min(classes, format_->tokenizer().vocab_size())),
        shown_(::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1) {
    begin();
  }

  void run() {
    if (shown_) say("/new begins a new conversation; the end of input (Ctrl-D) ends\n");
    for (std::string line; ask(line);) {
      if (line == "/new")
        begin();
      else if (line.find_first_not_of(" \t\r") != std::string::npos)
        answer(line);
    }
    if (shown_) say("\n");
  }

 private:
  void begin() {
    conversation_ = {};
    if (!arguments_.system.empty()) conversation_.add("system", arguments_.system);
  }

  bool ask(std::string& line) const {
    if (shown_) say("> ");
    return static_cast<bool>(std::getline(std::cin, line));
  }

  /// A message that leaves no room for an answer is left out.
  void answer(const std::string& message) {
    const std::size_t before = conversation_.size();
    conversation_.add("user", message);
    std::vector<std::int32_t> ids = format_->prompt(conversation_);
    if (static_cast<std::int64_t>(ids.size()) >= sampler_.room()) {
      conversation_ = conversation_.first(before);
      if (!shown_ || before == 0)
        throw DataError(fmt::format("the conversation has {} tokens, and there is room for {}: --context N makes more",
                                    ids.size(), sampler_.room()));
      return say("the conversation would have {} tokens, and there is room for {}: /new begins a new one\n", ids.size(),
                 sampler_.room());
    }
    const std::size_t prompt = ids.size();
    const auto [text, ended] = generate(ids);
    conversation_.add("assistant", text);
    if (arguments_.json)
      put("{}\n",
          Json{{"role", "assistant"}, {"content", text}, {"tokens", ids.size() - prompt}, {"ended", ended}}.dump());
    else
      put("\n");
    flush_results();
  }

  /// Adds the answer to `ids`; its text, and whether the model ended it.
  std::pair<std::string, bool> generate(std::vector<std::int32_t>& ids) {
    tokenizer::StreamDecoder decoder(format_->shared_tokenizer(), /*skip_special=*/true);
    std::string text;
    const auto emit = [&](const std::string& more) {
      text += more;
      if (arguments_.json || more.empty()) return;
      put("{}", more);
      flush_results();
    };
    bool ended = false;
    for (std::int64_t made = 0; made < arguments_.max_tokens; ++made) {
      if (static_cast<std::int64_t>(ids.size()) > sampler_.room()) break;
      const std::span<const float> logits = sampler_.after(ids).first(static_cast<std::size_t>(vocabulary_));
      const std::int32_t id = draw(logits, arguments_.drawing, draws_++);
      ended = format_->is_stop(id);
      if (ended) break;
      ids.push_back(id);
      emit(decoder.add(id));
    }
    emit(decoder.finish());
    return {text, ended};
  }

  const ChatArguments& arguments_;
  const std::shared_ptr<const chat::ChatFormat> format_;
  Sampler& sampler_;
  const std::int64_t vocabulary_;
  const bool shown_;
  chat::Conversation conversation_;
  std::uint64_t draws_ = 0;
};

int chat_with(const ChatArguments& arguments) {
  LoadedJob loaded = arguments.load_to_run();
  const std::string weights = weights_of(arguments, loaded, arguments.checkpoint);
  const auto format = chat_format_of(loaded);
  set_context(loaded, arguments.context);
  const std::vector<CompiledJob> plans = plans_for_text(loaded);
  with_sampler(loaded, plans, weights, say_line,
               [&](Sampler& sampler) { Chat(arguments, format, sampler, *plans.front().classes).run(); });
  return kDone;
}

}  // namespace

void add_chat(CommandLine& app, Work& work) {
  Subcommand* command = app.add_subcommand("chat", "a conversation with a model");
  auto arguments = std::make_shared<ChatArguments>();
  arguments->or_checkpoint = true;
  arguments->add_to(*command);
  add_checkpoint_option(*command, arguments->checkpoint);
  add_base_option(*command, *arguments);
  command->add_option("--system", arguments->system, "a message of the system, which begins the conversation")
      ->type_name("TEXT");
  command->add_option("--max-tokens", arguments->max_tokens, "of an answer")
      ->at_least(1)
      ->capture_default_str()
      ->type_name("N");
  command
      ->add_option("--context", arguments->context,
                   "tokens that a conversation may have. Default: the model's sequence, up to 4096")
      ->at_least(1)
      ->type_name("N");
  add_drawing_options(*command, arguments->drawing);
  command->footer(
      "Examples:\n"
      "  trainer chat models/Qwen2.5-0.5B-Instruct\n"
      "  trainer chat runs/tuned --system 'You answer in one sentence.' --temperature 0\n"
      "  echo 'What is a tensor?' | trainer chat models/Qwen2.5-0.5B-Instruct --json\n"
      "\n"
      "Each line of stdin is a message; the chat template of the folder or checkpoint makes a prompt of the\n"
      "conversation, in which special tokens that a message has are text. Keys and values of what was said are kept.\n"
      "The answer ends where the model ends its turn. With --json it is a line {\"role\", \"content\", \"tokens\",\n"
      "\"ended\"}; `ended` is false where --max-tokens or the context ended it.\n");
  command->callback([arguments, &work] { work = [arguments] { return chat_with(*arguments); }; });
}

}  // namespace trainer::tools
