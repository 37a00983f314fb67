// A template as a tree.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/chat/value.h"

namespace trainer::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class Operator {
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  in,
  not_in
};

struct Expression {
  enum class Kind {
    constant,     ///< value
    name,         ///< text
    list,         ///< parts
    tuple,        ///< parts
    dict,         ///< parts: key, value, key, value, …
    condition,    ///< parts: test, then, else or null
    logical_and,  ///< parts: two
    logical_or,
    logical_not,  ///< parts: one
    compare,      ///< parts, with operators between them
    binary,       ///< parts: two, and operators: one
    concat,       ///< parts: any number
    negate,       ///< parts: one
    plus,
    attribute,  ///< parts: one; text: its name
    item,       ///< parts: the container and the key
    slice,      ///< parts: start, stop, step, each or null
    call,       ///< parts: what is called; arguments
    filter,     ///< parts: the value, null in blocks; text; arguments
    test        ///< parts: the value; text; arguments
  };

  Kind kind = Kind::constant;
  std::size_t offset = 0;
  int depth = 1;  ///< of the tree below it
  std::string text = {};
  Value value = {};
  std::vector<ExpressionPtr> parts = {};
  std::vector<Operator> operators = {};
  std::vector<ExpressionPtr> positional = {};
  std::vector<std::pair<std::string, ExpressionPtr>> named = {};
  ExpressionPtr more_positional = nullptr, more_named = nullptr;  ///< of `*list` and `**dict`
};

/// What a value is assigned to: a name, an attribute of a namespace, or several targets.
struct Target {
  std::string name = {};
  std::string attribute = {};
  std::vector<Target> parts = {};
  bool is_tuple = false;
  std::size_t offset = 0;
};

struct Parameter {
  std::string name;
  ExpressionPtr otherwise;  ///< null where there is no default
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct Statement {
  enum class Kind {
    data,        ///< text
    print,       ///< expressions
    set,         ///< target, expressions: one
    set_block,   ///< target, expressions: filters or none; body
    branch,      ///< expressions: the tests; bodies: one for each, and one more for `else`
    loop,        ///< target; expressions: what is iterated over, and the test or null; bodies: one, or two with `else`
    macro,       ///< name, parameters, body
    call,        ///< parameters of `caller`; expressions: the call; body
    filter,      ///< expressions: the filters; body
    with,        ///< targets, expressions, body
    generation,  ///< body
    break_loop,
    continue_loop
  };

  Kind kind = Kind::data;
  std::size_t offset = 0;
  std::string text = {};
  std::vector<Target> targets = {};
  std::vector<ExpressionPtr> expressions = {};
  std::vector<Block> bodies = {};
  std::vector<Parameter> parameters = {};
  bool recursive = false;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
  const Expression* message =
      nullptr;  ///< of a loop over indices: `messages` in the first `messages[index]` of its body
};

}  // namespace trainer::chat
