// OffloadFile: what a rank keeps on disk while it runs. The file has no name, so it goes with the process, however that
// ends; and its blocks are taken at once, so a full disk is found before the first step.
#pragma once

#include <cstdint>
#include <string>

#include "engine/core/file.h"

namespace trainer {

class OffloadFile {
 public:
  /// Zeros. Makes the folder, with those above it. Throws IoError where the file system has less room.
  OffloadFile(const std::string& folder, int rank, std::int64_t bytes);

  std::int64_t bytes() const { return bytes_; }
  /// Any number of threads, each at bytes of its own. Throw IoError.
  void read(std::int64_t offset, void* data, std::int64_t bytes) const;
  void write(std::int64_t offset, const void* data, std::int64_t bytes) const;
  /// Returns when all of it is on the disk; what is read next comes from there.
  void forget() const;

 private:
  std::string path_;  // in messages
  std::int64_t bytes_;
  Descriptor file_;
};

}  // namespace trainer
