// Any bytes as a chat template, and behind a zero byte as a conversation: an error that says so, or text whose runs
// cover it, whose fields are there, and that has a mask.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/chat/chat_template.h"
#include "engine/chat/mask.h"
#include "engine/core/error.h"
#include "engine/tokenizer/text.h"

namespace {

using namespace trainer::chat;

const Conversation& known() {
  static const Conversation conversation = Conversation::parse(
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": " é1 "}]},
      {"role": "assistant", "content": "a\nb", "reasoning": "r", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5, null, true]}}}]},
      {"role": "tool", "content": "{}"}, {"role": "assistant", "content": ""}], "tools": [{"type": "function", "function": {"name": "f"}}]})");
  return conversation;
}

void attempt(std::string_view text, const Conversation& conversation) {
  RenderOptions options{.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, .budget = 200'000};
  const auto chat_template = ChatTemplate::parse(text, "fuzz.jinja");
  const auto render = [&](std::size_t messages, bool prompt) -> std::optional<Text> {
    options.generation_prompt = prompt;
    try {
      return chat_template->render(conversation.first(messages), options);
    } catch (const trainer::DataError&) {
      return std::nullopt;
    }
  };
  const std::optional<Text> whole = render(conversation.size(), false);
  if (!whole) return;
  std::size_t end = 0;
  for (const Text::Run& run : whole->runs()) {
    if (run.end <= end || run.origin.field < 0 || run.origin.turn < -1) std::abort();
    if (static_cast<std::size_t>(run.origin.field) >= conversation.fields().size()) std::abort();
    if (run.origin.turn >= static_cast<std::int32_t>(conversation.size())) std::abort();
    end = run.end;
  }
  if (end != whole->size() || trainer::tokenizer::first_not_utf8(whole->bytes()) != whole->size()) std::abort();
  trainer::tokenizer::Tokens tokens;
  for (std::uint32_t at = 0; at < end; at += 3) {
    tokens.ids.push_back(whole->bytes()[at]);
    tokens.ranges.push_back({at, std::min<std::uint32_t>(at + 3, static_cast<std::uint32_t>(end))});
  }
  for (const TrainOn train_on : {TrainOn::assistant, TrainOn::last, TrainOn::all})
    for (const bool marked : {false, chat_template->marks_generation()})
      if (trained_tokens({conversation, *whole, marked, render, [](std::int32_t id) { return id == '<'; },
                          [](std::int32_t id) { return id == '>'; }},
                         tokens, train_on)
              .size() != tokens.ids.size())
        std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = all.find('\0');
  try {
    if (zero == std::string_view::npos)
      attempt(all, known());
    else
      attempt(all.substr(0, zero), Conversation::parse(all.substr(zero + 1)));
  } catch (const trainer::DataError&) {
  }
  return 0;
}
