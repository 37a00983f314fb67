// Filters of texts and numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "engine/chat/filters.h"
#include "engine/chat/operators.h"
#include "engine/chat/python_text.h"
#include "engine/core/utf8.h"
#include "engine/tokenizer/unicode.h"

namespace trainer::chat {
namespace {

std::int64_t whole(const char* filter, const Value& value, std::int64_t otherwise) {
  if (!is_given(value)) return otherwise;
  if (!value.as_integer()) throw TemplateError(std::string("the filter ") + filter + " needs a whole number");
  return *value.as_integer();
}

Value call_method(const char* name, const Value& value, Arguments arguments, Budget& budget) {
  const Value method = text_method(to_text(value, budget), name, budget);
  return method.function()->call(std::move(arguments));
}

Value trim(const Value& value, Arguments arguments, Budget& budget) {
  const auto given = bind_filter("trim", std::move(arguments), {"chars"});
  return call_method("strip", value, {.positional = {given[0].is_undefined() ? Value(None{}) : given[0]}}, budget);
}

template <Case wanted>
Value in_case(const Value& value, Arguments arguments, Budget& budget) {
  bind_filter("of case", std::move(arguments), {});
  return with_case(to_text(value, budget), wanted);
}

Value replace(const Value& value, Arguments arguments, Budget& budget) {
  const auto given = bind_filter("replace", std::move(arguments), {"old", "new", "count"}, 2);
  Arguments texts{.positional = {to_text(given[0], budget), to_text(given[1], budget)}};
  if (is_given(given[2])) texts.positional.push_back(given[2]);
  return call_method("replace", value, std::move(texts), budget);
}

Value string(const Value& value, Arguments arguments, Budget& budget) {
  bind_filter("string", std::move(arguments), {});
  return to_text(value, budget);
}

Value safe(const Value& value, Arguments arguments, Budget& budget) {
  bind_filter("safe", std::move(arguments), {});
  Text text = to_text(value, budget);
  text.html = true;
  return text;
}

Value escape(const Value& value, Arguments arguments, Budget& budget) {
  bind_filter("escape", std::move(arguments), {});
  return escape_html(to_text(value, budget), budget);
}

Value center(const Value& value, Arguments arguments, Budget& budget) {
  const auto given = bind_filter("center", std::move(arguments), {"width"});
  return call_method("center", value, {.positional = {whole("center", given[0], 80)}}, budget);
}

Value indent(const Value& value, Arguments arguments, Budget& budget) {
  const auto given = bind_filter("indent", std::move(arguments), {"width", "first", "blank"});
  value.require_defined();
  if (!value.text()) throw TemplateError("the filter indent needs a str, not " + value.type_name());
  if (!given[0].text()) budget.spend(static_cast<std::size_t>(std::max<std::int64_t>(whole("indent", given[0], 4), 0)));
  const Text by =
      given[0].text()
          ? *given[0].text()
          : Text(std::string(static_cast<std::size_t>(std::max<std::int64_t>(whole("indent", given[0], 4), 0)), ' '));
  Text all = *value.text();
  all.append("\n", {});
  const Value lines = text_method(all, "splitlines", budget).function()->call({});
  Text out;
  if (is_true(given[1])) out.append(by);
  bool first = true;
  for (const Value& line : lines.list()->items) {
    if (!std::exchange(first, false)) {
      out.append("\n", {});
      if (is_true(given[2]) || !line.text()->empty()) {
        budget.spend(by.size());
        out.append(by);
      }
    }
    out.append(*line.text());
  }
  return out;
}

Value truncate(const Value& value, Arguments arguments, Budget& budget) {
  const auto given = bind_filter("truncate", std::move(arguments), {"length", "killwords", "end", "leeway"});
  if (!value.text()) throw TemplateError("the filter truncate needs a str, not " + value.type_name());
  const Text& text = *value.text();
  const std::int64_t most = whole("truncate", given[0], 255), leeway = whole("truncate", given[3], 5);
  const Text end = given[2].is_undefined() ? Text("...") : to_text(given[2], budget);
  const auto end_size = static_cast<std::int64_t>(count_characters(end.bytes()));
  if (most < end_size || leeway < 0) throw TemplateError("the filter truncate needs a length that its end fits in");
  const auto size = static_cast<std::int64_t>(count_characters(text.bytes()));
  if (size <= leeway || size - leeway <= most) return text;
  Text out = text.part(0, offset_of_character(text.bytes(), static_cast<std::size_t>(most - end_size)));
  if (const std::size_t space = out.bytes().rfind(' '); !is_true(given[1]) && space != std::string::npos)
    out = out.part(0, space);
  out.append(end);
  return out;
}

Value word_count(const Value& value, Arguments arguments, Budget& budget) {
  bind_filter("wordcount", std::move(arguments), {});
  const Text text = to_text(value, budget);
  std::int64_t words = 0;
  bool within = false;
  for (std::size_t at = 0; at < text.size();) {
    const bool part = tokenizer::is_word(next_code_point(text.bytes(), at));
    words += part && !within;
    within = part;
  }
  return words;
}

Value format(const Value& value, Arguments arguments, Budget& budget) {
  if (!arguments.named.empty() && !arguments.positional.empty())
    throw TemplateError("the filter format takes values by place or by name, not both");
  if (arguments.named.empty())
    return format_percent(to_text(value, budget), make_list(std::move(arguments.positional), List::Kind::tuple),
                          budget);
  auto dict = std::make_shared<Dict>();
  for (auto& [name, each] : arguments.named) dict->set(Value::text(name), std::move(each), budget);
  return format_percent(to_text(value, budget), Value(std::move(dict)), budget);
}

/// Of a text: what Python's int() or float() reads, white space around it and underscores between digits included.
std::optional<double> read_real(const std::string& text) {
  const Kept kept = stripped(text, true, true);
  std::string digits = text.substr(kept.begin, kept.end - kept.begin);
  for (std::size_t i = 1; i + 1 < digits.size(); ++i)
    if (digits[i] == '_' && digits[i - 1] != '_' && digits[i + 1] != '_') digits.erase(i, 1);
  if (digits.starts_with('+')) digits.erase(0, 1);
  if (digits.find('p') != std::string::npos || digits.find('x') != std::string::npos) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

Value to_integer(const Value& value, Arguments arguments, Budget&) {
  const auto given = bind_filter("int", std::move(arguments), {"default", "base"});
  if (is_given(given[1]) && whole("int", given[1], 10) != 10)
    throw TemplateError("the filter int is supported only for base 10");
  const Value otherwise = given[0].is_undefined() ? Value(std::int64_t{0}) : given[0];
  std::optional<double> real = value.as_real();
  if (value.as_integer()) return *value.as_integer();
  if (value.is_undefined()) value.require_defined();
  if (value.text()) {
    const Kept kept = stripped(value.text()->bytes(), true, true);
    std::string_view digits = std::string_view(value.text()->bytes()).substr(kept.begin, kept.end - kept.begin);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    std::int64_t out = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
    if (error == std::errc() && end == digits.data() + digits.size()) return out;
    real = read_real(value.text()->bytes());
  }
  if (!real || std::isnan(*real) || std::isinf(*real)) return otherwise;
  if (std::abs(*real) >= 9.2e18) throw TemplateError("whole numbers of more than 64 bits are not supported");
  return static_cast<std::int64_t>(*real);
}

Value to_real(const Value& value, Arguments arguments, Budget&) {
  const auto given = bind_filter("float", std::move(arguments), {"default"});
  value.require_defined();
  std::optional<double> real = value.as_real();
  if (value.text()) real = read_real(value.text()->bytes());
  return real ? Value(*real) : given[0].is_undefined() ? Value(0.0) : given[0];
}

Value round_number(const Value& value, Arguments arguments, Budget& budget) {
  const auto given = bind_filter("round", std::move(arguments), {"precision", "method"});
  value.require_defined();
  if (!value.as_real()) throw TemplateError("the filter round needs a number, not " + value.type_name());
  const std::int64_t digits = whole("round", given[0], 0);
  const std::string method = given[1].is_undefined() ? "common" : to_text(given[1], budget).bytes();
  if (digits < -300 || digits > 300) throw TemplateError("the filter round needs a precision within 300");
  if (method == "common") {
    if (value.as_integer() && digits >= 0) return *value.as_integer();
    if (value.as_integer())
      throw TemplateError("the filter round of a whole number is supported for digits behind the point");
    // To the nearest decimal, halves by the value's exact digits: as printf rounds.
    if (digits >= 0) {
      std::string text(400 + static_cast<std::size_t>(digits), '\0');
      const int size = std::snprintf(text.data(), text.size(), "%.*f", static_cast<int>(digits), *value.real());
      return std::strtod(text.substr(0, static_cast<std::size_t>(size)).c_str(), nullptr);
    }
    const double scale = std::pow(10.0, static_cast<double>(-digits));
    return std::nearbyint(*value.real() / scale) * scale;
  }
  if (method != "ceil" && method != "floor") throw TemplateError("the filter round knows common, ceil and floor");
  const double scale = std::pow(10.0, static_cast<double>(digits)), scaled = *value.as_real() * scale;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value absolute(const Value& value, Arguments arguments, Budget&) {
  bind_filter("abs", std::move(arguments), {});
  value.require_defined();
  if (value.as_integer()) return *value.as_integer() < 0 ? negated(value) : Value(*value.as_integer());
  if (!value.real()) throw TemplateError("the filter abs needs a number, not " + value.type_name());
  return std::abs(*value.real());
}

Value tojson(const Value& value, Arguments arguments, Budget& budget) {
  const auto given = bind_filter("tojson", std::move(arguments), {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ascii = is_true(given[0]), .sort_keys = is_true(given[3])};
  if (given[1].text())
    style.indent = given[1].text()->bytes();
  else if (is_given(given[1])) {
    const std::int64_t width = std::max<std::int64_t>(whole("tojson", given[1], 0), 0);
    budget.spend(static_cast<std::size_t>(width));
    style.indent = std::string(static_cast<std::size_t>(width), ' ');
  }
  if (is_given(given[2])) {
    const std::vector<Value> both = items_of(given[2], budget);
    if (both.size() != 2 || !both[0].text() || !both[1].text())
      throw TemplateError("the separators of tojson are two texts");
    style.item_separator = both[0].text()->bytes();
    style.key_separator = both[1].text()->bytes();
  }
  return to_json(value, style, budget);
}

}  // namespace

Filter text_filter(std::string_view name) {
  static const std::map<std::string_view, Filter> filters{{"abs", absolute},
                                                          {"capitalize", in_case<Case::capitalize>},
                                                          {"center", center},
                                                          {"e", escape},
                                                          {"escape", escape},
                                                          {"float", to_real},
                                                          {"format", format},
                                                          {"indent", indent},
                                                          {"int", to_integer},
                                                          {"lower", in_case<Case::lower>},
                                                          {"replace", replace},
                                                          {"round", round_number},
                                                          {"safe", safe},
                                                          {"string", string},
                                                          {"title", in_case<Case::title_of_jinja>},
                                                          {"tojson", tojson},
                                                          {"trim", trim},
                                                          {"truncate", truncate},
                                                          {"upper", in_case<Case::upper>},
                                                          {"wordcount", word_count}};
  const auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace trainer::chat
