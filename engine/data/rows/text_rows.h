// Rows of text: JSONL, and a JSON array of objects. The objects are found, not parsed.
#pragma once

#include <memory>
#include <string>

#include "engine/data/rows.h"
#include "engine/data/rows/bytes.h"

namespace trainer::data {

/// Rows of the text that `window` begins; a byte order mark was taken. Messages name `path`.
std::unique_ptr<Rows> line_rows(std::string path, Window window);
/// The same of text that begins with `[` after white space.
std::unique_ptr<Rows> array_rows(std::string path, Window window);

}  // namespace trainer::data
