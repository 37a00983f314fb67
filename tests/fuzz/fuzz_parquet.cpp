// Any bytes as a Parquet file: an error that says so, or rows that are JSON objects. The input is the footer's length
// (4 bytes, little-endian), the footer, and what lies before it; the file is put together here, so that a change of the
// footer's length does not end every attempt. A whole file that begins with PAR1 is taken as it is.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/core/error.h"
#include "engine/data/rows.h"

namespace {

std::string file_of(std::string_view input) {
  if (input.size() < 4 || input.starts_with("PAR1")) return std::string(input);
  std::uint32_t length;
  std::memcpy(&length, input.data(), 4);
  input.remove_prefix(4);
  length %= static_cast<std::uint32_t>(input.size() + 1);
  std::string file = "PAR1" + std::string(input.substr(length)) + std::string(input.substr(0, length));
  file.append(reinterpret_cast<const char*>(&length), 4);
  return file + "PAR1";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string contents = file_of({reinterpret_cast<const char*>(data), size});
  static const int file = ::memfd_create("rows", 0);
  const auto bytes = static_cast<ssize_t>(contents.size());
  if (file < 0 || ::ftruncate(file, 0) != 0 || ::pwrite(file, contents.data(), contents.size(), 0) != bytes)
    std::abort();
  constexpr std::size_t kEnough = std::size_t{1} << 20;  // a few bytes may say that there are billions of rows
  std::size_t written = 0;
  try {
    const auto rows = trainer::data::open_rows("/proc/self/fd/" + std::to_string(file));
    for (std::string row; written < kEnough && rows->next(row); written += row.size() + 64)
      if (row.size() < 100'000 && contents.starts_with("PAR1") && !nlohmann::json::parse(row).is_object()) std::abort();
  } catch (const trainer::DataError&) {
  }
  return 0;
}
