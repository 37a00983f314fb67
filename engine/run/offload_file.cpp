// A file without a name, posix_fallocate, pread and pwrite.
#include "engine/run/offload_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "engine/core/amounts.h"
#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/core/system_error.h"

namespace trainer {
namespace {

// A new file of the folder, without a name; `path` is what messages call it. Where the file system cannot open one
// without a name (NFS), it has one for a moment, and a process that is killed in that moment leaves it behind.
Descriptor open_unnamed(const std::string& folder, int rank, std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw IoError(folder + ": making the folder of strategy.offload: " + error.message());
  path = fmt::format("{}/offload.{}", folder, rank);
  if (Descriptor file(::open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600)); file) return file;
  if (errno != EOPNOTSUPP && errno != EISDIR) fail_io(path, "creating");
  std::string name = path + ".XXXXXX";
  Descriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file) fail_io(path, "creating");
  if (::unlink(name.c_str()) != 0) fail_io(name, "removing its name");
  return file;
}

// What is free is asked first, so that a file that does not fit takes nothing from others. posix_fallocate returns its
// error.
void take_room(const Descriptor& file, const std::string& path, const std::string& folder, std::int64_t bytes) {
  std::error_code unknown;
  const std::filesystem::space_info space = std::filesystem::space(folder, unknown);
  int error = !unknown && space.available < static_cast<std::uintmax_t>(bytes) ? ENOSPC : EINTR;
  while (error == EINTR) error = ::posix_fallocate(file.get(), 0, bytes);
  if (error == 0) return;
  const std::string free =
      unknown ? "" : fmt::format(", of which {} were free", bytes_text(static_cast<double>(space.available)));
  throw IoError(
      fmt::format("{}: taking the {} that the plan keeps on disk{}: {}; make room, or name another folder "
                  "with strategy.offload.dir",
                  path, bytes_text(static_cast<double>(bytes)), free, system_text(error)));
}

}  // namespace

OffloadFile::OffloadFile(const std::string& folder, int rank, std::int64_t bytes)
    : bytes_(bytes), file_(open_unnamed(folder, rank, path_)) {
  take_room(file_, path_, folder, bytes);
}

void OffloadFile::read(std::int64_t offset, void* data, std::int64_t bytes) const {
  CHECK(offset >= 0 && offset + bytes <= bytes_, "a plan stays within its file");
  const std::size_t got = read_some_at(file_, offset, data, static_cast<std::size_t>(bytes), path_);
  if (got < static_cast<std::size_t>(bytes))
    throw IoError(path_ + ": was shortened while it was in use, at offset " + std::to_string(offset));
}

void OffloadFile::write(std::int64_t offset, const void* data, std::int64_t bytes) const {
  CHECK(offset >= 0 && offset + bytes <= bytes_, "a plan stays within its file");
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::pwrite(file_.get(), next, static_cast<std::size_t>(bytes), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_io(path_, "writing");
    next += put;
    offset += put;
    bytes -= put;
  }
}

void OffloadFile::forget() const {
  sync_file(file_, path_);
  if (::posix_fadvise(file_.get(), 0, bytes_, POSIX_FADV_DONTNEED) != 0) throw IoError(path_ + ": cannot be forgotten");
}

}  // namespace trainer
