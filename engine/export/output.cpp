// How an output appears whole: written under a hidden name, then renamed, which never replaces what is there.
#include "engine/export/output.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/core/file.h"

namespace trainer::exporting {
namespace {

namespace fs = std::filesystem;

void require_absent(const std::string& path) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(path, error)))
    throw IoError(path + ": exists; an export never overwrites: remove it, or choose another name");
}

}  // namespace

Output::Output(std::string path) : path_((fs::path(path) / "").parent_path().lexically_normal().string()) {
  require_absent(path_);
  const fs::path parent = fs::path(path_).parent_path();
  folder_ = parent.empty() ? "." : parent.string();
  if (!is_directory(folder_)) throw IoError(folder_ + ": there is no such folder to export into");
  temporary_ = folder_ + "/." + fs::path(path_).filename().string() + "." + std::to_string(::getpid()) + ".tmp";
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);  // of a killed process that had our number
}

Output::~Output() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void Output::commit() {
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) != 0) {
    if (errno != EINVAL && errno != ENOSYS) fail_io(path_, "renaming");
    require_absent(path_);  // a file system that cannot refuse to replace
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_io(path_, "renaming");
  }
  committed_ = true;
  sync_directory(folder_);
}

}  // namespace trainer::exporting
