// How a value of each form is written.
#include "engine/data/parquet/json_values.h"

#include "engine/core/narrow.h"
#include "engine/data/parquet/bits.h"
#include "engine/data/parquet/json_text.h"

namespace trainer::data::parquet {
namespace {

// An int96 holds the nanoseconds of the day, then the Julian day. Nanoseconds since 1970 may need more than 64 bits.
__int128 nanoseconds_of(std::string_view int96) {
  constexpr std::int64_t kUnixDay = 2440588, kDay = 86'400'000'000'000;
  const std::int64_t day = number_of<std::int32_t>(int96.substr(8)) - kUnixDay;
  return static_cast<__int128>(day) * kDay + number_of<std::int64_t>(int96);
}

float float16_of(std::string_view value) {
  float number = 0;
  const auto bits = number_of<std::uint16_t>(value);
  to_f32(DType::f16, &bits, 1, &number);
  return number;
}

void append_decimal_value(std::string& row, const Leaf& leaf, std::string_view value) {
  if (leaf.type == Physical::int32) return append_decimal(row, __int128{number_of<std::int32_t>(value)}, leaf.scale);
  if (leaf.type == Physical::int64) return append_decimal(row, __int128{number_of<std::int64_t>(value)}, leaf.scale);
  if (value.size() > 16) throw Unsupported("holds decimals of more than 38 digits");
  append_decimal(row, value, leaf.scale);
}

}  // namespace

void append_value(std::string& row, const Leaf& leaf, std::string_view value) {
  switch (leaf.form) {
    case Form::text:
      return append_json_string(row, value);
    case Form::boolean:
      row += value[0] != 0 ? "true" : "false";
      return;
    case Form::int32:
      return append_integer(row, number_of<std::int32_t>(value));
    case Form::int64:
      return append_integer(row, number_of<std::int64_t>(value));
    case Form::uint32:
      return append_unsigned(row, number_of<std::uint32_t>(value));
    case Form::uint64:
      return append_unsigned(row, number_of<std::uint64_t>(value));
    case Form::int96:
      return append_decimal(row, nanoseconds_of(value), 0);
    case Form::float32:
      return append_float(row, number_of<float>(value));
    case Form::float64:
      return append_float(row, number_of<double>(value));
    case Form::float16:
      return append_float(row, float16_of(value));
    case Form::decimal:
      return append_decimal_value(row, leaf, value);
    case Form::uuid:
      return append_uuid(row, value);
  }
}

}  // namespace trainer::data::parquet
