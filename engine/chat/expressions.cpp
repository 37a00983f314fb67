// Expressions.
#include "engine/chat/filters.h"
#include "engine/chat/interpreter.h"
#include "engine/chat/operators.h"
#include "engine/chat/python_text.h"

namespace trainer::chat {

Value Interpreter::evaluate(const Expression& node, Scope& scope) {
  const Deeper deeper(*this);
  budget_.spend(1);
  return evaluate_kind(node, scope);
}

Value Interpreter::evaluate_kind(const Expression& node, Scope& scope) {
  using Kind = Expression::Kind;
  const auto part = [&](std::size_t i) { return evaluate(*node.parts[i], scope); };
  switch (node.kind) {
    case Kind::constant:
      return node.value;
    case Kind::name:
      return name_of(node, scope);
    case Kind::list:
    case Kind::tuple: {
      std::vector<Value> items;
      for (const ExpressionPtr& each : node.parts) items.push_back(evaluate(*each, scope));
      return make_list(std::move(items), node.kind == Kind::list ? List::Kind::list : List::Kind::tuple);
    }
    case Kind::dict:
      return dict_of(node, scope);
    case Kind::condition:
      if (is_true(part(0))) return part(1);
      return node.parts[2] ? part(2) : Value::undefined("the inline `if` is false and has no `else`");
    case Kind::logical_and: {
      Value left = part(0);
      return is_true(left) ? part(1) : left;
    }
    case Kind::logical_or: {
      Value left = part(0);
      return is_true(left) ? left : part(1);
    }
    case Kind::logical_not:
      return !is_true(part(0));
    case Kind::compare:
      return compared(node, scope);
    case Kind::binary: {
      const Value left = part(0), right = part(1);
      at_ = node.offset;
      return with_turn(arithmetic(node.operators.front(), left, right, budget_));
    }
    case Kind::concat:
      return joined(node, scope);
    case Kind::negate:
    case Kind::plus: {
      const Value value = part(0);
      at_ = node.offset;
      return node.kind == Kind::negate ? negated(value) : negated(negated(value));
    }
    case Kind::attribute: {
      const Value value = part(0);
      at_ = node.offset;
      return member_of(value, node.text, budget_);
    }
    case Kind::item:
      return item(node, scope);
    case Kind::slice:
      break;  // only within an item
    case Kind::call:
      return called(node, scope, nullptr);
    case Kind::filter:
    case Kind::test: {
      const Value value = part(0);
      Arguments arguments = arguments_of(node, scope);
      at_ = node.offset;
      if (node.kind == Kind::test) return apply_test(node.text, value, std::move(arguments), budget_);
      return apply_filter(node.text, value, std::move(arguments), budget_);
    }
  }
  throw TemplateError("a slice is not a value");
}

// Text that was put together during a turn is part of it, wherever it is written later.
Value Interpreter::with_turn(Value value) const {
  if (turn_ == Origin::kNoTurn || !value.text()) return value;
  Text text = *value.text();
  text.set_turn(turn_);
  return text;
}

Value Interpreter::name_of(const Expression& node, Scope& scope) {
  if (const Value* found = scope.find(node.text)) return *found;
  if (node.text == "namespace") {
    return make_function(node.text, [this](Arguments arguments) {
      auto space = std::make_unique<Namespace>();
      if (arguments.positional.size() > 1) throw TemplateError("namespace takes one dict and named values");
      for (const Value& from : arguments.positional) {
        if (!from.dict()) throw TemplateError("namespace takes a dict, not " + from.type_name());
        for (const auto& [key, value] : from.dict()->entries) {
          if (!key.text()) throw TemplateError("the names of a namespace are texts");
          space->set(key.text()->bytes(), value);
        }
      }
      for (auto& [name, value] : arguments.named) space->set(name, std::move(value));
      budget_.spend(16 * (space->attributes.size() + 1));
      namespaces_.push_back(std::move(space));
      return Value(namespaces_.back().get());
    });
  }
  Value global = global_function(node.text, input_.now, budget_);
  return global.is_undefined() ? Value::undefined("'" + node.text + "' is undefined") : global;
}

Value Interpreter::dict_of(const Expression& node, Scope& scope) {
  auto dict = std::make_shared<Dict>();
  for (std::size_t i = 0; i < node.parts.size(); i += 2) {
    Value key = evaluate(*node.parts[i], scope), value = evaluate(*node.parts[i + 1], scope);
    at_ = node.offset;
    dict->set(std::move(key), std::move(value), budget_);
  }
  if (turn_ != Origin::kNoTurn && dict->find("role") != nullptr)
    dict->message = turn_;  // a message that stands for another
  return Value(std::move(dict));
}

Value Interpreter::compared(const Expression& node, Scope& scope) {
  Value left = evaluate(*node.parts.front(), scope);
  for (std::size_t i = 0; i < node.operators.size(); ++i) {
    Value right = evaluate(*node.parts[i + 1], scope);
    at_ = node.offset;
    if (!compares(node.operators[i], left, right, budget_)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::joined(const Expression& node, Scope& scope) {
  Text out;  // which is not marked safe, whatever the parts are
  for (const ExpressionPtr& each : node.parts) {
    const Text part = to_text(evaluate(*each, scope), budget_);
    at_ = node.offset;
    append_text(out, part, budget_);
  }
  return with_turn(std::move(out));
}

Value Interpreter::item(const Expression& node, Scope& scope) {
  const Value container = evaluate(*node.parts[0], scope);
  const Expression& key = *node.parts[1];
  if (key.kind != Expression::Kind::slice) {
    const Value index = evaluate(key, scope);
    at_ = node.offset;
    return item_of(container, index, budget_);
  }
  const auto bound = [&](std::size_t i) { return key.parts[i] ? evaluate(*key.parts[i], scope) : Value(None{}); };
  const Value start = bound(0), stop = bound(1), step = bound(2);
  at_ = node.offset;
  return slice_of(container, start, stop, step, budget_);
}

Value Interpreter::called(const Expression& node, Scope& scope, const Value* caller) {
  const Value function = evaluate(*node.parts.front(), scope);
  Arguments arguments = arguments_of(node, scope);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  at_ = node.offset;
  function.require_defined();
  if (function.loop()) {
    if (!function.loop()->recurse || arguments.positional.size() != 1 || !arguments.named.empty())
      throw TemplateError("`loop` is called with one value, in loops that are recursive");
    return function.loop()->recurse(arguments.positional.front());
  }
  if (!function.function()) throw TemplateError("a " + function.type_name() + " cannot be called");
  return function.function()->call(std::move(arguments));
}

Arguments Interpreter::arguments_of(const Expression& node, Scope& scope) {
  Arguments out;
  for (const ExpressionPtr& each : node.positional) out.positional.push_back(evaluate(*each, scope));
  for (const auto& [name, each] : node.named) out.named.emplace_back(name, evaluate(*each, scope));
  if (node.more_positional)
    for (Value& value : items_of(evaluate(*node.more_positional, scope), budget_))
      out.positional.push_back(std::move(value));
  if (node.more_named) {
    const Value more = evaluate(*node.more_named, scope);
    if (!more.dict()) throw TemplateError("'**' needs a dict, not " + more.type_name());
    for (const auto& [key, value] : more.dict()->entries) {
      if (!key.text()) throw TemplateError("the names of arguments are texts");
      for (const auto& [name, other] : out.named)
        if (name == key.text()->bytes()) throw TemplateError("the argument '" + name + "' is given twice");
      out.named.emplace_back(key.text()->bytes(), value);
    }
  }
  return out;
}

}  // namespace trainer::chat
