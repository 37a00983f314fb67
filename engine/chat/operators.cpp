// Operators by the kinds of their operands. Integers are 64-bit: an overflow is an error, never a wrong value.
#include "engine/chat/operators.h"

#include <algorithm>
#include <cmath>

#include "engine/chat/python_text.h"

namespace trainer::chat {
namespace {

constexpr std::size_t kMaxItems = 10'000'000;  // of a repeated list

const char* symbol_of(Operator op) {
  constexpr const char* kSymbols[] = {
      "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kSymbols[static_cast<int>(op)];
}

[[noreturn]] void fail_types(Operator op, const Value& a, const Value& b) {
  a.require_defined();
  b.require_defined();
  throw TemplateError(std::string("'") + symbol_of(op) + "' is not supported between " + a.type_name() + " and " +
                      b.type_name());
}

void require_no_overflow(bool overflows) {
  if (overflows) throw TemplateError("whole numbers of more than 64 bits are not supported");
}

std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  require_no_overflow(__builtin_mul_overflow(a, b, &out));
  return out;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) throw TemplateError("division by zero");
  if (b == -1) return product(a, b);
  const std::int64_t quotient = a / b;
  return quotient - ((a % b != 0) && ((a < 0) != (b < 0)) ? 1 : 0);
}

double floor_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0 ? (rest < 0) != (b < 0) : std::signbit(b) != std::signbit(rest))
    rest = rest != 0 ? rest + b : std::copysign(0.0, b);
  return rest;
}

Value of_integers(Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  switch (op) {
    case Operator::add:
      require_no_overflow(__builtin_add_overflow(a, b, &out));
      return out;
    case Operator::subtract:
      require_no_overflow(__builtin_sub_overflow(a, b, &out));
      return out;
    case Operator::multiply:
      return product(a, b);
    case Operator::divide:
      if (b == 0) throw TemplateError("division by zero");
      return static_cast<double>(a) / static_cast<double>(b);
    case Operator::floor_divide:
      return floor_divide(a, b);
    case Operator::modulo:
      if (b == 0) throw TemplateError("division by zero");
      return b == -1 ? Value(std::int64_t{0}) : Value(a - floor_divide(a, b) * b);
    default:
      break;
  }
  if (b < 0) {
    if (a == 0) throw TemplateError("division by zero");
    return std::pow(static_cast<double>(a), static_cast<double>(b));
  }
  out = 1;
  for (std::int64_t base = a;; base = product(base, base)) {
    if (b & 1) out = product(out, base);
    if ((b >>= 1) == 0) return out;
  }
}

Value of_reals(Operator op, double a, double b) {
  if (b == 0 && (op == Operator::divide || op == Operator::floor_divide || op == Operator::modulo))
    throw TemplateError("division by zero");
  switch (op) {
    case Operator::add:
      return a + b;
    case Operator::subtract:
      return a - b;
    case Operator::multiply:
      return a * b;
    case Operator::divide:
      return a / b;
    case Operator::floor_divide:
      return std::floor((a - floor_modulo(a, b)) / b + 0.5);
    case Operator::modulo:
      return floor_modulo(a, b);
    default:
      break;
  }
  if (a < 0 && b != std::floor(b)) throw TemplateError("a power that is no real number");
  if (a == 0 && b < 0) throw TemplateError("division by zero");
  return std::pow(a, b);
}

Value repeated(const Value& value, std::int64_t count, Budget& budget) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  if (value.text()) {
    if (times != 0)
      budget.spend(value.text()->size() > kMaxItems / times ? SIZE_MAX / 2 : value.text()->size() * times);
    Text out;
    out.html = value.text()->html;
    for (std::size_t i = 0; i < times && !value.text()->empty(); ++i) out.append(*value.text());
    return out;
  }
  const auto& items = value.list()->items;
  if (times != 0) budget.spend(items.size() > kMaxItems / times ? SIZE_MAX / 2 : items.size() * times);
  std::vector<Value> out;
  for (std::size_t i = 0; i < times && !items.empty(); ++i) out.insert(out.end(), items.begin(), items.end());
  return make_list(std::move(out), value.list()->kind);
}

bool is_plain_list(const Value& value) { return value.list() && value.list()->kind <= List::Kind::tuple; }

}  // namespace

Value arithmetic(Operator op, const Value& a, const Value& b, Budget& budget) {
  if (op == Operator::modulo && a.text()) {
    if (a.text()->html) throw TemplateError("'%' of a text that is marked safe is not supported");
    return format_percent(*a.text(), b, budget);
  }
  if (const auto x = a.as_integer(), y = b.as_integer(); x && y) return of_integers(op, *x, *y);
  if (const auto x = a.as_real(), y = b.as_real(); x && y) return of_reals(op, *x, *y);
  if (op == Operator::add && a.text() && b.text()) {
    const bool html = a.text()->html || b.text()->html;
    Text out = html ? escape_html(*a.text(), budget) : *a.text();
    append_text(out, *b.text(), budget);
    return out;
  }
  if (op == Operator::add && is_plain_list(a) && is_plain_list(b) && a.list()->kind == b.list()->kind) {
    budget.spend(a.list()->items.size() + b.list()->items.size());
    std::vector<Value> items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return make_list(std::move(items), a.list()->kind);
  }
  if (op == Operator::multiply && (a.text() || is_plain_list(a)) && b.as_integer())
    return repeated(a, *b.as_integer(), budget);
  if (op == Operator::multiply && (b.text() || is_plain_list(b)) && a.as_integer())
    return repeated(b, *a.as_integer(), budget);
  fail_types(op, a, b);
}

void append_text(Text& out, const Text& more, Budget& budget) {
  budget.spend(out.size() / 16 + more.size());
  if (out.html && !more.html)
    out.append(escape_html(more, budget));
  else
    out.append(more);
}

bool compares(Operator op, const Value& a, const Value& b, Budget& budget) {
  const auto order = [&](const Value& x, const Value& y) {
    const auto p = x.as_real(), q = y.as_real();
    return p && q && (std::isnan(*p) || std::isnan(*q)) ? false : less(x, y, budget);
  };
  const auto is_nan = [](const Value& x) { return x.real() && std::isnan(*x.real()); };
  switch (op) {
    case Operator::equal:
      return equal(a, b, budget);
    case Operator::not_equal:
      return !equal(a, b, budget);
    case Operator::less:
      return order(a, b);
    case Operator::greater:
      return order(b, a);
    case Operator::less_equal:
      return !is_nan(a) && !is_nan(b) && !order(b, a);
    case Operator::greater_equal:
      return !is_nan(a) && !is_nan(b) && !order(a, b);
    case Operator::in:
      return contains(b, a, budget);
    case Operator::not_in:
      return !contains(b, a, budget);
    default:
      break;
  }
  throw TemplateError("not a comparison");
}

Value negated(const Value& value) {
  if (const auto whole = value.as_integer()) return product(*whole, -1);
  if (value.real()) return -*value.real();
  value.require_defined();
  throw TemplateError("'-' is not supported for a " + value.type_name());
}

std::vector<Value> bind_arguments(const std::string& function, Arguments arguments,
                                  std::initializer_list<const char*> names, std::size_t required) {
  if (arguments.positional.size() > names.size())
    throw TemplateError(function + " takes at most " + std::to_string(names.size()) + " arguments");
  std::vector<Value> out = std::move(arguments.positional);
  std::vector<bool> given(out.size(), true);
  out.resize(names.size());
  given.resize(names.size());
  for (auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) throw TemplateError(function + " has no argument '" + name + "'");
    const auto index = static_cast<std::size_t>(found - names.begin());
    if (given[index]) throw TemplateError(function + " is given '" + name + "' twice");
    given[index] = true;
    out[index] = std::move(value);
  }
  for (std::size_t i = 0; i < required; ++i)
    if (!given[i]) throw TemplateError(function + " needs the argument '" + names.begin()[i] + "'");
  return out;
}

}  // namespace trainer::chat
