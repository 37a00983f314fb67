// Rows of a Parquet file as JSON. All columns advance together, a page at a time, so that memory holds the file's
// footer and, for each column, one page (compressed and decompressed) and the row group's dictionary. Source:
// github.com/apache/parquet-format, README.md.
#pragma once

#include <memory>

#include "engine/data/data_file.h"
#include "engine/data/rows.h"

namespace trainer::data::parquet {

/// Reads the columns as open_rows does. Raises DataError for a file that is damaged or encrypted, or if one of the
/// columns that are read has a type that is not supported.
std::unique_ptr<Rows> parquet_rows(DataFile file, const RowColumns& columns);

}  // namespace trainer::data::parquet
