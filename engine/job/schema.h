// JSON Schema (draft-07) from tables of fields.
#pragma once

#include <string>
#include <vector>

#include "engine/job/fields.h"

namespace trainer {

/// The schema of hardware files with these fields, pretty-printed: schemas/hardware.schema.json.
std::string hardware_schema(const std::vector<FieldDef>& fields);

/// The schema of graph files, by the records of their ops, pretty-printed: schemas/graph.schema.json.
std::string graph_schema();

}  // namespace trainer
