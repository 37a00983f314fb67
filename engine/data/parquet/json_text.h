// Values as JSON text (RFC 8259).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trainer::data::parquet {

/// `text` in quotes, with its escapes. Raises Unsupported if it is not UTF-8.
void append_json_string(std::string& out, std::string_view text);
void append_integer(std::string& out, std::int64_t value);
void append_unsigned(std::string& out, std::uint64_t value);
/// The shortest text that reads back as `value`, with a point or an exponent; null for NaN and infinities, which JSON
/// cannot write.
void append_float(std::string& out, float value);
void append_float(std::string& out, double value);
/// The two's complement number `big_endian` times 10^-scale. REQUIRES: 0 to 16 bytes.
void append_decimal(std::string& out, std::string_view big_endian, std::int32_t scale);
void append_decimal(std::string& out, __int128 value, std::int32_t scale);
/// REQUIRES: 16 bytes.
void append_uuid(std::string& out, std::string_view bytes);

}  // namespace trainer::data::parquet
