// Amounts of memory as files write them: an integer of bytes, or a number with a binary unit ("80GiB", "1.5 TiB"). GB,
// which data sheets round to as they like, is not accepted.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/job/yaml.h"

namespace trainer {

/// Of the text form, for the schema: above 0, below a million units, at most three decimals.
inline constexpr const char* kBytesPattern =
    "^([1-9][0-9]{0,5}(\\.[0-9]{1,3})?|0\\.[0-9]{0,2}[1-9]) ?(KiB|MiB|GiB|TiB)$";

/// The bytes that a scalar says, rounded down to whole ones, or nothing where it says none. At least 1.
std::optional<std::int64_t> bytes_of(const yaml::Node& node);

}  // namespace trainer
