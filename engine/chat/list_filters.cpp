// Filters of lists, dicts and of any value.
#include <algorithm>
#include <map>

#include "engine/chat/filters.h"
#include "engine/chat/operators.h"
#include "engine/chat/python_text.h"

namespace trainer::chat {
namespace {

Value generator(std::vector<Value> items) { return make_list(std::move(items), List::Kind::generator); }

/// `a.b.0`: what filters call an attribute is looked up as an item.
Value attribute_of(Value value, const Value& name, Budget& budget) {
  if (!name.text()) return item_of(value, name, budget);
  const std::string& path = name.text()->bytes();
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t dot = std::min(path.find('.', at), path.size());
    const std::string part = path.substr(at, dot - at);
    const bool number = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    value = item_of(value, number ? Value(std::int64_t{std::stoi(part)}) : Value::text(part), budget);
    at = dot + 1;
  }
  return value;
}

/// Texts without regard to case, where it is not asked for.
Value sort_key(const Value& value, bool case_sensitive) {
  return value.text() && !case_sensitive ? Value(with_case(*value.text(), Case::lower)) : value;
}

std::vector<Value> sorted(std::vector<Value> items, const std::vector<Value>& keys, bool reverse, Budget& budget) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return reverse ? less(keys[b], keys[a], budget) : less(keys[a], keys[b], budget);
  });
  std::vector<Value> out;
  for (const std::size_t i : order) out.push_back(std::move(items[i]));
  return out;
}

Value sort(const Value& value, Arguments arguments, Budget& budget) {
  const auto given = bind_filter("sort", std::move(arguments), {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> items = items_of(value, budget), keys;
  for (const Value& item : items) {
    if (!given[2].text() || given[2].text()->bytes().find(',') == std::string::npos) {
      keys.push_back(sort_key(is_given(given[2]) ? attribute_of(item, given[2], budget) : item, is_true(given[1])));
      continue;
    }
    std::vector<Value> parts;
    const Value names = text_method(given[2], "split", budget).function()->call({.positional = {Value::text(",")}});
    for (const Value& name : names.list()->items)
      parts.push_back(sort_key(attribute_of(item, name, budget), is_true(given[1])));
    keys.push_back(make_list(std::move(parts)));
  }
  return make_list(sorted(std::move(items), keys, is_true(given[0]), budget));
}

Value dictsort(const Value& value, Arguments arguments, Budget& budget) {
  const auto given = bind_filter("dictsort", std::move(arguments), {"case_sensitive", "by", "reverse"});
  value.require_defined();
  if (!value.dict()) throw TemplateError("the filter dictsort needs a dict, not " + value.type_name());
  const std::string by = given[1].is_undefined() ? "key" : to_text(given[1], budget).bytes();
  if (by != "key" && by != "value") throw TemplateError("the filter dictsort sorts by 'key' or 'value'");
  std::vector<Value> items, keys;
  for (const auto& [key, each] : value.dict()->entries) {
    items.push_back(make_list({key, each}, List::Kind::tuple));
    keys.push_back(sort_key(by == "key" ? key : each, is_true(given[0])));
  }
  return make_list(sorted(std::move(items), keys, is_true(given[2]), budget));
}

Value unique(const Value& value, Arguments arguments, Budget& budget) {
  const auto given = bind_filter("unique", std::move(arguments), {"case_sensitive", "attribute"});
  std::vector<Value> out, seen;
  for (const Value& item : items_of(value, budget)) {
    const Value key = sort_key(is_given(given[1]) ? attribute_of(item, given[1], budget) : item, is_true(given[0]));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& other) { return equal(key, other, budget); })) continue;
    seen.push_back(key);
    out.push_back(item);
  }
  return generator(std::move(out));
}

template <bool most>
Value extreme(const Value& value, Arguments arguments, Budget& budget) {
  const auto given = bind_filter(most ? "max" : "min", std::move(arguments), {"case_sensitive", "attribute"});
  Value best = Value::undefined("the sequence is empty"), best_key;
  bool any = false;
  for (const Value& item : items_of(value, budget)) {
    const Value key = sort_key(is_given(given[1]) ? attribute_of(item, given[1], budget) : item, is_true(given[0]));
    if (any && !(most ? less(best_key, key, budget) : less(key, best_key, budget))) continue;
    any = true;
    best = item;
    best_key = key;
  }
  return best;
}

Value sum(const Value& value, Arguments arguments, Budget& budget) {
  const auto given = bind_filter("sum", std::move(arguments), {"attribute", "start"});
  Value total = given[1].is_undefined() ? Value(std::int64_t{0}) : given[1];
  if (total.text()) throw TemplateError("the filter sum is not for texts; use join");
  for (const Value& item : items_of(value, budget))
    total = arithmetic(Operator::add, total, is_given(given[0]) ? attribute_of(item, given[0], budget) : item, budget);
  return total;
}

Value default_value(const Value& value, Arguments arguments, Budget&) {
  if (arguments.positional.empty() && arguments.named.empty()) arguments.positional.push_back(Value::text(""));
  const auto given = bind_filter("default", std::move(arguments), {"default_value", "boolean"});
  return value.is_undefined() || (is_true(given[1]) && !is_true(value)) ? given[0] : value;
}

Value join(const Value& value, Arguments arguments, Budget& budget) {
  const auto given = bind_filter("join", std::move(arguments), {"d", "attribute"});
  const Text separator = to_text(given[0], budget);
  Text out;
  bool first = true;
  for (const Value& item : items_of(value, budget)) {
    budget.spend(separator.size() + 1);
    if (!std::exchange(first, false)) out.append(separator);
    const Text text = to_text(is_given(given[1]) ? attribute_of(item, given[1], budget) : item, budget);
    budget.spend(text.size());
    out.append(text);
  }
  return out;
}

Value first(const Value& value, Arguments arguments, Budget& budget) {
  bind_filter("first", std::move(arguments), {});
  if (List* list = value.list(); list != nullptr && list->kind == List::Kind::generator && !list->items.empty()) {
    Value out = list->items.front();
    budget.spend(list->items.size());
    list->items.erase(list->items.begin());
    return out;
  }
  if (value.text() && !value.text()->empty()) return item_of(value, Value(std::int64_t{0}), budget);
  const std::vector<Value> items = items_of(value, budget);
  return items.empty() ? Value::undefined("no first item: the sequence is empty") : items.front();
}

Value last(const Value& value, Arguments arguments, Budget& budget) {
  bind_filter("last", std::move(arguments), {});
  if (value.list() && value.list()->kind == List::Kind::generator)
    throw TemplateError("the filter last needs a list: put `| list` before it");
  if (value.text() && !value.text()->empty()) return item_of(value, Value(std::int64_t{-1}), budget);
  const std::vector<Value> items = items_of(value, budget);
  return items.empty() ? Value::undefined("no last item: the sequence is empty") : items.back();
}

Value count(const Value& value, Arguments arguments, Budget&) {
  bind_filter("length", std::move(arguments), {});
  return static_cast<std::int64_t>(length(value));
}

Value list(const Value& value, Arguments arguments, Budget& budget) {
  bind_filter("list", std::move(arguments), {});
  return make_list(items_of(value, budget));
}

Value items(const Value& value, Arguments arguments, Budget& budget) {
  bind_filter("items", std::move(arguments), {});
  if (value.is_undefined()) return generator({});
  if (!value.dict()) throw TemplateError("the filter items needs a dict, not " + value.type_name());
  return generator(items_of(member_of(value, "items", budget).function()->call({}), budget));
}

Value reverse(const Value& value, Arguments arguments, Budget& budget) {
  bind_filter("reverse", std::move(arguments), {});
  if (value.text()) return slice_of(value, None{}, None{}, Value(std::int64_t{-1}), budget);
  const bool drained = value.list() && value.list()->kind == List::Kind::generator;
  std::vector<Value> out = items_of(value, budget);
  std::reverse(out.begin(), out.end());
  return make_list(std::move(out), drained ? List::Kind::list : List::Kind::generator);
}

Value batch(const Value& value, Arguments arguments, Budget& budget) {
  const auto given = bind_filter("batch", std::move(arguments), {"linecount", "fill_with"}, 1);
  if (!given[0].as_integer() || *given[0].as_integer() < 1 || *given[0].as_integer() > 1'000'000)
    throw TemplateError("the filter batch needs a whole number from 1 on");
  const auto size = static_cast<std::size_t>(*given[0].as_integer());
  std::vector<Value> out, row;
  for (const Value& item : items_of(value, budget)) {
    row.push_back(item);
    if (row.size() == size) out.push_back(make_list(std::exchange(row, {})));
  }
  if (!row.empty() && is_given(given[1])) budget.spend(size);
  while (!row.empty() && is_given(given[1]) && row.size() < size) row.push_back(given[1]);
  if (!row.empty()) out.push_back(make_list(std::move(row)));
  return generator(std::move(out));
}

Value attr(const Value& value, Arguments arguments, Budget& budget) {
  const auto given = bind_filter("attr", std::move(arguments), {"name"}, 1);
  if (!given[0].text()) throw TemplateError("the filter attr needs a name");
  if (value.dict() && value.dict()->find(std::string_view(given[0].text()->bytes())) != nullptr) {
    const Value empty(std::make_shared<Dict>());
    return member_of(empty, given[0].text()->bytes(), budget);  // its entries are no attributes
  }
  return member_of(value, given[0].text()->bytes(), budget);
}

Value map(const Value& value, Arguments arguments, Budget& budget) {
  std::vector<Value> out;
  if (!is_true(value)) return generator({});
  if (arguments.positional.empty()) {
    const auto given = bind_filter("map", std::move(arguments), {"attribute", "default"}, 1);
    for (const Value& item : items_of(value, budget)) {
      Value found = attribute_of(item, given[0], budget);
      out.push_back(found.is_undefined() && is_given(given[1]) ? given[1] : std::move(found));
    }
    return generator(std::move(out));
  }
  const std::string name = to_text(arguments.positional.front(), budget).bytes();
  arguments.positional.erase(arguments.positional.begin());
  for (const Value& item : items_of(value, budget)) out.push_back(apply_filter(name, item, arguments, budget));
  return generator(std::move(out));
}

template <bool wanted, bool by_attribute>
Value select(const Value& value, Arguments arguments, Budget& budget) {
  std::vector<Value> out;
  if (!is_true(value)) return generator({});
  const auto take = [&] {
    Value front = arguments.positional.front();
    arguments.positional.erase(arguments.positional.begin());
    return front;
  };
  if (by_attribute && arguments.positional.empty()) throw TemplateError("the filter needs the name of an attribute");
  const Value attribute = by_attribute ? take() : Value();
  const bool has_test = !arguments.positional.empty();
  const std::string test = has_test ? to_text(take(), budget).bytes() : "";
  for (const Value& item : items_of(value, budget)) {
    const Value tested = by_attribute ? attribute_of(item, attribute, budget) : item;
    if ((has_test ? apply_test(test, tested, arguments, budget) : is_true(tested)) == wanted) out.push_back(item);
  }
  return generator(std::move(out));
}

}  // namespace

Filter list_filter(std::string_view name) {
  static const std::map<std::string_view, Filter> filters{{"attr", attr},
                                                          {"batch", batch},
                                                          {"count", count},
                                                          {"d", default_value},
                                                          {"default", default_value},
                                                          {"dictsort", dictsort},
                                                          {"first", first},
                                                          {"items", items},
                                                          {"join", join},
                                                          {"last", last},
                                                          {"length", count},
                                                          {"list", list},
                                                          {"map", map},
                                                          {"max", extreme<true>},
                                                          {"min", extreme<false>},
                                                          {"reject", select<false, false>},
                                                          {"rejectattr", select<false, true>},
                                                          {"reverse", reverse},
                                                          {"select", select<true, false>},
                                                          {"selectattr", select<true, true>},
                                                          {"sort", sort},
                                                          {"sum", sum},
                                                          {"unique", unique}};
  const auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace trainer::chat
