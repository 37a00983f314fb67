// Members, items, slices and calls behind a value.
#include "engine/chat/expression_parser.h"

namespace trainer::chat {

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr node) {
  while (true) {
    if (current().is(".") || current().is("[")) {
      node = parse_subscript(std::move(node));
    } else if (current().is("(")) {
      ExpressionPtr call = make(Expression::Kind::call, current().offset);
      call->parts.push_back(std::move(node));
      parse_arguments(*call);
      node = finish(std::move(call));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr node) {
  const std::size_t offset = current().offset;
  if (!next().is(".")) return parse_subscribed(std::move(node), offset);
  if (current().kind == Token::Kind::integer) {
    ExpressionPtr key = make(Expression::Kind::constant, current().offset);
    key->value = Value(next().integer);
    return make_two(Expression::Kind::item, std::move(node), std::move(key), offset);
  }
  ExpressionPtr attribute = make(Expression::Kind::attribute, offset);
  attribute->text = expect_name();
  attribute->parts.push_back(std::move(node));
  return finish(std::move(attribute));
}

ExpressionPtr ExpressionParser::parse_subscribed(ExpressionPtr node, std::size_t offset) {
  ExpressionPtr slice = make(Expression::Kind::slice, current().offset);
  slice->parts.resize(3);
  bool is_slice = false;
  if (!current().is(":")) slice->parts[0] = parse_expression();
  for (std::size_t i = 1; i < 3 && skip_symbol(":"); ++i) {
    is_slice = true;
    if (!current().is(":") && !current().is("]")) slice->parts[i] = parse_expression();
  }
  if (current().is(",")) throw SyntaxError("an index of several values is not supported", current().offset);
  expect_symbol("]");
  ExpressionPtr key = is_slice ? finish(std::move(slice)) : std::move(slice->parts[0]);
  return make_two(Expression::Kind::item, std::move(node), std::move(key), offset);
}

void ExpressionParser::parse_arguments(Expression& call) {
  expect_symbol("(");
  bool comma = false;
  while (!current().is(")")) {
    if (comma) expect_symbol(",");
    if (comma && current().is(")")) break;
    comma = true;
    const std::size_t offset = current().offset;
    const auto ensure = [&](bool holds) {
      if (!holds) throw SyntaxError("an argument that cannot stand here", offset);
    };
    if (skip_symbol("*")) {
      ensure(!call.more_positional && !call.more_named);
      call.more_positional = parse_expression();
    } else if (skip_symbol("**")) {
      ensure(!call.more_named);
      call.more_named = parse_expression();
    } else if (current().kind == Token::Kind::name && ahead().is("=")) {
      ensure(!call.more_named);
      std::string name = next().text;
      next();
      for (const auto& [other, value] : call.named) ensure(other != name);
      call.named.emplace_back(std::move(name), parse_expression());
    } else {
      ensure(!call.more_positional && !call.more_named && call.named.empty());
      call.positional.push_back(parse_expression());
    }
  }
  expect_symbol(")");
}

}  // namespace trainer::chat
