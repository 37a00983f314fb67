// One pass over the lines, as a person reads them: blocks by their indents, braces and quotes inside a line. It need
// not be a parser, since it is asked only about texts that are wrong; it must be right about the first thing that is.
#include "engine/job/yaml_mistakes.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace trainer::yaml {
namespace {

constexpr std::string_view kNoBreakSpace = "\xC2\xA0";

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-'; }
bool is_blank(char c) { return c == ' ' || c == '\t'; }

/// A line without its end; `begin` is where it starts in the text, `indent` counts its blanks.
struct Line {
  std::size_t begin = 0, row = 0;
  std::string_view text;
  std::size_t indent = 0;

  std::string_view content() const { return text.substr(indent); }
  bool empty() const { return indent == text.size() || text[indent] == '#'; }
  bool is_item() const { return content() == "-" || content().starts_with("- "); }
};

std::vector<Line> lines_of(std::string_view text) {
  std::vector<Line> lines;
  for (std::size_t begin = 0, row = 0; begin <= text.size(); ++row) {
    std::size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) end = text.size();
    std::string_view line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::size_t indent = std::min(line.find_first_not_of(" \t"), line.size());
    lines.push_back({begin, row, line, indent});
    begin = end + 1;
  }
  return lines;
}

/// Where the key of a block line ends, which is its colon; npos if the line has none.
std::size_t colon_of(std::string_view content) {
  const char quote = content.empty() ? ' ' : content.front();
  std::size_t at = 0;
  if (quote == '"' || quote == '\'') at = content.find(quote, 1);
  for (; at < content.size(); ++at) {
    if (content[at] == '#' && at > 0 && is_blank(content[at - 1])) break;
    if (content[at] == ':' && (at + 1 == content.size() || is_blank(content[at + 1]))) return at;
  }
  return std::string_view::npos;
}

/// `steps:100`: the place of the colon; npos if the text is not so.
std::size_t tight_colon(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && is_word(text[at])) ++at;
  const bool tight =
      at > 0 && at + 1 < text.size() && text[at] == ':' && !is_blank(text[at + 1]) && text[at + 1] != '/';
  return tight ? at : std::string_view::npos;
}

class Reader {
 public:
  Reader(std::string_view text, std::size_t row) : text_(text), lines_(lines_of(text)), failed_(row) {}

  std::optional<Cause> cause() {
    std::size_t last = lines_.size();  // the last line that is not empty
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      const Line& line = lines_[i];
      if (line.empty() || skipped(line)) continue;
      if (const std::size_t tab = line.text.substr(0, line.indent).find('\t'); tab != std::string_view::npos)
        return Cause{line.begin + tab, "a tab; YAML indents with spaces"};
      if (open_.empty()) {
        if (auto cause = indent(line)) return cause;
        if (auto cause = block_line(line)) return cause;
        if (last < lines_.size()) before_ = last_;
        last_ = line;
        last = i;
      } else if (auto cause = begins_anew(line)) {
        return cause;
      }
      if (auto cause = inside(line)) return cause;
    }
    if (!open_.empty()) return never_closed();
    return {};
  }

 private:
  /// Lines of a block scalar (`text: |`) hold anything.
  bool skipped(const Line& line) {
    if (block_scalar_ && line.indent > block_indent_) return true;
    block_scalar_ = false;
    return false;
  }

  std::optional<Cause> never_closed() const {
    const char bracket = text_[open_.back()];
    return Cause{open_.back(),
                 std::string("this ") + bracket + " is never closed: " + (bracket == '{' ? '}' : ']') + " is missing"};
  }

  /// A line that looks like the next key of the section ends a brace that was left open.
  std::optional<Cause> begins_anew(const Line& line) const {
    if (line.indent > open_indent_ || line.row > failed_ + 1) return {};
    const std::size_t colon = colon_of(line.content());
    const bool key = colon != std::string_view::npos && std::ranges::all_of(line.content().substr(0, colon), is_word);
    return key ? never_closed() : std::nullopt;
  }

  std::optional<Cause> indent(const Line& line) {
    const bool deeper = !levels_.empty() && line.indent > levels_.back();
    if (deeper && has_value_ && !line.is_item()) {
      if (lost_indent(line))
        return Cause{last_.begin + last_.indent,
                     "this line has lost its indent: the next one belongs to the same section"};
      return Cause{line.begin + line.indent, "an indent deeper than that of the line above, which has a value already"};
    }
    former_ = levels_;
    while (!levels_.empty() && line.indent < levels_.back()) levels_.pop_back();
    if (levels_.empty() || line.indent > levels_.back()) {
      const bool strange = !former_.empty() && line.indent < former_.back();
      if (strange)
        return Cause{line.begin + line.indent,
                     "an indent that no line above has: keys of one section begin in one column"};
      levels_.push_back(line.indent);
    }
    // The keys of a section in a list stand behind its dash.
    std::size_t behind = line.indent;
    while (line.text.substr(behind).starts_with("- "))
      behind = std::min(line.text.find_first_not_of(' ', behind + 1), line.text.size());
    if (behind > line.indent) levels_.push_back(behind);
    return {};
  }

  /// The line before stands too far left: what follows it goes on where its own predecessor stood, or it is the first
  /// of a section. Where that first line is indented too, the indent that more lines of the file have is taken for the
  /// right one.
  bool lost_indent(const Line& line) const {
    const bool went_on = std::ranges::find(former_, line.indent) != former_.end();
    const bool first =
        section_above_ && (before_.indent == last_.indent || num_lines_at(last_.indent) < num_lines_at(line.indent));
    return last_.indent < line.indent && (went_on || first);
  }

  std::ptrdiff_t num_lines_at(std::size_t indent) const {
    return std::ranges::count_if(lines_, [&](const Line& line) { return !line.empty() && line.indent == indent; });
  }

  std::optional<Cause> block_line(const Line& line) {
    std::string_view content = line.content();
    std::size_t at = line.begin + line.indent;
    while (content.starts_with("- ")) {
      content.remove_prefix(2);
      at += 2;
      while (content.starts_with(' ')) content.remove_prefix(1), ++at;
    }
    const std::size_t colon = colon_of(content);
    section_above_ = last_section_;
    last_section_ = false;
    has_value_ = true;
    if (content.empty() || content == "-" || content.starts_with("---") || content.starts_with("...") ||
        content.front() == '%')
      return {};
    if (colon == std::string_view::npos) return line.is_item() ? std::nullopt : no_colon(line, content, at);
    std::string_view value = content.substr(colon + 1);
    while (!value.empty() && is_blank(value.front())) value.remove_prefix(1);
    if (value.empty() || value.front() == '#' || value.front() == '&' || value.front() == '!') {
      last_section_ = value.empty() || value.front() == '#';
      has_value_ = false;
      return {};
    }
    if (value.front() == '|' || value.front() == '>') {
      block_scalar_ = true;
      block_indent_ = line.indent;
      return {};
    }
    const bool plain = std::string_view("{[\"'").find(value.front()) == std::string_view::npos;
    if (const std::size_t second = plain ? colon_of(value) : std::string_view::npos;
        second != std::string_view::npos && line.row == failed_)
      return Cause{
          static_cast<std::size_t>(value.data() - text_.data()) + second,
          "a second `: ` in one line: a value with a colon needs quotes, and a section's keys their own lines"};
    return {};
  }

  /// A line of a section without `key: value`, where the parser gave up there or behind it.
  std::optional<Cause> no_colon(const Line& line, std::string_view content, std::size_t at) const {
    if (std::string_view("{[\"'").find(content.front()) != std::string_view::npos) return {};
    const bool near = line.row == failed_ || line.row + 1 == failed_ || next_row(line) == failed_;
    if (!near) return {};
    if (const std::size_t tight = tight_colon(content); tight != std::string_view::npos)
      return Cause{at + tight, "a space is missing after the colon"};
    if (last_.is_item()) return Cause{at, "an item of a list begins with `- `"};
    if (content.starts_with("//")) return Cause{at, "comments begin with #"};
    return Cause{at, "a colon is missing: a line of a section is `key: value`"};
  }

  std::size_t next_row(const Line& line) const {
    for (std::size_t i = line.row + 1; i < lines_.size(); ++i)
      if (!lines_[i].empty()) return i;
    return lines_.size();
  }

  /// Quotes, braces and brackets of a line.
  std::optional<Cause> inside(const Line& line) {
    std::size_t closed_at = std::string_view::npos;  // where the outermost brace of the line closed
    for (std::size_t i = line.indent; i < line.text.size(); ++i) {
      const char c = line.text[i];
      const std::size_t at = line.begin + i;
      const bool starts =
          i == line.indent || std::string_view(" \t[{,").find(line.text[i - 1]) != std::string_view::npos;
      if (c == '#' && (i == 0 || is_blank(line.text[i - 1]))) return {};
      if ((c == '"' || c == '\'') && starts) {
        const std::size_t end = closing_quote(line.text, i);
        if (end == std::string_view::npos)
          return Cause{at, std::string("this quote is not closed in its line: ") + c + " is missing"};
        i = end;
      } else if ((c == '{' || c == '[') && (starts || !open_.empty())) {
        if (i > 0 && line.text[i - 1] == ':') return Cause{at, "a space is missing after the colon"};
        if (open_.empty()) open_indent_ = line.indent;
        open_.push_back(at);
        entries_.push_back(false);
      } else if ((c == '}' || c == ']') && (!open_.empty() || closed_at != std::string_view::npos)) {
        if (open_.empty()) return Cause{at, std::string("a ") + c + " that closes nothing"};
        if (auto cause = close(c, at)) return cause;
        if (open_.empty()) closed_at = i;
      } else if (c == ',' && !entries_.empty()) {
        entries_.back() = false;
      } else if (c == ':' && !open_.empty() && text_[open_.back()] == '{' &&
                 (i + 1 == line.text.size() || is_blank(line.text[i + 1]))) {
        if (entries_.back()) return no_comma(line, i);
        entries_.back() = true;
      } else if (!open_.empty() && c == '/' && line.text.substr(i).starts_with("//") && starts && i == line.indent) {
        return Cause{at, "comments begin with #"};
      }
    }
    return {};
  }

  std::optional<Cause> close(char c, std::size_t at) {
    const char opened = text_[open_.back()];
    if ((opened == '{') != (c == '}'))
      return Cause{
          at, std::string("a ") + c + " where " + (opened == '{' ? '}' : ']') + " is needed: it closes a " + opened};
    open_.pop_back();
    entries_.pop_back();
    return {};
  }

  /// A second colon in one entry of a map: the word before it begins an entry of its own.
  static std::optional<Cause> no_comma(const Line& line, std::size_t colon) {
    std::size_t word = colon;
    while (word > 0 && is_word(line.text[word - 1])) --word;
    return Cause{line.begin + word,
                 "a comma is missing before \"" + std::string(line.text.substr(word, colon - word)) + "\""};
  }

  static std::size_t closing_quote(std::string_view text, std::size_t open) {
    for (std::size_t i = open + 1; i < text.size(); ++i) {
      if (text[open] == '"' && text[i] == '\\')
        ++i;
      else if (text[i] == text[open] && text[open] == '\'' && i + 1 < text.size() && text[i + 1] == '\'')
        ++i;
      else if (text[i] == text[open])
        return i;
    }
    return std::string_view::npos;
  }

  const std::string_view text_;
  const std::vector<Line> lines_;
  const std::size_t failed_;
  std::vector<std::size_t> levels_, former_;  ///< indents of the sections around a line, and around the line before
  std::vector<std::size_t> open_;             ///< braces and brackets that are not closed yet
  std::vector<bool> entries_;                 ///< of each: whether its current entry has a colon already
  std::size_t open_indent_ = 0;               ///< of the line that opened the outermost
  Line last_, before_;                        ///< the block line before, and the one before that
  bool has_value_ = false;                    ///< of the line before
  bool last_section_ = false, section_above_ = false;  ///< whether the line before (and the one before it) is `key:`
  bool block_scalar_ = false;
  std::size_t block_indent_ = 0;
};

}  // namespace

std::optional<Cause> misread(std::string_view text) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
    return Cause{0, "the file is UTF-16; save it as UTF-8"};
  for (const Line& line : lines_of(text))
    if (line.content().starts_with(kNoBreakSpace))
      return Cause{line.begin + line.indent, "a no-break space; YAML indents with spaces"};
  return {};
}

std::optional<Cause> cause_of_failure(std::string_view text, std::size_t row) { return Reader(text, row).cause(); }

}  // namespace trainer::yaml
