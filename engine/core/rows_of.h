// Parameters that are rows of a tensor. Where only some rows of a table are trained (engine/transform/trained_rows.h),
// each run of rows is a parameter of its own, and its name says which: "wte.weight.rows.40-50.of.50". Checkpoints of a
// model, model folders and random numbers know the whole table only: whoever moves a weight to or from them asks here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainer {

struct RowsOf {
  std::string tensor;  ///< the whole table
  std::int64_t first = 0, last = 0;
  std::int64_t rows = 0;  ///< of the whole table
};

std::string name_of(const RowsOf& rows);
/// Nothing where the name is of a parameter that is whole.
std::optional<RowsOf> named_rows(std::string_view name);
/// The table that the parameter belongs to, or its own name.
std::string whole_name(std::string_view name);

}  // namespace trainer
