// Memory for the operands of benchmarks, aligned as the engine aligns buffers.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "engine/core/signature.h"

namespace trainer::bench {

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Memory = std::unique_ptr<void, Free>;

inline Memory allocate(std::int64_t bytes) {
  return Memory(std::aligned_alloc(kBufferAlignment, static_cast<std::size_t>(aligned(bytes + 64))));
}

}  // namespace trainer::bench
