// Making, locking and watching a directory.
#include "engine/checkpoint/held_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "engine/checkpoint/layout.h"
#include "engine/core/error.h"
#include "engine/core/printable.h"

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOwner = ".owner";
constexpr std::int64_t kMaxOwnerBytes = 1024;

// Each new directory's entry is on the disk when this returns: a checkpoint is not durable while a name above it is
// not.
void make_directories(const fs::path& path, const HeldDirectory& held) {
  if (::mkdir(path.c_str(), 0777) != 0) {
    if (errno == EEXIST) return;
    if (errno != ENOENT || !path.has_parent_path() || path.parent_path() == path)
      fail_io(path.string(), "creating the directory");
    make_directories(path.parent_path(), held);
    if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) fail_io(path.string(), "creating the directory");
  }
  try {
    sync_directory(path.has_parent_path() ? path.parent_path().string() : ".");
  } catch (const IoError& error) {  // as in a folder that one may write to but not read
    held.warn(std::string(error.what()) + "; after a power failure the new directory " + path.string() +
              " may be missing");
  }
}

std::string host_name() {
  char name[256] = "";
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "an unknown host";
}

// Empty where it is not known.
std::string owner_of(const std::string& directory) {
  try {
    return printable(read_text(directory + "/" + kOwner, kMaxOwnerBytes));
  } catch (const DataError&) {
    return "";
  } catch (const IoError&) {
    return "";
  }
}

bool are_same(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

}  // namespace

HeldDirectory::HeldDirectory(std::string path, Warn warn) : path_(std::move(path)), warn_(std::move(warn)) { take(); }

HeldDirectory::~HeldDirectory() {
  if (lock_) ::unlinkat(lock_.get(), kOwner, 0);
}

void HeldDirectory::warn(const std::string& text) const {
  if (warn_) warn_(text);
}

void HeldDirectory::take() {
  const fs::path path(path_);
  make_directories(path.has_filename() ? path : path.parent_path(), *this);
  lock_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_) fail_io(path_, "opening as a directory");
  // The kernel drops the lock when the run ends, however it ends.
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      lock_.close();
      const std::string owner = owner_of(path_);
      throw IoError(path_ + ": another run saves its checkpoints here" + (owner.empty() ? "" : ": " + owner) +
                    "; wait until it has ended, or choose another checkpoint.dir");
    }
    if (errno != ENOLCK && errno != ENOSYS && errno != EOPNOTSUPP) fail_io(path_, "locking");
    warn(path_ + ": this file system has no locks, so a second run that saves here is not noticed");
  }
  write_owner();
}

// Removed first: it may belong to another user.
void HeldDirectory::write_owner() const {
  const std::string path = path_ + "/" + kOwner, text = "process " + std::to_string(::getpid()) + " on " + host_name();
  ::unlinkat(lock_.get(), kOwner, 0);
  const Descriptor file(::openat(lock_.get(), kOwner, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file && errno == EEXIST)
    return warn(path + ": cannot be replaced, so a second run that wants to save here hears of the wrong process");
  if (!file) fail_io(path_, "checkpoints cannot be saved here");
  try {
    write_all(file, text.data(), text.size(), path);
  } catch (const IoError& error) {
    ::unlinkat(lock_.get(), kOwner, 0);
    throw IoError(path_ + ": checkpoints cannot be saved here: " + error.what());
  }
}

bool HeldDirectory::is_in_place() const {
  struct stat held {};
  struct stat named {};
  return ::fstat(lock_.get(), &held) == 0 && ::stat(path_.c_str(), &named) == 0 && are_same(held, named);
}

void HeldDirectory::ensure() {
  if (is_in_place()) return;
  struct stat named {};
  if (::stat(path_.c_str(), &named) == 0) {
    throw IoError(path_ +
                  ": was moved or replaced while this run used it. Nothing was saved there, as another run may do so; "
                  "the checkpoints so far are " +
                  "where the directory was moved to");
  }
  if (errno != ENOENT) fail_io(path_, "reading");
  warn(path_ +
       ": was moved or removed while this run used it; it is made again, and checkpoints are saved there from now on");
  take();
}

}  // namespace trainer::checkpoint
