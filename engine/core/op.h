// Ops by name. What each is and takes is its record (op_record.h).
#pragma once

#include <optional>
#include <string_view>

#include "engine/core/op_enum.h"

namespace trainer {

std::string_view name_of(Op op);
std::optional<Op> op_named(std::string_view name);

}  // namespace trainer
