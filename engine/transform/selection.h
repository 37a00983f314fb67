// Selection: names that a job gives as globs (name_matches of engine/core/glob.h), and what to say of one that takes
// nothing.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

/// What is wrong with a selection. `key` is where, below the key of the job that the selection stands under: "[2]",
/// "targets[0]".
struct SelectionMistake {
  std::string key;
  std::string message;
  std::string suggestion{};  ///< the nearest names, "" if none is near
};

/// For each of `names` whether a glob takes it. A glob that takes none is a mistake, "no `what` matches", at
/// `key`[index of the glob].
std::vector<bool> select(std::span<const std::string> globs, std::span<const std::string_view> names,
                         std::string_view what, std::string_view key, std::vector<SelectionMistake>& mistakes);

/// "a, b, c": at most three of `names` that fit `glob` with the fewest letters changed, where `*` costs nothing. Of
/// names that differ in their numbers alone (layers), the first.
std::string nearest_names(std::string_view glob, std::span<const std::string_view> names);

}  // namespace trainer
