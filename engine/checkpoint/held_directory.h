// A run's hold on its directory of checkpoints: made durably, locked until the run ends however it ends, known to be
// writable before the first step, and at every save still the directory that its path names.
//
// Invariant: at most one run holds a directory, where the file system has locks. `.owner` in it says which, for the
// message that the others get.
#pragma once

#include <functional>
#include <string>

#include "engine/core/file.h"

namespace trainer::checkpoint {

/// Tells the user of something that does not end the run.
using Warn = std::function<void(const std::string&)>;

class HeldDirectory {
 public:
  /// Makes the directory, with those above it. Raises IoError where another run holds it.
  HeldDirectory(std::string path, Warn warn);
  HeldDirectory(const HeldDirectory&) = delete;
  HeldDirectory& operator=(const HeldDirectory&) = delete;
  ~HeldDirectory();

  const std::string& path() const { return path_; }
  void warn(const std::string& text) const;

  /// Before a save: makes and locks the directory again where it was removed or moved away. Raises IoError where the
  /// path names another directory by now, in which another run may save.
  void ensure();
  /// Whether the path still names the directory that is locked.
  bool is_in_place() const;

 private:
  void take();
  void write_owner() const;

  std::string path_;
  Warn warn_;
  Descriptor lock_;
};

}  // namespace trainer::checkpoint
