// Filters, tests and functions of templates: those of Jinja 3.1 and of transformers that chat templates use.
#pragma once

#include <ctime>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/value.h"

namespace trainer::chat {

/// `value | name(arguments)`. Raises TemplateError, for filters that are not supported too.
Value apply_filter(const std::string& name, const Value& value, Arguments arguments, Budget& budget);
bool has_filter(std::string_view name);

/// `value is name(arguments)`.
bool apply_test(const std::string& name, const Value& value, Arguments arguments, Budget& budget);
bool has_test(std::string_view name);

/// range, dict, raise_exception, strftime_now; undefined for other names. `namespace` is the interpreter's.
Value global_function(std::string_view name, const std::tm& now, Budget& budget);

/// What raise_exception of a template throws.
struct Refusal : TemplateError {
  using TemplateError::TemplateError;
};

using Filter = Value (*)(const Value& value, Arguments arguments, Budget& budget);
/// bind_arguments of a filter (operators.h).
std::vector<Value> bind_filter(const std::string& filter, Arguments arguments, std::initializer_list<const char*> names,
                               std::size_t required = 0);
/// Whether an argument is neither left out nor none.
inline bool is_given(const Value& value) { return !value.is_undefined() && !value.is_none(); }
/// The filters of each file; null if it has none of the name.
Filter text_filter(std::string_view name);
Filter list_filter(std::string_view name);

}  // namespace trainer::chat
