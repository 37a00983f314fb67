// Files: an owned descriptor, a read-only map, and the steps of a write that survives a power cut. Errors name
// the file: a file that is missing or not a regular one is a DataError, any other refusal of the system an IoError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace trainer {

/// Owns an open descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

/// The bytes of a whole file, mapped read-only for as long as the object lives. Any number of threads may read.
/// A file that another process shortens meanwhile ends the process with SIGBUS: for files that are open for a moment,
/// or that are only ever replaced as a whole. (Data is read: data_file.h.)
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Whether the path names anything, or a directory, links followed. Raises IoError where the system does not tell.
bool exists(const std::string& path);
bool is_directory(const std::string& path);
/// Opens for reading. Raises DataError if there is no such regular file.
Descriptor open_for_reading(const std::string& path);
/// Size in bytes of an open file.
std::int64_t file_size(const Descriptor& file, const std::string& path);
/// Fills `out` with the bytes from `offset` on; returns how many: fewer than `bytes` only where the file ends. Any
/// number of threads.
std::size_t read_some_at(const Descriptor& file, std::int64_t offset, void* out, std::size_t bytes,
                         const std::string& path);
/// Fills `out` with the bytes from `offset` on. Raises DataError, with the offset, if the file ends before. Any number
/// of threads may read from one file.
void read_at(const Descriptor& file, std::int64_t offset, void* out, std::size_t bytes, const std::string& path);
/// A small file as text. Raises DataError if it is longer than `limit` bytes.
std::string read_text(const std::string& path, std::int64_t limit);

/// Creates the file, or empties it.
Descriptor create_file(const std::string& path);
void write_all(const Descriptor& file, const void* data, std::size_t bytes, const std::string& path);
/// Waits until contents and length are on the disk.
void sync_file(const Descriptor& file, const std::string& path);
/// The same for a directory: its names.
void sync_directory(const std::string& path);

/// "path: doing: errno's message" as an IoError.
[[noreturn]] void fail_io(const std::string& path, std::string_view doing);

}  // namespace trainer
