// Files over POSIX calls.
#include "engine/core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "engine/core/error.h"
#include "engine/core/system_error.h"

namespace trainer {
namespace {

// Linux moves at most 2^31 - 4096 bytes a call; smaller parts also keep a signal's delay short.
constexpr std::size_t kMostPerCall = std::size_t{1} << 28;

struct stat status_of(const Descriptor& file, const std::string& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_io(path, "reading the size");
  return status;
}

// Of what a path names; nothing if there is no such thing.
std::optional<struct stat> status_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return status;
  if (errno != ENOENT && errno != ENOTDIR) fail_io(path, "opening");
  return std::nullopt;
}

}  // namespace

bool exists(const std::string& path) { return status_of(path).has_value(); }

bool is_directory(const std::string& path) {
  const std::optional<struct stat> status = status_of(path);
  return status && S_ISDIR(status->st_mode);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Descriptor::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file = open_for_reading(path);
  size_ = static_cast<std::size_t>(file_size(file, path));
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) fail_io(path, "mapping");
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

Descriptor open_for_reading(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // never waits for a pipe's writer
  if (!file && (errno == ENOENT || errno == ENOTDIR)) throw DataError(path + ": no such file");
  if (!file) fail_io(path, "opening");
  const struct stat status = status_of(file, path);
  if (S_ISDIR(status.st_mode)) throw DataError(path + ": is a directory, not a file");
  if (!S_ISREG(status.st_mode)) throw DataError(path + ": is not a regular file");
  return file;
}

std::int64_t file_size(const Descriptor& file, const std::string& path) { return status_of(file, path).st_size; }

std::size_t read_some_at(const Descriptor& file, std::int64_t offset, void* out, std::size_t bytes,
                         const std::string& path) {
  std::size_t read = 0;
  while (read < bytes) {
    const ssize_t got = ::pread(file.get(), static_cast<char*>(out) + read, std::min(bytes - read, kMostPerCall),
                                offset + static_cast<std::int64_t>(read));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io(path, "reading");
    if (got == 0) break;
    read += static_cast<std::size_t>(got);
  }
  return read;
}

void read_at(const Descriptor& file, std::int64_t offset, void* out, std::size_t bytes, const std::string& path) {
  const std::size_t read = read_some_at(file, offset, out, bytes, path);
  if (read < bytes)
    throw DataError(path + ": ends at offset " + std::to_string(offset + static_cast<std::int64_t>(read)) +
                    ", where more was expected");
}

std::string read_text(const std::string& path, std::int64_t limit) {
  const Descriptor file = open_for_reading(path);
  const std::int64_t size = file_size(file, path);
  if (size > limit) {
    throw DataError(path + ": " + std::to_string(size) + " bytes, where at most " + std::to_string(limit) +
                    " are allowed");
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  read_at(file, 0, text.data(), text.size(), path);
  return text;
}

Descriptor create_file(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file) fail_io(path, "creating");
  return file;
}

void write_all(const Descriptor& file, const void* data, std::size_t bytes, const std::string& path) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::write(file.get(), next, std::min(bytes, kMostPerCall));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_io(path, "writing");
    next += put;
    bytes -= static_cast<std::size_t>(put);
  }
}

void sync_file(const Descriptor& file, const std::string& path) {
  if (::fsync(file.get()) != 0) fail_io(path, "syncing");
}

void sync_directory(const std::string& path) {
  const Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) fail_io(path, "opening");
  // Some network file systems cannot sync a directory and say EINVAL; there, a rename is durable when it returns.
  if (::fsync(directory.get()) != 0 && errno != EINVAL) fail_io(path, "syncing");
}

void fail_io(const std::string& path, std::string_view doing) {
  const int error = errno;
  throw IoError(path + ": " + std::string(doing) + ": " + system_text(error));
}

}  // namespace trainer
