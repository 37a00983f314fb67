// The format of the rows of a job: one for each of `documents`, `chat`, `completion` and `preference`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/encoded_row.h"
#include "engine/job/job.h"

namespace trainer::data {

/// REQUIRES: job.is_rows(), and not labelled (labelled.h). Raises DataError and IoError for tokenizers and templates
/// that cannot be used.
std::shared_ptr<const RowFormat> row_format(const DataJob& job);

/// The ids that end a text of the job's data, ascending. REQUIRES: job.is_rows(). Raises as row_format does.
std::vector<std::int32_t> ends_of_text(const DataJob& job);

}  // namespace trainer::data
