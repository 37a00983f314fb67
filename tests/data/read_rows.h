// All rows of a file, for tests that compare them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/data/rows.h"
#include "tests/temporary.h"

namespace trainer::tests {

struct ReadRows {
  std::vector<std::string> rows, places;
  std::int64_t bytes = 0;
};

inline ReadRows read_rows(const std::string& path) {
  const auto rows = data::open_rows(path);
  ReadRows read;
  for (std::string row; rows->next(row);) {
    read.rows.push_back(row);
    read.places.push_back(rows->place());
  }
  read.bytes = rows->bytes_read();
  return read;
}

/// What is wrong with it, or "".
inline std::string mistake_of_rows(const std::string& path) {
  return message_of<DataError>([&] { read_rows(path); });
}

}  // namespace trainer::tests
