// The tokens of a template, with white space handled as Jinja does under trim_blocks and lstrip_blocks (transformers
// renders so). https://jinja.palletsprojects.com/en/stable/templates/#whitespace-control
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::chat {

/// A mistake at an offset of the template.
struct SyntaxError : std::runtime_error {
  SyntaxError(const std::string& what, std::size_t offset) : std::runtime_error(what), offset(offset) {}
  std::size_t offset;
};

struct Token {
  enum class Kind { data, print_begin, print_end, block_begin, block_end, name, text, integer, real, symbol, end };

  Kind kind = Kind::end;
  std::size_t offset = 0;
  std::string text = {};  ///< data, names, text and symbols; the digits of numbers
  std::int64_t integer = 0;
  double real = 0;

  bool is(std::string_view symbol) const { return kind == Kind::symbol && text == symbol; }
  bool is_name(std::string_view name) const { return kind == Kind::name && text == name; }
};

/// Line breaks as "\n", without the last one.
std::string normalized_template(std::string_view text);

/// REQUIRES: `text` is normalized, and UTF-8.
std::vector<Token> tokenize_template(std::string_view text);

}  // namespace trainer::chat
