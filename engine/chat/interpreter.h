// Runs a template. Bounds on time, text and depth hold for any template; the place of what fails is known.
#pragma once

#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/chat/parser.h"
#include "engine/chat/scope.h"
#include "engine/chat/value.h"

namespace trainer::chat {

struct RunInput {
  std::vector<std::pair<std::string, Value>> variables = {};
  std::tm now = {};
};

/// A TemplateError with its place.
struct RunError : std::runtime_error {
  RunError(const std::string& what, std::size_t offset, bool refused)
      : std::runtime_error(what), offset(offset), refused(refused) {}
  std::size_t offset;
  bool refused;  ///< raise_exception was called
};

class Interpreter {
 public:
  /// REQUIRES: both outlive it.
  Interpreter(const ParsedTemplate& parsed, const RunInput& input, Budget& budget);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;

  /// Once. Raises RunError.
  Text run();

 private:
  struct Deeper {
    static constexpr int kMaxDepth = 600;

    explicit Deeper(Interpreter& interpreter) : interpreter_(interpreter) {
      if (++interpreter_.depth_ <= kMaxDepth) return;
      --interpreter_.depth_;
      throw TemplateError("macros or blocks are nested too deeply");
    }
    ~Deeper() { --interpreter_.depth_; }
    Interpreter& interpreter_;
  };
  enum class Flow { next, break_loop, continue_loop };

  // Statements.
  Flow run(const Block& block, Scope& scope);
  Flow run(const Statement& statement, Scope& scope);
  Flow run_branch(const Statement& statement, Scope& scope);
  Flow run_loop(const Statement& statement, Scope& scope, const Value& items, std::int64_t depth);
  std::int32_t turn_of(const Statement& loop, const Value& item, Scope& scope);
  void run_set(const Statement& statement, Scope& scope);
  Flow run_with(const Statement& statement, Scope& scope);
  void run_call(const Statement& statement, Scope& scope);
  Text captured(const Block& block, Scope& scope);
  Value filtered(const Expression* filters, Value value, Scope& scope);
  void assign(const Target& target, Value value, Scope& scope);
  Value macro_of(const Statement& statement, std::string name, Scope& scope);
  Value call_macro(const Statement& macro, const std::string& name, Scope& defined, Arguments arguments);
  void write(Text text);
  void keep(std::unique_ptr<Scope> scope);

  // Expressions.
  Value evaluate(const Expression& node, Scope& scope);
  Value evaluate_kind(const Expression& node, Scope& scope);
  Value name_of(const Expression& node, Scope& scope);
  Value dict_of(const Expression& node, Scope& scope);
  Value compared(const Expression& node, Scope& scope);
  Value joined(const Expression& node, Scope& scope);
  Value item(const Expression& node, Scope& scope);
  Value called(const Expression& node, Scope& scope, const Value* caller);
  Arguments arguments_of(const Expression& node, Scope& scope);
  Value with_turn(Value value) const;

  const ParsedTemplate& parsed_;
  const RunInput& input_;
  Budget& budget_;
  std::deque<std::unique_ptr<Scope>> kept_;  // that macros were defined in
  std::deque<std::unique_ptr<Namespace>> namespaces_;
  Text* out_ = nullptr;
  std::int32_t turn_ = Origin::kNoTurn;
  std::size_t at_ = 0;  // the offset of what is being done
  int depth_ = 0;
};

}  // namespace trainer::chat
