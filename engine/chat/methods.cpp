// Methods of texts.
#include <algorithm>
#include <map>

#include "engine/chat/filters.h"
#include "engine/chat/operators.h"
#include "engine/chat/python_text.h"
#include "engine/core/utf8.h"
#include "engine/tokenizer/unicode.h"

namespace trainer::chat {
namespace {

using Method = Value (*)(const Text& self, Arguments arguments, Budget& budget);

const Text& text_argument(const char* method, const Value& value) {
  value.require_defined();
  if (!value.text()) throw TemplateError(std::string(method) + " needs a str, not " + value.type_name());
  return *value.text();
}

std::int64_t integer_argument(const char* method, const Value& value, std::int64_t otherwise) {
  if (!is_given(value)) return otherwise;
  if (!value.as_integer()) throw TemplateError(std::string(method) + " needs a whole number, not " + value.type_name());
  return *value.as_integer();
}

template <bool left, bool right>
Value strip(const Text& self, Arguments arguments, Budget&) {
  const auto given = bind_arguments("strip", std::move(arguments), {"chars"});
  const std::string* chars = is_given(given[0]) ? &text_argument("strip", given[0]).bytes() : nullptr;
  const Kept kept = stripped(self.bytes(), left, right, chars);
  return self.part(kept.begin, kept.end);
}

template <Case wanted>
Value in_case(const Text& self, Arguments arguments, Budget&) {
  bind_arguments("a change of case", std::move(arguments), {});
  return with_case(self, wanted);
}

/// The part of the text that the arguments `start` and `end` name, in bytes.
Kept part_of(const char* method, const Text& self, const Value& start, const Value& end) {
  const std::string& bytes = self.bytes();
  const auto size = static_cast<std::int64_t>(count_characters(bytes));
  const auto place = [&](const Value& value, std::int64_t otherwise) {
    const std::int64_t at = integer_argument(method, value, otherwise);
    return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const std::int64_t given = integer_argument(method, start, 0);
  if (given > size) return {bytes.size() + 1, 0};
  return {offset_of_character(bytes, static_cast<std::size_t>(place(start, 0))),
          offset_of_character(bytes, static_cast<std::size_t>(place(end, size)))};
}

template <bool at_end>
Value has_affix(const Text& self, Arguments arguments, Budget& budget) {
  const char* name = at_end ? "endswith" : "startswith";
  const auto given = bind_arguments(name, std::move(arguments), {"affix", "start", "end"}, 1);
  const Kept part = part_of(name, self, given[1], given[2]);
  if (part.begin > part.end) return false;
  const std::string_view bytes = std::string_view(self.bytes()).substr(part.begin, part.end - part.begin);
  const auto matches = [&](const Value& affix) {
    const std::string& wanted = text_argument(name, affix).bytes();
    return at_end ? bytes.ends_with(wanted) : bytes.starts_with(wanted);
  };
  if (!given[0].list() || given[0].list()->kind != List::Kind::tuple) return matches(given[0]);
  const std::vector<Value> affixes = items_of(given[0], budget);
  return std::any_of(affixes.begin(), affixes.end(), matches);
}

template <bool at_end>
Value remove_affix(const Text& self, Arguments arguments, Budget&) {
  const auto given = bind_arguments("removeprefix", std::move(arguments), {"affix"}, 1);
  const std::string& affix = text_argument("removeprefix", given[0]).bytes();
  if (at_end) return self.part(0, self.size() - (self.bytes().ends_with(affix) ? affix.size() : 0));
  return self.part(self.bytes().starts_with(affix) ? affix.size() : 0, self.size());
}

template <bool last, bool raises>
Value find(const Text& self, Arguments arguments, Budget&) {
  const char* name = raises ? "index" : "find";
  const auto given = bind_arguments(name, std::move(arguments), {"part", "start", "end"}, 1);
  const std::string& wanted = text_argument(name, given[0]).bytes();
  const Kept part = part_of(name, self, given[1], given[2]);
  std::size_t at = std::string::npos;
  if (part.begin <= part.end) {
    const std::string_view bytes = std::string_view(self.bytes()).substr(0, part.end);
    at = last ? bytes.rfind(wanted) : bytes.find(wanted, part.begin);
    if (last && at != std::string::npos && at < part.begin) at = std::string::npos;
  }
  if (at == std::string::npos && raises) throw TemplateError("the text does not have what index looks for");
  if (at == std::string::npos) return std::int64_t{-1};
  return static_cast<std::int64_t>(count_characters(std::string_view(self.bytes()).substr(0, at)));
}

Value count(const Text& self, Arguments arguments, Budget&) {
  const auto given = bind_arguments("count", std::move(arguments), {"part"}, 1);
  const std::string& wanted = text_argument("count", given[0]).bytes();
  if (wanted.empty()) return static_cast<std::int64_t>(count_characters(self.bytes()) + 1);
  std::int64_t found = 0;
  for (std::size_t at = 0; (at = self.bytes().find(wanted, at)) != std::string::npos; at += wanted.size()) ++found;
  return found;
}

/// Parts between white space.
std::vector<Value> split_words(const Text& self, std::int64_t most, bool from_right) {
  std::vector<Value> out;
  Kept rest = stripped(self.bytes(), true, true);
  const std::string_view bytes = self.bytes();
  const auto space_at = [&](std::size_t at) {
    return stripped(bytes.substr(at, rest.end - at), true, false).begin != 0;
  };
  while (rest.begin < rest.end && most != 0) {
    --most;
    if (from_right) {
      std::size_t begin = rest.end;
      while (begin > rest.begin && !space_at(before_character(bytes, begin))) begin = before_character(bytes, begin);
      out.emplace_back(self.part(begin, rest.end));
      rest.end = rest.begin + stripped(bytes.substr(rest.begin, begin - rest.begin), false, true).end;
    } else {
      std::size_t end = rest.begin;
      while (end < rest.end && !space_at(end)) next_code_point(bytes, end);
      out.emplace_back(self.part(rest.begin, end));
      rest.begin = end + stripped(bytes.substr(end, rest.end - end), true, false).begin;
    }
  }
  // What is left keeps the white space at its far end.
  if (rest.begin < rest.end) out.emplace_back(from_right ? self.part(0, rest.end) : self.part(rest.begin, self.size()));
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

template <bool from_right>
Value split(const Text& self, Arguments arguments, Budget& budget) {
  const auto given = bind_arguments("split", std::move(arguments), {"sep", "maxsplit"});
  std::int64_t most = integer_argument("split", given[1], -1);
  budget.spend(self.size());
  if (!is_given(given[0])) return make_list(split_words(self, most, from_right));
  const std::string& separator = text_argument("split", given[0]).bytes();
  if (separator.empty()) throw TemplateError("split needs a separator that is not empty");
  std::vector<Value> out;
  std::size_t begin = 0, end = self.size();
  while (most-- != 0) {
    const std::string_view rest = std::string_view(self.bytes()).substr(begin, end - begin);
    const std::size_t at = from_right ? rest.rfind(separator) : rest.find(separator);
    if (at == std::string_view::npos) break;
    if (from_right) {
      out.emplace_back(self.part(begin + at + separator.size(), end));
      end = begin + at;
    } else {
      out.emplace_back(self.part(begin, begin + at));
      begin += at + separator.size();
    }
  }
  out.emplace_back(self.part(begin, end));
  if (from_right) std::reverse(out.begin(), out.end());
  return make_list(std::move(out));
}

template <bool last>
Value partition(const Text& self, Arguments arguments, Budget&) {
  const auto given = bind_arguments("partition", std::move(arguments), {"sep"}, 1);
  const Text& separator = text_argument("partition", given[0]);
  if (separator.empty()) throw TemplateError("partition needs a separator that is not empty");
  const std::size_t at = last ? self.bytes().rfind(separator.bytes()) : self.bytes().find(separator.bytes());
  if (at == std::string::npos)
    return last ? make_list({Text(), Text(), self}, List::Kind::tuple)
                : make_list({self, Text(), Text()}, List::Kind::tuple);
  const std::size_t behind = at + separator.size();
  return make_list({self.part(0, at), self.part(at, behind), self.part(behind, self.size())}, List::Kind::tuple);
}

Value split_lines(const Text& self, Arguments arguments, Budget& budget) {
  const auto given = bind_arguments("splitlines", std::move(arguments), {"keepends"});
  budget.spend(self.size());
  const bool keep = is_true(given[0]);
  std::vector<Value> out;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < self.size();) {
    const std::size_t before = at;
    const char32_t c = next_code_point(self.bytes(), at);
    const bool breaks = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!breaks) continue;
    if (c == '\r' && at < self.size() && self.bytes()[at] == '\n') ++at;
    out.emplace_back(self.part(begin, keep ? at : before));
    begin = at;
  }
  if (begin < self.size()) out.emplace_back(self.part(begin, self.size()));
  return make_list(std::move(out));
}

Value replace(const Text& self, Arguments arguments, Budget& budget) {
  const auto given = bind_arguments("replace", std::move(arguments), {"old", "new", "count"}, 2);
  const std::string& old = text_argument("replace", given[0]).bytes();
  const Text& with = text_argument("replace", given[1]);
  std::int64_t most = integer_argument("replace", given[2], -1);
  Text out;
  out.html = self.html;
  std::size_t done = 0;
  for (std::size_t at = 0; most != 0; --most) {
    at = self.bytes().find(old, at);
    if (at == std::string::npos) break;
    budget.spend(with.size() + 1);
    out.append(self, done, at);
    out.append(with);
    done = at + old.size();
    if (!old.empty()) {
      at = done;
      continue;
    }
    if (at == self.size()) break;
    next_code_point(self.bytes(), at);  // a place between any two characters
  }
  budget.spend(self.size());
  out.append(self, done, self.size());
  return out;
}

Value join(const Text& self, Arguments arguments, Budget& budget) {
  const auto given = bind_arguments("join", std::move(arguments), {"items"}, 1);
  given[0].require_defined();
  Text out;
  bool first = true;
  for (const Value& item : items_of(given[0], budget)) {
    if (!std::exchange(first, false)) append_text(out, self, budget);
    append_text(out, text_argument("join", item), budget);
  }
  return out;
}

/// -1: padding on the right; 1: on the left; 0: on both sides.
template <int side>
Value padded(const Text& self, Arguments arguments, Budget& budget) {
  const auto given = bind_arguments("padding", std::move(arguments), {"width", "fill"}, 1);
  const Text fill = is_given(given[1]) ? text_argument("padding", given[1]) : Text(" ");
  if (count_characters(fill.bytes()) != 1) throw TemplateError("padding needs a single character");
  const auto size = static_cast<std::int64_t>(count_characters(self.bytes()));
  const std::int64_t width = std::max(integer_argument("padding", given[0], 0), size), more = width - size;
  budget.spend(static_cast<std::size_t>(width));
  const std::int64_t left = side > 0 ? more : side < 0 ? 0 : more / 2 + (more & width & 1);
  Text out;
  for (std::int64_t i = 0; i < left; ++i) out.append(fill);
  out.append(self);
  for (std::int64_t i = left; i < more; ++i) out.append(fill);
  return out;
}

Value zero_filled(const Text& self, Arguments arguments, Budget& budget) {
  const auto given = bind_arguments("zfill", std::move(arguments), {"width"}, 1);
  const auto size = static_cast<std::int64_t>(count_characters(self.bytes()));
  const std::int64_t more = std::max<std::int64_t>(integer_argument("zfill", given[0], 0) - size, 0);
  budget.spend(static_cast<std::size_t>(more));
  const std::size_t sign = self.bytes().starts_with('-') || self.bytes().starts_with('+') ? 1 : 0;
  Text out = self.part(0, sign);
  out.append(std::string(static_cast<std::size_t>(more), '0'), self.origin(0));
  out.append(self, sign, self.size());
  return out;
}

/// Whether there are characters, and the predicate holds for all of them.
template <typename Holds>
Value all_characters(const Text& self, Arguments arguments, Holds holds) {
  bind_arguments("a test of characters", std::move(arguments), {});
  for (std::size_t at = 0; at < self.size();)
    if (!holds(next_code_point(self.bytes(), at))) return false;
  return !self.empty();
}

template <tokenizer::CategorySet set>
Value all_of(const Text& self, Arguments arguments, Budget&) {
  return all_characters(self, std::move(arguments), [](char32_t c) { return tokenizer::Categories::get().is(c, set); });
}

Value all_space(const Text& self, Arguments arguments, Budget&) {
  return all_characters(self, std::move(arguments), is_python_space);
}

template <bool upper>
Value all_in_case(const Text& self, Arguments arguments, Budget&) {
  bind_arguments("a test of case", std::move(arguments), {});
  const std::string other = with_case(self, upper ? Case::lower : Case::upper).bytes();
  return with_case(self, upper ? Case::upper : Case::lower).bytes() == self.bytes() && other != self.bytes();
}

Value format(const Text& self, Arguments arguments, Budget& budget) { return format_braces(self, arguments, budget); }

}  // namespace

Value text_method(const Value& text, const std::string& name, Budget& budget) {
  using tokenizer::Category;
  constexpr auto kDigits = tokenizer::categories(Category::Nd);
  static const std::map<std::string, Method, std::less<>> methods{
      {"strip", strip<true, true>},
      {"lstrip", strip<true, false>},
      {"rstrip", strip<false, true>},
      {"lower", in_case<Case::lower>},
      {"casefold", nullptr},
      {"upper", in_case<Case::upper>},
      {"title", in_case<Case::title>},
      {"capitalize", in_case<Case::capitalize>},
      {"swapcase", nullptr},
      {"startswith", has_affix<false>},
      {"endswith", has_affix<true>},
      {"removeprefix", remove_affix<false>},
      {"removesuffix", remove_affix<true>},
      {"find", find<false, false>},
      {"rfind", find<true, false>},
      {"index", find<false, true>},
      {"rindex", find<true, true>},
      {"count", count},
      {"split", split<false>},
      {"rsplit", split<true>},
      {"splitlines", split_lines},
      {"partition", partition<false>},
      {"rpartition", partition<true>},
      {"replace", replace},
      {"join", join},
      {"format", format},
      {"format_map", nullptr},
      {"center", padded<0>},
      {"ljust", padded<-1>},
      {"rjust", padded<1>},
      {"zfill", zero_filled},
      {"isdigit", all_of<kDigits>},
      {"isdecimal", all_of<kDigits>},
      {"isnumeric", all_of<tokenizer::kNumber>},
      {"isalpha", all_of<tokenizer::kLetter>},
      {"isalnum", all_of<tokenizer::kLetter | tokenizer::kNumber>},
      {"isspace", all_space},
      {"isupper", all_in_case<true>},
      {"islower", all_in_case<false>},
      {"encode", nullptr},
      {"expandtabs", nullptr},
      {"translate", nullptr},
      {"istitle", nullptr},
      {"isidentifier", nullptr},
      {"isprintable", nullptr},
      {"isascii", nullptr}};
  const auto found = methods.find(name);
  if (found == methods.end()) return {};
  if (found->second == nullptr) throw TemplateError("the method '" + name + "' of texts is not supported");
  return make_function(name, [text, method = found->second, &budget](Arguments arguments) {
    Value out = method(*text.text(), std::move(arguments), budget);
    budget.spend(out.text() != nullptr ? out.text()->size() : 1);
    return out;
  });
}

}  // namespace trainer::chat
