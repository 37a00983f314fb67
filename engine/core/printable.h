// Text from files, jobs and the command line, made safe for a terminal: what a terminal would obey (escape sequences,
// cursor movement, changes of writing direction) is shown as an escape such as `\x1b`, and so are bytes that are not
// UTF-8. All other text is unchanged.
#pragma once

#include <string>
#include <string_view>

namespace trainer {

/// A name, a path or a value inside a line: line breaks and tabs are escaped too, so that it cannot look like a line of
/// its own.
std::string printable(std::string_view text);

/// Text of several lines: line breaks and tabs stay.
std::string printable_lines(std::string_view text);

}  // namespace trainer
