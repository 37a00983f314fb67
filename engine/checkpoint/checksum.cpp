// Checksums by XXH3-128, compiled in from the library's header.
#include "engine/checkpoint/checksum.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "engine/core/check.h"
#include "engine/core/file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trainer::checkpoint {

struct Checksum::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() {
    CHECK(xxh != nullptr, "no memory for a checksum");
    XXH3_128bits_reset(xxh);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(xxh); }
};

Checksum::Checksum() : state_(std::make_unique<State>()) {}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::add(const void* data, std::size_t bytes) { XXH3_128bits_update(state_->xxh, data, bytes); }

std::string Checksum::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_->xxh));
  std::string text;
  for (unsigned char byte : canonical.digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::string checksum_of(std::string_view bytes) {
  Checksum checksum;
  checksum.add(bytes.data(), bytes.size());
  return checksum.hex();
}

// By read, not by a map: a disk's error is then an errno that names the file, not a SIGBUS.
std::string checksum_of_file(const std::string& path) {
  const Descriptor file = open_for_reading(path);
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  std::vector<std::byte> part(kHashedBytes);
  Checksum checksum;
  while (true) {
    const ssize_t got = ::read(file.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io(path, "reading");
    if (got == 0) return checksum.hex();
    checksum.add(part.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace trainer::checkpoint
