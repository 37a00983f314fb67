// Rows of tables, positions, and parameters that are values of a graph themselves.
#include "engine/core/records/define.h"

namespace trainer::records {
namespace {

AttributeDef offset() { return integer("offset", std::int64_t{0}); }

AttributeDef zigzag() { return integer("zigzag", std::int64_t{0}); }

AttributeDefs table_attributes() {
  return {file(from(1, integer("rows")), "rows of the table"), file(from(1, integer("dim")), "size of a row")};
}

AttributeDef table_rows() { return integer("table_rows", "of use with `cut` only"); }

}  // namespace

OpRecord embedding(Op op) {
  AttributeDefs attributes = table_attributes();
  for (const AttributeDef& def : {tied(), flag("cut", false), table_rows()}) attributes.push_back(def);
  return {.op = op,
          .traits = {graph_file},
          .operands = {in("ids", "i32 [...]"), param("weight", "c [rows, dim]"), out("y", "c [..., dim]")},
          .attributes = attributes,
          .work = WorkClass::own,
          .bandwidth = 0.7};  // single rows of a table
}

OpRecord embedding_grad(Op op) {
  return {.op = op,
          .traits = {backward, scratch},
          .operands = {in("ids", "i32 [...]"), in("dy", "c [..., dim]"), sum("dweight", "r [rows, dim]")},
          .attributes = {flag("cut", false), table_rows()},
          .work = WorkClass::own,
          .bandwidth = 0.7};
}

OpRecord positions(Op op) {
  AttributeDefs attributes = table_attributes();
  attributes.push_back(flag("partial", false));
  attributes.push_back(flag("at", false));
  attributes.push_back(zigzag());
  attributes.push_back(both(offset(), "the row of the first position"));
  attributes.push_back(documents());
  return {.op = op,
          .traits = {graph_file},
          .operands = {param("weight", "c [rows, dim]"), in("position", "i32 [1]", "at"), out("y", "c [seq, dim]")},
          .attributes = attributes,
          .timed_as = "copy",
          .note =
              "rows from offset + origin mod rows on, and with `at` `position` rows later; with `zigzag` positions in "
              "all, the second half of the rows ends as far before the last"};
}

OpRecord positions_grad(Op op) {
  return {.op = op,
          .traits = {backward},
          .operands = {in("dy", "c [seq, dim]"), sum("dweight", "r [rows, dim]")},
          .attributes = {offset(), zigzag()}};
}

OpRecord document_positions(Op op) {
  return {.op = op,
          .operands = {in("documents", "i32 [batch, all]"), out("ids", "i32 [batch, seq]")},
          .attributes = {offset(), zigzag()},
          .timed_as = "copy",
          .note = "offset + the place in its document of each position from origin on; of padding, -1: offset"};
}

OpRecord parameter(Op op) {
  return {.op = op,
          .traits = {graph_file},
          .operands = {param("weight", "c"), out("y", "c")},
          .attributes = {file({.name = "shape", .type = Type::dims}, "its dims"),
                         file(flag("trained", true), "false: frozen, unless the job's `trainable` names it")},
          .timed_as = "copy",
          .note = "a copy"};
}

OpRecord parameter_grad(Op op) {
  return {
      .op = op, .traits = {backward}, .operands = {in("dy", "c"), sum("dweight", "r")}, .timed_as = "positions_grad"};
}

}  // namespace trainer::records
