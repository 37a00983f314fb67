// How trained spans are found: by the template's marks, or as an assistant's turn without its generation prompt. Whole
// tokens are then marked.
#include "engine/chat/mask.h"

#include <algorithm>
#include <string_view>

namespace trainer::chat {
namespace {

/// Bytes [begin, end) of the text.
struct Span {
  std::size_t begin = 0, end = 0;
};

class Masker {
 public:
  Masker(const RenderedTurns& turns, const tokenizer::Tokens& tokens)
      : turns_(turns), text_(turns.text), tokens_(tokens) {}

  std::vector<bool> trained(TrainOn train_on) const {
    std::vector<Span> spans;
    if (train_on == TrainOn::all) {
      spans = {{0, text_.size()}};
    } else if (turns_.marked) {
      spans = marked(train_on == TrainOn::last);
    } else {
      for (std::size_t i = turns_.conversation.size(); i-- > 0;) {
        if (turns_.conversation.role(i) != "assistant") continue;
        add_turn(i, spans);
        if (train_on == TrainOn::last) break;
      }
    }
    std::vector<bool> out(tokens_.ids.size());
    for (const Span& span : spans)
      for (std::size_t i = first_token(span.begin); i < out.size() && tokens_.ranges[i].begin < span.end; ++i)
        out[i] = true;
    return out;
  }

 private:
  static bool is_of(const Origin& origin, std::size_t message) {
    return origin.turn == static_cast<std::int32_t>(message);
  }
  /// What the message says; its role may be a part of the template's markers.
  bool is_data_of(const Origin& origin, std::size_t message) const {
    return field_of(origin).message == static_cast<std::int32_t>(message) && field_of(origin).name != "role";
  }
  const Field& field_of(const Origin& origin) const {
    return turns_.conversation.fields()[static_cast<std::size_t>(origin.field)];
  }

  /// The first token that begins at `at` or behind it.
  std::size_t first_token(std::size_t at) const {
    const auto found = std::partition_point(tokens_.ranges.begin(), tokens_.ranges.end(),
                                            [&](const tokenizer::SourceRange& range) { return range.begin < at; });
    return static_cast<std::size_t>(found - tokens_.ranges.begin());
  }

  /// Runs between {% generation %} and its end; of the last turn that has any.
  std::vector<Span> marked(bool last) const {
    std::vector<Span> out;
    std::vector<std::int32_t> turns;
    std::size_t begin = 0;
    for (const Text::Run& run : text_.runs()) {
      if (run.origin.generated) {
        if (!out.empty() && out.back().end == begin && turns.back() == run.origin.turn) {
          out.back().end = run.end;
        } else {
          out.push_back({begin, run.end});
          turns.push_back(run.origin.turn);
        }
      }
      begin = run.end;
    }
    if (last && !out.empty()) {
      const std::int32_t turn = turns.back();
      std::size_t kept = turn == Origin::kNoTurn ? out.size() - 1 : out.size();
      if (turn != Origin::kNoTurn)
        while (kept > 0 && turns[kept - 1] == turn) --kept;
      out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(kept));
    }
    return out;
  }

  /// From the first byte of a message's turn to its last one, and the same of what the message itself says.
  void find_turn(std::size_t message, std::optional<Span>& turn, std::optional<Span>& data) const {
    std::size_t begin = 0;
    for (const Text::Run& run : text_.runs()) {
      const auto grow = [&](std::optional<Span>& span) {
        if (span)
          span->end = run.end;
        else
          span = Span{begin, run.end};
      };
      const bool own = is_data_of(run.origin, message);
      if (is_of(run.origin, message) || (own && run.origin.turn == Origin::kNoTurn)) {
        grow(turn);
        if (own) grow(data);
      }
      begin = run.end;
    }
  }

  void add_turn(std::size_t message, std::vector<Span>& spans) const {
    std::optional<Span> turn, data;
    find_turn(message, turn, data);
    if (!turn) return;  // the template leaves the message out
    const std::size_t begin = begin_of(message, *turn, data ? data->begin : turn->end);
    const std::size_t end = end_of({data ? std::max(data->end, begin) : begin, turn->end});
    // What stands in between and is another message's, or the template's at another one, is not the assistant's.
    const auto index = static_cast<std::int32_t>(message);
    std::size_t at = 0;
    for (const Text::Run& run : text_.runs()) {
      const Span part{std::max(at, begin), std::min(run.end, end)};
      at = run.end;
      const std::int32_t said_by = field_of(run.origin).message, during = run.origin.turn;
      const bool own =
          said_by == index || (said_by == Origin::kNoTurn && (during == index || during == Origin::kNoTurn));
      if (part.begin < part.end && own) spans.push_back(part);
    }
  }

  /// Behind what the generation prompt holds of the turn. `data`: where the message's own text begins.
  std::size_t begin_of(std::size_t message, const Span& turn, std::size_t data) const {
    const std::optional<Text> prompted = turns_.render(message, true);
    if (prompted && !prompted->empty() && prompted->size() <= turn.end && text_.bytes().starts_with(prompted->bytes()))
      return prompted->size();
    const std::vector<std::string> prompts = prompts_of(message, prompted);
    // A prompt as it is, within the template's words before the message's.
    const std::string_view bytes = std::string_view(text_.bytes()).substr(0, turn.end);
    for (const std::string& prompt : prompts)
      if (const std::size_t at = bytes.find(prompt, turn.begin); at != std::string_view::npos && at <= data)
        return at + prompt.size();
    // The same, except for white space around it.
    for (const std::string& prompt : prompts) {
      const Kept words = stripped(prompt, true, true);
      const std::string_view wanted = std::string_view(prompt).substr(words.begin, words.end - words.begin);
      const std::size_t at = wanted.empty() ? std::string_view::npos : bytes.find(wanted, turn.begin);
      if (at == std::string_view::npos || at > data) continue;
      std::size_t end = at + wanted.size();
      for (std::size_t i = words.end; i < prompt.size() && end < data && bytes[end] == prompt[i]; ++i) ++end;
      return end;
    }
    // As much of one as stands there, in whole tokens.
    std::size_t begin = turn.begin;
    for (const std::string& prompt : prompts) {
      std::size_t end = turn.begin;
      while (end - turn.begin < prompt.size() && end < data && bytes[end] == prompt[end - turn.begin]) ++end;
      if (const std::size_t next = first_token(end); next > 0 && tokens_.ranges[next - 1].end > end)
        end = tokens_.ranges[next - 1].begin;
      begin = std::max(begin, end);
    }
    return begin;
  }

  /// What a generation prompt adds to the messages before a turn, the longest reading first; where the template refuses
  /// those, to others of the conversation.
  std::vector<std::string> prompts_of(std::size_t message, std::optional<Text> prompted) const {
    std::size_t count = message;
    if (!prompted || message == 0)
      for (count = turns_.conversation.size(); count > 0; --count)
        if ((prompted = turns_.render(count, true))) break;
    if (!prompted) return {};
    // What it writes behind the last message's turn; or within it, where a template looks at the last message whether a
    // prompt is wanted.
    std::size_t behind = 0;
    for (const Text::Run& run : prompted->runs())
      if (run.origin.turn != Origin::kNoTurn) behind = run.end;
    std::vector<std::size_t> begins{behind};
    const std::optional<Text> bare = turns_.render(count, false);
    if (bare && prompted->bytes().starts_with(bare->bytes())) begins.push_back(bare->size());
    std::ranges::sort(begins);
    std::vector<std::string> out;
    for (const std::size_t begin : begins)
      if (begin < prompted->size()) out.push_back(prompted->bytes().substr(begin));
    return out;
  }

  /// Behind the token that ends a turn: the first one of those behind the message's text at which generation stops,
  /// else the last special one, else the last one that is no white space.
  std::size_t end_of(const Span& tail) const {
    std::size_t special = 0;
    for (std::size_t i = first_token(tail.begin); i < tokens_.ids.size() && tokens_.ranges[i].begin < tail.end; ++i) {
      if (turns_.is_stop(tokens_.ids[i])) return tokens_.ranges[i].end;
      if (turns_.is_special(tokens_.ids[i])) special = tokens_.ranges[i].end;
    }
    if (special != 0) return special;
    const std::string_view rest = std::string_view(text_.bytes()).substr(tail.begin, tail.end - tail.begin);
    return tail.begin + stripped(rest, false, true).end;
  }

  const RenderedTurns& turns_;
  const Text& text_;
  const tokenizer::Tokens& tokens_;
};

}  // namespace

std::vector<bool> trained_tokens(const RenderedTurns& turns, const tokenizer::Tokens& tokens, TrainOn train_on) {
  return Masker(turns, tokens).trained(train_on);
}

}  // namespace trainer::chat
