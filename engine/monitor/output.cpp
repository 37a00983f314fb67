// How monitors open and append to their files.
#include "engine/monitor/output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "engine/core/error.h"

namespace trainer {

Output::Output(std::string path, Start start) : path_(std::move(path)) {
  make_folders(std::filesystem::path(path_).parent_path());
  const int truncate = start == Start::empty ? O_TRUNC : 0;
  file_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | truncate, 0666));
  struct stat status {};
  const bool is_pipe =
      (!file_ && errno == ENXIO) || (file_ && ::fstat(file_.get(), &status) == 0 && S_ISFIFO(status.st_mode));
  if (is_pipe)
    throw IoError(path_ + ": is a named pipe; a log is written to a file");  // its reader could hold the run up
  if (!file_) fail_io(path_, "opening");
}

bool Output::lock() { return ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

void Output::truncate(std::int64_t bytes) {
  if (::ftruncate(file_.get(), bytes) != 0) fail_io(path_, "truncating");
}

void make_folders(const std::string& folder) {
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) throw IoError(folder + ": making the folder: " + error.message());
}

}  // namespace trainer
