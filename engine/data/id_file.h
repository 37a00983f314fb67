// Where the ids of a file of `format: tokens` lie. Three kinds are read, all little-endian:
//   flat      ids from the first byte on; their type is the job's, u16 unless it says otherwise
//   .npy      NumPy's array: "\x93NUMPY", version, length of the header, a header that says type and shape
//   llm.c     256 int32: 20240520 (ids are u16) or 20240801 (u32), version, number of ids; then the ids
// Sources: numpy.org/doc/stable/reference/generated/numpy.lib.format.html; karpathy/llm.c, dev/data/data_common.py.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/data/data_file.h"
#include "engine/job/job.h"

namespace trainer::data {

struct IdLayout {
  std::int64_t first_byte = 0;  ///< of the first id
  std::int64_t ids = 0;
  int id_bytes = 2;
  bool flat = false;  ///< no header says what the ids are
};

/// Raises DataError for a file of another kind, for a header that lies about its file, and for one that contradicts
/// `type`.
IdLayout id_layout(const DataFile& file, std::optional<TokenType> type);

}  // namespace trainer::data
