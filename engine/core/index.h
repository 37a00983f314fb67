// Ids and sizes are signed here; what the standard library indexes and sizes by is not.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trainer {

/// The place of what has an id, in a list of all of its kind. REQUIRES: id >= 0.
constexpr std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }
/// A number of bytes or elements for the standard library. REQUIRES: n >= 0.
constexpr std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace trainer
