// Output: a file that monitors append to. Makes the folders above it; every write is one call of the system, so that a
// killed run leaves whole records, except perhaps the last.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/file.h"

namespace trainer {

class Output {
 public:
  enum class Start { empty, append };
  Output(std::string path, Start start);

  const std::string& path() const { return path_; }
  void write(std::string_view bytes) { write_all(file_, bytes.data(), bytes.size(), path_); }
  /// False: another open file of this path, in whatever process, is locked.
  bool lock();
  /// Cuts the file off after `bytes` bytes.
  void truncate(std::int64_t bytes);

 private:
  std::string path_;
  Descriptor file_;
};

/// Makes `folder` and those above it. Throws IoError.
void make_folders(const std::string& folder);

}  // namespace trainer
