// Rows of a Parquet file as JSON. Columns are read side by side, a page at a time: memory holds, of each column that is
// read, a page as it is in the file, the page unpacked and the row group's dictionary; and the file's footer.
// Source: github.com/apache/parquet-format, README.md.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/data/data_file.h"
#include "engine/data/rows.h"

namespace trainer::data::parquet {

/// The columns of these names; of none: all. Raises DataError for a file that is damaged, encrypted, or has a column
/// among them that cannot be read.
std::unique_ptr<Rows> parquet_rows(DataFile file, const std::vector<std::string>& columns);

}  // namespace trainer::data::parquet
