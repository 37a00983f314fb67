// Checksum: XXH3-128 of a stream of bytes, some 10 GB/s a core, so that verifying costs no more than reading.
// It guards against decay and truncation, not against forgery. Source: xxhash.com.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace trainer::checkpoint {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  void add(const void* data, std::size_t bytes);
  /// 32 hexadecimal digits, as `xxhsum -H2` prints them. More may be added after.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Bytes of a file that are in memory at a time while it is hashed.
inline constexpr std::int64_t kHashedBytes = std::int64_t{1} << 20;

std::string checksum_of(std::string_view bytes);
/// Of a whole file, streamed. Raises DataError if it is missing.
std::string checksum_of_file(const std::string& path);

}  // namespace trainer::checkpoint
