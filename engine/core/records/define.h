// What the records of a family are written with: one word for each kind of operand and attribute, and what several
// families share. The words of operands are those of kernels/README.md, whose table is made from the records
// (tests/ops/record_test.cpp).
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/op_record.h"
#include "engine/core/records/all.h"
#include "engine/core/shape.h"

namespace trainer::records {

using enum Trait;
using Type = AttributeDef::Type;
using Use = AttributeDef::Use;
using Role = OperandDef::Role;
using Operands = std::vector<OperandDef>;
using AttributeDefs = std::vector<AttributeDef>;

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline OperandDef in(std::string_view name, std::string_view what, std::string_view when = {}) {
  return {name, what, Role::input, when};
}

inline OperandDef param(std::string_view name, std::string_view what, std::string_view when = {}) {
  return {name, what, Role::parameter, when};
}

inline OperandDef update(std::string_view name, std::string_view what, std::string_view when = {}) {
  return {name, what, Role::update, when};
}

inline OperandDef out(std::string_view name, std::string_view what, std::string_view over = {},
                      std::string_view when = {}) {
  return {name, what, Role::output, when, over};
}

/// An output that may be added to.
inline OperandDef sum(std::string_view name, std::string_view what, std::string_view when = {}) {
  return {.name = name, .what = what, .role = Role::output, .when = when, .adds = true};
}

inline OperandDef state(std::string_view name, std::string_view when = {}) {
  return {.name = name, .what = "s", .role = Role::update, .when = when, .state = true};
}

inline OperandDef many(OperandDef operand) {
  operand.many = true;
  return operand;
}

inline AttributeDef flag(std::string_view name, bool otherwise) {
  return {.name = name, .type = Type::flag, .otherwise = otherwise};
}

inline AttributeDef integer(std::string_view name) { return {.name = name, .type = Type::integer}; }

inline AttributeDef integer(std::string_view name, std::int64_t otherwise) {
  return {.name = name, .type = Type::integer, .otherwise = otherwise};
}

inline AttributeDef integer(std::string_view name, std::string_view absent) {
  return {.name = name, .type = Type::integer, .absent = absent};
}

inline AttributeDef real(std::string_view name) { return {.name = name, .type = Type::real}; }

inline AttributeDef real(std::string_view name, double otherwise) {
  return {.name = name, .type = Type::real, .otherwise = otherwise};
}

inline AttributeDef real(std::string_view name, std::string_view absent) {
  return {.name = name, .type = Type::real, .absent = absent};
}

/// Of graph files, and passed on to the kernel.
inline AttributeDef both(AttributeDef def, std::string_view help) {
  def.use = Use::both;
  def.help = help;
  return def;
}

/// Of graph files alone.
inline AttributeDef file(AttributeDef def, std::string_view help) {
  def.use = Use::file;
  def.help = help;
  return def;
}

inline AttributeDef from(double least, AttributeDef def) {
  def.least = least;
  return def;
}

inline AttributeDef bias(bool in_file) {
  return in_file ? both(flag("bias", true), "whether a bias is added") : flag("bias", true);
}

inline AttributeDef tied() {
  return file({.name = "weight", .type = Type::node, .absent = "its own"}, "a node whose weight this one shares");
}

inline AttributeDef which_dim(std::int64_t otherwise) { return from(-Shape::kMaxDims, integer("dim", otherwise)); }

inline AttributeDef documents() {
  return file({.name = "documents", .type = Type::node, .absent = "none"},
              "an input i32 [batch, seq]: which document of its row each position belongs to, never descending but for "
              "-1 at the end, which pads the row; attention sees its own document only, positions start again at 0 in "
              "each; an input that is optional and that the data lacks is none");
}

}  // namespace trainer::records
