// Fields for a model that predicts two tokens at each position: the token after it, which it reads, and the one after
// that, which it predicts (multi-token prediction, DeepSeek-V3 technical report, section 2.2).
#pragma once

#include <memory>

#include "engine/data/dataset.h"

namespace trainer::data {

inline constexpr const char *kNextTokens = "next_tokens", *kLaterTargets = "later_targets";

/// The samples of `samples` with two more fields, i32 [seq_len]: of position i `next_tokens` is token i + 1, and
/// `later_targets` the target of position i + 1. A position without them has token 0 and kIgnored: the last one, and
/// the last of a document, whose next token is another document's. REQUIRES: it has the fields `tokens` and `targets`,
/// both i32 [seq_len].
std::shared_ptr<const Dataset> with_later_targets(std::shared_ptr<const Dataset> samples);

}  // namespace trainer::data
