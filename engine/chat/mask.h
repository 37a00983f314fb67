// What of a rendered conversation is trained: what the model has to generate. Of an assistant's turn that is everything
// that the generation prompt does not already hold, to the token that ends the turn; where the template marks it with
// {% generation %}, what it marks. It follows from where each byte came from, so stock templates need no change.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/chat/conversation.h"
#include "engine/chat/text.h"
#include "engine/tokenizer/bpe.h"

namespace trainer::chat {

/// Of the whole conversation: the turns of the assistant, the last of them, or all there is.
enum class TrainOn { assistant, last, all };

struct RenderedTurns {
  const Conversation& conversation;
  const Text& text;  ///< of the whole conversation
  bool marked;       ///< whether the template marks what is generated
  /// The text of the first messages with or without a generation prompt behind them; nothing where the template refuses
  /// them.
  std::function<std::optional<Text>(std::size_t messages, bool prompt)> render;
  /// Whether a token is special, and whether generation stops at it.
  std::function<bool(std::int32_t)> is_special, is_stop;
};

/// For each token of the text whether it is trained. A token is if its first byte is.
std::vector<bool> trained_tokens(const RenderedTurns& turns, const tokenizer::Tokens& tokens, TrainOn train_on);

}  // namespace trainer::chat
