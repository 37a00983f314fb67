// Members, items and slices.
#include <algorithm>
#include <array>

#include "engine/chat/operators.h"
#include "engine/chat/python_text.h"

namespace trainer::chat {
namespace {

std::string quoted(std::string_view name) { return "'" + std::string(name.substr(0, 80)) + "'"; }

Value pair_of(const Value& first, const Value& second) { return make_list({first, second}, List::Kind::tuple); }

[[noreturn]] void fail_change(const std::string& method) {
  throw TemplateError("'" + method + "' would change a value, which a chat template cannot do");
}

Value dict_method(const Value& self, const std::string& name, Budget& budget) {
  if (name == "keys" || name == "values" || name == "items")
    return make_function(
        name,
        [self, name, &budget](Arguments arguments) {
          bind_arguments(name, std::move(arguments), {});
          std::vector<Value> out;
          budget.spend(self.dict()->entries.size());
          for (const auto& [key, value] : self.dict()->entries)
            out.push_back(name == "keys" ? key : name == "values" ? value : pair_of(key, value));
          auto list = make_list(std::move(out), List::Kind::view);
          list->origin = self.dict()->origin;
          return Value(std::move(list));
        },
        &self);
  if (name == "get")
    return make_function(
        name,
        [self, &budget](Arguments arguments) {
          if (!arguments.named.empty()) throw TemplateError("get takes no named arguments");
          if (arguments.positional.size() == 1) arguments.positional.emplace_back(None{});
          const auto given = bind_arguments("get", std::move(arguments), {"key", "default"}, 2);
          const Value* found = self.dict()->find(given[0], budget);
          return found != nullptr ? *found : given[1];
        },
        &self);
  if (name == "copy")
    return make_function(
        name,
        [self](Arguments arguments) {
          bind_arguments("copy", std::move(arguments), {});
          return Value(std::make_shared<Dict>(*self.dict()));
        },
        &self);
  for (const char* change : {"clear", "pop", "popitem", "setdefault", "update"})
    if (name == change) fail_change(name);
  return {};
}

Value list_method(const Value& self, const std::string& name, Budget& budget) {
  if (self.list()->kind > List::Kind::range) return {};
  if (name == "index" || name == "count")
    return make_function(
        name,
        [self, name, &budget](Arguments arguments) {
          const auto given = bind_arguments(name, std::move(arguments), {"value"}, 1);
          const auto& items = self.list()->items;
          const auto same = [&](const Value& item) { return equal(item, given[0], budget); };
          if (name == "count") return Value(std::int64_t{std::count_if(items.begin(), items.end(), same)});
          const auto found = std::find_if(items.begin(), items.end(), same);
          if (found == items.end()) throw TemplateError("index: the value is not in the list");
          return Value(std::int64_t{found - items.begin()});
        },
        &self);
  if (name == "copy" && self.list()->kind == List::Kind::list)
    return make_function(
        name,
        [self](Arguments arguments) {
          bind_arguments("copy", std::move(arguments), {});
          return Value(make_list(self.list()->items));
        },
        &self);
  for (const char* change : {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"})
    if (name == change && self.list()->kind == List::Kind::list) fail_change(name);
  return {};
}

Value loop_member(const Value& self, const std::string& name) {
  const Loop& loop = *self.loop();
  const auto index = static_cast<std::int64_t>(loop.index), size = static_cast<std::int64_t>(loop.items->size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return size - index;
  if (name == "revindex0") return size - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == size;
  if (name == "length") return size;
  if (name == "depth") return loop.depth + 1;
  if (name == "depth0") return loop.depth;
  if (name == "previtem")
    return index == 0 ? Value::undefined("there is no previous item") : (*loop.items)[loop.index - 1];
  if (name == "nextitem")
    return index + 1 == size ? Value::undefined("there is no next item") : (*loop.items)[loop.index + 1];
  if (name == "cycle")
    return make_function(
        name,
        [self](Arguments arguments) {
          if (arguments.positional.empty()) throw TemplateError("loop.cycle needs values");
          return arguments.positional[self.loop()->index % arguments.positional.size()];
        },
        &self);
  if (name == "changed") throw TemplateError("loop.changed is not supported");
  return Value::undefined("'loop' has no attribute " + quoted(name));
}

Value method_of(const Value& container, const std::string& name, Budget& budget) {
  if (container.text()) return text_method(container, name, budget);
  if (container.dict()) return dict_method(container, name, budget);
  if (container.list()) return list_method(container, name, budget);
  return {};
}

Value missing(const Value& container, const std::string& name) {
  return Value::undefined(quoted(container.type_name() + " object") + " has no attribute " + quoted(name));
}

/// The place of an index in a sequence of `size`, or nothing.
std::optional<std::size_t> place(std::int64_t index, std::size_t size) {
  if (index < 0) index += static_cast<std::int64_t>(size);
  if (index < 0 || index >= static_cast<std::int64_t>(size)) return std::nullopt;
  return static_cast<std::size_t>(index);
}

std::optional<std::int64_t> index_of(const Value& value) {
  if (value.is_none()) return std::nullopt;
  value.require_defined();
  if (!value.as_integer()) throw TemplateError("a slice needs whole numbers, not " + value.type_name());
  return value.as_integer();
}

}  // namespace

Value member_of(const Value& container, const std::string& name, Budget& budget) {
  container.require_defined();
  if (name.starts_with("__")) throw TemplateError("names that begin with '__' are not for templates: " + quoted(name));
  if (container.loop()) return loop_member(container, name);
  if (container.space()) {
    const Value* found = container.space()->find(name);
    return found != nullptr ? *found : missing(container, name);
  }
  if (Value method = method_of(container, name, budget); !method.is_undefined()) return method;
  if (container.dict())
    if (const Value* found = container.dict()->find(std::string_view(name))) return *found;
  if (container.function() && (name == "name" || name == "arguments" || name == "caller"))
    throw TemplateError("the attribute " + quoted(name) + " of a macro is not supported");
  return missing(container, name);
}

Value item_of(const Value& container, const Value& key, Budget& budget) {
  container.require_defined();
  if (container.dict()) {
    if (key.is_undefined()) return Value::undefined(key.why_undefined());
    if (const Value* found = container.dict()->find(key, budget)) return *found;
  } else if (key.as_integer() && (container.text() || container.list())) {
    const std::string none = container.type_name() + " object has no element " + std::to_string(*key.as_integer());
    if (container.text()) {
      const std::string& bytes = container.text()->bytes();
      budget.spend(bytes.size() / 16 + 1);
      const auto at = place(*key.as_integer(), count_characters(bytes));
      if (!at) return Value::undefined(none);
      return container.text()->part(offset_of_character(bytes, *at), offset_of_character(bytes, *at + 1));
    }
    const auto& items = container.list()->items;
    const auto at = container.list()->kind >= List::Kind::view ? std::nullopt : place(*key.as_integer(), items.size());
    return at ? items[*at] : Value::undefined(none);
  }
  if (!key.text()) return Value::undefined(container.type_name() + " object has no such element");
  const std::string& name = key.text()->bytes();
  if (container.loop() || container.space())
    return container.loop() ? member_of(container, name, budget) : missing(container, name);
  Value method = method_of(container, name, budget);
  return method.is_undefined() ? missing(container, name) : method;
}

Value slice_of(const Value& container, const Value& start, const Value& stop, const Value& step, Budget& budget) {
  container.require_defined();
  const bool sequence = container.list() && container.list()->kind < List::Kind::view;
  if (!container.text() && !sequence) throw TemplateError("a " + container.type_name() + " cannot be sliced");
  const auto size = static_cast<std::int64_t>(length(container));
  const std::int64_t by = index_of(step).value_or(1);
  if (by == 0) throw TemplateError("the step of a slice cannot be 0");
  const auto clamp = [&](const Value& value, std::int64_t otherwise) {
    const auto given = index_of(value);
    if (!given) return otherwise;
    const std::int64_t low = by < 0 ? -1 : 0, high = by < 0 ? size - 1 : size;
    return std::clamp(*given < 0 ? *given + size : *given, low, high);
  };
  const std::int64_t begin = clamp(start, by < 0 ? size - 1 : 0), end = clamp(stop, by < 0 ? -1 : size);
  budget.spend(static_cast<std::size_t>(size));
  if (container.text() && by == 1) {
    const std::string& bytes = container.text()->bytes();
    const std::size_t from = offset_of_character(bytes, static_cast<std::size_t>(begin));
    return container.text()->part(from, std::max(from, offset_of_character(bytes, static_cast<std::size_t>(end))));
  }
  const std::vector<Value> items = container.text() ? items_of(container, budget) : container.list()->items;
  std::vector<Value> out;
  for (std::int64_t i = begin; by > 0 ? i < end : i > end;) {
    out.push_back(items[static_cast<std::size_t>(i)]);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  if (!container.text()) return make_list(std::move(out), container.list()->kind);
  Text text;
  for (const Value& character : out) text.append(*character.text());
  return text;
}

}  // namespace trainer::chat
