// How a text keeps its origins: as runs of bytes that share one, merged where neighbours agree.
#include "engine/chat/text.h"

#include <algorithm>

#include "engine/core/utf8.h"
#include "engine/tokenizer/unicode.h"

namespace trainer::chat {

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) {
  if (!bytes_.empty()) runs_.push_back({bytes_.size(), origin});
}

void Text::add_run(std::size_t end, Origin origin) {
  if (!runs_.empty() && runs_.back().origin == origin)
    runs_.back().end = end;
  else
    runs_.push_back({end, origin});
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  bytes_.append(bytes);
  add_run(bytes_.size(), origin);
}

void Text::append(const Text& text, std::size_t begin, std::size_t end) {
  if (begin == end) return;
  const std::size_t base = bytes_.size();
  bytes_.append(text.bytes_, begin, end - begin);
  auto run = std::upper_bound(text.runs_.begin(), text.runs_.end(), begin,
                              [](std::size_t at, const Run& each) { return at < each.end; });
  for (std::size_t at = begin; at < end; at = run->end, ++run)
    add_run(base + std::min(run->end, end) - begin, run->origin);
}

Text Text::part(std::size_t begin, std::size_t end) const {
  Text out;
  out.append(*this, begin, end);
  out.html = html;
  return out;
}

Origin Text::origin(std::size_t at) const {
  if (runs_.empty()) return {};
  const auto run =
      std::upper_bound(runs_.begin(), runs_.end(), at, [](std::size_t at, const Run& each) { return at < each.end; });
  return run == runs_.end() ? runs_.back().origin : run->origin;
}

void Text::set_turn(std::int32_t turn) {
  for (Run& run : runs_)
    if (run.origin.turn == Origin::kNoTurn) run.origin.turn = turn;
}

void Text::set_generated() {
  for (Run& run : runs_) run.origin.generated = true;
}

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::size_t offset_of_character(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  for (; at < text.size(); ++at)
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80 && index-- == 0) break;
  return at;
}

std::size_t before_character(std::string_view text, std::size_t at) {
  do --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

bool is_python_space(char32_t character) {
  return tokenizer::is_space(character) || (character >= 0x1C && character <= 0x1F);
}

Kept stripped(std::string_view text, bool left, bool right, const std::string* strip) {
  const auto goes = [&](std::size_t begin, std::size_t end) {
    if (strip != nullptr) {
      // Whole characters: a search in UTF-8 never matches inside of a character.
      return strip->find(text.substr(begin, end - begin)) != std::string::npos;
    }
    std::size_t at = begin;
    return is_python_space(next_code_point(text, at));
  };
  Kept kept{0, text.size()};
  while (left && kept.begin < kept.end) {
    const std::size_t next = kept.begin + offset_of_character(text.substr(kept.begin), 1);
    if (!goes(kept.begin, next)) break;
    kept.begin = next;
  }
  while (right && kept.begin < kept.end) {
    const std::size_t before = before_character(text, kept.end);
    if (!goes(before, kept.end)) break;
    kept.end = before;
  }
  return kept;
}

}  // namespace trainer::chat
