// The parser of statements: a function for each tag. Expressions are parsed by its base, ExpressionParser.
#include "engine/chat/parser.h"

#include <algorithm>
#include <array>

#include "engine/chat/expression_parser.h"
#include "engine/core/printable.h"

namespace trainer::chat {
namespace {

constexpr int kMaxBlocks = 60;

using Ends = std::initializer_list<std::string_view>;
using Kind = Statement::Kind;

/// The container of the first `container[index]` below an expression, whose index is the name.
const Expression* find_indexed(const Expression* node, const std::string& index) {
  if (node == nullptr) return nullptr;
  if (node->kind == Expression::Kind::item && node->parts[1]->kind == Expression::Kind::name &&
      node->parts[1]->text == index)
    return node->parts[0].get();
  const Expression* found = nullptr;
  const auto look = [&](const ExpressionPtr& part) {
    if (found == nullptr) found = find_indexed(part.get(), index);
  };
  for (const ExpressionPtr& part : node->parts) look(part);
  for (const ExpressionPtr& part : node->positional) look(part);
  for (const auto& [name, part] : node->named) look(part);
  return found;
}

const Expression* find_indexed(const Block& block, const std::string& index) {
  for (const auto& statement : block) {
    for (const ExpressionPtr& expression : statement->expressions)
      if (const Expression* found = find_indexed(expression.get(), index)) return found;
    for (const Block& body : statement->bodies)
      if (const Expression* found = find_indexed(body, index)) return found;
  }
  return nullptr;
}

class Parser : ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  ParsedTemplate run() {
    ParsedTemplate out;
    out.body = parse_block({}, 0);
    out.has_generation = has_generation_;
    return out;
  }

 private:
  using StatementPtr = std::unique_ptr<Statement>;

  StatementPtr make(Kind kind, std::size_t offset) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->offset = offset;
    return statement;
  }

  void expect_block_end() {
    if (current().kind != Token::Kind::block_end) fail_expected("'%}'");
    next();
  }

  // To a tag of one of the names, which is the current token then; without names to the end of the template.
  Block parse_block(Ends ends, std::size_t opened) {
    if (++blocks_ > kMaxBlocks) throw SyntaxError("blocks are nested too deeply", opened);
    Block body;
    while (true) {
      const Token& token = current();
      if (token.kind == Token::Kind::end) {
        if (ends.size() != 0)
          throw SyntaxError("this block has no {% " + std::string(*(ends.end() - 1)) + " %}", opened);
        break;
      }
      if (token.kind == Token::Kind::data) {
        body.push_back(make(Kind::data, token.offset));
        body.back()->text = next().text;
        continue;
      }
      if (token.kind == Token::Kind::print_begin) {
        next();
        body.push_back(make(Kind::print, token.offset));
        body.back()->expressions.push_back(parse_tuple());
        if (current().kind != Token::Kind::print_end) fail_expected("'}}'");
        next();
        continue;
      }
      next();  // {%
      if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return current().is_name(end); })) break;
      body.push_back(parse_statement());
      expect_block_end();
    }
    --blocks_;
    return body;
  }

  // Behind a block's opening tag: its body, and the closing tag's name.
  Block parse_body(Ends ends, std::size_t opened) {
    skip_symbol(":");
    expect_block_end();
    return parse_block(ends, opened);
  }

  void parse_whole_body(Statement& statement, std::string_view end) {
    statement.bodies.push_back(parse_body({end}, statement.offset));
    next();
  }

  StatementPtr parse_statement() {
    const Token& token = current();
    if (token.kind != Token::Kind::name) fail_expected("the name of a tag");
    const std::string& name = token.text;
    if (name == "set") return parse_set();
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "macro") return parse_macro();
    if (name == "call") return parse_call();
    if (name == "filter") return parse_filter();
    if (name == "with") return parse_with();
    if (name == "print") return parse_print();
    next();
    if (name == "generation") {
      has_generation_ = true;
      StatementPtr statement = make(Kind::generation, token.offset);
      parse_whole_body(*statement, "endgeneration");
      return statement;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) throw SyntaxError("'" + name + "' outside of a loop", token.offset);
      return make(name == "break" ? Kind::break_loop : Kind::continue_loop, token.offset);
    }
    constexpr std::array<std::string_view, 8> kLeftOut{"block", "extends", "include",    "import",
                                                       "from",  "do",      "autoescape", "trans"};
    if (std::find(kLeftOut.begin(), kLeftOut.end(), name) != kLeftOut.end())
      throw SyntaxError("{% " + name + " %} is not supported in chat templates", token.offset);
    throw SyntaxError("an unknown tag '" + printable(name) + "'", token.offset);
  }

  Target parse_target(std::string_view end = {}) {
    Target whole = {.is_tuple = false, .offset = current().offset};
    while (true) {
      const bool over = current().kind == Token::Kind::block_end || current().is(")") || current().is("=") ||
                        (!end.empty() && current().is_name(end));
      if (over && !whole.parts.empty()) break;
      Target one = {.offset = current().offset};
      if (skip_symbol("(")) {
        if (++blocks_ > kMaxBlocks) throw SyntaxError("the target is nested too deeply", one.offset);
        one = parse_target();
        --blocks_;
        expect_symbol(")");
      } else {
        one.name = expect_name();
        if (end.empty() && skip_symbol(".")) one.attribute = expect_name();
        for (const char* fixed : {"true", "false", "none", "True", "False", "None"})
          if (one.name == fixed) throw SyntaxError("'" + one.name + "' cannot be assigned to", one.offset);
      }
      whole.parts.push_back(std::move(one));
      if (!skip_symbol(",")) break;
      whole.is_tuple = true;
    }
    return whole.is_tuple ? std::move(whole) : Target(std::move(whole.parts.front()));
  }

  StatementPtr parse_set() {
    StatementPtr statement = make(Kind::set, next().offset);
    statement->targets.push_back(parse_target());
    if (skip_symbol("=")) {
      statement->expressions.push_back(parse_tuple());
      return statement;
    }
    statement->kind = Kind::set_block;
    if (current().is("|")) statement->expressions.push_back(parse_filters(nullptr));
    parse_whole_body(*statement, "endset");
    return statement;
  }

  StatementPtr parse_if() {
    StatementPtr statement = make(Kind::branch, current().offset);
    while (true) {
      next();  // if, elif
      statement->expressions.push_back(parse_tuple(false));
      statement->bodies.push_back(parse_body({"elif", "else", "endif"}, statement->offset));
      if (current().is_name("elif")) continue;
      if (next().text == "endif") return statement;
      parse_whole_body(*statement, "endif");
      return statement;
    }
  }

  StatementPtr parse_for() {
    StatementPtr statement = make(Kind::loop, next().offset);
    statement->targets.push_back(parse_target("in"));
    if (!skip_name("in")) fail_expected("'in'");
    statement->expressions.push_back(parse_tuple(false, "recursive"));
    statement->expressions.push_back(skip_name("if") ? parse_expression() : nullptr);
    statement->recursive = skip_name("recursive");
    ++loops_;
    statement->bodies.push_back(parse_body({"else", "endfor"}, statement->offset));
    --loops_;
    if (next().text == "else") parse_whole_body(*statement, "endfor");
    const Target& target = statement->targets.front();
    if (!target.is_tuple && target.attribute.empty())
      statement->message = find_indexed(statement->bodies.front(), target.name);
    return statement;
  }

  void parse_parameters(Statement& statement) {
    expect_symbol("(");
    while (!current().is(")")) {
      if (!statement.parameters.empty()) expect_symbol(",");
      const std::size_t offset = current().offset;
      Parameter parameter{expect_name(), nullptr};
      if (skip_symbol("="))
        parameter.otherwise = parse_expression();
      else if (!statement.parameters.empty() && statement.parameters.back().otherwise)
        throw SyntaxError("a parameter without a default behind one that has one", offset);
      statement.parameters.push_back(std::move(parameter));
    }
    expect_symbol(")");
  }

  // The body of a macro or a call, and which of the special names it uses.
  void parse_callable(Statement& statement, std::string_view end) {
    const std::size_t before = names_.size();
    const int loops = std::exchange(loops_, 0);
    parse_whole_body(statement, end);
    loops_ = loops;
    const auto uses = [&](std::string_view name) {
      return std::find(names_.begin() + static_cast<std::ptrdiff_t>(before), names_.end(), name) != names_.end();
    };
    statement.uses_varargs = uses("varargs");
    statement.uses_kwargs = uses("kwargs");
    statement.uses_caller = uses("caller");
  }

  StatementPtr parse_macro() {
    StatementPtr statement = make(Kind::macro, next().offset);
    statement->text = expect_name();
    parse_parameters(*statement);
    parse_callable(*statement, "endmacro");
    return statement;
  }

  StatementPtr parse_call() {
    StatementPtr statement = make(Kind::call, next().offset);
    if (current().is("(")) parse_parameters(*statement);
    statement->expressions.push_back(parse_expression());
    if (statement->expressions.front()->kind != Expression::Kind::call)
      throw SyntaxError("{% call %} needs a call", statement->offset);
    parse_callable(*statement, "endcall");
    return statement;
  }

  StatementPtr parse_filter() {
    StatementPtr statement = make(Kind::filter, next().offset);
    statement->expressions.push_back(parse_filters(nullptr, true));
    parse_whole_body(*statement, "endfilter");
    return statement;
  }

  StatementPtr parse_with() {
    StatementPtr statement = make(Kind::with, next().offset);
    while (current().kind != Token::Kind::block_end) {
      if (!statement->targets.empty()) expect_symbol(",");
      statement->targets.push_back(parse_target());
      expect_symbol("=");
      statement->expressions.push_back(parse_expression());
    }
    parse_whole_body(*statement, "endwith");
    return statement;
  }

  StatementPtr parse_print() {
    StatementPtr statement = make(Kind::print, next().offset);
    while (current().kind != Token::Kind::block_end) {
      if (!statement->expressions.empty()) expect_symbol(",");
      statement->expressions.push_back(parse_expression());
    }
    return statement;
  }

  int blocks_ = 0, loops_ = 0;
  bool has_generation_ = false;
};

}  // namespace

ParsedTemplate parse_template(std::string_view text) { return Parser(tokenize_template(text)).run(); }

}  // namespace trainer::chat
