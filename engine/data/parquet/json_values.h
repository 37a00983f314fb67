// A leaf's value as JSON.
#pragma once

#include <string>
#include <string_view>

#include "engine/data/parquet/schema.h"

namespace trainer::data::parquet {

/// Texts and UUIDs are strings; dates, times, timestamps and decimals are numbers in the column's unit. `value` is what
/// a ValueDecoder returned. Raises Unsupported for bytes that are not UTF-8, and decimals of more than 16 bytes.
void append_value(std::string& row, const Leaf& leaf, std::string_view value);

}  // namespace trainer::data::parquet
