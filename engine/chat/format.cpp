// Python's two ways to put values into a text, as far as templates use them.
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "engine/chat/operators.h"
#include "engine/chat/python_text.h"

namespace trainer::chat {
namespace {

constexpr int kMaxWidth = 1000;

/// [flags][width][.precision] of a directive.
struct Layout {
  bool left = false, zeros = false, plus = false, space = false, center = false, right = false;
  int width = 0, precision = -1;
};

int read_number(std::string_view text, std::size_t& at) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), value);
  if (error == std::errc::invalid_argument) return -1;
  if (error != std::errc() || value > kMaxWidth)
    throw TemplateError("a format with so large a number is not supported");
  at = static_cast<std::size_t>(end - text.data());
  return value;
}

Text padded(const Text& text, const Layout& layout, bool number) {
  const auto size = static_cast<int>(count_characters(text.bytes()));
  const int more = layout.width > size ? layout.width - size : 0;
  const auto spaces = [&](int count, char fill) { return std::string(static_cast<std::size_t>(count), fill); };
  Text out;
  if (layout.zeros && number && !layout.left) {
    const std::size_t sign =
        !text.empty() && std::string_view("+- ").find(text.bytes()[0]) != std::string::npos ? 1 : 0;
    out.append(text, 0, sign);
    out.append(spaces(more, '0'), text.origin(0));
    out.append(text, sign, text.size());
    return out;
  }
  const int before = layout.left ? 0 : layout.center ? more / 2 : more;
  out.append(spaces(before, ' '), {});
  out.append(text);
  out.append(spaces(more - before, ' '), {});
  return out;
}

std::string signed_number(std::string digits, const Layout& layout) {
  if (!digits.starts_with('-') && layout.plus) return "+" + digits;
  if (!digits.starts_with('-') && layout.space) return " " + digits;
  return digits;
}

std::string integer_text(std::int64_t value, char kind) {
  std::array<char, 80> buffer{};
  const int base = kind == 'x' || kind == 'X' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, base).ptr;
  std::string out(buffer.data(), end);
  if (kind == 'X')
    for (char& c : out) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return out;
}

std::string real_format(double value, char kind, int precision) {
  const std::string format = std::string("%.*") + (kind == '%' ? 'f' : kind);
  std::array<char, 1500> buffer{};
  const int size = std::snprintf(buffer.data(), buffer.size(), format.c_str(), precision < 0 ? 6 : precision,
                                 kind == '%' ? value * 100 : value);
  return std::string(buffer.data(), static_cast<std::size_t>(size)) + (kind == '%' ? "%" : "");
}

Text cut(Text text, int precision) {
  if (precision < 0) return text;
  return text.part(0, offset_of_character(text.bytes(), static_cast<std::size_t>(precision)));
}

/// A value by the letter of its directive. `strict`: of str.format, whose `d` takes no floats.
Text directive(const Value& value, char kind, const Layout& layout, bool strict, Budget& budget) {
  const Origin origin = value.origin;
  if (kind == 's') return padded(cut(to_text(value, budget), layout.precision), layout, false);
  if (kind == 'r') return padded(cut(repr(value, budget), layout.precision), layout, false);
  value.require_defined();
  if (std::string_view("dixXob").find(kind) != std::string_view::npos) {
    std::optional<std::int64_t> whole = value.as_integer();
    if (!whole && value.real() && !strict && (kind == 'd' || kind == 'i') && std::abs(*value.real()) < 9e18)
      whole = static_cast<std::int64_t>(*value.real());
    if (!whole)
      throw TemplateError(std::string("the format '") + kind + "' needs a whole number, not " + value.type_name());
    return padded(Text(signed_number(integer_text(*whole, kind), layout), origin), layout, true);
  }
  if (std::string_view("fFeEgG%").find(kind) != std::string_view::npos) {
    if (!value.as_real())
      throw TemplateError(std::string("the format '") + kind + "' needs a number, not " + value.type_name());
    return padded(Text(signed_number(real_format(*value.as_real(), kind, layout.precision), layout), origin), layout,
                  true);
  }
  throw TemplateError(std::string("the format '") + kind + "' is not supported");
}

// A field of "{field!kind:spec}"; numbers of positional values may be left out.
Value value_of(std::string_view field, const Arguments& arguments, std::size_t& automatic) {
  const std::size_t name_end = std::min(field.find_first_of(".["), field.size());
  if (name_end != field.size()) throw TemplateError("members within the fields of a format are not supported");
  std::size_t at = 0;
  const int number = read_number(field, at);
  if (number < 0 && !field.empty()) {
    for (const auto& [name, value] : arguments.named)
      if (name == field) return value;
    throw TemplateError("the format names a value that is not given");
  }
  const std::size_t index = number < 0 ? automatic++ : static_cast<std::size_t>(number);
  if (index >= arguments.positional.size()) throw TemplateError("not enough values for the format");
  return arguments.positional[index];
}

// What follows the colon; `kind` is what the field says, and is changed to what the spec or the value says.
Layout layout_of(std::string_view spec, const Value& value, char& kind) {
  Layout layout;
  std::size_t place = 0;
  for (; place < spec.size() && std::string_view("<>^+ 0").find(spec[place]) != std::string_view::npos; ++place) {
    layout.left |= spec[place] == '<';
    layout.right |= spec[place] == '>';
    layout.center |= spec[place] == '^';
    layout.zeros |= spec[place] == '0';
    layout.plus |= spec[place] == '+';
    layout.space |= spec[place] == ' ';
  }
  layout.width = std::max(read_number(spec, place), 0);
  if (place < spec.size() && spec[place] == '.') layout.precision = std::max(read_number(spec, ++place), 0);
  const bool number = value.as_integer() && !value.boolean();
  if (place < spec.size())
    kind = spec[place++];
  else if (number && kind == 's' && !spec.empty())
    kind = 'd';
  else if (value.real() && kind == 's' && layout.precision >= 0)
    kind = 'g';
  if (place != spec.size()) throw TemplateError("the format '" + std::string(spec) + "' is not supported");
  const bool text = kind == 's' || kind == 'r';
  if (text && !layout.right && !layout.center) layout.left = true;
  return layout;
}

}  // namespace

Text format_percent(const Text& format, const Value& values, Budget& budget) {
  const std::string& bytes = format.bytes();
  const bool tuple = values.list() && values.list()->kind == List::Kind::tuple;
  std::size_t used = 0;
  const auto next = [&]() -> Value {
    if (tuple ? used < values.list()->items.size() : used == 0)
      return tuple ? values.list()->items[used++] : (++used, values);
    throw TemplateError("not enough values for the format");
  };
  Text out;
  bool named = false;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t percent = std::min(bytes.find('%', at), bytes.size());
    out.append(format, at, percent);
    if ((at = percent) == bytes.size()) break;
    if (++at < bytes.size() && bytes[at] == '%') {
      out.append(format, at, at + 1);
      ++at;
      continue;
    }
    std::optional<Value> value;
    if (at < bytes.size() && bytes[at] == '(') {
      const std::size_t close = bytes.find(')', at);
      if (close == std::string::npos || !values.dict()) throw TemplateError("a format with names needs a dict");
      const Value* found = values.dict()->find(std::string_view(bytes).substr(at + 1, close - at - 1));
      if (found == nullptr) throw TemplateError("the format names what the dict does not have");
      value = *found;
      named = true;
      at = close + 1;
    }
    Layout layout;
    for (; at < bytes.size() && std::string_view("-0+ #").find(bytes[at]) != std::string_view::npos; ++at) {
      layout.left |= bytes[at] == '-';
      layout.zeros |= bytes[at] == '0';
      layout.plus |= bytes[at] == '+';
      layout.space |= bytes[at] == ' ';
      if (bytes[at] == '#') throw TemplateError("the flag '#' of a format is not supported");
    }
    layout.width = std::max(read_number(bytes, at), 0);
    if (at < bytes.size() && bytes[at] == '.') layout.precision = std::max(read_number(bytes, ++at), 0);
    if (at == bytes.size()) throw TemplateError("the format ends within a directive");
    budget.spend(static_cast<std::size_t>(layout.width) + 8);
    Text text = directive(value ? *value : next(), bytes[at++], layout, false, budget);
    budget.spend(text.size());
    out.append(text);
  }
  if (!named && (tuple ? used < values.list()->items.size()
                       : used == 0 && !values.dict() && !values.list() && !values.is_undefined()))
    throw TemplateError("not all values are used by the format");
  return out;
}

Text format_braces(const Text& format, const Arguments& arguments, Budget& budget) {
  const std::string& bytes = format.bytes();
  Text out;
  std::size_t automatic = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    out.append(format, at, brace);
    if ((at = brace) == bytes.size()) break;
    if (at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {
      out.append(format, at, at + 1);
      at += 2;
      continue;
    }
    const std::size_t close = bytes.find('}', at);
    if (bytes[at] == '}' || close == std::string::npos) throw TemplateError("the format has a single brace");
    const std::string_view field = std::string_view(bytes).substr(at + 1, close - at - 1);
    at = close + 1;
    const std::size_t colon = std::min(field.find(':'), field.size()), mark = std::min(field.find('!'), colon);
    const Value value = value_of(field.substr(0, mark), arguments, automatic);
    char kind = mark + 1 < colon && field[mark + 1] == 'r' ? 'r' : 's';
    const Layout layout = layout_of(field.substr(std::min(colon + 1, field.size())), value, kind);
    budget.spend(static_cast<std::size_t>(layout.width) + 8);
    const Text one = directive(value, kind, layout, true, budget);
    budget.spend(one.size());
    out.append(one);
  }
  return out;
}

}  // namespace trainer::chat
