// What a part of the Parquet reader finds wrong. The parts do not know where they are: parquet_rows.cpp adds the path,
// the row and the column, and makes a DataError of it.
#pragma once

#include <stdexcept>

namespace trainer::data::parquet {

/// The file breaks the rules of its format: it was damaged, or written wrongly.
struct Damaged : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The bytes end too early; with more of them the same call may succeed.
struct CutOff : Damaged {
  using Damaged::Damaged;
};

/// The file may be sound, but uses something that this reader does not support.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace trainer::data::parquet
