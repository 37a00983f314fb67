// How a file is copied durably: read, hashed and written in chunks, then synced.
#include "engine/checkpoint/copy.h"

#include <vector>

#include "engine/checkpoint/checksum.h"
#include "engine/core/file.h"

namespace trainer::checkpoint {

Copied copy_durably(const std::string& from, const std::string& to) {
  const Descriptor source = open_for_reading(from), target = create_file(to);
  std::vector<std::byte> part(static_cast<std::size_t>(kHashedBytes));
  Checksum checksum;
  Copied copied;
  while (true) {
    const std::size_t bytes = read_some_at(source, copied.bytes, part.data(), part.size(), from);
    if (bytes == 0) break;
    checksum.add(part.data(), bytes);
    write_all(target, part.data(), bytes, to);
    copied.bytes += static_cast<std::int64_t>(bytes);
  }
  sync_file(target, to);
  copied.checksum = checksum.hex();
  return copied;
}

}  // namespace trainer::checkpoint
