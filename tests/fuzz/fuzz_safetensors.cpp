// Any bytes as a safetensors file: either a DataError, or tensors that lie in the file and can be read whole.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "engine/checkpoint/safetensors.h"
#include "engine/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainer::checkpoint;
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    unsigned sum = 0;
    for (const TensorEntry& entry : parse_safetensors(file, "fuzz").tensors) {
      if (entry.elements() < 0) std::abort();
      for (std::int64_t at = entry.first; at < entry.last; ++at)
        sum += std::to_integer<unsigned>(file[static_cast<std::size_t>(at)]);
    }
    volatile unsigned keep = sum;
    (void)keep;
  } catch (const trainer::DataError&) {
  }
  return 0;
}
