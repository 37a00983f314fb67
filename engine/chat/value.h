// Values of a template's expressions, as Python has them: what they are, how they compare, and whether they are true.
// Values are immutable, except namespaces; lists and dicts are shared, not copied.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "engine/chat/text.h"

namespace trainer::chat {

/// A mistake of the template, or what it asks for and this interpreter does not have. Whoever runs the template adds
/// the place.
struct TemplateError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What a rendering may cost: raises TemplateError when it is spent. A unit is a step, or a byte of new text.
class Budget {
 public:
  explicit Budget(std::int64_t units) : left_(units) {}
  void spend(std::size_t units);

 private:
  std::int64_t left_;
};

class Value;
struct List;
struct Dict;
struct Namespace;
struct Function;
struct Loop;

struct Undefined {
  std::shared_ptr<const std::string> why;  ///< why there is no value, for messages
};
struct None {};

class Value {
 public:
  Value() = default;
  Value(None) : data_(None{}) {}                                              // NOLINT: a value of each kind
  Value(bool value) : data_(value) {}                                         // NOLINT
  Value(std::int64_t value) : data_(value) {}                                 // NOLINT
  Value(double value) : data_(value) {}                                       // NOLINT
  Value(Text text) : data_(std::make_shared<const Text>(std::move(text))) {}  // NOLINT
  Value(std::shared_ptr<List> list) : data_(std::move(list)) {}               // NOLINT
  Value(std::shared_ptr<Dict> dict) : data_(std::move(dict)) {}               // NOLINT
  Value(Namespace* space) : data_(space) {}                                   // NOLINT
  Value(std::shared_ptr<const Function> call) : data_(std::move(call)) {}     // NOLINT
  Value(std::shared_ptr<const Loop> loop) : data_(std::move(loop)) {}         // NOLINT
  Value(const char*) = delete;
  static Value undefined(std::string why);
  /// Text of the template.
  static Value text(std::string_view bytes) { return Value(Text(std::string(bytes))); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const std::int64_t* integer() const { return std::get_if<std::int64_t>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const Text* text() const;
  List* list() const;
  const Dict* dict() const;
  Dict* dict();
  Namespace* space() const;
  const Function* function() const;
  const Loop* loop() const;
  std::shared_ptr<List> shared_list() const { return std::get<std::shared_ptr<List>>(data_); }

  /// Whole numbers and booleans, which are whole numbers in Python.
  std::optional<std::int64_t> as_integer() const;
  /// Any number.
  std::optional<double> as_real() const;
  /// As Python's type(value).__name__.
  std::string type_name() const;
  /// Of Undefined: why.
  const std::string& why_undefined() const;
  /// Raises TemplateError if it is undefined.
  void require_defined() const;
  /// How deep lists and dicts are nested in it. What nests deeper than kMaxDepth is not made.
  int depth() const;
  static constexpr int kMaxDepth = 100;

  Origin origin = {};  ///< of numbers, booleans and None, whose text has it

 private:
  std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const Text>, std::shared_ptr<List>,
               std::shared_ptr<Dict>, Namespace*, std::shared_ptr<const Function>, std::shared_ptr<const Loop>>
      data_;
};

/// Sequences. What filters as `map` return is read once, as a Python generator is.
struct List {
  enum class Kind { list, tuple, range, view, generator };

  Kind kind = Kind::list;
  std::vector<Value> items;
  Origin origin = {};
  int depth = 1;
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  Origin origin = {};
  std::int32_t message = Origin::kNoTurn;  ///< of a message: its index
  int depth = 1;

  const Value* find(const Value& key, Budget& budget) const;
  const Value* find(std::string_view key) const;
  /// Replaces the value of a key that is there, as Python does, else adds it.
  void set(Value key, Value value, Budget& budget);

 private:
  std::unordered_map<std::string, std::size_t> index_;  // of text keys
};

/// Belongs to the interpreter.
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;

  Value* find(std::string_view name);
  void set(std::string_view name, Value value);
};

/// The arguments of a call. What takes them says which names they have.
struct Arguments {
  std::vector<Value> positional = {};
  std::vector<std::pair<std::string, Value>> named = {};
};

struct Function {
  std::string name;
  std::function<Value(Arguments)> call;
  int depth = 0;  ///< of the value that it is a method of
};

/// What `loop` is in a loop.
struct Loop {
  std::shared_ptr<const std::vector<Value>> items;
  std::size_t index = 0;
  std::int64_t depth = 0;
  std::function<Value(const Value&)> recurse = {};  ///< of recursive loops
  int items_depth = 0;
};

std::shared_ptr<List> make_list(std::vector<Value> items, List::Kind kind = List::Kind::list);
/// A function of a value, or of none.
Value make_function(std::string name, std::function<Value(Arguments)> call, const Value* self = nullptr);

/// Python's bool(value).
bool is_true(const Value& value);
/// Python's ==.
bool equal(const Value& a, const Value& b, Budget& budget);
/// Python's <; raises TemplateError where it does.
bool less(const Value& a, const Value& b, Budget& budget);
/// Python's `item in container`.
bool contains(const Value& container, const Value& item, Budget& budget);
/// Python's len(value).
std::size_t length(const Value& value);
/// Python's list(value): takes what is left of a generator.
std::vector<Value> items_of(const Value& value, Budget& budget);
bool is_iterable(const Value& value);

}  // namespace trainer::chat
