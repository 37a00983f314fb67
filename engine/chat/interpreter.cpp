// Statements.
#include "engine/chat/interpreter.h"

#include <algorithm>

#include "engine/chat/filters.h"
#include "engine/chat/operators.h"
#include "engine/chat/python_text.h"

namespace trainer::chat {

Interpreter::Interpreter(const ParsedTemplate& parsed, const RunInput& input, Budget& budget)
    : parsed_(parsed), input_(input), budget_(budget) {}

// Macros and namespaces refer to scopes and to each other.
Interpreter::~Interpreter() {
  for (const auto& space : namespaces_) space->attributes.clear();
  for (const auto& scope : kept_) scope->variables.clear();
}

Text Interpreter::run() {
  Text out;
  out_ = &out;
  auto given = std::make_unique<Scope>(nullptr);
  given->variables = input_.variables;
  auto top = std::make_unique<Scope>(given.get());
  Scope& scope = *top;
  kept_.push_back(std::move(given));
  kept_.push_back(std::move(top));
  try {
    run(parsed_.body, scope);
  } catch (const Refusal& error) {
    throw RunError(error.what(), at_, true);
  } catch (const TemplateError& error) {
    throw RunError(error.what(), at_, false);
  }
  return out;
}

void Interpreter::write(Text text) {
  budget_.spend(text.size());
  if (turn_ != Origin::kNoTurn) text.set_turn(turn_);
  out_->append(text);
}

void Interpreter::keep(std::unique_ptr<Scope> scope) {
  if (scope->held) kept_.push_back(std::move(scope));
}

Interpreter::Flow Interpreter::run(const Block& block, Scope& scope) {
  const Deeper deeper(*this);
  for (const auto& statement : block)
    if (const Flow flow = run(*statement, scope); flow != Flow::next) return flow;
  return Flow::next;
}

Interpreter::Flow Interpreter::run(const Statement& statement, Scope& scope) {
  budget_.spend(1);
  at_ = statement.offset;
  switch (statement.kind) {
    case Statement::Kind::data:
      write(Text(statement.text));
      break;
    case Statement::Kind::print:
      for (const ExpressionPtr& expression : statement.expressions)
        write(to_text(evaluate(*expression, scope), budget_));
      break;
    case Statement::Kind::set:
    case Statement::Kind::set_block:
      run_set(statement, scope);
      break;
    case Statement::Kind::branch:
      return run_branch(statement, scope);
    case Statement::Kind::loop:
      return run_loop(statement, scope, evaluate(*statement.expressions.front(), scope), 0);
    case Statement::Kind::macro:
      scope.set(statement.text, macro_of(statement, statement.text, scope));
      break;
    case Statement::Kind::call:
      run_call(statement, scope);
      break;
    case Statement::Kind::filter:
      write(to_text(filtered(statement.expressions.front().get(), captured(statement.bodies.front(), scope), scope),
                    budget_));
      break;
    case Statement::Kind::with:
      return run_with(statement, scope);
    case Statement::Kind::generation: {
      Text text = captured(statement.bodies.front(), scope);
      text.set_generated();
      write(std::move(text));
      break;
    }
    case Statement::Kind::break_loop:
      return Flow::break_loop;
    case Statement::Kind::continue_loop:
      return Flow::continue_loop;
  }
  return Flow::next;
}

Interpreter::Flow Interpreter::run_branch(const Statement& statement, Scope& scope) {
  for (std::size_t i = 0; i < statement.expressions.size(); ++i)
    if (is_true(evaluate(*statement.expressions[i], scope))) return run(statement.bodies[i], scope);
  return statement.bodies.size() > statement.expressions.size() ? run(statement.bodies.back(), scope) : Flow::next;
}

// The message whose turn an iteration is: the item itself, or what the body takes by an index.
std::int32_t Interpreter::turn_of(const Statement& loop, const Value& item, Scope& scope) {
  if (item.dict() && item.dict()->message != Origin::kNoTurn) return item.dict()->message;
  if (loop.message == nullptr || !item.integer()) return turn_;
  if (loop.message->kind != Expression::Kind::name) return turn_;
  const Value* messages = scope.find(loop.message->text);
  if (messages == nullptr || !messages->list()) return turn_;
  const Value message = item_of(*messages, item, budget_);
  return message.dict() && message.dict()->message != Origin::kNoTurn ? message.dict()->message : turn_;
}

Interpreter::Flow Interpreter::run_loop(const Statement& statement, Scope& scope, const Value& over,
                                        std::int64_t depth) {
  const Deeper deeper(*this);
  std::vector<Value> items = items_of(over, budget_);
  if (const Expression* test = statement.expressions[1].get()) {
    std::vector<Value> chosen;
    for (Value& item : items) {
      auto inner = std::make_unique<Scope>(&scope);
      assign(statement.targets.front(), item, *inner);
      if (is_true(evaluate(*test, *inner))) chosen.push_back(std::move(item));
      keep(std::move(inner));
    }
    items = std::move(chosen);
  }
  const auto all = std::make_shared<const std::vector<Value>>(std::move(items));
  const std::int32_t turn = turn_;
  for (std::size_t i = 0; i < all->size(); ++i) {
    budget_.spend(8);
    auto inner = std::make_unique<Scope>(&scope);
    auto loop = std::make_shared<Loop>(Loop{all, i, depth, {}, over.depth()});
    if (statement.recursive) {
      scope.hold();
      loop->recurse = [this, &statement, &scope, depth](const Value& nested) -> Value {
        Text text;
        Text* const out = std::exchange(out_, &text);
        run_loop(statement, scope, nested, depth + 1);
        out_ = out;
        return text;
      };
    }
    inner->set("loop", Value(std::shared_ptr<const Loop>(std::move(loop))));
    assign(statement.targets.front(), (*all)[i], *inner);
    turn_ = turn_of(statement, (*all)[i], scope);
    const Flow flow = run(statement.bodies.front(), *inner);
    turn_ = turn;
    keep(std::move(inner));
    if (flow == Flow::break_loop) break;
  }
  if (!all->empty() || statement.bodies.size() < 2) return Flow::next;
  auto inner = std::make_unique<Scope>(&scope);
  const Flow flow = run(statement.bodies[1], *inner);
  keep(std::move(inner));
  return flow;
}

void Interpreter::run_set(const Statement& statement, Scope& scope) {
  const Target& target = statement.targets.front();
  if (statement.kind == Statement::Kind::set)
    return assign(target, evaluate(*statement.expressions.front(), scope), scope);
  Value value = captured(statement.bodies.front(), scope);
  if (!statement.expressions.empty()) value = filtered(statement.expressions.front().get(), std::move(value), scope);
  assign(target, std::move(value), scope);
}

Interpreter::Flow Interpreter::run_with(const Statement& statement, Scope& scope) {
  auto inner = std::make_unique<Scope>(&scope);
  std::vector<Value> values;
  for (const ExpressionPtr& expression : statement.expressions) values.push_back(evaluate(*expression, scope));
  for (std::size_t i = 0; i < values.size(); ++i) assign(statement.targets[i], std::move(values[i]), *inner);
  const Flow flow = run(statement.bodies.front(), *inner);
  keep(std::move(inner));
  return flow;
}

Text Interpreter::captured(const Block& block, Scope& scope) {
  auto inner = std::make_unique<Scope>(&scope);
  Text text;
  Text* const out = std::exchange(out_, &text);
  const Flow flow = run(block, *inner);
  out_ = out;
  keep(std::move(inner));
  if (flow != Flow::next) throw TemplateError("break and continue cannot leave this block");
  return text;
}

// A chain of filters without a value at its beginning.
Value Interpreter::filtered(const Expression* filters, Value value, Scope& scope) {
  if (filters == nullptr) return value;
  value = filtered(filters->parts.front().get(), std::move(value), scope);
  Arguments arguments = arguments_of(*filters, scope);
  at_ = filters->offset;
  return apply_filter(filters->text, value, std::move(arguments), budget_);
}

void Interpreter::assign(const Target& target, Value value, Scope& scope) {
  at_ = target.offset;
  if (target.is_tuple) {
    const std::vector<Value> items = items_of(value, budget_);
    if (items.size() != target.parts.size())
      throw TemplateError(std::to_string(target.parts.size()) + " names for " + std::to_string(items.size()) +
                          " values");
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i], scope);
    return;
  }
  if (target.attribute.empty()) return scope.set(target.name, std::move(value));
  const Value* held = scope.find(target.name);
  if (held == nullptr || !held->space())
    throw TemplateError("'" + target.name + "' is no namespace, and other values cannot be changed");
  held->space()->set(target.attribute, std::move(value));
}

Value Interpreter::macro_of(const Statement& statement, std::string name, Scope& scope) {
  scope.hold();
  return make_function(name, [this, &statement, &scope, name](Arguments arguments) {
    return call_macro(statement, name, scope, std::move(arguments));
  });
}

Value Interpreter::call_macro(const Statement& macro, const std::string& name, Scope& defined, Arguments arguments) {
  const Deeper deeper(*this);
  auto inner = std::make_unique<Scope>(&defined);
  std::vector<Value> more;
  const std::size_t count = macro.parameters.size();
  for (std::size_t i = count; i < arguments.positional.size(); ++i) more.push_back(arguments.positional[i]);
  if (!more.empty() && !macro.uses_varargs)
    throw TemplateError(name + " takes at most " + std::to_string(count) + " arguments");
  const auto take = [&](const std::string& wanted) -> std::optional<Value> {
    for (auto each = arguments.named.begin(); each != arguments.named.end(); ++each)
      if (each->first == wanted) {
        Value value = std::move(each->second);
        arguments.named.erase(each);
        return value;
      }
    return std::nullopt;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const Parameter& parameter = macro.parameters[i];
    if (i < arguments.positional.size()) {
      inner->set(parameter.name, arguments.positional[i]);
    } else if (std::optional<Value> value = take(parameter.name)) {
      inner->set(parameter.name, std::move(*value));
    } else if (parameter.otherwise) {
      Value otherwise = evaluate(*parameter.otherwise, *inner);
      inner->set(parameter.name, std::move(otherwise));
    } else {
      inner->set(parameter.name, Value::undefined("the argument '" + parameter.name + "' is not given"));
    }
  }
  if (macro.uses_caller &&
      inner->variables.end() == std::find_if(inner->variables.begin(), inner->variables.end(),
                                             [](const auto& each) { return each.first == "caller"; }))
    inner->set("caller", take("caller").value_or(Value::undefined("'caller' is for macros that {% call %} calls")));
  if (macro.uses_kwargs) {
    auto dict = std::make_shared<Dict>();
    for (auto& [key, value] : std::exchange(arguments.named, {}))
      dict->set(Value::text(key), std::move(value), budget_);
    inner->set("kwargs", Value(std::move(dict)));
  }
  if (!arguments.named.empty()) throw TemplateError(name + " has no argument '" + arguments.named.front().first + "'");
  if (macro.uses_varargs) inner->set("varargs", make_list(std::move(more), List::Kind::tuple));
  Text text;
  Text* const out = std::exchange(out_, &text);
  run(macro.bodies.front(), *inner);
  out_ = out;
  keep(std::move(inner));
  return text;
}

void Interpreter::run_call(const Statement& statement, Scope& scope) {
  const Value caller = macro_of(statement, "caller", scope);
  write(to_text(called(*statement.expressions.front(), scope, &caller), budget_));
}

}  // namespace trainer::chat
