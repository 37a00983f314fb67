// The parser of expressions, and the stream of tokens that it shares with the parser of statements.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/lexer.h"
#include "engine/chat/syntax.h"

namespace trainer::chat {

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool skip_name(std::string_view name);
  bool skip_symbol(std::string_view symbol);
  void expect_symbol(std::string_view symbol);
  std::string expect_name();
  [[noreturn]] void fail_expected(const std::string& what) const;

  ExpressionPtr parse_expression(bool with_condition = true);
  /// Expressions with commas between them are a tuple. `end`: a name that ends it, as `in`.
  ExpressionPtr parse_tuple(bool with_condition = true, std::string_view end = {}, bool in_parentheses = false);
  /// `| filter(…)` as often as it comes, on `value`, which is null in blocks. Without `|` before the first one where
  /// `begins`.
  ExpressionPtr parse_filters(ExpressionPtr value, bool begins = false);
  ExpressionPtr parse_primary();

  std::vector<std::string> names_;  ///< that expressions have named so far

 private:
  struct Deeper;

  ExpressionPtr make(Expression::Kind kind, std::size_t offset) const;
  ExpressionPtr finish(ExpressionPtr node) const;
  ExpressionPtr make_two(Expression::Kind kind, ExpressionPtr left, ExpressionPtr right, std::size_t offset) const;
  ExpressionPtr parse_condition();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filter = true);
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_subscript(ExpressionPtr node);
  ExpressionPtr parse_subscribed(ExpressionPtr node, std::size_t offset);
  ExpressionPtr parse_test(ExpressionPtr node);
  void parse_arguments(Expression& call);
  ExpressionPtr parse_items(Expression::Kind kind, std::string_view close);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace trainer::chat
