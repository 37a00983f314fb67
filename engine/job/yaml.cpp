// What a scalar is (YAML 1.2's core schema) and how a tree is written on one line.
#include "engine/job/yaml.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "engine/core/check.h"

namespace trainer::yaml {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Reads digits from `text` at `at`, `_` allowed between two of them, into `out`; the position after them.
std::size_t take_digits(std::string_view text, std::size_t at, std::string& out) {
  while (at < text.size()) {
    if (is_digit(text[at])) {
      out += text[at++];
    } else if (text[at] == '_' && at > 0 && is_digit(text[at - 1]) && at + 1 < text.size() && is_digit(text[at + 1])) {
      ++at;
    } else {
      break;
    }
  }
  return at;
}

/// A decimal number without its `_`, and whether it is an integer by its form. Nothing if `text` is no number.
struct Decimal {
  std::string digits;
  bool integer = true;
};

std::optional<Decimal> as_decimal(std::string_view text) {
  Decimal number;
  std::size_t at = 0;
  if (at < text.size() && (text[at] == '-' || text[at] == '+')) {
    if (text[at] == '-') number.digits += '-';
    ++at;
  }
  const std::size_t sign = number.digits.size();
  at = take_digits(text, at, number.digits);
  bool any = number.digits.size() > sign;
  if (at < text.size() && text[at] == '.') {
    number.integer = false;
    if (!any) number.digits += '0';
    number.digits += '.';
    const std::size_t before = number.digits.size();
    at = take_digits(text, at + 1, number.digits);
    any = any || number.digits.size() > before;
    if (number.digits.size() == before) number.digits += '0';
  }
  if (!any) return std::nullopt;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    number.integer = false;
    number.digits += 'e';
    if (++at < text.size() && (text[at] == '-' || text[at] == '+')) number.digits += text[at++];
    const std::size_t before = number.digits.size();
    while (at < text.size() && is_digit(text[at])) number.digits += text[at++];
    if (number.digits.size() == before) return std::nullopt;
  }
  if (at != text.size()) return std::nullopt;
  return number;
}

/// 0o17 or 0x1F: the digits and their base; nothing if the text is neither.
std::optional<std::pair<std::string_view, int>> as_based(std::string_view text) {
  if (text.size() < 3 || text[0] != '0') return std::nullopt;
  const int base = text[1] == 'o' ? 8 : text[1] == 'x' ? 16 : 0;
  const std::string_view allowed = base == 8 ? "01234567" : "0123456789abcdefABCDEF";
  if (base == 0 || text.substr(2).find_first_not_of(allowed) != std::string_view::npos) return std::nullopt;
  return std::pair{text.substr(2), base};
}

std::optional<double> as_special(std::string_view text) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const bool negative = !text.empty() && text[0] == '-';
  const std::string_view rest = !text.empty() && (text[0] == '-' || text[0] == '+') ? text.substr(1) : text;
  if (rest == ".inf" || rest == ".Inf" || rest == ".INF") return negative ? -infinity : infinity;
  if (text == ".nan" || text == ".NaN" || text == ".NAN") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

template <typename... Names>
bool is_one_of(std::string_view text, Names... names) {
  return ((text == std::string_view(names)) || ...);
}

/// Whether a plain scalar may stand unquoted inside `[…]` and `{…}` and on one line.
bool flow_safe(std::string_view text) {
  if (text.empty() || text.front() == ' ' || text.back() == ' ' || text.back() == ':') return false;
  if (std::string_view("-?:,[]{}#&*!|>'\"%@`").find(text.front()) != std::string_view::npos) {
    // `-1`, `-x` are scalars; `-` and `- x` are not.
    if (text.front() != '-' || text.size() < 2 || text[1] == ' ' || text[1] == '-') return false;
  }
  if (is_one_of(text, "...", "<<")) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c >= 0x7F || std::string_view(",[]{}\"?").find(text[i]) != std::string_view::npos) return false;
    if (c == ':' || (c == '#' && text[i - 1] == ' ')) return false;
  }
  return true;
}

std::string quote(std::string_view text) {
  constexpr std::string_view hex = "0123456789ABCDEF";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += "\\x";
      out += hex[byte >> 4];
      out += hex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

/// YAML lets a key without `?` have 1024 characters; escapes take up to four.
constexpr std::size_t kLongestImplicitKey = 250;

/// Appends `node` in flow style, giving up once `out` is longer than `limit`.
void write(const Node& node, std::size_t limit, std::string& out) {
  if (out.size() > limit) return;
  if (node.is_scalar()) {
    const bool plain = !node.quoted && (node.text.empty() || flow_safe(node.text));
    out += plain ? (node.text.empty() ? "null" : node.text) : quote(node.text);
    return;
  }
  out += node.is_sequence() ? '[' : '{';
  for (std::size_t i = 0; i < node.items.size() && out.size() <= limit; ++i) {
    if (i > 0) out += ", ";
    if (node.is_mapping()) {
      if (node.keys[i].text.size() > kLongestImplicitKey) out += "? ";
      write(node.keys[i], limit, out);
      out += ": ";
    }
    write(node.items[i], limit, out);
  }
  out += node.is_sequence() ? ']' : '}';
}

}  // namespace

Source::Source(std::string source_name, std::string source_text)
    : name(std::move(source_name)), text(std::move(source_text)), starts{0} {
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] == '\n') starts.push_back(i + 1);
}

std::string Source::line(int number) const {
  if (number < 1 || static_cast<std::size_t>(number) > starts.size()) return {};
  const std::size_t begin = starts[static_cast<std::size_t>(number) - 1];
  std::size_t end = std::min(text.find('\n', begin), text.size());
  if (end > begin && text[end - 1] == '\r') --end;
  return text.substr(begin, end - begin);
}

bool Node::is_null() const { return is_scalar() && !quoted && is_one_of(text, "", "~", "null", "Null", "NULL"); }

std::optional<bool> Node::as_bool() const {
  if (!is_scalar() || quoted) return std::nullopt;
  if (is_one_of(text, "true", "True", "TRUE")) return true;
  if (is_one_of(text, "false", "False", "FALSE")) return false;
  return std::nullopt;
}

bool Node::looks_integer() const {
  if (!is_scalar() || quoted) return false;
  if (as_based(text)) return true;
  const std::optional<Decimal> number = as_decimal(text);
  return number && number->integer;
}

std::optional<std::int64_t> Node::as_integer() const {
  if (!is_scalar() || quoted) return std::nullopt;
  std::int64_t value = 0;
  const auto read = [&value](std::string_view digits, int base) -> std::optional<std::int64_t> {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    return value;
  };
  if (const auto based = as_based(text)) return read(based->first, based->second);
  const std::optional<Decimal> number = as_decimal(text);
  if (!number || !number->integer) return std::nullopt;
  return read(number->digits, 10);
}

std::optional<double> Node::as_number() const {
  if (!is_scalar() || quoted) return std::nullopt;
  if (const auto special = as_special(text)) return special;
  if (const auto based = as_based(text)) {
    double value = 0;
    for (const char c : based->first) value = value * based->second + (is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    return value;
  }
  const std::optional<Decimal> number = as_decimal(text);
  if (!number) return std::nullopt;
  double value = 0;
  const char* end = number->digits.data() + number->digits.size();
  // Beyond the range of a double strtod gives 0 or infinity, where from_chars gives nothing.
  if (std::from_chars(number->digits.data(), end, value).ec != std::errc())
    value = std::strtod(number->digits.c_str(), nullptr);
  return value;
}

std::optional<std::string> Node::as_string() const {
  if (!is_scalar()) return std::nullopt;
  if (quoted) return text;
  if (is_null() || as_bool() || as_number()) return std::nullopt;
  return text;
}

const Node* Node::find(std::string_view key) const {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].text == key) return &items[i];
  }
  return nullptr;
}

const Node* Node::find_key(std::string_view key) const {
  for (const Node& node : keys) {
    if (node.text == key) return &node;
  }
  return nullptr;
}

std::string Node::brief() const {
  constexpr std::size_t kLimit = 60;
  std::string out;
  write(*this, kLimit, out);
  if (out.size() <= kLimit) return out;
  std::size_t end = kLimit;
  while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xC0) == 0x80) --end;  // not within a code point
  return out.substr(0, end) + "…";
}

std::string Node::flow() const {
  std::string out;
  write(*this, std::numeric_limits<std::size_t>::max(), out);
  return out;
}

const std::string& Node::file() const {
  CHECK(source != nullptr, "a node without a source has no file");
  return source->name;
}

Diagnostic Node::at(std::string path, std::string message, std::string allowed) const {
  Diagnostic diagnostic;
  diagnostic.path = std::move(path);
  diagnostic.message = std::move(message);
  diagnostic.allowed = std::move(allowed);
  diagnostic.line = line;
  diagnostic.column = column;
  if (source == nullptr) return diagnostic;
  diagnostic.file = source->name;
  // A line that does not fit a terminal is no help.
  std::string text = line > 0 ? source->line(line) : source->text;
  if (text.size() <= 200) diagnostic.source = std::move(text);
  return diagnostic;
}

}  // namespace trainer::yaml
