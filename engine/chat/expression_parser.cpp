// The parser of expressions: recursive descent, a function for each level of precedence, to a bounded depth.
#include <algorithm>
#include <array>

#include "engine/chat/expression_parser.h"
#include "engine/core/printable.h"

namespace trainer::chat {
namespace {

constexpr int kMaxNesting = 100;  // of the parser
constexpr int kMaxDepth = 400;    // of trees, which chains as a ~ b ~ c make deep as well

using Kind = Expression::Kind;

std::string described(const Token& token) {
  switch (token.kind) {
    case Token::Kind::data:
      return "text";
    case Token::Kind::print_begin:
      return "'{{'";
    case Token::Kind::print_end:
      return "'}}'";
    case Token::Kind::block_begin:
      return "'{%'";
    case Token::Kind::block_end:
      return "'%}'";
    case Token::Kind::text:
      return "a string";
    case Token::Kind::end:
      return "the end of the template";
    default:
      return "'" + printable(token.text) + "'";
  }
}

struct Symbol {
  std::string_view text;
  Operator meaning;
};
constexpr std::array<Symbol, 6> kComparisons{{{"==", Operator::equal},
                                              {"!=", Operator::not_equal},
                                              {"<", Operator::less},
                                              {"<=", Operator::less_equal},
                                              {">", Operator::greater},
                                              {">=", Operator::greater_equal}}};
constexpr std::array<Symbol, 4> kProducts{
    {{"*", Operator::multiply}, {"/", Operator::divide}, {"//", Operator::floor_divide}, {"%", Operator::modulo}}};

template <std::size_t n>
const Symbol* among(const std::array<Symbol, n>& symbols, const Token& token) {
  if (token.kind != Token::Kind::symbol) return nullptr;
  const auto found =
      std::find_if(symbols.begin(), symbols.end(), [&](const Symbol& s) { return s.text == token.text; });
  return found == symbols.end() ? nullptr : &*found;
}

}  // namespace

struct ExpressionParser::Deeper {
  explicit Deeper(ExpressionParser& parser) : parser_(parser) {
    if (++parser_.depth_ > kMaxNesting)
      throw SyntaxError("the expression is nested too deeply", parser_.current().offset);
  }
  ~Deeper() { --parser_.depth_; }
  ExpressionParser& parser_;
};

bool ExpressionParser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  next();
  return true;
}

bool ExpressionParser::skip_symbol(std::string_view symbol) {
  if (!current().is(symbol)) return false;
  next();
  return true;
}

void ExpressionParser::expect_symbol(std::string_view symbol) {
  if (!skip_symbol(symbol)) fail_expected("'" + std::string(symbol) + "'");
}

std::string ExpressionParser::expect_name() {
  if (current().kind != Token::Kind::name) fail_expected("a name");
  return next().text;
}

void ExpressionParser::fail_expected(const std::string& what) const {
  throw SyntaxError(what + " is expected, not " + described(current()), current().offset);
}

ExpressionPtr ExpressionParser::make(Kind kind, std::size_t offset) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->offset = offset;
  return node;
}

ExpressionPtr ExpressionParser::finish(ExpressionPtr node) const {
  const auto count = [&](const ExpressionPtr& part) {
    if (part) node->depth = std::max(node->depth, part->depth + 1);
  };
  for (const ExpressionPtr& part : node->parts) count(part);
  for (const ExpressionPtr& part : node->positional) count(part);
  for (const auto& [name, part] : node->named) count(part);
  count(node->more_positional);
  count(node->more_named);
  if (node->depth > kMaxDepth) throw SyntaxError("the expression is nested too deeply", node->offset);
  return node;
}

ExpressionPtr ExpressionParser::make_two(Kind kind, ExpressionPtr left, ExpressionPtr right, std::size_t offset) const {
  ExpressionPtr node = make(kind, offset);
  node->parts.push_back(std::move(left));
  node->parts.push_back(std::move(right));
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::parse_expression(bool with_condition) {
  const Deeper deeper(*this);
  return with_condition ? parse_condition() : parse_or();
}

ExpressionPtr ExpressionParser::parse_condition() {
  const Deeper deeper(*this);
  ExpressionPtr node = parse_or();
  while (current().is_name("if")) {
    ExpressionPtr condition = make(Kind::condition, next().offset);
    condition->parts.push_back(parse_or());
    condition->parts.push_back(std::move(node));
    condition->parts.push_back(skip_name("else") ? parse_condition() : nullptr);
    node = finish(std::move(condition));
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  while (current().is_name("or")) {
    const std::size_t offset = next().offset;
    left = make_two(Kind::logical_or, std::move(left), parse_and(), offset);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (current().is_name("and")) {
    const std::size_t offset = next().offset;
    left = make_two(Kind::logical_and, std::move(left), parse_not(), offset);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const Deeper deeper(*this);
  ExpressionPtr node = make(Kind::logical_not, next().offset);
  node->parts.push_back(parse_not());
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::parse_compare() {
  ExpressionPtr first = parse_sum();
  ExpressionPtr node = make(Kind::compare, current().offset);
  while (true) {
    if (const Symbol* symbol = among(kComparisons, current())) {
      next();
      node->operators.push_back(symbol->meaning);
    } else if (skip_name("in")) {
      node->operators.push_back(Operator::in);
    } else if (current().is_name("not") && ahead().is_name("in")) {
      next();
      next();
      node->operators.push_back(Operator::not_in);
    } else {
      break;
    }
    if (node->parts.empty()) node->parts.push_back(std::move(first));
    node->parts.push_back(parse_sum());
  }
  return node->parts.empty() ? std::move(first) : finish(std::move(node));
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concat();
  while (current().is("+") || current().is("-")) {
    const Operator meaning = current().is("+") ? Operator::add : Operator::subtract;
    const std::size_t offset = next().offset;
    left = make_two(Kind::binary, std::move(left), parse_concat(), offset);
    left->operators = {meaning};
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concat() {
  ExpressionPtr first = parse_product();
  if (!current().is("~")) return first;
  ExpressionPtr node = make(Kind::concat, current().offset);
  node->parts.push_back(std::move(first));
  while (skip_symbol("~")) node->parts.push_back(parse_product());
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::parse_product() {
  ExpressionPtr left = parse_power();
  while (const Symbol* symbol = among(kProducts, current())) {
    const std::size_t offset = next().offset;
    left = make_two(Kind::binary, std::move(left), parse_power(), offset);
    left->operators = {symbol->meaning};
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary();
  while (current().is("**")) {
    const std::size_t offset = next().offset;
    left = make_two(Kind::binary, std::move(left), parse_unary(), offset);
    left->operators = {Operator::power};
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filter) {
  ExpressionPtr node;
  if (current().is("-") || current().is("+")) {
    const Deeper deeper(*this);
    node = make(current().is("-") ? Kind::negate : Kind::plus, current().offset);
    next();
    node->parts.push_back(parse_unary(false));
    node = finish(std::move(node));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  while (with_filter) {
    if (current().is("|")) {
      node = parse_filters(std::move(node));
    } else if (current().is_name("is")) {
      node = parse_test(std::move(node));
    } else if (current().is("(")) {
      node = parse_postfix(std::move(node));
    } else {
      break;
    }
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Token& token = current();
  ExpressionPtr node = make(Kind::constant, token.offset);
  if (token.kind == Token::Kind::name) {
    const std::string& name = next().text;
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      node->value = Value(name == "true" || name == "True");
    } else if (name == "none" || name == "None") {
      node->value = Value(None{});
    } else {
      node->kind = Kind::name;
      node->text = name;
      names_.push_back(name);
    }
    return node;
  }
  if (token.kind == Token::Kind::text) {
    std::string all;
    while (current().kind == Token::Kind::text) all += next().text;
    node->value = Value::text(all);
    return node;
  }
  if (token.kind == Token::Kind::integer || token.kind == Token::Kind::real) {
    node->value = token.kind == Token::Kind::integer ? Value(token.integer) : Value(token.real);
    next();
    return node;
  }
  if (token.is("(")) {
    next();
    node = parse_tuple(true, {}, true);
    expect_symbol(")");
    return node;
  }
  if (token.is("[")) return parse_items(Kind::list, "]");
  if (token.is("{")) return parse_items(Kind::dict, "}");
  fail_expected("an expression");
}

ExpressionPtr ExpressionParser::parse_items(Kind kind, std::string_view close) {
  ExpressionPtr node = make(kind, next().offset);
  while (!current().is(close)) {
    if (!node->parts.empty()) expect_symbol(",");
    if (current().is(close)) break;
    node->parts.push_back(parse_expression());
    if (kind != Kind::dict) continue;
    expect_symbol(":");
    node->parts.push_back(parse_expression());
  }
  expect_symbol(close);
  return finish(std::move(node));
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_condition, std::string_view end, bool in_parentheses) {
  ExpressionPtr node = make(Kind::tuple, current().offset);
  bool is_tuple = false;
  while (true) {
    if (!node->parts.empty()) expect_symbol(",");
    if (current().kind == Token::Kind::print_end || current().kind == Token::Kind::block_end || current().is(")") ||
        (!end.empty() && current().is_name(end)))
      break;
    node->parts.push_back(parse_expression(with_condition));
    if (!current().is(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return finish(std::move(node));
  if (!node->parts.empty()) return std::move(node->parts.front());
  if (!in_parentheses) fail_expected("an expression");
  return node;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr value, bool begins) {
  while (current().is("|") || begins) {
    if (!begins) next();
    begins = false;
    ExpressionPtr filter = make(Kind::filter, current().offset);
    filter->text = expect_name();
    filter->parts.push_back(std::move(value));
    if (current().is("(")) parse_arguments(*filter);
    value = finish(std::move(filter));
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr node) {
  next();
  const bool negated = skip_name("not");
  ExpressionPtr test = make(Kind::test, current().offset);
  test->text = expect_name();
  test->parts.push_back(std::move(node));
  const Token& token = current();
  const bool value =
      token.kind == Token::Kind::text || token.kind == Token::Kind::integer || token.kind == Token::Kind::real ||
      token.is("[") || token.is("{") ||
      (token.kind == Token::Kind::name && !token.is_name("else") && !token.is_name("or") && !token.is_name("and"));
  if (token.is("(")) {
    parse_arguments(*test);
  } else if (value) {
    if (token.is_name("is")) throw SyntaxError("tests cannot follow each other", token.offset);
    test->positional.push_back(parse_postfix(parse_primary()));
  }
  const std::size_t offset = test->offset;
  test = finish(std::move(test));
  if (!negated) return test;
  ExpressionPtr whole = make(Kind::logical_not, offset);
  whole->parts.push_back(std::move(test));
  return finish(std::move(whole));
}

}  // namespace trainer::chat
