// Lines are found by memchr, elements of an array by counting brackets outside strings.
#include "engine/data/rows/text_rows.h"

#include <cstring>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/utf8.h"

namespace trainer::data {
namespace {

constexpr auto kMostBytes = static_cast<std::size_t>(kMostRowBytes);
const std::string kTooLong = "is longer than " + std::to_string(kMostRowBytes >> 20) + " MiB";

bool is_space(char byte) { return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// The first characters, as a message shows them.
std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 40;
  if (text.size() <= kShown) return "\"" + std::string(text) + "\"";
  const std::string_view start = text.substr(0, kShown);
  return "\"" + std::string(start.substr(0, whole_characters(start))) + "…\"";
}

class LineRows final : public Rows {
 public:
  LineRows(std::string path, Window window) : path_(std::move(path)), window_(std::move(window)) {}

  bool next(std::string& row) override {
    for (std::string_view line; next_line(line);) {
      const std::string_view object = trimmed(line);
      if (object.empty()) continue;
      if (object.front() != '{')
        fail("each line of JSONL is a JSON object, and this one begins with " + quoted(object));
      if (object.back() != '}') fail_open(object);
      row.assign(object);
      return true;
    }
    return false;
  }

  std::string place() const override { return path_ + ":" + std::to_string(line_); }
  std::int64_t bytes_read() const override { return window_.bytes_read(); }

 private:
  // The line is valid until the next call.
  bool next_line(std::string_view& line) {
    for (std::size_t searched = 0;;) {
      const std::string_view text = window_.text();
      const void* end =
          text.size() > searched ? std::memchr(text.data() + searched, '\n', text.size() - searched) : nullptr;
      if (end != nullptr) {
        line = text.substr(0, static_cast<std::size_t>(static_cast<const char*>(end) - text.data()));
        window_.take(line.size() + 1);
        break;
      }
      searched = text.size();
      if (searched <= kMostBytes && window_.more()) continue;
      line = window_.text();  // the last one, or one that is too long
      at_end_ = true;
      window_.take(line.size());
      if (line.empty()) return false;
      break;
    }
    ++line_;
    if (line.size() > kMostBytes) fail(kTooLong);
    return true;
  }

  [[noreturn]] void fail_open(std::string_view object) const {
    if (at_end_) fail("the object does not end: the file was cut off; copy it again");
    if (object.size() == 1) fail("the object goes on in the next line; JSONL has each object on one line");
    fail("each line of JSONL is a JSON object, and this one ends before its `}`");
  }

  [[noreturn]] void fail(const std::string& what) const { throw DataError(place() + ": " + what); }

  std::string path_;
  Window window_;
  std::int64_t line_ = 0;
  bool at_end_ = false;
};

class ArrayRows final : public Rows {
 public:
  ArrayRows(std::string path, Window window) : path_(std::move(path)), window_(std::move(window)) {
    skip_space();
    window_.take(1);  // [
  }

  bool next(std::string& row) override {
    if (closed_) return false;
    ++row_;
    char byte = skip_space();
    if (byte == ']' && row_ == 1) return close();
    if (byte != '{') fail_byte(byte, "an object {…} is expected here");
    const std::size_t length = object_length();
    if (length > kMostBytes) fail(kTooLong);
    if (window_.text()[length - 1] != '}') fail("a `]` stands where the object's `}` is expected");
    row.assign(window_.text().substr(0, length));
    window_.take(length);
    byte = skip_space();
    if (byte != ',' && byte != ']') fail_byte(byte, "`,` or `]` is expected after it");
    if (byte == ']') return close(), true;
    window_.take(1);
    return true;
  }

  std::string place() const override { return path_ + ": row " + std::to_string(row_); }
  std::int64_t bytes_read() const override { return window_.bytes_read(); }

 private:
  // The next byte that is not white space, which is not taken; 0 at the end.
  char skip_space() {
    do {
      const std::string_view text = window_.text();
      for (std::size_t at = 0; at < text.size(); ++at)
        if (!is_space(text[at])) return window_.take(at), text[at];
      window_.take(text.size());
    } while (window_.more());
    return '\0';
  }

  // Of the object that the window begins.
  std::size_t object_length() {
    std::size_t at = 0;
    std::int64_t depth = 0;
    bool in_string = false, escaped = false;
    do {
      const std::string_view text = window_.text();
      for (; at < text.size(); ++at) {
        const char byte = text[at];
        if (in_string) {
          if (escaped) {
            escaped = false;
          } else if (byte == '\\') {
            escaped = true;
          } else if (byte == '"') {
            in_string = false;
          }
        } else if (byte == '"') {
          in_string = true;
        } else if (byte == '{' || byte == '[') {
          ++depth;
        } else if ((byte == '}' || byte == ']') && --depth == 0) {
          return at + 1;
        }
      }
      if (at > kMostBytes) fail(kTooLong);
    } while (window_.more());
    fail("the object does not end: the file was cut off; copy it again");
  }

  // The array ends; nothing may follow.
  bool close() {
    window_.take(1);
    closed_ = true;
    if (skip_space() != '\0' || !window_.text().empty()) fail("text follows behind the array's end");
    return false;
  }

  [[noreturn]] void fail_byte(char byte, const std::string& expected) {
    if (byte == '\0' && window_.text().empty()) fail("the array does not end: the file was cut off; copy it again");
    fail(expected + ", and " + quoted(window_.text().substr(0, 16)) + " stands there");
  }

  [[noreturn]] void fail(const std::string& what) const { throw DataError(place() + ": " + what); }

  std::string path_;
  Window window_;
  std::int64_t row_ = 0;
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<Rows> line_rows(std::string path, Window window) {
  return std::make_unique<LineRows>(std::move(path), std::move(window));
}

std::unique_ptr<Rows> array_rows(std::string path, Window window) {
  return std::make_unique<ArrayRows>(std::move(path), std::move(window));
}

}  // namespace trainer::data
