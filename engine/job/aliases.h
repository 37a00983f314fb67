// Words that people bring from other tools, and what a job calls them. A word of this table is answered with ours, and
// never with a name that only looks like it; `why` says what the name alone does not. Words are compared without case,
// `-` as `_`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "engine/core/error.h"

namespace trainer {

struct Alias {
  std::string_view ours;  ///< our key path, value or op; empty where there is no such thing
  std::string_view why;   ///< a half sentence for the message; may be empty
};

/// The path under which this table has the words of `path`: optimizers of groups and those beside muon have the words
/// of train.optimizer, and items of lists are alike: "train.groups[2].match" is "train.groups[].match".
std::string path_of_words(std::string_view path);

/// What a key is called that no section has; `path` is where it was found ("train.epochs"). Null if the word is not
/// known.
const Alias* alias_of_key(std::string_view path);
/// The same for the value of the key at `path` ("cluster.device", "gpu").
const Alias* alias_of_value(std::string_view path, std::string_view word);
/// The same for an op of a graph file.
const Alias* alias_of_op(std::string_view word);

/// Puts the alias into a mistake: `suggestion`, and `why` behind the message.
void answer(Diagnostic& mistake, const Alias& alias);

enum class AliasOf : std::uint8_t { key, value, op };
/// Calls `use` with every word; `path` is that of the section for keys that mean something there alone, and of the key
/// for values.
void each_alias(const std::function<void(AliasOf, std::string_view path, std::string_view word, const Alias&)>& use);

}  // namespace trainer
