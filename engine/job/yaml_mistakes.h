// Why a text is no YAML, in the words of who wrote it. The parser says where it could not go on; what is wrong often
// stands before that: a quote or a brace that was never closed, a line that lost its indent, a tab.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace trainer::yaml {

struct Cause {
  std::size_t offset = 0;  ///< of the byte to blame
  std::string message;
};

/// What no YAML parser tells well and is a mistake in any case: UTF-16, a no-break space as indent.
std::optional<Cause> misread(std::string_view text);

/// The likeliest cause, where the parser gave up in line `row` (from 0). Nothing if none is seen.
std::optional<Cause> cause_of_failure(std::string_view text, std::size_t row);

}  // namespace trainer::yaml
