// Windows: samples of seq_len ids and the ids one later, out of a part of a token stream.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/data/dataset.h"
#include "engine/data/token_stream.h"

namespace trainer::data {

/// Over the ids [first, first + count) of `stream`: of n ids, sample i is `tokens` = ids[i·seq_len, (i+1)·seq_len)
/// and `targets` one later, both i32 [seq_len]; there are ⌊(n − 1)/seq_len⌋.
std::shared_ptr<const Dataset> windows(std::shared_ptr<const TokenStream> stream, std::int64_t first, std::int64_t count,
                                       std::int64_t seq_len);

}  // namespace trainer::data
