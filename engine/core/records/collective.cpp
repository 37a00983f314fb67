// What joins ranks. The plan makes collectives of these; no kernel is launched.
#include "engine/core/records/define.h"

namespace trainer::records {
namespace {

OpRecord collective_of(Op op, Traits traits, AttributeDefs attributes, std::string_view over = {}) {
  return {.op = op,
          .traits = traits,
          .operands = {in("x", "c"), out("y", "c", over)},
          .attributes = std::move(attributes),
          .work = WorkClass::none};
}

}  // namespace

OpRecord replicate(Op op) { return collective_of(op, {collective}, {}); }
OpRecord all_reduce(Op op) { return collective_of(op, {collective, costly}, {}, "x"); }
OpRecord all_gather(Op op) { return collective_of(op, {collective}, {integer("dim")}); }
OpRecord reduce_scatter(Op op) { return collective_of(op, {collective, costly}, {integer("dim")}); }
OpRecord all_to_all(Op op) { return collective_of(op, {collective, costly}, {integer("dim")}); }
OpRecord shift(Op op) { return collective_of(op, {collective, costly}, {}); }

}  // namespace trainer::records
