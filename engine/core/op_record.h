// OpRecord: what is said of an op once and read everywhere: its traits, its operands by name, its attributes with their
// types and their one default, the class of its work. Kernels, planning, prediction and documents read it. What needs a
// graph (shapes, gradient, placement, FLOPs) is the op's OpDef (engine/ops/op_def.h). Every op has one, in the file of
// its family in engine/core/records/.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/attributes.h"
#include "engine/core/op.h"
#include "engine/core/signature.h"

namespace trainer {

enum class Trait : std::uint8_t {
  graph_file,   ///< a graph file may name it
  backward,     ///< the gradient of another op, or a part of one
  elementwise,  ///< an element of the output depends on the same element of the first input, and on no other element of
                ///< it
  keeps_columns,  ///< columns that are cut over ranks stay so: it may stand between the two products of a
                  ///< tensor-parallel pair
  costly,         ///< selective recomputation keeps its result and does not repeat it
  norm,
  view,        ///< its output is its input's memory, and nothing is launched
  collective,  ///< joins ranks (Node::axes) and launches no kernel; `replicate` joins them in its gradient and is none
  composite,   ///< of graph files: stands for several nodes (engine/transform/experts.cpp), and is in no graph
  random,      ///< takes Graph::step after its inputs and the attribute `key`; vanishes outside training and with p = 0
  scratch,     ///< on some device its kernel needs memory beside its operands: Target::workspace_bytes
};

class Traits {
 public:
  Traits() = default;
  Traits(std::initializer_list<Trait> traits) {
    for (Trait trait : traits) mask_ |= bit(trait);
  }
  bool has(Trait trait) const { return (mask_ & bit(trait)) != 0; }

 private:
  static std::uint32_t bit(Trait trait) { return std::uint32_t{1} << static_cast<unsigned>(trait); }
  std::uint32_t mask_ = 0;
};

/// What bounds a kernel, and by what its time is looked up (engine/cost/work.h).
enum class WorkClass : std::uint8_t {
  none,         ///< never launched
  elements,     ///< one pass; time goes by the elements of the largest operand
  rows,         ///< one pass over the rows of the first operand
  scalars,      ///< a few numbers: the time of a call
  own,          ///< one pass whose name and sizes are a case of engine/cost/work.cpp
  product,      ///< a matrix product
  convolution,  ///< an implicit one
  attention,
  orthogonalize,  ///< Muon's products
};

/// One attribute. It has to be given, unless `otherwise` or `absent` says what its absence means.
struct AttributeDef {
  /// Of graph files only: rope is "none" or a mapping, passed on as text (engine/core/rope.h); node is the name of a
  /// weight or an input; dims is a list of sizes, passed on as text "4,16,-1"; pieces is a mapping of names to sizes,
  /// passed on as text "gate:128,up:128", and each piece is a value that other nodes read as "<node>.gate".
  enum class Type : std::uint8_t { flag, integer, real, choice, text, rope, node, dims, pieces };
  /// Who gives it: a graph file, which OpDef::infer makes others of; the planner to a kernel; or a graph file, and the
  /// kernel gets the same.
  enum class Use : std::uint8_t { file, kernel, both };
  std::string_view name;
  Type type;
  std::optional<Attribute> otherwise{};  ///< the value that every reader gets in its absence
  std::string_view absent{};             ///< what absence means where no value says it
  Use use = Use::kernel;
  std::vector<std::string_view> choices{};                 ///< of a choice
  double least = 0;                                        ///< smallest number that a graph file may give
  double below = std::numeric_limits<double>::infinity();  ///< every such number is smaller
  bool above = false;                                      ///< every such number is greater than `least`
  std::string_view help{};                                 ///< one line for the schema of graph files

  bool in_file() const { return use != Use::kernel; }
  bool in_kernel() const { return use != Use::file; }
  bool required() const { return !otherwise && absent.empty(); }
};

/// One operand, in the order of Signature::operands. Updated ones stand among the inputs and once only.
struct OperandDef {
  enum class Role : std::uint8_t { input, parameter, update, output };
  std::string_view name;
  std::string_view what;  ///< dtype and shape, in the words of kernels/README.md
  Role role;
  std::string_view when{};  ///< it is there if this flag is set; "!flag": if it is not
  std::string_view over{};  ///< names of inputs whose memory this output may be, with blanks between
  bool adds = false;        ///< the attribute `accumulate` adds to this output
  bool state = false;       ///< of an optimizer: as u8 it is followed by an operand with its scales
  bool many = false;        ///< any number of operands from 1 on
};

struct OpRecord {
  Op op;
  Traits traits{};
  std::vector<OperandDef> operands{};
  std::vector<AttributeDef> attributes{};
  WorkClass work = WorkClass::elements;
  std::string_view timed_as{};  ///< the op that has been measured in its place, where that is not it
  double bandwidth = 1;         ///< of what a copy reaches, on GPUs
  std::string_view note{};      ///< what kernels/README.md adds to the operands

  bool has(Trait trait) const { return traits.has(trait); }
  const AttributeDef* attribute(std::string_view name) const;  ///< null: it has none
  bool adds() const;                                           ///< whether an output may be added to
};

const OpRecord& record(Op op);

inline bool has(Op op, Trait trait) { return record(op).has(trait); }

/// Where the operands of one OperandDef stand in a signature: `count` of them, 0 if it is not there.
struct OperandPlace {
  const OperandDef* def;
  int first, count;
};
/// In the order of the record; they may go beyond the operands of a signature that is wrong.
std::vector<OperandPlace> operand_places(const Signature& signature);

/// Where operand `name` stands in a signature; -1: it is not there. Raises Bug if the op has no such operand.
int operand_index(const Signature& signature, std::string_view name);

/// Raises Bug unless the operands are as many as the record says, and the attributes those that it names, of their
/// types.
void expect_recorded(const Signature& signature);

/// Pairs (input, output) whose memory may be the same.
std::vector<std::pair<int, int>> in_place_of(const OpRecord& record);

/// Attribute `name` as given, else the record's default. Raises Bug where the op has no such attribute, where it has to
/// be given, and where its absence is no value (given_integer).
bool flag_of(Op op, const Attributes& attributes, std::string_view name);
std::int64_t integer_of(Op op, const Attributes& attributes, std::string_view name);
double real_of(Op op, const Attributes& attributes, std::string_view name);
const std::string& text_of(Op op, const Attributes& attributes, std::string_view name);
/// Of an attribute whose absence is no value: as given, or nothing.
std::optional<std::int64_t> given_integer_of(Op op, const Attributes& attributes, std::string_view name);

// The same of a Signature, or a Node.
template <typename T>
bool flag(const T& it, std::string_view name) {
  return flag_of(it.op, it.attributes, name);
}
template <typename T>
std::int64_t integer(const T& it, std::string_view name) {
  return integer_of(it.op, it.attributes, name);
}
template <typename T>
double real(const T& it, std::string_view name) {
  return real_of(it.op, it.attributes, name);
}
template <typename T>
const std::string& text(const T& it, std::string_view name) {
  return text_of(it.op, it.attributes, name);
}
template <typename T>
std::optional<std::int64_t> given_integer(const T& it, std::string_view name) {
  return given_integer_of(it.op, it.attributes, name);
}

/// Whether a kernel adds to its outputs.
template <typename T>
bool accumulates(const T& it) {
  return record(it.op).adds() && flag(it, "accumulate");
}

}  // namespace trainer
