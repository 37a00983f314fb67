// Streams of ids, read whole.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/data/token_stream.h"

namespace trainer::data {

inline std::vector<std::int32_t> all_of(const TokenStream& stream) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(stream.num_tokens()));
  stream.read(0, stream.num_tokens(), ids.data());
  return ids;
}

}  // namespace trainer::data
