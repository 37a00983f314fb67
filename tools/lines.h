// Lines: a file of rows, or stdin as "-", line by line. Mistakes in a row name file and line.
#pragma once

#include <cstdint>
#include <string>

#include "engine/core/file.h"

namespace trainer::tools {

class Lines {
 public:
  explicit Lines(const std::string& path);

  /// Without its line break. False at the end.
  bool next(std::string& line);
  std::int64_t bytes() const { return bytes_; }
  /// DataError about the line that next() gave last.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  bool read();

  std::string name_;
  Descriptor file_;
  std::string block_;
  std::size_t at_ = 0;
  std::int64_t number_ = 0, bytes_ = 0;
};

}  // namespace trainer::tools
