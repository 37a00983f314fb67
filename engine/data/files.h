// Which files a path, a list or a pattern names, and their contents joined end to end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/data_file.h"

namespace trainer::data {

/// The files that `paths` name, in sorted path order (by bytes), each once. A path may hold the wildcards of a shell:
/// `*`, `?`, `[a-z]` within a name, and `**` for any number of folders; a last `**` means every file below. Wildcards
/// pass over names with a leading dot, and `**` over links to folders. Raises DataError for a path or pattern
/// without a file, and for a folder, which is never meant whole.
std::vector<std::string> expand_paths(const std::vector<std::string>& paths);

/// The contents of files, joined. Any number of threads may read.
class Corpus {
 public:
  explicit Corpus(const std::vector<std::string>& paths);

  struct File {
    DataFile data;
    std::int64_t start = 0;  ///< offset of the first byte in the whole
  };

  const std::vector<File>& files() const { return files_; }
  std::int64_t bytes() const { return bytes_; }
  /// Index of the file that holds byte `offset` of the whole. REQUIRES: 0 <= offset < bytes().
  std::size_t file_at(std::int64_t offset) const;

 private:
  std::vector<File> files_;
  std::int64_t bytes_ = 0;
};

}  // namespace trainer::data
