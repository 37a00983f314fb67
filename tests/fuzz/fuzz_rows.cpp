// Any bytes as a file of rows, plain or compressed: an error that says so, or objects whose places count up, and at the
// end all bytes were read. Seeds are small files of every kind: JSONL, an array, both by gzip and zstd. Files
// compressed with large windows take -malloc_limit_mb=4096.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "engine/core/error.h"
#include "engine/data/rows.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int file = ::memfd_create("rows", 0);
  if (file < 0 || ::ftruncate(file, 0) != 0 || ::pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  constexpr std::size_t kEnough = std::size_t{64} << 20;  // a few compressed bytes may be gigabytes
  std::size_t bytes = 0;
  try {
    const auto rows = trainer::data::open_rows("/proc/self/fd/" + std::to_string(file));
    std::string row, place;
    while (rows->next(row)) {
      if (row.size() < 2 || row.front() != '{' || row.back() != '}') std::abort();
      if (place == rows->place()) std::abort();
      place = rows->place();
      if ((bytes += row.size()) > kEnough) return 0;
    }
    if (rows->next(row) || rows->bytes_read() != static_cast<std::int64_t>(size)) std::abort();
  } catch (const trainer::DataError&) {
  }
  return 0;
}
