// Any bytes as a manifest, with and without a checksum that fits: either a DataError, or one that prints and parses
// back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/manifest.h"
#include "engine/core/error.h"

namespace {

void try_manifest(const std::string& text) {
  using namespace trainer::checkpoint;
  try {
    Manifest manifest = parse_manifest(text, "fuzz");
    if (parse_manifest(print_manifest(manifest), "fuzz") != manifest) std::abort();
    check_complete(manifest, "fuzz");
  } catch (const trainer::DataError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string body(reinterpret_cast<const char*>(data), size);
  try_manifest(body);
  try_manifest(body + ",\n  \"checksum\": \"" + trainer::checkpoint::checksum_of(body) + "\"\n}\n");
  return 0;
}
