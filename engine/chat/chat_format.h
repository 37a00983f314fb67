// ChatFormat: how a model is talked to: the tokenizer and chat template of its folder, as ids in and out.
//
//   const auto format = ChatFormat::of_folder("models/Qwen2.5-0.5B");
//   Conversation conversation;
//   conversation.add("user", "Hello");
//   ids = format->prompt(conversation);          // generate from here …
//   if (format->is_stop(id)) …                   // … to one of these
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/chat/chat_template.h"
#include "engine/chat/mask.h"
#include "engine/tokenizer/text_tokenizer.h"

namespace trainer::chat {

/// The ids that end a text of a model folder, ascending: of generation_config.json, config.json and the tokenizer's
/// eos_token. Raises DataError for files that are no JSON objects.
std::vector<std::int32_t> stop_ids_of_folder(const std::string& folder, const tokenizer::TextTokenizer& tokenizer);

/// The id that ends a text by itself, as a document: the tokenizer's eos_token, else the first one of config.json or
/// generation_config.json; nothing where no file says so.
std::optional<std::int32_t> end_of_text_of_folder(const std::string& folder, const tokenizer::TextTokenizer& tokenizer);

/// What the ids of a conversation depend on, apart from the tokenizer: the text of the files with templates and special
/// tokens, and today's date if a template writes it. If this is equal, so are the ids. It may be long.
std::string facts_of_folder(const std::string& folder, const std::string& file = {},
                            std::optional<std::tm> today = std::nullopt);

struct EncodedChat {
  std::vector<std::int32_t> ids;
  std::vector<bool> trained;                   ///< of each id; the first one is no target, whatever this says
  std::vector<tokenizer::SourceRange> ranges;  ///< of each id: its bytes of the text
  Text text;
};

class ChatFormat {
 public:
  /// Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json, generation_config.json, config.json and the
  /// chat templates: chat_template.jinja and chat_templates/*.jinja, or those of tokenizer_config.json or
  /// chat_template.json. A template with tools is that named "tool_use" where there is one. `file`: a template in place
  /// of the folder's; may be empty. `today`: what templates take for the date; the machine's where it is not given.
  /// Raises DataError, also where there is no template.
  static std::shared_ptr<const ChatFormat> of_folder(const std::string& folder, const std::string& file = {},
                                                     std::optional<std::tm> today = std::nullopt);

  /// The whole conversation. Special tokens that its messages, tools and variables have in them are text. Raises
  /// DataError.
  EncodedChat encode(const Conversation& conversation, TrainOn train_on) const;
  /// The conversation and what an answer of the assistant begins behind.
  std::vector<std::int32_t> prompt(const Conversation& conversation) const;
  Text prompt_text(const Conversation& conversation) const;

  /// The ids that end an answer, ascending: stop_ids_of_folder, and what the template ends the assistant's turn with.
  const std::vector<std::int32_t>& stop_ids() const { return stop_ids_; }
  bool is_stop(std::int32_t id) const;
  /// facts_of_folder.
  const std::string& facts() const { return facts_; }
  const tokenizer::TextTokenizer& tokenizer() const { return *tokenizer_; }
  std::shared_ptr<const tokenizer::TextTokenizer> shared_tokenizer() const { return tokenizer_; }

 private:
  ChatFormat() = default;
  void add_end_of_turn();
  const ChatTemplate& template_for(const Conversation& conversation) const;
  RenderOptions options(bool prompt) const;
  tokenizer::Tokens tokens_of(const Text& text, const Conversation& conversation) const;

  std::shared_ptr<const tokenizer::TextTokenizer> tokenizer_;
  std::shared_ptr<const ChatTemplate> template_, with_tools_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;
  std::vector<std::int32_t> stop_ids_;
  std::optional<std::tm> today_;
  std::string facts_;
};

}  // namespace trainer::chat
