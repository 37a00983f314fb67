#include "engine/transform/graph_ops.h"

#include <fmt/format.h>

#include "engine/ops/op_def.h"

namespace trainer {
namespace {

GraphAttribute::Type type_of(AttributeDef::Type type) {
  switch (type) {
    case AttributeDef::Type::flag:
      return GraphAttribute::Type::flag;
    case AttributeDef::Type::integer:
      return GraphAttribute::Type::integer;
    case AttributeDef::Type::real:
      return GraphAttribute::Type::real;
    case AttributeDef::Type::choice:
      return GraphAttribute::Type::choice;
    case AttributeDef::Type::rope:
      return GraphAttribute::Type::rope;
    case AttributeDef::Type::node:
      return GraphAttribute::Type::node;
    case AttributeDef::Type::dims:
      return GraphAttribute::Type::dims;
  }
  return {};
}

/// The default as YAML; empty where absence means something that no value says.
std::string default_of(const AttributeDef& def) {
  using Type = AttributeDef::Type;
  if (def.required || def.type == Type::node || def.type == Type::dims) return "";
  if (def.type == Type::rope) return "none";
  if (const auto* flag = std::get_if<bool>(&def.otherwise)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t>(&def.otherwise)) return *integer >= def.least ? fmt::format("{}", *integer) : "";
  if (const auto* real = std::get_if<double>(&def.otherwise)) return fmt::format("{}", *real);
  return std::get<std::string>(def.otherwise);
}

}  // namespace

std::vector<GraphOp> graph_ops() {
  std::vector<GraphOp> out;
  for (const OpDef& def : definitions()) {
    if (!def.in_graph_files) continue;
    GraphOp op{.name = std::string(name_of(def.op)), .attributes = {}};
    for (const AttributeDef& attribute : def.attributes) {
      op.attributes.push_back({.name = attribute.name,
                               .type = type_of(attribute.type),
                               .required = attribute.required,
                               .otherwise = default_of(attribute),
                               .choices = attribute.choices,
                               .least = attribute.least,
                               .below = attribute.below,
                               .help = attribute.help});
    }
    out.push_back(std::move(op));
  }
  return out;
}

}  // namespace trainer
