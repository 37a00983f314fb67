// Access to values by kind, their comparison and their truth, with limits on depth and on work.
#include "engine/chat/value.h"

#include <algorithm>
#include <cmath>

namespace trainer::chat {
namespace {

constexpr std::size_t kIndexed = 16;  // dicts of more entries have an index

[[noreturn]] void fail_compare(const Value& a, const Value& b) {
  a.require_defined();
  b.require_defined();
  throw TemplateError("'<' is not supported between " + a.type_name() + " and " + b.type_name());
}

int deeper_than(int depth) {
  if (depth >= Value::kMaxDepth) throw TemplateError("lists or dicts are nested too deeply");
  return depth + 1;
}

}  // namespace

void Budget::spend(std::size_t units) {
  if (units > static_cast<std::size_t>(left_)) {
    left_ = 0;
    throw TemplateError("the template takes too long, or writes too much");
  }
  left_ -= static_cast<std::int64_t>(units);
}

Value Value::undefined(std::string why) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(why))};
  return value;
}

const Text* Value::text() const {
  const auto* held = std::get_if<std::shared_ptr<const Text>>(&data_);
  return held != nullptr ? held->get() : nullptr;
}
List* Value::list() const {
  const auto* held = std::get_if<std::shared_ptr<List>>(&data_);
  return held != nullptr ? held->get() : nullptr;
}
const Dict* Value::dict() const {
  const auto* held = std::get_if<std::shared_ptr<Dict>>(&data_);
  return held != nullptr ? held->get() : nullptr;
}
Dict* Value::dict() { return const_cast<Dict*>(std::as_const(*this).dict()); }
Namespace* Value::space() const {
  const auto* held = std::get_if<Namespace*>(&data_);
  return held != nullptr ? *held : nullptr;
}
const Function* Value::function() const {
  const auto* held = std::get_if<std::shared_ptr<const Function>>(&data_);
  return held != nullptr ? held->get() : nullptr;
}
const Loop* Value::loop() const {
  const auto* held = std::get_if<std::shared_ptr<const Loop>>(&data_);
  return held != nullptr ? held->get() : nullptr;
}

std::optional<std::int64_t> Value::as_integer() const {
  if (integer()) return *integer();
  if (boolean()) return *boolean() ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::as_real() const {
  if (real()) return *real();
  if (const auto whole = as_integer()) return static_cast<double>(*whole);
  return std::nullopt;
}

std::string Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (boolean()) return "bool";
  if (integer()) return "int";
  if (real()) return "float";
  if (text()) return "str";
  if (dict()) return "dict";
  if (space()) return "Namespace";
  if (function()) return "function";
  if (loop()) return "LoopContext";
  switch (list()->kind) {
    case List::Kind::list:
      return "list";
    case List::Kind::tuple:
      return "tuple";
    case List::Kind::range:
      return "range";
    case List::Kind::view:
      return "dict view";
    case List::Kind::generator:
      return "generator";
  }
  return "list";
}

const std::string& Value::why_undefined() const {
  static const std::string kNone = "the value is undefined";
  const auto* held = std::get_if<Undefined>(&data_);
  return held != nullptr && held->why ? *held->why : kNone;
}

void Value::require_defined() const {
  if (is_undefined()) throw TemplateError(why_undefined());
}

int Value::depth() const {
  if (list()) return list()->depth;
  if (dict()) return dict()->depth;
  if (function()) return function()->depth;
  return loop() ? loop()->items_depth : 0;
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  if (key.text()) return find(std::string_view(key.text()->bytes()));
  if (key.list() && (key.list()->kind == List::Kind::list || key.list()->kind == List::Kind::view))
    throw TemplateError("a " + key.type_name() + " cannot be a key");
  if (key.dict()) throw TemplateError("a dict cannot be a key");
  budget.spend(entries.size());
  for (const auto& [each, value] : entries)
    if (equal(each, key, budget)) return &value;
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  if (!index_.empty()) {
    const auto found = index_.find(std::string(key));
    return found == index_.end() ? nullptr : &entries[found->second].second;
  }
  for (const auto& [each, value] : entries)
    if (each.text() && each.text()->bytes() == key) return &value;
  return nullptr;
}

void Dict::set(Value key, Value value, Budget& budget) {
  depth = std::max(depth, deeper_than(std::max(key.depth(), value.depth())));
  if (const Value* there = find(key, budget)) {
    *const_cast<Value*>(there) = std::move(value);
    return;
  }
  entries.emplace_back(std::move(key), std::move(value));
  if (entries.size() < kIndexed) return;
  for (std::size_t i = index_.empty() ? 0 : entries.size() - 1; i < entries.size(); ++i)
    if (entries[i].first.text()) index_.emplace(entries[i].first.text()->bytes(), i);
}

Value* Namespace::find(std::string_view name) {
  for (auto& [each, value] : attributes)
    if (each == name) return &value;
  return nullptr;
}

void Namespace::set(std::string_view name, Value value) {
  if (name.starts_with('_'))
    throw TemplateError("a namespace cannot have the attribute '" + std::string(name) + "', which begins with '_'");
  if (Value* there = find(name))
    *there = std::move(value);
  else
    attributes.emplace_back(name, std::move(value));
}

std::shared_ptr<List> make_list(std::vector<Value> items, List::Kind kind) {
  auto list = std::make_shared<List>();
  for (const Value& item : items) list->depth = std::max(list->depth, deeper_than(item.depth()));
  list->kind = kind;
  list->items = std::move(items);
  return list;
}

Value make_function(std::string name, std::function<Value(Arguments)> call, const Value* self) {
  return Value(std::make_shared<const Function>(
      Function{std::move(name), std::move(call), self != nullptr ? deeper_than(self->depth()) : 0}));
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto number = value.as_real()) return *number != 0;
  if (value.text()) return !value.text()->empty();
  if (value.list()) return value.list()->kind == List::Kind::generator || !value.list()->items.empty();
  if (value.dict()) return !value.dict()->entries.empty();
  return true;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.spend(1);
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (const auto x = a.as_integer(), y = b.as_integer(); x && y) return *x == *y;
  if (const auto x = a.as_real(), y = b.as_real(); x || y) return x && y && *x == *y;
  if (a.text() || b.text()) return a.text() && b.text() && a.text()->bytes() == b.text()->bytes();
  if (a.list() && b.list()) {
    if (a.list() == b.list()) return true;
    const auto &x = a.list()->items, &y = b.list()->items;
    if (a.list()->kind != b.list()->kind || a.list()->kind == List::Kind::generator || x.size() != y.size())
      return false;
    for (std::size_t i = 0; i < x.size(); ++i)
      if (!equal(x[i], y[i], budget)) return false;
    return true;
  }
  if (a.dict() && b.dict()) {
    if (a.dict() == b.dict()) return true;
    if (a.dict()->entries.size() != b.dict()->entries.size()) return false;
    for (const auto& [key, value] : a.dict()->entries) {
      const Value* other = b.dict()->find(key, budget);
      if (other == nullptr || !equal(value, *other, budget)) return false;
    }
    return true;
  }
  return (a.space() && a.space() == b.space()) || (a.function() && a.function() == b.function()) ||
         (a.loop() && a.loop() == b.loop());
}

bool less(const Value& a, const Value& b, Budget& budget) {
  budget.spend(1);
  if (const auto x = a.as_integer(), y = b.as_integer(); x && y) return *x < *y;
  if (const auto x = a.as_real(), y = b.as_real(); x && y) return *x < *y;
  if (a.text() && b.text()) return a.text()->bytes() < b.text()->bytes();  // bytes of UTF-8 order as code points do
  if (!a.list() || !b.list() || a.list()->kind != b.list()->kind || a.list()->kind > List::Kind::tuple)
    fail_compare(a, b);
  const auto &x = a.list()->items, &y = b.list()->items;
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i)
    if (!equal(x[i], y[i], budget)) return less(x[i], y[i], budget);
  return x.size() < y.size();
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (container.text()) {
    item.require_defined();
    if (!item.text()) throw TemplateError("'in' a str needs a str, not " + item.type_name());
    budget.spend(container.text()->size() / 16);
    return container.text()->bytes().find(item.text()->bytes()) != std::string::npos;
  }
  if (container.dict()) return container.dict()->find(item, budget) != nullptr;
  const std::vector<Value> items = items_of(container, budget);
  return std::any_of(items.begin(), items.end(), [&](const Value& each) { return equal(each, item, budget); });
}

std::size_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.text()) return count_characters(value.text()->bytes());
  if (value.dict()) return value.dict()->entries.size();
  if (value.loop()) return value.loop()->items->size();
  if (value.list() && value.list()->kind != List::Kind::generator) return value.list()->items.size();
  throw TemplateError("a " + value.type_name() + " has no length");
}

bool is_iterable(const Value& value) { return value.is_undefined() || value.text() || value.list() || value.dict(); }

std::vector<Value> items_of(const Value& value, Budget& budget) {
  std::vector<Value> out;
  if (value.is_undefined()) return out;
  if (value.list()) {
    budget.spend(value.list()->items.size());
    return value.list()->kind == List::Kind::generator ? std::exchange(value.list()->items, {}) : value.list()->items;
  }
  if (value.dict()) {
    budget.spend(value.dict()->entries.size());
    for (const auto& entry : value.dict()->entries) out.push_back(entry.first);
    return out;
  }
  if (!value.text()) throw TemplateError("a " + value.type_name() + " cannot be iterated over");
  const std::string& bytes = value.text()->bytes();
  budget.spend(4 * bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t next = at + offset_of_character(std::string_view(bytes).substr(at), 1);
    Text character = value.text()->part(at, next);
    character.html = false;
    out.emplace_back(std::move(character));
    at = next;
  }
  return out;
}

}  // namespace trainer::chat
