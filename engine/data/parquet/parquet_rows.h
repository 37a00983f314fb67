// Rows of a Parquet file as JSON. All columns advance together, a page at a time, so that memory holds the file's
// footer and, for each column, one page (compressed and decompressed) and the row group's dictionary. Source:
// github.com/apache/parquet-format, README.md.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/data/data_file.h"
#include "engine/data/rows.h"

namespace trainer::data::parquet {

/// Reads the columns of these names; all of them if `columns` is empty. Raises DataError for a file that is damaged or
/// encrypted, or if one of these columns has a type that is not read.
std::unique_ptr<Rows> parquet_rows(DataFile file, const std::vector<std::string>& columns);

}  // namespace trainer::data::parquet
