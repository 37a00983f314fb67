// Text whose bytes know where they came from: which message of a conversation, or the template's own words. Masks and
// the treatment of special tokens follow from that, so every operation keeps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::chat {

/// Where bytes came from.
struct Origin {
  static constexpr std::int32_t kNoTurn = -1;

  std::int32_t field = 0;       ///< an index into Fields; 0: the template's own words
  std::int32_t turn = kNoTurn;  ///< the message that the template was at when it wrote them
  bool generated = false;       ///< written between {% generation %} and {% endgeneration %}

  bool operator==(const Origin&) const = default;
};

/// UTF-8 in runs of one origin.
class Text {
 public:
  struct Run {
    std::size_t end;  ///< in bytes; it begins where the one before ends
    Origin origin;
  };

  Text() = default;
  explicit Text(std::string bytes, Origin origin = {});

  const std::string& bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  const std::vector<Run>& runs() const { return runs_; }

  void append(std::string_view bytes, Origin origin);
  void append(const Text& text) { append(text, 0, text.size()); }
  /// Bytes [begin, end) of another text. REQUIRES: begin <= end <= text.size().
  void append(const Text& text, std::size_t begin, std::size_t end);
  Text part(std::size_t begin, std::size_t end) const;
  /// The origin of the byte at `at`, or of the last one; of an empty text that of the template.
  Origin origin(std::size_t at) const;

  /// Sets the turn of bytes that have none.
  void set_turn(std::int32_t turn);
  void set_generated();

  bool html = false;  ///< what `safe` and `escape` return: text that is put beside it is escaped

 private:
  void add_run(std::size_t end, Origin origin);

  std::string bytes_;
  std::vector<Run> runs_;
};

/// Characters of UTF-8, whose offsets Python counts.
std::size_t count_characters(std::string_view text);
/// The byte offset of a character; text.size() for those behind the end.
std::size_t offset_of_character(std::string_view text, std::size_t index);
/// The byte offset of the character that ends before `at`. REQUIRES: at > 0.
std::size_t before_character(std::string_view text, std::size_t at);

/// What Python's str.isspace says of a character.
bool is_python_space(char32_t character);
/// The byte range that is left when white space, or any of the characters of `strip`, is taken from the ends.
struct Kept {
  std::size_t begin, end;
};
Kept stripped(std::string_view text, bool left, bool right, const std::string* strip = nullptr);

}  // namespace trainer::chat
