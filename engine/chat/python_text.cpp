// Writers for repr() and json.dumps(). They copy the origins of what they write and charge the budget for it.
#include "engine/chat/python_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "engine/core/utf8.h"
#include "engine/tokenizer/unicode.h"

namespace trainer::chat {
namespace {

constexpr int kMaxDepth = 100;

std::string hex(const char* format, char32_t character) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), format, static_cast<unsigned>(character));
  return text.data();
}

bool is_printable(char32_t character) {
  using tokenizer::Category;
  if (character == ' ') return true;
  constexpr auto kHidden = tokenizer::categories(Category::Cc, Category::Cf, Category::Cs, Category::Co, Category::Cn,
                                                 Category::Zl, Category::Zp, Category::Zs, Category::space_control);
  return !tokenizer::Categories::get().is(character, kHidden);
}

/// Calls put(bytes, character) for each character; text that is not UTF-8 is not there.
template <typename Put>
void each_character(const Text& text, Put put) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t character = next_code_point(text.bytes(), at);
    if (character == kNotUtf8) throw TemplateError("text that is not UTF-8");
    put(begin, at, character);
  }
}

class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}

  Text take() { return std::move(out_); }

  void put(std::string_view bytes, Origin origin) {
    budget_.spend(bytes.size());
    out_.append(bytes, origin);
  }

 protected:
  struct Level {
    explicit Level(int& depth) : depth_(depth) {
      if (++depth_ > kMaxDepth) throw TemplateError("lists or dicts are nested too deeply");
    }
    ~Level() { --depth_; }
    int& depth_;
  };

  Budget& budget_;
  Text out_;
  int depth_ = 0;
};

class ReprWriter : public Writer {
 public:
  using Writer::Writer;

  void write(const Value& value) {
    budget_.spend(1);
    const Origin origin = value.origin;
    if (value.is_undefined()) return put("Undefined", origin);
    if (value.is_none()) return put("None", origin);
    if (value.boolean()) return put(*value.boolean() ? "True" : "False", origin);
    if (value.integer()) return put(std::to_string(*value.integer()), origin);
    if (value.real()) return put(real_text(*value.real()), origin);
    if (value.text()) return quote(*value.text());
    if (value.dict()) return write_dict(*value.dict());
    if (!value.list() || value.list()->kind >= List::Kind::range)
      throw TemplateError("the text of a " + value.type_name() + " is not supported");
    write_list(*value.list());
  }

 private:
  void write_list(const List& list) {
    const Level level(depth_);
    const bool tuple = list.kind == List::Kind::tuple;
    put(tuple ? "(" : "[", list.origin);
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i != 0) put(", ", list.origin);
      write(list.items[i]);
    }
    put(tuple ? list.items.size() == 1 ? ",)" : ")" : "]", list.origin);
  }

  void write_dict(const Dict& dict) {
    const Level level(depth_);
    put("{", dict.origin);
    for (std::size_t i = 0; i < dict.entries.size(); ++i) {
      if (i != 0) put(", ", dict.origin);
      write(dict.entries[i].first);
      put(": ", dict.origin);
      write(dict.entries[i].second);
    }
    put("}", dict.origin);
  }

  void quote(const Text& text) {
    const bool apostrophe = text.bytes().find('\'') != std::string::npos;
    const char quote = apostrophe && text.bytes().find('"') == std::string::npos ? '"' : '\'';
    if (text.html) put("Markup(", text.origin(0));
    put(std::string(1, quote), text.origin(0));
    each_character(text, [&](std::size_t begin, std::size_t end, char32_t c) {
      const Origin origin = text.origin(begin);
      if (c == static_cast<unsigned char>(quote) || c == '\\') return put({c == '\\' ? "\\\\" : "\\'", 2}, origin);
      if (c == '\n') return put("\\n", origin);
      if (c == '\r') return put("\\r", origin);
      if (c == '\t') return put("\\t", origin);
      if (is_printable(c)) return put(std::string_view(text.bytes()).substr(begin, end - begin), origin);
      put(c < 0x100 ? hex("\\x%02x", c) : c < 0x10000 ? hex("\\u%04x", c) : hex("\\U%08x", c), origin);
    });
    put(std::string(1, quote), text.origin(text.size()));
    if (text.html) put(")", text.origin(text.size()));
  }
};

class JsonWriter : public Writer {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget)
      : Writer(budget), style_(style), separator_(style.item_separator.value_or(style.indent ? "," : ", ")) {}

  void write(const Value& value) {
    budget_.spend(1);
    const Origin origin = value.origin;
    if (value.is_none()) return put("null", origin);
    if (value.boolean()) return put(*value.boolean() ? "true" : "false", origin);
    if (value.integer()) return put(std::to_string(*value.integer()), origin);
    if (value.real()) return put(number(*value.real()), origin);
    if (value.text()) return quote(*value.text());
    if (value.dict()) return write_dict(*value.dict());
    if (value.is_undefined()) throw TemplateError(value.why_undefined() + ", and so cannot be written as JSON");
    if (!value.list() || value.list()->kind > List::Kind::tuple)
      throw TemplateError("a " + value.type_name() + " cannot be written as JSON");
    const Level level(depth_);
    const List& list = *value.list();
    put("[", list.origin);
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      begin_item(i, list.origin);
      write(list.items[i]);
    }
    end_items(list.items.size(), "]", list.origin);
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return real_text(value);
  }

  void begin_item(std::size_t index, Origin origin) {
    if (index != 0) put(separator_, origin);
    if (style_.indent) break_line(depth_, origin);
  }

  void end_items(std::size_t count, std::string_view close, Origin origin) {
    if (count != 0 && style_.indent) break_line(depth_ - 1, origin);
    put(close, origin);
  }

  void break_line(int levels, Origin origin) {
    put("\n", origin);
    for (int i = 0; i < levels; ++i) put(*style_.indent, origin);
  }

  void write_dict(const Dict& dict) {
    const Level level(depth_);
    std::vector<std::size_t> order(dict.entries.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (style_.sort_keys)
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return less(dict.entries[a].first, dict.entries[b].first, budget_);
      });
    put("{", dict.origin);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto& [key, value] = dict.entries[order[i]];
      begin_item(i, dict.origin);
      quote(key_text(key));
      put(style_.key_separator, dict.origin);
      write(value);
    }
    end_items(order.size(), "}", dict.origin);
  }

  static Text key_text(const Value& key) {
    if (key.text()) return *key.text();
    if (key.is_none()) return Text("null", key.origin);
    if (key.boolean()) return Text(*key.boolean() ? "true" : "false", key.origin);
    if (key.integer()) return Text(std::to_string(*key.integer()), key.origin);
    if (key.real()) return Text(number(*key.real()), key.origin);
    throw TemplateError("a " + key.type_name() + " cannot be a key of JSON");
  }

  void quote(const Text& text) {
    constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
    put("\"", text.origin(0));
    each_character(text, [&](std::size_t begin, std::size_t end, char32_t c) {
      const Origin origin = text.origin(begin);
      if (const std::size_t at = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : std::string_view::npos;
          at != std::string_view::npos)
        return put({'\\', kNames[at]}, origin);
      if (c >= 0x10000 && style_.ascii) {
        const char32_t rest = c - 0x10000;
        return put(hex("\\u%04x", 0xD800 + (rest >> 10)) + hex("\\u%04x", 0xDC00 + (rest & 0x3FF)), origin);
      }
      if (c < 0x20 || (style_.ascii && c >= 0x7F)) return put(hex("\\u%04x", c), origin);
      put(std::string_view(text.bytes()).substr(begin, end - begin), origin);
    });
    put("\"", text.origin(text.size()));
  }

  void put(std::string_view bytes, Origin origin) { Writer::put(bytes, origin); }
  void put(std::initializer_list<char> bytes, Origin origin) {
    Writer::put(std::string_view(bytes.begin(), bytes.size()), origin);
  }

  const JsonStyle& style_;
  const std::string separator_;
};

}  // namespace

Text to_text(const Value& value, Budget& budget) {
  if (value.text()) return *value.text();
  if (value.is_undefined()) return {};
  return repr(value, budget);
}

Text repr(const Value& value, Budget& budget) {
  ReprWriter writer(budget);
  writer.write(value);
  return writer.take();
}

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 64> buffer{};
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const std::size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(text);
  std::string digits(text.substr(0, e)), sign;
  if (digits[0] == '-') sign = "-", digits.erase(0, 1);
  if (digits.size() > 1) digits.erase(1, 1);
  if (exponent < 0) return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

Text to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.write(value);
  return writer.take();
}

Text escape_html(const Text& text, Budget& budget) {
  if (text.html) return text;
  Writer writer(budget);
  std::size_t done = 0;
  Text out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text.bytes()[at];
    const char* name = c == '&'    ? "&amp;"
                       : c == '<'  ? "&lt;"
                       : c == '>'  ? "&gt;"
                       : c == '"'  ? "&#34;"
                       : c == '\'' ? "&#39;"
                                   : nullptr;
    if (name == nullptr) continue;
    out.append(text, done, at);
    out.append(name, text.origin(at));
    done = at + 1;
  }
  out.append(text, done, text.size());
  budget.spend(out.size());
  out.html = true;
  return out;
}

}  // namespace trainer::chat
