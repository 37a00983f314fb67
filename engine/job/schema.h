// JSON Schema (draft-07) from tables of fields.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <vector>

#include "engine/job/fields.h"

namespace trainer {

/// What a graph file may say of an op: the schema's view of the declarations in engine/ops.
struct GraphAttribute {
  enum class Type { flag, integer, real, choice, rope, node, dims };
  std::string name;
  Type type = Type::flag;
  bool required = false;
  std::string otherwise{};             ///< the default, as YAML; empty where there is none
  std::vector<std::string> choices{};  ///< of a choice
  double least = -std::numeric_limits<double>::infinity();
  double below = std::numeric_limits<double>::infinity();
  std::string help{};
};

struct GraphOp {
  std::string name;
  std::vector<GraphAttribute> attributes;
};

/// The schema of hardware files with these fields, pretty-printed: schemas/hardware.schema.json.
std::string hardware_schema(const std::vector<FieldDef>& fields);

/// The schema of graph files for these ops, pretty-printed: schemas/graph.schema.json.
std::string graph_schema(std::span<const GraphOp> ops);

}  // namespace trainer
