// JSON as values of templates. Keys keep their order.
#pragma once

#include <string_view>

#include "engine/chat/value.h"

namespace trainer::chat {

/// Raises DataError. Whole numbers keep all their digits: those of more than 64 bits are an error.
Value parse_json(std::string_view text);

}  // namespace trainer::chat
