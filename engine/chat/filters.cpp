// Filters by name, tests, and functions that every template has.
#include "engine/chat/filters.h"

#include <algorithm>
#include <array>
#include <map>

#include "engine/chat/operators.h"
#include "engine/chat/python_text.h"
#include "engine/core/printable.h"

namespace trainer::chat {
namespace {

constexpr std::int64_t kMaxRange = 100'000;  // as Jinja's sandbox has it

using Test = bool (*)(const Value& value, const std::vector<Value>& arguments, Budget& budget);

struct TestRecord {
  std::size_t arguments;
  Test holds;
};

template <Operator op>
bool compared(const Value& value, const std::vector<Value>& arguments, Budget& budget) {
  return compares(op, value, arguments[0], budget);
}

double remainder(const Value& value, const Value& divisor, Budget& budget) {
  return arithmetic(Operator::modulo, value, divisor, budget).as_real().value_or(-1);
}

bool in_case(const Value& value, const char* method, Budget& budget) {
  return is_true(text_method(to_text(value, budget), method, budget).function()->call({}));
}

bool is_same(const Value& a, const Value& b, Budget& budget) {
  if (a.type_name() != b.type_name()) return false;
  if (a.list() || a.dict() || a.loop() || a.function())
    return a.list() == b.list() && a.dict() == b.dict() && a.loop() == b.loop() && a.function() == b.function();
  return equal(a, b, budget);
}

bool is_sequence(const Value& value) {
  return value.is_undefined() || value.text() || value.dict() ||
         (value.list() && value.list()->kind < List::Kind::view);
}

const std::map<std::string_view, TestRecord>& tests() {
  using Values = const std::vector<Value>&;
  static const std::map<std::string_view, TestRecord> all{
      {"odd", {0, [](const Value& v, Values, Budget& b) { return remainder(v, Value(std::int64_t{2}), b) == 1; }}},
      {"even", {0, [](const Value& v, Values, Budget& b) { return remainder(v, Value(std::int64_t{2}), b) == 0; }}},
      {"divisibleby", {1, [](const Value& v, Values a, Budget& b) { return remainder(v, a[0], b) == 0; }}},
      {"defined", {0, [](const Value& v, Values, Budget&) { return !v.is_undefined(); }}},
      {"undefined", {0, [](const Value& v, Values, Budget&) { return v.is_undefined(); }}},
      {"filter", {0, [](const Value& v, Values, Budget&) { return v.text() && has_filter(v.text()->bytes()); }}},
      {"test", {0, [](const Value& v, Values, Budget&) { return v.text() && has_test(v.text()->bytes()); }}},
      {"none", {0, [](const Value& v, Values, Budget&) { return v.is_none(); }}},
      {"boolean", {0, [](const Value& v, Values, Budget&) { return v.boolean() != nullptr; }}},
      {"true", {0, [](const Value& v, Values, Budget&) { return v.boolean() && *v.boolean(); }}},
      {"false", {0, [](const Value& v, Values, Budget&) { return v.boolean() && !*v.boolean(); }}},
      {"integer", {0, [](const Value& v, Values, Budget&) { return v.integer() != nullptr; }}},
      {"float", {0, [](const Value& v, Values, Budget&) { return v.real() != nullptr; }}},
      {"number", {0, [](const Value& v, Values, Budget&) { return v.as_real().has_value(); }}},
      {"lower", {0, [](const Value& v, Values, Budget& b) { return in_case(v, "islower", b); }}},
      {"upper", {0, [](const Value& v, Values, Budget& b) { return in_case(v, "isupper", b); }}},
      {"string", {0, [](const Value& v, Values, Budget&) { return v.text() != nullptr; }}},
      {"mapping", {0, [](const Value& v, Values, Budget&) { return v.dict() != nullptr; }}},
      {"sequence", {0, [](const Value& v, Values, Budget&) { return is_sequence(v); }}},
      {"iterable", {0, [](const Value& v, Values, Budget&) { return is_iterable(v); }}},
      {"callable", {0, [](const Value& v, Values, Budget&) { return v.function() || v.is_undefined(); }}},
      {"sameas", {1, [](const Value& v, Values a, Budget& b) { return is_same(v, a[0], b); }}},
      {"escaped", {0, [](const Value& v, Values, Budget&) { return v.text() && v.text()->html; }}},
      {"in", {1, compared<Operator::in>}},
      {"==", {1, compared<Operator::equal>}},
      {"eq", {1, compared<Operator::equal>}},
      {"equalto", {1, compared<Operator::equal>}},
      {"!=", {1, compared<Operator::not_equal>}},
      {"ne", {1, compared<Operator::not_equal>}},
      {">", {1, compared<Operator::greater>}},
      {"gt", {1, compared<Operator::greater>}},
      {"greaterthan", {1, compared<Operator::greater>}},
      {">=", {1, compared<Operator::greater_equal>}},
      {"ge", {1, compared<Operator::greater_equal>}},
      {"<", {1, compared<Operator::less>}},
      {"lt", {1, compared<Operator::less>}},
      {"lessthan", {1, compared<Operator::less>}},
      {"<=", {1, compared<Operator::less_equal>}},
      {"le", {1, compared<Operator::less_equal>}}};
  return all;
}

Value make_range(Arguments arguments, Budget& budget) {
  std::vector<std::int64_t> bounds;
  for (const Value& value : arguments.positional) {
    value.require_defined();
    if (!value.as_integer()) throw TemplateError("range needs whole numbers, not " + value.type_name());
    bounds.push_back(*value.as_integer());
  }
  if (!arguments.named.empty() || bounds.empty() || bounds.size() > 3)
    throw TemplateError("range takes one to three whole numbers");
  const std::int64_t start = bounds.size() > 1 ? bounds[0] : 0, stop = bounds.size() > 1 ? bounds[1] : bounds[0];
  const std::int64_t step = bounds.size() > 2 ? bounds[2] : 1;
  if (step == 0) throw TemplateError("the step of range cannot be 0");
  std::vector<Value> items;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (std::ssize(items) == kMaxRange) throw TemplateError("range of more than 100000 numbers");
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  budget.spend(items.size());
  return make_list(std::move(items), List::Kind::range);
}

Value make_dict(Arguments arguments, Budget& budget) {
  if (arguments.positional.size() > 1) throw TemplateError("dict takes one value and named ones");
  auto dict = std::make_shared<Dict>();
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional.front();
    from.require_defined();
    if (from.dict()) {
      *dict = *from.dict();
      dict->message = Origin::kNoTurn;
    } else {
      for (const Value& pair : items_of(from, budget)) {
        const std::vector<Value> both = items_of(pair, budget);
        if (both.size() != 2) throw TemplateError("dict needs pairs");
        dict->set(both[0], both[1], budget);
      }
    }
  }
  for (auto& [name, value] : arguments.named) dict->set(Value::text(name), std::move(value), budget);
  return Value(std::move(dict));
}

Value date_text(Arguments arguments, const std::tm& now) {
  const auto given = bind_arguments("strftime_now", std::move(arguments), {"format"}, 1);
  if (!given[0].text()) throw TemplateError("strftime_now needs a format");
  const std::string& format = given[0].text()->bytes();
  if (format.size() > 200) throw TemplateError("the format of strftime_now is too long");
  std::array<char, 8192> buffer{};
  const std::size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &now);
  return Value::text(std::string_view(buffer.data(), size));
}

}  // namespace

std::vector<Value> bind_filter(const std::string& filter, Arguments arguments, std::initializer_list<const char*> names,
                               std::size_t required) {
  return bind_arguments("the filter " + filter, std::move(arguments), names, required);
}

Value apply_filter(const std::string& name, const Value& value, Arguments arguments, Budget& budget) {
  Filter filter = text_filter(name);
  if (filter == nullptr) filter = list_filter(name);
  if (filter == nullptr) throw TemplateError("the filter '" + printable(name) + "' is not supported");
  Value out = filter(value, std::move(arguments), budget);
  budget.spend(out.text() != nullptr ? out.text()->size() : 1);
  return out;
}

bool has_filter(std::string_view name) { return text_filter(name) != nullptr || list_filter(name) != nullptr; }

bool apply_test(const std::string& name, const Value& value, Arguments arguments, Budget& budget) {
  const auto found = tests().find(name);
  if (found == tests().end()) throw TemplateError("the test '" + printable(name) + "' is not supported");
  for (auto& [key, each] : arguments.named) arguments.positional.push_back(std::move(each));
  if (arguments.positional.size() != found->second.arguments)
    throw TemplateError("the test '" + name + "' takes " + std::to_string(found->second.arguments) + " arguments");
  budget.spend(1);
  return found->second.holds(value, arguments.positional, budget);
}

bool has_test(std::string_view name) { return tests().contains(name); }

Value global_function(std::string_view name, const std::tm& now, Budget& budget) {
  if (name == "range")
    return make_function("range", [&budget](Arguments arguments) { return make_range(std::move(arguments), budget); });
  if (name == "dict")
    return make_function("dict", [&budget](Arguments arguments) { return make_dict(std::move(arguments), budget); });
  if (name == "strftime_now")
    return make_function("strftime_now", [&now](Arguments arguments) { return date_text(std::move(arguments), now); });
  if (name == "raise_exception")
    return make_function("raise_exception", [&budget](Arguments arguments) -> Value {
      const auto given = bind_arguments("raise_exception", std::move(arguments), {"message"}, 1);
      throw Refusal("the template refuses the conversation: " + printable(to_text(given[0], budget).bytes()));
    });
  for (const char* left_out : {"lipsum", "cycler", "joiner"})
    if (name == left_out)
      return make_function(left_out, [left_out](Arguments) -> Value {
        throw TemplateError(std::string("the function ") + left_out + " is not supported");
      });
  return {};
}

}  // namespace trainer::chat
