// Random edits of good jobs, as a slip of a hand makes them: a key misspelt, a value of another type, a line cut, an
// indent lost. Each knows its line, so that a test can ask whether the message stands there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/job/yaml.h"

namespace trainer::tests {

struct Edit {
  enum class Kind : std::uint8_t { key_misspelt, other_type, line_cut, indent_lost } kind = Kind::key_misspelt;
  std::string job;   ///< the job that was edited
  std::string text;  ///< with the edit
  int line = 0;      ///< of the edit; of a cut line, where it stood
  std::vector<int>
      lines{};          ///< where its message may stand: `line`, and of a cut line those around it and its section's
  std::string path;     ///< of the key or value
  std::string was, is;  ///< what changed
};

std::string_view name_of(Edit::Kind kind);

/// `count` edits of the jobs, equally many of each kind; the same for the same arguments.
std::vector<Edit> random_edits(const std::vector<std::string>& jobs, std::size_t count, std::uint64_t seed);

}  // namespace trainer::tests
