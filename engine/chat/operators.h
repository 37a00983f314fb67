// What operators do, as Python does it.
#pragma once

#include "engine/chat/syntax.h"
#include "engine/chat/value.h"

namespace trainer::chat {

/// Of Operator::add to power. Raises TemplateError, for whole numbers beyond 64 bits too.
Value arithmetic(Operator op, const Value& a, const Value& b, Budget& budget);
bool compares(Operator op, const Value& a, const Value& b, Budget& budget);
Value negated(const Value& value);
/// `a ~ b`, and a + b of texts.
void append_text(Text& out, const Text& more, Budget& budget);

/// `container.name` and `container[key]`: undefined where there is none. Functions of values (`text.split`) are such
/// members; those that would change a value raise TemplateError.
Value member_of(const Value& container, const std::string& name, Budget& budget);
Value item_of(const Value& container, const Value& key, Budget& budget);
/// `container[start:stop:step]`; what is none is left out.
Value slice_of(const Value& container, const Value& start, const Value& stop, const Value& step, Budget& budget);

/// The method of a text, or undefined if there is none of that name.
Value text_method(const Value& text, const std::string& name, Budget& budget);

/// `format % values` and `format.format(…)`.
Text format_percent(const Text& format, const Value& values, Budget& budget);
Text format_braces(const Text& format, const Arguments& arguments, Budget& budget);

/// The arguments of a call in the order of the names; undefined where one is not given. Raises TemplateError for
/// others, and where one of the first `required` is not given.
std::vector<Value> bind_arguments(const std::string& function, Arguments arguments,
                                  std::initializer_list<const char*> names, std::size_t required = 0);

}  // namespace trainer::chat
